//! What maintenance tells: what a pass did, what all of them did, and why one failed.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::corruption::Corruption;
use crate::error::Unavailable;

/// What one pass of maintenance did, from [`Store::maintain`](crate::Store::maintain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceReport {
    /// Segments of the log and compacted files that were given up.
    pub segments_removed: u64,
    /// Their bytes, which the disk has back once nobody holds a response that lies in them.
    pub bytes_removed: u64,
    /// Compacted files that were written.
    pub segments_written: u64,
    /// Results that were copied into them, with the removals that are kept for a while.
    pub records_copied: u64,
    /// The bytes of these copies.
    pub bytes_copied: u64,
    /// Expired results that were dropped with their segments.
    pub results_expired: u64,
    /// Keys without an outcome that were written to the log again, since their segments went.
    pub keys_refreshed: u64,
}

impl MaintenanceReport {
    pub(crate) fn add(&mut self, other: &Self) {
        self.segments_removed += other.segments_removed;
        self.bytes_removed += other.bytes_removed;
        self.segments_written += other.segments_written;
        self.records_copied += other.records_copied;
        self.bytes_copied += other.bytes_copied;
        self.results_expired += other.results_expired;
        self.keys_refreshed += other.keys_refreshed;
    }
}

/// What maintenance has done since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceStats {
    /// Passes that ended well, those that found nothing to do included.
    pub passes: u64,
    /// Passes that failed. Claims go on all the same; the next pass tries again.
    pub passes_failed: u64,
    /// Why the newest pass failed; `None` when it ended well.
    pub last_failure: Option<String>,
    /// What all passes did together.
    pub done: MaintenanceReport,
}

/// Why a pass of maintenance failed. Nothing is lost by it, and claims go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MaintenanceError {
    /// The store is closed, forked or poisoned.
    Unavailable(Unavailable),
    /// The system reported an error, in most cases that the disk is full. Free space, then try
    /// again.
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system reported.
        source: Arc<io::Error>,
    },
    /// The log had no room for a key without an outcome, which must be written again before its
    /// segment can go. Free space, then try again.
    NoRoom {
        /// Bytes that are needed.
        needed_bytes: u64,
    },
    /// A record in a segment that was to be given up cannot be read. Nobody can tell whose it was,
    /// so the segment stays, and with it all later ones of the log; compacted files go on being
    /// compacted. Open the store with `Recovery::Salvage`: it lists what is lost, keeps a copy of
    /// the file, and what can be read is given up as usual from then on.
    Damaged(Corruption),
    /// The pass panicked: a fault of the store. What it had begun is cleared away by the next one.
    Panicked,
}

impl fmt::Display for MaintenanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => write!(f, "no maintenance: {error}"),
            Self::Io { doing, source } => {
                write!(
                    f,
                    "maintenance failed while {doing}: {source}; it is tried again"
                )
            }
            Self::NoRoom { needed_bytes } => write!(
                f,
                "maintenance needs {needed_bytes} bytes of the log for a key without an outcome, \
                 and there is no room; free space"
            ),
            Self::Damaged(corruption) => write!(
                f,
                "a segment stays, and all later ones of the log with it, because a record in it \
                 cannot be read: {corruption}"
            ),
            Self::Panicked => f.write_str("maintenance panicked; it is tried again"),
        }
    }
}

impl Error for MaintenanceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unavailable(error) => Some(error),
            Self::Io { source, .. } => Some(&**source),
            Self::Damaged(corruption) => Some(corruption),
            Self::NoRoom { .. } | Self::Panicked => None,
        }
    }
}

impl MaintenanceError {
    /// Whether it goes away by itself when there is room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::log::is_full(source))
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            source: Arc::new(source),
        }
    }
}

impl From<Unavailable> for MaintenanceError {
    fn from(error: Unavailable) -> Self {
        Self::Unavailable(error)
    }
}
