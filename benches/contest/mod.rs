//! The contest: the same keys, the same responses and the same threads for every contestant.
//!
//! [`keys`] makes what is claimed, [`contestants`] are who competes, [`crew`] runs them on threads
//! that were started before the clock, and [`host`] gives each of them stores with enough room, in a
//! directory of its own ([`place`]).
#![allow(dead_code, reason = "each bench uses its part")]

pub mod contestants;
pub mod crew;
pub mod host;
pub mod keys;
pub mod place;
