//! Power is lost at every point of a workload, and again during the recovery from that.
//!
//! The simulated disk keeps its state before each operation that changes it; from there any subset
//! of what was not synced survives, pages and directory entries each on their own. Whatever that is,
//! the store opens without help, and the oracle (`model`) is asked: of what was acknowledged in
//! `Sync` nothing is lost, nothing comes back, no token has two owners, and nobody is told of a
//! completion that never happened.
//!
//! `ONCEKEY_CRASH_SEEDS` says how many random workloads are run, and with more than a few the short
//! ones are tried in full; see `docs/verification.md`.

#[path = "../support/mod.rs"]
mod support;

mod bites;
mod calls;
mod corners;
mod explore;
mod faults;
mod handover;
mod maintained;
mod model;
mod script;
mod threads;
mod workloads;
mod world;
