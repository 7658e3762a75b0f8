//! The parent's book: what each key may be, by what was acknowledged and what was under way.

use std::collections::{HashMap, HashSet};

use oncekey::{KeyState, Replay, Store};

use crate::child::{key, response};
use crate::verb;

/// What a key may be after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Could {
    Absent,
    Interrupted {
        attempt: u32,
        /// The token whose owner left the note; 0 without one.
        noted: u64,
    },
    Completed {
        attempt: u32,
        token: u64,
    },
}

#[derive(Debug)]
struct Book {
    could: Vec<Could>,
    /// Tokens of all grants that were told, in order.
    tokens: Vec<u64>,
    effects: Vec<u64>,
    /// The token under which it was completed, if that was told or found.
    completed: Option<u64>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            could: vec![Could::Absent],
            tokens: Vec::new(),
            effects: Vec::new(),
            completed: None,
        }
    }
}

#[derive(Debug, Default)]
pub struct Oracle {
    books: HashMap<u64, Book>,
    /// Claims that were not answered yet, by thread and key.
    claiming: HashSet<(u64, u64)>,
    tokens: HashSet<u64>,
    effects: usize,
}

impl Book {
    /// What a claim that is granted finds, for each thing the key could be.
    fn grants(&self) -> impl Iterator<Item = Could> + '_ {
        self.could.iter().filter_map(|could| match *could {
            Could::Absent => Some(Could::Interrupted {
                attempt: 1,
                noted: 0,
            }),
            Could::Interrupted { attempt, noted } => Some(Could::Interrupted {
                attempt: attempt + 1,
                noted,
            }),
            Could::Completed { .. } => None,
        })
    }

    fn or(&mut self, could: Could) {
        if !self.could.contains(&could) {
            self.could.push(could);
        }
    }
}

impl Oracle {
    /// What a child wrote down.
    pub fn told(&mut self, records: &[[u64; 8]]) {
        for record in records {
            let [what, number, token, attempt, thread, noted, ..] = *record;
            if what <= verb::CLOSED {
                // A close ends what was under way as a kill does.
                if what == verb::CLOSED {
                    self.killed();
                }
                continue;
            }
            if what == verb::MAINTAINED {
                continue;
            }
            let attempt = attempt as u32;
            let book = self.books.entry(number).or_default();
            match what {
                verb::CLAIMING => {
                    self.claiming.insert((thread, number));
                }
                verb::CLAIMED => {
                    self.claiming.remove(&(thread, number));
                    let granted = Could::Interrupted { attempt, noted };
                    assert!(
                        book.grants().any(|could| could == granted),
                        "{number:x} was granted as {granted:?}, and could be {:?}",
                        book.could
                    );
                    book.could = vec![granted];
                    assert!(self.tokens.insert(token), "token {token} was given twice");
                    assert!(
                        book.tokens.last().is_none_or(|last| *last < token),
                        "a token of {number:x} went back"
                    );
                    book.tokens.push(token);
                }
                verb::BUSY => {
                    self.claiming.remove(&(thread, number));
                }
                verb::REPLAYED => {
                    self.claiming.remove(&(thread, number));
                    let seen = Could::Completed { attempt, token };
                    assert!(
                        book.could.contains(&seen),
                        "{number:x} was replayed as {seen:?}, and could be {:?}",
                        book.could
                    );
                    book.completed = Some(token);
                }
                verb::NOTING => book.or(Could::Interrupted {
                    attempt,
                    noted: token,
                }),
                verb::NOTED => {
                    book.could = vec![Could::Interrupted {
                        attempt,
                        noted: token,
                    }];
                }
                verb::COMPLETING => book.or(Could::Completed { attempt, token }),
                verb::COMPLETED => {
                    book.could = vec![Could::Completed { attempt, token }];
                    book.completed = Some(token);
                }
                verb::RELEASING | verb::FORGETTING => book.or(Could::Absent),
                verb::RELEASED | verb::FORGOTTEN => book.could = vec![Could::Absent],
                other => panic!("a record of kind {other}"),
            }
        }
    }

    /// Claims without an answer may have been granted, or not.
    pub fn killed(&mut self) {
        for (_, number) in self.claiming.drain() {
            let book = self.books.entry(number).or_default();
            let granted: Vec<Could> = book.grants().collect();
            for could in granted {
                book.or(could);
            }
        }
    }

    /// What the children did to the world, all of it so far.
    pub fn effects(&mut self, records: &[[u64; 8]]) {
        for record in &records[self.effects..] {
            let [_, number, token, ..] = *record;
            let book = self.books.get_mut(&number).expect("a key that was claimed");
            assert!(
                book.tokens.contains(&token),
                "an effect of {number:x} without an owner"
            );
            assert!(
                !book.effects.contains(&token),
                "two effects of one owner of {number:x}"
            );
            book.effects.push(token);
        }
        self.effects = records.len();
        for (number, book) in &self.books {
            self.check_effects(*number, book);
        }
    }

    fn check_effects(&self, number: u64, book: &Book) {
        // Each owner but the first was told that the one before it may have acted.
        assert!(book.effects.len() <= book.tokens.len());
        if let Some(completed) = book.completed {
            assert!(
                book.effects.contains(&completed),
                "{number:x} was completed without its effect"
            );
            assert!(
                book.effects.iter().all(|token| *token <= completed),
                "{number:x} had an effect after it was completed"
            );
        }
    }

    /// Compares every key with the store; how many.
    pub fn compare(&mut self, store: &Store) -> u64 {
        for (number, book) in &mut self.books {
            let state = store.get(&key(*number)).expect("an answer");
            let found = match &state {
                KeyState::Absent => Could::Absent,
                KeyState::Interrupted { attempt, .. } => Could::Interrupted {
                    attempt: *attempt,
                    noted: 0,
                },
                KeyState::Completed(saved) => {
                    let token = saved.token().as_u64();
                    match saved.by_scope().expect("no principal") {
                        Replay::Response(bytes) => assert!(bytes[..] == response(token)[..]),
                        Replay::NotStored => panic!("{number:x} has lost its response"),
                    }
                    book.completed = Some(token);
                    Could::Completed {
                        attempt: saved.attempt(),
                        token,
                    }
                }
                other => panic!("{number:x} is {other:?}"),
            };
            let is_same = |could: &Could| match (could, found) {
                // The note is looked at by who takes over.
                (Could::Interrupted { attempt, .. }, Could::Interrupted { attempt: found, .. }) => {
                    *attempt == found
                }
                (could, found) => *could == found,
            };
            let left: Vec<Could> = book.could.iter().copied().filter(is_same).collect();
            assert!(
                !left.is_empty(),
                "{number:x} is {state:?}, and could be {:?}",
                book.could
            );
            book.could = left;
        }
        for (number, book) in &self.books {
            self.check_effects(*number, book);
        }
        self.books.len() as u64
    }

    /// Keys, grants and effects.
    pub fn figures(&self) -> (usize, usize, usize) {
        (self.books.len(), self.tokens.len(), self.effects)
    }
}

mod tests {
    use oncekey::Durability;

    use super::*;
    use crate::child::fingerprint;
    use crate::support::{directory, interrupted, started};

    const NUMBER: u64 = 7;

    fn told(oracle: &mut Oracle, steps: &[(u64, u64, u32)]) {
        for (verb, token, attempt) in steps {
            let attempt = u64::from(*attempt);
            oracle.told(&[[*verb, NUMBER, *token, attempt, 0, 0, 0, 0]]);
        }
    }

    /// Claimed under token 10 and, if so, completed.
    fn claimed(completed: bool) -> Oracle {
        let mut oracle = Oracle::default();
        told(
            &mut oracle,
            &[(verb::CLAIMING, 0, 0), (verb::CLAIMED, 10, 1)],
        );
        if completed {
            oracle.effects(&[[1, NUMBER, 10, 1, 0, 0, 0, 0]]);
            told(
                &mut oracle,
                &[(verb::COMPLETING, 10, 1), (verb::COMPLETED, 10, 1)],
            );
        }
        oracle
    }

    /// Compares with a store in which the key is absent, or was claimed as often and dropped.
    fn compared(mut oracle: Oracle, claims: u32) {
        let directory = directory();
        let store = crate::options(Durability::Buffered)
            .open(directory.path())
            .expect("opens");
        for attempt in 1..=claims {
            let claim = store.claim(&key(NUMBER), fingerprint(NUMBER));
            let claim = claim.expect("a claim");
            drop(match attempt {
                1 => started(claim),
                _ => interrupted(claim),
            });
        }
        assert_eq!(oracle.compare(&store), 1);
    }

    #[test]
    fn what_was_told_or_may_have_happened_is_right() {
        compared(claimed(false), 1);
        let mut oracle = claimed(false);
        told(&mut oracle, &[(verb::CLAIMING, 0, 0)]);
        oracle.killed();
        compared(oracle, 2);
        let mut oracle = claimed(false);
        told(&mut oracle, &[(verb::RELEASING, 10, 1)]);
        compared(oracle, 0);
    }

    #[test]
    #[should_panic(expected = "is Absent")]
    fn a_lost_claim_is_noticed() {
        compared(claimed(false), 0);
    }

    #[test]
    #[should_panic(expected = "is Interrupted")]
    fn a_lost_completion_is_noticed() {
        compared(claimed(true), 1);
    }

    #[test]
    #[should_panic(expected = "is Interrupted")]
    fn an_attempt_that_nobody_made_is_noticed() {
        compared(claimed(false), 2);
    }

    #[test]
    #[should_panic(expected = "is Interrupted")]
    fn a_lost_release_is_noticed() {
        let mut oracle = claimed(false);
        told(
            &mut oracle,
            &[(verb::RELEASING, 10, 1), (verb::RELEASED, 10, 1)],
        );
        compared(oracle, 1);
    }

    #[test]
    #[should_panic(expected = "given twice")]
    fn a_token_that_is_given_twice_is_noticed() {
        let mut oracle = claimed(false);
        told(&mut oracle, &[(verb::CLAIMED, 10, 2)]);
    }

    #[test]
    #[should_panic(expected = "could be")]
    fn a_grant_after_the_completion_is_noticed() {
        let mut oracle = claimed(true);
        told(&mut oracle, &[(verb::CLAIMED, 20, 2)]);
    }

    #[test]
    #[should_panic(expected = "could be")]
    fn a_lost_note_is_noticed() {
        let mut oracle = claimed(false);
        told(
            &mut oracle,
            &[
                (verb::NOTING, 10, 1),
                (verb::NOTED, 10, 1),
                // The grant tells of no note.
                (verb::CLAIMED, 20, 2),
            ],
        );
    }

    #[test]
    #[should_panic(expected = "two effects of one owner")]
    fn an_effect_that_happens_twice_is_noticed() {
        let effect = [1, NUMBER, 10, 1, 0, 0, 0, 0];
        claimed(false).effects(&[effect, effect]);
    }

    #[test]
    #[should_panic(expected = "without an owner")]
    fn an_effect_without_an_owner_is_noticed() {
        claimed(false).effects(&[[1, NUMBER, 11, 1, 0, 0, 0, 0]]);
    }
}
