//! Errors as `application/problem+json` (RFC 9457): `type`, `title`, `status` and `detail`.
//!
//! What can go wrong with a payment; what can go wrong with its key is the layer's. The status says
//! what to do, to the client and to the layer: 400 and 401 need another request; 402 is a final answer
//! like 201 and is replayed like it; after a 503 the key is interrupted, or free again where the
//! handler said so, and the client repeats the request *with the same key* after `Retry-After`.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

const PROBLEM_JSON: &str = "application/problem+json";

/// Where the types of problems are described, the layer's too.
pub const PROBLEM_TYPES: &str = "https://payments.example/problems/";

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    /// Last part of the type's URI.
    kind: &'static str,
    title: &'static str,
    detail: String,
    retry_after_seconds: Option<u64>,
}

impl Problem {
    fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            title,
            detail: detail.into(),
            retry_after_seconds: None,
        }
    }

    pub fn unauthorized() -> Self {
        let detail = "Send `Authorization: Bearer ACCOUNT`.";
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "Who are you?",
            detail,
        )
    }

    pub fn invalid_payment(detail: impl Into<String>) -> Self {
        let title = "The payment is not valid";
        Self::new(StatusCode::BAD_REQUEST, "payment-invalid", title, detail)
    }

    pub fn in_progress(retry_after_seconds: u64) -> Self {
        let detail = "The first request with this key is still being worked on; ask again.";
        let title = "A request with this key is in progress";
        Self::new(StatusCode::CONFLICT, "in-progress", title, detail).retry(retry_after_seconds)
    }

    pub fn card_refused() -> Self {
        let detail = "The card was refused and nothing was charged. \
                      Another card is another payment: take a new key.";
        Self::new(
            StatusCode::PAYMENT_REQUIRED,
            "card-refused",
            "The card was refused",
            detail,
        )
    }

    /// Nothing is known to have gone wrong, but nobody can say yet whether the card was charged.
    pub fn outcome_unknown() -> Self {
        let detail = "The card provider's answer did not arrive. Repeat the request with the same \
                      key: it finds out what happened and never charges twice.";
        let title = "The outcome is not known yet";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "outcome-unknown",
            title,
            detail,
        )
        .retry(1)
    }

    pub fn provider_unreachable() -> Self {
        let detail = "The card provider cannot be reached. Repeat the request with the same key.";
        let title = "The card provider is down";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "provider-down",
            title,
            detail,
        )
        .retry(1)
    }

    /// The store refused: its disk is full, it is closing down, or worse. No store, no payment.
    pub fn store_unavailable() -> Self {
        let detail = "Payments are not taken at the moment. Repeat the request with the same key.";
        let title = "Payments are not available";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            title,
            detail,
        )
        .retry(1)
    }

    /// A defect of this service. The key stays interrupted, so a retry is safe.
    pub fn internal() -> Self {
        let detail = "The service failed. Repeat the request with the same key.";
        let title = "Something went wrong";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, detail).retry(1)
    }

    pub fn not_found() -> Self {
        let detail = "There is nothing here, or not for this account.";
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub fn method_not_allowed() -> Self {
        let detail = "Payments are made with POST and read with GET.";
        let title = "Method not allowed";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            title,
            detail,
        )
    }

    fn body(&self) -> String {
        let body = json!({
            "type": format!("{PROBLEM_TYPES}{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        body.to_string()
    }

    fn retry(mut self, after_seconds: u64) -> Self {
        self.retry_after_seconds = Some(after_seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
