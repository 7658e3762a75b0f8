//! Single atomic steps on one kind of server.

use std::future::Future;

use bytes::Bytes;

use crate::backend::{BackendError, MalformedRecord, Outcome};
use crate::claim::TooLate;
use crate::clock::time;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::PendingKey;
use crate::shared::{Record, State};

/// One kind of server, as [`SharedBackend`](crate::shared::SharedBackend) uses it.
///
/// Only this crate implements it: write [`Backend`](crate::backend::Backend) for another server.
#[doc(hidden)]
#[allow(
    private_interfaces,
    reason = "sealed: its types can't be named outside, so nobody else implements it"
)]
pub trait Driver: Clone + Send + Sync + 'static {
    /// Claims the key if it is absent, or reads what it is.
    fn begin(&self, claim: &NewClaim) -> impl Future<Output = Result<Begun, BackendError>> + Send;

    /// Takes the key if it is still as `seen` and may still be taken.
    fn take(
        &self,
        claim: &NewClaim,
        seen: &Record,
    ) -> impl Future<Output = Result<Option<Grant>, BackendError>> + Send;

    /// Changes a pending key under its token.
    fn write(
        &self,
        key: &Key,
        token: u64,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Written, BackendError>> + Send;

    /// Reads the key.
    fn read(&self, key: &Key) -> impl Future<Output = Result<Option<Record>, BackendError>> + Send;

    /// Removes the key; unless forced, only where it is completed.
    fn remove(
        &self,
        key: &Key,
        force: bool,
    ) -> impl Future<Output = Result<Removal, BackendError>> + Send;

    /// Reads up to `max` keys that are interrupted, and tells what it could not read on the way.
    fn interrupted(&self, max: usize) -> impl Future<Output = Result<Listed, BackendError>> + Send;

    /// Looks at every key, for up to `max` that can't be read.
    fn malformed(
        &self,
        max: usize,
    ) -> impl Future<Output = Result<Vec<MalformedRecord>, BackendError>> + Send;
}

/// A claim with everything that a server needs to know.
#[derive(Clone, Debug)]
pub struct NewClaim {
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    pub(crate) first_sent_ms: Option<u64>,
    /// What the key becomes: in a caller's transaction it is interrupted until it is completed, so
    /// that a commit in between leaves it so.
    pub(crate) state: State,
}

/// What the first step of a claim led to.
#[derive(Debug)]
pub enum Begun {
    Granted(Grant),
    Found(Record),
    TooLate(TooLate),
    /// It went away between two looks: nothing was done, look again.
    Changed,
}

/// The right to act for a key, as its server gave it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Of the first claim: where a later one can't be compared with it, the operation is the same.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    /// Number and beginning of the attempt whose outcome is unknown.
    pub(crate) previous: Option<(u32, u64)>,
    pub(crate) checkpoint: Option<Bytes>,
}

/// What an owner writes.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Renew {
        lease_ms: u64,
    },
    Checkpoint(&'a [u8]),
    Complete {
        response: Option<&'a [u8]>,
        principal: Option<&'a [u8]>,
        retention_ms: u64,
    },
    Release,
    Interrupt,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Done, at this time of the server.
    Done { at_ms: u64 },
    /// The token holds the key no longer; the attempt that does, if it is known.
    Lost {
        new_attempt: Option<u32>,
        is_absent: bool,
    },
}

/// What a listing met.
#[derive(Debug, Default)]
pub struct Listed {
    pub(crate) keys: Vec<PendingKey>,
    pub(crate) malformed: Vec<MalformedRecord>,
}

/// What a removal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    Removed,
    /// There was nothing, or an expired result.
    Absent,
    /// Only by force.
    Pending {
        attempt: u32,
    },
    /// It changed between two looks: nothing was done, look again.
    Changed,
}

impl NewClaim {
    /// The answer of an absent key that was first sent longer ago than results are kept.
    pub(crate) fn too_late(&self, now_ms: u64) -> Option<TooLate> {
        let first_sent_ms = self.first_sent_ms?;
        let limit_ms = now_ms.saturating_sub(self.retention_ms).saturating_add(1);
        (first_sent_ms < limit_ms).then(|| TooLate::new(time(first_sent_ms), time(limit_ms)))
    }

    /// The grant of a key that was absent.
    pub(crate) fn started(&self, token: u64, now_ms: u64) -> Grant {
        Grant {
            fingerprint: self.fingerprint,
            token,
            attempt: 1,
            created_ms: now_ms,
            started_ms: now_ms,
            previous: None,
            checkpoint: None,
        }
    }

    /// What a take of `seen` gives, once the server has done it.
    pub(crate) fn taken(&self, seen: &Record, token: u64, now_ms: u64) -> Grant {
        if seen.is_expired() {
            return self.started(token, now_ms);
        }
        Grant {
            fingerprint: seen.fingerprint,
            token,
            attempt: seen.attempt.saturating_add(1),
            created_ms: seen.created_ms,
            started_ms: now_ms,
            previous: Some((seen.attempt, seen.started_ms)),
            checkpoint: seen.checkpoint.clone(),
        }
    }
}

impl Grant {
    /// What a claim is answered that took this over.
    pub(crate) fn taken(self) -> Outcome<Self> {
        match self.previous {
            Some(_) => Outcome::Interrupted(self),
            // An expired result made room.
            None => Outcome::Started(self),
        }
    }
}

impl Written {
    /// What a write that matched nothing met, from what the key is now.
    pub(crate) fn refused(found: Option<&Record>, token: u64, change: Change<'_>) -> Self {
        match found {
            // A completion whose answer was lost, and that is repeated.
            Some(record)
                if record.token == token
                    && record.state == State::Completed
                    && matches!(change, Change::Complete { .. }) =>
            {
                Self::Done {
                    at_ms: record.completed_ms,
                }
            }
            Some(record) if record.token != token => Self::Lost {
                new_attempt: Some(record.attempt),
                is_absent: false,
            },
            _ => Self::Lost {
                new_attempt: None,
                is_absent: found.is_none(),
            },
        }
    }
}
