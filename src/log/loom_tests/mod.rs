//! Models of the log: small segments whose file is modelled too, explored by loom.
//!
//! Records are a word or a few. What stands in a modelled segment is known by walking it, as
//! recovery and the leader of a sync do; what would survive a loss of power by asking its
//! [`Platter`].

mod descriptors;
mod group_commit;
mod poison;
mod preparing;
mod reservation;
mod roll_over;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::fs::{FileEntry, Storage, StorageFile};
use crate::log::append::Appended;
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::word::{self, Decoded, State};
use crate::mem::Memory;

/// Where the first modelled segment begins: the first position of an epoch.
pub(crate) const BASE: u64 = 1 << 36;
const SEED: u64 = 0x5EED;

/// A range in a chain: offset behind the header, words, state.
type Range = (u64, u64, State);

/// One segment after the other, each with room for so many words, and their platters.
pub(crate) fn segments(rooms: &[u64]) -> (Vec<Arc<Segment>>, Vec<Arc<Platter>>) {
    let mut base = BASE;
    let mut made = (Vec::new(), Vec::new());
    for (number, room) in rooms.iter().enumerate() {
        let words = FIRST_RECORD + room;
        let memory = Memory::heap_from(FIRST_RECORD as usize, words as usize);
        let platter = Arc::new(Platter {
            base,
            live: memory.share(words as usize),
            synced: Mutex::new(Vec::new()),
            syncs: AtomicUsize::new(0),
            failing_sync: AtomicUsize::new(usize::MAX),
        });
        let segment = Segment::new(
            number as u16,
            base,
            SEED,
            format!("segment {number}"),
            Some(Arc::clone(&platter) as Arc<dyn StorageFile>),
            memory,
            FIRST_RECORD,
        );
        base = segment.end();
        made.0.push(Arc::new(segment));
        made.1.push(platter);
    }
    made
}

/// Walks a segment from its first record to where its chain ends. At every moment every word on the
/// way must name a range, whatever others are doing.
fn walk(segment: &Segment) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut offset = FIRST_RECORD;
    while offset < segment.words() {
        match segment.word_at(offset) {
            Decoded::Word { words, state } => {
                ranges.push((offset - FIRST_RECORD, words, state));
                offset += words;
            }
            Decoded::Empty => break,
            Decoded::Invalid => panic!("the chain is broken at {offset} behind {ranges:?}"),
        }
    }
    assert!(offset <= segment.words(), "{ranges:?}");
    ranges
}

/// How many words of a segment are in its chain.
fn reserved_words(segment: &Segment) -> u64 {
    walk(segment).iter().map(|(_, words, _)| words).sum()
}

/// The file of a modelled segment, and what of it is durable.
#[derive(Debug)]
pub(crate) struct Platter {
    base: u64,
    live: Memory,
    /// First words of ranges, as the last successful sync found them when it began.
    synced: Mutex<Vec<(u64, Decoded)>>,
    syncs: AtomicUsize,
    /// The sync that fails, counted from 0. Later ones succeed and write nothing: the system took
    /// the pages for clean.
    failing_sync: AtomicUsize,
}

impl Platter {
    /// Makes a sync fail, counted from 0.
    fn fail(&self, sync: usize) {
        self.failing_sync.store(sync, Ordering::Relaxed);
    }

    fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Whether a whole record would survive a loss of power now.
    pub(crate) fn holds(&self, appended: &Appended) -> bool {
        let words = appended.end - appended.sequence;
        let record = Decoded::Word {
            words,
            state: State::Committed,
        };
        let synced = self.synced.lock().expect("no panic in a sync");
        synced.contains(&(appended.sequence, record))
    }

    /// The position up to which nothing but finished ranges would survive.
    pub(crate) fn durable_up_to(&self) -> u64 {
        let synced = self.synced.lock().expect("no panic in a sync");
        let finished = synced.iter().map_while(|(position, found)| match found {
            Decoded::Word { words, state } if *state != State::Reserved => Some(position + words),
            _ => None,
        });
        finished.last().unwrap_or(self.base + FIRST_RECORD)
    }
}

impl StorageFile for Platter {
    fn sync_data(&self) -> io::Result<()> {
        let sync = self.syncs.fetch_add(1, Ordering::Relaxed);
        // Only what was stored before the call is covered. Which stores of other threads a call
        // that follows none of them sees is up to loom.
        let mut found = Vec::new();
        let mut offset = FIRST_RECORD;
        while (offset as usize) < self.live.words() {
            let raw = self
                .live
                .word(offset as usize)
                .load(crate::sync::Ordering::Relaxed);
            let decoded = word::decode(u64::from_le(raw), self.base + offset, SEED);
            let Decoded::Word { words, .. } = decoded else {
                break;
            };
            found.push((self.base + offset, decoded));
            offset += words;
        }
        let failing = self.failing_sync.load(Ordering::Relaxed);
        if sync == failing {
            return Err(io::Error::other("the disk failed"));
        }
        if sync < failing {
            *self.synced.lock().expect("no panic in a sync") = found;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.live.words() as u64 * 8)
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.live.cut((len / 8) as usize);
        Ok(())
    }

    fn map(&self, _populate: bool) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Storage that takes everything, keeps nothing and never fails.
#[derive(Debug)]
pub(crate) struct Void;

impl Storage for Void {
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        Ok(Vec::new())
    }

    fn create(&self, _name: &str, _len: u64) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(Self))
    }

    fn open(&self, _name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(Self))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageFile for Void {
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn map(&self, _populate: bool) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
