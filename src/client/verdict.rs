//! What an answer, or the lack of one, says about the operation: the one place that decides it.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, StatusCode};

use super::retry_after::retry_after;

/// Servers that know whether a retry helps say so in one of these, `true` or `false`.
static SHOULD_RETRY: [HeaderName; 2] = [
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("stripe-should-retry"),
];

/// Why an attempt has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The connection was not made, or broke: whether the request arrived may be unknown.
    Connection,
    /// No answer came in time.
    TimeOut,
    /// Something that a repetition meets again: a request that can't be built, too many redirects,
    /// another middleware that refuses.
    Other,
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The operation is decided, for better or worse: it is not sent again.
    Final,
    /// Nothing is decided, and the same request may be sent again, not before `retry_after` if the
    /// server named a time.
    Again {
        /// What the server asks for.
        retry_after: Option<Duration>,
    },
    /// Nothing is decided, and sending it again at once does not help: missing rights, a server that
    /// failed half-way. Somebody has to look, or the operation is resumed later with the same key.
    Open,
}

impl Verdict {
    /// What an answer says.
    ///
    /// | answer | verdict |
    /// |---|---|
    /// | 2xx, 3xx but those below | final |
    /// | 307, 308: to be sent elsewhere, and not carried out here | open |
    /// | 4xx or 5xx with `X-Should-Retry` or `Stripe-Should-Retry`: `true` | again |
    /// | 429, 502, 503, 504 | again; open with the hint `false` |
    /// | 409 with a `Retry-After` that can be read: in progress | again; open with the hint `false` |
    /// | other 409, 401, 403, 407, 408, 425 | open |
    /// | other 4xx | final |
    /// | other 5xx, 1xx | open |
    ///
    /// `now` is for a `Retry-After` with a date where the answer has no `Date`.
    #[must_use]
    pub fn of(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        // RFC 9110, 15.4.8 and 15.4.9: the client has still to send the request, to another place.
        if matches!(status.as_u16(), 307 | 308) {
            return Self::Open;
        }
        if status.is_success() || status.is_redirection() {
            return Self::Final;
        }
        let retry_after = retry_after(headers, now);
        let again = Self::Again { retry_after };
        let is_error = status.is_client_error() || status.is_server_error();
        match (should_retry(headers), status.as_u16()) {
            (Some(true), _) if is_error => again,
            (None, 429 | 502 | 503 | 504) => again,
            (None, 409) if retry_after.is_some() => again,
            (_, 401 | 403 | 407 | 408 | 409 | 425 | 429) => Self::Open,
            (_, 400..=499) => Self::Final,
            _ => Self::Open,
        }
    }

    /// What it says that there was no answer.
    #[must_use]
    pub fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::Connection | Failure::TimeOut => Self::Again { retry_after: None },
            Failure::Other => Self::Open,
        }
    }
}

fn should_retry(headers: &HeaderMap) -> Option<bool> {
    let hint = SHOULD_RETRY.iter().find_map(|name| headers.get(name))?;
    match hint.as_bytes() {
        hint if hint.eq_ignore_ascii_case(b"true") => Some(true),
        hint if hint.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    }
}
