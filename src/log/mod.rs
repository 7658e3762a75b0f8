//! The log: every write of the store, in one total order.
//!
//! A record is appended without a lock ([`append`]), is durable when the watermark passes it
//! ([`commit`]), and never changes again. Room for it was promised before ([`space`], [`prepare`]).
//! Three threads serve the log: the preparer makes segments ready, the flusher syncs for futures and
//! when a segment is full, the indexer writes the side-cars of those that are sealed.
//!
//! The order of the files is the order of the data: `word` and `record` are bytes, `segment` is a
//! mapped file of them, `append` and `commit` write it, `header`, `meta`, `scan`, `repair` and
//! `recover` read it back. `index_file` says the same as a sealed segment in a hundredth of its
//! bytes, and `side_cars` writes it.

pub(crate) mod append;
pub(crate) mod attached;
pub(crate) mod catalog;
pub(crate) mod commit;
pub(crate) mod compact;
pub(crate) mod segment;
pub(crate) mod space;
pub(crate) mod spare;
pub(crate) mod word;

pub(crate) mod header;
pub(crate) mod index_file;
pub(crate) mod members;
pub(crate) mod meta;
pub(crate) mod position;
pub(crate) mod prepare;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod repair;
pub(crate) mod scan;
pub(crate) mod side_cars;
pub(crate) mod snapshot;
pub(crate) mod table;
mod workers;

#[cfg(all(test, oncekey_loom))]
pub(crate) mod loom_tests;

pub(crate) use self::workers::{Log, LogParts, is_full};
