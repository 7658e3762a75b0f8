//! Opening a directory: from whatever a crash left to a log all of which is durable.
//!
//! In this order: list the directory, read META and all headers, link the segments into a chain,
//! scan them, judge what was found ([`judge`]), and only then change anything ([`repair`]). Up to
//! there a refused open has written nothing. A store that was closed properly is not written at
//! all, but for zeros cut off behind its end: a process that closes has them mapped.
//!
//! The order of the changes makes every moment of them a state from which the next open comes to
//! the same answers:
//! 1. copies of what a salvage is about to change;
//! 2. META, when it claims more than the log will hold, or a proper close, lacks a slot or was
//!    rebuilt;
//! 3. segments behind the end of the log go, newest first, each durably before the next;
//! 4. in what stays, all that may not be durable is written again and synced: after a failed sync
//!    the page cache holds what the disk does not;
//! 5. what was written is read and verified once more, since the cache may have dropped it before.
//!
//! The caller holds the directory's lock. An I/O error is an error, never the end of the log.

use std::io;
use std::time::Instant;

use tracing::field::Empty;

use crate::corruption::{Corruption, Damage};
use crate::fs::Storage;
use crate::log::meta::MetaFile;
use crate::log::record::Record;
use crate::log::repair;
use crate::log::scan::{Scan, Spot, scan};
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::word::{Decoded, State};
use crate::mem::Memory;
use crate::report::RecoveryReport;
use crate::sync::os::thread;
use crate::sync::{Arc, AtomicUsize, Ordering};

use self::files::{Files, SegmentFile};
use self::finish::Finish;
use self::listing::Listing;
use self::origin::{Found, Origin};

mod files;
mod finish;
mod judge;
pub(crate) mod listing;
mod origin;
#[cfg(test)]
mod tests;

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
    /// Both slots of META are bad, and no segment has a header from which to rebuild it.
    MetaDamaged {
        /// Why, in order.
        slots: [Damage; 2],
    },
}

impl RecoverError {
    fn io(file: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io {
            file: file.to_owned(),
            source,
        }
    }
}

/// A segment file and what was read from it.
#[derive(Debug)]
struct Candidate {
    file: SegmentFile,
    memory: Memory,
    scan: Scan,
}

impl Candidate {
    fn corruption(&self, spot: Spot) -> Corruption {
        self.file.corruption(spot.damage, spot.from, spot.to)
    }
}

/// Reads the directory, repairs what a crash left, and hands over a log all of which is durable.
///
/// With `salvage`, corruption is skipped and reported instead of refused. `now_ms` dates a new
/// META.
///
/// # Errors
///
/// See [`RecoverError`]. Nothing was changed then, unless the error came from changing it.
pub(crate) fn recover(
    storage: &dyn Storage,
    salvage: bool,
    now_ms: u64,
) -> Result<Recovered, RecoverError> {
    let span = tracing::info_span!(
        "recover",
        salvage,
        clean = Empty,
        segments = Empty,
        records = Empty,
        bytes_scanned = Empty,
        holes = Empty,
        torn_bytes = Empty,
        losses = Empty,
    );
    let _entered = span.enter();
    let started = Instant::now();
    let listing = Listing::read(storage)?;
    let found = Found::read(storage, &listing, salvage)?;
    let mut files = Files::read(storage, &listing.segments)?;
    let origin = Origin::resolve(found, &files, now_ms)?;
    files.vet(origin.meta(), salvage)?;
    files.link(salvage)?;
    let candidates = scan_all(storage, std::mem::take(&mut files.segments))?;
    let verdict = judge::judge(&candidates, origin.watermark(&candidates), salvage)?;

    let finish = Finish {
        storage,
        listing,
        files,
        origin,
        verdict,
    };
    let mut recovered = finish.run(candidates)?;
    let report = &mut recovered.report;
    report.duration = started.elapsed();
    span.record("clean", report.clean);
    span.record("segments", report.segments);
    span.record("records", report.records);
    span.record("bytes_scanned", report.bytes_scanned);
    span.record("holes", report.holes);
    span.record(
        "torn_bytes",
        report.torn_tail.as_ref().map_or(0, |torn| torn.bytes),
    );
    span.record("losses", report.losses.len());
    Ok(recovered)
}

/// Refuses a directory that holds what is not a store's. Reads names only.
///
/// # Errors
///
/// [`RecoverError::ForeignFile`], or the system's.
pub(crate) fn check_listing(storage: &dyn Storage) -> Result<(), RecoverError> {
    Listing::read(storage).map(drop)
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
    let tail = segment.tail() - segment.base;
    let mut offset = FIRST_RECORD;
    while offset < tail {
        let changed = |damage, words: u64| {
            let (from, to) = (offset, offset + words);
            let corruption = Corruption::of_words(damage, &segment.name, segment.base, from, to);
            RecoverError::Corrupt(corruption)
        };
        let (words, state) = match segment.word_at(offset) {
            Decoded::Word { words, state } if words <= tail - offset => (words, state),
            _ => return Err(changed(Damage::Length, 1)),
        };
        if state == State::Committed {
            let record = segment
                .record_bytes(offset)
                .and_then(|bytes| Record::parse_verified(bytes).ok())
                .ok_or_else(|| changed(Damage::Checksum, words))?;
            visit(offset, record);
        }
        offset += words;
    }
    Ok(())
}

/// Maps and scans all segments, on as many threads as there are processors.
fn scan_all(
    storage: &dyn Storage,
    files: Vec<SegmentFile>,
) -> Result<Vec<Candidate>, RecoverError> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(files.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut scanned = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                return scanned;
            };
            scanned.push((index, scan_one(storage, file)));
        }
    };
    let mut scanned = if threads <= 1 {
        work()
    } else {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
                Ok(scanned) => scanned,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            workers.into_iter().flat_map(join).collect()
        })
    };
    scanned.sort_by_key(|(index, _)| *index);
    files
        .into_iter()
        .zip(scanned)
        .map(|(file, (_, outcome))| {
            let (memory, scan) = outcome.map_err(RecoverError::io(&file.name))?;
            Ok(Candidate { file, memory, scan })
        })
        .collect()
}

fn scan_one(storage: &dyn Storage, file: &SegmentFile) -> io::Result<(Memory, Scan)> {
    // Open only for this: a store may have more segments than a process has descriptors.
    let open = storage.open(&file.name)?;
    repair::read_through(open.as_ref(), file.len)?;
    let memory = open.map(false)?;
    let scan = scan(&memory, file.base, file.header.seed(), file.limit());
    Ok((memory, scan))
}
