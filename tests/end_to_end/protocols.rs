//! One connection for many requests: keep-alive, pipelining, HTTP/2, and gRPC's trailers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::payments::{serve, store};

struct Server {
    address: SocketAddr,
    runs: Arc<AtomicUsize>,
    /// Opens `/gated`.
    gate: Arc<Semaphore>,
    _directory: TempDir,
}

impl Server {
    /// `/text` and `/gated` answer with the number of the run, `/greet.Greeter/Hello` like a gRPC
    /// server.
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let layer = IdempotencyLayer::new(store(&directory))
            .scope(Scope::global())
            .on_interrupted(OnInterrupted::rerun())
            .wait(Duration::from_secs(30))
            .build()
            .unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let (text, greet) = (Arc::clone(&runs), Arc::clone(&runs));
        let (gated, opened) = (Arc::clone(&runs), Arc::clone(&gate));
        let routes = Router::new()
            .route(
                "/text",
                post(async move || {
                    let run = text.fetch_add(1, Ordering::SeqCst) + 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    format!("run {run}")
                }),
            )
            .route(
                "/gated",
                post(async move || {
                    let run = gated.fetch_add(1, Ordering::SeqCst) + 1;
                    opened.acquire().await.unwrap().forget();
                    format!("run {run}")
                }),
            )
            .route(
                "/greet.Greeter/Hello",
                post(async move || grpc(greet.fetch_add(1, Ordering::SeqCst) + 1)),
            )
            .layer(layer);
        Self {
            address: serve(routes).await,
            runs,
            gate,
            _directory: directory,
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// A message with its length before it; the status is in the trailers.
fn grpc(run: usize) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("run", HeaderValue::from(run));
    let message = Full::new(Bytes::from_static(b"\0\0\0\0\x02hi"));
    Response::builder()
        .header("content-type", "application/grpc")
        .body(Body::new(
            message.with_trailers(async move { Some(Ok(trailers)) }),
        ))
        .unwrap()
}

fn message(key: &str) -> String {
    format!(
        "POST /text HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 1\r\n\r\nx"
    )
}

/// The body of the next answer, and whether it is a replay.
async fn next_answer(connection: &mut TcpStream, read: &mut Vec<u8>) -> (String, bool) {
    loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(read[..at].to_vec()).unwrap();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map(|length| length.parse::<usize>().unwrap())
                .expect("a length");
            if read.len() >= at + 4 + length {
                let body = String::from_utf8(read[at + 4..at + 4 + length].to_vec()).unwrap();
                read.drain(..at + 4 + length);
                return (body, head.contains("idempotent-replayed: true"));
            }
        }
        assert_ne!(connection.read_buf(read).await.unwrap(), 0, "closed");
    }
}

#[tokio::test]
async fn one_connection_serves_first_answers_and_replays_in_turn() {
    let server = Server::start().await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let mut read = Vec::new();
    for (key, run, is_replay) in [
        ("a", 1, false),
        ("a", 1, true),
        ("b", 2, false),
        ("a", 1, true),
    ] {
        connection.write_all(message(key).as_bytes()).await.unwrap();
        let answer = next_answer(&mut connection, &mut read).await;
        assert_eq!(answer, (format!("run {run}"), is_replay));
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start().await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let all: String = ["a", "a", "b", "a"].into_iter().map(message).collect();
    connection.write_all(all.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    for (run, is_replay) in [(1, false), (1, true), (2, false), (1, true)] {
        let answer = next_answer(&mut connection, &mut read).await;
        assert_eq!(answer, (format!("run {run}"), is_replay));
    }
    assert_eq!(server.runs(), 2);
}

/// An HTTP/2 connection without TLS, by prior knowledge.
async fn http2(address: SocketAddr) -> http2::SendRequest<Full<Bytes>> {
    let connection = TcpStream::connect(address).await.unwrap();
    let io = TokioIo::new(connection);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(
    address: SocketAddr,
    path: &str,
    key: &str,
    body: &'static [u8],
) -> Request<Full<Bytes>> {
    Request::post(format!("http://{address}{path}"))
        .header("idempotency-key", key)
        .body(Full::from(body))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_one_http2_connection_run_a_key_once() {
    let server = Server::start().await;
    let sender = http2(server.address).await;
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..40 {
        let mut sender = sender.clone();
        let request = request(server.address, "/text", ["a", "b"][number % 2], b"x");
        streams.spawn(async move {
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.version(), axum::http::Version::HTTP_2);
            assert_eq!(answer.status(), 200);
            let is_replay = answer.headers().contains_key("idempotent-replayed");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (number % 2, is_replay, body)
        });
    }
    let answers = streams.join_all().await;
    assert_eq!(server.runs(), 2);
    for key in 0..2 {
        let of_key: Vec<_> = answers.iter().filter(|(of, _, _)| *of == key).collect();
        assert!(
            of_key.iter().all(|(_, _, body)| *body == of_key[0].2),
            "{of_key:?}"
        );
        assert_eq!(
            of_key.iter().filter(|(_, is_replay, _)| !is_replay).count(),
            1
        );
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_finds_its_answer() {
    let server = Server::start().await;
    let mut sender = http2(server.address).await;
    let mut reset = Box::pin(sender.send_request(request(server.address, "/gated", "k", b"x")));
    while server.runs() == 0 {
        let patience = Duration::from_millis(1);
        assert!(tokio::time::timeout(patience, &mut reset).await.is_err());
    }
    drop(reset);
    server.gate.add_permits(1);
    let found = sender
        .send_request(request(server.address, "/gated", "k", b"x"))
        .await
        .unwrap();
    let body = found.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((&body[..], server.runs()), (&b"run 1"[..], 1));
}

#[tokio::test]
async fn a_grpc_answer_is_replayed_with_its_trailers() {
    let server = Server::start().await;
    let mut sender = http2(server.address).await;
    for is_replay in [false, true, true] {
        let mut call = request(server.address, "/greet.Greeter/Hello", "k", b"\0\0\0\0\0");
        let headers = call.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        let answer = sender.send_request(call).await.unwrap();
        let headers = answer.headers();
        assert_eq!(headers["content-type"], "application/grpc");
        assert_eq!(headers.contains_key("idempotent-replayed"), is_replay);
        let answer = answer.into_body().collect().await.unwrap();
        let trailers = answer.trailers().expect("a status").clone();
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(trailers["run"], "1");
        assert_eq!(&answer.to_bytes()[..], b"\0\0\0\0\x02hi");
    }
}
