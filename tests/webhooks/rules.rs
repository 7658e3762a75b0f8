//! One delivery at a time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use oncekey::{Claim, Fingerprint, Key};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::book::Event;
use crate::host::{self, Host};
use crate::receiver::now_s;
use crate::signatures::{sign_github, sign_stripe};

struct World {
    host: Host,
    directory: TempDir,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            host: open(&directory),
            directory,
        }
    }

    /// The process ends and another begins.
    fn restart(self) -> Self {
        self.host.store.close().unwrap();
        let directory = self.directory;
        drop(self.host.receiver);
        Self {
            host: open(&directory),
            directory,
        }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, bool) {
        let answer: Response<Body> = self.host.routes().oneshot(request).await.unwrap();
        let is_replay = answer.headers().contains_key("idempotent-replayed");
        (answer.status(), is_replay)
    }

    fn events(&self) -> Vec<String> {
        let book = self.host.receiver.book.lock().unwrap();
        let event = |event: &Event| format!("{} {}", event.sender, event.id);
        book.events().iter().map(event).collect()
    }

    fn state(&self, sender: &str, object: &str) -> Option<String> {
        let book = self.host.receiver.book.lock().unwrap();
        book.state(sender, object).map(str::to_owned)
    }
}

fn open(directory: &TempDir) -> Host {
    Host::open(directory.path(), host::demonstration(), Duration::ZERO).unwrap()
}

fn subscription(id: &str, created: u64, status: &str) -> String {
    format!(
        r#"{{"id":"{id}","created":{created},"data":{{"object":{{"id":"sub_1","status":"{status}"}}}}}}"#
    )
}

fn stripe(body: &str) -> Request<Body> {
    let signature = sign_stripe(&["whsec_old".to_owned()], body.as_bytes(), now_s());
    Request::post("/hooks/shop")
        .header("stripe-signature", signature)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

fn github(id: &str) -> Request<Body> {
    let body = r#"{"issue":{"number":7,"state":"open","updated_at":"2026-12-01T10:00:00Z"}}"#;
    let signature = sign_github("It's a Secret to Everybody", body.as_bytes());
    Request::post("/hooks/code")
        .header("x-hub-signature-256", signature)
        .header("x-github-delivery", id)
        .body(Body::from(body))
        .unwrap()
}

#[tokio::test]
async fn an_event_that_is_delivered_again_is_acknowledged_and_not_handled() {
    let world = World::new();
    let body = subscription("evt_1", 1, "active");
    assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, false));
    assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, true));
    // Its envelope may differ.
    let later = body.replace("\"created\":1,", "\"created\":1,\"pending_webhooks\":2,");
    assert_eq!(world.send(stripe(&later)).await, (StatusCode::OK, true));
    let world = world.restart();
    assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, true));
    assert_eq!(world.events(), ["shop evt_1"]);
}

#[tokio::test]
async fn two_senders_may_use_one_id() {
    let world = World::new();
    let body = subscription("1", 1, "active");
    assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, false));
    assert_eq!(world.send(github("1")).await, (StatusCode::OK, false));
    assert_eq!(world.send(github("1")).await, (StatusCode::OK, true));
    assert_eq!(world.events(), ["shop 1", "code 1"]);
}

#[tokio::test]
async fn the_newest_event_wins_in_whatever_order_they_come() {
    let world = World::new();
    for (id, created, status) in [
        ("evt_2", 2, "past_due"),
        ("evt_3", 3, "canceled"),
        ("evt_1", 1, "active"),
    ] {
        let body = subscription(id, created, status);
        assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, false));
    }
    assert_eq!(world.state("shop", "sub_1").as_deref(), Some("canceled"));
    let world = world.restart();
    assert_eq!(world.state("shop", "sub_1").as_deref(), Some("canceled"));
    assert_eq!(world.events().len(), 3);
}

#[tokio::test]
async fn what_is_not_signed_never_touches_the_store() {
    let world = World::new();
    let body = subscription("evt_1", 1, "active");
    let with = |name: &'static str, value: &str| {
        let mut request = stripe(&body);
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let old = sign_stripe(&["whsec_new".to_owned()], body.as_bytes(), now_s() - 3_600);
    let mut unsigned = stripe(&body);
    unsigned.headers_mut().remove("stripe-signature");
    let mut of_another_endpoint = github("evt_1");
    *of_another_endpoint.uri_mut() = "/hooks/shop".parse().unwrap();
    for request in [
        with("stripe-signature", "t=1,v1=00"),
        with("stripe-signature", &old),
        unsigned,
        of_another_endpoint,
    ] {
        assert_eq!(world.send(request).await, (StatusCode::UNAUTHORIZED, false));
    }
    let mut nowhere = stripe(&body);
    *nowhere.uri_mut() = "/hooks/other".parse().unwrap();
    assert_eq!(world.send(nowhere).await.0, StatusCode::NOT_FOUND);
    let too_large = stripe(&" ".repeat(300 * 1024));
    assert_eq!(world.send(too_large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let without_id = stripe("{}");
    assert_eq!(world.send(without_id).await.0, StatusCode::BAD_REQUEST);
    let stats = world.host.store.stats();
    assert_eq!((stats.claims_started, stats.completed_keys), (0, 0));
    // A header of the sender's is no event id.
    let smuggled = with("webhook-event-id", "another");
    assert_eq!(world.send(smuggled).await, (StatusCode::OK, false));
    assert_eq!(world.events(), ["shop evt_1"]);
}

#[tokio::test]
async fn an_event_of_a_kind_that_nobody_knows_is_acknowledged() {
    let world = World::new();
    let body = r#"{"id":"evt_9","type":"ping"}"#;
    assert_eq!(
        world.send(stripe(body)).await,
        (StatusCode::ACCEPTED, false)
    );
    assert_eq!(world.send(stripe(body)).await, (StatusCode::ACCEPTED, true));
    assert!(world.events().is_empty());
}

/// The process died after it had taken the event down and before the key was completed; or before.
#[tokio::test]
async fn a_crash_around_the_book_leaves_one_line() {
    for is_in_book in [false, true] {
        let world = World::new();
        let key = Key::new("webhook/shop", "POST /hooks/shop", "evt_1").unwrap();
        let claim = world.host.store.claim(&key, Fingerprint::none()).unwrap();
        assert!(matches!(claim, Claim::Started(_)));
        if is_in_book {
            let event = Event {
                sender: "shop".to_owned(),
                id: "evt_1".to_owned(),
                object: "sub_1".to_owned(),
                version: format!("{:020}", 1),
                state: "active".to_owned(),
            };
            let mut book = world.host.receiver.book.lock().unwrap();
            book.apply(event).unwrap();
        }
        let world = world.restart();
        let body = subscription("evt_1", 1, "active");
        assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, false));
        assert_eq!(world.send(stripe(&body)).await, (StatusCode::OK, true));
        assert_eq!(world.events(), ["shop evt_1"], "in the book: {is_in_book}");
    }
}
