//! The segments that exist, by the number an index slot holds.
//!
//! A lookup under a stripe lock is safe without counting readers: a segment leaves the table only
//! after every slot that names it was moved, each under its stripe's lock. Whoever loaded the
//! segment before that keeps it mapped; its number is given out again only when the table holds the
//! last reference.

use std::sync::{Arc, OnceLock, Weak};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use crate::log::segment::Segment;

/// How many segments can exist at once: an index slot has 16 bits for the number.
pub(crate) const SEGMENTS_MAX: usize = CHUNKS * CHUNK;
const CHUNKS: usize = 256;
const CHUNK: usize = 256;

const _: () = assert!(SEGMENTS_MAX == 1 << 16);

/// Entries come in chunks: most stores have few segments.
type Chunk = [ArcSwapOption<Segment>; CHUNK];

/// Number → segment.
#[derive(Debug)]
pub(crate) struct Segments {
    chunks: Box<[OnceLock<Box<Chunk>>; CHUNKS]>,
    numbers: Mutex<Numbers>,
}

/// Which numbers may be given out.
#[derive(Debug, Default)]
struct Numbers {
    /// Where to look first.
    next: u16,
    /// Segments that are gone from the table, as long as somebody may still read them.
    held: Vec<(u16, Weak<Segment>)>,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Box::new([const { OnceLock::new() }; CHUNKS]),
            numbers: Mutex::new(Numbers::default()),
        }
    }

    /// A number that no segment has, or `None` when all are taken.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let mut numbers = self.numbers.lock();
        numbers
            .held
            .retain(|(_, segment)| segment.strong_count() > 0);
        let is_held = |number: u16| numbers.held.iter().any(|(held, _)| *held == number);
        let free = (0..=u16::MAX)
            .map(|step| numbers.next.wrapping_add(step))
            .find(|number| self.load(*number).is_none() && !is_held(*number))?;
        numbers.next = free.wrapping_add(1);
        Some(free)
    }

    /// Takes a segment out, to which no slot points any more. Who has loaded it keeps it.
    pub(crate) fn remove(&self, number: u16) {
        let (chunk, place) = locate(number);
        let Some(chunk) = self.chunks[chunk].get() else {
            return;
        };
        let mut numbers = self.numbers.lock();
        if let Some(segment) = chunk[place].swap(None) {
            numbers.held.push((number, Arc::downgrade(&segment)));
        }
    }

    /// Makes a segment reachable under its number.
    pub(crate) fn insert(&self, segment: &Arc<Segment>) {
        let (chunk, place) = locate(segment.number);
        let chunk = self.chunks[chunk]
            .get_or_init(|| Box::new(std::array::from_fn(|_| ArcSwapOption::empty())));
        let entry = &chunk[place];
        assert!(
            entry.load().is_none(),
            "segment number {} is taken",
            segment.number
        );
        entry.store(Some(Arc::clone(segment)));
    }

    /// The segment of this number.
    #[inline]
    pub(crate) fn load(&self, number: u16) -> Guard<Option<Arc<Segment>>> {
        let (chunk, place) = locate(number);
        match self.chunks[chunk].get() {
            Some(chunk) => chunk[place].load(),
            None => Guard::from_inner(None),
        }
    }

    /// Bytes that the files of all segments take.
    pub(crate) fn file_bytes(&self) -> u64 {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks
            .flat_map(|chunk| chunk.iter())
            .filter_map(|entry| Some(entry.load().as_ref()?.file_bytes()))
            .sum()
    }

    /// How many segments exist.
    pub(crate) fn count(&self) -> usize {
        self.entries()
            .filter(|entry| entry.load().is_some())
            .count()
    }

    /// All segments that exist, in the order of their bases.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        let mut all: Vec<_> = self
            .entries()
            .filter_map(ArcSwapOption::load_full)
            .collect();
        all.sort_unstable_by_key(|segment| segment.base);
        all
    }

    fn entries(&self) -> impl Iterator<Item = &ArcSwapOption<Segment>> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flat_map(|chunk| chunk.iter())
    }
}

#[inline]
fn locate(number: u16) -> (usize, usize) {
    (usize::from(number) / CHUNK, usize::from(number) % CHUNK)
}
