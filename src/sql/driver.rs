//! Pools of connections as drivers.

use sqlx::Error;

use crate::backend::{BackendError, MalformedRecord};
use crate::key::Key;
use crate::shared::{Begun, Change, Driver, Grant, Listed, NewClaim, Record, Removal, Written};
use crate::sql::steps;

/// Steps of one claim are repeated so often where the database could not order them.
const RETRIES_MAX: usize = 8;

/// What a failed statement of its own means.
pub(super) fn failed(step: &'static str) -> impl Fn(Error) -> BackendError {
    move |error| match error {
        Error::Decode(source) => match source.downcast::<MalformedRecord>() {
            Ok(malformed) => BackendError::from((step, *malformed)),
            Err(source) => BackendError::new(step, Error::Decode(source)),
        },
        Error::PoolTimedOut | Error::PoolClosed => BackendError::refused(step, error),
        Error::Database(ref refusal) if is_undone(refusal.code().as_deref()) => {
            BackendError::refused(step, error)
        }
        error => BackendError::new(step, error),
    }
}

/// Whether a statement that ended with this code did nothing. A server that goes away may have done it
/// before, and says so in the classes 08 and 57P; 40003 is "completion unknown". SQLite's codes are
/// shorter; a disk that fails (10) may have failed at the end of a commit.
fn is_undone(code: Option<&str>) -> bool {
    let Some(code) = code else {
        return false;
    };
    match code.parse::<u32>() {
        Ok(number) if code.len() < 5 => number & 0xff != 10,
        _ => !(code.starts_with("08") || code.starts_with("57P") || code == "40003"),
    }
}

/// Serialization failures and deadlocks: nothing was done, and trying again is what they ask for.
/// PostgreSQL gives them under stricter isolation levels than its default, CockroachDB at any time.
fn is_to_be_repeated(error: &Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["40001", "40P01"].contains(&&*code))
}

/// Runs a step on a connection of the pool, outside of any transaction.
macro_rules! on_pool {
    ($pool:expr, $what:literal, |$connection:ident| $step:expr) => {{
        let mut tries = 0;
        loop {
            let mut pooled = $pool.acquire().await.map_err(failed($what))?;
            let $connection = &mut *pooled;
            match $step.await {
                Err(error) if is_to_be_repeated(&error) && tries < RETRIES_MAX => tries += 1,
                result => break result.map_err(failed($what)),
            }
        }
    }};
}

macro_rules! driver {
    ($driver:ident, $pool:ty, $documentation:literal) => {
        #[doc = $documentation]
        #[derive(Clone, Debug)]
        pub struct $driver {
            pub(super) pool: $pool,
        }

        #[allow(private_interfaces, reason = "the trait is sealed by its types")]
        impl Driver for $driver {
            async fn begin(&self, claim: &NewClaim) -> Result<Begun, BackendError> {
                on_pool!(self.pool, "claiming a key", |it| steps::begin(it, claim))
            }

            async fn take(
                &self,
                claim: &NewClaim,
                seen: &Record,
            ) -> Result<Option<Grant>, BackendError> {
                on_pool!(self.pool, "taking a key over", |it| steps::take(
                    it, claim, seen
                ))
            }

            async fn write(
                &self,
                key: &Key,
                token: u64,
                change: Change<'_>,
            ) -> Result<Written, BackendError> {
                let also_from = steps::also_from(false);
                on_pool!(self.pool, "writing as the owner of a key", |it| {
                    steps::write(it, key, token, change, also_from)
                })
            }

            async fn read(&self, key: &Key) -> Result<Option<Record>, BackendError> {
                on_pool!(self.pool, "reading a key", |it| steps::read(it, key))
            }

            async fn remove(&self, key: &Key, force: bool) -> Result<Removal, BackendError> {
                on_pool!(self.pool, "removing a key", |it| steps::remove(
                    it, key, force
                ))
            }

            async fn interrupted(&self, max: usize) -> Result<Listed, BackendError> {
                on_pool!(self.pool, "listing interrupted keys", |it| {
                    steps::interrupted(it, max)
                })
            }

            async fn malformed(&self, max: usize) -> Result<Vec<MalformedRecord>, BackendError> {
                on_pool!(self.pool, "looking for rows that can't be read", |it| {
                    steps::malformed(it, max)
                })
            }
        }

        impl crate::shared::SharedBackend<$driver> {
            /// A backend on this pool. The table must be there: see `migrate`.
            ///
            /// # Errors
            ///
            /// [`SharedOptionsError`](crate::shared::SharedOptionsError): an option is out of range.
            pub fn new(
                pool: $pool,
                options: crate::shared::SharedOptions,
            ) -> Result<Self, crate::shared::SharedOptionsError> {
                Self::with_driver($driver { pool }, options)
            }

            /// Removes up to `max` results that have expired, the oldest first: how many it removed.
            ///
            /// Expired keys are free for their callers in any case; this frees their space. Call it
            /// from time to time, in batches of a few thousand, until it removes less than `max`. Any
            /// number of processes may do so at once. Pending and interrupted keys are never removed.
            ///
            /// # Errors
            ///
            /// [`BackendError`]: the database refuses or can't be reached.
            pub async fn reap(&self, max: usize) -> Result<u64, BackendError> {
                let pool = &self.driver().pool;
                on_pool!(pool, "removing expired results", |it| steps::reap(it, max))
            }
        }
    };
}

#[cfg(feature = "postgres")]
driver!(Postgres, sqlx::PgPool, "Keys in PostgreSQL.");
#[cfg(feature = "sqlite")]
driver!(Sqlite, sqlx::SqlitePool, "Keys in a SQLite file.");
