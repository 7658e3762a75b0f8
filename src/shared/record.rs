//! A key as a server has it, and what a claim that meets it is answered.

use std::time::Duration;

use bytes::Bytes;

use crate::backend::{PendingParts, Progress, SavedParts};
use crate::claim::{Mismatch, Saved, TooLate};
use crate::clock::time;
use crate::fingerprint::{Comparison, Fingerprint};
use crate::key::Key;
use crate::listing::{KeyState, PendingKey};
use crate::shared::NewClaim;
use crate::token::Token;

/// What a key is, in the numbers that servers keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Held while its lease lasts.
    Pending = 0,
    /// Its owner said that it is gone.
    Interrupted = 1,
    Completed = 2,
}

/// A key that is not absent, read at one moment of its server.
#[derive(Clone, Debug)]
pub struct Record {
    pub(crate) now_ms: u64,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: State,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) lease_until_ms: u64,
    pub(crate) completed_ms: u64,
    pub(crate) expires_ms: u64,
    pub(crate) checkpoint: Option<Bytes>,
    pub(crate) response: Option<Bytes>,
    pub(crate) principal: Option<Bytes>,
}

/// What a claim that met a record is to do.
#[derive(Debug)]
pub(crate) enum Judged {
    InProgress(Progress),
    Completed(Saved),
    Mismatch(Mismatch),
    TooLate(TooLate),
    /// The key may be taken, if it still is as it was read.
    Take,
}

impl State {
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Pending, Self::Interrupted, Self::Completed]
            .into_iter()
            .find(|state| *state as u64 == number)
    }
}

impl Record {
    pub(crate) fn is_expired(&self) -> bool {
        self.state == State::Completed && self.expires_ms <= self.now_ms
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state == State::Pending && self.lease_until_ms > self.now_ms
    }

    fn lease_left(&self) -> Option<Duration> {
        self.is_held()
            .then(|| Duration::from_millis(self.lease_until_ms - self.now_ms))
    }

    pub(crate) fn saved(&self) -> Saved {
        Saved::from(SavedParts {
            response: self.response.clone(),
            principal: self.principal.clone(),
            attempt: self.attempt,
            token: Token::from_u64(self.token),
            created_at: time(self.created_ms),
            completed_at: time(self.completed_ms),
            expires_at: time(self.expires_ms),
        })
    }

    pub(crate) fn key_state(&self) -> KeyState {
        let (attempt, token) = (self.attempt, Token::from_u64(self.token));
        let since = time(self.started_ms);
        match self.state {
            State::Completed if self.is_expired() => KeyState::Absent,
            State::Completed => KeyState::Completed(self.saved()),
            State::Pending if self.is_held() => KeyState::InProgress {
                attempt,
                token,
                since,
                lease_left: self.lease_left(),
            },
            State::Pending | State::Interrupted => KeyState::Interrupted {
                attempt,
                token,
                since,
                is_abandoned: false,
            },
        }
    }

    pub(crate) fn pending_key(&self, key: Key) -> PendingKey {
        PendingKey::from(PendingParts {
            key,
            fingerprint: self.fingerprint,
            attempt: self.attempt,
            token: Token::from_u64(self.token),
            started_at: time(self.started_ms),
            created_at: time(self.created_ms),
            age: Duration::from_millis(self.now_ms.saturating_sub(self.created_ms)),
            lease_left: self.lease_left(),
        })
    }
}

/// The one place where a record turns into an answer: expiry, then the fingerprint, then the state.
pub(crate) fn judge(record: &Record, claim: &NewClaim) -> Judged {
    if record.is_expired() {
        return match claim.too_late(record.now_ms) {
            Some(too_late) => Judged::TooLate(too_late),
            None => Judged::Take,
        };
    }
    let is_completed = record.state == State::Completed;
    if claim.fingerprint.compare(record.fingerprint) == Comparison::Different {
        let since_ms = if is_completed {
            record.completed_ms
        } else {
            record.started_ms
        };
        let expires_at = is_completed.then(|| time(record.expires_ms));
        return Judged::Mismatch(Mismatch::new(record.attempt, time(since_ms), expires_at));
    }
    match record.state {
        State::Completed => Judged::Completed(record.saved()),
        State::Pending if record.is_held() => Judged::InProgress(Progress {
            attempt: record.attempt,
            since: time(record.started_ms),
            lease_left: record.lease_left(),
        }),
        State::Pending | State::Interrupted => Judged::Take,
    }
}
