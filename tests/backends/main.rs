//! Backends: the contract on each of them, claims inside transactions, and crashes of processes that
//! share one.
//!
//! PostgreSQL and Redis are started here, each test its own. Where one is not installed its tests say
//! SKIPPED and how to install it; with `ONCEKEY_REQUIRE_SERVERS=1` they fail instead.

mod attacks;
mod broken;
mod chaos;
mod conforming;
mod crashes;
mod cuts;
mod layers;
mod malformed;
mod servers;
mod transactions;
mod world;
