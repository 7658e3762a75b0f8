//! Claims of every kind, and what they may be answered.

use std::time::{Duration, UNIX_EPOCH};

use oncekey::{
    Claim, ClaimError, ClaimOptions, Clock, Durability, Fingerprint, Key, Lease, Operation, Saved,
};

use crate::model::{Done, Expected, Hold, Live, State, Terms, name};
use crate::side::{Guard, Shared, Side, ms};
use crate::steps::{Asked, RESERVED, RESPONSE_MAX};
use crate::support::{Polled, Style, block_on, bytes};
use std::task::Poll;

pub const RETENTION_MS: u64 = 3_600_000;
pub const PENDING_MAX: usize = 3;
pub const WAITERS_PER_KEY_MAX: usize = 2;
pub const WAITERS_MAX: usize = 3;

pub fn fingerprint(request: u8) -> Fingerprint {
    Fingerprint::of([request])
}

impl Side {
    pub fn options(&self, asked: &Asked) -> ClaimOptions {
        let mut options = ClaimOptions::new();
        if let Some(ms) = asked.lease_ms {
            options = options.lease(Lease::For(Duration::from_millis(ms)));
        }
        if let Some(seconds) = asked.retention_s {
            options = options.retention(Duration::from_secs(seconds));
        }
        if let Some(durability) = asked.durability {
            options = options.durability(durability);
        }
        if let Some(ago_ms) = asked.sent_ms_ago {
            let sent_ms = self.now_ms().saturating_sub(ago_ms);
            options = options.first_sent(UNIX_EPOCH + Duration::from_millis(sent_ms));
        }
        options
    }

    pub fn terms(&self, asked: &Asked) -> Terms {
        Terms {
            lease_ms: asked.lease_ms,
            retention_ms: asked.retention_s.map_or(RETENTION_MS, |s| s * 1_000),
            durability: asked.durability.unwrap_or(self.durability),
        }
    }

    pub fn expected(&self, asked: &Asked) -> Expected {
        let retention_ms = self.terms(asked).retention_ms;
        let state = self.state(asked.key);
        match state.claimed(asked, self.times(), retention_ms, self.restored_ms) {
            Expected::Started if self.live_count() >= PENDING_MAX => Expected::TooManyPending,
            expected => expected,
        }
    }

    pub fn try_claim(&self, asked: &Asked, style: Style) -> Result<Claim, ClaimError> {
        let (key, options) = (name(asked.key), self.options(asked));
        self.mode(style)
            .claim_with(self.store(), &key, fingerprint(asked.request), options)
    }

    pub fn claim(&mut self, shared: &mut Shared, asked: &Asked, style: Style) {
        let claim = self.try_claim(asked, style);
        drop(self.judge(shared, asked, claim, true));
    }

    /// Holds an answer against the model. What is in progress is given back; a grant is kept, or
    /// dropped.
    pub fn judge(
        &mut self,
        shared: &mut Shared,
        asked: &Asked,
        claim: Result<Claim, ClaimError>,
        keep: bool,
    ) -> Option<oncekey::InProgress> {
        let expected = self.expected(asked);
        let terms = self.terms(asked);
        let at_sync = terms.durability == Durability::Sync;
        match (claim, expected) {
            (Ok(Claim::Started(operation)), Expected::Started) => {
                self.counts.started += 1;
                self.granted(shared, asked, &operation, None);
                self.keep(asked, operation, keep);
                return None;
            }
            (Ok(Claim::Interrupted(operation)), Expected::TakenOver(live)) => {
                self.counts.taken_over += 1;
                self.granted(shared, asked, &operation, Some(live));
                self.keep(asked, operation, keep);
                return None;
            }
            (Ok(Claim::InProgress(progress)), Expected::InProgress(live)) => {
                self.counts.in_progress += 1;
                assert_eq!(progress.attempt(), live.attempt);
                assert_eq!(ms(progress.since()), live.started_ms);
                // The lease of a claim that waited for the disk with this one had not begun.
                let has_begun = !(at_sync && progress.is_same_batch());
                let left = live
                    .lease_end_ms()
                    .filter(|_| has_begun)
                    .map(|end_ms| Duration::from_millis(end_ms - self.clock.monotonic_ms()));
                assert_eq!(progress.lease_left(), left);
                if at_sync {
                    self.track(asked.key).settle();
                }
                return Some(progress);
            }
            (Ok(Claim::Completed(saved)), Expected::Completed(done)) => {
                self.counts.replayed += 1;
                assert_saved(&saved, &done);
            }
            (
                Ok(Claim::Mismatch(found)),
                Expected::Mismatch {
                    completed,
                    attempt,
                    since_ms,
                },
            ) => {
                self.counts.mismatched += 1;
                assert_eq!((found.completed, found.attempt), (completed, attempt));
                assert_eq!(ms(found.since), since_ms);
            }
            (Ok(Claim::TooLate(found)), Expected::TooLate { limit_ms }) => {
                self.counts.too_late += 1;
                assert_eq!(ms(found.limit), limit_ms);
                return None;
            }
            (Err(error), expected) => {
                self.judge_error(asked, &error, expected);
                return None;
            }
            (claim, expected) => panic!("{claim:?} for {expected:?}"),
        }
        if at_sync {
            self.track(asked.key).settle();
        }
        None
    }

    fn judge_error(&mut self, asked: &Asked, error: &ClaimError, expected: Expected) {
        let grants = match &expected {
            Expected::Started => Some(None),
            Expected::TakenOver(live) => Some(Some(live.clone())),
            _ => None,
        };
        match error {
            ClaimError::TooManyPending { limit } => {
                assert_eq!(*limit, PENDING_MAX);
                assert!(matches!(expected, Expected::TooManyPending), "{expected:?}");
            }
            ClaimError::OutOfSpace(_) => {
                assert!(self.excuses_space(), "{error}");
                assert!(grants.is_some() || matches!(expected, Expected::TooManyPending));
            }
            ClaimError::OutcomeUnknown(unavailable) => {
                assert!(self.excuses(unavailable), "{error}");
                let before = grants.expect("only a grant is written");
                // Nobody saw it, and nothing can be written any more: interrupted.
                self.undone(asked, before);
            }
            ClaimError::Unavailable(unavailable) => {
                assert!(self.excuses(unavailable), "{error}");
                // What is known to be durable is replayed all the same.
                let is_replay = grants.is_none() && !matches!(expected, Expected::TooManyPending);
                assert!(!is_replay || !self.is_settled(asked.key), "{expected:?}");
            }
            other => panic!("{other:?} for {expected:?}"),
        }
    }

    /// A grant that was written and never handed out: the key is interrupted.
    fn undone(&mut self, asked: &Asked, before: Option<Live>) {
        let now_ms = self.now_ms();
        let live = match before {
            None => Live {
                request: asked.request,
                attempt: 1,
                token: 0,
                ticket: 0,
                created_ms: now_ms,
                started_ms: now_ms,
                notes: vec![None],
                hold: Hold::Nobody,
            },
            Some(live) => Live {
                attempt: live.attempt + 1,
                token: 0,
                ticket: 0,
                started_ms: now_ms,
                hold: Hold::Nobody,
                ..live
            },
        };
        self.overtaken(asked.key);
        self.wrote_time();
        self.wrote(asked.key, State::Live(live), None);
    }

    /// A guard was handed out.
    pub fn granted(
        &mut self,
        shared: &mut Shared,
        asked: &Asked,
        operation: &Operation,
        before: Option<Live>,
    ) {
        let (now_ms, terms) = (self.now_ms(), self.terms(asked));
        let mut live = Live {
            request: asked.request,
            attempt: 1,
            token: operation.token().as_u64(),
            ticket: 0,
            created_ms: now_ms,
            started_ms: now_ms,
            notes: vec![None],
            hold: Hold::Guard {
                lease_end_ms: self.lease_end_ms(terms.lease_ms),
            },
        };
        match before {
            None => assert!(operation.previous().is_none()),
            Some(before) => {
                live.attempt = before.attempt + 1;
                live.created_ms = before.created_ms;
                live.notes = self.previous(operation, &before);
            }
        }
        self.wrote_time();
        self.accept(shared, asked.key, operation, live, terms);
    }

    /// Checks what a guard tells of the attempt before it; gives the note that it found.
    pub fn previous(&self, operation: &Operation, before: &Live) -> Vec<Option<Vec<u8>>> {
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.attempt, before.attempt);
        assert_eq!(ms(previous.started_at), before.started_ms);
        let note = previous.checkpoint.map(|note| note.to_vec());
        assert!(before.notes.contains(&note), "{note:?} of {before:?}");
        vec![note]
    }

    pub fn lease_end_ms(&self, lease_ms: Option<u64>) -> Option<u64> {
        lease_ms.map(|lease_ms| self.clock.monotonic_ms().saturating_add(lease_ms))
    }

    /// What is true of every guard, however it was come by.
    pub fn accept(
        &mut self,
        shared: &mut Shared,
        key: u8,
        operation: &Operation,
        live: Live,
        terms: Terms,
    ) {
        assert!(live.token > self.greatest_token, "tokens grow");
        self.greatest_token = live.token;
        assert_eq!(operation.key(), &name(key));
        assert_eq!(operation.attempt(), live.attempt);
        assert_eq!(ms(operation.created_at()), live.created_ms);
        assert_eq!(ms(operation.started_at()), live.started_ms);
        let note = operation.last_checkpoint().map(|note| note.to_vec());
        assert!(live.notes.contains(&note), "{note:?} of {live:?}");
        let downstream = operation.downstream_key("charge");
        let known = shared
            .downstream
            .entry((self.lineage, key, live.request))
            .or_insert_with(|| downstream.clone());
        assert_eq!(*known, downstream);
        self.overtaken(key);
        self.wrote(key, State::Live(live), Some(terms.durability));
    }

    fn keep(&mut self, asked: &Asked, operation: Operation, keep: bool) {
        let terms = self.terms(asked);
        self.guards.insert(asked.key, Guard { operation, terms });
        if !keep {
            self.drop_guard(asked.key);
        }
    }

    /// A future that is dropped at once, or after it was polled once.
    pub fn claim_dropped(&mut self, shared: &mut Shared, asked: &Asked, polled: bool) {
        let expected = self.expected(asked);
        let results = self.store().stats().completed_keys;
        let (key, options) = (name(asked.key), self.options(asked));
        let claim = self
            .store()
            .claim_with_async(&key, fingerprint(asked.request), options);
        let mut claim = Polled::new(claim);
        if !polled {
            return;
        }
        match claim.poll() {
            Poll::Ready(claim) => {
                drop(self.judge(shared, asked, claim, true));
                return;
            }
            Poll::Pending => drop(claim),
        }
        // It may have waited for room, with nothing written, or for the disk.
        let found = self.listed(asked.key);
        match (expected, found) {
            (Expected::Started, None) => {
                let before = self.state(asked.key).clone();
                let replaced = self.store().stats().completed_keys < results;
                let written_ms = self.written_ms;
                // Released, so that a loss of power can find it pending.
                self.undone(asked, None);
                let after = if replaced { State::Absent } else { before };
                self.wrote(asked.key, after, None);
                // Or nothing was written, and no time with it.
                self.written_ms = written_ms;
            }
            (Expected::Started, Some(_)) => {
                assert!(self.failing, "it could be released");
                self.undone(asked, None);
            }
            (Expected::TakenOver(live), Some(found)) if found.attempt == live.attempt + 1 => {
                self.undone(asked, Some(live));
            }
            // The comparison after the step finds any change.
            _ => {}
        }
    }

    pub fn claim_many(
        &mut self,
        shared: &mut Shared,
        keys: &[(u8, u8)],
        asked: &Asked,
        keep: bool,
        style: Style,
    ) {
        let names: Vec<(Key, Fingerprint)> = keys
            .iter()
            .map(|(key, request)| (name(*key), fingerprint(*request)))
            .collect();
        let pairs = names.iter().map(|(key, request)| (key, *request));
        let options = self.options(asked);
        let claims = match style {
            Style::Blocking => self.store().claim_many(pairs, options),
            Style::Async => block_on(self.store().claim_many_async(pairs, options)),
        };
        assert_eq!(claims.len(), keys.len());
        let mut granted = Vec::new();
        for ((key, request), claim) in keys.iter().zip(claims) {
            let asked = Asked {
                key: *key,
                request: *request,
                ..*asked
            };
            let was_granted = matches!(&claim, Ok(claim) if claim.is_owned());
            // Those that were not kept are dropped when the whole batch was looked at.
            if let Some(progress) = self.judge(shared, &asked, claim, true) {
                assert_eq!(progress.is_same_batch(), granted.contains(key));
                if progress.is_same_batch() {
                    let error = progress.wait(Duration::ZERO).expect_err("one's own");
                    assert!(matches!(error, ClaimError::HeldBySameBatch));
                }
            }
            if was_granted {
                granted.push(*key);
            }
        }
        if !keep {
            granted.into_iter().for_each(|key| self.drop_guard(key));
        }
    }

    pub fn bad_claim(&mut self, key: u8, fault: u8) {
        let options = ClaimOptions::new();
        let options = match fault {
            0 => options.lease(Lease::For(Duration::ZERO)),
            1 => options.lease(Lease::For(Duration::MAX)),
            2 => options.retention(Duration::ZERO),
            _ => options,
        };
        let key = match fault {
            3 => Key::new("scope", "operation", vec![key; 256]).expect("a key of other stores"),
            _ => name(key),
        };
        match self.store().claim_with(&key, fingerprint(0), options) {
            Err(ClaimError::Options(_)) => assert!(fault < 3),
            Err(ClaimError::Key(_)) => assert_eq!(fault, 3),
            other => panic!("{other:?}"),
        }
    }

    /// Whether a completion that was not too large may have failed like this; true where it was
    /// written.
    pub fn excuses_finish(
        &self,
        error: &oncekey::FinishError,
        too_large: bool,
        len: usize,
    ) -> bool {
        use oncekey::WriteError as E;
        match error.error() {
            E::ResponseTooLarge { max, .. } => assert!(too_large && *max == RESPONSE_MAX),
            E::OutOfSpace(_) => assert!(self.excuses_space() && len > RESERVED, "{error}"),
            E::Unavailable(unavailable) => assert!(self.excuses(unavailable), "{error}"),
            E::OutcomeUnknown(unavailable) => {
                assert!(self.excuses(unavailable), "{error}");
                return true;
            }
            other => panic!("{other:?}"),
        }
        false
    }
}

/// A stored result says exactly this.
pub fn assert_saved(saved: &Saved, done: &Done) {
    assert_eq!(saved.attempt(), done.attempt);
    assert_eq!(saved.token().as_u64(), done.token);
    assert_eq!(ms(saved.created_at()), done.created_ms);
    assert_eq!(ms(saved.completed_at()), done.completed_ms);
    assert_eq!(ms(saved.expires_at()), done.expires_ms);
    let replay = match &done.principal {
        None => {
            saved.for_principal(b"p").expect_err("for nobody");
            saved.by_scope()
        }
        Some(principal) => {
            saved.by_scope().expect_err("for somebody");
            saved.for_principal(b"another").expect_err("for another");
            saved.for_principal(principal)
        }
    };
    let found = replay
        .expect("allowed")
        .response()
        .map(|found| found.to_vec());
    assert_eq!(found, done.response);
    if done.principal.is_none() && done.response.is_some() {
        assert_eq!(Some(bytes(saved)), done.response);
    }
}
