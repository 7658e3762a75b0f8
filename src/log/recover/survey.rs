//! Looking at a directory without changing it, beside a store that may be at work in it.
//!
//! It is read as [`recover`](super::recover) reads it and judged in the same way, but nothing is
//! repaired, locked or mapped: bytes are copied out of the files, so that a file that is cut or
//! unlinked meanwhile costs an error and not the process. What a running store changes while it is
//! looked at shows in two ways, and both are met by looking again:
//! * compaction takes files away and adds others. It says so in META first, so a list of files holds
//!   if META names the same ones before the first was opened and after the last. From then on they
//!   are open, and stay readable when they are unlinked;
//! * the end of the log moves. What was half written when its bytes were copied may look like
//!   damage; damage is believed only when it is still there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::corruption::{Corruption, Damage};
use crate::fs::{Storage, StorageFile};
use crate::key::Key;
use crate::log::header::PAGE_BYTES;
use crate::log::members::Tally;
use crate::log::meta::Meta;
use crate::log::record::Record;
use crate::log::recover::files::{Files, SegmentFile};
use crate::log::recover::judge::{self, Kept};
use crate::log::recover::listing::{Listing, side_car_name};
use crate::log::recover::origin::Found;
use crate::log::recover::side_car::{self, SideCar};
use crate::log::recover::{Candidate, RecoverError, compacted};
use crate::log::scan::{Scan, scan_file, visit_file};
use crate::mem::Memory;
use crate::report::{BadSideCar, TornTail};

/// How often files may change under the look before it gives up.
const CHANGES_MAX: u32 = 100;
/// How often damage has to be seen before it is believed.
const LOOKS_AT_DAMAGE: u32 = 3;
/// Time in between, for whoever is writing to come to an end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How many damaged records are asked whose they are.
const SUSPECTS_MAX: usize = 10_000;
/// How much is copied at once.
const CHUNK: usize = 256 << 10;

/// Told how many bytes of how many were read; its error ends the look.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> io::Result<()>;

/// What a directory holds.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) meta: Meta,
    /// What is wrong with the slot of META that does not count.
    pub(crate) meta_slot: Option<Damage>,
    files: Vec<Surveyed>,
    /// Durable data that cannot be read.
    pub(crate) losses: Vec<Corruption>,
    /// Whose they probably were, as far as their keys look like keys.
    pub(crate) suspects: Vec<Suspect>,
    /// What lies behind the end of the log: being written, or cut off by a crash.
    pub(crate) tail: Option<TornTail>,
    /// Ranges that somebody reserved and never finished.
    pub(crate) holes: u64,
    pub(crate) side_cars: u64,
    pub(crate) side_cars_bad: Vec<BadSideCar>,
    /// Records that can be read.
    pub(crate) records: u64,
    pub(crate) compacted_files: u64,
    /// Bytes of all files of records.
    pub(crate) file_bytes: u64,
    /// Everything below is durable for sure.
    pub(crate) watermark: u64,
    /// Position behind the last record of the log.
    pub(crate) end: u64,
    /// The latest store time in ms that any record mentions.
    pub(crate) latest_ms: u64,
}

/// A record that cannot be believed, and the key that stands in it.
#[derive(Debug)]
pub(crate) struct Suspect {
    pub(crate) file: String,
    /// In bytes.
    pub(crate) offset: u64,
    pub(crate) key: Key,
}

/// A file that counts, open, and how far it does.
#[derive(Debug)]
struct Surveyed {
    file: SegmentFile,
    open: Arc<dyn StorageFile>,
    tail: u64,
}

/// The files of one moment, all open.
struct Opened {
    meta: Meta,
    meta_slot: Option<Damage>,
    listing: Listing,
    log: Files,
    compacted: Files,
    log_files: Vec<Arc<dyn StorageFile>>,
    compacted_files: Vec<Arc<dyn StorageFile>>,
}

/// Looks at the directory: `None` where there is no store. With `side_cars`, those are checked too.
///
/// # Errors
///
/// As for [`recover`](super::recover), but that corruption is among the losses.
pub(crate) fn survey(
    storage: &dyn Storage,
    side_cars: bool,
    progress: Progress<'_>,
) -> Result<Option<Survey>, RecoverError> {
    for look in 1.. {
        let Some(opened) = open_all(storage)? else {
            return Ok(None);
        };
        let survey = read(storage, opened, side_cars, progress)?;
        let is_damaged = !survey.losses.is_empty()
            || survey.meta_slot.is_some()
            || !survey.side_cars_bad.is_empty();
        if !is_damaged || look >= LOOKS_AT_DAMAGE {
            return Ok(Some(survey));
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Ok(None)
}

/// Opens the files that count at one moment.
fn open_all(storage: &dyn Storage) -> Result<Option<Opened>, RecoverError> {
    let mut changes = 0;
    loop {
        match try_open(storage) {
            Ok(Attempt::Opened(opened)) => return Ok(Some(*opened)),
            Ok(Attempt::NoStore) => return Ok(None),
            // A file went, or META was just being renamed, between its listing and its opening.
            Ok(Attempt::Changed) if changes < CHANGES_MAX => {}
            Err(RecoverError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && changes < CHANGES_MAX => {}
            Ok(Attempt::Changed) => {
                let source = io::Error::other("the files changed each time they were listed");
                return Err(RecoverError::Io {
                    file: ".".into(),
                    source,
                });
            }
            Err(error) => return Err(error),
        }
        changes += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

enum Attempt {
    Opened(Box<Opened>),
    NoStore,
    Changed,
}

fn try_open(storage: &dyn Storage) -> Result<Attempt, RecoverError> {
    let mut listing = Listing::read(storage)?;
    let Found::Whole(before) = Found::read(storage, &listing, false)? else {
        return Ok(Attempt::NoStore);
    };
    let members = before.meta().members;
    listing.leave_out(&members);
    let log = Files::read(storage, &listing.segments)?;
    let compacted = Files::read_compacted(storage, &listing.compacted)?;
    let log_files = open_files(storage, log.names())?;
    let compacted_files = open_files(storage, compacted.names())?;
    let Found::Whole(after) = Found::read(storage, &listing, false)? else {
        return Ok(Attempt::Changed);
    };
    if after.meta().members != members {
        return Ok(Attempt::Changed);
    }
    Ok(Attempt::Opened(Box::new(Opened {
        meta: after.meta().clone(),
        meta_slot: after.bad_slot(),
        listing,
        log,
        compacted,
        log_files,
        compacted_files,
    })))
}

fn open_files(
    storage: &dyn Storage,
    names: Vec<String>,
) -> Result<Vec<Arc<dyn StorageFile>>, RecoverError> {
    let open = |name: String| storage.open(&name).map_err(RecoverError::io(&name));
    names.into_iter().map(open).collect()
}

/// Scans what was opened, and judges it as a salvage would.
fn read(
    storage: &dyn Storage,
    opened: Opened,
    side_cars: bool,
    progress: Progress<'_>,
) -> Result<Survey, RecoverError> {
    let Opened {
        meta,
        meta_slot,
        listing,
        mut log,
        mut compacted,
        log_files,
        compacted_files,
    } = opened;
    let mut open_of = OpenFiles::new(&log, log_files, &compacted, compacted_files);
    log.vet(&meta, true)?;
    log.link(meta.members.log_start, true)?;
    compacted.vet(&meta, true)?;
    let found = Tally::of(compacted.segments.iter().map(|file| file.base));
    compacted.match_tally(found, &meta.members, true)?;
    log.take_losses(&mut compacted);

    let total = log.bytes() + compacted.bytes();
    let mut scanning = Scanning {
        storage,
        listing: &listing,
        side_cars,
        suspects: Vec::new(),
        done: 0,
        total,
        progress,
    };
    let copies = scanning.all(std::mem::take(&mut compacted.segments), &open_of)?;
    let candidates = scanning.all(std::mem::take(&mut log.segments), &open_of)?;
    let suspects = scanning.suspects;
    let verdict = judge::judge(&candidates, meta.watermark, true)?;

    let mut survey = Survey {
        meta_slot,
        files: Vec::new(),
        losses: std::mem::take(&mut log.losses),
        suspects,
        tail: tail_of(&candidates, &verdict.kept),
        holes: verdict.holes,
        side_cars: 0,
        side_cars_bad: Vec::new(),
        records: 0,
        compacted_files: copies.len() as u64,
        file_bytes: total,
        watermark: verdict.watermark,
        end: 0,
        latest_ms: 0,
        meta,
    };
    for copies in copies {
        let kept = compacted::judge(&copies, &mut survey.losses, true)?;
        survey.take(copies, &kept, &mut open_of);
    }
    survey.losses.extend(verdict.losses);
    for (candidate, kept) in candidates.into_iter().zip(&verdict.kept) {
        if kept.records > 0 {
            survey.end = candidate.file.base + candidate.scan.records_end.min(kept.tail);
        }
        survey.take(candidate, kept, &mut open_of);
    }
    Ok(survey)
}

impl Survey {
    /// How many files there are to visit.
    pub(crate) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Hands over the records of one file that count, in the order in which they stand.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub(crate) fn visit(
        &self,
        at: usize,
        visit: &mut dyn FnMut(&Record<'_>),
    ) -> Result<(), RecoverError> {
        let Some(Surveyed { file, open, tail }) = self.files.get(at) else {
            return Ok(());
        };
        let memory = copy(open.as_ref(), tail * 8).map_err(RecoverError::io(&file.name))?;
        visit_file(&memory, &file.header, *tail, &mut |_, record| visit(record));
        Ok(())
    }

    fn take(&mut self, candidate: Candidate, kept: &Kept, open_of: &mut OpenFiles) {
        self.records += kept.records;
        self.latest_ms = self.latest_ms.max(candidate.scan.high_water_ms);
        match candidate.side_car {
            SideCar::Good(_) => self.side_cars += 1,
            SideCar::Bad(damage) => self.side_cars_bad.push(BadSideCar {
                file: side_car_name(&candidate.file.name),
                damage,
            }),
            SideCar::Missing => {}
        }
        if let Some(open) = open_of.take(&candidate.file.name) {
            self.files.push(Surveyed {
                file: candidate.file,
                open,
                tail: kept.tail,
            });
        }
    }
}

/// What stands behind the last range that counts.
fn tail_of(candidates: &[Candidate], kept: &[Kept]) -> Option<TornTail> {
    let at = kept.len().checked_sub(1)?;
    let (last, tail) = (candidates.get(at)?, kept.get(at)?.tail);
    let words = last.scan.written_end.saturating_sub(tail);
    (words > 0).then(|| TornTail {
        file: last.file.name.clone(),
        offset: tail * 8,
        bytes: words * 8,
        segments: 0,
    })
}

/// The open files, by their names.
struct OpenFiles(std::collections::BTreeMap<String, Arc<dyn StorageFile>>);

impl OpenFiles {
    fn new(
        log: &Files,
        log_files: Vec<Arc<dyn StorageFile>>,
        compacted: &Files,
        compacted_files: Vec<Arc<dyn StorageFile>>,
    ) -> Self {
        let log = log.names().into_iter().zip(log_files);
        let compacted = compacted.names().into_iter().zip(compacted_files);
        Self(log.chain(compacted).collect())
    }

    fn get(&self, name: &str) -> Result<&dyn StorageFile, RecoverError> {
        let file = self.0.get(name).map(AsRef::as_ref);
        file.ok_or_else(|| RecoverError::io(name)(io::ErrorKind::NotFound.into()))
    }

    fn take(&mut self, name: &str) -> Option<Arc<dyn StorageFile>> {
        self.0.remove(name)
    }
}

/// A pass over all files.
struct Scanning<'a> {
    storage: &'a dyn Storage,
    listing: &'a Listing,
    side_cars: bool,
    suspects: Vec<Suspect>,
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Scanning<'_> {
    fn all(
        &mut self,
        files: Vec<SegmentFile>,
        open_of: &OpenFiles,
    ) -> Result<Vec<Candidate>, RecoverError> {
        let mut candidates = Vec::with_capacity(files.len());
        for file in files {
            let io = RecoverError::io(&file.name);
            let scanned = copy(open_of.get(&file.name)?, file.len).map(|memory| {
                let scan = scan_file(&memory, &file.header, file.limit());
                self.suspect(&file, &memory, &scan);
                scan
            });
            self.done += file.len;
            let scan = scanned
                .and_then(|scan| (self.progress)(self.done, self.total).map(|()| scan))
                .map_err(io)?;
            let is_asked = self.side_cars && self.listing.side_cars.contains_key(&file.base);
            let side_car = match is_asked {
                true => side_car::read_with(self.storage, &file, copy),
                false => SideCar::Missing,
            };
            candidates.push(Candidate {
                file,
                memory: Memory::heap(0),
                scan,
                side_car,
            });
        }
        Ok(candidates)
    }
}

impl Scanning<'_> {
    /// Notes whose the records may be that do not match their checksums: of most, another part than
    /// the key is damaged.
    fn suspect(&mut self, file: &SegmentFile, memory: &Memory, scan: &Scan) {
        let unmatched = scan
            .spots
            .iter()
            .filter(|spot| spot.damage == Damage::Checksum);
        for spot in unmatched.take(SUSPECTS_MAX.saturating_sub(self.suspects.len())) {
            let bytes = memory.bytes(spot.from as usize * 8, (spot.to - spot.from) as usize * 8);
            if let Ok(record) = Record::parse_verified(bytes)
                && let Ok(key) = Key::from_parts(record.key, record.key_lengths)
            {
                self.suspects.push(Suspect {
                    file: file.name.clone(),
                    offset: spot.from * 8,
                    key,
                });
            }
        }
    }
}

/// The first `len` bytes of a file, or all there are by now: one that is closed is cut behind its
/// last record.
fn copy(file: &dyn StorageFile, len: u64) -> io::Result<Memory> {
    let len = file.len()?.min(len);
    let words = usize::try_from(len / 8).map_err(io::Error::other)?;
    let memory = Memory::heap(words);
    let mut chunk = vec![0; CHUNK.max(PAGE_BYTES)];
    let mut at = 0;
    while at < words * 8 {
        let bytes = (words * 8 - at).min(chunk.len());
        let (part, _) = chunk.split_at_mut(bytes);
        match file.read_at(at as u64, part) {
            Ok(()) => memory.copy_in(at, part),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        at += bytes;
    }
    Ok(memory)
}
