//! A claim that knows how to wait: for an embedded store without claiming a second time.

use std::time::Duration;

use crate::backend::{AnyBackend, AnyGuard, Backend, Outcome, Progress};
use crate::claim::{Claim, InProgress};
use crate::error::ClaimError;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::options::ClaimOptions;

/// The outcome of a claim.
pub(super) enum Claimed {
    /// Never [`Outcome::InProgress`].
    Decided(Outcome<AnyGuard>),
    Waiting(Waiting),
}

/// Somebody else at work.
pub(super) enum Waiting {
    Embedded(InProgress),
    Other(Box<Again>),
}

/// A claim to be made again.
pub(super) struct Again {
    backend: AnyBackend,
    key: Key,
    fingerprint: Fingerprint,
    options: ClaimOptions,
    progress: Progress,
}

impl Claimed {
    pub(super) async fn by(
        backend: &AnyBackend,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Self, ClaimError> {
        if let Some(store) = backend.embedded() {
            let claim = store.claim_with_async(key, fingerprint, options).await?;
            return Ok(claim.into());
        }
        Ok(
            match backend.claim(key, fingerprint, options.clone()).await? {
                Outcome::InProgress(progress) => Self::Waiting(Waiting::Other(Box::new(Again {
                    backend: backend.clone(),
                    key: key.clone(),
                    fingerprint,
                    options,
                    progress,
                }))),
                outcome => Self::Decided(outcome),
            },
        )
    }
}

impl From<Claim> for Claimed {
    fn from(claim: Claim) -> Self {
        match claim {
            Claim::InProgress(progress) => Self::Waiting(Waiting::Embedded(progress)),
            claim => Self::Decided(Outcome::from(claim).map(AnyGuard::from)),
        }
    }
}

impl Waiting {
    /// How long the owner is still presumed alive; `None` where nothing limits that.
    pub(super) fn lease_left(&self) -> Option<Duration> {
        match self {
            Self::Embedded(progress) => progress.lease_left(),
            Self::Other(again) => again.progress.lease_left,
        }
    }

    pub(super) async fn wait(self) -> Result<Claimed, ClaimError> {
        match self {
            Self::Embedded(progress) => Ok(progress.wait_async().await?.into()),
            Self::Other(again) => {
                let Again {
                    backend,
                    key,
                    fingerprint,
                    options,
                    ..
                } = *again;
                let outcome = backend.wait(&key, fingerprint, options).await?;
                Ok(Claimed::Decided(outcome))
            }
        }
    }
}
