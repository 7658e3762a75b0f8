//! The client: what the journal keeps through crashes, and what is sent again over real sockets to
//! a service behind the HTTP layer.

#![cfg(not(any(oncekey_loom, oncekey_shuttle, oncekey_sanitizers)))]

mod crashes;
mod journal;
mod retries;
mod world;
