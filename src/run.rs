//! Claim, work, complete in one call.

use std::fmt;
use std::time::Duration;

use crate::claim::{Claim, Mismatch, Saved, TooLate};
use crate::error::{ClaimError, FinishError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::operation::Operation;
use crate::options::ClaimOptions;
use crate::store::Store;

/// What `run` does with a key whose earlier attempt was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnInterrupted {
    /// Give the error [`RunError::Interrupted`] with the guard inside: the caller reconciles. The
    /// default, because only the caller knows what a half-done operation may have done.
    #[default]
    Fail,
    /// Call the work again. It sees [`Operation::previous`] and must be safe to repeat, for example
    /// by [`Operation::downstream_key`].
    Rerun,
}

/// How `run` claims, waits and goes on.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub(crate) claim: ClaimOptions,
    pub(crate) wait: Duration,
    pub(crate) on_interrupted: OnInterrupted,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            claim: ClaimOptions::new(),
            wait: Duration::from_secs(30),
            on_interrupted: OnInterrupted::Fail,
        }
    }
}

impl RunOptions {
    /// The defaults: wait up to 30 seconds for a duplicate in progress, fail on an interrupted key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Options of the claim.
    pub fn claim(mut self, claim: ClaimOptions) -> Self {
        self.claim = claim;
        self
    }

    /// How long a duplicate waits for the one in progress (blocking `run` only; the async one waits
    /// until it is done or dropped).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// What to do with an interrupted key.
    pub fn on_interrupted(mut self, policy: OnInterrupted) -> Self {
        self.on_interrupted = policy;
        self
    }
}

/// Why `run` has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The work failed. Its key is interrupted: whether it did something only the caller knows.
    /// Work that knows that nothing happened uses [`Store::claim`] and [`Operation::release`].
    Work(E),
    /// An earlier attempt was interrupted; the guard is inside.
    Interrupted(Box<Operation>),
    /// Another caller is still at work after the time to wait.
    InProgress,
    /// The key was used for another request.
    Mismatch(Mismatch),
    /// The key is absent but was first sent too long ago.
    TooLate(TooLate),
    /// The claim failed; the work did not run.
    Claim(ClaimError),
    /// The work ran, but its result could not be stored.
    Finish(FinishError),
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "the work failed: {error}"),
            Self::Interrupted(operation) => write!(
                f,
                "attempt {} was interrupted and its outcome is unknown",
                operation.attempt().saturating_sub(1)
            ),
            Self::InProgress => f.write_str("another caller is still at work on this key"),
            Self::Mismatch(_) => f.write_str("the key was used for another request"),
            Self::TooLate(_) => f.write_str("the request was first sent too long ago"),
            Self::Claim(error) => error.fmt(f),
            Self::Finish(error) => write!(f, "the result could not be stored: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Work(error) => Some(error),
            Self::Claim(error) => Some(error),
            Self::Finish(error) => Some(error),
            _ => None,
        }
    }
}

/// What a claim leaves to do: the one place that decides it for both forms of `run`.
enum Next {
    Work(Operation),
    Done(Saved),
}

fn decide<E>(claim: Claim, policy: OnInterrupted) -> Result<Next, RunError<E>> {
    match claim {
        Claim::Started(operation) => Ok(Next::Work(operation)),
        Claim::Interrupted(operation) => match policy {
            OnInterrupted::Rerun => Ok(Next::Work(operation)),
            OnInterrupted::Fail => Err(RunError::Interrupted(Box::new(operation))),
        },
        Claim::InProgress(_) => Err(RunError::InProgress),
        Claim::Completed(saved) => Ok(Next::Done(saved)),
        Claim::Mismatch(mismatch) => Err(RunError::Mismatch(mismatch)),
        Claim::TooLate(too_late) => Err(RunError::TooLate(too_late)),
    }
}

pub(crate) fn run<R: AsRef<[u8]>, E>(
    store: &Store,
    key: &Key,
    fingerprint: Fingerprint,
    options: RunOptions,
    work: impl FnOnce(&mut Operation) -> Result<R, E>,
) -> Result<Saved, RunError<E>> {
    let mut claim = store
        .claim_with(key, fingerprint, options.claim)
        .map_err(RunError::Claim)?;
    if let Claim::InProgress(progress) = claim {
        claim = progress.wait(options.wait).map_err(RunError::Claim)?;
    }
    let mut operation = match decide(claim, options.on_interrupted)? {
        Next::Work(operation) => operation,
        Next::Done(saved) => return Ok(saved),
    };
    let response = work(&mut operation).map_err(RunError::Work)?;
    operation.complete(response).map_err(RunError::Finish)
}

pub(crate) async fn run_async<R: AsRef<[u8]>, E>(
    store: &Store,
    key: &Key,
    fingerprint: Fingerprint,
    options: RunOptions,
    work: impl AsyncFnOnce(&mut Operation) -> Result<R, E>,
) -> Result<Saved, RunError<E>> {
    let mut claim = store
        .claim_with_async(key, fingerprint, options.claim)
        .await
        .map_err(RunError::Claim)?;
    if let Claim::InProgress(progress) = claim {
        claim = progress.wait_async().await.map_err(RunError::Claim)?;
    }
    let mut operation = match decide(claim, options.on_interrupted)? {
        Next::Work(operation) => operation,
        Next::Done(saved) => return Ok(saved),
    };
    let response = work(&mut operation).await.map_err(RunError::Work)?;
    operation
        .complete_async(response)
        .await
        .map_err(RunError::Finish)
}
