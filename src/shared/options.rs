//! Options of a shared backend.

use std::fmt;
use std::time::Duration;

use crate::limits::{
    LEASE_MAX, RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_MAX, RETENTION_DEFAULT, RETENTION_MAX,
    RETENTION_MIN, WAITERS_DEFAULT, WAITERS_MAX,
};
use crate::options::{ClaimOptions, ClaimOptionsError};
use crate::secret::{DOWNSTREAM, HashSecret};

/// Bytes of the identity, at least.
const IDENTITY_BYTES_MIN: usize = 16;
/// Shortest lease that a guard can keep up by itself over a network.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// Options of a backend that several processes share.
///
/// All processes of a service use the same ones. None is stored.
///
/// ```
/// use std::time::Duration;
/// use oncekey::shared::SharedOptions;
///
/// let options = SharedOptions::new("payments, 7f2c1ab0e9d34f55")
///     .lease(Duration::from_secs(20))
///     .retention(Duration::from_secs(7 * 24 * 60 * 60));
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until a backend is made with them"]
pub struct SharedOptions {
    identity: Vec<u8>,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) response_bytes_max: usize,
    pub(crate) waiters_max: usize,
    pub(crate) poll_max: Duration,
}

/// An option of a shared backend that is out of range. Nothing was sent to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedOptionsError {
    /// The identity is too short to be a secret.
    IdentityTooShort {
        /// Bytes that it has.
        len: usize,
        /// Bytes that it needs.
        min: usize,
    },
    /// The value is outside the range that is allowed: milliseconds, bytes or callers.
    OutOfRange {
        /// The method of [`SharedOptions`] that set it.
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// The smallest value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
    },
}

impl SharedOptions {
    /// The defaults: a lease of 30 seconds, results kept for 24 hours, responses of up to 1 MiB.
    ///
    /// `identity` is a secret of the service, at least 16 bytes, the same in all its processes and
    /// for ever: downstream keys are derived from it. It is not stored, so that they stay the same
    /// when the server loses what it holds.
    pub fn new(identity: impl AsRef<[u8]>) -> Self {
        Self {
            identity: identity.as_ref().to_vec(),
            lease: Duration::from_secs(30),
            retention: RETENTION_DEFAULT,
            response_bytes_max: RESPONSE_BYTES_DEFAULT,
            waiters_max: WAITERS_DEFAULT,
            poll_max: Duration::from_millis(200),
        }
    }

    /// How long after its last renewal the owner of a key is presumed alive: 100 ms to 3,653 days.
    ///
    /// It is the lease of every claim with [`Lease::WhileAlive`](crate::Lease::WhileAlive), which the
    /// guard renews by itself three times in that span. When a process dies its keys are interrupted
    /// after this. A process that the server does not hear of for so long loses its keys while it
    /// still works: take more than the longest pause that you expect, of the process, the network or
    /// the server's failover.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long results answer, from completion, unless a claim or completion says otherwise: 1
    /// second to 3,653 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Bytes of the largest response: up to 16 MiB.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.response_bytes_max = bytes;
        self
    }

    /// Callers of this process that may wait at once. One more gets
    /// [`TooManyWaiters`](crate::ClaimError::TooManyWaiters).
    pub fn max_waiters(mut self, callers: usize) -> Self {
        self.waiters_max = callers;
        self
    }

    /// The longest pause between two looks of a waiter, which begin at 5 ms and become longer: 5 ms
    /// to 60 s.
    pub fn poll(mut self, longest: Duration) -> Self {
        self.poll_max = longest;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), SharedOptionsError> {
        let len = self.identity.len();
        if len < IDENTITY_BYTES_MIN {
            return Err(SharedOptionsError::IdentityTooShort {
                len,
                min: IDENTITY_BYTES_MIN,
            });
        }
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let ranges = [
            ("lease", ms(self.lease), ms(LEASE_MIN), ms(LEASE_MAX)),
            (
                "retention",
                ms(self.retention),
                ms(RETENTION_MIN),
                ms(RETENTION_MAX),
            ),
            (
                "max_response",
                self.response_bytes_max as u64,
                0,
                RESPONSE_BYTES_MAX as u64,
            ),
            (
                "max_waiters",
                self.waiters_max as u64,
                0,
                WAITERS_MAX as u64,
            ),
            ("poll", ms(self.poll_max), 5, 60_000),
        ];
        for (option, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(SharedOptionsError::OutOfRange {
                    option,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }

    pub(crate) fn secret(&self) -> HashSecret {
        let mut secret = [0; 32];
        for (index, chunk) in secret.chunks_exact_mut(16).enumerate() {
            let seed = index as u64 + 1;
            let word = xxhash_rust::xxh3::xxh3_128_with_seed(&self.identity, seed);
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        HashSecret::derive(&secret, DOWNSTREAM)
    }

    /// The lease of a claim in ms, the retention, and whether the guard renews it by itself.
    pub(crate) fn resolve(
        &self,
        options: &ClaimOptions,
    ) -> Result<ResolvedShared, ClaimOptionsError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (lease_ms, retention_ms, first_sent_ms) = options.resolve_shared()?;
        Ok(ResolvedShared {
            lease_ms: lease_ms.unwrap_or_else(|| ms(self.lease)),
            is_renewed: lease_ms.is_none(),
            retention_ms: retention_ms.unwrap_or_else(|| ms(self.retention)),
            first_sent_ms,
        })
    }
}

/// Options of a claim, complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedShared {
    pub(crate) lease_ms: u64,
    pub(crate) is_renewed: bool,
    pub(crate) retention_ms: u64,
    pub(crate) first_sent_ms: Option<u64>,
}

impl fmt::Debug for SharedOptions {
    /// Without the identity, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedOptions")
            .field("lease", &self.lease)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SharedOptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdentityTooShort { len, min } => write!(
                f,
                "the identity has {len} bytes and needs {min}: take a random string, and keep it"
            ),
            Self::OutOfRange {
                option,
                value,
                min,
                max,
            } => write!(
                f,
                "SharedOptions::{option} is {value}; choose from {min} to {max}"
            ),
        }
    }
}

impl std::error::Error for SharedOptionsError {}
