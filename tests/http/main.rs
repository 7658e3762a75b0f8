//! The HTTP layer: what clients see, and what becomes of keys.
//!
//! Most tests call the layered service directly; those in `sockets` go over real connections.

#![cfg(not(any(oncekey_loom, oncekey_shuttle, oncekey_sanitizers)))]

mod bodies;
mod callers;
mod duplicates;
mod extractor;
mod interruptions;
mod options;
mod presets;
mod replays;
mod requests;
mod sockets;
mod store_failures;
mod world;
