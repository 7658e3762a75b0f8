//! The layer in the making. What has to be decided is a type, so that a layer without a decision does
//! not compile; what can be wrong otherwise is checked once, when it is built.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode};

use crate::backend::{AnyBackend, Backend};
use crate::options::{ClaimOptions, ClaimOptionsError};

use super::fingerprint::RequestFingerprint;
use super::interrupted::OnInterrupted;
use super::key_header::KeySyntax;
use super::layer::{IdempotencyLayer, Shared};
use super::metrics::{Counters, Tasks};
use super::options::{
    KeyRule, RESPONSE_BYTES_DEFAULT, RouteOptions, Settings, StoreFailure, WAIT_MAX,
};
use super::policy::StatusPolicy;
use super::problem::ProblemFormat;
use super::replay::Replaying;
use super::scope::Scope;

/// Bytes a store must take for a part of a key: the operation's digest needs room.
const KEY_PART_BYTES_MIN: usize = 64;

/// In the place of a decision that is still to be made.
#[derive(Clone, Copy, Debug)]
pub struct Undecided;

/// A layer in the making, from [`IdempotencyLayer::new`].
///
/// Clones can be given to routes with options of their own; their layers
/// [count](IdempotencyLayer::stats) together.
#[derive(Clone)]
#[must_use = "there is no layer before `build`"]
pub struct LayerBuilder<S, I> {
    backend: AnyBackend,
    scope: S,
    on_interrupted: I,
    settings: Settings,
    counters: Arc<Counters>,
    tasks: Arc<Tasks>,
}

impl LayerBuilder<Undecided, Undecided> {
    pub(super) fn new(backend: AnyBackend) -> Self {
        Self {
            backend,
            scope: Undecided,
            on_interrupted: Undecided,
            settings: Settings::ietf(),
            counters: Arc::default(),
            tasks: Arc::default(),
        }
    }
}

impl<S, I> LayerBuilder<S, I> {
    /// Decides who the caller is.
    pub fn scope(self, scope: Scope) -> LayerBuilder<Scope, I> {
        LayerBuilder {
            backend: self.backend,
            scope,
            on_interrupted: self.on_interrupted,
            settings: self.settings,
            counters: self.counters,
            tasks: self.tasks,
        }
    }

    /// Decides what happens to a request whose earlier attempt was interrupted.
    pub fn on_interrupted(self, on_interrupted: OnInterrupted) -> LayerBuilder<S, OnInterrupted> {
        LayerBuilder {
            backend: self.backend,
            scope: self.scope,
            on_interrupted,
            settings: self.settings,
            counters: self.counters,
            tasks: self.tasks,
        }
    }

    /// Everything else as the IETF draft has it, the default: a key is required, POST and PATCH,
    /// `application/problem+json`, 422 for a key used for another request.
    pub fn ietf(self) -> Self {
        self.with(|settings| *settings = Settings::ietf())
    }

    /// Everything else as Stripe's clients expect it: a key is optional, POST, a 500 is stored,
    /// Stripe's error object, 400 for a key used for another request, the key's header sent back,
    /// `Stripe-Should-Retry: false` on a 5xx that is replayed.
    pub fn stripe(self) -> Self {
        self.with(|settings| *settings = Settings::stripe())
    }

    /// The header of the key. `Idempotency-Key` by default.
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|settings| settings.names = vec![name])
    }

    /// One more name for the key's header. A request may have one of them, once.
    pub fn alias(self, name: HeaderName) -> Self {
        self.with(|settings| settings.names.push(name))
    }

    /// Which forms of a key are taken: lenient by default.
    pub fn syntax(self, syntax: KeySyntax) -> Self {
        self.with(|settings| settings.syntax = syntax)
    }

    /// Bytes of a key: 255 by default, up to what the store takes.
    pub fn max_key(self, bytes: usize) -> Self {
        self.with(|settings| settings.key_bytes_max = bytes)
    }

    /// Whether a request must have a key.
    pub fn key(self, rule: KeyRule) -> Self {
        self.with(|settings| settings.key = rule)
    }

    /// The methods that are covered; all others go to the handler untouched. GET, HEAD, OPTIONS,
    /// TRACE and CONNECT can't be.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// How two requests under one key are told apart: by their bytes, by default.
    pub fn fingerprint(self, fingerprint: RequestFingerprint) -> Self {
        self.with(|settings| settings.fingerprint = fingerprint)
    }

    /// Bytes of a request's body, which is read before anything is claimed: 1 MiB by default. Above
    /// it the answer is 413.
    pub fn max_request(self, bytes: usize) -> Self {
        self.with(|settings| settings.request_bytes_max = bytes)
    }

    /// Bytes of an answer's body that are kept: 256 KiB by default, up to what the store takes. The
    /// first caller gets a larger one whole, and a retry gets 410.
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|settings| settings.response_bytes_max = Some(bytes))
    }

    /// How long a duplicate waits for the first request before it gets 409: not at all by default,
    /// [`WAIT_MAX`] at most.
    ///
    /// A waiter holds no thread. How many may wait is up to the store
    /// ([`Options::max_waiters_per_key`](crate::Options::max_waiters_per_key)); one too many gets 409
    /// at once. Needs a tokio runtime with its timer enabled.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait = wait)
    }

    /// The `Retry-After` of a 409, in whole seconds: 1 by default, and never longer than the first
    /// request's lease lasts.
    pub fn retry_after(self, retry_after: Duration) -> Self {
        self.with(|settings| settings.retry_after = retry_after)
    }

    /// What becomes of a key, by the status of the answer.
    pub fn status_policy(self, policy: StatusPolicy) -> Self {
        self.with(|settings| settings.policy = policy)
    }

    /// Retention, lease and durability of every claim. What is not set is as in the store.
    pub fn claim(self, claim: ClaimOptions) -> Self {
        self.with(|settings| settings.claim = claim)
    }

    /// The header that marks a replay with `true`: `Idempotent-Replayed` by default, `None` for no
    /// mark. First answers don't have it.
    pub fn replay_marker(self, name: impl Into<Option<HeaderName>>) -> Self {
        self.with(|settings| settings.replay_marker = name.into())
    }

    /// The header that tells until when an answer is replayed, as an HTTP date:
    /// `Idempotency-Expires` by default in `ietf`, none in `stripe`. First answers that are passed
    /// on while they are made don't have it.
    pub fn expiry_header(self, name: impl Into<Option<HeaderName>>) -> Self {
        self.with(|settings| settings.expiry = name.into())
    }

    /// Sends the key's header back with every answer to a request that has one.
    pub fn echo_key(self, echo: bool) -> Self {
        self.with(|settings| settings.echoes_key = echo)
    }

    /// The status for a key that was used for another request: 422 in `ietf`, 400 in `stripe`.
    pub fn mismatch_status(self, status: StatusCode) -> Self {
        self.with(|settings| settings.mismatch = status)
    }

    /// Headers of answers that are not stored, in addition to those that never are.
    pub fn never_replay(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.never_replayed.extend(names))
    }

    /// How the layer's own answers are written.
    pub fn problems(self, format: ProblemFormat) -> Self {
        self.with(|settings| settings.problems = format)
    }

    /// What to do when the store can't take a claim.
    pub fn store_failure(self, failure: StoreFailure) -> Self {
        self.with(|settings| settings.store_failure = failure)
    }

    /// Options by route: found from the request's head, before anything else is done.
    ///
    /// Where a router can put a layer of its own on a route, that is simpler: clone the builder.
    pub fn route(self, options: impl Fn(&Parts) -> RouteOptions + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.route = Some(Arc::new(options)))
    }

    /// The operation part of keys, in the place of [`operation_name`](super::operation_name).
    ///
    /// For routers that cut a prefix off the path before the layer sees it (`nest` of axum does,
    /// where the layer is on the inner router): two of them would share keys.
    pub fn operation(self, operation: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.operation = Some(Arc::new(operation)))
    }

    /// For whom answers are stored, within a scope: only requests with the same principal get them.
    ///
    /// For scopes that are a whole tenant. `None` refuses a request with 403, as does an empty one
    /// and one of more than 255 bytes. It is kept with the answer: an interrupted operation has
    /// none yet, and goes to whoever in the scope repeats it.
    pub fn principal<T: Into<Vec<u8>>>(
        self,
        principal: impl Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| {
            settings.principal = Some(Arc::new(move |parts| principal(parts).map(Into::into)));
        })
    }

    /// Asked before every replay; `false` refuses it with 403. For rights that may be withdrawn while
    /// an answer is kept.
    pub fn authorize_replay<F, Decision>(self, authorize: F) -> Self
    where
        F: Fn(Replaying) -> Decision + Send + Sync + 'static,
        Decision: Future<Output = bool> + Send + 'static,
    {
        self.with(|settings| {
            settings.authorize_replay =
                Some(Arc::new(move |replaying| Box::pin(authorize(replaying))));
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }
}

impl LayerBuilder<Scope, OnInterrupted> {
    /// The layer.
    ///
    /// # Errors
    ///
    /// [`LayerError`] for an option out of range.
    pub fn build(self) -> Result<IdempotencyLayer, LayerError> {
        let limits = self.backend.limits();
        let mut settings = self.settings;
        if let Some(method) = settings.methods.iter().find(|method| is_safe(method)) {
            return Err(LayerError::SafeMethod(method.clone()));
        }
        let limit = |option, value: usize, min, max| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(LayerError::OutOfRange {
                option,
                value,
                min,
                max,
            }),
        };
        let part_max = limits.key_part_bytes;
        limit(
            "max_key_part of the store",
            part_max,
            KEY_PART_BYTES_MIN,
            usize::MAX,
        )?;
        limit("max_key", settings.key_bytes_max, 1, part_max)?;
        let response_max = limits.response_bytes;
        let response = settings
            .response_bytes_max
            .unwrap_or(RESPONSE_BYTES_DEFAULT.min(response_max));
        limit("max_response", response, 0, response_max)?;
        settings.response_bytes_max = Some(response);
        if settings.wait > WAIT_MAX {
            return Err(LayerError::Wait(settings.wait));
        }
        if !settings.mismatch.is_client_error() {
            return Err(LayerError::MismatchStatus(settings.mismatch));
        }
        let checked = self.backend.check(&settings.claim);
        checked.map_err(LayerError::Claim)?;
        Ok(IdempotencyLayer {
            shared: Arc::new(Shared {
                backend: self.backend,
                limits,
                settings,
                scope: self.scope,
                on_interrupted: self.on_interrupted,
                counters: self.counters,
                tasks: self.tasks,
            }),
        })
    }
}

fn is_safe(method: &Method) -> bool {
    method.is_safe() || method == Method::CONNECT
}

impl<S: fmt::Debug, I: fmt::Debug> fmt::Debug for LayerBuilder<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder")
            .field("scope", &self.scope)
            .field("on_interrupted", &self.on_interrupted)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Why a layer can't be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerError {
    /// A method that is safe by itself, or opens a tunnel: leave it out.
    SafeMethod(Method),
    /// A number that is out of range.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// What it is set to.
        value: usize,
        /// The least.
        min: usize,
        /// The most; where the store sets it, raise it there.
        max: usize,
    },
    /// Duplicates would wait longer than [`WAIT_MAX`].
    Wait(Duration),
    /// The status for a key used for another request is not a 4xx.
    MismatchStatus(StatusCode),
    /// An option of the claims is out of range.
    Claim(ClaimOptionsError),
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SafeMethod(method) => {
                write!(f, "{method} needs no keys: leave it out of the methods")
            }
            Self::OutOfRange {
                option,
                value,
                min,
                max,
            } => {
                write!(f, "{option} is {value} bytes; choose at least {min}")?;
                match *max {
                    usize::MAX => Ok(()),
                    max => write!(f, " and, in this store, at most {max}"),
                }
            }
            Self::Wait(wait) => write!(
                f,
                "duplicates would wait for {wait:?}; choose {WAIT_MAX:?} or less"
            ),
            Self::MismatchStatus(status) => write!(
                f,
                "{status} says nothing about the client's mistake; choose a 4xx"
            ),
            Self::Claim(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LayerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Claim(error) => Some(error),
            _ => None,
        }
    }
}
