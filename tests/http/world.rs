//! A store, a layer over it, and handlers that count how often they run.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use oncekey::http::{
    IdempotencyLayer, IdempotentOperation, LayerBuilder, OnInterrupted, RequestBody, ResponseBody,
    Scope,
};
use oncekey::{Durability, Options, Store};
use tempfile::TempDir;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

/// More than any wait in these tests takes: a test that gets there hangs.
pub const LONG: Duration = Duration::from_secs(60);

pub type AnyBody = UnsyncBoxBody<Bytes, Broken>;
pub type Sent = Request<Full<Bytes>>;
pub type Call = Request<RequestBody<Full<Bytes>>>;
pub type Builder = LayerBuilder<Scope, OnInterrupted>;

/// Why a body broke off.
#[derive(Debug)]
pub struct Broken(pub &'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Broken {}

pub struct World {
    pub store: Store,
    pub directory: TempDir,
}

impl World {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = options().open(directory.path()).unwrap();
        Self { store, directory }
    }

    /// The account in a header is the scope; interrupted requests run again.
    pub fn builder(&self) -> Builder {
        builder(&self.store)
    }

    pub fn layer(&self) -> IdempotencyLayer {
        self.builder().build().unwrap()
    }

    /// The process ends and another begins.
    pub fn restart(self) -> Self {
        self.store.close().unwrap();
        let directory = self.directory;
        let store = options().open(directory.path()).unwrap();
        Self { store, directory }
    }
}

pub fn builder(store: &Store) -> Builder {
    IdempotencyLayer::new(store.clone())
        .scope(Scope::from_request(|request| {
            let account = request.headers.get("account")?;
            Some(account.as_bytes().to_vec())
        }))
        .on_interrupted(OnInterrupted::rerun())
}

fn options() -> Options {
    Options::new()
        .durability(Durability::Buffered)
        .segment_size(4 << 20)
}

/// A service behind a layer.
#[derive(Clone)]
pub struct Served {
    service: BoxCloneSyncService<Sent, Response<ResponseBody<AnyBody>>, Infallible>,
    runs: Arc<AtomicUsize>,
}

impl Served {
    /// `handler` gets the number of its run, from 1 on.
    pub fn new<F, R>(layer: &IdempotencyLayer, handler: F) -> Self
    where
        F: Fn(usize, Call) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let service = service_fn(move |call: Call| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = handler(run, call);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        Self {
            service: BoxCloneSyncService::new(layer.layer(service)),
            runs,
        }
    }

    /// Answers every run with its number.
    pub fn counting(layer: &IdempotencyLayer) -> Self {
        Self::new(layer, async |run, _| text(200, format!("run {run}")))
    }

    /// Answers with a status, and the number of the run.
    pub fn with_status(layer: &IdempotencyLayer, status: u16) -> Self {
        Self::new(layer, move |run, _| async move {
            text(status, format!("run {run}"))
        })
    }

    pub fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// The answer's head; its body is still to come.
    pub fn start(
        &self,
        request: Sent,
    ) -> impl Future<Output = Response<ResponseBody<AnyBody>>> + Send + use<> {
        let service = self.service.clone();
        async move {
            let Ok(response) = service.oneshot(request).await;
            response
        }
    }

    pub fn send(&self, request: Sent) -> impl Future<Output = Answer> + Send + use<> {
        let response = self.start(request);
        async move { Answer::of(response.await).await }
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub trailers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    async fn of(response: Response<ResponseBody<AnyBody>>) -> Self {
        let (head, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        Self {
            status: head.status,
            headers: head.headers,
            trailers: collected.trailers().cloned().unwrap_or_default(),
            body: collected.to_bytes(),
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The last part of a problem's type, whose other members are checked on the way.
    pub fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["status"], self.status.as_u16());
        for member in ["title", "detail"] {
            assert!(!body[member].as_str().unwrap().is_empty());
        }
        let kind = body["type"].as_str().unwrap();
        kind.rsplit('.').next().unwrap().to_owned()
    }

    #[track_caller]
    pub fn assert_problem(&self, status: u16, kind: &str) {
        assert_eq!((self.status.as_u16(), &self.problem()[..]), (status, kind));
    }

    #[track_caller]
    pub fn assert_ran(&self, run: usize) {
        assert_eq!(self.text(), format!("run {run}"));
        assert!(!self.is_replay());
    }

    #[track_caller]
    pub fn assert_replayed(&self, run: usize) {
        assert_eq!(self.text(), format!("run {run}"));
        assert!(self.is_replay());
    }
}

pub fn post(key: &str) -> Sent {
    request("POST", "/payments", key, "body")
}

pub fn request(method: &str, uri: &str, key: &str, body: &'static str) -> Sent {
    let request = Request::builder().method(method).uri(uri);
    request
        .header("account", "alice")
        .header("idempotency-key", key)
        .body(Full::from(body))
        .unwrap()
}

pub fn text(status: u16, body: impl Into<Bytes>) -> Response<AnyBody> {
    Response::builder()
        .status(status)
        .header("content-type", "text/plain")
        .body(full(body))
        .unwrap()
}

pub fn full(body: impl Into<Bytes>) -> AnyBody {
    Full::new(body.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub fn operation(call: &Call) -> IdempotentOperation {
    let operation = call.extensions().get::<IdempotentOperation>();
    operation.expect("a keyed request has an operation").clone()
}

/// Waits for a state that must come.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
