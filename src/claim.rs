//! What a claim leads to.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::block::block_with_timeout;
use crate::clock::time;
use crate::engine::{Engine, Opened, Outcome, Progress, Request, Stored, Wait};
use crate::error::{AccessDenied, ClaimError};
use crate::log::commit::Lead;
use crate::operation::Operation;
use crate::response::Replay;
use crate::token::Token;

use std::task::Poll;

/// What became of the operation: the outcome of a claim.
///
/// Of any number of concurrent claims on one key exactly one gets [`Started`](Self::Started) or
/// [`Interrupted`](Self::Interrupted); all the others get the rest.
#[derive(Debug)]
#[must_use = "a started or interrupted operation that is dropped leaves its key interrupted"]
pub enum Claim {
    /// The key was free: you own the operation now. Do the work, then complete it.
    Started(Operation),
    /// The key was claimed before and its owner is gone: it died, dropped its guard, or its lease is
    /// over. You own it now, as a new attempt. **What the earlier attempt did is unknown**: look
    /// with [`Operation::previous`], ask the other system, or repeat the call with
    /// [`Operation::downstream_key`].
    Interrupted(Operation),
    /// Another owner is at work: wait, or answer "retry later".
    InProgress(InProgress),
    /// The operation is done: here is its stored result.
    Completed(Saved),
    /// The key was used for another request. The first operation is untouched.
    Mismatch(Mismatch),
    /// The key is absent, but was first sent before the time from which results are kept: it may
    /// have run already. Only for claims with
    /// [`ClaimOptions::first_sent`](crate::ClaimOptions::first_sent).
    TooLate(TooLate),
}

/// The key was used for a request with another fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// Whether the other operation is completed; pending or interrupted otherwise.
    pub completed: bool,
    /// Attempt of the other operation.
    pub attempt: u32,
    /// When it was completed, or when its attempt began.
    pub since: SystemTime,
    /// When the key is free again; `None` unless the other operation is completed.
    pub expires_at: Option<SystemTime>,
}

/// The key is absent and was first sent too long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLate {
    /// When the caller says it was first sent.
    pub first_sent: SystemTime,
    /// What was first sent before this may have been forgotten.
    pub limit: SystemTime,
}

/// Somebody else's operation under way.
#[derive(Debug)]
pub struct InProgress {
    engine: Arc<Opened>,
    request: Request<'static>,
    progress: Progress,
    same_batch: bool,
}

impl Claim {
    /// Whether the caller owns the operation now.
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Started(_) | Self::Interrupted(_))
    }

    /// An answer on its way out. It is counted here, so that what nobody sees (a waiter that looks
    /// again, a future that is dropped) counts for nothing.
    #[inline]
    pub(crate) fn new(engine: &Arc<Opened>, request: Request<'_>, outcome: Outcome) -> Self {
        engine.counters.count(&outcome);
        match outcome {
            Outcome::Started(grant) => Self::Started(Operation::new(Arc::clone(engine), grant)),
            Outcome::Interrupted(grant) => {
                Self::Interrupted(Operation::new(Arc::clone(engine), grant))
            }
            Outcome::InProgress(progress) => Self::InProgress(InProgress {
                engine: Arc::clone(engine),
                request: request.into_owned(),
                progress,
                same_batch: false,
            }),
            Outcome::Completed(stored) => Self::Completed(Saved::new(stored)),
            Outcome::Mismatch {
                attempt,
                completed,
                since_ms,
                expires_ms,
            } => Self::Mismatch(Mismatch {
                completed,
                attempt,
                since: time(since_ms),
                expires_at: expires_ms.map(time),
            }),
            Outcome::TooLate {
                first_sent_ms,
                limit_ms,
            } => Self::TooLate(TooLate {
                first_sent: time(first_sent_ms),
                limit: time(limit_ms),
            }),
        }
    }
}

impl InProgress {
    pub(crate) fn mark_same_batch(&mut self) {
        self.same_batch = true;
    }

    /// When the attempt under way began.
    pub fn since(&self) -> SystemTime {
        time(self.progress.since_ms)
    }

    /// The attempt under way.
    pub fn attempt(&self) -> u32 {
        self.progress.attempt
    }

    /// How long its owner is still presumed alive; `None` with
    /// [`Lease::WhileAlive`](crate::Lease::WhileAlive). A good upper limit for "retry after".
    pub fn lease_left(&self) -> Option<Duration> {
        self.progress.lease_left_ms.map(Duration::from_millis)
    }

    /// Whether the owner is an earlier entry of the same [`claim_many`](crate::Store::claim_many).
    pub fn is_same_batch(&self) -> bool {
        self.same_batch
    }

    /// Blocks until the owner is done or `timeout` is over, then claims again.
    ///
    /// The result is what a claim made then gives: usually [`Claim::Completed`]; `Interrupted` or
    /// `Started` where the owner died, let its lease run out or released the key and this caller is
    /// the one to go on; [`Claim::InProgress`] when time is up. The number of waiters is bounded
    /// by [`Options::max_waiters_per_key`](crate::Options::max_waiters_per_key) and
    /// [`Options::max_waiters`](crate::Options::max_waiters).
    ///
    /// # Errors
    ///
    /// [`ClaimError::TooManyWaiters`] at once where a bound is reached,
    /// [`ClaimError::HeldBySameBatch`] where this would wait for oneself, and whatever a claim
    /// gives.
    pub fn wait(self, timeout: Duration) -> Result<Claim, ClaimError> {
        if self.same_batch {
            return Err(ClaimError::HeldBySameBatch);
        }
        let Self {
            engine,
            mut request,
            ..
        } = self;
        request.level.lead = Lead::Allowed;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let until_ms = engine.time().monotonic_ms().saturating_add(timeout_ms);
        let mut wait = Wait::new(Arc::clone(&engine), &request);
        loop {
            let is_over = wait_until(&engine, &mut wait, until_ms)?;
            let outcome = engine.claim_blocking(&request)?;
            if is_over || !matches!(outcome, Outcome::InProgress(_)) {
                return Ok(Claim::new(&engine, request, outcome));
            }
        }
    }

    /// Waits until the owner is done, then claims again: [`wait`](Self::wait) without a thread.
    ///
    /// It has no time limit of its own; wrap it in your runtime's. Dropping the future gives up the
    /// waiting, and a key that it had just been granted is released.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub async fn wait_async(self) -> Result<Claim, ClaimError> {
        if self.same_batch {
            return Err(ClaimError::HeldBySameBatch);
        }
        let Self {
            engine,
            mut request,
            ..
        } = self;
        request.level.lead = Lead::Never;
        let mut wait = Wait::new(Arc::clone(&engine), &request);
        loop {
            (&mut wait).await?;
            let outcome = engine.claim(&request).await?;
            if !matches!(outcome, Outcome::InProgress(_)) {
                return Ok(Claim::new(&engine, request, outcome));
            }
        }
    }
}

/// Blocks until a new claim may tell more (`false`) or time is up (`true`).
fn wait_until(engine: &Engine, wait: &mut Wait, until_ms: u64) -> Result<bool, ClaimError> {
    use std::cell::RefCell;
    let wait = RefCell::new(wait);
    block_with_timeout(
        |context| {
            if engine.time().monotonic_ms() >= until_ms {
                return Poll::Ready(Ok(true));
            }
            wait.borrow_mut()
                .look(context)
                .map(|looked| looked.map(|()| false))
        },
        || wait.borrow().sleep(until_ms),
    )
}

/// A completed operation.
///
/// The metadata is open; the response is behind a step that states on what ground the caller may
/// see it, because knowing a key gives no right to read another's result:
/// [`by_scope`](Self::by_scope) where the key's scope already names the caller, or
/// [`for_principal`](Self::for_principal) where the result was stored for a principal.
#[derive(Clone, Debug)]
pub struct Saved {
    stored: Stored,
}

impl Saved {
    pub(crate) fn new(stored: Stored) -> Self {
        Self { stored }
    }

    /// When the operation was completed.
    pub fn completed_at(&self) -> SystemTime {
        time(self.stored.completed_ms)
    }

    /// When the key is free again.
    pub fn expires_at(&self) -> SystemTime {
        time(self.stored.expires_ms)
    }

    /// When the operation was first claimed.
    pub fn created_at(&self) -> SystemTime {
        time(self.stored.created_ms)
    }

    /// The attempt that completed it.
    pub fn attempt(&self) -> u32 {
        self.stored.attempt
    }

    /// The token under which it was completed.
    pub fn token(&self) -> Token {
        Token::from_u64(self.stored.token)
    }

    /// The completion's place in the total order of the store's writes.
    pub fn sequence(&self) -> u64 {
        self.stored.sequence
    }

    /// The result, for a caller whom the key's scope already names (tenant and principal are part of
    /// the scope, and the caller was authenticated as that).
    ///
    /// # Errors
    ///
    /// [`AccessDenied::PrincipalRequired`] where it was stored for a principal.
    pub fn by_scope(&self) -> Result<Replay, AccessDenied> {
        match self.stored.principal {
            None => Ok(self.stored.replay.clone()),
            Some(_) => Err(AccessDenied::PrincipalRequired),
        }
    }

    /// The result, for the principal it was stored for.
    ///
    /// # Errors
    ///
    /// [`AccessDenied::OtherPrincipal`] for any other, [`AccessDenied::NoPrincipal`] where it was
    /// stored for none.
    pub fn for_principal(&self, principal: impl AsRef<[u8]>) -> Result<Replay, AccessDenied> {
        match &self.stored.principal {
            None => Err(AccessDenied::NoPrincipal),
            Some(stored) if stored[..] == *principal.as_ref() => Ok(self.stored.replay.clone()),
            Some(_) => Err(AccessDenied::OtherPrincipal),
        }
    }
}

/// Runs an engine's claim and wraps what it gives.
pub(crate) fn claim_blocking(
    engine: &Arc<Opened>,
    request: Request<'_>,
) -> Result<Claim, ClaimError> {
    let outcome = engine.claim_blocking(&request)?;
    Ok(Claim::new(engine, request, outcome))
}

/// [`claim_blocking`] without blocking.
pub(crate) async fn claim_future(
    engine: Arc<Opened>,
    request: Request<'static>,
) -> Result<Claim, ClaimError> {
    let outcome = engine.claim(&request).await?;
    Ok(Claim::new(&engine, request, outcome))
}
