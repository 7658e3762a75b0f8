//! The consumer: a process with two handlers on one store, each of which polls its queue.
//!
//! * `charger` calls a provider that takes idempotency keys, so it is safe to
//!   [rerun](OnInterrupted::rerun), and takes eight messages at a time.
//! * `mailer` calls one that sends whatever it is told, so an event that may have been mailed is a
//!   [dead letter](OnInterrupted::dead_letter). It takes one message at a time, since a crash leaves a
//!   whole batch unknown.
//!
//! The process is killed at any moment, and one of the events kills it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use oncekey::inbox::{Event, Failure, Inbox, Message, OnInterrupted, Outcome};
use oncekey::{Options, Store};

use crate::wire::Line;

pub const CHARGER: &str = "charger";
pub const MAILER: &str = "mailer";
/// Attempts that an event has, in both.
pub const ATTEMPTS: u32 = 6;
/// Consumers of each queue.
const THREADS: usize = 2;
const BATCH: usize = 8;

/// The store that outlives each process.
pub fn open(data: &Path) -> Result<Store, Box<dyn std::error::Error>> {
    let options = Options::new()
        .segment_size(1 << 20)
        // A process that was killed may not be gone yet.
        .lock_wait(Duration::from_secs(30));
    Ok(options.open(data.join("store"))?)
}

pub fn inbox(store: &Store, consumer: &str) -> Result<Inbox, Box<dyn std::error::Error>> {
    let policy = match consumer {
        CHARGER => OnInterrupted::rerun(),
        _ => OnInterrupted::dead_letter(),
    };
    let inbox = Inbox::builder(store.clone(), consumer)
        .scope("orders")
        .on_interrupted(policy)
        .max_attempts(ATTEMPTS)
        .backoff(Duration::from_millis(2), Duration::from_millis(20));
    Ok(inbox.build()?)
}

/// Consumes until the broker says that it is over.
pub fn run(
    data: &Path,
    broker: SocketAddr,
    provider: SocketAddr,
) -> Result<(), Box<dyn std::error::Error>> {
    let store = open(data)?;
    let mut threads = Vec::new();
    for consumer in [CHARGER, MAILER] {
        for _ in 0..THREADS {
            let inbox = inbox(&store, consumer)?;
            threads.push(thread::spawn(move || {
                consume(&inbox, consumer, broker, provider)
            }));
        }
    }
    for thread in threads {
        thread.join().map_err(|_| "a consumer panicked")??;
    }
    Ok(store.close()?)
}

fn consume(
    inbox: &Inbox,
    consumer: &str,
    broker: SocketAddr,
    provider: SocketAddr,
) -> io::Result<()> {
    let mut queue = Line::connect(broker)?;
    let most = if consumer == CHARGER { BATCH } else { 1 };
    loop {
        let polled = queue.ask(&["poll", consumer, &most.to_string()])?;
        let messages: Vec<(String, String)> = match polled.split_first() {
            Some((word, _)) if word == "end" => return Ok(()),
            Some((_, words)) => words
                .chunks_exact(2)
                .map(|words| (words[0].clone(), words[1].clone()))
                .collect(),
            None => return Err(io::ErrorKind::InvalidData.into()),
        };
        let deliveries = messages
            .iter()
            .map(|(id, payload)| Message::new(id).payload(payload));
        let outcomes = inbox.process_batch(deliveries, |index, event| {
            handle(event, consumer, &messages[index].1, provider)
        });
        for ((id, _), outcome) in messages.iter().zip(outcomes) {
            tell(&mut queue, consumer, id, outcome)?;
        }
    }
}

/// What a consumer of a real broker does with its own calls: see the table of `oncekey::inbox`.
fn tell(queue: &mut Line, consumer: &str, id: &str, outcome: Outcome) -> io::Result<()> {
    match outcome {
        Outcome::Ack(_) => queue.send(&["ack", consumer, id]),
        Outcome::RetryLater(retry) => {
            let after_ms = retry.after.as_millis().to_string();
            queue.send(&["retry", consumer, id, &after_ms])
        }
        Outcome::DeadLetter(dead) => {
            let known = if dead.is_outcome_unknown {
                "unknown"
            } else {
                "harmless"
            };
            queue.send(&["dead", consumer, id, known])
        }
    }
}

fn handle(
    event: &mut Event,
    consumer: &str,
    payload: &str,
    provider: SocketAddr,
) -> Result<(), Failure> {
    match payload {
        "nonsense" => return Err(Failure::reject("the payload is nonsense")),
        "lethal" => std::process::abort(),
        _ => {}
    }
    let mut line = Line::connect(provider).map_err(Failure::nothing_happened)?;
    let id = String::from_utf8_lossy(event.id()).into_owned();
    let key = event.downstream_key("call");
    // From here on an error may mean that it was carried out: `?` says so.
    let answer = line.ask(&[consumer, &id, &key])?;
    match answer.first().map(String::as_str) {
        Some("done") => Ok(()),
        Some("busy") => Err(Failure::nothing_happened("busy").after(Duration::from_millis(1))),
        _ => Err(Failure::may_have_acted("no answer that makes sense")),
    }
}
