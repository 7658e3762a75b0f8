//! A service behind the HTTP layer on a real socket, something in front of it that spoils answers,
//! and clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use oncekey::client::{
    Attempt, BodyError, Journal, Journaled, JournaledOperation, NoAnswer, RetryMiddleware,
    RetryPolicy, whole,
};
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
use oncekey::{Durability, Options, Store};
use parking_lot::Mutex;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub const HOUR: Duration = Duration::from_secs(60 * 60);

/// What becomes of a request's answer, from the first request on; then nothing.
#[derive(Clone, Debug)]
pub enum Spoil {
    /// The service answers.
    Nothing,
    /// The service runs, and the connection is cut instead of an answer.
    CutAfter,
    /// Something in front of the service answers.
    Answer(u16, Vec<(&'static str, String)>),
}

#[derive(Clone)]
pub struct App {
    runs: Arc<AtomicUsize>,
    /// The keys of all requests that came, whatever became of them.
    seen: Arc<Mutex<Vec<Option<String>>>>,
    spoils: Arc<Mutex<std::vec::IntoIter<Spoil>>>,
    pub gate: Arc<Semaphore>,
}

pub struct Server {
    address: SocketAddr,
    pub app: App,
    _directory: TempDir,
}

async fn pay(State(app): State<App>, body: String) -> Response {
    let run = app.runs.fetch_add(1, Ordering::SeqCst) + 1;
    if body == "slow" {
        app.gate.acquire().await.unwrap().forget();
    }
    (StatusCode::CREATED, format!("{body} {run}")).into_response()
}

/// Cuts the connection by a panic of its task, after the service has answered.
async fn spoil(State(app): State<App>, request: Request, next: Next) -> Response {
    let key = request.headers().get("idempotency-key");
    let key = key.map(|key| key.to_str().unwrap().to_owned());
    app.seen.lock().push(key);
    let spoil = app.spoils.lock().next().unwrap_or(Spoil::Nothing);
    match spoil {
        Spoil::Nothing => next.run(request).await,
        Spoil::CutAfter => {
            let answer = next.run(request).await;
            drop(axum::body::to_bytes(answer.into_body(), 1 << 20).await);
            std::panic::resume_unwind(Box::new("the connection is cut"))
        }
        Spoil::Answer(status, headers) => {
            let mut answer = StatusCode::from_u16(status).unwrap().into_response();
            for (name, value) in headers {
                answer.headers_mut().insert(name, value.parse().unwrap());
            }
            answer
        }
    }
}

impl Server {
    pub async fn start(spoils: Vec<Spoil>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory);
        let layer = IdempotencyLayer::new(store)
            .scope(Scope::global())
            .on_interrupted(OnInterrupted::rerun())
            .build()
            .unwrap();
        let app = App {
            runs: Arc::default(),
            seen: Arc::default(),
            spoils: Arc::new(Mutex::new(spoils.into_iter())),
            gate: Arc::new(Semaphore::new(0)),
        };
        let routes = Router::new()
            .route("/payments", post(pay))
            .layer(layer)
            .layer(middleware::from_fn_with_state(app.clone(), spoil))
            .with_state(app.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            address,
            app,
            _directory: directory,
        }
    }

    pub fn runs(&self) -> usize {
        self.app.runs.load(Ordering::SeqCst)
    }

    /// The keys that came, one for each request.
    pub fn seen(&self) -> Vec<Option<String>> {
        self.app.seen.lock().clone()
    }

    /// How many requests came, which all had the same key.
    #[track_caller]
    pub fn requests_with_one_key(&self) -> usize {
        let seen = self.seen();
        assert!(seen[0].is_some());
        assert!(seen.iter().all(|key| *key == seen[0]), "{seen:?}");
        seen.len()
    }

    pub fn url(&self) -> String {
        format!("http://{}/payments", self.address)
    }

    pub fn request(&self, body: &'static str) -> http::Request<Bytes> {
        request(&self.url(), body)
    }
}

pub fn request(url: &str, body: &'static str) -> http::Request<Bytes> {
    http::Request::post(url)
        .header("content-type", "text/plain")
        .body(Bytes::from(body))
        .unwrap()
}

pub fn open(directory: &TempDir) -> Store {
    options().open(directory.path()).unwrap()
}

pub fn options() -> Options {
    Options::new()
        .durability(Durability::Buffered)
        .segment_size(4 << 20)
}

/// Quick, so that tests are.
pub fn policy() -> RetryPolicy {
    RetryPolicy::new().delays(Duration::from_millis(5), Duration::from_millis(20))
}

pub fn client(policy: RetryPolicy) -> ClientWithMiddleware {
    ClientBuilder::new(plain())
        .with(RetryMiddleware::new(policy))
        .build()
}

pub fn plain() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap()
}

/// What sending by reqwest may meet.
#[derive(Debug)]
#[expect(dead_code, reason = "shown where a test fails")]
pub enum Failed {
    Client(reqwest_middleware::Error),
    Body(BodyError),
}

pub async fn execute(
    client: &ClientWithMiddleware,
    attempt: Attempt<'_>,
) -> Result<http::Response<Bytes>, Failed> {
    let request = attempt.request().try_into().unwrap();
    let answer = client.execute(request).await.map_err(Failed::Client)?;
    whole(answer, 1 << 20).await.map_err(Failed::Body)
}

pub struct Book {
    pub journal: Journal,
    pub store: Store,
    pub directory: TempDir,
}

impl Book {
    pub fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    fn on(directory: TempDir) -> Self {
        let store = open(&directory);
        Self {
            journal: Journal::new(store.clone(), HOUR),
            store,
            directory,
        }
    }

    /// The process ends and another begins.
    pub fn restart(self) -> Self {
        self.store.close().unwrap();
        Self::on(self.directory)
    }

    pub async fn begin(&self, name: &str, request: http::Request<Bytes>) -> JournaledOperation {
        ready(self.journal.begin(name, request).await.unwrap())
    }

    /// Resumes the only one there is.
    pub async fn resume(&self) -> Journaled {
        let unfinished = self.journal.unfinished().await.unwrap();
        let [unfinished] = &unfinished[..] else {
            panic!("one operation is unfinished: {unfinished:?}")
        };
        self.journal.resume(unfinished).await.unwrap()
    }
}

#[track_caller]
pub fn ready(journaled: Journaled) -> JournaledOperation {
    match journaled {
        Journaled::Ready(operation) => operation,
        other => panic!("not ready: {other:?}"),
    }
}

/// The middleware's own error.
#[track_caller]
pub fn no_answer(error: reqwest_middleware::Error) -> NoAnswer {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast().unwrap(),
        reqwest_middleware::Error::Reqwest(error) => panic!("{error}"),
    }
}
