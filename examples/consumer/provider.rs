//! The other system: charges cards under idempotency keys, and mails without any.
//!
//! It is never killed, so that it can tell in the end what was really done. It is often busy, and
//! hangs up after doing what it was told, so that nobody can know.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::broker::Random;
use crate::wire::Line;
use crate::worker::CHARGER;

#[derive(Clone, Default)]
pub struct Provider {
    book: Arc<Mutex<Book>>,
    /// Connections that are served.
    open: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Book {
    /// By consumer and event: how often it took effect.
    effects: HashMap<(String, String), u32>,
    /// Keys of charges, with the event that each was used for.
    charges: HashMap<String, String>,
    calls: u64,
    /// A key that was used for two events.
    faults: Vec<String>,
}

impl Provider {
    pub fn start(seed: u64) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let provider = Self::default();
        let serving = provider.clone();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (provider, random) = (serving.clone(), Random::new(seed + number as u64));
                provider.open.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // A caller that is gone is none of our business.
                    drop(
                        stream
                            .and_then(Line::new)
                            .map(|line| provider.serve(line, random)),
                    );
                    provider.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok((provider, address))
    }

    fn serve(&self, mut line: Line, mut random: Random) {
        while let Ok(words) = line.receive() {
            let [consumer, id, key] = &words[..] else {
                return;
            };
            let chance = random.below(20);
            if chance == 0 {
                if line.send(&["busy"]).is_err() {
                    return;
                }
                continue;
            }
            self.act(consumer, id, key);
            // Done, and nobody hears of it.
            if chance == 1 || line.send(&["done"]).is_err() {
                return;
            }
        }
    }

    fn act(&self, consumer: &str, id: &str, key: &str) {
        let mut book = self.book();
        book.calls += 1;
        if consumer == CHARGER {
            let known = book.charges.get(key).cloned();
            match known {
                Some(event) if event == id => return,
                Some(event) => {
                    let fault = format!("one key was used for {event} and {id}");
                    book.faults.push(fault);
                    return;
                }
                None => book.charges.insert(key.to_owned(), id.to_owned()),
            };
        }
        let of = (consumer.to_owned(), id.to_owned());
        *book.effects.entry(of).or_default() += 1;
    }

    /// Waits until nothing is on its way that was sent before this call: what an interrupted attempt
    /// sent may take effect after its death, and who asks too early is told "no".
    pub fn settle(&self, address: SocketAddr) -> io::Result<()> {
        // Connections are taken in order, so all earlier ones are known once this one is over.
        drop(Line::connect(address)?.ask(&["bye"]));
        while self.open.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How often the event took effect.
    pub fn effects(&self, consumer: &str, id: &str) -> u32 {
        let of = (consumer.to_owned(), id.to_owned());
        self.book().effects.get(&of).copied().unwrap_or(0)
    }

    pub fn calls(&self) -> u64 {
        self.book().calls
    }

    pub fn faults(&self) -> Vec<String> {
        self.book().faults.clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
