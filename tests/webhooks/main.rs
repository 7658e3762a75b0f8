//! `examples/webhooks` as it ships: its self-test with a receiver that is killed, and its rules one
//! by one.

#![cfg(not(any(oncekey_loom, oncekey_shuttle, oncekey_sanitizers)))]

#[path = "../../examples/webhooks/book.rs"]
mod book;
#[path = "../../examples/webhooks/host.rs"]
mod host;
#[path = "../../examples/webhooks/receiver.rs"]
mod receiver;
#[path = "../../examples/webhooks/self_test.rs"]
mod self_test;
#[path = "../../examples/webhooks/signatures.rs"]
mod signatures;

mod rules;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::host::Host;
use crate::self_test::Plan;

/// The directory of the receiver that a child is.
const DATA: &str = "ONCEKEY_WEBHOOKS_DATA";

/// The child: nothing of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_that_is_killed() {
    if let Some(data) = std::env::var_os(DATA) {
        let work = Duration::from_millis(3);
        let host = Host::open(&PathBuf::from(data), host::demonstration(), work).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        host.serve(address, std::future::pending()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_handled_once_by_a_receiver_that_is_killed() {
    let seed = self_test::seed_from_clock();
    let seed = std::env::var("ONCEKEY_WEBHOOKS_SEED").map_or(seed, |seed| seed.parse().unwrap());
    let start = |data: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "receiver_that_is_killed", "--nocapture"])
            .env(DATA, data);
        command
    };
    let plan = Plan {
        seed,
        events: 100,
        kills: 8,
    };
    let verdict = self_test::run(plan, start).await.unwrap();
    println!("{verdict}");
    assert!(verdict.is_good(), "ONCEKEY_WEBHOOKS_SEED={seed}\n{verdict}");
}
