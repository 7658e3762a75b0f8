//! How much room is promised and how much is left.
//!
//! Room is counted in words over the segments that are ready to be written. Every claim takes its
//! own size and that of a completion up front; what is taken can always be appended, so a full disk
//! is met at the claim, never at the completion. A record that does not fit in the rest of a
//! segment leaves that rest unused: each segment counts for `slop` words less than it has, where
//! `slop` is the largest record that may be appended on a promise alone, and a larger record pays
//! for what it leaves behind.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicI64, Ordering, mutation};

/// The account of free words.
#[derive(Debug)]
pub(crate) struct Space {
    available: CachePadded<AtomicI64>,
    slop: u64,
}

impl Space {
    pub(crate) fn new(slop: u64) -> Self {
        Self {
            available: CachePadded::new(AtomicI64::new(0)),
            slop,
        }
    }

    /// The largest record that a promise covers, in words.
    pub(crate) fn slop(&self) -> u64 {
        self.slop
    }

    /// Words that nobody was promised; negative never stays visible as room.
    pub(crate) fn available(&self) -> u64 {
        self.available.load(Ordering::Relaxed).max(0) as u64
    }

    /// The same as it is, for models.
    #[cfg(all(test, oncekey_loom))]
    pub(crate) fn balance(&self) -> i64 {
        self.available.load(Ordering::Acquire)
    }

    /// Counts `words` of a segment that can be written from now on.
    pub(crate) fn add(&self, words: u64) {
        self.available
            .fetch_add(words as i64 - self.slop as i64, Ordering::AcqRel);
    }

    /// Promises `words`, or nothing at all.
    #[inline]
    pub(crate) fn try_take(&self, words: u64) -> bool {
        let words = words as i64;
        if mutation("promised_unchecked") {
            self.available.fetch_sub(words, Ordering::AcqRel);
            return true;
        }
        if self.available.fetch_sub(words, Ordering::AcqRel) >= words {
            return true;
        }
        self.available.fetch_add(words, Ordering::AcqRel);
        false
    }

    /// Takes back a promise, or part of one.
    #[inline]
    pub(crate) fn give_back(&self, words: u64) {
        if words > 0 {
            self.available.fetch_add(words as i64, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_all_or_nothing() {
        let space = Space::new(10);
        space.add(110);
        assert_eq!(space.available(), 100);
        assert!(!space.try_take(101));
        assert_eq!(space.available(), 100);
        assert!(space.try_take(100));
        assert!(!space.try_take(1));
        space.give_back(60);
        assert_eq!(space.available(), 60);
    }
}
