//! What every shared backend has in common: judging what a key is, leases that renew themselves,
//! waiting, and what becomes of futures that are dropped.
//!
//! A [`Driver`] knows one kind of server and makes single atomic steps there. All decisions are made
//! here, from what the driver read, and every step that acts on one names the token that it read: a
//! step that comes too late changes nothing and is decided anew. No step uses this machine's clock.

mod backend;
mod clock;
mod driver;
mod fields;
mod guard;
mod options;
mod record;

pub use self::backend::SharedBackend;
pub use self::driver::Driver;
pub use self::guard::SharedGuard;
pub use self::options::{SharedOptions, SharedOptionsError};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::backend::{ROUNDS_MAX, changing};
pub(crate) use self::driver::{Begun, Change, Grant, Listed, NewClaim, Removal, Written};
pub(crate) use self::fields::{Field, Fields, read_record};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::guard::{check_answer, previous};
pub(crate) use self::record::{Record, State, judge};
