//! Giving up segments, and keeping copies of what still answers.
//!
//! The log's side of a maintenance job; [`engine::maintenance`](crate::engine) decides what is kept.
//! A job writes its copies into new *compacted files* ([`Log::begin_copies`]), each whole and durable
//! under its name before anything refers to it; then one update of META lets them count and the
//! sources not ([`Log::give_up`]); then slots are moved, and only when no slot points into a source
//! any more it leaves the table and its file goes ([`Log::discard`], [`Log::clear_away`]).
//!
//! Invariants:
//! * copies take the room that is set aside for them ([`spare`](crate::log::spare)) only where there
//!   is no other;
//! * only the oldest segments of the log are given up, and never the newest that holds records, so
//!   what remains is always the end of the chain;
//! * a file is removed only once both slots of META say that it does not count: one slot may be bad
//!   when the store is opened;
//! * before META is changed again, everything that an earlier change left over is durably gone. So
//!   of a file that is there and not counted the next open can tell why.

use std::io;
use std::sync::Arc;

use crate::fs::Storage;
use crate::limit_reached::{Limit, LimitReached};
use crate::log::Log;
use crate::log::header::{Header, PAGE_BYTES};
use crate::log::position;
use crate::log::prepare::{compacted_name, preparing_name};
use crate::log::record::{Record, make_copy};
use crate::log::recover::listing::side_car_name;
use crate::log::repair::{self, remove_if_there};
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::spare::SPARE;
use crate::log::word::{self, State};
use crate::log::workers::Shared;
use crate::sync::MutexGuard;

/// How much is written at once.
const CHUNK_BYTES: usize = 1 << 20;
/// How much is written between two syncs: a large one would hold up those of the log.
const SYNC_EVERY_BYTES: u64 = 8 << 20;

/// What is left of earlier jobs. One job runs at a time.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    /// Files that do not count and are to go.
    names: Vec<String>,
    /// One slot of META may still count them, or not yet.
    one_slot: bool,
    /// Position behind the newest compacted file of this epoch; 0 before the first.
    next_base: u64,
}

/// Where copies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Into a file of their own.
    OnDisk,
    /// Into what is set aside, if it is large enough.
    SetAside,
}

/// The segments that a job could work on.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The oldest segments of the log, in order, but for the newest one with records.
    pub(crate) log: Vec<Arc<Segment>>,
    /// Base of the segment that follows them.
    pub(crate) log_rest: u64,
    /// All compacted files, in the order of their bases.
    pub(crate) compacted: Vec<Arc<Segment>>,
}

/// One change of the files that count.
#[derive(Debug)]
pub(crate) struct GivingUp<'a> {
    /// Base of the oldest segment of the log that counts from now on, if that changes.
    pub(crate) log_start: Option<u64>,
    /// All segments of the log before it.
    pub(crate) sources: &'a [Arc<Segment>],
    /// New compacted files.
    pub(crate) added: &'a [Arc<Segment>],
    /// A compacted file that does not count any more.
    pub(crate) removed: Option<&'a Segment>,
    /// Store time in ms at which results were found to be expired. Store time never goes back
    /// behind it, so they stay so.
    pub(crate) judged_ms: u64,
}

impl Log {
    /// What could be given up: all that is durable and not written any more.
    pub(crate) fn sources(&self) -> Sources {
        let shared = self.shared();
        let active = shared.appender.active().base;
        let watermark = shared.commit.watermark();
        // What is active may be empty, and was then prepared before the end of the log was known.
        let is_empty = shared.appender.tail() <= active + FIRST_RECORD;
        let opened_at = shared.appender.opened_at();
        // What an earlier open has written ends with its last record. In a segment of this one that
        // is known only once all of it is reserved.
        let is_durable =
            |segment: &Segment| segment.tail() <= opened_at || segment.end() <= watermark;
        let mut sources = Sources::default();
        let mut rest = None;
        for segment in shared.segments.all() {
            if segment.is_compacted() {
                sources.compacted.push(segment);
            } else if rest.is_none() && segment.base < active && is_durable(&segment) {
                sources.log.push(segment);
            } else {
                rest.get_or_insert(segment.base);
            }
        }
        sources.log_rest = rest.unwrap_or(active);
        if is_empty && let Some(newest) = sources.log.pop() {
            sources.log_rest = newest.base;
        }
        sources
    }

    /// Sets room aside for a compaction, if that was not done yet, and there is some. A store that
    /// may not have four segments does without.
    ///
    /// # Errors
    ///
    /// What the storage says: no room, above all.
    pub(crate) fn keep_spare(&self) -> io::Result<()> {
        let shared = self.shared();
        let plan = shared.plan.lock();
        let (limit, bytes) = (plan.disk_bytes_max, plan.segment_bytes);
        plan.want(&shared.spare);
        let others = shared.segments.file_bytes();
        if others.saturating_add(shared.spare.held(bytes)) > limit && !shared.spare.has(bytes) {
            return Ok(());
        }
        shared.spare.make(shared.storage.as_ref(), bytes)
    }

    /// Whether room is set aside that nobody uses.
    pub(crate) fn has_spare(&self) -> bool {
        self.shared().spare.has(1)
    }

    /// Begins a compacted file for records of `words` words in all, which are durable records of
    /// this store. Store time is `now_ms`.
    ///
    /// # Errors
    ///
    /// What the storage says: no room, above all; also where room is set aside, and without it the
    /// limit on the log's size would be exceeded.
    pub(crate) fn begin_copies(
        &self,
        words: u64,
        now_ms: u64,
        room: Room,
    ) -> io::Result<CopyWriter<'_>> {
        let shared = self.shared();
        let file_words = (FIRST_RECORD + words).next_multiple_of(PAGE_BYTES as u64 / 8);
        let (header, taken) = {
            let mut plan = shared.plan.lock();
            let file_bytes = file_words * 8;
            let base = plan.copies_base(&mut shared.remains.lock(), file_words)?;
            // Before the plan is free again: who holds it may replace what is set aside, and counts
            // what copies take when making a segment.
            let taken = self.take_room(&plan, file_bytes, room)?;
            let meta = plan.meta.meta();
            let header = Header {
                file_bytes,
                store_id: meta.store_id,
                base,
                previous_base: 0,
                previous_end: 0,
                watermark: 0,
                created_ms: now_ms,
                secret: meta.secret,
                copies_end: FIRST_RECORD + words,
            };
            (header, taken)
        };
        let name = compacted_name(header.base);
        let (preparing, opened) = match taken {
            Taken::Spare(_) => (SPARE.to_owned(), shared.storage.open(SPARE)),
            Taken::Elsewhere(bytes) => {
                let preparing = preparing_name(&name);
                let created = shared.storage.create(&preparing, bytes);
                (preparing, created)
            }
        };
        let file = opened.inspect_err(|error| {
            taken.give_back(shared, error.kind() == io::ErrorKind::NotFound);
        })?;
        Ok(CopyWriter {
            shared,
            seed: header.seed(),
            header,
            current: preparing,
            name,
            taken: Some(taken),
            file,
            buffer: Vec::new(),
            written: FIRST_RECORD * 8,
            synced: 0,
        })
    }

    /// Takes room for a file of so many bytes, within the limit on the log's size. Where no room is
    /// set aside that is exceeded for as long as a job takes, by no more than a segment.
    fn take_room(&self, plan: &super::workers::Plan, bytes: u64, room: Room) -> io::Result<Taken> {
        let spare = &self.shared().spare;
        if room == Room::SetAside {
            let taken = spare.take(bytes).map(Taken::Spare);
            return taken.ok_or_else(|| io::ErrorKind::StorageFull.into());
        }
        let (value, used) = (plan.disk_bytes_max, self.file_bytes());
        if spare.has(1) && used.saturating_add(bytes) > value {
            return Err(LimitReached::new(Limit::DiskBytes, value, used).into());
        }
        spare.put_elsewhere(bytes);
        Ok(Taken::Elsewhere(bytes))
    }

    /// Changes which files count, durably. On success the added ones are there to stay.
    ///
    /// # Errors
    ///
    /// What the storage says. Nothing has changed then: the added files are among the remains.
    pub(crate) fn give_up(&self, change: &GivingUp<'_>) -> io::Result<()> {
        let shared = self.shared();
        let mut plan = shared.plan.lock();
        if let Some(log_start) = change.log_start {
            let mut older = shared.segments.all();
            older.retain(|segment| !segment.is_compacted() && segment.base < log_start);
            let older = older.iter().map(|segment| segment.base);
            let sources = change.sources.iter().map(|segment| segment.base);
            assert!(older.eq(sources), "only the oldest segments are given up");
        }
        let mut members = plan.meta.meta().members;
        members.log_start = change.log_start.unwrap_or(members.log_start);
        for segment in change.added {
            members.compacted.add(segment.base);
            members.compacted_end = members.compacted_end.max(segment.end());
        }
        if let Some(segment) = change.removed {
            members.compacted.remove(segment.base);
            members.removing = segment.base;
        }
        // Even a failed update may have reached the disk.
        shared.remains.lock().one_slot = true;
        let updated = plan.meta.update(|meta| {
            meta.members = members;
            meta.high_water_ms = meta.high_water_ms.max(change.judged_ms);
        });
        drop(plan);
        if updated.is_err() {
            change
                .added
                .iter()
                .for_each(|segment| self.discard(segment));
        }
        updated
    }

    /// Base of the oldest segment of the log that counts; 0 while none was given up.
    pub(crate) fn log_start(&self) -> u64 {
        self.meta().members.log_start
    }

    /// Keeps the files that count from being changed: for who copies them.
    pub(crate) fn hold_members(&self) -> MutexGuard<'_, ()> {
        self.shared().members.lock()
    }

    /// The same, if nobody else does: for who changes them.
    pub(crate) fn try_hold_members(&self) -> Option<MutexGuard<'_, ()>> {
        self.shared().members.try_lock()
    }

    /// Forgets a segment that does not count, and to which no slot points: its number is free once
    /// nobody reads it, its file goes with the next [`clear_away`](Self::clear_away).
    pub(crate) fn discard(&self, segment: &Segment) {
        let shared = self.shared();
        shared.segments.remove(segment.number);
        let names = [side_car_name(&segment.name), segment.name.clone()];
        shared.remains.lock().names.extend(names);
    }

    /// Removes the files that do not count, durably.
    ///
    /// # Errors
    ///
    /// What the storage says; what is left is tried again by the next call.
    pub(crate) fn clear_away(&self) -> io::Result<()> {
        let shared = self.shared();
        if shared.remains.lock().one_slot {
            shared.plan.lock().meta.update(|_| ())?;
            shared.remains.lock().one_slot = false;
        }
        let names = shared.remains.lock().names.clone();
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            remove_if_there(shared.storage.as_ref(), name)?;
        }
        shared.storage.sync_directory()?;
        // Only one job runs at a time, so these are the first.
        shared.remains.lock().names.drain(..names.len());
        Ok(())
    }
}

impl super::workers::Plan {
    /// Where the next compacted file of so many words goes: into an epoch that the log does not use.
    fn copies_base(&mut self, remains: &mut Remains, words: u64) -> io::Result<u64> {
        let base = match remains.next_base {
            0 => self.copies_start,
            base => base,
        };
        // The position behind the last file must lie in its epoch as well.
        let base = if position::next_base(base, words + 1) == Some(base) {
            base
        } else {
            position::first_position(self.begin_epoch()?)
        };
        remains.next_base = base + words;
        Ok(base)
    }
}

/// Room that a file of copies has taken, and how many bytes.
#[derive(Clone, Copy, Debug)]
enum Taken {
    /// What was set aside.
    Spare(u64),
    /// Of the disk, counted until others count the file.
    Elsewhere(u64),
}

impl Taken {
    /// It is not needed any more; `is_gone` if what was set aside is not there as such any more.
    fn give_back(self, shared: &Shared, is_gone: bool) {
        match self {
            Self::Spare(bytes) => shared.spare.end(if is_gone { 0 } else { bytes }),
            Self::Elsewhere(bytes) => shared.spare.found_elsewhere(bytes),
        }
    }
}

/// A compacted file that is being written. Dropped before it is finished, it is removed.
#[derive(Debug)]
pub(crate) struct CopyWriter<'a> {
    shared: &'a Shared,
    seed: u64,
    header: Header,
    /// What the file is called now.
    current: String,
    name: String,
    /// None once the file is finished, and counted by others.
    taken: Option<Taken>,
    file: Arc<dyn crate::fs::StorageFile>,
    buffer: Vec<u8>,
    /// Bytes of the file that were written, or will be from the start of the buffer.
    written: u64,
    synced: u64,
}

impl CopyWriter<'_> {
    /// Adds a copy of a record from the segment of `seed`, without what is attached to it; its offset in words, or `None` where the
    /// bytes are not a record (any more): no checksum makes them one.
    ///
    /// # Errors
    ///
    /// What the storage says.
    ///
    /// # Panics
    ///
    /// If the records are more than were announced.
    pub(crate) fn push(&mut self, record: &[u8], seed: u64) -> io::Result<Option<u64>> {
        let offset = (self.written + self.buffer.len() as u64) / 8;
        let start = self.buffer.len();
        self.buffer.extend_from_slice(record);
        let copy = self.buffer.get(start..).unwrap_or_default();
        // Verified as it is written, not as it was read before.
        let Ok(record) = Record::parse(copy, seed) else {
            return Ok(None);
        };
        let words = record.body_words();
        assert!(
            offset + words <= self.header.copies_end,
            "more copies than announced"
        );
        self.buffer.truncate(start + words as usize * 8);
        let copy = self.buffer.get_mut(start..).unwrap_or_default();
        make_copy(copy, self.seed);
        let position = self.header.base + offset;
        let first = word::encode(words, State::Committed, position, self.seed).to_le_bytes();
        if let Some(field) = copy.first_chunk_mut() {
            *field = first;
        }
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(Some(offset))
    }

    /// Makes the file durable under its name and lets it be found under a number. Nothing refers to
    /// it yet.
    ///
    /// # Errors
    ///
    /// What the storage says; the file is removed then.
    pub(crate) fn finish(mut self) -> io::Result<Arc<Segment>> {
        self.flush()?;
        assert_eq!(self.written, self.header.copies_end * 8, "copies announced");
        self.file.write_at(0, &self.header.encode())?;
        if self.is_spare() {
            self.file.set_len(self.header.file_bytes)?;
        }
        self.file.sync_data()?;
        let storage = &self.shared.storage;
        storage.rename(&self.current, &self.name)?;
        self.current.clone_from(&self.name);
        storage.sync_directory()?;
        let memory = self.file.map(false)?;
        let segments = &self.shared.segments;
        // Numbers are given out under this lock.
        let plan = self.shared.plan.lock();
        let number = segments.free_number().ok_or_else(no_number)?;
        let segment = Segment::new(
            number,
            self.header.base,
            self.seed,
            self.name.clone(),
            None,
            memory,
            self.header.copies_end,
        );
        let segment = Arc::new(segment.made_at(self.header.created_ms).compacted());
        segments.insert(&segment);
        if let Some(taken) = self.taken.take() {
            taken.give_back(self.shared, true);
        }
        drop(plan);
        self.shared.indexer.poke();
        Ok(segment)
    }

    /// Whether it is written into what was set aside, and has not become a file of its own yet.
    fn is_spare(&self) -> bool {
        self.current == SPARE
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.file.write_at(self.written, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync_data()?;
            self.synced = self.written;
        }
        Ok(())
    }
}

impl Drop for CopyWriter<'_> {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else {
            return;
        };
        if self.is_spare() {
            // It may have been cut already.
            let left = self.file.len().map_or(taken, Taken::Spare);
            left.give_back(self.shared, false);
            return;
        }
        taken.give_back(self.shared, true);
        // Removed durably before anything else counts: what has its name is no leftover to an
        // open any more.
        let name = std::mem::take(&mut self.current);
        self.shared.remains.lock().names.push(name);
    }
}

/// Reads a segment's file through, so that an error of the disk is found where it can be told: met
/// through the map it would end the process.
pub(crate) fn read_through(storage: &dyn Storage, segment: &Segment) -> io::Result<()> {
    let file = storage.open(&segment.name)?;
    let len = file.len()?.min(segment.file_bytes());
    repair::read_through(file.as_ref(), len)
}

/// The error of a table that is full.
pub(crate) fn no_number() -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        "all 65536 segments are in use",
    )
}
