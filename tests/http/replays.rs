//! What is stored, and that it comes back byte for byte.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use oncekey::http::{StatusAction, StatusPolicy, StoredResponse, operation_name};
use oncekey::{Key, KeyState};

use crate::world::{Answer, Served, World, full, post, text};

fn headers(fields: &[(&'static str, &[u8])]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &[u8])| {
        let value = HeaderValue::from_bytes(value).unwrap();
        (HeaderName::from_static(name), value)
    };
    fields.iter().map(field).collect()
}

/// The answer's headers without those that the layer adds.
fn of_handler(answer: &Answer) -> HeaderMap {
    let mut headers = answer.headers.clone();
    for name in [
        "idempotent-replayed",
        "idempotency-expires",
        "content-length",
    ] {
        headers.remove(name);
    }
    headers
}

#[tokio::test]
async fn status_headers_and_body_come_back_byte_for_byte() {
    const KEPT: &[(&str, &[u8])] = &[
        ("content-type", b"application/octet-stream"),
        ("content-encoding", b"gzip"),
        ("location", b"/payments/1"),
        ("etag", b"\"1\""),
        ("link", b"<b>"),
        ("link", b"<a>"),
        ("link", b"<b>"),
        ("x-latin-1", b"schl\xfcssel"),
    ];
    const DROPPED: &[(&str, &[u8])] = &[
        ("set-cookie", b"session=1"),
        ("date", b"Tue, 01 Dec 2026 00:00:00 GMT"),
        ("connection", b"x-hop"),
        ("x-hop", b"1"),
        ("www-authenticate", b"Bearer"),
        ("x-request-id", b"1"),
        ("retry-after", b"9"),
    ];
    let world = World::new();
    let served = Served::new(&world.layer(), async |_, _| {
        let mut response = Response::new(full(&b"\x00\xff\r\n\r\nbody"[..]));
        *response.status_mut() = StatusCode::CREATED;
        *response.headers_mut() = headers(&[KEPT, DROPPED].concat());
        response
    });
    let first = served.send(post("k")).await;
    assert_eq!(first.status, 201);
    assert_eq!(of_handler(&first), headers(&[KEPT, DROPPED].concat()));
    let replay = served.send(post("k")).await;
    assert!(replay.is_replay());
    assert_eq!((replay.status, &replay.body), (first.status, &first.body));
    assert_eq!(of_handler(&replay), headers(KEPT));
    let links: Vec<_> = replay.headers.get_all("link").iter().collect();
    assert_eq!(links, ["<b>", "<a>", "<b>"]);
    assert_eq!(replay.header("content-length"), Some("10"));
    assert_eq!(served.runs(), 1);
}

#[tokio::test]
async fn every_status_that_is_stored_comes_back() {
    let world = World::new();
    let policy = StatusPolicy::new().on_range(200..=999, StatusAction::Store);
    let layer = world.builder().status_policy(policy).build().unwrap();
    for status in 200..=999 {
        let served = Served::with_status(&layer, status);
        let key = format!("k{status}");
        assert_eq!(served.send(post(&key)).await.status, status);
        let replay = served.send(post(&key)).await;
        assert_eq!(replay.status, status);
        replay.assert_replayed(1);
        let has_length = !matches!(status, 204 | 304);
        assert_eq!(replay.headers.contains_key("content-length"), has_length);
    }
}

#[tokio::test]
async fn empty_answers_stay_empty() {
    let world = World::new();
    let layer = world.layer();
    for (status, content_type) in [(204, None), (200, Some("text/plain"))] {
        let served = Served::new(&layer, move |_, _| async move {
            let mut response = text(status, "");
            if content_type.is_none() {
                response.headers_mut().clear();
            }
            response
        });
        let key = format!("k{status}");
        for _ in 0..2 {
            let answer = served.send(post(&key)).await;
            assert_eq!((answer.status.as_u16(), answer.body.len()), (status, 0));
            assert_eq!(answer.header("content-type"), content_type);
        }
        let replay = served.start(post(&key)).await;
        assert!(replay.body().is_end_stream());
        let length = (status == 200).then_some("0");
        let sent = replay.headers().get("content-length");
        assert_eq!(sent.map(|value| value.to_str().unwrap()), length);
    }
}

#[tokio::test]
async fn trailers_come_back() {
    let world = World::new();
    let served = Served::new(&world.layer(), async |_, _| {
        let trailers = headers(&[("grpc-status", b"0"), ("set-cookie", b"a=1")]);
        let body = Full::new(Bytes::from_static(b"message"));
        let body = body.with_trailers(async { Some(Ok(trailers)) });
        Response::new(body.map_err(|never| match never {}).boxed_unsync())
    });
    let first = served.send(post("k")).await;
    assert_eq!(first.trailers.len(), 2);
    let replay = served.send(post("k")).await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, first.body);
    assert_eq!(replay.trailers, headers(&[("grpc-status", b"0")]));
    // A length would forbid them in HTTP/1.1.
    assert_eq!(replay.header("content-length"), None);
}

#[tokio::test]
async fn only_the_layer_marks_replays() {
    let world = World::new();
    let served = Served::new(&world.layer(), async |_, _| {
        let mut response = text(200, "");
        let true_value = HeaderValue::from_static("true");
        response
            .headers_mut()
            .insert("idempotent-replayed", true_value.clone());
        response
            .headers_mut()
            .insert("idempotency-expires", true_value);
        response
    });
    let first = served.send(post("k")).await;
    assert!(!first.is_replay());
    let replay = served.send(post("k")).await;
    assert_eq!(
        replay.headers.get_all("idempotent-replayed").iter().count(),
        1
    );
    // Both tell until when the answer is kept: a day, by default.
    let expires = first.header("idempotency-expires").unwrap();
    assert_eq!(replay.header("idempotency-expires"), Some(expires));
    let expires = httpdate_seconds(expires);
    let day = 24 * 60 * 60;
    assert!((day - 60..=day + 60).contains(&expires), "{expires}");
}

/// Seconds from now.
fn httpdate_seconds(date: &str) -> u64 {
    let date = httpdate::parse_http_date(date).unwrap();
    date.duration_since(SystemTime::now()).unwrap().as_secs()
}

#[tokio::test]
async fn markers_can_be_named_and_left_out() {
    let world = World::new();
    let layer = world
        .builder()
        .replay_marker(HeaderName::from_static("x-idempotent-replayed"))
        .expiry_header(None)
        .never_replay([HeaderName::from_static("content-type")])
        .build()
        .unwrap();
    let served = Served::counting(&layer);
    served.send(post("k")).await;
    let replay = served.send(post("k")).await;
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(replay.header("idempotent-replayed"), None);
    assert_eq!(replay.header("idempotency-expires"), None);
    assert_eq!(replay.header("content-type"), None);
}

#[tokio::test]
async fn answers_outlive_the_process() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::counting(&layer);
    served.send(post("k")).await.assert_ran(1);
    drop((served, layer));
    let world = world.restart();
    let served = Served::counting(&world.layer());
    served.send(post("k")).await.assert_replayed(1);
    assert_eq!(served.runs(), 0);
}

#[tokio::test]
async fn a_stored_answer_can_be_read_beside_the_layer() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    served.send(post("k")).await;
    let name = operation_name(&http::Method::POST, "/payments", 255);
    let key = Key::new("alice", name, "k").unwrap();
    let KeyState::Completed(saved) = world.store.get(&key).unwrap() else {
        panic!("it was completed")
    };
    let stored = saved.by_scope().unwrap().response().unwrap().clone();
    let stored = StoredResponse::decode(stored.into()).unwrap();
    assert_eq!(
        (stored.status.as_u16(), &stored.body[..]),
        (200, &b"run 1"[..])
    );
}

#[tokio::test]
async fn what_other_code_stored_is_told_and_not_run() {
    let world = World::new();
    let name = operation_name(&http::Method::POST, "/payments", 255);
    let key = Key::new("alice", name, "k").unwrap();
    let claim = world
        .store
        .claim(&key, oncekey::Fingerprint::none())
        .unwrap();
    let oncekey::Claim::Started(operation) = claim else {
        panic!("{claim:?}")
    };
    operation.complete(b"not from the layer").unwrap();
    let layer = world.layer();
    let served = Served::counting(&layer);
    served
        .send(post("k"))
        .await
        .assert_problem(410, "NotReplayable");
    assert_eq!((served.runs(), layer.stats().not_replayable), (0, 1));
}
