//! The log: every write of the store, in one total order.
//!
//! A record is appended without a lock ([`append`]), is durable when the watermark passes it
//! ([`commit`]), and never changes again. Room for it was promised before ([`space`], [`prepare`]).
//! Two threads serve the log: the preparer makes segments ready, the flusher syncs for futures and
//! when a segment is full.
//!
//! The order of the files is the order of the data: `word` and `record` are bytes, `segment` is a
//! mapped file of them, `append` and `commit` write it, `header`, `meta`, `scan`, `repair` and
//! `recover` read it back.

pub(crate) mod append;
pub(crate) mod commit;
pub(crate) mod segment;
pub(crate) mod space;
pub(crate) mod word;

#[cfg(not(oncekey_loom))]
pub(crate) mod header;
#[cfg(not(oncekey_loom))]
pub(crate) mod meta;
#[cfg(not(oncekey_loom))]
pub(crate) mod position;
#[cfg(not(oncekey_loom))]
pub(crate) mod prepare;
#[cfg(not(oncekey_loom))]
pub(crate) mod record;
#[cfg(not(oncekey_loom))]
pub(crate) mod recover;
#[cfg(not(oncekey_loom))]
pub(crate) mod repair;
#[cfg(not(oncekey_loom))]
pub(crate) mod scan;
#[cfg(not(oncekey_loom))]
pub(crate) mod table;
#[cfg(not(oncekey_loom))]
mod workers;

#[cfg(not(oncekey_loom))]
pub(crate) use self::workers::{Log, LogParts};
