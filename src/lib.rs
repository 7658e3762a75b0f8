//! An embedded idempotency-key store: one atomic call makes a retried operation safe.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

#[cfg(not(oncekey_loom))]
mod full {}

mod fs;
mod log;
mod mem;
mod sync;

#[cfg(not(oncekey_loom))]
mod batch;
#[cfg(not(oncekey_loom))]
mod block;
#[cfg(not(oncekey_loom))]
mod claim;
#[cfg(not(oncekey_loom))]
pub mod clock;
#[cfg(not(oncekey_loom))]
mod corruption;
#[cfg(not(oncekey_loom))]
mod engine;
#[cfg(not(oncekey_loom))]
mod error;
#[cfg(not(oncekey_loom))]
mod fingerprint;
#[cfg(not(oncekey_loom))]
mod index;
#[cfg(not(oncekey_loom))]
mod key;
#[cfg(not(oncekey_loom))]
pub mod limits;
#[cfg(not(oncekey_loom))]
mod listing;
#[cfg(not(oncekey_loom))]
mod open_error;
#[cfg(not(oncekey_loom))]
mod operation;
#[cfg(not(oncekey_loom))]
mod options;
#[cfg(not(oncekey_loom))]
mod report;
#[cfg(not(oncekey_loom))]
mod response;
#[cfg(not(oncekey_loom))]
mod run;
#[cfg(not(oncekey_loom))]
mod stats;
#[cfg(not(oncekey_loom))]
mod store;
#[cfg(not(oncekey_loom))]
mod ticket;
#[cfg(not(oncekey_loom))]
mod timer;
#[cfg(not(oncekey_loom))]
mod token;

#[cfg(not(oncekey_loom))]
pub use self::public::*;

/// Simulated storage: crash images and injected faults, to test a service against lost power.
#[cfg(all(feature = "testing", not(oncekey_loom)))]
pub mod testing {
    pub use crate::fs::simulated::{
        Difference, Fault, FaultPlan, Operation, OperationKind, SimulatedDisk, is_power_loss,
    };
}

#[cfg(not(oncekey_loom))]
mod public {
    pub use crate::claim::{Claim, InProgress, Mismatch, Saved, TooLate};
    pub use crate::clock::{Clock, ManualClock, SystemClock};
    pub use crate::corruption::{Corruption, Damage};
    pub use crate::error::{
        AccessDenied, AdminError, ClaimError, Damaged, FinishError, OutOfSpace, Unavailable,
        WriteError,
    };
    pub use crate::fingerprint::{Comparison, Fingerprint, FingerprintBuilder, FingerprintError};
    pub use crate::key::{Key, KeyError, KeyPart};
    pub use crate::listing::{KeyState, PendingKey};
    pub use crate::open_error::OpenError;
    pub use crate::operation::{Completion, Operation, Previous};
    pub use crate::options::{
        ClaimOptions, ClaimOptionsError, Durability, Lease, Options, OptionsError, Recovery,
    };
    pub use crate::report::{RecoveryReport, TornTail};
    pub use crate::response::{Replay, Response};
    pub use crate::run::{OnInterrupted, RunError, RunOptions};
    pub use crate::stats::Stats;
    pub use crate::store::{Forget, Store};
    pub use crate::ticket::{ResumeError, Ticket, TicketError};
    pub use crate::token::Token;
}
