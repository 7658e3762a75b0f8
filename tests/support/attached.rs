//! What the tests of messages and of versions share: a store whose clock is moved by hours.

use std::sync::Arc;
use std::time::Duration;

use oncekey::{Durability, ManualClock, Operation, Options, Store};

use super::{key, request, small, started};

pub const HOUR: Duration = Duration::from_secs(3_600);

/// Results are kept for an hour, and only a test that asks for maintenance has it.
pub fn options(clock: &ManualClock) -> Options {
    small(Durability::Sync)
        .clock(Arc::new(clock.clone()))
        .max_clock_jump(Duration::from_secs(86_400 * 3_650))
        .retention(HOUR)
        .maintenance(false)
}

pub fn claim(store: &Store, id: &str) -> Operation {
    started(store.claim(&key(id), request()).expect("a claim"))
}

/// Closes a segment with results that end, and goes on to when they have ended.
pub fn roll(store: &Store, clock: &ManualClock, round: usize) {
    for number in 0..14 {
        let operation = claim(store, &format!("filler-{round}-{number}"));
        operation.complete(vec![7; 7_000]).expect("a completion");
    }
    clock.advance(2 * HOUR);
}
