//! A segment: one file of the log, mapped, with lock-free reservation inside it.
//!
//! The first page is the header; records follow from [`FIRST_RECORD`] on. Invariants:
//! * a word is swapped from zero to *reserved* by exactly one thread, which owns the range it names
//!   until it stores *committed* or *padding* into the same word;
//! * every word between the first record and [`Segment::tail`] starts a range with a length, so the
//!   chain can always be walked;
//! * a committed range is never written again.
//!
//! The reservation is a compare-and-swap in the map itself: the reservation and its length become
//! visible as one step. The tail is only a hint where to begin.

use std::io;

use crossbeam_utils::CachePadded;

use crate::fs::StorageFile;
use crate::log::attached::{Attached, attached};
use crate::log::catalog::Worth;
use crate::log::record::{Malformed, Record};
use crate::log::word::{self, Decoded, State};
use crate::mem::Memory;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, mutation};

/// Word offset of the first record: the header takes one page.
pub(crate) const FIRST_RECORD: u64 = 512;
/// Bytes of the header page.
pub(crate) const HEADER_BYTES: usize = FIRST_RECORD as usize * 8;

/// What happened to a try at reserving room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The range that starts at this word offset is the caller's.
    Reserved(u64),
    /// It does not fit any more; this many words are left behind the chain, at this offset.
    NoRoom {
        /// Where the chain ends.
        offset: u64,
        /// How many words are left.
        remainder: u64,
    },
}

/// One mapped file of the log.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Its place in the segment table; what an index slot holds.
    pub(crate) number: u16,
    /// Position of word 0.
    pub(crate) base: u64,
    /// Binds words and checksums to this segment of this store.
    pub(crate) seed: u64,
    /// Name of the file in the store's directory.
    pub(crate) name: String,
    /// The file, open from the first write to the last sync so that no write error is lost, and no
    /// longer: a store has many segments and a process few descriptors. The map stays.
    file: Mutex<Option<std::sync::Arc<dyn StorageFile>>>,
    memory: Memory,
    /// Where records may stand: the whole file, or up to the cut of a recovered segment.
    words: u64,
    /// Its side-car is written, or cannot be.
    indexed: AtomicBool,
    tail: CachePadded<AtomicU64>,
    worth: CachePadded<Worth>,
    is_compacted: bool,
    /// It is compacted and holds messages or versions.
    holds_attached: AtomicBool,
}

impl Segment {
    /// A segment over `memory`, whose chain ends at word `tail`.
    pub(crate) fn new(
        number: u16,
        base: u64,
        seed: u64,
        name: String,
        file: Option<std::sync::Arc<dyn StorageFile>>,
        memory: Memory,
        tail: u64,
    ) -> Self {
        let words = memory.words() as u64;
        assert!(
            (FIRST_RECORD..=words).contains(&tail),
            "tail {tail} outside the segment"
        );
        Self {
            number,
            base,
            seed,
            name,
            file: Mutex::new(file),
            memory,
            words,
            indexed: AtomicBool::new(false),
            tail: CachePadded::new(AtomicU64::new(tail)),
            worth: CachePadded::new(Worth::new(0)),
            is_compacted: false,
            holds_attached: AtomicBool::new(false),
        }
    }

    /// The same, made at this store time in ms.
    pub(crate) fn made_at(mut self, created_ms: u64) -> Self {
        self.worth = CachePadded::new(Worth::new(created_ms));
        self
    }

    /// The same of an earlier open, when nobody knows yet what it is worth.
    pub(crate) fn recovered(mut self, created_ms: u64) -> Self {
        self.worth = CachePadded::new(Worth::unknown(created_ms));
        self
    }

    /// The same as a compacted file: it holds copies, and its place in the order of the log says
    /// nothing about them.
    pub(crate) fn compacted(mut self) -> Self {
        self.is_compacted = true;
        self
    }

    /// Whether it is one.
    #[inline]
    pub(crate) fn is_compacted(&self) -> bool {
        self.is_compacted
    }

    /// Whether it is a compacted file with copies of messages or versions.
    pub(crate) fn holds_attached(&self) -> bool {
        self.is_compacted && self.holds_attached.load(Ordering::Acquire)
    }

    /// Notes that there are messages or versions in it.
    pub(crate) fn set_holds_attached(&self) {
        self.holds_attached.store(true, Ordering::Release);
    }

    /// What of it still answers.
    #[inline]
    pub(crate) fn worth(&self) -> &Worth {
        &self.worth
    }

    /// A segment without a file and without room, which is active where the disk was full when the
    /// store was opened.
    pub(crate) fn placeholder(base: u64) -> Self {
        let memory = Memory::heap(FIRST_RECORD as usize);
        Self::new(
            0,
            base,
            0,
            String::from("no segment"),
            None,
            memory,
            FIRST_RECORD,
        )
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.memory.words() as u64 * 8
    }

    /// Whether it is one.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.words == FIRST_RECORD
    }

    /// Makes all that was written so far durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.open_file() {
            Some(file) => file.sync_data(),
            None => Ok(()),
        }
    }

    /// The file, as long as it may be written.
    pub(crate) fn open_file(&self) -> Option<std::sync::Arc<dyn StorageFile>> {
        self.file.lock().clone()
    }

    /// Closes the file: all of it is durable and nothing will be appended.
    pub(crate) fn close_file(&self) {
        *self.file.lock() = None;
    }

    /// Whether nobody needs to write its side-car any more.
    pub(crate) fn is_indexed(&self) -> bool {
        self.indexed.load(Ordering::Acquire)
    }

    /// Notes that nobody does.
    pub(crate) fn set_indexed(&self) {
        self.indexed.store(true, Ordering::Release);
    }

    /// For the fault of giving up a map that is read.
    #[cfg(oncekey_loom)]
    pub(crate) fn unmap(&self) {
        self.memory.unmap();
    }

    /// Words that records may fill.
    #[inline]
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// Words that records take.
    pub(crate) fn used_words(&self) -> u64 {
        (self.tail() - self.base).saturating_sub(FIRST_RECORD)
    }

    /// Position just behind the last word.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.words
    }

    /// Position of the word behind the known part of the chain.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.base + self.tail.load(Ordering::Acquire)
    }

    /// Takes `words` words at the end of the chain, or tells how much is left.
    #[inline]
    pub(crate) fn try_reserve(&self, words: u64) -> Attempt {
        let mut offset = self.tail.load(Ordering::Acquire);
        loop {
            if offset + words > self.words {
                return self.no_room(offset);
            }
            let reserved =
                word::encode(words, State::Reserved, self.base + offset, self.seed).to_le();
            match self.swap_empty(offset, reserved) {
                Ok(()) => {
                    self.tail.fetch_max(offset + words, Ordering::AcqRel);
                    return Attempt::Reserved(offset);
                }
                Err(found) => offset = self.step_over(offset, found),
            }
        }
    }

    /// Fills what is left with padding, so that nothing can be appended here any more. Only the
    /// winner gets `true`.
    pub(crate) fn try_pad(&self, offset: u64, remainder: u64) -> bool {
        if remainder == 0 {
            return false;
        }
        let padding =
            word::encode(remainder, State::Padding, self.base + offset, self.seed).to_le();
        let won = self.swap_empty(offset, padding).is_ok();
        if won {
            self.tail.fetch_max(offset + remainder, Ordering::AcqRel);
        }
        won
    }

    /// Ends a reservation. The store is a release: whoever sees the word sees the record.
    #[inline]
    pub(crate) fn finish(&self, offset: u64, words: u64, state: State) {
        debug_assert!(state != State::Reserved);
        let finished = word::encode(words, state, self.base + offset, self.seed).to_le();
        let ordering = if mutation("committed_without_release") {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.memory.word(offset as usize).store(finished, ordering);
    }

    /// What stands at a word offset.
    #[inline]
    pub(crate) fn word_at(&self, offset: u64) -> Decoded {
        let raw = u64::from_le(self.memory.word(offset as usize).load(Ordering::Acquire));
        word::decode(raw, self.base + offset, self.seed)
    }

    /// Writes into a range the caller has reserved and not yet finished.
    #[inline]
    pub(crate) fn copy_in(&self, byte_offset: usize, bytes: &[u8]) {
        self.memory.copy_in(byte_offset, bytes);
    }

    /// Bytes of a reserved range read by its owner, or of a finished one read by anybody.
    #[inline]
    pub(crate) fn bytes(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.memory.bytes(byte_offset, len)
    }

    /// The whole committed record at a word offset, be it attached to another or not, first word
    /// included; `None` when none is there.
    #[inline]
    pub(crate) fn record_bytes(&self, offset: u64) -> Option<&[u8]> {
        if offset < FIRST_RECORD || offset >= self.words {
            return None;
        }
        match self.word_at(offset) {
            Decoded::Word {
                words,
                state: State::Committed | State::Attached,
            } if offset + words <= self.words => {
                Some(self.memory.bytes(offset as usize * 8, words as usize * 8))
            }
            _ => None,
        }
    }

    /// The committed record at a word offset and its length in words, with its checksum and its place
    /// verified: what the disk gives back now is what was written here.
    #[inline]
    pub(crate) fn verified_record(&self, offset: u64) -> Option<(Record<'_>, u64)> {
        let bytes = self.record_bytes(offset)?;
        let record = Record::parse(bytes, self.seed).ok()?;
        let belongs = record.is_copy == self.is_compacted
            && (record.is_copy || record.sequence == self.base + offset);
        belongs.then_some((record, bytes.len() as u64 / 8))
    }

    /// What is attached to the record at a word offset.
    pub(crate) fn attached(
        &self,
        offset: u64,
        record: &Record<'_>,
    ) -> impl Iterator<Item = Result<Attached<'_>, Malformed>> {
        let bytes = match record.extension_bytes {
            0 => &[],
            _ => self.record_bytes(offset).unwrap_or_default(),
        };
        attached(record, bytes, self.base + offset, self.seed)
    }

    fn no_room(&self, offset: u64) -> Attempt {
        let mut offset = offset;
        while offset < self.words {
            let raw = u64::from_le(self.memory.word(offset as usize).load(Ordering::Acquire));
            if raw == 0 {
                break;
            }
            offset = self.step_over(offset, raw);
        }
        Attempt::NoRoom {
            offset,
            remainder: self.words - offset,
        }
    }

    #[inline]
    fn swap_empty(&self, offset: u64, new: u64) -> Result<(), u64> {
        let word = self.memory.word(offset as usize);
        if mutation("reserved_in_two_steps") && word.load(Ordering::Acquire) == 0 {
            word.store(new, Ordering::Release);
            return Ok(());
        }
        word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(u64::from_le)
    }

    /// The offset behind the range whose word is `found`. A word without a length can only come
    /// from outside the process; going on would loop or overwrite.
    fn step_over(&self, offset: u64, found: u64) -> u64 {
        let words = word::length(found);
        assert!(
            words > 0 && offset + words <= self.words,
            "segment {} was changed behind the store's back at byte {}",
            self.name,
            offset * 8,
        );
        offset + words
    }
}
