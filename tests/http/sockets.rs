//! Over real connections: axum's server, and clients that speak HTTP/1.1 by hand or with reqwest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use oncekey::Store;
use oncekey::http::{IdempotencyLayer, IdempotentOperation, OnInterrupted, Scope};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::world::{World, eventually};

#[derive(Clone)]
struct Account(String);

#[derive(Clone)]
struct App {
    runs: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

struct Server {
    address: SocketAddr,
    app: App,
    layer: IdempotencyLayer,
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(account) = request.headers().get("authorization") else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let account = Account(account.to_str().unwrap().to_owned());
    request.extensions_mut().insert(account);
    next.run(request).await
}

async fn create(State(app): State<App>, operation: IdempotentOperation, body: String) -> Response {
    let run = app.runs.fetch_add(1, Ordering::SeqCst) + 1;
    if body == "slow" {
        app.gate.acquire().await.unwrap().forget();
    }
    let headers = [
        ("location", format!("/payments/{run}")),
        ("set-cookie", "session=1".to_owned()),
    ];
    let body = format!("{body} {run} {}", operation.attempt());
    (StatusCode::CREATED, headers, body).into_response()
}

impl Server {
    async fn start(store: &Store) -> Self {
        let layer = IdempotencyLayer::new(store.clone())
            .scope(Scope::from_request(|request| {
                let account = request.extensions.get::<Account>()?;
                Some(account.0.clone())
            }))
            .on_interrupted(OnInterrupted::rerun())
            .build()
            .unwrap();
        let app = App {
            runs: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        };
        let routes = Router::new()
            .route("/payments", post(create).get(async || "list"))
            .layer(layer.clone())
            .layer(middleware::from_fn(authenticate))
            .with_state(app.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            address,
            app,
            layer,
        }
    }

    fn runs(&self) -> usize {
        self.app.runs.load(Ordering::SeqCst)
    }

    fn request(&self, key: &str, body: &'static str) -> reqwest::RequestBuilder {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client
            .post(format!("http://{}/payments", self.address))
            .header("authorization", "alice")
            .header("idempotency-key", key)
            .body(body)
    }
}

/// Sends bytes and reads until the other side closes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The header lines, sorted and without what belongs to one message, and the body.
fn taken_apart(answer: &str) -> (Vec<String>, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let is_own = |line: &&str| !line.starts_with("date:") && !line.starts_with("set-cookie:");
    let mut lines: Vec<_> = head.lines().filter(is_own).map(str::to_owned).collect();
    lines.sort_unstable();
    (lines, body)
}

#[tokio::test]
async fn a_replay_is_the_same_message_but_for_its_mark() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let request = "POST /payments HTTP/1.1\r\nhost: x\r\nauthorization: alice\r\n\
        idempotency-key: \"k\"\r\nconnection: close\r\ncontent-length: 3\r\n\r\npay";
    let first = raw(server.address, request).await;
    let (mut lines, body) = taken_apart(&first);
    assert_eq!(body, "pay 1 1");
    assert!(first.starts_with("HTTP/1.1 201"));
    // The same in chunks.
    let chunked = "POST /payments HTTP/1.1\r\nhost: x\r\nauthorization: alice\r\n\
        idempotency-key: k\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
        2\r\npa\r\n1\r\ny\r\n0\r\n\r\n";
    for request in [request, chunked] {
        let replay = raw(server.address, request).await;
        let (replayed, replayed_body) = taken_apart(&replay);
        lines.retain(|line| line != "idempotent-replayed: true");
        lines.push("idempotent-replayed: true".to_owned());
        lines.sort_unstable();
        assert_eq!((&replayed, replayed_body), (&lines, body));
        assert!(replayed.contains(&"content-length: 7".to_owned()));
        assert!(!replay.contains("set-cookie"));
    }
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_replay_needs_authentication() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let first = server.request("k", "pay").send().await.unwrap();
    assert_eq!(first.status(), 201);
    let unknown = "POST /payments HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\
        connection: close\r\ncontent-length: 3\r\n\r\npay";
    let answer = raw(server.address, unknown).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert!(!answer.contains("pay 1"));
    let bob = unknown.replace("host: x", "host: x\r\nauthorization: bob");
    let answer = raw(server.address, &bob).await;
    assert!(answer.ends_with("pay 2 1"), "{answer}");
    // What the authentication answered never reached the store.
    assert_eq!(world.store.stats().claims_started, 2);
}

#[tokio::test]
async fn a_client_that_cuts_the_connection_finds_its_answer() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let request = "POST /payments HTTP/1.1\r\nhost: x\r\nauthorization: alice\r\n\
        idempotency-key: k\r\ncontent-length: 4\r\n\r\nslow";
    connection.write_all(request.as_bytes()).await.unwrap();
    eventually("the handler runs", || server.runs() == 1).await;
    drop(connection);
    let busy = server.request("k", "slow").send().await.unwrap();
    assert_eq!(busy.status(), 409);
    assert_eq!(busy.headers()["retry-after"], "1");
    server.app.gate.add_permits(1);
    server.layer.idle().await;
    let found = server.request("k", "slow").send().await.unwrap();
    assert_eq!(found.status(), 201);
    assert_eq!(found.headers()["idempotent-replayed"], "true");
    assert_eq!(found.headers()["location"], "/payments/1");
    assert_eq!(found.text().await.unwrap(), "slow 1 1");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_client_that_times_out_finds_its_answer() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let request = server
        .request("k", "slow")
        .timeout(Duration::from_millis(50));
    assert!(request.send().await.unwrap_err().is_timeout());
    eventually("the handler runs", || server.runs() == 1).await;
    server.app.gate.add_permits(1);
    server.layer.idle().await;
    let found = server.request("k", "slow").send().await.unwrap();
    assert_eq!(found.text().await.unwrap(), "slow 1 1");
}

#[tokio::test]
async fn a_body_that_is_cut_off_leaves_no_claim() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let request = "POST /payments HTTP/1.1\r\nhost: x\r\nauthorization: alice\r\n\
        idempotency-key: k\r\ncontent-length: 100\r\n\r\nhalf";
    connection.write_all(request.as_bytes()).await.unwrap();
    drop(connection);
    let first = server.request("k", "whole").send().await.unwrap();
    assert_eq!(first.text().await.unwrap(), "whole 1 1");
    assert_eq!(world.store.stats().claims_started, 1);
}

#[tokio::test]
async fn ten_at_once_run_once() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    server.app.gate.add_permits(1);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let request = server.request("k", "slow");
        tasks.push(tokio::spawn(async move {
            loop {
                let answer = request.try_clone().unwrap().send().await.unwrap();
                if answer.status() != 409 {
                    return answer.text().await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), "slow 1 1");
    }
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn reads_are_not_touched() {
    let world = World::new();
    let server = Server::start(&world.store).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for method in [reqwest::Method::GET, reqwest::Method::HEAD] {
        let url = format!("http://{}/payments", server.address);
        let request = client.request(method, url).header("authorization", "alice");
        let answer = request.header("idempotency-key", "k").send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let headers: &HeaderMap = answer.headers();
        assert!(!headers.contains_key("idempotent-replayed"));
    }
    assert_eq!(world.store.stats().claims_started, 0);
    assert_eq!(server.layer.stats().passed, 2);
}
