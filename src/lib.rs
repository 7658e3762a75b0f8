//! An embedded idempotency-key store: one atomic call makes a retried operation safe.
//!
//! A client that got no answer repeats its request; a queue delivers an event again; a user clicks
//! twice. For each of them this crate answers one question, atomically and durably: *has this been
//! done, is it being done, or is it mine to do?* A service links it, opens a directory, and asks
//! with [`Store::claim`].
//!
//! What it adds to a table with a unique key is the crash in between. Where an owner dies between
//! doing the work and noting that it did, the key becomes **interrupted**: it is never run again in
//! silence, and never stuck. The next caller owns it and is told that the outcome is unknown.
//!
//! One store belongs to one process. Several replicas need routing by key, or a
//! [shared backend](backend).
//!
//! # Quick start
//!
//! ```
//! use oncekey::{Claim, Fingerprint, Key, Replay, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let store = Store::open(directory.path())?;
//!
//! // Who asks, for what, and which one; and what the key stands for.
//! let key = Key::new("acct_1", "POST /v1/payments", "order-17")?;
//! let request = Fingerprint::of(br#"{"amount":1200,"currency":"eur"}"#);
//!
//! // The first to come owns the operation, does the work, and stores the answer.
//! let Claim::Started(operation) = store.claim(&key, request)? else {
//!     panic!("nobody was here before")
//! };
//! operation.complete(b"paid")?;
//!
//! // Everybody after that is given it.
//! let Claim::Completed(saved) = store.claim(&key, request)? else {
//!     panic!("it was completed")
//! };
//! let Replay::Response(answer) = saved.by_scope()? else {
//!     panic!("the answer was stored")
//! };
//! assert_eq!(&answer[..], b"paid");
//!
//! // Unless they come with another request under the same key.
//! let other = Fingerprint::of(br#"{"amount":9900,"currency":"eur"}"#);
//! assert!(matches!(store.claim(&key, other)?, Claim::Mismatch(_)));
//! # Ok(())
//! # }
//! ```
//!
//! # Tasks
//!
//! | to | use |
//! |---|---|
//! | start an operation, or learn what became of it | [`Store::claim`], [`Store::claim_async`] |
//! | store its result, or say that nothing happened | [`Operation::complete`], [`Operation::release`] |
//! | wait for whoever is at work on the same key | [`InProgress::wait`], [`InProgress::wait_async`] |
//! | hand a stored result out, to those who may see it | [`Saved::by_scope`], [`Saved::for_principal`] |
//! | do claim, work and completion in one call | [`Store::run`], [`Store::run_async`] |
//! | take a whole batch with one sync | [`Store::claim_many`] |
//! | go on after an interruption | [`Operation::previous`], [`Operation::checkpoint`] |
//! | call another system that must not act twice | [`Operation::downstream_key`] |
//! | be safe from an owner that hangs | [`Lease::For`], [`Operation::renew`] |
//! | shut a late owner out of what it writes to | [`Operation::token`] |
//! | go on with the work elsewhere, through a queue | [`Operation::into_ticket`], [`Store::resume`] |
//! | refuse retries that are older than results are kept | [`ClaimOptions::first_sent`] |
//! | look at a key without claiming it | [`Store::get`] |
//! | find keys that hang or wait to be reconciled | [`Store::pending`], [`Store::interrupted`] |
//! | find out what became of what was cut off | [`Store::reconcile`] |
//! | handle each event of a queue once | [`inbox::Inbox`] |
//! | send messages with a result, at least once | [`Completion::send`], [`outbox::Outbox`] |
//! | refuse late events by the version of what they change | [`Completion::version`], [`Store::version`] |
//! | free a key by hand | [`Store::interrupt`], [`Store::forget`] |
//! | choose durability, retention, limits | [`Options`], [`ClaimOptions`], [`limits`] |
//! | look into a store beside the process that has it open | [`Reader`] |
//! | see what a crash left | [`Store::recovery_report`] |
//! | watch it run | [`Store::stats`], `Store::export_metrics` (feature `metrics`) |
//! | share keys between processes (features `postgres`, `sqlite`, `redis`) | [`Backend`](backend::Backend) |
//! | put it in front of HTTP handlers (feature `http`) | `http::IdempotencyLayer` |
//! | send operations that survive a crash (feature `client`) | `client::Journal`, `client::RetryPolicy` |
//! | test leases and retention without waiting | [`ManualClock`] |
//!
//! ## Going on after an interruption
//!
//! What an interrupted attempt did is for its owner to find out. Three things help: a note it left,
//! a key for the other system that is the same in every attempt, and the number of the attempt.
//!
//! ```
//! # use oncekey::{Claim, Fingerprint, Key, Store};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let store = Store::open(directory.path())?;
//! # let key = Key::new("acct_1", "POST /v1/payments", "order-18")?;
//! # let request = Fingerprint::of(b"500 eur");
//! let Claim::Started(mut first) = store.claim(&key, request)? else {
//!     panic!("the key was free")
//! };
//! let charge_key = first.downstream_key("charge");
//! first.checkpoint(b"charge requested")?;
//! drop(first); // A panic, an early return, a cancelled future or a crash.
//!
//! let Claim::Interrupted(second) = store.claim(&key, request)? else {
//!     panic!("the first attempt ended without a word")
//! };
//! let previous = second.previous().expect("there was an attempt before");
//! assert_eq!((previous.attempt, second.attempt()), (1, 2));
//! assert_eq!(previous.checkpoint.as_deref(), Some(&b"charge requested"[..]));
//! // Asked again under this key, a provider that deduplicates charges once.
//! assert_eq!(second.downstream_key("charge"), charge_key);
//! second.complete(b"paid")?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Consuming events once
//!
//! An event's id says all, so there is nothing to compare, and no answer to keep. This is the bare
//! form; [`inbox`] counts attempts too, and says what to tell the broker.
//!
//! ```
//! # use oncekey::{Claim, Fingerprint, Key, Store};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let store = Store::open(directory.path())?;
//! # let mut mails = 0;
//! for event_id in ["evt_1", "evt_2", "evt_1"] {
//!     let key = Key::new("", "order-mailer", event_id)?;
//!     match store.claim(&key, Fingerprint::none())? {
//!         Claim::Started(operation) => {
//! #           mails += 1;
//!             // Send the mail, then:
//!             operation.complete_without_response()?;
//!         }
//!         Claim::Interrupted(operation) => {
//!             // Perhaps it was sent: better none than two, or better two than none?
//!             operation.complete_without_response()?;
//!         }
//!         // Somebody is at it, and may still fail: leave the event for later.
//!         Claim::InProgress(_) => {}
//!         // Done: acknowledge it.
//!         _ => {}
//!     }
//! }
//! # assert_eq!(mails, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * Of any number of concurrent claims on one key, exactly one gets [`Claim::Started`] or
//!   [`Claim::Interrupted`]: across threads, tasks, crashes and restarts.
//! * Until its retention is over a completed key answers with the same bytes. No live key is ever
//!   evicted: a full disk is an error at the claim, before any work, and room for its completion is
//!   set aside with it.
//! * When a store is opened, every key that an earlier process left pending is interrupted at once.
//! * An owner that was overtaken can change nothing: it gets [`WriteError::LeaseLost`].
//! * An acknowledged write survives what its [`Durability`] says, and no answer is given that rests
//!   on a weaker one than its caller's.
//! * Damage to durable data is an error that names it, when the store is opened.
//!
//! What no store can promise: that the effect in another system and its mark here are one step. That
//! is what interrupted keys, checkpoints and downstream keys are for.
//!
//! Disk space of what is over comes back in the background, in whole segments: see
//! [`Options::maintenance`].
//!
//! # Threads, tasks, runtimes
//!
//! [`Store`] is a handle that clones cheaply and goes into every thread and task; [`Operation`] is
//! `Send + 'static` and borrows nothing. Calls that may wait have a blocking form and an `async` one
//! that needs no particular runtime; opening and closing only block. A future never runs a sync on
//! its executor's thread, and a waiter holds no thread. Dropping the last handle closes the store,
//! which does sync: in an async program call [`Store::close`] on a thread that may block. A store has
//! two threads of its own, and a third once a future waits for a lease to end.
//!
//! # Features
//!
//! None is on by default.
//!
//! * `metrics`: `Store::export_metrics` hands what [`Store::stats`] shows to the recorder of the
//!   `metrics` crate that the service installed, under names in the Prometheus conventions.
//! * `http`: the module `http`, a tower layer that makes HTTP handlers safe to retry. Needs tokio.
//! * `axum`: with it, `http::IdempotentOperation` is an extractor of axum's handlers. Enables `http`.
//! * `client`: the module `client`, a journal of operations that are sent to other systems, which
//!   survives the client's crashes, and a retry policy for tower. Needs tokio's timer.
//! * `reqwest`: with it, `client::RetryMiddleware` is a middleware of reqwest. Enables `client`.
//! * `postgres`, `sqlite`, `sql` (both): the module `sql`, keys in a database that a fleet shares, alone or
//!   inside the caller's own transaction. Needs tokio.
//! * `redis`: the module `redis`, keys in Redis or Valkey, and the module `redis_migration`, from Redis to
//!   a store and back. Needs tokio.
//! * `serve`: the module `serve`, a server that Redis clients talk to. Needs tokio.
//! * `conformance`: the module `conformance`, the contract of a claim as a suite of tests for any
//!   [`Backend`](backend::Backend).
//! * `cli`: builds the tool `oncekey`, and changes nothing in the library.
//! * `testing`: the module `testing` with a simulated disk that loses what was not synced, tears
//!   pages and fails on demand, and `Options::open_simulated` to open a store on it; with `http` also
//!   `testing::RetryTests`, three tests to run against your own service. For tests of a service;
//!   nothing else changes.
//!
//! # Guides
//!
//! * [choosing](documentation::choosing): embedded, PostgreSQL, SQLite or Redis
//! * [consumers](documentation::consumers): consumers of queues, dead letters, reconciliation
//! * [design](documentation::design): what was built and why
//! * [format](documentation::format): every byte on disk
//! * [durability](documentation::durability): levels, crashes, full disks, file systems, copies
//! * [moving off Redis](documentation::migrating_from_redis): compare, import, switch, and back
//! * [metrics](documentation::metrics): every series, and what to watch
//! * [operations](documentation::operations): the tool, sizing, backups, what to do when
//! * `documentation::client`: what a client must do, the journal, what is sent again (feature
//!   `client`)
//! * `documentation::http`: every rule of the HTTP layer, and a cookbook (feature `http`)
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

/// Guides: the pages under `docs/` in the repository.
#[cfg(doc)]
pub mod documentation {
    // Its code uses reqwest.
    #[cfg(all(feature = "client", any(feature = "reqwest", not(doctest))))]
    #[doc = include_str!("../docs/client.md")]
    pub mod client {}
    #[doc = include_str!("../docs/consumers.md")]
    pub mod consumers {}
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}
    #[doc = include_str!("../docs/design.md")]
    pub mod design {}
    #[doc = include_str!("../docs/durability.md")]
    pub mod durability {}
    #[doc = include_str!("../docs/format.md")]
    pub mod format {}
    #[cfg(feature = "http")]
    #[doc = include_str!("../docs/http.md")]
    pub mod http {}
    #[doc = include_str!("../docs/migrating-from-redis.md")]
    pub mod migrating_from_redis {}
    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}
}

/// The code in the README is compiled with the tests.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;

mod fs;
mod log;
mod mem;
mod sync;

pub mod backend;
mod batch;
mod block;
mod claim;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
mod corruption;
mod domain;
mod engine;
mod error;
mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
pub mod inbox;
mod index;
#[cfg(feature = "testing")]
mod internals;
mod key;
mod limit_reached;
pub mod limits;
mod listing;
mod maintenance;
#[cfg(feature = "metrics")]
mod metrics;
mod open_error;
mod operation;
mod options;
pub mod outbox;
mod parallel;
mod reader;
pub mod reconcile;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redis_migration;
mod report;
mod response;
mod run;
mod secret;
#[cfg(feature = "serve")]
pub mod serve;
pub mod shadow;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "redis"))]
pub mod shared;
mod snapshot;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod sql;
mod stats;
mod store;
#[cfg(any(feature = "http", feature = "client"))]
mod stored_response;
mod ticket;
mod timer;
mod token;
#[cfg(any(feature = "redis", feature = "serve"))]
mod values;
mod version;

pub use self::public::*;

/// For the tests of a service: simulated storage with crash images and injected faults and, with the
/// feature `http`, the three tests that a service with idempotency keys has to pass (`RetryTests`).
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::fs::simulated::{
        Difference, Fault, FaultPlan, Operation, OperationKind, SimulatedDisk, is_power_loss,
    };
    #[cfg(feature = "http")]
    pub use crate::http::retry_tests::{RetryFailure, RetryFault, RetryTest, RetryTests};

    #[doc(hidden)]
    pub mod internals {
        pub use crate::internals::*;
    }
}

mod public {
    pub use crate::claim::{Claim, InProgress, Mismatch, Saved, TooLate};
    pub use crate::clock::{Clock, ManualClock, SystemClock};
    pub use crate::completion::Completion;
    pub use crate::corruption::{Corruption, Damage};
    pub use crate::error::{
        Abandoned, AccessDenied, AdminError, ClaimError, Damaged, FinishError, OutOfSpace,
        Unavailable, WriteError,
    };
    pub use crate::fingerprint::{Comparison, Fingerprint, FingerprintBuilder, FingerprintError};
    pub use crate::key::{Key, KeyError, KeyPart};
    pub use crate::limit_reached::{Limit, LimitReached};
    pub use crate::listing::{KeyState, PendingKey};
    pub use crate::maintenance::{MaintenanceError, MaintenanceReport, MaintenanceStats};
    #[cfg(feature = "metrics")]
    pub use crate::metrics::describe_metrics;
    pub use crate::open_error::OpenError;
    pub use crate::operation::{Operation, Previous};
    pub use crate::options::{
        ClaimOptions, ClaimOptionsError, Durability, Lease, Options, OptionsError, Recovery,
    };
    pub use crate::reader::{Health, KeyRecord, ReadError, Reader, Recorded, Seen};
    pub use crate::report::{BadSideCar, RecoveryReport, TornTail};
    pub use crate::response::{Replay, Response};
    pub use crate::run::{OnInterrupted, RunError, RunOptions};
    pub use crate::snapshot::{Snapshot, SnapshotError};
    pub use crate::stats::{LimitsReached, Stats};
    pub use crate::store::{Forget, Store};
    pub use crate::ticket::{ResumeError, Ticket, TicketError};
    pub use crate::token::Token;
    pub use crate::version::{AttachmentError, EntityVersion, Expected, StaleVersion, VersionGap};
}
