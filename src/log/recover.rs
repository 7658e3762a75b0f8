//! Opening a directory: from whatever a crash left to a log all of which is durable.
//!
//! In this order: list the directory, read META and all headers, link the segments into a chain,
//! read their side-cars, scan those segments that have no good one, judge what was found ([`judge`]), and only then change anything ([`repair`]). Up to
//! there a refused open has written nothing. A store that was closed properly is not written at
//! all, but for zeros cut off behind its end, which a process that closes has mapped, and side-cars
//! that are no good, which go.
//!
//! A segment with a good side-car was durable as a whole before the side-car had its name. Its
//! records are not read, so damage to them is noticed by whoever reads them, by their checksum. A
//! salvage believes no side-car and scans everything.
//!
//! The order of the changes makes every moment of them a state from which the next open comes to
//! the same answers:
//! 1. files that META does not count go, once META as it was read is durable: a killed process may
//!    have left it in the cache alone;
//! 2. copies of what a salvage is about to change;
//! 3. side-cars that are not to be believed, or whose segment is about to change, go;
//! 4. META, when it claims more than the log will hold, or a proper close, lacks a slot or was
//!    rebuilt;
//! 5. segments behind the end of the log go, newest first, each durably before the next;
//! 6. in what stays, all that may not be durable is written again and synced: after a failed sync
//!    the page cache holds what the disk does not;
//! 7. what was written is read and verified once more, since the cache may have dropped it before.
//!
//! The caller holds the directory's lock. An I/O error is an error, never the end of the log.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use tracing::field::Empty;

use crate::corruption::{Corruption, Damage};
use crate::fs::Storage;
use crate::log::index_file::IndexFile;
use crate::log::members::{Members, Tally};
use crate::log::meta::MetaFile;
use crate::log::record::Record;
use crate::log::repair;
use crate::log::scan::{Scan, Spot, scan_file};
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::word::{Decoded, State};
use crate::mem::Memory;
use crate::parallel;
use crate::report::RecoveryReport;
use crate::sync::Arc;

use self::files::{Files, SegmentFile};
use self::finish::{Finish, Staying};
use self::listing::Listing;
use self::origin::{Found, Origin};
use self::side_car::SideCar;

mod compacted;
mod files;
mod finish;
mod judge;
pub(crate) mod listing;
mod origin;
mod side_car;
pub(crate) mod survey;
#[cfg(test)]
mod tests;

/// What a directory held, ready to be used.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// META. Its epoch is durably at least that of every position ever given out.
    pub(crate) meta: MetaFile,
    /// Compacted files, then the log, each in the order of their bases; numbered from 0. All their
    /// records are durable.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// For each of them its side-car, if that vouched for it: then its records were not read.
    pub(crate) side_cars: Vec<Option<IndexFile>>,
    /// The files that count from now on, for the next update of META.
    pub(crate) members: Members,
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
    /// What was found in it, or what its side-car says.
    scan: Scan,
    side_car: SideCar,
}

impl Candidate {
    /// Whether its records were not read, since a side-car says what they are.
    fn is_vouched_for(&self) -> bool {
        matches!(self.side_car, SideCar::Good(_))
    }

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
    let mut listing = Listing::read(storage)?;
    let found = Found::read(storage, &listing, salvage)?;
    let members = found.members();
    if let Some(members) = &members {
        listing.leave_out(members);
    }
    let mut files = Files::read(storage, &listing.segments)?;
    let mut compacted = Files::read_compacted(storage, &listing.compacted)?;
    let origin = Origin::resolve(found, &files, &compacted, now_ms)?;
    files.vet(origin.meta(), salvage)?;
    files.link(members.map_or(0, |members| members.log_start), salvage)?;
    compacted.vet(origin.meta(), salvage)?;
    if let Some(members) = &members {
        let found = Tally::of(compacted.segments.iter().map(|file| file.base));
        compacted.match_tally(found, members, salvage)?;
    }
    let copies = std::mem::take(&mut compacted.segments);
    let copies = read_all(storage, copies, &listing.side_cars, salvage)?;
    files.take_losses(&mut compacted);
    let segments = std::mem::take(&mut files.segments);
    let candidates = read_all(storage, segments, &listing.side_cars, salvage)?;
    let verdict = judge::judge(&candidates, origin.watermark(&candidates), salvage)?;
    let copies = copies
        .into_iter()
        .map(|copies| {
            let kept = compacted::judge(&copies, &mut files.losses, salvage)?;
            Ok(Staying::of_copies(copies, kept))
        })
        .collect::<Result<_, _>>()?;

    let finish = Finish {
        storage,
        listing,
        files,
        origin,
        verdict,
        members: members.unwrap_or_default(),
        copies,
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

/// Visits the committed records of a segment that was scanned or written by this process, in order,
/// each with its offset and its length in words, and those that are attached to one after it. Their checksums are verified: what is made of them
/// may be believed later instead of them.
///
/// # Errors
///
/// [`RecoverError::Corrupt`] if the file changed since then.
pub(crate) fn walk(
    segment: &Segment,
    visit: &mut dyn FnMut(u64, u64, Record<'_>),
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
            let (record, _) = segment
                .verified_record(offset)
                .ok_or_else(|| changed(Damage::Checksum, words))?;
            visit(offset, words, record);
            for attached in segment.attached(offset, &record) {
                let one = attached.map_err(|_| changed(Damage::Field("extension"), words))?;
                visit(offset + one.offset, one.words, one.record);
            }
        }
        offset += words;
    }
    Ok(())
}

/// Maps all segments and scans those that no side-car vouches for.
fn read_all(
    storage: &dyn Storage,
    files: Vec<SegmentFile>,
    side_cars: &BTreeMap<u64, String>,
    salvage: bool,
) -> Result<Vec<Candidate>, RecoverError> {
    let read = parallel::each(files.len(), |at| {
        let file = files.get(at).ok_or(io::ErrorKind::NotFound)?;
        let side_car = if side_cars.contains_key(&file.base) && !salvage {
            side_car::read(storage, file)
        } else {
            SideCar::Missing
        };
        match side_car {
            SideCar::Good(index) => {
                let memory = storage.open(&file.name)?.map(false)?;
                let scan = side_car::scan_of(index.summary());
                Ok((memory, scan, SideCar::Good(index)))
            }
            side_car => {
                let (memory, scan) = scan_one(storage, file)?;
                Ok((memory, scan, side_car))
            }
        }
    });
    files
        .into_iter()
        .zip(read)
        .map(|(file, outcome)| {
            let (memory, scan, side_car) = outcome.map_err(RecoverError::io(&file.name))?;
            Ok(Candidate {
                file,
                memory,
                scan,
                side_car,
            })
        })
        .collect()
}

fn scan_one(storage: &dyn Storage, file: &SegmentFile) -> io::Result<(Memory, Scan)> {
    // Open only for this: a store may have more segments than a process has descriptors.
    let open = storage.open(&file.name)?;
    repair::read_through(open.as_ref(), file.len)?;
    let memory = open.map(false)?;
    let scan = scan_file(&memory, &file.header, file.limit());
    Ok((memory, scan))
}
