//! The card provider's HTTP face, over the [`Ledger`].
//!
//! `POST /charges` charges a card, `GET /charges?key=K` looks a charge up, `GET /charges` lists all
//! of them and `GET /calls` every call in the order it arrived. Two properties of real providers
//! matter to its callers and are kept here:
//!
//! - A call goes on when its caller hangs up. Whoever lost the answer does not know whether money
//!   moved, and a look-up made at once may miss a charge that is still being worked on.
//! - A call is decided within the maximum delay after it arrived, or never charged. This is the
//!   promise that makes a look-up made *later* than that final.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::ledger::Ledger;
use crate::messages::{ChargeRequest, Decision};

/// How long the card `tok_slow` takes.
const SLOW_CARD: Duration = Duration::from_millis(300);

#[derive(Clone)]
pub struct Provider {
    ledger: Arc<Mutex<Ledger>>,
    delay: Duration,
    delay_max: Duration,
}

impl Provider {
    /// `delay` is added to every charge; a call not decided within `delay_max` is not charged.
    pub fn new(ledger: Ledger, delay: Duration, delay_max: Duration) -> Self {
        Self {
            ledger: Arc::new(Mutex::new(ledger)),
            delay,
            delay_max,
        }
    }

    /// Serves for ever; dropping the future is a fine way to stop, since nothing that was answered
    /// is lost by it.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let routes = Router::new()
            .route("/charges", post(create_charge).get(list_charges))
            .route("/calls", get(list_calls))
            .with_state(self);
        axum::serve(listener.tap_io(send_at_once), routes).await
    }

    /// Receives, works and decides. Runs in a task of its own, so it ends whatever the caller does.
    /// `None` is an answer that gets lost on the way.
    async fn charge(self, request: ChargeRequest) -> io::Result<Option<Response>> {
        let arrived = Instant::now();
        let slow = if request.card == "tok_slow" {
            SLOW_CARD
        } else {
            Duration::ZERO
        };
        let loses_answer = request.card == "tok_lost";
        let receipt = self.blocking(move |ledger| ledger.receive(request)).await?;
        let loses_answer = loses_answer && receipt.first_of_its_key;

        tokio::time::sleep(self.delay + slow).await;
        let delay_max = self.delay_max;
        let (decision, charge) = self
            .blocking(move |ledger| ledger.decide(&receipt, arrived.elapsed() > delay_max))
            .await?;
        if loses_answer {
            return Ok(None);
        }
        Ok(Some(match decision {
            Decision::Charged => (StatusCode::CREATED, Json(charge)).into_response(),
            Decision::Deduplicated => (StatusCode::OK, Json(charge)).into_response(),
            Decision::Refused => {
                let reason = json!({ "error": "card_refused" });
                (StatusCode::PAYMENT_REQUIRED, Json(reason)).into_response()
            }
            Decision::TooLate => {
                let reason = json!({ "error": "too_late" });
                (StatusCode::SERVICE_UNAVAILABLE, Json(reason)).into_response()
            }
        }))
    }

    /// The ledger writes and syncs a file: not on a thread that drives connections.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let ledger = Arc::clone(&self.ledger);
        let work = move || work(&mut ledger.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await?
    }
}

async fn create_charge(
    State(provider): State<Provider>,
    Json(request): Json<ChargeRequest>,
) -> Response {
    match tokio::spawn(provider.charge(request)).await {
        Ok(Ok(Some(response))) => response,
        // The caller waits until it gives up and hangs up, which ends this future.
        Ok(Ok(None)) => std::future::pending().await,
        Ok(Err(error)) => internal_error(&error),
        Err(error) => internal_error(&error),
    }
}

/// Small answers must not wait for more bytes to send along.
fn send_at_once(connection: &mut TcpStream) {
    if let Err(error) = connection.set_nodelay(true) {
        eprintln!("cannot set TCP_NODELAY: {error}");
    }
}

fn internal_error(error: &dyn std::error::Error) -> Response {
    eprintln!("a call failed inside the provider: {error}");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[derive(Deserialize)]
struct ListQuery {
    key: Option<String>,
}

async fn list_charges(
    State(provider): State<Provider>,
    Query(query): Query<ListQuery>,
) -> Response {
    let is_wanted = move |key: &str| query.key.as_ref().is_none_or(|only| only == key);
    let charges = provider.blocking(move |ledger| {
        let wanted = ledger
            .charges()
            .iter()
            .filter(|charge| is_wanted(&charge.key));
        Ok(wanted.cloned().collect::<Vec<_>>())
    });
    match charges.await {
        Ok(charges) => Json(json!({ "charges": charges })).into_response(),
        Err(error) => internal_error(&error),
    }
}

async fn list_calls(State(provider): State<Provider>) -> Response {
    match provider
        .blocking(|ledger| Ok(ledger.calls().to_vec()))
        .await
    {
        Ok(calls) => Json(json!({ "calls": calls })).into_response(),
        Err(error) => internal_error(&error),
    }
}
