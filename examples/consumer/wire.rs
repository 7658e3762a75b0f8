//! Lines over a socket: how consumers talk to the broker and to the provider.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

pub struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(address)?)
    }

    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let line = words.join(" ") + "\n";
        self.reader.get_mut().write_all(line.as_bytes())
    }

    /// The words of the next line; an error where the other side is gone.
    pub fn receive(&mut self) -> io::Result<Vec<String>> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        match line.ends_with('\n') {
            true => Ok(line.split_whitespace().map(str::to_owned).collect()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Asks, and gets one line for an answer.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Vec<String>> {
        self.send(words)?;
        self.receive()
    }
}
