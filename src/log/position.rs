//! Positions: where a word stands in the log's total order.
//!
//! A position is the epoch in the high 28 bits and an offset in 8-byte words in the low 36. Every
//! open starts a new epoch, so a position (and with it every fencing token) is never given out
//! twice, whatever was lost. The position of a segment is that of its word 0; no segment reaches
//! into the next epoch.

/// How many bits hold the offset.
const OFFSET_BITS: u32 = 36;
/// The last epoch there is.
pub(crate) const EPOCH_MAX: u64 = u64::MAX >> OFFSET_BITS;
/// Words that fit into one epoch.
#[cfg(test)]
pub(crate) const EPOCH_WORDS: u64 = 1 << OFFSET_BITS;

/// The epoch of a position.
pub(crate) const fn epoch_of(position: u64) -> u64 {
    position >> OFFSET_BITS
}

/// The first position of an epoch, which is at most [`EPOCH_MAX`].
pub(crate) const fn first_position(epoch: u64) -> u64 {
    assert!(epoch <= EPOCH_MAX, "an epoch of more than 28 bits");
    epoch << OFFSET_BITS
}

/// The epoch behind this one, or `None` when all are used up.
pub(crate) const fn next_epoch(epoch: u64) -> Option<u64> {
    if epoch < EPOCH_MAX {
        Some(epoch + 1)
    } else {
        None
    }
}

/// Where a segment of `words` words goes that follows a segment which ends at `end`: right there,
/// or `None` when it would reach the end of the epoch, so that a new one has to begin.
pub(crate) const fn next_base(end: u64, words: u64) -> Option<u64> {
    match end.checked_add(words) {
        Some(next_end) if epoch_of(next_end) == epoch_of(end) => Some(end),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_begins_at_its_first_position() {
        for epoch in [0, 1, 77, EPOCH_MAX] {
            assert_eq!(epoch_of(first_position(epoch)), epoch);
            assert_eq!(epoch_of(first_position(epoch) + (EPOCH_WORDS - 1)), epoch);
        }
        assert_eq!(first_position(3) - first_position(2), EPOCH_WORDS);
        assert_eq!(next_epoch(4), Some(5));
        assert_eq!(next_epoch(EPOCH_MAX), None);
    }

    #[test]
    fn no_segment_crosses_into_another_epoch() {
        let last = first_position(6) - 1000;
        assert_eq!(next_base(first_position(5), 4096), Some(first_position(5)));
        assert_eq!(next_base(last, 999), Some(last));
        assert_eq!(next_base(last, 1000), None);
        assert_eq!(next_base(last, 1001), None);
        assert_eq!(next_base(u64::MAX - 10, 11), None);
    }
}
