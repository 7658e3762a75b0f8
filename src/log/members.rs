//! Which files of the directory count: the oldest segment of the log, and the compacted files.
//!
//! The segments of the log are a chain that is given up from its oldest end only, so where it
//! begins is one position. Compacted files come and go one by one; META knows how many there are
//! and two sums over their bases, by which a missing or a foreign one is noticed. It stands in both
//! slots of META, so giving up a segment is one update of it: before it the segment counts, after it
//! it does not, whatever else a crash leaves in the directory.

use crate::log::header::{PageReader, PageWriter};
use crate::log::position;
use crate::log::word::mix;

/// Offset of each field in a slot of META, in bytes.
mod at {
    pub(super) const LOG_START: usize = 120;
    pub(super) const COUNT: usize = 128;
    pub(super) const SUM: usize = 136;
    pub(super) const XOR: usize = 144;
    pub(super) const COMPACTED_END: usize = 152;
    pub(super) const REMOVING: usize = 160;
}

// The table in docs/format.md, field by field: each begins where the one before it ends.
const _: () = {
    assert!(at::COUNT == at::LOG_START + 8 && at::SUM == at::COUNT + 8);
    assert!(at::XOR == at::SUM + 8 && at::COMPACTED_END == at::XOR + 8);
    assert!(at::REMOVING == at::COMPACTED_END + 8 && at::REMOVING == 160);
};

/// The files that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Base of the oldest segment of the log; 0 while none was ever given up.
    pub(crate) log_start: u64,
    /// The compacted files.
    pub(crate) compacted: Tally,
    /// Position behind every compacted file that ever counted: one from there on never did.
    pub(crate) compacted_end: u64,
    /// Base of the compacted file that was given up last, whose removal may not have happened yet.
    pub(crate) removing: u64,
}

/// A set of bases, as far as it takes to tell whether another one is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) sum: u64,
    pub(crate) xor: u64,
}

impl Tally {
    pub(crate) fn of(bases: impl IntoIterator<Item = u64>) -> Self {
        let mut tally = Self::default();
        bases.into_iter().for_each(|base| tally.add(base));
        tally
    }

    pub(crate) fn add(&mut self, base: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(base);
        self.xor ^= mix(base);
    }

    pub(crate) fn remove(&mut self, base: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(base);
        self.xor ^= mix(base);
    }
}

impl Members {
    pub(crate) fn put(&self, page: &mut PageWriter) {
        page.put(at::LOG_START, &self.log_start.to_le_bytes());
        page.put(at::COUNT, &self.compacted.count.to_le_bytes());
        page.put(at::SUM, &self.compacted.sum.to_le_bytes());
        page.put(at::XOR, &self.compacted.xor.to_le_bytes());
        page.put(at::COMPACTED_END, &self.compacted_end.to_le_bytes());
        page.put(at::REMOVING, &self.removing.to_le_bytes());
    }

    pub(crate) fn read(page: &PageReader<'_>) -> Self {
        Self {
            log_start: page.u64(at::LOG_START),
            compacted: Tally {
                count: page.u64(at::COUNT),
                sum: page.u64(at::SUM),
                xor: page.u64(at::XOR),
            },
            compacted_end: page.u64(at::COMPACTED_END),
            removing: page.u64(at::REMOVING),
        }
    }

    /// The field that cannot be right in a store whose newest epoch is `epoch`, if there is one.
    pub(crate) fn fault(&self, epoch: u64) -> Option<&'static str> {
        let is_reached = |position| position::epoch_of(position) <= epoch;
        if !is_reached(self.log_start) {
            return Some("start of the log");
        }
        // No compacted file ends an epoch, so the position behind it lies in the same one.
        if !is_reached(self.compacted_end) || self.removing > self.compacted_end {
            return Some("compacted files");
        }
        let is_none = self.compacted == Tally::default();
        if (self.compacted.count == 0) != is_none || (self.compacted_end == 0 && !is_none) {
            return Some("compacted files");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_tells_sets_apart() {
        let of = |bases: &[u64]| Tally::of(bases.iter().copied());
        let mut tally = of(&[5, 9, 12]);
        assert_eq!(tally, of(&[12, 5, 9]));
        for other in [&[5, 9][..], &[5, 9, 13], &[5, 8, 13], &[5, 9, 12, 0]] {
            assert_ne!(tally, of(other), "{other:?}");
        }
        tally.remove(9);
        tally.add(7);
        assert_eq!(tally, of(&[5, 7, 12]));
        [5, 7, 12].into_iter().for_each(|base| tally.remove(base));
        assert_eq!(tally, Tally::default());
    }

    #[test]
    fn what_no_store_writes_is_a_fault() {
        let at = |epoch| position::first_position(epoch) + 1;
        let good = Members {
            log_start: at(5),
            compacted: Tally::of([at(3), at(4)]),
            compacted_end: at(4) + 600,
            removing: at(2),
        };
        assert_eq!(good.fault(5), None);
        assert_eq!(Members::default().fault(0), None);
        assert_eq!(good.fault(4), Some("start of the log"));
        type Change = fn(&mut Members);
        let changes: [Change; 4] = [
            |members| members.compacted_end = position::first_position(6),
            |members| members.removing = members.compacted_end + 1,
            |members| members.compacted.count = 0,
            |members| (members.compacted_end, members.removing) = (0, 0),
        ];
        for change in changes {
            let mut bad = good;
            change(&mut bad);
            assert_eq!(bad.fault(5), Some("compacted files"), "{bad:?}");
        }
    }
}
