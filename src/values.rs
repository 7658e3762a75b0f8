//! Plain values: results of one scope that are set, overwritten and removed in one step.
//!
//! What Redis calls a key with a string in it is here a completed operation: scope as chosen, no
//! operation, the key's name as its id, the value as its response, its expiry as its retention. Every
//! change is one record (`engine/replace.rs`), so all calls on one key are one after the other,
//! whoever makes them. Nothing here waits for durability: each call says which position its answer
//! rests on, so that many can wait for it together.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::{Level, Look, Next, Opened, ReplaceError, Stored};
use crate::error::{ClaimError, Unavailable};
use crate::key::{Key, KeyError};
use crate::log::commit::Lead;
use crate::log::record::Record;
use crate::response::Replay;
use crate::store::Store;

/// The deadline of a value that does not expire, in store time in ms: the end of the year 9999.
pub(crate) const NEVER_MS: u64 = 253_402_300_799_999;

/// The values of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    engine: Arc<Opened>,
    scope: Arc<[u8]>,
}

/// A value as it stands in the log.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// Empty for an operation that was completed without a response.
    pub(crate) bytes: Bytes,
    pub(crate) deadline_ms: u64,
}

/// Why there is no answer. Nothing was changed.
#[derive(Debug)]
pub(crate) enum ValueError {
    /// The key is pending or interrupted.
    Claimed { attempt: u32 },
    /// The result is for a principal, whom nobody can name here.
    Principal,
    /// The value is over the store's limit.
    TooLarge { len: usize, max: usize },
    /// Key limits, room, damage, availability.
    Claim(ClaimError),
}

impl From<ClaimError> for ValueError {
    fn from(error: ClaimError) -> Self {
        Self::Claim(error)
    }
}

impl From<KeyError> for ValueError {
    fn from(error: KeyError) -> Self {
        Self::Claim(error.into())
    }
}

impl From<ReplaceError> for ValueError {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Claimed { attempt } => Self::Claimed { attempt },
            ReplaceError::TooLarge { len, max } => Self::TooLarge { len, max },
            ReplaceError::Claim(error) => Self::Claim(error),
        }
    }
}

impl Value {
    fn new(stored: &Stored) -> Result<Self, ValueError> {
        if stored.principal.is_some() {
            return Err(ValueError::Principal);
        }
        Ok(Self {
            bytes: match &stored.replay {
                Replay::Response(response) => Bytes::from(response.clone()),
                Replay::NotStored => Bytes::new(),
            },
            deadline_ms: stored.expires_ms,
        })
    }

    /// How long it answers from now on, in ms; `None` for ever.
    pub(crate) fn left_ms(&self, now_ms: u64) -> Option<u64> {
        (self.deadline_ms < NEVER_MS).then(|| self.deadline_ms.saturating_sub(now_ms))
    }
}

impl Values {
    pub(crate) fn new(store: &Store, scope: &[u8]) -> Self {
        Self {
            engine: Arc::clone(store.engine()),
            scope: scope.into(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.engine.time().now_ms()
    }

    /// The value of a key, and the position that the answer rests on.
    pub(crate) async fn look(&self, id: &[u8]) -> Result<(Option<Value>, u64), ValueError> {
        let (look, end) = self.engine.look_written(&self.key(id)?).await?;
        match look {
            Look::Absent => Ok((None, end)),
            Look::Completed(stored) => Ok((Some(Value::new(&stored)?), end)),
            Look::Held { attempt, .. } | Look::Interrupted { attempt, .. } => {
                Err(ValueError::Claimed { attempt })
            }
        }
    }

    /// Lets `decide` say what becomes of a key, given its value and the store time in ms; the position
    /// that the answer rests on. It may be asked several times: what it said last was done.
    #[cfg(feature = "serve")]
    pub(crate) async fn change(
        &self,
        id: &[u8],
        decide: impl FnMut(Option<&Value>, u64) -> Next,
    ) -> Result<u64, ValueError> {
        self.change_key(&self.key(id)?, decide).await
    }

    /// [`change`](Self::change) of a key in any scope.
    pub(crate) async fn change_key(
        &self,
        key: &Key,
        mut decide: impl FnMut(Option<&Value>, u64) -> Next,
    ) -> Result<u64, ValueError> {
        let mut refused = None;
        let replaced = self.engine.replace(key, |stored, now_ms| {
            let value = match stored.map(Value::new).transpose() {
                Ok(value) => value,
                Err(error) => {
                    refused = Some(error);
                    return Next::Keep;
                }
            };
            refused = None;
            decide(value.as_ref(), now_ms)
        });
        let end = replaced.await?;
        match refused {
            Some(error) => Err(error),
            None => Ok(end),
        }
    }

    /// Visits the names of about `count` results from `cursor` on, those of other scopes counted and
    /// left out; the cursor to go on from, 0 at the end. See [`Engine::scan`](crate::engine::Engine).
    pub(crate) fn scan(
        &self,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<u64, ClaimError> {
        self.engine.scan(cursor, count, |record: &Record<'_>| {
            let (scope, operation, _) = record.key_lengths;
            if operation == 0
                && let Some((found, id)) = record.key.split_at_checked(usize::from(scope))
                && *found == *self.scope
            {
                visit(id);
            }
        })
    }

    /// Waits until `end` is as durable as the store's level asks.
    pub(crate) async fn reach(&self, end: u64) -> Result<(), Unavailable> {
        self.engine.reach(end, self.level()).await
    }

    /// Whether [`reach`](Self::reach) would have nothing to wait for.
    #[cfg(feature = "serve")]
    pub(crate) fn is_reached(&self, end: u64) -> bool {
        self.engine.is_reached(end, self.level())
    }

    fn level(&self) -> Level {
        Level {
            durability: self.engine.settings().durability,
            lead: Lead::Never,
        }
    }

    fn key(&self, id: &[u8]) -> Result<Key, KeyError> {
        Key::new(&*self.scope, "", id)
    }
}
