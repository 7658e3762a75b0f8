//! A store that is full, fails, or is closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use oncekey::http::{HttpStats, StoreFailure};
use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Durability, Options};
use tokio::sync::Notify;

use crate::world::{Broken, Served, World, builder, eventually, post, text};

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

#[tokio::test]
async fn an_answer_that_is_not_durable_is_not_given_out() {
    let disk = SimulatedDisk::new();
    let store = Options::new()
        .segment_size(256 << 10)
        .open_simulated(&disk)
        .unwrap();
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
    let store = Options::new()
        .segment_size(256 << 10)
        .open_simulated(&disk)
        .unwrap();
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
