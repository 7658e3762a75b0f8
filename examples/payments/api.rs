//! The HTTP face: who asks, and where the idempotency layer stands.
//!
//! From the outside in: the authentication, the layer, the handler. The layer reads the key, claims
//! it, replays what is done and turns duplicates away; a handler that runs owns its payment. It runs
//! in a task of its own: a client that hangs up does not stop it, and finds the result when it comes
//! again.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use oncekey::http::{
    IdempotencyLayer, IdempotentOperation, LayerError, OnInterrupted, ProblemFormat,
    RequestFingerprint, Scope, StoredResponse,
};
use oncekey::{ClaimError, KeyState, Replay, Store};
use tracing::{error, info, warn};

use crate::owner::{self, Reconcile};
use crate::payment::{PAYMENT_ATTEMPT, Payment, idempotency_key_of, payment_id, store_key};
use crate::problem::{PROBLEM_TYPES, Problem};
use crate::provider_client::ProviderClient;

const BODY_BYTES_MAX: usize = 64 * 1024;
const ACCOUNT_BYTES_MAX: usize = 200;

pub struct App {
    pub store: Store,
    pub provider: ProviderClient,
    pub reconcile: Reconcile,
    /// `None`: a key is owned as long as the process lives.
    pub lease: Option<Duration>,
}

/// The account that asks, as the authentication found it.
#[derive(Clone)]
pub struct Account(String);

/// A duplicate waits for the first request as long as `wait`, before it is told to come again.
pub fn idempotency(store: Store, wait: Duration) -> Result<IdempotencyLayer, LayerError> {
    IdempotencyLayer::new(store)
        .scope(Scope::from_request(|request| {
            let Account(account) = request.extensions.get()?;
            Some(format!("account/{account}"))
        }))
        // The owner finds out what an earlier attempt did: see `owner.rs`.
        .on_interrupted(OnInterrupted::rerun())
        .fingerprint(RequestFingerprint::canonical_json())
        .max_request(BODY_BYTES_MAX)
        .wait(wait)
        .problems(ProblemFormat::problem_json_at(PROBLEM_TYPES))
        .build()
}

pub fn routes(app: Arc<App>, idempotency: IdempotencyLayer) -> Router {
    Router::new()
        .route("/v1/payments", post(create_payment))
        .route("/v1/payments/{id}", get(read_payment))
        .route_layer(idempotency)
        // Added later, so outside: nobody gets to a stored answer without it.
        .route_layer(middleware::from_fn(authenticate))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .with_state(app)
}

/// A service would check a secret here; this one takes the caller's word.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, Problem> {
    let account = Account(account(request.headers())?.to_owned());
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn account(headers: &HeaderMap) -> Result<&str, Problem> {
    let value = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let (scheme, account) = value
        .and_then(|value| value.split_once(' '))
        .ok_or_else(Problem::unauthorized)?;
    let account = account.trim();
    let is_valid = !account.is_empty()
        && account.len() <= ACCOUNT_BYTES_MAX
        && account.bytes().all(|byte| byte.is_ascii_graphic());
    if !scheme.eq_ignore_ascii_case("bearer") || !is_valid {
        return Err(Problem::unauthorized());
    }
    Ok(account)
}

async fn create_payment(
    State(app): State<Arc<App>>,
    operation: IdempotentOperation,
    body: Bytes,
) -> Result<Response, Problem> {
    let payment = Payment::parse(&body).inspect_err(|_| {
        // Nothing happened: the client may correct it under the same key.
        operation.release();
    })?;
    log_ownership(&operation);
    let id = payment_id(operation.key().id());
    let mut response = owner::pay(&app, &operation, &payment, id).await?;
    let attempt = HeaderValue::from(operation.attempt());
    response.headers_mut().insert(PAYMENT_ATTEMPT, attempt);
    Ok(response)
}

/// The key is shown without its id: that is the client's business, and half of a credential.
fn log_ownership(operation: &IdempotentOperation) {
    let (key, token) = (operation.key(), operation.token().as_u64());
    let provider_called = owner::may_have_called(operation);
    info!(%key, attempt = operation.attempt(), token, provider_called, "owned");
}

/// Reads a payment back. There is no other table: the stored answer is the payment, for as long as
/// results are retained.
async fn read_payment(
    State(app): State<Arc<App>>,
    Extension(Account(account)): Extension<Account>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let idempotency_key = idempotency_key_of(&id).ok_or_else(Problem::not_found)?;
    // Another account's payment is another key: not found, as if it did not exist.
    let key = store_key(&account, &idempotency_key).ok_or_else(Problem::not_found)?;
    let KeyState::Completed(saved) = app.store.get_async(&key).await.map_err(unavailable)? else {
        return Err(Problem::not_found());
    };
    // The account is part of the key, so whoever asks with this key may see its result.
    let stored = match saved.by_scope() {
        Ok(Replay::Response(response)) => StoredResponse::decode(response.into()),
        Ok(Replay::NotStored) | Err(_) => return Err(Problem::not_found()),
    };
    let stored = stored.map_err(|error| {
        error!(%error, "a stored answer cannot be read");
        Problem::internal()
    })?;
    if stored.status != StatusCode::CREATED {
        return Err(Problem::not_found());
    }
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((StatusCode::OK, json, stored.body).into_response())
}

fn unavailable(error: ClaimError) -> Problem {
    warn!(%error, "the store did not answer");
    Problem::store_unavailable()
}
