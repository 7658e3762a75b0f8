//! Bodies of requests and answers: limits, streams, and those that break off.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use oncekey::http::{IdempotencyLayer, RequestBody, RequestFingerprint};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{
    AnyBody, Broken, LONG, Served, World, eventually, full, operation, post, request, text,
};

/// A body whose frames the test sends.
struct Stream(
    mpsc::UnboundedReceiver<Result<Frame<Bytes>, Broken>>,
    SizeHint,
);

impl Body for Stream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.1
    }
}

fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, Broken> {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

/// A body that is sent already, of a length that nobody knows.
fn stream(frames: impl IntoIterator<Item = Result<Frame<Bytes>, Broken>>) -> AnyBody {
    let (to, from) = mpsc::unbounded_channel();
    for frame in frames {
        to.send(frame).unwrap();
    }
    Stream(from, SizeHint::default()).boxed_unsync()
}

/// A layer whose answers are kept up to 10 bytes.
fn keeping_ten(world: &World) -> IdempotencyLayer {
    world.builder().max_response(10).build().unwrap()
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_leaves_no_claim() {
    let world = World::new();
    let layer = world.builder().max_request(4).build().unwrap();
    let service = layer.layer(service_fn(
        |call: Request<RequestBody<AnyBody>>| async move {
            let body = call.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(text(200, body))
        },
    ));
    let head = || {
        Request::post("/payments")
            .header("account", "alice")
            .header("idempotency-key", "k")
    };
    // Told in advance, and found out on the way.
    let (_open, frames) = mpsc::unbounded_channel();
    let announced = Stream(frames, SizeHint::with_exact(5)).boxed_unsync();
    for body in [
        announced,
        full(&b"12345"[..]),
        stream([data(b"123"), data(b"45")]),
    ] {
        let answer = service.clone().oneshot(head().body(body).unwrap()).await;
        assert_eq!(answer.unwrap().status(), 413);
    }
    // Broken off.
    let broken = stream([data(b"12"), Err(Broken("reset"))]);
    let answer = service.clone().oneshot(head().body(broken).unwrap()).await;
    assert_eq!(answer.unwrap().status(), 400);
    assert_eq!(world.store.stats().claims_started, 0);
    assert_eq!(layer.stats().refused, 4);

    // Up to the limit, in one piece or in several: the same request.
    for (body, is_replay) in [
        (full(&b"1234"[..]), false),
        (stream([data(b"12"), data(b"34")]), true),
    ] {
        let answer = service
            .clone()
            .oneshot(head().body(body).unwrap())
            .await
            .unwrap();
        assert_eq!(
            answer.headers().contains_key("idempotent-replayed"),
            is_replay
        );
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], b"1234");
    }
}

#[tokio::test]
async fn json_can_be_compared_by_its_value() {
    let world = World::new();
    let layer = world
        .builder()
        .fingerprint(RequestFingerprint::canonical_json());
    let served = Served::counting(&layer.build().unwrap());
    let send = |body| {
        let mut request = request("POST", "/", "k", body);
        let json = http::HeaderValue::from_static("application/json");
        request.headers_mut().insert("content-type", json);
        served.send(request)
    };
    send(r#"{"a":1,"b":{"c":[1,2],"d":3}}"#).await.assert_ran(1);
    let same = r#"{ "b": {"d":3, "c":[1,2]}, "a":1 }"#;
    send(same).await.assert_replayed(1);
    let other = r#"{"a":1,"b":{"c":[2,1],"d":3}}"#;
    send(other).await.assert_problem(422, "KeyReused");
    send(r#"{"a":1,"#).await.assert_problem(422, "KeyReused");
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_is_compared() {
    let world = World::new();
    let first_letter = RequestFingerprint::custom(|_, body| {
        oncekey::Fingerprint::of(body.get(..1).unwrap_or_default())
    });
    let layer = world.builder().fingerprint(first_letter).build().unwrap();
    let served = Served::counting(&layer);
    served
        .send(request("POST", "/", "k", "abc"))
        .await
        .assert_ran(1);
    served
        .send(request("POST", "/", "k", "axx"))
        .await
        .assert_replayed(1);
    let other = served.send(request("POST", "/", "k", "xbc")).await;
    other.assert_problem(422, "KeyReused");
}

#[tokio::test]
async fn a_stream_is_passed_on_while_it_is_made_and_then_kept() {
    let world = World::new();
    let layer = keeping_ten(&world);
    let (to, from) = mpsc::unbounded_channel();
    let from = std::sync::Arc::new(std::sync::Mutex::new(Some(from)));
    let served = Served::new(&layer, move |_, _| {
        let from = from.lock().unwrap().take().unwrap();
        async move { Response::new(Stream(from, SizeHint::default()).boxed_unsync()) }
    });
    let mut body = served.start(post("k")).await.into_body();
    for bytes in [&b"one"[..], b"two"] {
        to.send(data(bytes)).unwrap();
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), bytes);
    }
    // Not done before its end.
    served
        .send(post("k"))
        .await
        .assert_problem(409, "InProgress");
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", http::HeaderValue::from_static("1"));
    to.send(Ok(Frame::trailers(trailers.clone()))).unwrap();
    drop(to);
    assert_eq!(
        body.frame()
            .await
            .unwrap()
            .unwrap()
            .into_trailers()
            .unwrap(),
        trailers
    );
    assert!(body.frame().await.is_none());
    // The end was told when the answer was stored.
    let replay = served.send(post("k")).await;
    assert!(replay.is_replay());
    assert_eq!(
        (&replay.body[..], &replay.trailers),
        (&b"onetwo"[..], &trailers)
    );
    assert_eq!(served.runs(), 1);
}

#[tokio::test]
async fn a_stream_over_the_limit_is_done_and_not_replayable() {
    let world = World::new();
    let layer = keeping_ten(&world);
    let served = Served::new(&layer, async |_, _| {
        Response::new(stream([
            data(b"12345"),
            data(b"67890"),
            data(b"x"),
            data(b"y"),
        ]))
    });
    let first = served.send(post("k")).await;
    assert_eq!(first.text(), "1234567890xy");
    for _ in 0..2 {
        served
            .send(post("k"))
            .await
            .assert_problem(410, "NotReplayable");
    }
    let stats = layer.stats();
    assert_eq!(
        (
            served.runs(),
            stats.stored_without_body,
            stats.not_replayable
        ),
        (1, 1, 2)
    );
}

#[tokio::test]
async fn a_known_length_over_the_limit_is_passed_on_with_its_length() {
    let world = World::new();
    let served = Served::new(&keeping_ten(&world), async |_, _| text(200, "1234567890x"));
    let first = served.start(post("k")).await;
    let mut body = first.into_body();
    assert_eq!(body.size_hint().exact(), Some(11));
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), &b"1234567890x"[..]);
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(body.frame().await.is_none());
    served
        .send(post("k"))
        .await
        .assert_problem(410, "NotReplayable");
    assert_eq!(served.runs(), 1);
}

/// A client that knows the length needs no more than its last byte to know the whole.
#[tokio::test]
async fn the_last_of_a_known_length_comes_when_the_answer_is_stored() {
    for is_in_header in [false, true] {
        let world = World::new();
        let (to, from) = mpsc::unbounded_channel();
        let from = std::sync::Arc::new(std::sync::Mutex::new(Some(from)));
        let served = Served::new(&keeping_ten(&world), move |_, _| {
            let from = from.lock().unwrap().take().unwrap();
            async move {
                let size = SizeHint::with_exact(12);
                let answer = Response::builder();
                match is_in_header {
                    true => answer
                        .header("content-length", "12")
                        .body(Stream(from, SizeHint::default()).boxed_unsync()),
                    false => answer.body(Stream(from, size).boxed_unsync()),
                }
                .unwrap()
            }
        });
        let mut body = served.start(post("k")).await.into_body();
        to.send(data(b"123456")).unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "123456"
        );
        to.send(data(b"789012")).unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), body.frame()).await;
        assert!(early.is_err(), "the key is at work still");
        drop(to);
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "789012"
        );
        let again = served.send(post("k")).await;
        again.assert_problem(410, "NotReplayable");
    }
}

#[tokio::test]
async fn an_answer_larger_than_the_store_takes_is_done_and_not_replayable() {
    let world = World::new();
    // The body fits, its headers do not.
    let layer = world.builder().max_response(1 << 20).build().unwrap();
    let served = Served::new(&layer, async |_, _| text(200, vec![b'x'; 1 << 20]));
    assert_eq!(served.send(post("k")).await.body.len(), 1 << 20);
    served
        .send(post("k"))
        .await
        .assert_problem(410, "NotReplayable");
    assert_eq!(served.runs(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_leaves_the_key_interrupted() {
    let world = World::new();
    let layer = world.layer();
    let known = |frames| {
        let (to, from) = mpsc::unbounded_channel();
        for frame in frames {
            to.send(frame).unwrap();
        }
        Stream(from, SizeHint::with_exact(9)).boxed_unsync()
    };
    for is_known in [false, true] {
        let served = Served::new(&layer, move |_, call| async move {
            if operation(&call).attempt() > 1 {
                return text(200, "whole");
            }
            let frames = [data(b"half"), Err(Broken("the database is gone"))];
            Response::new(match is_known {
                true => known(frames),
                false => stream(frames),
            })
        });
        let key = format!("k{is_known}");
        let broken = served.start(post(&key)).await.into_body().collect().await;
        let error = broken.unwrap_err().to_string();
        assert!(error.contains("the database is gone"), "{error}");
        assert_eq!(served.send(post(&key)).await.text(), "whole");
    }
    assert_eq!(layer.stats().interrupted, 2);
}

#[tokio::test]
async fn a_body_that_panics_leaves_the_key_interrupted_and_goes_on_in_its_reader() {
    struct Panics;
    impl Body for Panics {
        type Data = Bytes;
        type Error = Broken;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
            panic!("a defect of the body");
        }
    }
    let world = World::new();
    let served = Served::new(&world.layer(), async |_, _| {
        Response::new(Panics.boxed_unsync())
    });
    let body = served.start(post("k")).await.into_body();
    let reader = tokio::spawn(body.collect());
    assert!(reader.await.unwrap_err().is_panic());
    assert_eq!(world.store.stats().interrupted_keys, 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_during_a_stream_does_not_stop_it() {
    let world = World::new();
    let layer = keeping_ten(&world);
    let (to, from) = mpsc::unbounded_channel();
    let from = std::sync::Arc::new(std::sync::Mutex::new(Some(from)));
    let served = Served::new(&layer, move |_, _| {
        let from = from.lock().unwrap().take().unwrap();
        async move { Response::new(Stream(from, SizeHint::default()).boxed_unsync()) }
    });
    to.send(data(b"one")).unwrap();
    let mut body = served.start(post("k")).await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    to.send(data(b"two")).unwrap();
    drop(to);
    layer.idle().await;
    let replay = served.send(post("k")).await;
    assert!(replay.is_replay());
    assert_eq!(replay.text(), "onetwo");
}

#[tokio::test]
async fn an_endless_stream_ends_with_its_client() {
    let world = World::new();
    let layer = keeping_ten(&world);
    let (to, from) = mpsc::unbounded_channel();
    let from = std::sync::Arc::new(std::sync::Mutex::new(Some(from)));
    let served = Served::new(&layer, move |_, _| {
        let from = from.lock().unwrap().take().unwrap();
        async move { Response::new(Stream(from, SizeHint::default()).boxed_unsync()) }
    });
    let body = served.start(post("k")).await.into_body();
    drop(body);
    tokio::time::timeout(LONG, async {
        while to.send(data(b"tick")).is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the stream is dropped when nobody reads it and it can't be kept");
    layer.idle().await;
    served
        .send(post("k"))
        .await
        .assert_problem(410, "NotReplayable");
}

#[tokio::test]
async fn slow_readers_hold_back_the_handler() {
    let world = World::new();
    let layer = world.layer();
    let (to, from) = mpsc::unbounded_channel();
    for _ in 0..100 {
        to.send(data(b"x")).unwrap();
    }
    let to_watch = to.clone();
    drop(to);
    let from = std::sync::Arc::new(std::sync::Mutex::new(Some(from)));
    let served = Served::new(&layer, move |_, _| {
        let from = from.lock().unwrap().take().unwrap();
        async move { Response::new(Stream(from, SizeHint::default()).boxed_unsync()) }
    });
    let body = served.start(post("k")).await.into_body();
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    // A few frames ahead of the reader, and no more.
    assert!(!to_watch.is_closed());
    assert_eq!(layer.stats().stored, 0);
    drop(to_watch);
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), 100);
    eventually("stored", || layer.stats().stored == 1).await;
}
