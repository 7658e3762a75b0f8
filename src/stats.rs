//! Counters, and what `Store::stats` shows.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::engine::Outcome;
use crate::limit_reached::Limit;
use crate::maintenance::MaintenanceStats;

/// How many counters share the load, so that threads don't write the same cache line.
const SHARDS: usize = 8;

/// A count that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter([CachePadded<AtomicU64>; SHARDS]);

impl Counter {
    #[inline]
    pub(crate) fn add(&self) {
        self.0[shard()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0
            .iter()
            .map(|shard| shard.load(Ordering::Relaxed))
            .sum()
    }
}

/// A count of what happens seldom, or to callers who are turned away.
#[derive(Debug, Default)]
pub(crate) struct RareCounter(AtomicU64);

impl RareCounter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What has happened since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) started: Counter,
    pub(crate) taken_over: Counter,
    pub(crate) in_progress: Counter,
    pub(crate) replayed: Counter,
    pub(crate) mismatched: Counter,
    pub(crate) too_late: Counter,
    pub(crate) completed: Counter,
    pub(crate) released: Counter,
    pub(crate) interruptions: Counter,
    pub(crate) claims_abandoned: RareCounter,
    /// Expired results whose slot was taken out of the index.
    pub(crate) expired: RareCounter,
    pub(crate) out_of_space: RareCounter,
    pub(crate) pending_limit: RareCounter,
    pub(crate) waiters_limit: RareCounter,
    pub(crate) keys_limit: RareCounter,
    pub(crate) keys_per_scope_limit: RareCounter,
    pub(crate) disk_bytes_limit: RareCounter,
}

impl Counters {
    /// Counts the answer to one claim, once.
    #[inline]
    pub(crate) fn count(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Started(_) => &self.started,
            Outcome::Interrupted(_) => &self.taken_over,
            Outcome::InProgress(_) => &self.in_progress,
            Outcome::Completed(_) => &self.replayed,
            Outcome::Mismatch { .. } => &self.mismatched,
            Outcome::TooLate { .. } => &self.too_late,
        };
        counter.add();
    }

    /// Counts a call that was refused because of a limit.
    pub(crate) fn count_limit(&self, limit: Limit) {
        match limit {
            Limit::Keys => self.keys_limit.add(),
            Limit::KeysPerScope => self.keys_per_scope_limit.add(),
            Limit::DiskBytes => self.disk_bytes_limit.add(),
        }
    }

    pub(crate) fn limits_reached(&self) -> LimitsReached {
        LimitsReached {
            pending: self.pending_limit.total(),
            waiters: self.waiters_limit.total(),
            keys: self.keys_limit.total(),
            keys_per_scope: self.keys_per_scope_limit.total(),
            disk_bytes: self.disk_bytes_limit.total(),
        }
    }

    /// Counts the end of one operation.
    #[inline]
    pub(crate) fn count_finish(&self, completed: bool) {
        if completed {
            self.completed.add()
        } else {
            self.released.add()
        }
    }
}

#[inline]
fn shard() -> usize {
    thread_local! {
        static SHARD: usize = {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed) as usize % SHARDS
        };
    }
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}

/// The state of a store at a moment, from [`Store::stats`](crate::Store::stats).
///
/// Counts of calls begin at the open. Each figure is exact by itself; they are not read at one
/// instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Keys with a result, expired ones whose space was not yet reclaimed included.
    pub completed_keys: u64,
    /// Entities with a version, expired ones whose space was not yet reclaimed included.
    pub versions: u64,
    /// Messages in the [outbox](crate::outbox) that are to be delivered.
    pub outbox_messages: u64,
    /// Messages that failed too often.
    pub outbox_dead_letters: u64,
    /// How long the oldest message has been waiting to be delivered, in ms: how far the dispatcher lags.
    pub outbox_lag_ms: u64,
    /// Keys being claimed, pending or interrupted.
    pub pending_keys: u64,
    /// Of those, the interrupted ones.
    pub interrupted_keys: u64,
    /// Of those, the ones too old to be taken up again.
    pub abandoned_keys: u64,
    /// Callers waiting for a key.
    pub waiters: u64,
    /// Claims that started an operation.
    pub claims_started: u64,
    /// Claims that took over an interrupted operation.
    pub claims_taken_over: u64,
    /// Claims answered "in progress".
    pub claims_in_progress: u64,
    /// Claims answered with a stored result.
    pub claims_replayed: u64,
    /// Claims refused because the key was used for another request.
    pub claims_mismatched: u64,
    /// Claims refused as too late.
    pub claims_too_late: u64,
    /// Claims refused because the operation is abandoned.
    pub claims_abandoned: u64,
    /// Operations completed.
    pub completed: u64,
    /// Operations released.
    pub released: u64,
    /// Guards dropped or interrupted without an end.
    pub interruptions: u64,
    /// Expired results whose place in the index was given to a claim, or that were forgotten.
    pub expired: u64,
    /// Segments in use or prepared.
    pub segments: u64,
    /// Segments prepared and not yet written to.
    pub segments_prepared: u64,
    /// Segments whose records may not all be durable: the one being written, and full ones before it.
    pub segments_unsynced: u64,
    /// Bytes of the log that nobody was promised yet, in segments that exist.
    pub available_bytes: u64,
    /// Bytes appended and not yet known to be durable.
    pub unsynced_bytes: u64,
    /// Syncs of the log that succeeded.
    pub syncs: u64,
    /// Records those syncs made durable; divided by `syncs`, the mean size of a group.
    pub synced_records: u64,
    /// Records of the largest group that one sync made durable.
    pub largest_sync_records: u64,
    /// Bytes of all segment files, and of the file that is set aside for a compaction.
    pub segment_bytes: u64,
    /// Of the segments, those that hold copies of results out of segments that were given up.
    pub segments_compacted: u64,
    /// About how many bytes of records answer somebody: results whose time is not over. What was
    /// written before this open counts as live until maintenance has looked at it.
    pub live_bytes: u64,
    /// Bytes of the other records: superseded, expired, or of keys without an outcome.
    pub dead_bytes: u64,
    /// What maintenance has done, and why it failed last.
    pub maintenance: MaintenanceStats,
    /// Calls refused because the disk was full.
    pub out_of_space: u64,
    /// Calls refused because of a limit of the store.
    pub limits_reached: LimitsReached,
    /// Bytes of memory that the index tables take.
    pub index_bytes: u64,
    /// Whether a sync has failed: nothing is written until the store is reopened.
    pub poisoned: bool,
}

/// Calls that were refused because of a limit, by the option that sets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitsReached {
    /// [`Options::max_pending`](crate::Options::max_pending).
    pub pending: u64,
    /// [`Options::max_waiters`](crate::Options::max_waiters) and
    /// [`Options::max_waiters_per_key`](crate::Options::max_waiters_per_key).
    pub waiters: u64,
    /// [`Options::max_keys`](crate::Options::max_keys).
    pub keys: u64,
    /// [`Options::max_keys_per_scope`](crate::Options::max_keys_per_scope).
    pub keys_per_scope: u64,
    /// [`Options::max_disk_bytes`](crate::Options::max_disk_bytes), by claims or by completions that
    /// are larger than what was set aside for them.
    pub disk_bytes: u64,
}
