//! A proxy that does to requests what networks do: loses them or their answers, delays, doubles and
//! reorders.
//!
//! It reads a whole request (with a content length), decides its fate, and gives it a connection of
//! its own to the server, so that a connection that is cut is one request's.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::support::Random;

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Passes,
    /// The connection is cut before the server has seen anything.
    CutBefore,
    /// The server carries it out and the answer is lost.
    CutAfter,
    /// Half of the answer arrives.
    CutWithin,
    /// The server's connection is cut as soon as it has the request.
    HangsUp,
    /// It arrives late: behind others that were sent after it.
    Delayed,
    /// It arrives twice at the same moment.
    Doubled,
    /// It arrives, and once more long after its answer.
    ComesAgain,
}

pub const FATES: [Fate; 8] = [
    Fate::Passes,
    Fate::CutBefore,
    Fate::CutAfter,
    Fate::CutWithin,
    Fate::HangsUp,
    Fate::Delayed,
    Fate::Doubled,
    Fate::ComesAgain,
];

#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    server: SocketAddr,
    dice: Arc<Mutex<Dice>>,
}

struct Dice {
    random: Random,
    thrown: Vec<Fate>,
}

impl Proxy {
    /// Every request has a fate of its own, drawn from `seed`.
    pub async fn start(server: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            server,
            dice: Arc::new(Mutex::new(Dice {
                random: Random::new(seed),
                thrown: Vec::new(),
            })),
        };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let proxy = accepting.clone();
                // A connection that breaks is what this is about.
                tokio::spawn(async move { proxy.relay(client).await.ok() });
            }
        });
        proxy
    }

    pub fn met(&self, fate: Fate) -> usize {
        let dice = self.dice.lock().unwrap();
        dice.thrown.iter().filter(|&&thrown| thrown == fate).count()
    }

    fn throw(&self) -> (Fate, Duration) {
        let mut dice = self.dice.lock().unwrap();
        let fate = FATES[dice.random.below(FATES.len())];
        dice.thrown.push(fate);
        let late = Duration::from_millis(dice.random.below(60) as u64);
        (fate, late)
    }

    async fn relay(&self, mut client: TcpStream) -> io::Result<()> {
        let request = read_request(&mut client).await?;
        let (fate, late) = self.throw();
        let answer = match fate {
            Fate::CutBefore => return Ok(()),
            Fate::Passes | Fate::CutAfter | Fate::CutWithin => self.ask(&request).await?,
            Fate::HangsUp => {
                let mut server = TcpStream::connect(self.server).await?;
                return server.write_all(&request).await;
            }
            Fate::Delayed => {
                sleep(late).await;
                self.ask(&request).await?
            }
            Fate::Doubled => {
                let (first, second) = tokio::join!(self.ask(&request), self.ask(&request));
                // The second overtakes the first as often as not.
                if late.as_millis().is_multiple_of(2) {
                    first?
                } else {
                    second?
                }
            }
            Fate::ComesAgain => {
                let answer = self.ask(&request).await?;
                let (proxy, request) = (self.clone(), request.clone());
                tokio::spawn(async move {
                    sleep(late * 4).await;
                    proxy.ask(&request).await
                });
                answer
            }
        };
        match fate {
            Fate::CutAfter => Ok(()),
            Fate::CutWithin => client.write_all(&answer[..answer.len() / 2]).await,
            _ => client.write_all(&answer).await,
        }
    }

    async fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.server).await?;
        server.set_nodelay(true)?;
        server.write_all(request).await?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

/// A whole request, told to be the last of its connection.
async fn read_request(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |length| length.trim().parse().expect("a length"));
    while bytes.len() < head + length {
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    bytes.splice(head - 2..head - 2, *b"connection: close\r\n");
    Ok(bytes)
}
