//! Keys that wait for an outcome, and what a key is without claiming it.

use std::time::{Duration, SystemTime};

use crate::claim::Saved;
use crate::clock::time;
use crate::engine::Look;
use crate::fingerprint::Fingerprint;
use crate::index::Live;
use crate::key::Key;
use crate::token::Token;

/// A key that is pending or interrupted, from [`Store::pending`](crate::Store::pending) or
/// [`Store::interrupted`](crate::Store::interrupted).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingKey {
    /// The key.
    pub key: Key,
    /// The request it was claimed for.
    pub fingerprint: Fingerprint,
    /// The newest attempt.
    pub attempt: u32,
    /// Its token: what [`Store::interrupt`](crate::Store::interrupt) takes.
    pub token: Token,
    /// When the attempt began.
    pub started_at: SystemTime,
    /// When the operation was first claimed.
    pub created_at: SystemTime,
    /// How long the operation has been without an outcome.
    pub age: Duration,
    /// How long the owner is still presumed alive; `None` with
    /// [`Lease::WhileAlive`](crate::Lease::WhileAlive), and where the owner is gone.
    pub lease_left: Option<Duration>,
    /// Whether the work was handed on by ticket and not yet resumed.
    pub is_detached: bool,
    /// Whether it is interrupted and too old to be taken up again: see
    /// [`Options::abandon_after`](crate::Options::abandon_after).
    pub is_abandoned: bool,
}

impl PendingKey {
    pub(crate) fn new(live: &Live, now_ms: u64, monotonic_ms: u64, abandon_after_ms: u64) -> Self {
        Self {
            key: live.key.clone(),
            fingerprint: live.fingerprint,
            attempt: live.attempt,
            token: Token::from_u64(live.token),
            started_at: time(live.started_ms),
            created_at: time(live.created_ms),
            age: Duration::from_millis(now_ms.saturating_sub(live.created_ms)),
            lease_left: live.lease_left_ms(monotonic_ms).map(Duration::from_millis),
            is_detached: live.phase == crate::index::Phase::Detached,
            is_abandoned: live.is_abandoned(now_ms, monotonic_ms, abandon_after_ms),
        }
    }
}

/// What a key is, from [`Store::get`](crate::Store::get).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KeyState {
    /// Free: never claimed, released, removed, or expired.
    Absent,
    /// An owner is at work.
    InProgress {
        /// Its attempt.
        attempt: u32,
        /// Its token.
        token: Token,
        /// When the attempt began.
        since: SystemTime,
        /// How long the owner is still presumed alive; `None` without a lease.
        lease_left: Option<Duration>,
    },
    /// The owner is gone and the outcome is unknown.
    Interrupted {
        /// The attempt that was interrupted.
        attempt: u32,
        /// Its token.
        token: Token,
        /// When that attempt began.
        since: SystemTime,
        /// Whether it is too old to be taken up again: see
        /// [`Options::abandon_after`](crate::Options::abandon_after).
        is_abandoned: bool,
    },
    /// Done.
    Completed(Saved),
}

impl KeyState {
    pub(crate) fn new(look: Look) -> Self {
        match look {
            Look::Absent => Self::Absent,
            Look::Held {
                attempt,
                token,
                started_ms,
                lease_left_ms,
            } => Self::InProgress {
                attempt,
                token: Token::from_u64(token),
                since: time(started_ms),
                lease_left: lease_left_ms.map(Duration::from_millis),
            },
            Look::Interrupted {
                attempt,
                token,
                started_ms,
                is_abandoned,
            } => Self::Interrupted {
                attempt,
                token: Token::from_u64(token),
                since: time(started_ms),
                is_abandoned,
            },
            Look::Completed(stored) => Self::Completed(Saved::new(stored)),
        }
    }
}
