//! The operation as an extractor of axum's handlers.

use std::convert::Infallible;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use tracing::error;

use super::operation::IdempotentOperation;

/// The request has no operation: see [`IdempotentOperation`].
///
/// The route is not behind the layer, or its key is optional and was not sent: take
/// `Option<IdempotentOperation>` there. Answered 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoOperation;

impl IntoResponse for NoOperation {
    fn into_response(self) -> Response {
        let explanation = "this route is not behind the idempotency layer, or has an optional key";
        error!(
            explanation,
            "a handler wants an operation and there is none"
        );
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for IdempotentOperation {
    type Rejection = NoOperation;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoOperation> {
        parts.extensions.get::<Self>().cloned().ok_or(NoOperation)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for IdempotentOperation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
