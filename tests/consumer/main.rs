//! `examples/consumer` as it ships: a broker that redelivers and reorders, consumers that are killed,
//! and the audit of what the provider really did.

#![cfg(not(any(oncekey_loom, oncekey_shuttle)))]

#[path = "../../examples/consumer/broker.rs"]
mod broker;
#[path = "../../examples/consumer/provider.rs"]
mod provider;
#[path = "../../examples/consumer/self_test.rs"]
mod self_test;
#[path = "../../examples/consumer/wire.rs"]
mod wire;
#[path = "../../examples/consumer/worker.rs"]
mod worker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::self_test::Plan;

/// What the child is told.
const DATA: &str = "ONCEKEY_CONSUMER_DATA";
const BROKER: &str = "ONCEKEY_CONSUMER_BROKER";
const PROVIDER: &str = "ONCEKEY_CONSUMER_PROVIDER";

fn address(name: &str) -> SocketAddr {
    std::env::var(name).unwrap().parse().unwrap()
}

/// The child: nothing of its own.
#[test]
fn consumers_that_are_killed() {
    if let Some(data) = std::env::var_os(DATA) {
        worker::run(&PathBuf::from(data), address(BROKER), address(PROVIDER)).unwrap();
    }
}

#[test]
fn every_event_takes_effect_once_whatever_is_delivered_and_whoever_is_killed() {
    let seed = self_test::seed_from_clock();
    let seed = std::env::var("ONCEKEY_CONSUMER_SEED").map_or(seed, |seed| seed.parse().unwrap());
    let start = |data: &Path, broker: SocketAddr, provider: SocketAddr| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "consumers_that_are_killed", "--nocapture"])
            .env(DATA, data)
            .env(BROKER, broker.to_string())
            .env(PROVIDER, provider.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let plan = Plan {
        seed,
        events: 240,
        kills: 10,
    };
    let outcome = self_test::run(plan, &start).unwrap();
    println!("{outcome}");
    assert!(outcome.is_good(), "ONCEKEY_CONSUMER_SEED={seed}\n{outcome}");
}
