//! The tool, run as a user runs it.

mod bench;
mod bench_servers;
mod beside_a_service;
mod errors;
mod keys;
#[path = "../backends/servers.rs"]
#[allow(dead_code, reason = "each uses its part")]
mod servers;
mod shadow;
mod walk;
mod world;
