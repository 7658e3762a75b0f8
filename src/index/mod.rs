//! The index: where the newest record of every key stands.
//!
//! Keys are spread over stripes by a keyed hash; each stripe is one lock over two tables. *Completed*
//! keys are 8-byte slots that point into the log. Keys that are not completed (being claimed,
//! pending, interrupted) are whole entries in memory: their key, owner and waiters.
//!
//! Invariants:
//! * a key is in at most one of the two tables, except while its result is being forgotten: then the
//!   slot stays until the removal is written;
//! * nothing is appended, read from the log or woken under a stripe lock, and no thread holds two.

pub(crate) mod live;
pub(crate) mod slot;
pub(crate) mod stripe;

pub(crate) use self::live::{Live, Phase};
pub(crate) use self::slot::Slot;
pub(crate) use self::stripe::{Index, Stripe};
