//! The child: four threads that claim and end keys until somebody kills the process.

use std::path::PathBuf;
use std::thread;

use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Fingerprint, Forget, Key, Operation, Store,
    Unavailable,
};

use crate::support::block_on;
use crate::support::journal::Journal;
use crate::support::killed::Orders;
use crate::{options, verb};

/// Where the effects on the world are kept.
pub fn effects(orders: &Orders) -> PathBuf {
    orders.directory.join("effects")
}

pub fn key(number: u64) -> Key {
    Key::new("scope", "operation", number.to_string()).expect("a key")
}

pub fn number(key: &Key) -> u64 {
    let id = std::str::from_utf8(key.id()).expect("digits");
    id.parse().expect("a number")
}

pub fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint::of(number.to_le_bytes())
}

/// What the owner with this token stores: now and then more than is set aside for it.
pub fn response(token: u64) -> Vec<u8> {
    let len = [8, 40, 300, 0, 1_500, 7_000, 100, 64][(token % 8) as usize];
    token.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The note that this owner leaves.
pub fn note(token: u64) -> [u8; 8] {
    token.to_le_bytes()
}

/// Bits of a key's number that stand for its thread; all of them for a key of all threads.
const SHARED: u64 = 0xF << 28;

#[test]
fn child() {
    let Some(orders) = Orders::received() else {
        return;
    };
    let durability = match (orders.seed + orders.round) % 2 {
        0 => Durability::Sync,
        _ => Durability::Buffered,
    };
    let journal = Journal::open(&orders.journal());
    let effects = Journal::open(&effects(&orders));
    for life in 0.. {
        journal.append([verb::OPENING, 0, 0, 0, 0, 0, 0, 0]);
        let store = options(durability)
            .open(orders.store())
            .expect("opens without help");
        journal.append([verb::OPENED, 0, 0, 0, 0, 0, 0, 0]);
        let hand = |thread| Hand {
            store: &store,
            journal: &journal,
            effects: &effects,
            thread,
            first: orders.round << 40 | life << 32 | thread << 28,
        };
        thread::scope(|scope| {
            let hands = [
                scope.spawn(move || hand(0).blocking()),
                scope.spawn(move || hand(1).polled()),
                scope.spawn(move || hand(2).batches()),
                scope.spawn(move || hand(3).left_behind()),
                scope.spawn(move || hand(4).maintain()),
            ];
            // Closed amid the work, so that a kill can fall into that.
            thread::sleep(std::time::Duration::from_millis(5 + orders.round % 4 * 10));
            journal.append([verb::CLOSING, 0, 0, 0, 0, 0, 0, 0]);
            store.close().expect("closes");
            for hand in hands {
                hand.join().expect("a hand");
            }
        });
        journal.append([verb::CLOSED, 0, 0, 0, 0, 0, 0, 0]);
    }
}

/// The store is closed.
struct Closed;

/// One thread.
struct Hand<'a> {
    store: &'a Store,
    journal: &'a Journal,
    effects: &'a Journal,
    thread: u64,
    /// The first number of a key of its own.
    first: u64,
}

impl Hand<'_> {
    fn say(&self, verb: u64, number: u64, token: u64, attempt: u32) {
        self.say_noted(verb, number, token, attempt, 0);
    }

    fn say_noted(&self, verb: u64, number: u64, token: u64, attempt: u32, noted: u64) {
        let attempt = u64::from(attempt);
        self.journal
            .append([verb, number, token, attempt, self.thread, noted, 0, 0]);
    }

    /// Claims keys of its own, and now and then one that all threads claim.
    fn blocking(&self) {
        for n in 0.. {
            let number = self.shared_or_own(n);
            self.say(verb::CLAIMING, number, 0, 0);
            let claim = self.store.claim(&key(number), fingerprint(number));
            let done = match self.claimed(number, claim) {
                Ok(Some(operation)) => self.work(number, n, operation, false),
                Ok(None) => Ok(()),
                Err(closed) => Err(closed),
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn polled(&self) {
        for n in 0.. {
            let number = self.shared_or_own(n);
            self.say(verb::CLAIMING, number, 0, 0);
            let claim = block_on(self.store.claim_async(&key(number), fingerprint(number)));
            let done = match self.claimed(number, claim) {
                Ok(Some(operation)) => self.work(number, n, operation, true),
                Ok(None) => Ok(()),
                Err(closed) => Err(closed),
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn batches(&self) {
        for n in 0.. {
            let numbers: Vec<u64> = (n * 6..n * 6 + 6).map(|n| self.shared_or_own(n)).collect();
            for number in &numbers {
                self.say(verb::CLAIMING, *number, 0, 0);
            }
            let keys: Vec<Key> = numbers.iter().map(|number| key(*number)).collect();
            let asked = keys
                .iter()
                .zip(&numbers)
                .map(|(key, number)| (key, fingerprint(*number)));
            let claims = self.store.claim_many(asked, ClaimOptions::new());
            let mut is_closed = false;
            for (at, (number, claim)) in numbers.into_iter().zip(claims).enumerate() {
                let done = match self.claimed(number, claim) {
                    Ok(Some(operation)) => {
                        self.work(number, n * 6 + at as u64, operation, at % 2 == 0)
                    }
                    Ok(None) => Ok(()),
                    Err(closed) => Err(closed),
                };
                is_closed |= done.is_err();
            }
            if is_closed {
                return;
            }
        }
    }

    /// Takes over what earlier processes left.
    fn left_behind(&self) {
        let Ok(left) = self.store.interrupted() else {
            return;
        };
        for (n, one) in (0..).zip(left) {
            let number = number(&one.key);
            self.say(verb::CLAIMING, number, 0, 0);
            let claim = self.store.claim(&one.key, fingerprint(number));
            let done = match self.claimed(number, claim) {
                Ok(Some(operation)) => {
                    assert_eq!(operation.attempt(), one.attempt + 1);
                    self.work(number, n, operation, false)
                }
                Ok(None) => panic!("{number} belongs to nobody else"),
                Err(closed) => Err(closed),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Fills segments with results that expire at once, and has them given up, copies made and keys
    /// written again. What it did goes to the journal.
    fn maintain(&self) {
        for n in 0.. {
            // First what the processes before have left: the life of this one may be short.
            if n % 4 == 0 {
                let Ok(done) = self.store.maintain() else {
                    return;
                };
                self.journal.append([
                    verb::MAINTAINED,
                    done.segments_removed,
                    done.records_copied,
                    done.keys_refreshed,
                    self.thread,
                    0,
                    0,
                    0,
                ]);
            }
            let filler = Key::new("filler", "filler", (self.first | n).to_string()).expect("a key");
            let options = ClaimOptions::new()
                .durability(Durability::Buffered)
                .retention(std::time::Duration::from_millis(1));
            let Ok(Claim::Started(operation)) =
                self.store.claim_with(&filler, fingerprint(n), options)
            else {
                return;
            };
            if operation.complete(vec![7; 14_000]).is_err() {
                return;
            }
        }
    }

    fn shared_or_own(&self, n: u64) -> u64 {
        if n % 5 == 4 {
            (self.first | SHARED) + n / 5
        } else {
            self.first | n
        }
    }

    fn claimed(
        &self,
        number: u64,
        claim: Result<Claim, ClaimError>,
    ) -> Result<Option<Operation>, Closed> {
        match claim {
            Ok(Claim::Started(operation) | Claim::Interrupted(operation)) => {
                let (token, attempt) = (operation.token().as_u64(), operation.attempt());
                let noted = operation.last_checkpoint().map_or(0, |note| {
                    u64::from_le_bytes(note[..].try_into().expect("a token"))
                });
                self.say_noted(verb::CLAIMED, number, token, attempt, noted);
                Ok(Some(operation))
            }
            Ok(Claim::InProgress(_)) => {
                self.say(verb::BUSY, number, 0, 0);
                Ok(None)
            }
            Ok(Claim::Completed(saved)) => {
                self.say(
                    verb::REPLAYED,
                    number,
                    saved.token().as_u64(),
                    saved.attempt(),
                );
                Ok(None)
            }
            // Nothing was claimed, or it may have been: the journal leaves it open.
            Err(ClaimError::OutcomeUnknown(_) | ClaimError::Unavailable(Unavailable::Closed)) => {
                Err(Closed)
            }
            other => panic!("{number}: {other:?}"),
        }
    }

    /// Ends an operation one way or another; a key that others claim too is completed.
    fn work(
        &self,
        number: u64,
        n: u64,
        mut operation: Operation,
        polled: bool,
    ) -> Result<(), Closed> {
        let (token, attempt) = (operation.token().as_u64(), operation.attempt());
        let is_shared = number & SHARED == SHARED;
        let how = if is_shared { 7 } else { n % 8 };
        if how == 1 && attempt == 1 {
            self.say(verb::RELEASING, number, token, attempt);
            let released = match polled {
                true => block_on(operation.release_async()),
                false => operation.release(),
            };
            released.map_err(|_| Closed)?;
            self.say(verb::RELEASED, number, token, attempt);
            return Ok(());
        }
        if how == 2 || how == 3 {
            self.say(verb::NOTING, number, token, attempt);
            let noted = match polled {
                true => block_on(operation.checkpoint_async(note(token))),
                false => operation.checkpoint(note(token)),
            };
            noted.map_err(|_| Closed)?;
            self.say(verb::NOTED, number, token, attempt);
        }
        self.effects
            .append([1, number, token, u64::from(attempt), 0, 0, 0, 0]);
        if how == 0 || how == 3 {
            return Ok(());
        }
        self.say(verb::COMPLETING, number, token, attempt);
        let completed = match polled {
            true => block_on(operation.complete_async(response(token))),
            false => operation.complete(response(token)),
        };
        completed.map_err(|_| Closed)?;
        self.say(verb::COMPLETED, number, token, attempt);
        if how == 4 {
            self.say(verb::FORGETTING, number, token, attempt);
            let removed = self.store.forget(&key(number), Forget::IfCompleted);
            assert!(removed.map_err(|_| Closed)?, "{number} was completed");
            self.say(verb::FORGOTTEN, number, token, attempt);
        }
        Ok(())
    }
}
