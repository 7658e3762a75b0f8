//! The layer's own answers: `application/problem+json` (RFC 9457), or the shape a service's clients
//! know already.
//!
//! No key, and nothing else of the request, is repeated in them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Where the types of problems are described unless another place is named.
const TYPES: &str = "https://docs.rs/oncekey/latest/oncekey/http/enum.ProblemKind.html#variant.";

/// What kept the layer from handing a request to the handler, or its answer to the client.
///
/// A client decides by the status: 409 with `Retry-After` and 503 are repeated *with the same key*,
/// everything else is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// 400: the route needs a key and the request has none.
    KeyMissing,
    /// 400: the key's header is empty, too long, malformed, or sent more than once.
    KeyInvalid,
    /// 413: the request's body is over the limit. Nothing was claimed.
    BodyTooLarge,
    /// 400: the request's body broke off. Nothing was claimed.
    BodyUnreadable,
    /// 403: nobody said who the caller is, so his keys can't be told from others'.
    CallerUnknown,
    /// 422 (400 in the preset `stripe`): the key was used for another request.
    KeyReused,
    /// 409 with `Retry-After`: the first request with this key is still at work.
    InProgress,
    /// 500: an earlier attempt was interrupted and nobody knows what it did. The handler was not
    /// run again; somebody has to look.
    OutcomeUnknown,
    /// 410: the operation is done, but its answer was not kept. The handler was not run again.
    NotReplayable,
    /// 403: the stored answer is not for this caller, or not any more.
    ReplayRefused,
    /// 409: the key is older than answers are kept, so the operation may have run already.
    TooLate,
    /// 503 with `Retry-After`: the store refused, so the handler was not run, or its answer could
    /// not be stored. The same key finds out which.
    Unavailable,
}

impl ProblemKind {
    /// The last part of the problem's type.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyMissing => "KeyMissing",
            Self::KeyInvalid => "KeyInvalid",
            Self::BodyTooLarge => "BodyTooLarge",
            Self::BodyUnreadable => "BodyUnreadable",
            Self::CallerUnknown => "CallerUnknown",
            Self::KeyReused => "KeyReused",
            Self::InProgress => "InProgress",
            Self::OutcomeUnknown => "OutcomeUnknown",
            Self::NotReplayable => "NotReplayable",
            Self::ReplayRefused => "ReplayRefused",
            Self::TooLate => "TooLate",
            Self::Unavailable => "Unavailable",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::CallerUnknown | Self::ReplayRefused => StatusCode::FORBIDDEN,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InProgress | Self::TooLate => StatusCode::CONFLICT,
            Self::OutcomeUnknown => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotReplayable => StatusCode::GONE,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "The idempotency key is missing",
            Self::KeyInvalid => "The idempotency key is invalid",
            Self::BodyTooLarge => "The body is too large",
            Self::BodyUnreadable => "The body did not arrive",
            Self::CallerUnknown => "The caller is not known",
            Self::KeyReused => "The idempotency key was used for another request",
            Self::InProgress => "A request with this idempotency key is in progress",
            Self::OutcomeUnknown => "The outcome of the first request is not known",
            Self::NotReplayable => "The request was carried out; its answer is gone",
            Self::ReplayRefused => "The stored answer may not be seen",
            Self::TooLate => "The idempotency key is too old",
            Self::Unavailable => "The service cannot take this request at the moment",
        }
    }
}

/// One problem on its way to the client, for [`ProblemFormat::custom`].
#[derive(Clone, Debug)]
pub struct Problem {
    kind: ProblemKind,
    status: StatusCode,
    detail: Cow<'static, str>,
    retry_after_secs: Option<u64>,
}

impl Problem {
    pub(super) fn new(kind: ProblemKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            status: kind.status(),
            detail: detail.into(),
            retry_after_secs: None,
        }
    }

    pub(super) fn unavailable() -> Self {
        Self::new(
            ProblemKind::Unavailable,
            "Repeat the request with the same key.",
        )
        .retry_after(1)
    }

    pub(super) fn retry_after(mut self, secs: u64) -> Self {
        self.retry_after_secs = Some(secs);
        self
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// What is the matter.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The answer's status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// One line for every problem of its kind.
    pub fn title(&self) -> &'static str {
        self.kind.title()
    }

    /// What the client can do about it.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// In how many seconds to ask again, where that helps.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after_secs
    }
}

type Render = Arc<dyn Fn(&Problem) -> Response<Bytes> + Send + Sync>;

/// How problems are written.
#[derive(Clone)]
pub struct ProblemFormat {
    shape: Shape,
    link: Option<HeaderValue>,
}

#[derive(Clone)]
enum Shape {
    ProblemJson { types: Cow<'static, str> },
    Stripe,
    Custom(Render),
}

impl ProblemFormat {
    /// `application/problem+json` with `type`, `title`, `status` and `detail`; the types are
    /// described in this documentation.
    pub fn problem_json() -> Self {
        Self::problem_json_at(TYPES)
    }

    /// As [`problem_json`](Self::problem_json), with types of your own: `base` and the
    /// [kind's name](ProblemKind::name), one after the other.
    pub fn problem_json_at(base: impl Into<Cow<'static, str>>) -> Self {
        Self::of(Shape::ProblemJson { types: base.into() })
    }

    /// Stripe's error object: `{"error":{"type":"idempotency_error","code":…,"message":…}}`.
    pub fn stripe() -> Self {
        Self::of(Shape::Stripe)
    }

    /// Whatever `render` makes of it. `Retry-After` is added where the problem has one.
    pub fn custom(render: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self::of(Shape::Custom(Arc::new(render)))
    }

    /// Adds `Link: <uri>; rel="describedby"`, the address of your documentation of keys.
    ///
    /// # Errors
    ///
    /// Where `uri` can't stand in a header.
    pub fn described_by(mut self, uri: &str) -> Result<Self, http::header::InvalidHeaderValue> {
        self.link = Some(HeaderValue::try_from(format!(
            "<{uri}>; rel=\"describedby\""
        ))?);
        Ok(self)
    }

    fn of(shape: Shape) -> Self {
        Self { shape, link: None }
    }

    pub(super) fn render(&self, problem: &Problem) -> Response<Bytes> {
        let mut response = match &self.shape {
            Shape::ProblemJson { types } => {
                let body = json!({
                    "type": format!("{types}{}", problem.kind.name()),
                    "title": problem.title(),
                    "status": problem.status.as_u16(),
                    "detail": problem.detail,
                });
                written(problem.status, PROBLEM_JSON, &body)
            }
            Shape::Stripe => written(problem.status, JSON, &stripe(problem)),
            Shape::Custom(render) => render(problem),
        };
        let headers = response.headers_mut();
        if let Some(secs) = problem.retry_after_secs {
            headers.insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        if let Some(link) = &self.link {
            headers.append(LINK, link.clone());
        }
        response
    }
}

impl fmt::Debug for ProblemFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.shape {
            Shape::ProblemJson { .. } => "ProblemFormat::ProblemJson",
            Shape::Stripe => "ProblemFormat::Stripe",
            Shape::Custom(_) => "ProblemFormat::Custom",
        })
    }
}

fn stripe(problem: &Problem) -> Value {
    let kind = match problem.kind {
        ProblemKind::KeyReused | ProblemKind::InProgress => "idempotency_error",
        _ if problem.status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let code = match problem.kind {
        ProblemKind::InProgress => "idempotency_key_in_use",
        other => other.name(),
    };
    json!({ "error": { "type": kind, "code": code, "message": problem.detail } })
}

fn written(status: StatusCode, content_type: HeaderValue, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Tells Stripe's clients whether a repetition can help.
pub(super) const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");
