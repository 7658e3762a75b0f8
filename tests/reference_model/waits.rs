//! Waiting for an owner, and `run`, which claims, waits and completes.

use std::task::Poll;
use std::time::Duration;

use oncekey::{
    Claim, ClaimError, Clock, Durability, OnInterrupted, Operation, RunError, RunOptions, Saved,
};

use crate::claims::{WAITERS_MAX, WAITERS_PER_KEY_MAX, assert_saved, fingerprint};
use crate::model::{Expected, State, name};
use crate::side::{Shared, Side, Wait, Waiting};
use crate::steps::{Asked, RESPONSE_MAX};
use crate::support::{Polled, Style, block_on};

impl Side {
    pub fn wait_no_time(&mut self, shared: &mut Shared, asked: &Asked) {
        let claim = self.try_claim(asked, Style::Blocking);
        if let Some(progress) = self.judge(shared, asked, claim, true) {
            let claim = progress.wait(Duration::ZERO);
            drop(self.judge(shared, asked, claim, true));
        }
    }

    pub fn wait_begin(&mut self, shared: &mut Shared, asked: &Asked) {
        let claim = self.try_claim(asked, Style::Async);
        let Some(progress) = self.judge(shared, asked, claim, true) else {
            return;
        };
        let mut future = Polled::new(Box::pin(progress.wait_async()) as Wait);
        let of_key = |wait: &&Waiting| wait.listed && wait.asked.key == asked.key;
        let listed = self.waits.iter().filter(of_key).count();
        let limit = if listed >= WAITERS_PER_KEY_MAX {
            Some(WAITERS_PER_KEY_MAX)
        } else {
            (self.waits.len() >= WAITERS_MAX).then_some(WAITERS_MAX)
        };
        match (future.poll(), limit) {
            (Poll::Pending, None) => self.waits.push(Waiting {
                asked: *asked,
                sent_ms: asked
                    .sent_ms_ago
                    .map(|ago_ms| self.now_ms().saturating_sub(ago_ms)),
                future,
                listed: true,
            }),
            (Poll::Ready(Err(ClaimError::TooManyWaiters { limit: found })), Some(limit)) => {
                assert_eq!(found, limit);
            }
            (polled, limit) => panic!("{polled:?}, {limit:?}"),
        }
    }

    pub fn wait_poll(&mut self, shared: &mut Shared, at: usize) {
        if self.waits.is_empty() {
            return;
        }
        let at = at % self.waits.len();
        let mut wait = self.waits.remove(at);
        // When it was first sent does not change while it waits.
        let mut asked = wait.asked;
        asked.sent_ms_ago = wait
            .sent_ms
            .map(|sent_ms| self.now_ms().saturating_sub(sent_ms));
        let monotonic_ms = self.clock.monotonic_ms();
        let waits_on = match self.state(asked.key) {
            State::Live(live) => live.request == asked.request && live.is_held(monotonic_ms),
            _ => false,
        };
        if !wait.listed {
            assert!(wait.future.is_woken(), "the key it waited for is no more");
        }
        match wait.future.poll() {
            Poll::Pending if waits_on => {
                wait.listed = true;
                self.waits.insert(at, wait);
            }
            // What it got is not durable yet.
            Poll::Pending => {
                let claim = wait.future.finish();
                drop(self.judge(shared, &asked, claim, true));
            }
            Poll::Ready(claim) => {
                assert!(!waits_on, "{claim:?}");
                drop(self.judge(shared, &asked, claim, true));
            }
        }
    }

    pub fn run(
        &mut self,
        shared: &mut Shared,
        asked: &Asked,
        len: usize,
        fails: bool,
        style: Style,
    ) {
        let expected = self.expected(asked);
        if matches!(expected, Expected::InProgress(_)) && style == Style::Async {
            return;
        }
        let key = name(asked.key);
        let options = RunOptions::new()
            .claim(self.options(asked))
            .wait(Duration::ZERO)
            .on_interrupted(OnInterrupted::Rerun);
        let store = self.store().clone();
        let response = vec![b'r'; len];
        let mut ran = false;
        let mut work = |operation: &mut Operation| {
            ran = true;
            match &expected {
                Expected::Started => {
                    self.counts.started += 1;
                    self.granted(shared, asked, operation, None);
                }
                Expected::TakenOver(live) => {
                    self.counts.taken_over += 1;
                    self.granted(shared, asked, operation, Some(live.clone()));
                }
                other => panic!("ran for {other:?}"),
            }
            if fails { Err(()) } else { Ok(response.clone()) }
        };
        let result = match style {
            Style::Blocking => store.run(&key, fingerprint(asked.request), options, work),
            Style::Async => block_on(store.run_async(
                &key,
                fingerprint(asked.request),
                options,
                async |operation: &mut Operation| work(operation),
            )),
        };
        drop(store);
        if ran {
            self.ran(asked, len, result);
            return;
        }
        match (result, expected) {
            (Ok(saved), Expected::Completed(_)) => {
                drop(self.judge(shared, asked, Ok(Claim::Completed(saved)), true));
            }
            (Err(RunError::InProgress), Expected::InProgress(_)) => {
                // Once claimed, once waited.
                self.counts.in_progress += 2;
                if self.terms(asked).durability == Durability::Sync {
                    self.track(asked.key).settle();
                }
            }
            (Err(RunError::Mismatch(found)), Expected::Mismatch { .. }) => {
                drop(self.judge(shared, asked, Ok(Claim::Mismatch(found)), true));
            }
            (Err(RunError::TooLate(found)), Expected::TooLate { .. }) => {
                drop(self.judge(shared, asked, Ok(Claim::TooLate(found)), true));
            }
            (Err(RunError::Claim(error)), _) => {
                drop(self.judge(shared, asked, Err(error), true));
            }
            (result, expected) => panic!("{result:?} for {expected:?}"),
        }
    }

    /// The work ran: its key is completed, or interrupted.
    fn ran(&mut self, asked: &Asked, len: usize, result: Result<Saved, RunError<()>>) {
        let terms = self.terms(asked);
        let error = match result {
            Ok(saved) => {
                let done = self.done(asked.key, terms.retention_ms, Some(vec![b'r'; len]), None);
                assert!(len <= RESPONSE_MAX);
                assert_saved(&saved, &done);
                self.completed(asked.key, done, Some(terms.durability));
                return;
            }
            Err(error) => error,
        };
        let unknown = match error {
            RunError::Work(()) => false,
            RunError::Finish(error) => self.excuses_finish(&error, len > RESPONSE_MAX, len),
            other => panic!("{other:?}"),
        };
        if unknown {
            let done = self.done(asked.key, terms.retention_ms, Some(vec![b'r'; len]), None);
            self.completed(asked.key, done, None);
        } else {
            self.counts.abandoned += 1;
            self.interrupted(asked.key);
        }
    }
}
