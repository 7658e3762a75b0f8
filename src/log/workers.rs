//! The log as the engine sees it, and the three threads that serve it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::block::block_on;
use crate::clock::StoreTime;
use crate::fs::Storage;
use crate::limit_reached::{Limit, LimitReached};
use crate::log::append::{Appended, Appender, NoSpace, Reservation};
use crate::log::commit::{Commit, Durable, Lead, Poison, SyncCounts};
use crate::log::compact::{Remains, no_number};
use crate::log::header::Header;
use crate::log::meta::{Meta, MetaFile};
use crate::log::position;
use crate::log::prepare::{self, Preparer, Room, Task, Zeroing};
use crate::log::record::{COVERED_FROM, CRC_OFFSET, Contents, HEAD_BYTES, checksum};
use crate::log::repair;
use crate::log::segment::{FIRST_RECORD, HEADER_BYTES, Segment};
use crate::log::side_cars::{self, Indexer, Left};
use crate::log::spare::Spare;
use crate::log::table::Segments;
use crate::log::word::{self, State};
use crate::secret::{self, HashSecret};
use crate::sync::thread::JoinHandle;
use crate::sync::{Mutex, mutation};
use crate::timer::{self, join};

/// How often an idle store looks whether its clock must be written down.
const IDLE: Duration = Duration::from_secs(5);
/// How far store time may be ahead of what is written down, in ms, but for `IDLE`.
const CLOCK_EVERY_MS: u64 = 60_000;

/// What a log is made of.
pub(crate) struct LogParts {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) meta: MetaFile,
    pub(crate) time: Arc<StoreTime>,
    /// Segments of earlier opens, all durable.
    pub(crate) recovered: Vec<Arc<Segment>>,
    /// Base of the newest recovered segment and the end of its records.
    pub(crate) previous: (u64, u64),
    pub(crate) segment_bytes: u64,
    pub(crate) prepared_segments: usize,
    /// Bytes that the files of all segments may take.
    pub(crate) disk_bytes_max: u64,
    pub(crate) zeroing: Zeroing,
    /// The largest record that is ever appended on a promise alone, in words.
    pub(crate) slop: u64,
}

/// The writing and reading end of the log.
#[derive(Debug)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) appender: Appender,
    pub(super) commit: Commit,
    preparer: Preparer,
    pub(super) segments: Segments,
    pub(super) storage: Arc<dyn Storage>,
    time: Arc<StoreTime>,
    pub(super) plan: Mutex<Plan>,
    /// Taken within the plan or alone.
    pub(super) remains: Mutex<Remains>,
    pub(super) spare: Spare,
    /// Held while the files that count are changed, and while they are copied.
    pub(super) members: Mutex<()>,
    prepared_segments: usize,
    pub(super) indexer: Indexer,
    /// Hashes keys for side-cars as the index does.
    secret: HashSecret,
}

/// Where the next segment goes, and the file that must know first when a new epoch begins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) meta: MetaFile,
    /// Where compacted files of this open begin.
    pub(super) copies_start: u64,
    next_base: u64,
    previous: (u64, u64),
    pub(super) segment_bytes: u64,
    pub(super) disk_bytes_max: u64,
    zeroing: Zeroing,
}

impl Log {
    /// Prepares the first segment of this open and starts the threads.
    ///
    /// # Errors
    ///
    /// Whatever the storage says; nothing but empty segments is left behind.
    pub(crate) fn start(parts: LogParts) -> io::Result<Self> {
        let segments = Segments::new();
        for segment in &parts.recovered {
            segments.insert(segment);
        }
        let watermark = parts.previous.1;
        let epoch = parts.meta.meta().epoch;
        let mut plan = Plan {
            next_base: position::first_position(epoch),
            copies_start: position::first_position(epoch.saturating_sub(1)),
            meta: parts.meta,
            previous: parts.previous,
            segment_bytes: parts.segment_bytes,
            disk_bytes_max: parts.disk_bytes_max,
            zeroing: parts.zeroing,
        };
        let now_ms = parts.time.now_ms();
        let storage = parts.storage.as_ref();
        let spare = Spare::found(storage, plan.spare_bytes());
        let members = plan.meta.meta().members;
        // Where something was given up before, it may have been taken for that.
        if members.log_start > 0 || members.compacted.count > 0 {
            plan.want(&spare);
        }
        let first = match plan.prepare_within_limit(storage, &segments, &spare, watermark, now_ms) {
            // A full disk can be opened: what is stored is replayed, and claims tell why they fail.
            Err(error) if is_full(&error) => {
                tracing::warn!(%error, "opened without room for new claims");
                Arc::new(Segment::placeholder(plan.next_base))
            }
            prepared => prepared?,
        };
        let secret = HashSecret::derive(&plan.meta.meta().secret, secret::INDEX);
        let shared = Arc::new(Shared {
            indexer: Indexer::default(),
            secret,
            appender: Appender::new(first, parts.slop, watermark),
            commit: Commit::new(watermark),
            preparer: Preparer::default(),
            segments,
            storage: parts.storage,
            time: parts.time,
            plan: Mutex::new(plan),
            remains: Mutex::new(Remains::default()),
            spare,
            members: Mutex::new(()),
            prepared_segments: parts.prepared_segments,
        });
        let spawn = |name: &str, body: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            timer::spawn(name, move || body(&shared))
        };
        let threads = vec![
            spawn("oncekey-prepare", prepare_loop)?,
            spawn("oncekey-flush", flush_loop)?,
            spawn("oncekey-index", index_loop)?,
        ];
        Ok(Self {
            shared,
            threads: Mutex::new(threads),
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Waits for a promise of `words` words.
    pub(crate) fn room(&self, words: u64) -> Room<'_> {
        self.shared.preparer.room(&self.shared.appender, words)
    }

    /// Takes a promise of `words` words if there is room right now.
    #[inline]
    pub(crate) fn try_room(&self, words: u64) -> bool {
        self.shared.appender.space().try_take(words)
    }

    /// Tells the preparer that somebody needs room.
    pub(crate) fn ask_for_room(&self) {
        self.shared.preparer.demand();
    }

    /// Gives a promise back unused.
    #[inline]
    pub(crate) fn give_back(&self, words: u64) {
        self.shared.appender.space().give_back(words);
    }

    /// Appends a record, using up a promise of exactly its size.
    ///
    /// # Errors
    ///
    /// [`NoSpace`] as told at [`Appender::reserve`]; nothing is written and the promise is kept.
    pub(crate) fn append(&self, contents: &Contents<'_>) -> Result<Appended, NoSpace> {
        Ok(self.commit(self.write(contents)?))
    }

    /// [`append`](Self::append), with the segment that the record is in.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append).
    pub(crate) fn append_held(
        &self,
        contents: &Contents<'_>,
    ) -> Result<(Appended, Arc<Segment>), NoSpace> {
        let reservation = self.write(contents)?;
        let segment = reservation.hold();
        Ok((self.commit(reservation), segment))
    }

    fn write(&self, contents: &Contents<'_>) -> Result<Reservation, NoSpace> {
        let reservation = self.shared.appender.reserve(contents.words())?;
        let segment = reservation.segment();
        let offset = reservation.byte_offset() as u64 / 8;
        let watermark = self.shared.commit.watermark();
        let mut at = offset + contents.body_words();
        for attached in contents.attached {
            let words = attached.body_words();
            fill(segment, at, attached, words, watermark);
            let position = segment.base + at;
            let word = word::encode(words, State::Attached, position, segment.seed);
            segment.copy_in(at as usize * 8, &word.to_le_bytes());
            at += words;
        }
        fill(segment, offset, contents, contents.words(), watermark);
        Ok(reservation)
    }

    fn commit(&self, reservation: Reservation) -> Appended {
        let rolled = reservation.rolled();
        let segment_base = reservation.segment().base;
        let appended = reservation.commit();
        if rolled {
            self.shared.preparer.poke();
            self.shared.commit.request(segment_base);
        }
        appended
    }

    /// Waits until everything below `target` is durable.
    pub(crate) fn durable(&self, target: u64, lead: Lead) -> Durable<'_> {
        self.shared
            .commit
            .durable(&self.shared.appender, target, lead)
    }

    /// The position below which everything survives power loss.
    #[inline]
    pub(crate) fn watermark(&self) -> u64 {
        self.shared.commit.watermark()
    }

    /// The position behind everything appended so far.
    pub(crate) fn tail(&self) -> u64 {
        self.shared.appender.tail()
    }

    /// Words appended and not known to be durable. Positions jump between epochs; this does not.
    pub(crate) fn unsynced_words(&self) -> u64 {
        let watermark = self.watermark();
        let unsynced = |segment: &Arc<Segment>| {
            let from = watermark.max(segment.base + FIRST_RECORD);
            segment.tail().saturating_sub(from)
        };
        self.shared.appender.chain().iter().map(unsynced).sum()
    }

    /// Whether a sync has failed.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.shared.commit.is_poisoned()
    }

    /// The failed sync, if there was one.
    pub(crate) fn poison(&self) -> Option<Poison> {
        self.shared.commit.poison()
    }

    /// The segment table.
    #[inline]
    pub(crate) fn segments(&self) -> &Segments {
        &self.shared.segments
    }

    /// The store's directory.
    pub(crate) fn storage(&self) -> &dyn Storage {
        self.shared.storage.as_ref()
    }

    /// Bytes of the files of all segments, and of what is set aside for a compaction.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.shared.segments.file_bytes() + self.shared.spare.bytes()
    }

    /// What META says now.
    pub(super) fn meta(&self) -> Meta {
        self.shared.plan.lock().meta.meta().clone()
    }

    /// Store time in ms.
    pub(super) fn now_ms(&self) -> u64 {
        self.shared.time.now_ms()
    }

    /// How many segments may hold records that are not durable.
    pub(crate) fn unsynced_segments(&self) -> usize {
        let chain = self.shared.appender.chain();
        chain
            .iter()
            .filter(|segment| !segment.is_placeholder())
            .count()
    }

    /// Syncs and the records they covered.
    pub(crate) fn sync_counts(&self) -> SyncCounts {
        self.shared.commit.counts()
    }

    /// How many segments wait to be written.
    pub(crate) fn ready(&self) -> usize {
        self.shared.appender.ready()
    }

    /// Words nobody was promised.
    pub(crate) fn available_words(&self) -> u64 {
        self.shared.appender.space().available()
    }

    /// Makes everything durable, ends the threads and marks the store as properly closed. Nothing
    /// may be appended any more.
    ///
    /// # Errors
    ///
    /// A failed sync or write: the store is then found unclean by the next open, with nothing lost
    /// that was durable.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.stop_threads();
        let shared = &*self.shared;
        let tail = shared.appender.tail();
        if !mutation("closed_without_sync") {
            block_on(self.durable(tail, Lead::Allowed))
                .map_err(|poison| io::Error::new(poison.source.kind(), poison.to_string()))?;
        }
        let active = shared.appender.active();
        let ready = shared.appender.take_ready();
        let is_empty = !active.is_placeholder() && tail <= active.base;
        // Each names the one before, so the newest goes first, durably: whatever a crash leaves in
        // between is a whole chain.
        let names = ready.iter().rev().map(|segment| segment.name.as_str());
        let names = names.chain(is_empty.then_some(active.name.as_str()));
        repair::remove_in_order(shared.storage.as_ref(), names)?;
        if !active.is_placeholder() {
            if !is_empty && let Some(file) = active.open_file() {
                // What lies behind the chain is zero, and no response stands there.
                let used_bytes = (tail - active.base) * 8;
                let page_bytes = HEADER_BYTES as u64;
                file.set_len(if mutation("cut_into_the_records") {
                    used_bytes / page_bytes * page_bytes
                } else {
                    used_bytes.next_multiple_of(page_bytes)
                })?;
                file.sync_data()?;
            }
            active.close_file();
            shared.index_at_close(&active, is_empty);
            #[cfg(oncekey_loom)]
            if mutation("unmapped_at_close") {
                active.unmap();
            }
        }
        shared.storage.sync_directory()?;
        shared.plan.lock().meta.update(|meta| {
            meta.clean = true;
            meta.watermark = tail;
            meta.high_water_ms = meta.high_water_ms.max(shared.time.now_ms());
        })
    }

    fn stop_threads(&self) {
        self.shared.preparer.stop();
        self.shared.commit.stop_flusher();
        self.shared.indexer.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(join);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Writes all of a record of `words` words but its first word; what is attached is there already.
fn fill(segment: &Segment, offset: u64, contents: &Contents<'_>, words: u64, watermark: u64) {
    let start = offset as usize * 8;
    let head = contents.head(segment.base + offset, watermark);
    segment.copy_in(start + CRC_OFFSET, &head[CRC_OFFSET..]);
    let mut at = start + HEAD_BYTES;
    for piece in contents.pieces() {
        segment.copy_in(at, piece);
        at += piece.len();
    }
    // The rest up to a whole word is zero: the range was never written before.
    let covered = segment.bytes(start + COVERED_FROM, words as usize * 8 - COVERED_FROM);
    let crc = checksum(covered, segment.seed);
    segment.copy_in(start + CRC_OFFSET, &crc.to_le_bytes());
}

/// One that is written, one that is given up, one for what is live in it, and copies from before.
const SEGMENTS_WITH_SPARE: u64 = 4;

/// Whether an error goes away by itself when space is freed.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl Shared {
    /// Writes the side-cars of all segments that are sealed and durable and have none.
    fn index_sealed(&self) -> Left {
        let chain = self.appender.chain();
        // What is in the chain may not be durable, and what follows it is not written yet.
        let oldest = match chain.first() {
            Some(oldest) => oldest.base,
            None => self.appender.active().base,
        };
        match self.index_where(|segment| segment.is_compacted() || segment.base < oldest) {
            Left::Nothing if chain.len() > 1 && !self.commit.is_poisoned() => Left::NotDurable,
            left => left,
        }
    }

    fn index_where(&self, is_sealed: impl Fn(&Segment) -> bool) -> Left {
        let mut left = Left::Nothing;
        let wanted = |segment: &Arc<Segment>| is_sealed(segment) && !segment.is_indexed();
        for segment in self.segments.all().into_iter().filter(wanted) {
            if self.indexer.is_stopped() {
                break;
            }
            // What is being given up gets none that would outlive it.
            let Some(_members) = self.members.try_lock() else {
                left = Left::NotDurable;
                continue;
            };
            let known = self.segments.load(segment.number);
            if known
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, &segment))
                && !self.index_one(&segment)
            {
                left = Left::Failed;
            }
        }
        left
    }

    /// Whether the segment needs no more attention.
    fn index_one(&self, segment: &Segment) -> bool {
        let written = side_cars::write(self.storage.as_ref(), segment, &self.secret);
        if let Err(error) = &written {
            tracing::warn!(segment = segment.name, %error, "no side-car could be written");
        }
        // What changed behind the store's back stays as it is; the next open tells.
        let is_over = !matches!(&written, Err(error) if error.kind() != io::ErrorKind::InvalidData);
        if is_over {
            segment.set_indexed();
        }
        is_over
    }

    /// The side-cars of what this open wrote, at its proper close: the threads are gone and all is
    /// durable. What is missing of earlier opens is left to the next.
    fn index_at_close(&self, active: &Segment, is_empty: bool) {
        let epoch = position::epoch_of(active.base);
        let is_own = |segment: &Segment| {
            segment.is_compacted()
                || position::epoch_of(segment.base) == epoch
                    && (segment.base < active.base || segment.base == active.base && !is_empty)
        };
        for segment in self.segments.all().into_iter() {
            if is_own(&segment) && !segment.is_indexed() {
                self.index_one(&segment);
            }
        }
    }

    fn prepare_one(&self) -> io::Result<()> {
        let watermark = self.commit.watermark();
        let now_ms = self.time.now_ms();
        let segment = self.plan.lock().prepare_within_limit(
            self.storage.as_ref(),
            &self.segments,
            &self.spare,
            watermark,
            now_ms,
        )?;
        self.appender.offer(Arc::clone(&segment));
        if mutation("offered_before_it_is_in_the_table") {
            // The table is hidden from loom: this is where others get in between.
            self.appender.ready();
            self.segments.insert(&segment);
        }
        Ok(())
    }

    /// Writes down how far time and the watermark have come: with every segment, and once a minute
    /// while nothing is written. What expired before a crash then stays expired, whatever the wall
    /// clock says after it, but for what expired within the last minute.
    fn persist_progress(&self) {
        let now_ms = self.time.now_ms();
        let watermark = self.commit.watermark();
        let mut plan = self.plan.lock();
        let watermark = if mutation("tail_written_down") {
            self.appender.tail()
        } else {
            watermark
        };
        let known = plan.meta.meta();
        let is_due = now_ms.saturating_sub(known.high_water_ms) >= CLOCK_EVERY_MS;
        if known.watermark >= watermark && !is_due {
            return;
        }
        let written = plan.meta.update(|meta| {
            meta.high_water_ms = meta.high_water_ms.max(now_ms);
            meta.watermark = meta.watermark.max(watermark);
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the clock could not be written down");
        }
    }
}

impl Plan {
    /// Begins an epoch that nobody uses; META knows of it first.
    pub(super) fn begin_epoch(&mut self) -> io::Result<u64> {
        let epoch = position::next_epoch(self.meta.meta().epoch)
            .ok_or_else(|| io::Error::other("all open epochs are used up"))?;
        self.meta.update(|meta| meta.epoch = epoch)?;
        Ok(epoch)
    }

    /// Has room set aside for a compaction, where the log may have so many segments.
    pub(super) fn want(&self, spare: &Spare) {
        if self.spare_bytes() > 0 {
            spare.want();
        }
    }

    /// Bytes that may be set aside.
    fn spare_bytes(&self) -> u64 {
        if self.disk_bytes_max / self.segment_bytes >= SEGMENTS_WITH_SPARE {
            self.segment_bytes
        } else {
            0
        }
    }

    /// Makes a segment for new records, if the limit on the log's size leaves room for it, and for a
    /// compaction, which goes first.
    fn prepare_within_limit(
        &mut self,
        storage: &dyn Storage,
        segments: &Segments,
        spare: &Spare,
        watermark: u64,
        now_ms: u64,
    ) -> io::Result<Arc<Segment>> {
        let (value, held) = (self.disk_bytes_max, spare.held(self.segment_bytes));
        let used = segments.file_bytes().saturating_add(held);
        if used.saturating_add(self.segment_bytes) > value {
            return Err(LimitReached::new(Limit::DiskBytes, value, used).into());
        }
        spare.make(storage, self.segment_bytes)?;
        self.prepare(storage, segments, watermark, now_ms)
    }

    fn prepare(
        &mut self,
        storage: &dyn Storage,
        segments: &Segments,
        watermark: u64,
        now_ms: u64,
    ) -> io::Result<Arc<Segment>> {
        let words = self.segment_bytes / 8;
        if position::next_base(self.next_base, words) != Some(self.next_base) {
            self.next_base = position::first_position(self.begin_epoch()?);
        }
        let number = segments.free_number().ok_or_else(no_number)?;
        let meta = self.meta.meta();
        let header = Header {
            file_bytes: self.segment_bytes,
            store_id: meta.store_id,
            base: self.next_base,
            previous_base: self.previous.0,
            previous_end: self.previous.1,
            watermark,
            created_ms: now_ms,
            secret: meta.secret,
            copies_end: 0,
        };
        let segment = Arc::new(prepare::prepare_segment(
            storage,
            &header,
            number,
            self.zeroing,
        )?);
        if !mutation("offered_before_it_is_in_the_table") {
            segments.insert(&segment);
        }
        self.previous = (segment.base, segment.end());
        self.next_base = segment.end();
        Ok(segment)
    }
}

/// Whatever ends the preparing thread ends those who wait for room.
struct StopWaiting<'a>(&'a Preparer);

impl Drop for StopWaiting<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn prepare_loop(shared: &Shared) {
    let _stop = StopWaiting(&shared.preparer);
    let wanted = || shared.appender.ready() < shared.prepared_segments;
    loop {
        match shared.preparer.next_task(wanted, IDLE) {
            Task::Prepare => {
                let outcome = shared.prepare_one();
                if let Err(error) = &outcome {
                    tracing::warn!(%error, "no segment could be prepared");
                }
                shared.preparer.finished(outcome);
                // Where a segment is wanted, one was filled up.
                shared.indexer.poke();
                if !shared.preparer.is_stopped() {
                    shared.persist_progress();
                }
            }
            Task::Idle => shared.persist_progress(),
            Task::Stop => return,
        }
    }
}

fn index_loop(shared: &Shared) {
    let mut left = shared.index_sealed();
    while shared.indexer.wait(left) {
        left = shared.index_sealed();
    }
}

fn flush_loop(shared: &Shared) {
    shared.commit.flush_until_stopped(&shared.appender);
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests;

#[cfg(all(test, oncekey_loom))]
impl Log {
    /// A log for models: without threads, over segments that are all there will be. So many words
    /// more can be promised than there are, since models are too small for what is set aside.
    pub(crate) fn modelled(
        segments: Vec<Arc<Segment>>,
        promised_words: u64,
        time: &Arc<StoreTime>,
    ) -> Self {
        use crate::log::loom_tests::Void;

        Self::modelled_on(Arc::new(Void), segments, (64, promised_words), time, 0)
    }

    /// The same on a storage, which gives room for so many words in each segment that is prepared.
    pub(crate) fn modelled_on(
        storage: Arc<dyn Storage>,
        segments: Vec<Arc<Segment>>,
        (slop, promised_words): (u64, u64),
        time: &Arc<StoreTime>,
        room: u64,
    ) -> Self {
        use crate::log::loom_tests::BASE;
        use crate::log::meta::Meta;

        let table = Segments::new();
        for segment in &segments {
            // There is no page of header from which a side-car could be made.
            segment.set_indexed();
            table.insert(segment);
        }
        let end = segments.last().map_or(BASE, |segment| segment.end());
        let mut segments = segments.into_iter();
        let first = segments.next().expect("at least one segment");
        let appender = Appender::new(first, slop, BASE);
        appender.space().give_back(promised_words);
        segments.for_each(|segment| appender.offer(segment));
        let meta = Meta {
            store_id: 1,
            secret: [2; 32],
            epoch: position::epoch_of(BASE),
            high_water_ms: 0,
            watermark: 0,
            clean: false,
            restored_at_ms: 0,
            snapshot: false,
            created_ms: 0,
            members: crate::log::members::Members::default(),
        };
        let plan = Plan {
            meta: MetaFile::create(&*storage, meta).expect("nothing fails"),
            copies_start: BASE,
            next_base: end,
            previous: (0, 0),
            segment_bytes: (FIRST_RECORD + room) * 8,
            disk_bytes_max: u64::MAX,
            zeroing: Zeroing::Ahead,
        };
        let shared = Arc::new(Shared {
            indexer: Indexer::default(),
            secret: HashSecret::derive(&plan.meta.meta().secret, secret::INDEX),
            appender,
            commit: Commit::new(BASE),
            preparer: Preparer::default(),
            segments: table,
            storage,
            time: Arc::clone(time),
            plan: Mutex::new(plan),
            remains: Mutex::new(Remains::default()),
            spare: Spare::default(),
            members: Mutex::new(()),
            prepared_segments: 1,
        });
        Self {
            shared,
            threads: Mutex::new(Vec::new()),
        }
    }

    /// Serves futures on this thread until the log is closed.
    pub(crate) fn flush(&self) {
        flush_loop(&self.shared);
    }

    /// Prepares segments on this thread, where somebody waits for room, until the log is closed.
    pub(crate) fn prepare(&self) {
        prepare_loop(&self.shared);
    }

    /// What the preparing thread does while nothing is asked of it.
    pub(crate) fn persist_progress(&self) {
        self.shared.persist_progress();
    }

    /// Ends those two.
    pub(crate) fn stop(&self) {
        self.stop_threads();
    }
}
