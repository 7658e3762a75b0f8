//! The HTTP face: who asks, for which key, and what the claim's outcome means to the client.
//!
//! Whatever is wrong with a request is found before its key is claimed, so a bad request leaves no
//! trace. The owner's work runs in a task of its own: a client that hangs up does not stop it, and
//! finds the result when it comes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use oncekey::{Claim, ClaimError, KeyState, Operation, Replay, Saved, Store};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::{error, info, warn};

use crate::answer::Answer;
use crate::idempotency_key;
use crate::owner::{self, Reconcile};
use crate::payment::{Payment, idempotency_key_of, payment_id, store_key};
use crate::problem::Problem;
use crate::provider_client::ProviderClient;

const BODY_BYTES_MAX: usize = 64 * 1024;
const ACCOUNT_BYTES_MAX: usize = 200;
const RETRY_AFTER_SECONDS_MAX: u64 = 5;

pub struct App {
    pub store: Store,
    pub provider: ProviderClient,
    pub reconcile: Reconcile,
    /// How long a duplicate waits for the first request before it is told to come again.
    pub wait: Duration,
    /// `None`: a key is owned as long as the process lives.
    pub lease: Option<Duration>,
    pub requests: AtomicU64,
    /// Every task that works on a payment has a clone: the other end closes with the last one.
    pub running: mpsc::Sender<()>,
}

pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/payments", post(create_payment))
        .route("/v1/payments/{id}", get(read_payment))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

async fn create_payment(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let account = account(&headers)?;
    let idempotency_key = idempotency_key::from_headers(&headers)?;
    let payment = Payment::parse(&body.map_err(unreadable)?)?;
    let key = store_key(account, idempotency_key.as_bytes())?;
    let fingerprint = payment.fingerprint();

    let request = app.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let deadline = Instant::now() + app.wait;
    let mut claim = app
        .store
        .claim_async(&key, fingerprint)
        .await
        .map_err(claim_failed)?;
    loop {
        match claim {
            Claim::Started(operation) => {
                log_ownership(request, "started", &operation);
                return own(app, operation, payment, payment_id(&idempotency_key)).await;
            }
            Claim::Interrupted(operation) => {
                log_ownership(request, "interrupted", &operation);
                return own(app, operation, payment, payment_id(&idempotency_key)).await;
            }
            Claim::InProgress(progress) => {
                let (attempt, lease_left) = (progress.attempt(), progress.lease_left());
                info!(request, outcome = "in progress", attempt, "claimed");
                claim = match timeout_at(deadline, progress.wait_async()).await {
                    Ok(claim) => claim.map_err(claim_failed)?,
                    Err(_) => return Err(Problem::in_progress(retry_after_seconds(lease_left))),
                };
            }
            Claim::Completed(saved) => {
                let attempt = saved.attempt();
                info!(request, outcome = "completed", attempt, "claimed");
                return replay(saved);
            }
            Claim::Mismatch(_) => {
                info!(request, outcome = "mismatch", "claimed");
                return Err(Problem::mismatch());
            }
            Claim::TooLate(_) => {
                info!(request, outcome = "too late", "claimed");
                return Err(Problem::too_late());
            }
        }
    }
}

/// What the claim gave, without the key: it is the client's business, and half of a credential.
fn log_ownership(request: u64, outcome: &str, operation: &Operation) {
    let (attempt, token) = (operation.attempt(), operation.token().as_u64());
    let provider_called = operation.last_checkpoint().is_some();
    info!(request, outcome, attempt, token, provider_called, "claimed");
}

/// Runs the owner's work in a task of its own and answers with what comes out of it.
async fn own(
    app: Arc<App>,
    operation: Operation,
    payment: Payment,
    payment_id: String,
) -> Result<Response, Problem> {
    let attempt = operation.attempt();
    let running = app.running.clone();
    let work = tokio::spawn(async move {
        let answer = owner::pay(&app, operation, &payment, payment_id).await;
        drop(running);
        answer
    });
    match work.await {
        Ok(answer) => Ok(answer?.into_response(attempt, false)),
        Err(panic) => {
            // The guard went down with the task: the key is interrupted, not stuck.
            error!(%panic, "the work on a payment failed");
            Err(Problem::internal())
        }
    }
}

/// Reads a payment back. There is no other table: the stored answer is the payment, for as long as
/// results are retained.
async fn read_payment(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let account = account(&headers)?;
    let idempotency_key = idempotency_key_of(&id).ok_or_else(Problem::not_found)?;
    // Another account's payment is another key: not found, as if it did not exist.
    let key = store_key(account, &idempotency_key).map_err(|_| Problem::not_found())?;
    let KeyState::Completed(saved) = app.store.get_async(&key).await.map_err(claim_failed)? else {
        return Err(Problem::not_found());
    };
    let answer = stored_answer(saved)?;
    if answer.status != StatusCode::CREATED {
        return Err(Problem::not_found());
    }
    let headers = [(CONTENT_TYPE, answer.content_type)];
    Ok((StatusCode::OK, headers, answer.body).into_response())
}

fn replay(saved: Saved) -> Result<Response, Problem> {
    let attempt = saved.attempt();
    Ok(stored_answer(saved)?.into_response(attempt, true))
}

fn stored_answer(saved: Saved) -> Result<Answer, Problem> {
    // The account is part of the key, so whoever asks with this key may see its result.
    match saved.by_scope() {
        Ok(Replay::Response(response)) => Answer::decode(response.into()).ok_or_else(|| {
            error!("a stored answer cannot be read");
            Problem::internal()
        }),
        Ok(Replay::NotStored) => {
            error!("a result was stored without its answer");
            Err(Problem::internal())
        }
        Err(denied) => {
            error!(%denied, "a stored answer belongs to somebody else");
            Err(Problem::internal())
        }
    }
}

/// The account that asks. A service would check a secret here; this one takes the caller's word.
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

fn unreadable(rejection: BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::body_too_large(BODY_BYTES_MAX),
        _ => Problem::unreadable_body(rejection.body_text()),
    }
}

fn claim_failed(error: ClaimError) -> Problem {
    if let ClaimError::TooManyWaiters { .. } = error {
        return Problem::in_progress(1);
    }
    warn!(%error, "the store did not take the claim");
    Problem::store_unavailable()
}

/// Whole seconds, at least 1, and no longer than the owner's lease lasts.
fn retry_after_seconds(lease_left: Option<Duration>) -> u64 {
    lease_left.map_or(1, |left| left.as_secs().clamp(1, RETRY_AFTER_SECONDS_MAX))
}
