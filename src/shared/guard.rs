//! The guard of a shared key: a lease that renews itself, and ends that are never half done.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::backend::{Answer, Backend, Guard, Outcome, SavedParts};
use crate::claim::Saved;
use crate::clock::time;
use crate::error::{FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::{CHECKPOINT_BYTES_MAX, PRINCIPAL_BYTES_MAX};
use crate::operation::Previous;
use crate::options::ClaimOptions;
use crate::shared::backend::joined;
use crate::shared::{Change, Driver, Grant, NewClaim, SharedBackend, Written};
use crate::token::Token;

/// The right to act for a key of a shared backend.
///
/// While it lives it renews its lease by itself, unless the claim asked for
/// [`Lease::For`](crate::Lease::For). [`is_lost`](Self::is_lost) tells whether that has failed.
#[must_use = "dropping the guard leaves the key interrupted"]
pub struct SharedGuard<D: Driver> {
    backend: SharedBackend<D>,
    claim: NewClaim,
    terms: Terms,
    grant: Grant,
    renewal: Option<AbortHandle>,
    lost: Arc<AtomicBool>,
    /// Whether dropping it says nothing any more.
    has_ended: bool,
    /// Whether a release may have been done whose answer was lost.
    may_be_released: bool,
}

/// What a claim asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lease_ms: u64,
    pub(crate) is_renewed: bool,
    pub(crate) retention_ms: u64,
}

/// What a completion stores, in a form that can go into a task.
struct Owned {
    response: Option<Bytes>,
    principal: Option<Bytes>,
    retention_ms: u64,
}

impl<D: Driver> SharedGuard<D> {
    fn new(backend: SharedBackend<D>, claim: NewClaim, terms: Terms, grant: Grant) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = terms.is_renewed.then(|| {
            let (driver, key) = (backend.driver().clone(), claim.key.clone());
            let renewing = renew_until_lost(driver, key, grant.token, terms, Arc::clone(&lost));
            tokio::spawn(renewing).abort_handle()
        });
        Self {
            backend,
            claim,
            terms,
            grant,
            renewal,
            lost,
            has_ended: false,
            may_be_released: false,
        }
    }

    /// Whether a renewal was refused, or none got through for as long as the lease lasts: somebody
    /// else may be at work on the key. A sign to stop early; only a write tells for certain.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    async fn write(&mut self, change: Change<'_>) -> Result<u64, WriteError> {
        let driver = self.backend.driver();
        match driver
            .write(&self.claim.key, self.grant.token, change)
            .await?
        {
            Written::Done { at_ms } => Ok(at_ms),
            // What was asked for before, and not answered.
            Written::Lost {
                is_absent: true, ..
            } if self.may_be_released && matches!(change, Change::Release) => Ok(0),
            Written::Lost { new_attempt, .. } => {
                self.lost.store(true, Ordering::Relaxed);
                Err(WriteError::LeaseLost { new_attempt })
            }
        }
    }

    fn owned(&self, answer: Answer<'_>) -> Result<Owned, WriteError> {
        let response_max = self.backend.inner.options.response_bytes_max;
        let len = answer.response.map_or(0, <[u8]>::len);
        if len > response_max {
            return Err(WriteError::ResponseTooLarge {
                len,
                max: response_max,
            });
        }
        let retention_ms = check_answer(answer)?.unwrap_or(self.terms.retention_ms);
        Ok(Owned {
            response: answer.response.map(Bytes::copy_from_slice),
            principal: answer.principal.map(Bytes::copy_from_slice),
            retention_ms,
        })
    }

    async fn finish(mut self, change: Change<'_>) -> Result<u64, FinishError<Self>> {
        let is_release = matches!(change, Change::Release);
        match self.write(change).await {
            Ok(at_ms) => {
                self.has_ended = true;
                Ok(at_ms)
            }
            Err(error @ WriteError::LeaseLost { .. }) => {
                self.has_ended = true;
                Err(FinishError::lost(error))
            }
            Err(error) => {
                if let WriteError::Backend(failed) = &error {
                    self.may_be_released |= is_release && failed.is_outcome_unknown();
                }
                Err(FinishError::held(error, self))
            }
        }
    }

    async fn complete_owned(self, owned: Owned) -> Result<Saved, FinishError<Self>> {
        let (grant, token) = (self.grant.clone(), Token::from_u64(self.grant.token));
        let change = Change::Complete {
            response: owned.response.as_deref(),
            principal: owned.principal.as_deref(),
            retention_ms: owned.retention_ms,
        };
        let completed_ms = self.finish(change).await?;
        Ok(Saved::from(SavedParts {
            response: owned.response,
            principal: owned.principal,
            attempt: grant.attempt,
            token,
            created_at: time(grant.created_ms),
            completed_at: time(completed_ms),
            expires_at: time(completed_ms.saturating_add(owned.retention_ms)),
        }))
    }
}

/// The result of a task that ends a guard. Where the runtime shuts down under it the guard is gone, and
/// what it wrote is unknown.
async fn ended<T, G>(
    task: tokio::task::JoinHandle<Result<T, FinishError<G>>>,
) -> Result<T, FinishError<G>> {
    match joined(task, "writing as the owner of a key").await {
        Ok(result) => result,
        Err(error) => Err(FinishError::lost(error.into())),
    }
}

/// Checks what every backend limits alike; the retention in ms, where one is given.
pub(crate) fn check_answer(answer: Answer<'_>) -> Result<Option<u64>, WriteError> {
    let len = answer.principal.map_or(0, <[u8]>::len);
    if len > PRINCIPAL_BYTES_MAX {
        return Err(WriteError::PrincipalTooLong {
            len,
            max: PRINCIPAL_BYTES_MAX,
        });
    }
    let Some(retention) = answer.retention else {
        return Ok(None);
    };
    let (_, retention_ms, _) = ClaimOptions::new().retention(retention).resolve_shared()?;
    Ok(retention_ms)
}

/// Renews a lease three times in its length, until it is lost or the task is aborted.
///
/// A server that says nothing is not waited for longer than until the next renewal is due. Where the
/// lease has run out since the last one that got through, it counts as lost until one does again.
async fn renew_until_lost<D: Driver>(
    driver: D,
    key: Key,
    token: u64,
    terms: Terms,
    lost: Arc<AtomicBool>,
) {
    let lease_ms = terms.lease_ms;
    let pause = Duration::from_millis(lease_ms / 3);
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        let asked = Instant::now();
        let renewal = driver.write(&key, token, Change::Renew { lease_ms });
        match tokio::time::timeout(pause, renewal).await {
            Ok(Ok(Written::Done { .. })) => {
                renewed = asked;
                lost.store(false, Ordering::Relaxed);
            }
            Ok(Ok(Written::Lost { .. })) => {
                lost.store(true, Ordering::Relaxed);
                tracing::warn!(%key, "the lease of a key was lost while its owner was at work");
                return;
            }
            // The next one may get through in time.
            Ok(Err(error)) => tracing::warn!(%key, %error, "a lease could not be renewed"),
            Err(_) => tracing::warn!(%key, "the server did not answer the renewal of a lease"),
        }
        if renewed.elapsed() >= Duration::from_millis(lease_ms) {
            lost.store(true, Ordering::Relaxed);
        }
    }
}

impl<D: Driver> Guard for SharedGuard<D> {
    fn key(&self) -> &Key {
        &self.claim.key
    }

    fn fingerprint(&self) -> Fingerprint {
        self.grant.fingerprint
    }

    fn attempt(&self) -> u32 {
        self.grant.attempt
    }

    fn token(&self) -> Token {
        Token::from_u64(self.grant.token)
    }

    fn started_at(&self) -> SystemTime {
        time(self.grant.started_ms)
    }

    fn created_at(&self) -> SystemTime {
        time(self.grant.created_ms)
    }

    fn previous(&self) -> Option<Previous> {
        previous(&self.grant)
    }

    fn last_checkpoint(&self) -> Option<Bytes> {
        self.grant.checkpoint.clone()
    }

    fn downstream_key(&self, label: &str) -> String {
        let fingerprint = self.grant.fingerprint;
        self.backend
            .downstream_key(&self.claim.key, fingerprint, label)
    }

    async fn checkpoint(&mut self, note: &[u8]) -> Result<(), WriteError> {
        if note.len() > CHECKPOINT_BYTES_MAX {
            return Err(WriteError::CheckpointTooLarge {
                len: note.len(),
                max: CHECKPOINT_BYTES_MAX,
            });
        }
        self.write(Change::Checkpoint(note)).await?;
        self.grant.checkpoint = (!note.is_empty()).then(|| Bytes::copy_from_slice(note));
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), WriteError> {
        let lease_ms = self.terms.lease_ms;
        self.write(Change::Renew { lease_ms }).await.map(drop)
    }

    async fn complete(self, answer: Answer<'_>) -> Result<Saved, FinishError<Self>> {
        match self.owned(answer) {
            Ok(owned) => ended(tokio::spawn(self.complete_owned(owned))).await,
            Err(error) => Err(FinishError::held(error, self)),
        }
    }

    async fn release(self) -> Result<(), FinishError<Self>> {
        ended(tokio::spawn(self.finish(Change::Release)))
            .await
            .map(drop)
    }

    fn give_back(self) {
        if self.grant.previous.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            // Where this fails the guard inside the error interrupts the key.
            runtime.spawn(async move { drop(self.finish(Change::Release).await) });
        }
    }
}

/// The attempt before the one of this grant.
pub(crate) fn previous(grant: &Grant) -> Option<Previous> {
    let (attempt, started_ms) = grant.previous?;
    Some(Previous::new(
        attempt,
        time(started_ms),
        grant.checkpoint.clone(),
    ))
}

impl<D: Driver> Drop for SharedGuard<D> {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        if self.has_ended {
            return;
        }
        // Without a runtime nobody can tell the server, and the end of the lease does.
        if let Ok(runtime) = Handle::try_current() {
            let (driver, key) = (self.backend.driver().clone(), self.claim.key.clone());
            let token = self.grant.token;
            runtime.spawn(async move {
                if let Err(error) = driver.write(&key, token, Change::Interrupt).await {
                    tracing::warn!(%key, %error, "the server does not know that an owner is gone");
                }
            });
        }
    }
}

impl<D: Driver> fmt::Debug for SharedGuard<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGuard")
            .field("key", &self.claim.key)
            .field("attempt", &self.grant.attempt)
            .field("token", &self.grant.token)
            .finish_non_exhaustive()
    }
}

/// An outcome on its way to its caller. Dropped here, a guard that nobody saw is given back.
pub(super) struct Unseen<D: Driver> {
    outcome: Option<Outcome<SharedGuard<D>>>,
}

impl<D: Driver> Unseen<D> {
    pub(super) fn new(
        backend: SharedBackend<D>,
        claim: NewClaim,
        terms: Terms,
        outcome: Outcome<Grant>,
    ) -> Self {
        let outcome = outcome.map(|grant| SharedGuard::new(backend, claim, terms, grant));
        Self {
            outcome: Some(outcome),
        }
    }

    pub(super) fn into_outcome(mut self) -> Outcome<SharedGuard<D>> {
        self.outcome
            .take()
            .unwrap_or_else(|| unreachable!("it is taken once"))
    }
}

impl<D: Driver> Drop for Unseen<D> {
    fn drop(&mut self) {
        if let Some(guard) = self.outcome.take().and_then(Outcome::into_guard) {
            guard.give_back();
        }
    }
}
