//! Concurrent histories of real threads are linearizable: some order of the calls, each placed
//! between its begin and its end, explains every answer, also across closes, kills and losses of
//! power.
//!
//! `history` is what is recorded, `state` and `automaton` are the sequential specification of one key, `checker`
//! looks for the order, `worker` is a thread that asks for everything. Histories come from threads of
//! this process, from a child that is killed, and from a simulated disk that loses power; and
//! `known_wrong` shows that the checker finds what is wrong. `ONCEKEY_HISTORIES` sets how many of
//! each kind, `ONCEKEY_HISTORY_SEED` where they begin.

#[path = "../support/mod.rs"]
mod support;

mod automaton;
mod checker;
mod from_killed_child;
mod from_lost_power;
mod from_threads;
mod history;
mod journal;
mod known_wrong;
mod mutations;
mod recorded;
mod state;
mod worker;
