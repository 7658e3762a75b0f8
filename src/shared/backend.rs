//! A backend made of a driver.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;

use crate::backend::{Backend, BackendError, BackendLimits, MalformedRecord, Outcome};
use crate::error::{AdminError, ClaimError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::KEY_PART_BYTES_DEFAULT;
use crate::listing::{KeyState, PendingKey};
use crate::options::ClaimOptions;
use crate::secret::HashSecret;
use crate::shared::clock::ServerClock;
use crate::shared::guard::{SharedGuard, Terms, Unseen};
use crate::shared::{
    Begun, Change, Driver, Grant, NewClaim, Removal, SharedOptions, SharedOptionsError, State,
    Written, judge,
};
use crate::store::Forget;
use crate::token::Token;

/// Looks of one call before it gives up on a key that changes under it every time.
pub(crate) const ROUNDS_MAX: usize = 64;
/// The first pause of a waiter.
const POLL_MIN: Duration = Duration::from_millis(5);

/// A backend that several processes share: see `PostgresBackend`, `SqliteBackend`, `RedisBackend`.
///
/// A handle that clones cheaply. It needs a tokio runtime: steps on the server run in tasks, so that
/// a caller who stops waiting leaves nothing half done. Each part of a key has up to 255 bytes.
pub struct SharedBackend<D> {
    pub(super) inner: Arc<Inner<D>>,
}

pub(super) struct Inner<D> {
    pub(super) driver: D,
    pub(super) options: SharedOptions,
    pub(super) secret: HashSecret,
    clock: ServerClock,
    waiters: Semaphore,
}

impl<D: Driver> SharedBackend<D> {
    pub(crate) fn with_driver(
        driver: D,
        options: SharedOptions,
    ) -> Result<Self, SharedOptionsError> {
        options.validate()?;
        Ok(Self {
            inner: Arc::new(Inner {
                driver,
                secret: options.secret(),
                clock: ServerClock::new(),
                waiters: Semaphore::new(options.waiters_max),
                options,
            }),
        })
    }

    /// Up to `max` keys that can't be read, because somebody else wrote to the table or the server.
    ///
    /// They are refused to everybody who claims them, left out of
    /// [`interrupted`](Backend::interrupted), and never reaped. Looks at every key, so it takes its time:
    /// for operators, not for requests.
    ///
    /// # Errors
    ///
    /// [`BackendError`]: the server refuses or can't be reached.
    pub async fn malformed(&self, max: usize) -> Result<Vec<MalformedRecord>, BackendError> {
        self.driver().malformed(max).await
    }

    pub(crate) fn driver(&self) -> &D {
        &self.inner.driver
    }

    pub(crate) fn new_claim(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
        state: State,
    ) -> Result<(NewClaim, Terms), ClaimError> {
        key.check(KEY_PART_BYTES_DEFAULT)?;
        let resolved = self.inner.options.resolve(options)?;
        let terms = Terms {
            lease_ms: resolved.lease_ms,
            is_renewed: resolved.is_renewed,
            retention_ms: resolved.retention_ms,
        };
        let claim = NewClaim {
            key: key.clone(),
            fingerprint,
            lease_ms: resolved.lease_ms,
            retention_ms: resolved.retention_ms,
            first_sent_ms: resolved.first_sent_ms,
            state,
        };
        Ok((claim, terms))
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn response_bytes_max(&self) -> usize {
        self.inner.options.response_bytes_max
    }

    /// Claims in a task of its own: dropped by its caller it goes on, and gives back what it got.
    async fn claim_spawned(
        &self,
        claim: NewClaim,
        terms: Terms,
    ) -> Result<Outcome<SharedGuard<D>>, ClaimError> {
        let this = self.clone();
        let task = tokio::spawn(async move {
            let outcome = this.inner.decide(&claim).await?;
            Ok::<_, ClaimError>(Unseen::new(this, claim, terms, outcome))
        });
        let claimed = joined(task, "claiming a key").await?;
        Ok(claimed?.into_outcome())
    }
}

impl<D: Driver> Inner<D> {
    /// Claims, and claims again while the key changes between the look and the step.
    async fn decide(&self, claim: &NewClaim) -> Result<Outcome<Grant>, ClaimError> {
        for _ in 0..ROUNDS_MAX {
            let seen = match self.driver.begin(claim).await? {
                Begun::Granted(grant) => {
                    self.clock.hear(grant.started_ms);
                    return Ok(Outcome::Started(grant));
                }
                Begun::TooLate(too_late) => return Ok(Outcome::TooLate(too_late)),
                Begun::Found(seen) => seen,
                Begun::Changed => continue,
            };
            self.clock.hear(seen.now_ms);
            if let Some(outcome) = judge(&seen, claim) {
                return Ok(outcome);
            }
            if let Some(grant) = self.driver.take(claim, &seen).await? {
                return Ok(grant.taken());
            }
        }
        Err(changing("claiming a key").into())
    }
}

/// The error of a call that looked [`ROUNDS_MAX`] times.
pub(crate) fn changing(step: &'static str) -> BackendError {
    let source = format!("the key changed at each of {ROUNDS_MAX} looks");
    BackendError::refused(step, source)
}

/// The result of a task, which goes on where its caller stops waiting. A runtime that shuts down ends
/// it in the middle.
pub(super) async fn joined<T>(
    task: tokio::task::JoinHandle<T>,
    step: &'static str,
) -> Result<T, BackendError> {
    match task.await {
        Ok(result) => Ok(result),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(BackendError::new(step, error)),
        },
    }
}

impl<D: Driver> Backend for SharedBackend<D> {
    type Guard = SharedGuard<D>;

    async fn claim(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<SharedGuard<D>>, ClaimError> {
        let (claim, terms) = self.new_claim(key, fingerprint, &options, State::Pending)?;
        self.claim_spawned(claim, terms).await
    }

    async fn wait(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<SharedGuard<D>>, ClaimError> {
        let (claim, terms) = self.new_claim(key, fingerprint, &options, State::Pending)?;
        let outcome = self.claim_spawned(claim.clone(), terms).await?;
        if !matches!(outcome, Outcome::InProgress(_)) {
            return Ok(outcome);
        }
        let limit = self.inner.options.waiters_max;
        let _place = self
            .inner
            .waiters
            .try_acquire()
            .map_err(|_| ClaimError::TooManyWaiters { limit })?;
        let mut pause = POLL_MIN;
        loop {
            tokio::time::sleep(pause).await;
            let outcome = self.claim_spawned(claim.clone(), terms).await?;
            if !matches!(outcome, Outcome::InProgress(_)) {
                return Ok(outcome);
            }
            pause = (pause * 3 / 2).min(self.inner.options.poll_max);
        }
    }

    async fn look(&self, key: &Key) -> Result<KeyState, ClaimError> {
        key.check(KEY_PART_BYTES_DEFAULT)?;
        let found = self.driver().read(key).await?;
        Ok(found.map_or(KeyState::Absent, |record| record.key_state()))
    }

    async fn forget(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        key.check(KEY_PART_BYTES_DEFAULT)
            .map_err(ClaimError::from)?;
        for _ in 0..ROUNDS_MAX {
            let removal = self.driver().remove(key, forget == Forget::Force).await;
            match removal.map_err(ClaimError::from)? {
                Removal::Removed => return Ok(true),
                Removal::Absent => return Ok(false),
                Removal::Pending { attempt } => return Err(AdminError::Pending { attempt }),
                Removal::Changed => {}
            }
        }
        Err(ClaimError::from(changing("removing a key")).into())
    }

    async fn interrupt(&self, key: &Key, token: Token) -> Result<(), AdminError> {
        let written = self
            .driver()
            .write(key, token.as_u64(), Change::Interrupt)
            .await;
        match written.map_err(ClaimError::from)? {
            Written::Done { .. } => Ok(()),
            Written::Lost { .. } => Err(AdminError::NotHeld { token }),
        }
    }

    /// What can't be read is left out, with a warning: see [`malformed`](SharedBackend::malformed).
    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, ClaimError> {
        let listed = self.driver().interrupted(max).await?;
        for malformed in &listed.malformed {
            tracing::warn!(%malformed, "a key is left out of a listing");
        }
        Ok(listed.keys)
    }

    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
        let secret = &self.inner.secret;
        secret.downstream_key(&[], key, fingerprint, label)
    }

    fn limits(&self) -> BackendLimits {
        BackendLimits {
            key_part_bytes: KEY_PART_BYTES_DEFAULT,
            response_bytes: self.inner.options.response_bytes_max,
        }
    }

    fn now(&self) -> SystemTime {
        self.inner.clock.now()
    }
}

impl<D> Clone for SharedBackend<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<D> fmt::Debug for SharedBackend<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBackend")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_a_runtime_ended_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let task = runtime.spawn(std::future::pending::<()>());
        drop(runtime);
        let waiting = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let error = waiting.block_on(joined(task, "claiming a key"));
        assert_eq!(error.unwrap_err().step(), "claiming a key");
    }
}
