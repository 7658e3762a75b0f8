//! A backend made of a driver.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::backend::{Backend, BackendError, Outcome};
use crate::error::{AdminError, ClaimError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::KEY_PART_BYTES_DEFAULT;
use crate::listing::{KeyState, PendingKey};
use crate::options::ClaimOptions;
use crate::secret::HashSecret;
use crate::shared::guard::{SharedGuard, Terms, Unseen};
use crate::shared::{
    Begun, Change, Driver, Judged, NewClaim, Removal, SharedOptions, SharedOptionsError, State,
    Written, judge,
};
use crate::store::Forget;
use crate::token::Token;

/// Looks of one claim before it gives up on a key that changes under it every time.
const ROUNDS_MAX: usize = 64;
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
                waiters: Semaphore::new(options.waiters_max),
                options,
            }),
        })
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

    pub(crate) fn downstream_key(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        label: &str,
    ) -> String {
        self.inner
            .secret
            .downstream_key(&[], key, fingerprint, label)
    }

    /// Claims in a task of its own: dropped by its caller it goes on, and gives back what it got.
    async fn claim_spawned(
        &self,
        claim: NewClaim,
        terms: Terms,
    ) -> Result<Outcome<SharedGuard<D>>, ClaimError> {
        let this = self.clone();
        let task = tokio::spawn(async move {
            let outcome = decide(this.driver(), &claim).await?;
            Ok::<_, ClaimError>(Unseen::new(this, claim, terms, outcome))
        });
        Ok(joined(task).await?.into_outcome())
    }
}

/// Claims, and claims again while the key changes between the look and the step.
pub(crate) async fn decide<D: Driver>(
    driver: &D,
    claim: &NewClaim,
) -> Result<Outcome<super::Grant>, ClaimError> {
    for _ in 0..ROUNDS_MAX {
        let seen = match driver.begin(claim).await? {
            Begun::Granted(grant) => return Ok(Outcome::Started(grant)),
            Begun::TooLate(too_late) => return Ok(Outcome::TooLate(too_late)),
            Begun::Found(seen) => seen,
        };
        match judge(&seen, claim) {
            Judged::InProgress(progress) => return Ok(Outcome::InProgress(progress)),
            Judged::Completed(saved) => return Ok(Outcome::Completed(saved)),
            Judged::Mismatch(mismatch) => return Ok(Outcome::Mismatch(mismatch)),
            Judged::TooLate(too_late) => return Ok(Outcome::TooLate(too_late)),
            Judged::Take => {}
        }
        if let Some(grant) = driver.take(claim, &seen).await? {
            return Ok(match grant.previous {
                Some(_) => Outcome::Interrupted(grant),
                None => Outcome::Started(grant),
            });
        }
    }
    let source = "the key changed at every look";
    Err(BackendError::new("claiming a key", source).into())
}

/// The result of a task that is never aborted.
pub(super) async fn joined<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
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
        let removal = self.driver().remove(key, forget == Forget::Force).await;
        match removal.map_err(ClaimError::from)? {
            Removal::Removed => Ok(true),
            Removal::Absent => Ok(false),
            Removal::Pending { attempt } => Err(AdminError::Pending { attempt }),
        }
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

    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, ClaimError> {
        Ok(self.driver().interrupted(max).await?)
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
