//! An inbox in the making. What has to be decided is a type, so that an inbox without a decision does
//! not compile; what can be wrong otherwise is checked once, when it is built.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{AnyBackend, Backend};
use crate::inbox::Inbox;
use crate::inbox::interrupted::OnInterrupted;
use crate::inbox::note::MARKER_BYTES_MAX;
use crate::inbox::process::Shared;
use crate::key::{Key, KeyError};
use crate::options::{ClaimOptions, ClaimOptionsError, Durability};
use crate::store::Store;
use crate::sync::Mutex;

/// How often a handler is started for one event by default: 5.
pub const ATTEMPTS_DEFAULT: u32 = 5;
/// How long the first retry of an event waits by default: 1 second.
pub const BACKOFF_FIRST_DEFAULT: Duration = Duration::from_secs(1);
/// How long any retry of an event waits at most by default: 5 minutes.
pub const BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// In the place of a decision that is still to be made.
#[derive(Clone, Copy, Debug)]
pub struct Undecided;

/// An inbox in the making, from [`Inbox::builder`].
#[derive(Clone, Debug)]
#[must_use = "there is no inbox before `build`"]
pub struct InboxBuilder<I, B = Store> {
    backend: AnyBackend,
    kind: PhantomData<fn() -> B>,
    consumer: Vec<u8>,
    scope: Vec<u8>,
    on_interrupted: I,
    attempts_max: u32,
    backoff: (Duration, Duration),
    claim: ClaimOptions,
}

impl<B: Backend> InboxBuilder<Undecided, B> {
    pub(super) fn new(backend: B, consumer: Vec<u8>) -> Self {
        Self {
            backend: AnyBackend::new(backend),
            kind: PhantomData,
            consumer,
            scope: Vec::new(),
            on_interrupted: Undecided,
            attempts_max: ATTEMPTS_DEFAULT,
            backoff: (BACKOFF_FIRST_DEFAULT, BACKOFF_MAX_DEFAULT),
            claim: ClaimOptions::new(),
        }
    }
}

impl<I, B: Backend> InboxBuilder<I, B> {
    /// Decides what happens to an event whose earlier attempt was interrupted.
    pub fn on_interrupted(self, on_interrupted: OnInterrupted) -> InboxBuilder<OnInterrupted, B> {
        InboxBuilder {
            backend: self.backend,
            kind: PhantomData,
            consumer: self.consumer,
            scope: self.scope,
            on_interrupted,
            attempts_max: self.attempts_max,
            backoff: self.backoff,
            claim: self.claim,
        }
    }

    /// Where the events come from: the topic or queue, the account at the sender. None by default.
    ///
    /// Two sources may use the same ids; where ids are unique only within one, name it.
    pub fn scope(mut self, scope: impl AsRef<[u8]>) -> Self {
        self.scope = scope.as_ref().to_vec();
        self
    }

    /// How often the handler is started for one event before it is a dead letter: at least 1,
    /// [`ATTEMPTS_DEFAULT`] by default.
    ///
    /// A start counts whatever becomes of it: a failure, a panic, the death of the process. So an
    /// event that kills its consumer comes to its end too.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// How long an event waits for its next attempt, after the first and at most: `first`, then twice
    /// that, four times, up to `max`. By default [`BACKOFF_FIRST_DEFAULT`] and
    /// [`BACKOFF_MAX_DEFAULT`].
    ///
    /// There is no jitter in it, so that it can be relied on; add your own where many events fail at
    /// once.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = (first, max);
        self
    }

    /// Retention, lease and durability of every event. What is not set is as in the store.
    ///
    /// The retention is how long a processed event is remembered: make it longer than the broker can
    /// take to deliver one again. With [`Lease::For`](crate::Lease::For) a handler that hangs loses
    /// its event, and one that works for longer has to [renew](super::Event::renew).
    pub fn claim(mut self, claim: ClaimOptions) -> Self {
        self.claim = claim;
        self
    }
}

impl<B: Backend> InboxBuilder<OnInterrupted, B> {
    /// The inbox.
    ///
    /// # Errors
    ///
    /// [`InboxError`] for an option out of range.
    pub fn build(self) -> Result<Inbox<B>, InboxError> {
        let limits = self.backend.limits();
        let checked = self.backend.check(&self.claim);
        checked.map_err(InboxError::Claim)?;
        let key = Key::new(&self.scope, &self.consumer, "event").map_err(InboxError::Name)?;
        key.check(limits.key_part_bytes).map_err(InboxError::Name)?;
        let (needed, max) = (MARKER_BYTES_MAX, limits.response_bytes);
        if needed > max {
            return Err(InboxError::ResponseLimit { needed, max });
        }
        if self.attempts_max == 0 {
            return Err(InboxError::NoAttempts);
        }
        let (first, max) = self.backoff;
        if first.is_zero() || first > max {
            return Err(InboxError::Backoff { first, max });
        }
        Ok(Inbox {
            kind: PhantomData,
            shared: Arc::new(Shared {
                durability: durability(&self.backend, &self.claim),
                backend: self.backend,
                scope: self.scope,
                consumer: self.consumer,
                on_interrupted: self.on_interrupted,
                attempts_max: self.attempts_max,
                backoff: self.backoff,
                claim: self.claim,
                redrives: Mutex::new(()),
            }),
        })
    }
}

/// Of each claim, and of what is told to the broker. A shared backend knows one level only, its own.
fn durability(backend: &AnyBackend, claim: &ClaimOptions) -> Durability {
    let chosen = backend
        .embedded()
        .and_then(|store| claim.resolve(store.settings()).ok());
    chosen.map_or(Durability::Buffered, |claim| claim.durability)
}

/// An inbox that can't be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboxError {
    /// The name of the consumer or the scope is longer than this store takes.
    Name(KeyError),
    /// Retention or lease are out of range.
    Claim(ClaimOptionsError),
    /// The store keeps only shorter responses than a dead letter is remembered by:
    /// [`Options::max_response`](crate::Options::max_response).
    ResponseLimit {
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that the store keeps.
        max: usize,
    },
    /// `max_attempts` is 0: no event would ever be handled.
    NoAttempts,
    /// The backoff begins at zero, or above its own end.
    Backoff {
        /// Its beginning.
        first: Duration,
        /// Its end.
        max: Duration,
    },
}

impl fmt::Display for InboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Claim(error) => error.fmt(f),
            Self::ResponseLimit { needed, max } => write!(
                f,
                "the store keeps responses of up to {max} bytes and the inbox needs {needed}; raise \
                 Options::max_response"
            ),
            Self::NoAttempts => f.write_str("max_attempts is 0; choose at least 1"),
            Self::Backoff { first, max } => write!(
                f,
                "the backoff goes from {first:?} to {max:?}; begin above zero and not above its end"
            ),
        }
    }
}

impl std::error::Error for InboxError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Claim(error) => Some(error),
            Self::ResponseLimit { .. } | Self::NoAttempts | Self::Backoff { .. } => None,
        }
    }
}
