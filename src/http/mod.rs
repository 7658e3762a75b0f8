//! HTTP requests that are safe to retry: a tower layer over a [`Store`](crate::Store), or over any
//! other [backend](crate::backend).
//!
//! A client sends a key of its own with a request, `Idempotency-Key: "8e03978e"`, and the same key
//! again when it repeats the request. The layer runs the handler once. A repetition gets the stored
//! answer, byte for byte, or is told to come later, or is told that the key was used for something
//! else. It follows the IETF's [draft], speaks to clients of Stripe's kind as well, and works where
//! tower does: axum, hyper, tonic.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
//!
//! ```
//! use axum::Router;
//! use axum::routing::post;
//! use oncekey::http::{IdempotencyLayer, IdempotentOperation, OnInterrupted, Scope};
//! use oncekey::Store;
//!
//! #[derive(Clone)]
//! struct Account(String);
//!
//! # async fn authenticate(request: axum::extract::Request, next: axum::middleware::Next)
//! #     -> axum::response::Response { next.run(request).await }
//! fn routes(store: Store) -> Result<Router, oncekey::http::LayerError> {
//!     let idempotency = IdempotencyLayer::new(store)
//!         // Who asks: what the authentication found out.
//!         .scope(Scope::from_request(|request| {
//!             request.extensions.get::<Account>().map(|account| account.0.clone())
//!         }))
//!         // After a crash half-way: run again, the handler knows how.
//!         .on_interrupted(OnInterrupted::rerun())
//!         .build()?;
//!     Ok(Router::new()
//!         .route("/v1/payments", post(pay))
//!         .layer(idempotency)
//!         // Added later, so it comes first: the layer sits inside the authentication.
//!         .layer(axum::middleware::from_fn(authenticate)))
//! }
//!
//! async fn pay(
//!     axum::Extension(operation): axum::Extension<IdempotentOperation>,
//! ) -> &'static str {
//!     let _charge_once = operation.downstream_key("charge");
//!     "paid"
//! }
//! ```
//!
//! # Where it goes
//!
//! * **Inside authentication** and limits of rate: what they answer never gets to the store, and a
//!   replay goes only to somebody who got past them.
//! * **Outside the handlers, inside compression**: answers are stored as the handler made them.
//! * Inside nothing that cuts the path, or with [`LayerBuilder::operation`].
//!
//! # What it does with a request
//!
//! | | |
//! |---|---|
//! | another method than POST and PATCH | goes to the handler untouched |
//! | no key | 400, or to the handler where keys are [optional](KeyRule) |
//! | a bad key, no caller, a body over the limit | 400, 403, 413: nothing is claimed |
//! | a new key | the handler runs, and a client who hangs up does not stop it |
//! | a key that is done | the stored answer, marked `Idempotent-Replayed: true` |
//! | a key at work | 409 with `Retry-After`, after [waiting](LayerBuilder::wait) if that is set |
//! | a key used for another request | 422 |
//! | a key whose attempt was interrupted | as [decided](OnInterrupted) |
//! | the store is full or fails | 503 with `Retry-After`, or [unprotected](StoreFailure) |
//!
//! What becomes of the key then is up to the answer's [status](StatusPolicy), or to a handler that
//! says that [nothing happened](IdempotentOperation::release). A handler that panics, or whose body
//! breaks off, leaves its key interrupted.
//!
//! Every rule is in the [guide](crate::documentation::http).
#![forbid(unsafe_code)]

mod attended;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod builder;
mod canonical_json;
mod claimed;
#[cfg(feature = "metrics")]
mod exported;
mod fingerprint;
mod headers;
mod interrupted;
pub(crate) mod key_header;
mod layer;
mod metrics;
mod operation;
mod options;
mod policy;
mod problem;
mod replay;
#[cfg(feature = "testing")]
pub(crate) mod retry_tests;
mod scope;
mod service;
mod work;

#[cfg(feature = "axum")]
pub use self::axum::NoOperation;
pub use self::body::{KeptBody, RequestBody, ResponseBody};
pub use self::builder::{LayerBuilder, LayerError, Undecided};
#[cfg(feature = "metrics")]
pub use self::exported::describe_metrics;
pub use self::fingerprint::RequestFingerprint;
pub use self::interrupted::{Interrupted, OnInterrupted, Reconciled};
pub use self::key_header::KeySyntax;
pub use self::layer::IdempotencyLayer;
pub use self::metrics::HttpStats;
pub use self::operation::IdempotentOperation;
pub use self::options::{
    KeyRule, REQUEST_BYTES_DEFAULT, RESPONSE_BYTES_DEFAULT, RouteOptions, StoreFailure, WAIT_MAX,
};
pub use self::policy::{StatusAction, StatusPolicy};
pub use self::problem::{Problem, ProblemFormat, ProblemKind};
pub use self::replay::Replaying;
pub use self::scope::{Scope, operation_name};
pub use self::service::IdempotencyService;
pub use crate::stored_response::{NotAResponse, StoredResponse};
