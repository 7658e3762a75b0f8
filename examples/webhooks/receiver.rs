//! The HTTP face: who sent it, whether it is new, and what it does.
//!
//! From the outside in: the signature, the idempotency layer, the handler. What is not signed gets
//! no further, so it can't claim an id and make the real event look like a repetition. The event's id
//! becomes the key of the layer, in the scope of the endpoint it came to: two accounts, or two
//! senders, may use the same ids.
//!
//! The answer is 200 as soon as the event is taken down durably and its key is completed; senders
//! give up on slow receivers and send again. Work that takes long is done from the book, afterwards.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use oncekey::http::{
    IdempotencyLayer, IdempotentOperation, LayerError, OnInterrupted, RequestFingerprint, Scope,
};
use oncekey::{Fingerprint, Store};
use serde::Deserialize;
use tracing::{info, warn};

use crate::book::{Book, Event};
use crate::signatures::{Unsigned, verify_github, verify_stripe};

const BODY_BYTES_MAX: usize = 256 * 1024;
/// How old a signature with a time may be.
pub const TOLERANCE: Duration = Duration::from_secs(300);

pub const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
pub const GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
pub const GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
/// From the check of the signature to the layer; what a sender puts there is overwritten.
const EVENT_ID: HeaderName = HeaderName::from_static("webhook-event-id");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stripe,
    GitHub,
}

/// One account at one sender: `/hooks/{name}`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub kind: Kind,
    /// Several while one is replaced by another.
    pub secrets: Vec<String>,
}

pub struct Receiver {
    pub endpoints: HashMap<String, Endpoint>,
    pub book: Mutex<Book>,
    /// How long the work on an event takes, before and after it is taken down.
    pub work: Duration,
}

/// The endpoint whose signature fitted.
#[derive(Clone)]
struct Sender(String);

pub fn idempotency(store: Store) -> Result<IdempotencyLayer, LayerError> {
    IdempotencyLayer::new(store)
        .scope(Scope::from_request(|request| {
            let Sender(name) = request.extensions.get()?;
            Some(format!("webhook/{name}"))
        }))
        .header(EVENT_ID)
        // The id says which event it is; its envelope may differ when it is sent again.
        .fingerprint(RequestFingerprint::custom(|_, _| Fingerprint::none()))
        // The handler looks what the attempt before has done.
        .on_interrupted(OnInterrupted::rerun())
        .max_request(BODY_BYTES_MAX)
        .wait(Duration::from_secs(2))
        .build()
}

pub fn routes(receiver: Arc<Receiver>, idempotency: IdempotencyLayer) -> Router {
    Router::new()
        .route("/hooks/{endpoint}", post(accept))
        .route_layer(idempotency)
        // Added later, so outside.
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&receiver),
            verify,
        ))
        .with_state(receiver)
}

/// Lets only what is signed through, with its event id where the layer looks for it.
async fn verify(
    State(receiver): State<Arc<Receiver>>,
    Path(name): Path<String>,
    request: Request,
    next: Next,
) -> Response {
    let Some(endpoint) = receiver.endpoints.get(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    if let Err(why) = endpoint.verify(&parts.headers, &body, now_s()) {
        warn!(endpoint = name, %why, "refused");
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let id = match endpoint.kind {
        Kind::GitHub => parts.headers.get(&GITHUB_DELIVERY).cloned(),
        Kind::Stripe => stripe_id(&body),
    };
    let Some(id) = id else {
        return (StatusCode::BAD_REQUEST, "the event has no id").into_response();
    };
    parts.headers.insert(EVENT_ID, id);
    parts.extensions.insert(Sender(name));
    next.run(Request::from_parts(parts, Body::from(body))).await
}

impl Endpoint {
    fn verify(&self, headers: &HeaderMap, body: &[u8], now_s: u64) -> Result<(), Unsigned> {
        let header = |name: HeaderName| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or(Unsigned::Malformed)
        };
        let secrets = &self.secrets;
        match self.kind {
            Kind::Stripe => {
                verify_stripe(secrets, header(STRIPE_SIGNATURE)?, body, now_s, TOLERANCE)
            }
            Kind::GitHub => verify_github(secrets, header(GITHUB_SIGNATURE)?, body),
        }
    }
}

/// Runs once for each event, and after a crash once more.
async fn accept(
    State(receiver): State<Arc<Receiver>>,
    Extension(Sender(sender)): Extension<Sender>,
    operation: IdempotentOperation,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let kind = receiver
        .endpoints
        .get(&sender)
        .map(|endpoint| endpoint.kind);
    let id = String::from_utf8_lossy(operation.key().id()).into_owned();
    let event = match kind {
        Some(Kind::Stripe) => stripe_event(sender, id, &body),
        Some(Kind::GitHub) => github_event(sender, id, &body),
        None => None,
    };
    let Some(event) = event else {
        // Not one that this receiver knows. It is acknowledged, or it would be sent for days.
        return Ok(StatusCode::ACCEPTED);
    };
    let attempt = operation.attempt();
    info!(
        sender = event.sender,
        object = event.object,
        attempt,
        "an event"
    );

    tokio::time::sleep(receiver.work).await;
    let applied = {
        let receiver = Arc::clone(&receiver);
        // The book syncs a file: not on a thread that drives connections.
        tokio::task::spawn_blocking(move || receiver.apply_once(event, attempt)).await
    };
    tokio::time::sleep(receiver.work).await;
    match applied {
        Ok(Ok(())) => Ok(StatusCode::OK),
        // The key is interrupted, and the sender tries again.
        Ok(Err(error)) => Err(failed(&error)),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &dyn std::error::Error) -> StatusCode {
    warn!(%error, "an event could not be taken down");
    StatusCode::INTERNAL_SERVER_ERROR
}

impl Receiver {
    /// A first attempt need not look. A later one does: the attempt before may have died between
    /// the book and its answer.
    fn apply_once(&self, event: Event, attempt: u32) -> io::Result<()> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if attempt > 1 && book.has(&event.sender, &event.id) {
            return Ok(());
        }
        book.apply(event)
    }
}

pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn stripe_id(body: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct WithId {
        id: String,
    }
    let WithId { id } = serde_json::from_slice(body).ok()?;
    HeaderValue::try_from(id).ok()
}

/// Of Stripe's events: the state of a subscription, by the second it was made in.
fn stripe_event(sender: String, id: String, body: &[u8]) -> Option<Event> {
    #[derive(Deserialize)]
    struct Sent {
        created: u64,
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        object: Object,
    }
    #[derive(Deserialize)]
    struct Object {
        id: String,
        status: String,
    }
    let sent: Sent = serde_json::from_slice(body).ok()?;
    Some(Event {
        sender,
        id,
        object: sent.data.object.id,
        version: format!("{:020}", sent.created),
        state: sent.data.object.status,
    })
}

/// Of GitHub's: the state of an issue. Its times are RFC 3339 in UTC, which sort as text.
fn github_event(sender: String, id: String, body: &[u8]) -> Option<Event> {
    #[derive(Deserialize)]
    struct Sent {
        issue: Issue,
    }
    #[derive(Deserialize)]
    struct Issue {
        number: u64,
        state: String,
        updated_at: String,
    }
    let Sent { issue } = serde_json::from_slice(body).ok()?;
    Some(Event {
        sender,
        id,
        object: format!("issue {}", issue.number),
        version: issue.updated_at,
        state: issue.state,
    })
}
