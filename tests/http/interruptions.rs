//! What becomes of a key: stored, released, interrupted; and what happens to interrupted requests.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use oncekey::http::{
    IdempotencyLayer, OnInterrupted, Reconciled, RequestBody, RouteOptions, Scope, StatusPolicy,
};
use oncekey::{ClaimOptions, Durability, Lease, ManualClock, Options};
use tokio::sync::{Notify, oneshot};
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{
    AnyBody, Call, LONG, Served, World, builder, eventually, operation, post, request, text,
};

fn deciding(world: &World, decision: OnInterrupted) -> IdempotencyLayer {
    let builder = world.builder().on_interrupted(decision);
    builder.build().unwrap()
}

#[tokio::test]
async fn the_status_decides_about_the_key() {
    let world = World::new();
    // Status; whether a retry runs; the attempt it runs as.
    for (status, attempt) in [
        (200, None),
        (302, None),
        (400, None),
        (402, None),
        (404, None),
        (406, None),
        (101, Some(1)),
        (401, Some(1)),
        (403, Some(1)),
        (408, Some(1)),
        (409, Some(1)),
        (425, Some(1)),
        (429, Some(1)),
        (500, Some(2)),
        (502, Some(2)),
        (503, Some(2)),
        (504, Some(2)),
    ] {
        let served = Served::new(&world.layer(), move |_, call| async move {
            text(status, operation(&call).attempt().to_string())
        });
        let key = format!("k{status}");
        let first = served.send(post(&key)).await;
        assert_eq!((first.status.as_u16(), first.text()), (status, "1"));
        let second = served.send(post(&key)).await;
        assert_eq!(second.status, status);
        assert_eq!(second.is_replay(), attempt.is_none(), "{status}");
        assert_eq!(second.text(), attempt.unwrap_or(1).to_string(), "{status}");
    }
    let stats = world.store.stats();
    assert_eq!((stats.pending_keys, stats.interrupted_keys), (4, 4));
}

#[tokio::test]
async fn a_policy_of_ones_own_decides() {
    let world = World::new();
    let policy = StatusPolicy::successes_only();
    let layer = world.builder().status_policy(policy).build().unwrap();
    // A wrong one-time password, corrected.
    let served = Served::new(&layer, async |run, _| {
        text(if run == 1 { 400 } else { 200 }, format!("run {run}"))
    });
    served.send(post("k")).await.assert_ran(1);
    served.send(post("k")).await.assert_ran(2);
    served.send(post("k")).await.assert_replayed(2);
}

#[tokio::test]
async fn a_released_status_does_not_wipe_out_an_earlier_attempt() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::new(&layer, async |run, call| {
        let attempt = operation(&call).attempt();
        text([500, 429, 200][run - 1], attempt.to_string())
    });
    for (status, attempt) in [(500, "1"), (429, "2"), (200, "3")] {
        let answer = served.send(post("k")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (status, attempt));
    }
    let stats = layer.stats();
    assert_eq!((stats.interrupted, stats.released, stats.stored), (2, 0, 1));
}

#[tokio::test]
async fn a_handler_can_say_that_nothing_happened() {
    let world = World::new();
    let layer = world.layer();
    for status in [200, 422, 500] {
        let served = Served::new(&layer, move |_, call| async move {
            let operation = operation(&call);
            operation.release();
            text(status, operation.attempt().to_string())
        });
        for run in 1..=2 {
            let answer = served.send(post("k")).await;
            assert_eq!((answer.status.as_u16(), answer.text()), (status, "1"));
            assert_eq!(served.runs(), run);
        }
    }
    assert_eq!(world.store.stats().pending_keys, 0);
    assert_eq!(layer.stats().released, 6);
}

#[tokio::test]
async fn a_later_attempt_finds_what_the_earlier_one_left() {
    let world = World::new();
    let served = Served::new(&world.layer(), async |run, call| {
        let operation = operation(&call);
        let charge = operation.downstream_key("charge");
        if run == 1 {
            assert!(operation.previous().is_none());
            operation.checkpoint(charge.as_bytes()).await.unwrap();
            return text(500, "");
        }
        let previous = operation.previous().unwrap();
        assert_eq!((previous.attempt, operation.attempt()), (1, 2));
        assert_eq!(previous.checkpoint.as_deref(), Some(charge.as_bytes()));
        assert_ne!(operation.downstream_key("mail"), charge);
        text(200, "paid")
    });
    served.send(post("k")).await;
    assert_eq!(served.send(post("k")).await.text(), "paid");
    assert!(served.send(post("k")).await.is_replay());
}

#[tokio::test]
async fn interrupted_requests_fail_where_that_is_decided() {
    let world = World::new();
    let layer = deciding(&world, OnInterrupted::fail());
    let served = Served::with_status(&layer, 500);
    served.send(post("k")).await.assert_ran(1);
    for _ in 0..2 {
        let answer = served.send(post("k")).await;
        answer.assert_problem(500, "OutcomeUnknown");
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(served.runs(), 1);
    assert_eq!(world.store.interrupted().unwrap().len(), 1);
    let stats = layer.stats();
    assert_eq!((stats.interrupted, stats.outcome_unknown), (1, 2));
}

#[tokio::test]
async fn a_process_that_died_leaves_its_requests_interrupted() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::new(&layer, async |_, _| std::future::pending().await);
    let handler = served.clone();
    let request = tokio::spawn(async move { handler.send(post("k")).await });
    eventually("the handler runs", || served.runs() == 1).await;
    request.abort();
    // The store is closed under the handler, as it is for one whose process dies.
    world.store.close().unwrap();
    drop((served, layer, request));
    let directory = world.directory;
    let store = oncekey::Options::new()
        .durability(Durability::Buffered)
        .open(directory.path())
        .unwrap();
    let layer = crate::world::builder(&store).on_interrupted(OnInterrupted::fail());
    let served = Served::counting(&layer.build().unwrap());
    let answer = served.send(post("k")).await;
    answer.assert_problem(500, "OutcomeUnknown");
}

#[tokio::test]
async fn the_services_own_code_finds_out_what_happened() {
    let world = World::new();
    for (decision, status, runs) in [("ran", 201, 1), ("not", 200, 2), ("unknown", 500, 1)] {
        let layer = deciding(
            &world,
            OnInterrupted::reconcile(move |interrupted| async move {
                assert_eq!(interrupted.operation.attempt(), 2);
                assert_eq!(&interrupted.request.body()[..], b"body");
                assert_eq!(interrupted.request.headers()["account"], "alice");
                let answer = Response::builder().status(201);
                match decision {
                    "ran" => Reconciled::Answer(answer.body(Bytes::from("found")).unwrap()),
                    "not" => Reconciled::Run,
                    _ => Reconciled::Unknown,
                }
            }),
        );
        let served = Served::new(&layer, async |run, _| {
            text(if run == 1 { 500 } else { 200 }, format!("run {run}"))
        });
        served.send(post(decision)).await.assert_ran(1);
        let answer = served.send(post(decision)).await;
        assert_eq!((answer.status.as_u16(), served.runs()), (status, runs));
        if status == 500 {
            answer.assert_problem(500, "OutcomeUnknown");
            continue;
        }
        let replay = served.send(post(decision)).await;
        assert!(replay.is_replay());
        assert_eq!((replay.status, &replay.body), (answer.status, &answer.body));
    }
}

#[tokio::test]
async fn a_panic_leaves_the_key_interrupted_and_goes_on_in_the_caller() {
    let world = World::new();
    let layer = world.layer();
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let served = Served::new(&layer, move |run, call| {
        // A clone of the operation that outlives the handler does not hold its key.
        *keeps.lock().unwrap() = Some(operation(&call));
        async move {
            assert_ne!(run, 1, "a defect of the handler");
            text(200, format!("run {run}"))
        }
    });
    let handler = served.clone();
    let caller = tokio::spawn(async move { handler.send(post("k")).await });
    let panic = caller.await.unwrap_err().into_panic();
    let message = panic.downcast::<String>().unwrap();
    assert!(message.contains("a defect of the handler"), "{message}");
    assert_eq!(world.store.stats().interrupted_keys, 1);
    assert_eq!(layer.stats().interrupted, 1);
    let stale = kept.lock().unwrap().clone().unwrap();
    assert!(stale.checkpoint(b"late").await.is_err());
    served.send(post("k")).await.assert_ran(2);
}

#[tokio::test]
async fn a_panic_of_the_reconciling_code_leaves_the_key_interrupted() {
    let world = World::new();
    let decision = OnInterrupted::reconcile(async |_| panic!("a defect of the reconciling code"));
    let served = Served::with_status(&deciding(&world, decision), 500);
    served.send(post("k")).await;
    let handler = served.clone();
    let caller = tokio::spawn(async move { handler.send(post("k")).await });
    assert!(caller.await.unwrap_err().is_panic());
    assert_eq!(world.store.stats().interrupted_keys, 1);
}

#[tokio::test]
async fn an_error_of_the_inner_service_leaves_the_key_interrupted_and_goes_on() {
    let world = World::new();
    let layer = world.layer();
    let service = layer.layer(service_fn(
        async |_: Request<RequestBody<Full<Bytes>>>| -> Result<Response<AnyBody>, &str> {
            Err("broken")
        },
    ));
    let answer = service.oneshot(post("k")).await;
    assert_eq!(answer.unwrap_err(), "broken");
    assert_eq!(world.store.stats().interrupted_keys, 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_the_handler() {
    let world = World::new();
    let layer = world.layer();
    let go_on = Arc::new(Notify::new());
    let waits = Arc::clone(&go_on);
    let served = Served::new(&layer, move |run, _| {
        let waits = Arc::clone(&waits);
        async move {
            waits.notified().await;
            text(200, format!("run {run}"))
        }
    });
    let handler = served.clone();
    let client = tokio::spawn(async move { handler.send(post("k")).await });
    eventually("the handler runs", || served.runs() == 1).await;
    client.abort();
    client.await.unwrap_err();
    served
        .send(post("k"))
        .await
        .assert_problem(409, "InProgress");
    assert_eq!(layer.stats().running, 1);
    go_on.notify_one();
    layer.idle().await;
    assert_eq!(layer.stats().running, 0);
    served.send(post("k")).await.assert_replayed(1);
}

#[tokio::test]
async fn a_request_dropped_before_its_claim_leaves_nothing() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    let mut request = Box::pin(served.start(post("k")));
    // Polled by nobody.
    tokio::select! {
        biased;
        _ = std::future::ready(()) => {}
        _ = &mut request => {}
    }
    drop(request);
    assert_eq!(world.store.stats().pending_keys, 0);
    served.send(post("k")).await.assert_ran(1);
}

#[tokio::test]
async fn a_checkpoint_under_way_does_not_keep_the_guard() {
    let world = World::new();
    let served = Served::new(&world.layer(), async |_, call| {
        let operation = operation(&call);
        // A task that goes on after the handler and writes to a key that is not its own any more.
        tokio::spawn(async move {
            for _ in 0..1_000 {
                operation.checkpoint(b"note").await.ok();
                tokio::task::yield_now().await;
            }
        });
        tokio::task::yield_now().await;
        text(500, "")
    });
    for _ in 0..20 {
        served.send(post("k")).await;
        assert_eq!(world.store.pending().unwrap().len(), 0);
    }
}

#[tokio::test]
async fn an_overtaken_handler_stores_nothing() {
    let world = World::new();
    let lease = ClaimOptions::new().lease(Lease::For(Duration::from_millis(1)));
    let layer = world.builder().claim(lease).build().unwrap();
    let (go_on, waits) = oneshot::channel::<()>();
    let waits = Arc::new(std::sync::Mutex::new(Some(waits)));
    let served = Served::new(&layer, move |run, call: Call| {
        let waits = (run == 1).then(|| waits.lock().unwrap().take().unwrap());
        async move {
            if let Some(waits) = waits {
                waits.await.unwrap();
                assert!(operation(&call).renew().await.is_err());
            }
            text(200, format!("run {run}"))
        }
    });
    let handler = served.clone();
    let first = tokio::spawn(async move { handler.send(post("k")).await });
    eventually("the handler runs", || served.runs() == 1).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    served.send(post("k")).await.assert_ran(2);
    go_on.send(()).unwrap();
    let overtaken = first.await.unwrap();
    overtaken.assert_problem(409, "InProgress");
    served.send(post("k")).await.assert_replayed(2);
}

#[tokio::test]
async fn a_lease_that_is_renewed_is_not_taken_over() {
    let world = World::new();
    let lease = ClaimOptions::new().lease(Lease::For(LONG));
    let layer = world.builder().claim(lease).build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let served = Served::new(&layer, move |run, call| {
        let over = Arc::clone(&over);
        async move {
            while !over.load(Ordering::SeqCst) {
                operation(&call).renew().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            text(200, format!("run {run}"))
        }
    });
    let handler = served.clone();
    let first = tokio::spawn(async move { handler.send(post("k")).await });
    eventually("the handler runs", || served.runs() == 1).await;
    let duplicate = served.send(post("k")).await;
    duplicate.assert_problem(409, "InProgress");
    is_over.store(true, Ordering::SeqCst);
    first.await.unwrap().assert_ran(1);
}

#[tokio::test]
async fn a_key_is_free_after_its_retention_unless_it_says_how_old_it_is() {
    let clock = ManualClock::new(1_700_000_000_000);
    let directory = tempfile::tempdir().unwrap();
    let store = oncekey::Options::new()
        .durability(Durability::Buffered)
        .clock(Arc::new(clock.clone()))
        .open(directory.path())
        .unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let first_sent = store_time(1_700_000_000_000);
    let layer = crate::world::builder(&store).route(move |request| {
        let claim = match request.uri.path() {
            "/short" => ClaimOptions::new().retention(Duration::from_secs(60)),
            "/old" => ClaimOptions::new().first_sent(first_sent),
            _ => ClaimOptions::new(),
        };
        RouteOptions::new().claim(claim)
    });
    let layer = layer.build().unwrap();
    let served = Served::counting(&layer);
    let send = |path| served.send(request("POST", path, "k", ""));
    for (run, path) in ["/short", "/old", "/day"].into_iter().enumerate() {
        send(path).await.assert_ran(run + 1);
    }
    clock.advance(Duration::from_secs(61));
    send("/short").await.assert_ran(4);
    send("/old").await.assert_replayed(2);
    clock.advance(day);
    let late = send("/old").await;
    late.assert_problem(409, "TooLate");
    assert_eq!(late.header("retry-after"), None);
    send("/day").await.assert_ran(5);
    assert_eq!(layer.stats().too_late, 1);
}

fn store_time(ms: u64) -> std::time::SystemTime {
    std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

#[tokio::test]
async fn scopes_without_a_key_run_as_they_are() {
    let world = World::new();
    let layer = IdempotencyLayer::new(world.store.clone())
        .stripe()
        .scope(Scope::global())
        .on_interrupted(OnInterrupted::fail());
    let served = Served::new(&layer.build().unwrap(), async |_, call| {
        let has_operation = call
            .extensions()
            .get::<oncekey::http::IdempotentOperation>()
            .is_some();
        text(200, has_operation.to_string())
    });
    let mut bare = post("k");
    assert_eq!(served.send(bare.clone()).await.text(), "true");
    bare.headers_mut().remove("idempotency-key");
    assert_eq!(served.send(bare).await.text(), "false");
}

/// Polls a request so often, and drops it. `None` where that was too early for an answer.
async fn dropped_after<T>(polls: usize, request: impl Future<Output = T>) -> Option<T> {
    let mut request = Box::pin(request);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match request.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Wherever a client hangs up: its request runs once, at the latest when it is repeated, and nobody is
/// told that its outcome is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_dropped_after_any_number_of_polls_runs_once() {
    let directory = tempfile::tempdir().unwrap();
    // Claims and answers wait for the disk.
    let store = Options::new().open(directory.path()).unwrap();
    let layer = builder(&store).on_interrupted(OnInterrupted::fail());
    let layer = layer.wait(LONG).build().unwrap();
    let served = Served::new(&layer, async |run, call| {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        operation(&call).checkpoint(b"half-way").await.unwrap();
        text(200, format!("run {run}"))
    });
    let mut is_answered = false;
    for polls in 0.. {
        let key = format!("k{polls}");
        let first = dropped_after(polls, served.send(post(&key))).await;
        let again = served.send(post(&key)).await;
        assert_eq!(again.text(), format!("run {}", polls + 1), "{polls} polls");
        assert_eq!(served.runs(), polls + 1);
        is_answered = first.is_some();
        if is_answered {
            break;
        }
    }
    assert!(is_answered);
    layer.idle().await;
    assert_eq!(layer.stats().interrupted, 0);
    assert_eq!(store.stats().pending_keys, 0);
}

/// The process ends in an orderly way while handlers are at work, with their clients and without.
#[test]
fn a_runtime_that_ends_leaves_what_was_at_work_interrupted() {
    let world = World::new();
    for is_multi_threaded in [false, true] {
        let layer = world.layer();
        let served = Served::new(&layer, async |_, _| std::future::pending().await);
        let runtime = match is_multi_threaded {
            false => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build(),
            true => tokio::runtime::Runtime::new(),
        };
        let runtime = runtime.unwrap();
        let key = |name: &str| format!("{name} {is_multi_threaded}");
        runtime.block_on(async {
            drop(tokio::spawn(served.send(post(&key("attended")))));
            dropped_after(1, served.send(post(&key("left")))).await;
            eventually("both run", || served.runs() == 2).await;
        });
        drop(runtime);
        assert_eq!(layer.stats().running, 0);
        assert_eq!(layer.stats().interrupted, 2);
    }
    assert_eq!(world.store.interrupted().unwrap().len(), 4);
}
