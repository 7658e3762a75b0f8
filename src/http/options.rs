//! What can be set, and the two presets. The builder checks it once; requests only read it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode};

use crate::options::ClaimOptions;

use super::fingerprint::RequestFingerprint;
use super::key_header::KeySyntax;
use super::policy::StatusPolicy;
use super::problem::{ProblemFormat, STRIPE_SHOULD_RETRY};
use super::replay::Replaying;

/// Longest time that a duplicate may be made to wait for the first request: 60 seconds.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes of a request's body that are read by default: 1 MiB.
pub const REQUEST_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of an answer's body that are kept by default: 256 KiB, or less in a store that takes less.
pub const RESPONSE_BYTES_DEFAULT: usize = 256 << 10;

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyRule {
    /// Without one it is answered 400.
    Required,
    /// Without one it goes to the handler as if there were no layer.
    Optional,
}

/// What to do with a request when the store can't take its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum StoreFailure {
    /// Answer 503 with `Retry-After`. The default: no store, no work.
    #[default]
    Refuse,
    /// Run the handler without protection, and count it ([`HttpStats::unprotected`]).
    ///
    /// There is no [`IdempotentOperation`](super::IdempotentOperation) then: a handler takes it as
    /// optional. Only where nothing was claimed and nothing is known of the key: one that is
    /// interrupted, whose record is damaged, or whose claim may have been written, is refused all the
    /// same. The last is so whenever a shared backend fails ([`ClaimError::Backend`]): its server may
    /// have done what it did not answer, so nothing runs without protection there.
    ///
    /// [`ClaimError::Backend`]: crate::ClaimError::Backend
    ///
    /// [`HttpStats::unprotected`]: super::HttpStats::unprotected
    PassThrough,
}

/// Options of one request, where they depend on its route: see
/// [`LayerBuilder::route`](super::LayerBuilder::route). What is not set is as in the layer.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until they are returned"]
pub struct RouteOptions {
    pub(super) is_skipped: bool,
    pub(super) key: Option<KeyRule>,
    pub(super) claim: Option<ClaimOptions>,
    pub(super) wait: Option<Duration>,
    pub(super) request_bytes_max: Option<usize>,
    pub(super) response_bytes_max: Option<usize>,
    pub(super) fingerprint: Option<RequestFingerprint>,
}

impl RouteOptions {
    /// Everything as in the layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The layer does nothing with the request. For event streams and other endless answers, and
    /// for requests that are safe to repeat.
    pub fn skip(mut self) -> Self {
        self.is_skipped = true;
        self
    }

    /// Whether the request must have a key.
    pub fn key(mut self, rule: KeyRule) -> Self {
        self.key = Some(rule);
        self
    }

    /// Retention, lease, durability and the time it was first sent. One that is out of range is
    /// answered 503.
    pub fn claim(mut self, claim: ClaimOptions) -> Self {
        self.claim = Some(claim);
        self
    }

    /// How long a duplicate waits, up to [`WAIT_MAX`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(WAIT_MAX));
        self
    }

    /// Bytes of the request's body.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.request_bytes_max = Some(bytes);
        self
    }

    /// Bytes of the answer's body that are kept, up to what the store takes.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.response_bytes_max = Some(bytes);
        self
    }

    /// How two requests under one key are told apart.
    pub fn fingerprint(mut self, fingerprint: RequestFingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }
}

pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A part of the request's head, found by the user's code.
pub(super) type Find<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

pub(super) type Authorize = Arc<dyn Fn(Replaying) -> BoxFuture<bool> + Send + Sync>;

/// All that is set but scope, interrupted keys and the store.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) names: Vec<HeaderName>,
    pub(super) syntax: KeySyntax,
    pub(super) key_bytes_max: usize,
    pub(super) key: KeyRule,
    pub(super) methods: Vec<Method>,
    pub(super) fingerprint: RequestFingerprint,
    pub(super) request_bytes_max: usize,
    pub(super) response_bytes_max: Option<usize>,
    pub(super) wait: Duration,
    pub(super) retry_after: Duration,
    pub(super) policy: StatusPolicy,
    pub(super) claim: ClaimOptions,
    pub(super) replay_marker: Option<HeaderName>,
    pub(super) expiry: Option<HeaderName>,
    pub(super) should_retry: Option<HeaderName>,
    pub(super) echoes_key: bool,
    pub(super) mismatch: StatusCode,
    pub(super) never_replayed: Vec<HeaderName>,
    pub(super) problems: ProblemFormat,
    pub(super) store_failure: StoreFailure,
    pub(super) route: Option<Find<RouteOptions>>,
    pub(super) operation: Option<Find<String>>,
    pub(super) principal: Option<Find<Option<Vec<u8>>>>,
    pub(super) authorize_replay: Option<Authorize>,
}

impl Settings {
    /// After the IETF draft.
    pub(super) fn ietf() -> Self {
        Self {
            names: vec![HeaderName::from_static("idempotency-key")],
            syntax: KeySyntax::Lenient,
            key_bytes_max: 255,
            key: KeyRule::Required,
            methods: vec![Method::POST, Method::PATCH],
            fingerprint: RequestFingerprint::raw(),
            request_bytes_max: REQUEST_BYTES_DEFAULT,
            response_bytes_max: None,
            wait: Duration::ZERO,
            retry_after: Duration::from_secs(1),
            policy: StatusPolicy::new(),
            claim: ClaimOptions::new(),
            replay_marker: Some(HeaderName::from_static("idempotent-replayed")),
            expiry: Some(HeaderName::from_static("idempotency-expires")),
            should_retry: None,
            echoes_key: false,
            mismatch: StatusCode::UNPROCESSABLE_ENTITY,
            never_replayed: Vec::new(),
            problems: ProblemFormat::problem_json(),
            store_failure: StoreFailure::Refuse,
            route: None,
            operation: None,
            principal: None,
            authorize_replay: None,
        }
    }

    /// What Stripe's clients expect.
    pub(super) fn stripe() -> Self {
        Self {
            key: KeyRule::Optional,
            methods: vec![Method::POST],
            policy: StatusPolicy::stripe(),
            expiry: None,
            should_retry: Some(STRIPE_SHOULD_RETRY),
            echoes_key: true,
            mismatch: StatusCode::BAD_REQUEST,
            problems: ProblemFormat::stripe(),
            ..Self::ietf()
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("names", &self.names)
            .field("syntax", &self.syntax)
            .field("key_bytes_max", &self.key_bytes_max)
            .field("key", &self.key)
            .field("methods", &self.methods)
            .field("fingerprint", &self.fingerprint)
            .field("request_bytes_max", &self.request_bytes_max)
            .field("response_bytes_max", &self.response_bytes_max)
            .field("wait", &self.wait)
            .field("policy", &self.policy)
            .field("claim", &self.claim)
            .field("problems", &self.problems)
            .field("store_failure", &self.store_failure)
            .finish_non_exhaustive()
    }
}
