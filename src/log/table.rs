//! The segments that exist, by the number an index slot holds.
//!
//! A lookup under a stripe lock is safe without counting readers: a segment leaves the table only
//! after every slot that names it was moved, each under its stripe's lock. Whoever loaded the
//! segment before that keeps it mapped; its number is given out again only when the table holds the
//! last reference.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use crate::log::segment::Segment;

/// How many segments can exist at once: an index slot has 16 bits for the number.
pub(crate) const SEGMENTS_MAX: usize = 1 << 16;

/// Number → segment.
#[derive(Debug)]
pub(crate) struct Segments {
    entries: Box<[ArcSwapOption<Segment>]>,
    next: Mutex<usize>,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self {
            entries: (0..SEGMENTS_MAX).map(|_| ArcSwapOption::empty()).collect(),
            next: Mutex::new(0),
        }
    }

    /// A number that no segment has, or `None` when all are taken.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let mut next = self.next.lock();
        let start = *next;
        let free = (0..SEGMENTS_MAX)
            .map(|step| (start + step) % SEGMENTS_MAX)
            .find(|number| {
                self.entries
                    .get(*number)
                    .is_some_and(|entry| entry.load().is_none())
            })?;
        *next = (free + 1) % SEGMENTS_MAX;
        u16::try_from(free).ok()
    }

    /// Makes a segment reachable under its number.
    pub(crate) fn insert(&self, segment: &Arc<Segment>) {
        let entry = &self.entries[usize::from(segment.number)];
        assert!(
            entry.load().is_none(),
            "segment number {} is taken",
            segment.number
        );
        entry.store(Some(Arc::clone(segment)));
    }

    /// The segment of this number.
    pub(crate) fn load(&self, number: u16) -> Guard<Option<Arc<Segment>>> {
        self.entries[usize::from(number)].load()
    }

    /// How many segments exist.
    pub(crate) fn count(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.load().is_some())
            .count()
    }
}
