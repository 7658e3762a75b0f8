//! What can be seen of a store without claiming anything.

use std::ops::RangeInclusive;
use std::time::Duration;

use oncekey::{ClaimError, Clock, Durability, KeyState, PendingKey, Saved};

use crate::claims::{assert_saved, fingerprint};
use crate::model::{State, name};
use crate::side::{Counts, Shared, Side, ms};
use crate::steps::KEYS;
use crate::support::{Style, block_on};

impl Side {
    /// The key among those that are pending or interrupted.
    pub fn listed(&self, key: u8) -> Option<PendingKey> {
        let mut keys = self.store().pending().expect("a list");
        keys.extend(self.store().interrupted().expect("a list"));
        keys.into_iter().find(|listed| listed.key == name(key))
    }

    pub fn seen_completed(&self, key: u8) -> Option<Saved> {
        match self.store().get(&name(key)).expect("an answer") {
            KeyState::Completed(saved) => Some(saved),
            _ => None,
        }
    }

    /// How many results there are: those that answer, and at most all that were not replaced. Expired
    /// ones go when maintenance comes to them.
    pub fn done_counts(&self) -> RangeInclusive<u64> {
        let now_ms = self.now_ms();
        let count = |is_counted: &dyn Fn(u64) -> bool| {
            let is_done = |key: &u8| match self.state(*key) {
                State::Done(done) => is_counted(done.expires_ms),
                _ => false,
            };
            (0..KEYS).filter(is_done).count() as u64
        };
        count(&|expires_ms| now_ms < expires_ms)..=count(&|_| true)
    }

    /// The lists, the counts and the time are as the model says; so is every key, where looking at
    /// it changes nothing.
    pub fn compare(&mut self, _shared: &Shared) {
        let now_ms = self.now_ms();
        if self.in_step {
            assert_eq!(now_ms, self.clock.wall_ms());
        }
        self.compare_lists();
        self.compare_stats();
        if self.durability == Durability::Buffered {
            for key in 0..KEYS {
                self.get(key, Style::Blocking);
            }
        }
    }

    fn compare_lists(&mut self) {
        let times = self.times();
        let held = self.store().pending().expect("a list");
        let interrupted = self.store().interrupted().expect("a list");
        assert_eq!(held.len() + interrupted.len(), self.live_count());
        for key in 0..KEYS {
            let State::Live(live) = self.state(key).clone() else {
                continue;
            };
            let list = if live.is_held(times.monotonic_ms) {
                &held
            } else {
                &interrupted
            };
            let found = list.iter().find(|listed| listed.key == name(key));
            let found = found.unwrap_or_else(|| panic!("key {key}, {live:?}: not in {list:?}"));
            assert_eq!(found.fingerprint, fingerprint(live.request));
            assert_eq!(found.attempt, live.attempt);
            assert_eq!(ms(found.started_at), live.started_ms);
            assert_eq!(ms(found.created_at), live.created_ms);
            let age_ms = times.now_ms.saturating_sub(live.created_ms);
            assert_eq!(found.age, Duration::from_millis(age_ms));
            assert_eq!(found.is_detached, live.is_detached());
            let left = live
                .lease_end_ms()
                .map(|end_ms| Duration::from_millis(end_ms.saturating_sub(times.monotonic_ms)));
            assert_eq!(found.lease_left, left, "{live:?}");
            let token = found.token.as_u64();
            if live.token == 0 {
                // It was granted, and nobody was told.
                self.greatest_token = self.greatest_token.max(token);
                for state in &mut self.track(key).states {
                    match state {
                        State::Live(each) if each.attempt == live.attempt && each.token == 0 => {
                            each.token = token;
                        }
                        _ => {}
                    }
                }
            } else {
                assert_eq!(token, live.token);
            }
        }
    }

    fn compare_stats(&self) {
        let stats = self.store().stats();
        let monotonic_ms = self.clock.monotonic_ms();
        let is_interrupted = |key: &u8| match self.state(*key) {
            State::Live(live) => !live.is_held(monotonic_ms),
            _ => false,
        };
        let interrupted = (0..KEYS).filter(is_interrupted).count();
        assert_eq!(stats.pending_keys, self.live_count() as u64);
        assert_eq!(stats.interrupted_keys, interrupted as u64);
        let done = self.done_counts();
        assert!(
            done.contains(&stats.completed_keys),
            "{} of {done:?}",
            stats.completed_keys
        );
        assert_eq!(stats.waiters, self.waits.len() as u64);
        assert!(!stats.poisoned || self.failing);
        if self.failing {
            return;
        }
        let counts = Counts {
            started: stats.claims_started,
            taken_over: stats.claims_taken_over,
            in_progress: stats.claims_in_progress,
            replayed: stats.claims_replayed,
            mismatched: stats.claims_mismatched,
            too_late: stats.claims_too_late,
            completed: stats.completed,
            released: stats.released,
            abandoned: stats.interruptions,
        };
        assert_eq!(counts, self.counts);
    }

    pub fn get(&mut self, key: u8, style: Style) {
        let found = match style {
            Style::Blocking => self.store().get(&name(key)),
            Style::Async => block_on(self.store().get_async(&name(key))),
        };
        let times = self.times();
        let at_sync = self.durability == Durability::Sync;
        match (found, self.state(key).clone()) {
            (Err(ClaimError::Unavailable(error)), state) => {
                assert!(self.excuses(&error), "{error}");
                let is_there = match state {
                    State::Absent => false,
                    State::Live(_) => true,
                    State::Done(done) => times.now_ms < done.expires_ms,
                };
                assert!(!is_there || !self.is_settled(key), "durable, but not told");
                return;
            }
            (Ok(KeyState::Absent), State::Absent) => {}
            (Ok(KeyState::Absent), State::Done(done)) => {
                assert!(done.expires_ms <= times.now_ms, "key {key} is lost");
            }
            (
                Ok(KeyState::InProgress {
                    attempt,
                    since,
                    lease_left,
                    ..
                }),
                State::Live(live),
            ) => {
                assert!(live.is_held(times.monotonic_ms));
                assert_eq!((attempt, ms(since)), (live.attempt, live.started_ms));
                let left = live
                    .lease_end_ms()
                    .map(|end_ms| Duration::from_millis(end_ms - times.monotonic_ms));
                assert_eq!(lease_left, left);
            }
            (Ok(KeyState::Interrupted { attempt, since, .. }), State::Live(live)) => {
                assert!(!live.is_held(times.monotonic_ms));
                assert_eq!((attempt, ms(since)), (live.attempt, live.started_ms));
            }
            (Ok(KeyState::Completed(saved)), State::Done(done)) => {
                assert!(times.now_ms < done.expires_ms, "key {key} came back");
                assert_saved(&saved, &done);
            }
            (found, state) => panic!("key {key}: {found:?} for {state:?}"),
        }
        if !at_sync {
            return;
        }
        match self.state(key) {
            State::Live(_) => self.track(key).settle(),
            State::Done(done) if times.now_ms < done.expires_ms => self.track(key).settle(),
            // "Absent" rests on the whole log.
            _ => self.settle_all(),
        }
    }
}
