//! What an implementation of [`Backend`](super::Backend) makes its answers of.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::claim::{Mismatch, Saved, TooLate};
use crate::clock::unix_ms;
use crate::engine::Stored;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::PendingKey;
use crate::operation::Previous;
use crate::response::{Replay, Response};
use crate::token::Token;

/// A completed operation as its backend has it: becomes a [`Saved`].
#[derive(Clone, Debug)]
pub struct SavedParts {
    /// The response; `None` where none was kept.
    pub response: Option<Bytes>,
    /// For whom it is.
    pub principal: Option<Bytes>,
    /// The attempt that completed it.
    pub attempt: u32,
    /// The token under which it was completed.
    pub token: Token,
    /// When it was first claimed.
    pub created_at: SystemTime,
    /// When it was completed.
    pub completed_at: SystemTime,
    /// When the key is free again.
    pub expires_at: SystemTime,
}

/// A key without an outcome as its backend has it: becomes a [`PendingKey`].
#[derive(Clone, Debug)]
pub struct PendingParts {
    /// The key.
    pub key: Key,
    /// The request it was claimed for.
    pub fingerprint: Fingerprint,
    /// The newest attempt.
    pub attempt: u32,
    /// Its token.
    pub token: Token,
    /// When the attempt began.
    pub started_at: SystemTime,
    /// When the operation was first claimed.
    pub created_at: SystemTime,
    /// How long the operation has been without an outcome.
    pub age: Duration,
    /// How long the owner is still presumed alive; `None` where it is gone.
    pub lease_left: Option<Duration>,
}

impl From<SavedParts> for Saved {
    /// The sequence is the token's: a shared backend has no total order of its writes.
    fn from(parts: SavedParts) -> Self {
        Self::new(Stored {
            replay: match parts.response {
                Some(response) => Replay::Response(Response::owned(response)),
                None => Replay::NotStored,
            },
            principal: parts.principal.map(Response::owned),
            attempt: parts.attempt,
            token: parts.token.as_u64(),
            sequence: parts.token.as_u64(),
            created_ms: unix_ms(parts.created_at),
            completed_ms: unix_ms(parts.completed_at),
            expires_ms: unix_ms(parts.expires_at),
            end: 0,
        })
    }
}

impl From<PendingParts> for PendingKey {
    fn from(parts: PendingParts) -> Self {
        Self {
            key: parts.key,
            fingerprint: parts.fingerprint,
            attempt: parts.attempt,
            token: parts.token,
            started_at: parts.started_at,
            created_at: parts.created_at,
            age: parts.age,
            lease_left: parts.lease_left,
            is_detached: false,
            is_abandoned: false,
        }
    }
}

impl Mismatch {
    /// For implementations of [`Backend`](super::Backend); `expires_at` of a completed operation.
    pub fn new(attempt: u32, since: SystemTime, expires_at: Option<SystemTime>) -> Self {
        Self {
            completed: expires_at.is_some(),
            attempt,
            since,
            expires_at,
        }
    }
}

impl TooLate {
    /// For implementations of [`Backend`](super::Backend).
    pub fn new(first_sent: SystemTime, limit: SystemTime) -> Self {
        Self { first_sent, limit }
    }
}

impl Previous {
    /// For implementations of [`Backend`](super::Backend).
    pub fn new(attempt: u32, started_at: SystemTime, checkpoint: Option<Bytes>) -> Self {
        Self {
            attempt,
            started_at,
            checkpoint,
        }
    }
}
