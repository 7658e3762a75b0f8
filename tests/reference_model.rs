//! The store against a model of a few lines: random claims, ends, clock moves, restarts, kills and
//! power losses, and after every step the same answer from both.
//!
//! The model is exact: with `Sync` an acknowledged step survives any crash, with `Buffered` any kill
//! of the process, so there is one right answer at any time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncekey::testing::SimulatedDisk;
use oncekey::{
    Claim, ClaimOptions, Clock, Durability, Fingerprint, Forget, Key, KeyState, Lease, ManualClock,
    Operation, Options, Replay, Saved, Store,
};
use proptest::prelude::*;

const START_MS: u64 = 1_700_000_000_000;
const KEYS: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    Claim {
        key: u8,
        request: u8,
        lease_ms: Option<u64>,
        retention_s: u64,
    },
    Complete {
        key: u8,
        len: usize,
    },
    CompleteWithoutResponse {
        key: u8,
    },
    Checkpoint {
        key: u8,
        note: u8,
    },
    Renew {
        key: u8,
    },
    Release {
        key: u8,
    },
    Drop {
        key: u8,
    },
    Forget {
        key: u8,
        force: bool,
    },
    Advance {
        ms: u64,
    },
    Close,
    Kill,
    LosePower {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS;
    let lease = prop::option::of(prop_oneof![Just(1), Just(1_500), 1..100_000_u64]);
    let step = prop_oneof![
        8 => (key.clone(), 0..3_u8, lease, 1..200_u64).prop_map(
            |(key, request, lease_ms, retention_s)| Step::Claim { key, request, lease_ms, retention_s }
        ),
        6 => (key.clone(), prop_oneof![0..64_usize, 0..9_000_usize])
            .prop_map(|(key, len)| Step::Complete { key, len }),
        1 => key.clone().prop_map(|key| Step::CompleteWithoutResponse { key }),
        2 => (key.clone(), any::<u8>()).prop_map(|(key, note)| Step::Checkpoint { key, note }),
        1 => key.clone().prop_map(|key| Step::Renew { key }),
        2 => key.clone().prop_map(|key| Step::Release { key }),
        2 => key.clone().prop_map(|key| Step::Drop { key }),
        1 => (key, any::<bool>()).prop_map(|(key, force)| Step::Forget { key, force }),
        4 => prop_oneof![0..3_000_u64, 0..300_000_u64].prop_map(|ms| Step::Advance { ms }),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(|seed| Step::LosePower { seed }),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Pending {
        request: u8,
        attempt: u32,
        lease_end_ms: Option<u64>,
        retention_s: u64,
        note: Option<u8>,
    },
    Interrupted {
        request: u8,
        attempt: u32,
        note: Option<u8>,
    },
    Completed {
        request: u8,
        attempt: u32,
        response: Option<Vec<u8>>,
        expires_ms: u64,
    },
}

struct World {
    disk: SimulatedDisk,
    clock: ManualClock,
    durability: Durability,
    store: Option<Store>,
    guards: HashMap<u8, Operation>,
    model: HashMap<u8, State>,
    greatest_token: u64,
}

impl World {
    fn new(durability: Durability) -> Self {
        let mut world = Self {
            disk: SimulatedDisk::new(),
            clock: ManualClock::new(START_MS),
            durability,
            store: None,
            guards: HashMap::new(),
            model: HashMap::new(),
            greatest_token: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let options = Options::new()
            .durability(self.durability)
            .segment_size(64 << 10)
            .stripes(2)
            .clock(Arc::new(self.clock.clone()));
        self.store = Some(
            options
                .open_simulated(&self.disk)
                .expect("opens without help"),
        );
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open")
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Everybody who held a key is gone.
    fn orphan(&mut self) {
        for state in self.model.values_mut() {
            if let State::Pending {
                request,
                attempt,
                note,
                ..
            } = state.clone()
            {
                *state = State::Interrupted {
                    request,
                    attempt,
                    note,
                };
            }
        }
    }

    fn crash(&mut self, image: SimulatedDisk) {
        // The old process ends without a chance to write to what the new one reads.
        self.guards.clear();
        self.store = None;
        self.disk = image;
        self.orphan();
        self.open();
    }

    fn is_expired(&self, key: u8) -> bool {
        matches!(self.model.get(&key), Some(State::Completed { expires_ms, .. })
            if *expires_ms <= self.now_ms())
    }

    /// What lease ends and retention have done by now.
    fn settle(&mut self, key: u8) {
        if self.is_expired(key) {
            self.model.remove(&key);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Claim {
                key,
                request,
                lease_ms,
                retention_s,
            } => {
                self.claim(key, request, lease_ms, retention_s);
            }
            Step::Complete { key, len } => self.complete(key, Some(vec![key ^ 0x5A; len])),
            Step::CompleteWithoutResponse { key } => self.complete(key, None),
            Step::Checkpoint { key, note } => {
                if let Some(guard) = self.guards.get_mut(&key) {
                    guard.checkpoint([note]).expect("held");
                    if let Some(State::Pending { note: noted, .. }) = self.model.get_mut(&key) {
                        *noted = Some(note);
                    }
                }
            }
            Step::Renew { key } => {
                let now_ms = self.clock.monotonic_ms();
                if let Some(guard) = self.guards.get_mut(&key) {
                    guard.renew().expect("held");
                    if let Some(State::Pending {
                        lease_end_ms: Some(end_ms),
                        retention_s,
                        ..
                    }) = self.model.get_mut(&key)
                    {
                        // The lease's length is in the retention's thousands: see `claim`.
                        *end_ms = now_ms + *retention_s / 1_000_000;
                    }
                }
            }
            Step::Release { key } => {
                if let Some(guard) = self.guards.remove(&key) {
                    guard.release().expect("held");
                    self.model.remove(&key);
                }
            }
            Step::Drop { key } => {
                if self.guards.remove(&key).is_some()
                    && let Some(State::Pending {
                        request,
                        attempt,
                        note,
                        ..
                    }) = self.model.get(&key).cloned()
                {
                    self.model.insert(
                        key,
                        State::Interrupted {
                            request,
                            attempt,
                            note,
                        },
                    );
                }
            }
            Step::Forget { key, force } => self.forget(key, force),
            Step::Advance { ms } => self.clock.advance(Duration::from_millis(ms)),
            Step::Close => {
                self.store().close().expect("closes");
                for (_, guard) in self.guards.drain() {
                    guard.complete(b"too late").expect_err("closed");
                }
                self.store = None;
                self.orphan();
                self.open();
                assert!(self.store().recovery_report().clean);
            }
            Step::Kill => self.crash(self.disk.crash_none_lost()),
            Step::LosePower { seed } if self.durability == Durability::Sync => {
                self.crash(self.disk.crash_random(seed));
            }
            Step::LosePower { .. } => {}
        }
        for key in 0..KEYS {
            self.compare(key);
        }
    }

    fn claim(&mut self, key: u8, request: u8, lease_ms: Option<u64>, retention_s: u64) {
        self.settle(key);
        let lease = lease_ms.map_or(Lease::WhileAlive, |ms| {
            Lease::For(Duration::from_millis(ms))
        });
        let options = ClaimOptions::new()
            .lease(lease)
            .retention(Duration::from_secs(retention_s));
        let claim = self
            .store()
            .claim_with(&name(key), fingerprint(request), options)
            .expect("an answer");
        let now_ms = self.clock.monotonic_ms();
        let granted = |attempt, note| State::Pending {
            request,
            attempt,
            lease_end_ms: lease_ms.map(|ms| now_ms + ms),
            // Carries both: seconds of retention below a million, lease in ms above.
            retention_s: retention_s + lease_ms.unwrap_or(0) * 1_000_000,
            note,
        };
        let known = self.model.get(&key).cloned();
        match (claim, known) {
            (Claim::Started(operation), None) => {
                assert_eq!(operation.attempt(), 1);
                assert!(operation.previous().is_none());
                self.model.insert(key, granted(1, None));
                self.hold(key, operation);
            }
            (Claim::Mismatch(mismatch), Some(state)) => {
                let (other, completed) = match state {
                    State::Pending { request, .. } | State::Interrupted { request, .. } => {
                        (request, false)
                    }
                    State::Completed { request, .. } => (request, true),
                };
                assert_ne!(other, request);
                assert_eq!(mismatch.completed, completed);
            }
            (
                Claim::InProgress(progress),
                Some(State::Pending {
                    request: other,
                    attempt,
                    lease_end_ms,
                    ..
                }),
            ) => {
                assert_eq!((other, progress.attempt()), (request, attempt));
                let left = lease_end_ms.map(|end_ms| end_ms - now_ms);
                assert!(left != Some(0), "the lease is over");
                assert_eq!(progress.lease_left(), left.map(Duration::from_millis));
            }
            (
                Claim::Interrupted(operation),
                Some(
                    State::Pending {
                        request: other,
                        attempt,
                        note,
                        lease_end_ms: Some(0..),
                        ..
                    }
                    | State::Interrupted {
                        request: other,
                        attempt,
                        note,
                    },
                ),
            ) => {
                if let Some(State::Pending {
                    lease_end_ms: Some(end_ms),
                    ..
                }) = self.model.get(&key)
                {
                    assert!(*end_ms <= now_ms, "run over while its lease lasted");
                }
                assert_eq!((other, operation.attempt()), (request, attempt + 1));
                let previous = operation.previous().expect("an attempt before");
                assert_eq!(previous.attempt, attempt);
                assert_eq!(
                    previous.checkpoint.as_deref(),
                    note.as_ref().map(std::slice::from_ref)
                );
                self.model.insert(key, granted(attempt + 1, note));
                if let Some(stale) = self.guards.remove(&key) {
                    let error = stale.complete(b"stale").expect_err("fenced");
                    assert!(error.into_operation().is_none());
                }
                self.hold(key, operation);
            }
            (
                Claim::Completed(saved),
                Some(State::Completed {
                    request: other,
                    attempt,
                    response,
                    expires_ms,
                }),
            ) => {
                assert_eq!((other, saved.attempt()), (request, attempt));
                assert_saved(&saved, response.as_deref(), expires_ms);
            }
            (claim, known) => panic!("{claim:?} for {known:?}"),
        }
    }

    fn hold(&mut self, key: u8, operation: Operation) {
        let token = operation.token().as_u64();
        assert!(token > self.greatest_token, "tokens grow");
        self.greatest_token = token;
        self.guards.insert(key, operation);
    }

    fn complete(&mut self, key: u8, response: Option<Vec<u8>>) {
        let Some(guard) = self.guards.remove(&key) else {
            return;
        };
        let saved = match &response {
            Some(response) => guard.complete(response),
            None => guard.complete_without_response(),
        }
        .expect("held until somebody takes over");
        let Some(State::Pending {
            request,
            attempt,
            retention_s,
            ..
        }) = self.model.remove(&key)
        else {
            panic!("a guard without a pending key");
        };
        let expires_ms = self.now_ms() + retention_s % 1_000_000 * 1_000;
        assert_saved(&saved, response.as_deref(), expires_ms);
        self.model.insert(
            key,
            State::Completed {
                request,
                attempt,
                response,
                expires_ms,
            },
        );
    }

    fn forget(&mut self, key: u8, force: bool) {
        let how = if force {
            Forget::Force
        } else {
            Forget::IfCompleted
        };
        let result = self.store().forget(&name(key), how);
        match self.model.get(&key) {
            None => assert!(!result.expect("absent")),
            Some(State::Completed { .. }) => {
                // An expired result that was not yet reclaimed may be removed or be gone.
                assert!(result.expect("completed") || self.is_expired(key));
                self.model.remove(&key);
            }
            Some(_) if force => {
                assert!(result.expect("forced"));
                self.model.remove(&key);
                if let Some(guard) = self.guards.remove(&key) {
                    guard.complete(b"stale").expect_err("fenced");
                }
            }
            Some(_) => drop(result.expect_err("pending")),
        }
    }

    fn compare(&self, key: u8) {
        let state = self.store().get(&name(key)).expect("an answer");
        let now_ms = self.clock.monotonic_ms();
        match (state, self.model.get(&key)) {
            (KeyState::Absent, None) => {}
            (KeyState::Absent, Some(_)) => assert!(self.is_expired(key), "key {key} is lost"),
            (
                KeyState::InProgress { attempt: found, .. },
                Some(State::Pending {
                    attempt,
                    lease_end_ms,
                    ..
                }),
            ) => {
                assert_eq!(found, *attempt);
                assert!(lease_end_ms.is_none_or(|end_ms| now_ms < end_ms));
            }
            (
                KeyState::Interrupted { attempt: found, .. },
                Some(State::Pending {
                    attempt,
                    lease_end_ms,
                    ..
                }),
            ) => {
                assert_eq!(found, *attempt);
                assert!(lease_end_ms.is_some_and(|end_ms| now_ms >= end_ms));
            }
            (
                KeyState::Interrupted { attempt: found, .. },
                Some(State::Interrupted { attempt, .. }),
            ) => {
                assert_eq!(found, *attempt);
            }
            (
                KeyState::Completed(saved),
                Some(State::Completed {
                    response,
                    expires_ms,
                    ..
                }),
            ) => {
                assert!(!self.is_expired(key), "key {key} came back");
                assert_saved(&saved, response.as_deref(), *expires_ms);
            }
            (state, known) => panic!("key {key}: {state:?} for {known:?}"),
        }
    }
}

fn assert_saved(saved: &Saved, response: Option<&[u8]>, expires_ms: u64) {
    let ms = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_millis()
    };
    assert_eq!(ms(saved.expires_at()), u128::from(expires_ms));
    match (saved.by_scope().expect("no principal"), response) {
        (Replay::Response(found), Some(response)) => assert_eq!(&found[..], response),
        (Replay::NotStored, None) => {}
        (found, expected) => panic!("{found:?} for {expected:?}"),
    }
}

fn name(key: u8) -> Key {
    Key::new("scope", "operation", [b'k', key]).expect("a key")
}

fn fingerprint(request: u8) -> Fingerprint {
    Fingerprint::of([request])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("ONCEKEY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96),
        ..ProptestConfig::default()
    })]

    #[test]
    fn sync_stores_answer_as_the_model_does(steps in steps()) {
        let mut world = World::new(Durability::Sync);
        for step in steps {
            world.step(step);
        }
    }

    #[test]
    fn buffered_stores_answer_as_the_model_does(steps in steps()) {
        let mut world = World::new(Durability::Buffered);
        for step in steps {
            world.step(step);
        }
    }
}
