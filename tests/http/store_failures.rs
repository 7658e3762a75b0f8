//! A store that is full, fails, or is closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use oncekey::http::{HttpStats, OnInterrupted, StoreFailure};
use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Durability, ManualClock, Options, Store};
use tokio::sync::Notify;

use crate::world::{Answer, Broken, Served, World, builder, eventually, post, request, text};

fn counts(stats: &HttpStats) -> (u64, u64) {
    (stats.store_failures, stats.unprotected)
}

#[tokio::test]
async fn no_store_no_work() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::counting(&layer);
    world.store.close().unwrap();
    let answer = served.send(post("k")).await;
    answer.assert_problem(503, "Unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!((served.runs(), counts(&layer.stats())), (0, (1, 0)));
}

#[tokio::test]
async fn running_without_protection_is_chosen_and_counted() {
    let world = World::new();
    let layer = world.builder().store_failure(StoreFailure::PassThrough);
    let layer = layer.build().unwrap();
    let served = Served::counting(&layer);
    served.send(post("k")).await.assert_ran(1);
    world.store.close().unwrap();
    for run in 2..=3 {
        served.send(post("k")).await.assert_ran(run);
    }
    assert_eq!(counts(&layer.stats()), (2, 2));
}

#[tokio::test]
async fn too_many_pending_keys_are_refused_and_old_ones_answer() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Buffered)
        .max_pending(1)
        .open(directory.path())
        .unwrap();
    let layer = builder(&store).build().unwrap();
    let go_on = Arc::new(Notify::new());
    let waits = Arc::clone(&go_on);
    let served = Served::new(&layer, move |run, _| {
        let waits = Arc::clone(&waits);
        async move {
            if run == 2 {
                waits.notified().await;
            }
            text(200, format!("run {run}"))
        }
    });
    served.send(post("done")).await.assert_ran(1);
    let handler = served.clone();
    let slow = tokio::spawn(async move { handler.send(post("slow")).await });
    eventually("the handler runs", || served.runs() == 2).await;
    served
        .send(post("k"))
        .await
        .assert_problem(503, "Unavailable");
    served.send(post("done")).await.assert_replayed(1);
    go_on.notify_one();
    slow.await.unwrap().assert_ran(2);
    served.send(post("k")).await.assert_ran(3);
}

/// An interrupted key is known: it does not run again as if it were new, because it can't be claimed.
#[tokio::test]
async fn what_is_known_of_a_key_is_not_passed_over() {
    let disk = SimulatedDisk::new();
    let store = on(&disk);
    let layer = builder(&store)
        .on_interrupted(OnInterrupted::fail())
        .store_failure(StoreFailure::PassThrough);
    let layer = layer.build().unwrap();
    let served = Served::new(&layer, async |run, call| match call.uri().path() {
        "/fails" => text(500, format!("run {run}")),
        _ => text(200, format!("run {run}")),
    });
    let fails = || request("POST", "/fails", "k", "body");
    served.send(fails()).await.assert_ran(1);
    disk.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).sticky());
    // The claim that meets the fault is unknown; after it the store refuses to write.
    for key in ["a", "b"] {
        served.send(post(key)).await;
    }
    let passed = served.runs();
    for _ in 0..2 {
        let answer = served.send(fails()).await;
        answer.assert_problem(503, "Unavailable");
    }
    assert_eq!(served.runs(), passed);
    // Nobody knows that one.
    served.send(post("c")).await.assert_ran(passed + 1);
    assert!(layer.stats().unprotected > 0);
}

#[tokio::test]
async fn a_limit_of_the_store_refuses_or_passes_what_is_new() {
    for failure in [StoreFailure::Refuse, StoreFailure::PassThrough] {
        let directory = tempfile::tempdir().unwrap();
        let store = Options::new()
            .durability(Durability::Buffered)
            .max_keys_per_scope(1)
            .open(directory.path())
            .unwrap();
        let layer = builder(&store).store_failure(failure).build().unwrap();
        let served = Served::counting(&layer);
        served.send(post("first")).await.assert_ran(1);
        let second = served.send(post("second")).await;
        match failure {
            StoreFailure::Refuse => second.assert_problem(503, "Unavailable"),
            StoreFailure::PassThrough => second.assert_ran(2),
        }
        served.send(post("first")).await.assert_replayed(1);
    }
}

/// Waiting does not help: somebody has to look.
#[tokio::test]
async fn an_operation_that_was_abandoned_is_not_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new(1_700_000_000_000);
    let store = Options::new()
        .durability(Durability::Buffered)
        .abandon_after(Duration::from_secs(60))
        .clock(Arc::new(clock.clone()))
        .open(directory.path())
        .unwrap();
    let layer = builder(&store).build().unwrap();
    let served = Served::with_status(&layer, 500);
    served.send(post("k")).await.assert_ran(1);
    clock.advance(Duration::from_secs(61));
    let answer = served.send(post("k")).await;
    answer.assert_problem(500, "OutcomeUnknown");
    assert_eq!(answer.header("retry-after"), None);
    let stats = layer.stats();
    assert_eq!((stats.outcome_unknown, stats.store_failures), (1, 0));
    assert_eq!(served.runs(), 1);
}

/// The room that is set aside with a claim holds an answer of 4 KiB.
#[tokio::test]
async fn an_answer_that_the_disks_limit_keeps_out_is_given_out() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Buffered)
        .segment_size(64 << 10)
        .max_disk_bytes(128 << 10)
        .open(directory.path())
        .unwrap();
    let layer = builder(&store).build().unwrap();
    let served = Served::new(&layer, async |_, _| text(200, vec![b'x'; 40 << 10]));
    for number in 0..5 {
        let key = number.to_string();
        let answer = served.send(post(&key)).await;
        if answer.status == 503 {
            // No room for a claim any more.
            break;
        }
        assert_eq!(answer.body.len(), 40 << 10, "{answer:?}");
    }
    assert!(layer.stats().stored_without_body > 0);
    assert!(store.interrupted().unwrap().is_empty());
}

fn on(disk: &SimulatedDisk) -> Store {
    let options = Options::new().segment_size(256 << 10);
    options.open_simulated(disk).unwrap()
}

/// What a retry gets after the power was lost at that moment.
async fn retried_after(disk: &SimulatedDisk) -> Answer {
    let store = on(&disk.crash_all_lost());
    let layer = builder(&store).on_interrupted(OnInterrupted::fail());
    let served = Served::with_status(&layer.build().unwrap(), 599);
    served.send(post("k")).await
}

#[tokio::test]
async fn an_answer_that_was_given_out_survives_a_loss_of_power() {
    for is_known in [true, false] {
        let disk = SimulatedDisk::new();
        let layer = builder(&on(&disk)).build().unwrap();
        let served = Served::new(&layer, move |_, _| async move {
            let body = Full::from("paid");
            match is_known {
                true => text(200, "paid"),
                false => Response::new(UnknownLength(body).boxed_unsync()),
            }
        });
        assert_eq!(served.send(post("k")).await.text(), "paid");
        let replay = retried_after(&disk).await;
        assert!(replay.is_replay());
        assert_eq!(replay.text(), "paid");
    }
}

#[tokio::test]
async fn a_handler_that_began_is_known_after_a_loss_of_power() {
    let disk = SimulatedDisk::new();
    let layer = builder(&on(&disk)).build().unwrap();
    let during = disk.clone();
    let served = Served::new(&layer, move |_, _| {
        let during = during.clone();
        async move {
            // The power is lost while the handler is at work.
            retried_after(&during)
                .await
                .assert_problem(500, "OutcomeUnknown");
            text(429, "")
        }
    });
    assert_eq!(served.send(post("k")).await.status, 429);
    // Released, and durably so before the client was told.
    assert_eq!(retried_after(&disk).await.status, 599);
}

#[tokio::test]
async fn an_answer_that_is_not_durable_is_not_given_out() {
    let disk = SimulatedDisk::new();
    let store = on(&disk);
    let layer = builder(&store).build().unwrap();
    let breaks = disk.clone();
    let served = Served::new(&layer, move |run, _| {
        let breaks = breaks.clone();
        async move {
            breaks.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).sticky());
            text(200, format!("run {run}"))
        }
    });
    let answer = served.send(post("k")).await;
    answer.assert_problem(503, "Unavailable");
    assert!(!answer.text().contains("run 1"));
    assert_eq!(counts(&layer.stats()), (1, 0));
    // Nothing is replayed that is not known to be durable, and nothing runs again.
    let again = served.send(post("k")).await;
    again.assert_problem(503, "Unavailable");
    assert_eq!(served.runs(), 1);
}

/// A body whose length is not known before its end.
struct UnknownLength(Full<Bytes>);

impl Body for UnknownLength {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut self.0)
            .poll_frame(context)
            .map_err(|never| match never {})
    }
}

#[tokio::test]
async fn a_stream_whose_answer_is_not_durable_does_not_end_well() {
    let disk = SimulatedDisk::new();
    let store = on(&disk);
    let layer = builder(&store).build().unwrap();
    let breaks = disk.clone();
    let served = Served::new(&layer, move |_, _| {
        let breaks = breaks.clone();
        async move {
            breaks.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).sticky());
            Response::new(UnknownLength(Full::from("paid")).boxed_unsync())
        }
    });
    let body = served.start(post("k")).await.into_body();
    let error = body.collect().await.unwrap_err().to_string();
    assert!(error.contains("could not be stored"), "{error}");
}
