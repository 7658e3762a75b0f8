//! The HTTP layer, the inbox and the client's journal over each shared backend: what they promise on an
//! embedded store holds there too, and nobody who uses them names the backend.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use oncekey::Key;
use oncekey::backend::Backend;
use oncekey::client::{Journal, Journaled};
use oncekey::http::{IdempotencyLayer, IdempotentOperation, OnInterrupted, RequestBody, Scope};
use oncekey::inbox::{self, Acked, DeadReason, Failure, Inbox, Message, Outcome, RetryReason};
use tokio::task::JoinSet;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use crate::servers::Server;
use crate::world::{LONG, block_on, postgres, redis, sqlite};

type Call = Request<RequestBody<Full<Bytes>>>;

/// What a client sees: status, whether it is a replay, body.
type Seen = (StatusCode, bool, Bytes);

#[derive(Clone)]
struct Served {
    service: BoxCloneSyncService<Request<Full<Bytes>>, Response<Bytes>, Infallible>,
    runs: Arc<AtomicUsize>,
}

impl Served {
    fn new(backend: impl Backend, wait: Duration) -> Self {
        let layer = IdempotencyLayer::new(backend)
            .scope(Scope::global())
            .on_interrupted(OnInterrupted::rerun())
            .wait(wait)
            .build()
            .expect("a layer");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let handler = service_fn(move |call: Call| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            answer(run, call)
        });
        let service = layer.layer(handler).map_future(|answer| async {
            let (head, body) = answer.await?.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            Ok(Response::from_parts(head, body))
        });
        Self {
            service: BoxCloneSyncService::new(service),
            runs,
        }
    }

    async fn post(&self, path: &str, key: &str, body: &'static str) -> Seen {
        let request = Request::post(path)
            .header("idempotency-key", format!("\"{key}\""))
            .body(Full::from(body))
            .expect("a request");
        let answer = self.service.clone().oneshot(request).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        let is_replay = answer.headers().contains_key("idempotent-replayed");
        (answer.status(), is_replay, answer.into_body())
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

async fn answer(run: usize, call: Call) -> Result<Response<Full<Bytes>>, Infallible> {
    let operation: IdempotentOperation = call.extensions().get().cloned().expect("an operation");
    let is_first = operation.attempt() == 1;
    match call.uri().path() {
        "/crash" if is_first => {
            operation.checkpoint("charging").await.expect("noted");
            panic!("the handler's first run ends badly");
        }
        "/crash" => {
            let previous = operation.previous().expect("an attempt before");
            let note = previous.checkpoint.as_deref();
            assert_eq!(note, Some(&b"charging"[..]));
        }
        _ => tokio::time::sleep(Duration::from_millis(50)).await,
    }
    let text = format!("run {run}, {}", operation.downstream_key("charge"));
    Ok(Response::builder()
        .status(201)
        .body(Full::from(text))
        .expect("an answer"))
}

async fn http_holds(backend: impl Backend, other_process: impl Backend) {
    let served = Served::new(backend.clone(), Duration::from_secs(60));
    let other = Served::new(other_process, Duration::from_secs(60));
    let mut callers = JoinSet::new();
    for caller in 0..10 {
        let served = if caller % 2 == 0 { &served } else { &other }.clone();
        callers.spawn(async move { served.post("/orders", "k-1", "two apples").await });
    }
    let seen = callers.join_all().await;
    assert_eq!(served.runs() + other.runs(), 1, "{seen:?}");
    assert_eq!(seen.iter().filter(|(_, replay, _)| !replay).count(), 1);
    let (_, _, body) = &seen[0];
    for answer in &seen {
        assert_eq!((answer.0, &answer.2), (StatusCode::CREATED, body));
    }
    let later = other.post("/orders", "k-1", "two apples").await;
    assert_eq!(later, (StatusCode::CREATED, true, body.clone()));
    let reused = served.post("/orders", "k-1", "three apples").await;
    assert_eq!(reused.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(served.runs() + other.runs(), 1);

    // The handler panics, and so does its caller; a retry in the other process takes the key up.
    let crashed = tokio::spawn({
        let served = served.clone();
        async move { served.post("/crash", "k-2", "").await }
    });
    assert!(crashed.await.is_err_and(|error| error.is_panic()));
    let again = other.post("/crash", "k-2", "").await;
    assert_eq!(
        (again.0, again.1),
        (StatusCode::CREATED, false),
        "{again:?}"
    );

    // Nobody waits where nobody may.
    let impatient = Served::new(backend.clone(), Duration::ZERO);
    let key = Key::new("", "POST /orders", "k-3").expect("a key");
    let claimed = backend.claim(&key, oncekey::Fingerprint::none(), Default::default());
    let guard = claimed.await.expect("claimed").into_guard();
    let (status, ..) = impatient.post("/orders", "k-3", "").await;
    assert_eq!(status, StatusCode::CONFLICT);
    drop(guard);
}

async fn settled<B: Backend>(inbox: &Inbox<B>, id: &str) -> Outcome {
    let begun = Instant::now();
    loop {
        let handled = inbox.process_async(id, async |_| Ok(())).await;
        if handled.is_settled() {
            return handled;
        }
        assert!(begun.elapsed() < LONG, "{handled:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn inbox_holds(backend: impl Backend, other_process: impl Backend) {
    let (mine, theirs) = (&built(backend), built(other_process));

    // One of many deliveries runs, whichever process they come to.
    let runs = Arc::new(AtomicUsize::new(0));
    let mut deliveries = JoinSet::new();
    for _ in 0..5 {
        let (mine, theirs) = (mine.clone(), theirs.clone());
        let counted = [Arc::clone(&runs), Arc::clone(&runs)];
        deliveries.spawn(async move {
            let [first, second] = counted;
            let mine = mine.process_async("evt_1", async |_| count(&first).await);
            let theirs = theirs.process_async("evt_1", async |_| count(&second).await);
            let (mine, theirs) = tokio::join!(mine, theirs);
            assert!([mine, theirs].iter().all(|outcome| matches!(
                outcome,
                Outcome::Ack(_)
                    | Outcome::RetryLater(inbox::RetryLater {
                        reason: RetryReason::InProgress { .. },
                        ..
                    })
            )));
        });
    }
    deliveries.join_all().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let again = settled(&theirs, "evt_1").await;
    assert!(
        matches!(again, Outcome::Ack(Acked::AlreadyProcessed)),
        "{again:?}"
    );

    // Attempts are counted through both, and end as a dead letter, which runs again when it is redriven.
    for run in 1..=2 {
        let outcome = mine
            .process_async("evt_2", async |event| {
                assert_eq!((event.run(), event.previous().is_some()), (run, false));
                Err(Failure::nothing_happened("no mail server"))
            })
            .await;
        assert!(matches!(outcome, Outcome::RetryLater(_)), "{outcome:?}");
    }
    let dead = loop {
        let outcome = theirs
            .process_async("evt_2", async |_| {
                Err(Failure::nothing_happened("no mail server"))
            })
            .await;
        match outcome {
            Outcome::DeadLetter(dead) => break dead,
            // The guard of the delivery before is still on its way out.
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert_eq!(dead.reason, DeadReason::TooManyAttempts);
    assert!(mine.redrive_async("evt_2").await.expect("redriven"));
    let redriven = settled(mine, "evt_2").await;
    assert!(
        matches!(redriven, Outcome::Ack(Acked::Processed)),
        "{redriven:?}"
    );

    // A poll: one outcome each, and an event that stands in it twice is handled once.
    let mut handled = Vec::new();
    let poll = ["evt_3", "evt_4", "evt_3", "evt_1"].map(Message::new);
    let outcomes = mine
        .process_batch_async(poll, async |index, _| {
            handled.push(index);
            Ok(())
        })
        .await;
    assert_eq!(handled, [0, 1]);
    assert!(outcomes.iter().all(Outcome::is_ack), "{outcomes:?}");
}

async fn count(runs: &AtomicUsize) -> Result<(), Failure> {
    runs.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}

fn built<B: Backend>(backend: B) -> Inbox<B> {
    let builder = Inbox::builder(backend, "mailer").on_interrupted(inbox::OnInterrupted::rerun());
    builder.max_attempts(3).build().expect("an inbox")
}

async fn journal_holds(backend: impl Backend, other_process: impl Backend) {
    let hour = Duration::from_secs(3_600);
    let (mine, theirs) = (
        Journal::new(backend, hour),
        Journal::new(other_process, hour),
    );
    let request = || {
        Request::post("https://example.com/orders")
            .body(Bytes::from_static(b"two apples"))
            .expect("a request")
    };
    let Journaled::Ready(begun) = mine.begin("order-17", request()).await.expect("begun") else {
        panic!("the name is new")
    };
    let key = begun.key().as_str().to_owned();
    let other = theirs.begin("order-17", request()).await.expect("looked");
    assert!(matches!(other, Journaled::InHand), "{other:?}");

    // Given up without an answer, it is found and resumed elsewhere, with the same key and request.
    drop(begun);
    let started = Instant::now();
    let unfinished = loop {
        match &theirs.unfinished().await.expect("listed")[..] {
            [found] => break found.clone(),
            none => assert!(started.elapsed() < LONG, "{none:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let resumed = theirs.resume(&unfinished).await.expect("resumed");
    let Journaled::Ready(resumed) = resumed else {
        panic!("it can be sent: {resumed:?}")
    };
    assert_eq!(
        (resumed.key().as_str(), resumed.is_resumed()),
        (&*key, true)
    );
    let answer = resumed
        .send(async |attempt| {
            assert_eq!(attempt.request().body(), "two apples");
            Ok::<_, Infallible>(Response::new(Bytes::from_static(b"charged")))
        })
        .await
        .expect("sent");
    assert_eq!(answer.body, "charged");
    match mine.begin("order-17", request()).await.expect("looked") {
        Journaled::Done(Some(answer)) => assert_eq!(answer.body, "charged"),
        other => panic!("it is done: {other:?}"),
    }
    assert!(theirs.unfinished().await.expect("listed").is_empty());
}

#[test]
fn layers_hold_on_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (mine, theirs) = (sqlite(&directory).await.1, sqlite(&directory).await.1);
        http_holds(mine.clone(), theirs.clone()).await;
        inbox_holds(mine.clone(), theirs.clone()).await;
        journal_holds(mine, theirs).await;
    });
}

#[test]
fn layers_hold_on_postgres() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let port = server.port();
        let (mine, theirs) = (postgres(port).await.1, postgres(port).await.1);
        http_holds(mine.clone(), theirs.clone()).await;
        inbox_holds(mine.clone(), theirs.clone()).await;
        journal_holds(mine, theirs).await;
    });
}

#[test]
fn layers_hold_on_redis() {
    let Some(server) = Server::redis() else {
        return;
    };
    block_on(async {
        let port = server.port();
        let (mine, theirs) = (redis(port).await, redis(port).await);
        http_holds(mine.clone(), theirs.clone()).await;
        inbox_holds(mine.clone(), theirs.clone()).await;
        journal_holds(mine, theirs).await;
    });
}
