//! The same request more than once at a time.

use std::sync::Arc;
use std::time::Duration;

use oncekey::http::{IdempotencyLayer, LayerError, WAIT_MAX};
use oncekey::{ClaimOptions, Durability, Lease, Options};
use tokio::sync::Semaphore;

use crate::world::{Answer, LONG, Served, World, builder, eventually, post, text};

/// A handler that waits for permits, and whose statuses are given.
fn gated(layer: &IdempotencyLayer, statuses: &'static [u16]) -> (Served, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let served = Served::new(layer, move |run, _| {
        let waits = Arc::clone(&waits);
        async move {
            waits.acquire().await.unwrap().forget();
            text(statuses[run - 1], format!("run {run}"))
        }
    });
    (served, gate)
}

async fn send_at_once(served: &Served, count: usize) -> Vec<tokio::task::JoinHandle<Answer>> {
    (0..count)
        .map(|_| {
            let served = served.clone();
            tokio::spawn(async move { served.send(post("k")).await })
        })
        .collect()
}

#[tokio::test]
async fn a_duplicate_is_told_to_come_again() {
    let world = World::new();
    let layer = world.layer();
    let (served, gate) = gated(&layer, &[200]);
    let first = send_at_once(&served, 1).await;
    eventually("the handler runs", || served.runs() == 1).await;
    let duplicate = served.send(post("k")).await;
    duplicate.assert_problem(409, "InProgress");
    assert_eq!(duplicate.header("retry-after"), Some("1"));
    gate.add_permits(1);
    for first in first {
        first.await.unwrap().assert_ran(1);
    }
    served.send(post("k")).await.assert_replayed(1);
    let stats = layer.stats();
    assert_eq!((stats.in_progress, stats.waited), (1, 0));
}

#[tokio::test]
async fn retry_after_is_no_longer_than_the_lease() {
    let world = World::new();
    for (lease, retry_after, expected) in [
        (Lease::WhileAlive, 7, "7"),
        (Lease::WhileAlive, 0, "1"),
        (Lease::For(Duration::from_millis(3_500)), 7, "3"),
        (Lease::For(Duration::from_secs(600)), 7, "7"),
    ] {
        let layer = world
            .builder()
            .claim(ClaimOptions::new().lease(lease))
            .retry_after(Duration::from_secs(retry_after))
            .build()
            .unwrap();
        let (served, gate) = gated(&layer, &[429]);
        let first = send_at_once(&served, 1).await;
        eventually("the handler runs", || served.runs() == 1).await;
        let duplicate = served.send(post("k")).await;
        assert_eq!(duplicate.header("retry-after"), Some(expected));
        gate.add_permits(1);
        for first in first {
            first.await.unwrap();
        }
    }
}

#[tokio::test]
async fn ten_at_once_run_once() {
    let world = World::new();
    let layer = world.builder().wait(WAIT_MAX).build().unwrap();
    let (served, gate) = gated(&layer, &[200]);
    let all = send_at_once(&served, 10).await;
    eventually("nine wait", || world.store.stats().waiters == 9).await;
    gate.add_permits(1);
    let mut replays = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "run 1"));
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((replays, served.runs()), (9, 1));
    let stats = layer.stats();
    assert_eq!((stats.waited, stats.replayed, stats.started), (9, 9, 1));
}

#[tokio::test]
async fn those_who_wait_go_on_after_a_release_and_an_interruption() {
    let world = World::new();
    let layer = world.builder().wait(WAIT_MAX).build().unwrap();
    let (served, gate) = gated(&layer, &[429, 500, 200]);
    let all = send_at_once(&served, 5).await;
    eventually("four wait", || world.store.stats().waiters == 4).await;
    gate.add_permits(3);
    let mut statuses = Vec::new();
    for answer in all {
        statuses.push(answer.await.unwrap().status.as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 429, 500]);
    assert_eq!(served.runs(), 3);
}

#[tokio::test]
async fn waiting_ends_with_its_limit() {
    let world = World::new();
    let wait = Duration::from_millis(20);
    let layer = world.builder().wait(wait).build().unwrap();
    let (served, gate) = gated(&layer, &[200]);
    let first = send_at_once(&served, 1).await;
    eventually("the handler runs", || served.runs() == 1).await;
    let begin = std::time::Instant::now();
    let duplicate = served.send(post("k")).await;
    duplicate.assert_problem(409, "InProgress");
    assert!(begin.elapsed() >= wait);
    assert_eq!(world.store.stats().waiters, 0);
    gate.add_permits(1);
    for first in first {
        first.await.unwrap();
    }
    let too_long = world.builder().wait(WAIT_MAX + wait).build();
    assert_eq!(too_long.unwrap_err(), LayerError::Wait(WAIT_MAX + wait));
}

#[tokio::test]
async fn one_waiter_too_many_is_told_to_come_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .durability(Durability::Buffered)
        .max_waiters_per_key(1)
        .open(directory.path())
        .unwrap();
    let layer = builder(&store).wait(LONG).build().unwrap();
    let (served, gate) = gated(&layer, &[200]);
    let all = send_at_once(&served, 2).await;
    eventually("one waits", || store.stats().waiters == 1).await;
    let duplicate = served.send(post("k")).await;
    duplicate.assert_problem(409, "InProgress");
    gate.add_permits(1);
    for answer in all {
        assert_eq!(answer.await.unwrap().text(), "run 1");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_waits_leaves_nothing() {
    let world = World::new();
    let layer = world.builder().wait(LONG).build().unwrap();
    let (served, gate) = gated(&layer, &[200]);
    let all = send_at_once(&served, 2).await;
    eventually("one waits", || world.store.stats().waiters == 1).await;
    for request in &all {
        request.abort();
    }
    eventually("nobody waits", || world.store.stats().waiters == 0).await;
    gate.add_permits(1);
    layer.idle().await;
    served.send(post("k")).await.assert_replayed(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_with_many_duplicates_run_once_each() {
    let world = World::new();
    let layer = world.builder().wait(WAIT_MAX).build().unwrap();
    let served = Served::new(&layer, async |run, _| {
        tokio::task::yield_now().await;
        text(200, run.to_string())
    });
    let mut all = Vec::new();
    for number in 0..600 {
        let served = served.clone();
        let key = format!("k{}", number % 60);
        all.push(tokio::spawn(async move {
            let answer = served.send(post(&key)).await;
            (key, answer.text().to_owned())
        }));
    }
    let mut answers = std::collections::HashMap::new();
    for answer in all {
        let (key, text) = answer.await.unwrap();
        assert_eq!(answers.entry(key).or_insert_with(|| text.clone()), &text);
    }
    assert_eq!((served.runs(), answers.len()), (60, 60));
}
