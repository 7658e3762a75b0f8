//! A table of rows by hand, over anything that has keys and values: what everybody writes who has no
//! store for it.
//!
//! A row is a state, the request's fingerprint, a deadline and the response. Nobody's token is checked
//! at a completion, and nobody finds out that an owner is gone before its lease is over.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::measure::{Claimed, Contestant, FINGERPRINT, Fault, Sample, Session};

const PENDING: u8 = b'P';
const DONE: u8 = b'D';
const HEAD_BYTES: usize = 1 + FINGERPRINT.len() + size_of::<u64>();
/// As long as a pending row counts.
const LEASE: Duration = Duration::from_secs(30);
/// As long as a completed one is kept.
const RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// Keys and values, and one way to write a value only where there is none that counts.
pub(crate) trait Table: Send + Sync + 'static {
    type Value: AsRef<[u8]>;

    /// In one atomic step: writes the row unless one `is_live` is there, which it gives back then.
    fn insert_if_free(&self, key: &[u8], row: &[u8]) -> Result<Option<Self::Value>, Fault>;

    /// As durable as its class asks, like the step above.
    fn replace(&self, key: &[u8], row: &[u8]) -> Result<(), Fault>;

    /// Puts all on the disk.
    fn close(self) -> Result<(), Fault>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// Whether a row keeps others from its key.
pub(crate) fn is_live(row: &[u8]) -> bool {
    let deadline = row
        .get(HEAD_BYTES - size_of::<u64>()..)
        .and_then(|rest| rest.first_chunk());
    deadline.is_some_and(|deadline| u64::from_le_bytes(*deadline) > now())
}

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

pub(crate) fn lease_end() -> u64 {
    now() + LEASE.as_millis() as u64
}

pub(crate) fn retention_end() -> u64 {
    now() + RETENTION.as_millis() as u64
}

fn pending() -> [u8; HEAD_BYTES] {
    head(PENDING, lease_end())
}

fn done(response: &[u8]) -> Vec<u8> {
    [&head(DONE, retention_end())[..], response].concat()
}

fn head(state: u8, deadline: u64) -> [u8; HEAD_BYTES] {
    let mut head = [state; HEAD_BYTES];
    head[1..1 + FINGERPRINT.len()].copy_from_slice(&FINGERPRINT);
    head[1 + FINGERPRINT.len()..].copy_from_slice(&deadline.to_le_bytes());
    head
}

/// A table as a contestant.
pub(crate) struct Rows<T> {
    table: Arc<T>,
    /// The one that it is filled through, where that is another.
    filling: Arc<T>,
}

impl<T: Table> Rows<T> {
    pub(crate) fn new(table: T) -> Self {
        let table = Arc::new(table);
        Self {
            filling: Arc::clone(&table),
            table,
        }
    }

    /// One that is filled without the cost of a sync each.
    pub(crate) fn filled_through(table: T, filling: T) -> Self {
        Self {
            table: Arc::new(table),
            filling: Arc::new(filling),
        }
    }
}

impl<T: Table> Contestant for Rows<T> {
    type Session = Arc<T>;

    fn session(&self) -> Result<Arc<T>, Fault> {
        Ok(Arc::clone(&self.table))
    }

    fn filling_session(&self) -> Result<Arc<T>, Fault> {
        Ok(Arc::clone(&self.filling))
    }

    fn close(self) -> Result<(), Fault> {
        drop(self.filling);
        let table = Arc::into_inner(self.table).ok_or("somebody still has the table")?;
        table.close()
    }
}

impl<T: Table> Session for Arc<T> {
    type Guard = Sample;
    type Response = Response<T::Value>;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Sample, Self::Response>, Fault> {
        let Some(there) = self.insert_if_free(&key.bytes, &pending())? else {
            return Ok(Claimed::Started(key.clone()));
        };
        match there.as_ref().split_first() {
            Some((&state, rest)) if rest.starts_with(&FINGERPRINT) => match state {
                DONE => Ok(Claimed::Done(Response(there))),
                _ => Ok(Claimed::Running),
            },
            _ => Err("a key stands for another request".into()),
        }
    }

    fn complete(&mut self, key: Sample, response: &[u8]) -> Result<(), Fault> {
        self.replace(&key.bytes, &done(response))
    }
}

pub(crate) struct Response<V>(V);

impl<V: AsRef<[u8]>> AsRef<[u8]> for Response<V> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().get(HEAD_BYTES..).unwrap_or_default()
    }
}
