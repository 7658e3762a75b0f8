//! Recovery (skeleton).

use std::io;

use crate::corruption::{Corruption, Damage};
use crate::fs::Storage;
use crate::log::meta::MetaFile;
use crate::log::record::Record;
use crate::log::segment::Segment;
use crate::report::RecoveryReport;
use crate::sync::Arc;

/// What a directory held, ready to be used.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// META. Its epoch is durably at least that of every position ever given out.
    pub(crate) meta: MetaFile,
    /// In the order of their bases, numbered from 0. All their records are durable.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Position behind the last range of the log; 0 for an empty log. All below is durable.
    pub(crate) log_end: u64,
    /// Base of the newest segment and the end of its records, for the next header; zeros if there
    /// is none.
    pub(crate) previous: (u64, u64),
    /// The latest store time in ms that anything mentions.
    pub(crate) high_water_ms: u64,
    /// What was found and done. `interrupted` is left to the caller, `duration` is that of this
    /// part.
    pub(crate) report: RecoveryReport,
}

/// Why a directory cannot be opened.
#[derive(Debug)]
pub(crate) enum RecoverError {
    /// The system reported an error. Never taken for the end of the log.
    Io {
        /// The file, or `.` for the directory.
        file: String,
        /// What the system reported.
        source: io::Error,
    },
    /// Durable data cannot be read.
    Corrupt(Corruption),
    /// Something lies in the directory that is not the store's.
    ForeignFile {
        /// Its name.
        name: String,
    },
    /// A file of another format version.
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// Segments without META.
    MetaMissing {
        /// How many segments there are.
        segments: usize,
    },
    /// Both slots of META are bad.
    MetaDamaged {
        /// Why, in order.
        slots: [Damage; 2],
    },
}

/// Reads the directory, repairs what a crash left, and hands over a log all of which is durable.
///
/// With `salvage`, corruption is skipped and reported instead of refused. `now_ms` dates a new META.
///
/// # Errors
///
/// See [`RecoverError`]. Nothing was changed then, unless the error came from changing it.
pub(crate) fn recover(
    storage: &dyn Storage,
    salvage: bool,
    now_ms: u64,
) -> Result<Recovered, RecoverError> {
    let _ = (storage, salvage, now_ms);
    todo!()
}

/// Visits the committed records of a recovered segment in order, each with its offset in words.
///
/// # Errors
///
/// [`RecoverError::Corrupt`] if the file changed since it was scanned.
pub(crate) fn walk(
    segment: &Segment,
    visit: &mut dyn FnMut(u64, Record<'_>),
) -> Result<(), RecoverError> {
    let _ = (segment, visit);
    todo!()
}
