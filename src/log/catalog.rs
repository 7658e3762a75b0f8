//! What a segment is worth: how many of its words answer, and until when.
//!
//! Every segment counts the words of its completed records by the time at which they expire, in
//! buckets that grow with the time from the segment's creation: four for each doubling. So what is
//! live at any later moment is known without reading a record, within a few per cent, in half a
//! kilobyte a segment.
//!
//! The counts only steer what maintenance does next. Whether a record may go is decided by the
//! record itself, under its key's lock; a count that is wrong costs time or space and nothing else.
//! The one exception is until when the segment's removals are needed: that is never too early.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Shift from ms to the unit of the buckets: a quarter of a second.
const UNIT_SHIFT: u32 = 8;
/// Buckets for each doubling.
const PARTS: u64 = 4;
/// Buckets in all. The last one ends after more years than a retention can have.
const BUCKETS: usize = 128;

/// The words of a segment by the time at which they expire.
#[derive(Debug)]
pub(crate) struct Worth {
    /// Store time in ms from which the buckets are counted.
    since_ms: u64,
    words: [AtomicU32; BUCKETS],
    /// When the last of them expires, in ms.
    last_ms: AtomicU64,
    /// Until when a removal in the segment may be needed, in ms.
    removals_ms: AtomicU64,
    /// Whether all that the segment holds was counted.
    is_counted: AtomicBool,
}

impl Worth {
    /// Nothing yet, in a segment made at this store time.
    pub(crate) fn new(since_ms: u64) -> Self {
        Self {
            since_ms,
            words: [const { AtomicU32::new(0) }; BUCKETS],
            last_ms: AtomicU64::new(0),
            removals_ms: AtomicU64::new(0),
            is_counted: AtomicBool::new(true),
        }
    }

    /// Of a segment that was made at this store time, by an earlier open: nobody has looked yet.
    pub(crate) fn unknown(since_ms: u64) -> Self {
        Self {
            removals_ms: AtomicU64::new(u64::MAX),
            is_counted: AtomicBool::new(false),
            ..Self::new(since_ms)
        }
    }

    /// Whether all that the segment holds was counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    /// All that the segment holds was counted.
    pub(crate) fn set_counted(&self) {
        self.is_counted.store(true, Ordering::Relaxed);
    }

    /// Notes that a removal in the segment is needed until then. Called before the removal is
    /// published.
    pub(crate) fn keep_removals_until(&self, deadline_ms: u64) {
        self.removals_ms.fetch_max(deadline_ms, Ordering::Relaxed);
    }

    /// Whether no removal in the segment is needed at this store time.
    pub(crate) fn has_no_removals(&self, now_ms: u64) -> bool {
        self.removals_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// Counts a result of `words` words that expires at `deadline_ms`.
    #[inline]
    pub(crate) fn add(&self, deadline_ms: u64, words: u64) {
        let bucket = &self.words[bucket_of(deadline_ms.saturating_sub(self.since_ms))];
        bucket.fetch_add(words as u32, Ordering::Relaxed);
        if self.last_ms.load(Ordering::Relaxed) < deadline_ms {
            self.last_ms.fetch_max(deadline_ms, Ordering::Relaxed);
        }
    }

    /// Takes one back that was removed before its time.
    pub(crate) fn remove(&self, deadline_ms: u64, words: u64) {
        let bucket = &self.words[bucket_of(deadline_ms.saturating_sub(self.since_ms))];
        let less = |counted: u32| Some(counted.saturating_sub(words as u32));
        // It always has another value to try.
        bucket
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_default();
    }

    /// About how many words still answer at this store time.
    pub(crate) fn live_words(&self, now_ms: u64) -> u64 {
        if now_ms >= self.last_ms.load(Ordering::Relaxed) {
            return 0;
        }
        let now = now_ms.saturating_sub(self.since_ms);
        let current = bucket_of(now);
        let (from, to) = (starts_at(current), starts_at(current + 1));
        let words = |bucket: &AtomicU32| u64::from(bucket.load(Ordering::Relaxed));
        // Of the bucket that is expiring, as much as there is time left.
        let left = to.saturating_sub(now.max(from));
        let expiring = words(&self.words[current]) * left.min(to - from) / (to - from);
        let later = self.words.iter().skip(current + 1).map(words);
        expiring + later.sum::<u64>()
    }
}

/// The bucket for what expires so many ms after the segment was made.
fn bucket_of(after_ms: u64) -> usize {
    let units = after_ms >> UNIT_SHIFT;
    if units < PARTS {
        return units as usize;
    }
    let doubling = u64::from(units.ilog2());
    let part = (units >> (doubling - 2)) & (PARTS - 1);
    let bucket = (doubling - 1) * PARTS + part;
    (bucket as usize).min(BUCKETS - 1)
}

/// Where a bucket begins, in ms after the segment was made.
fn starts_at(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket << UNIT_SHIFT;
    }
    let (doubling, part) = (bucket / PARTS + 1, bucket % PARTS);
    (PARTS + part) << (doubling - 2 + u64::from(UNIT_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for bucket in 0..BUCKETS {
            let (from, to) = (starts_at(bucket), starts_at(bucket + 1));
            assert!(from < to, "bucket {bucket}");
            assert_eq!((bucket_of(from), bucket_of(to - 1)), (bucket, bucket));
        }
        let longest = crate::limits::RETENTION_MAX.as_millis() as u64;
        assert!(starts_at(BUCKETS - 1) > longest);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_is_live_goes_down_with_time_to_nothing() {
        let worth = Worth::new(1_000_000);
        let minute = 60_000;
        for number in 1..=100 {
            worth.add(1_000_000 + number * minute, 10);
        }
        assert_eq!(worth.live_words(0), 1_000);
        let mut before = 1_000;
        for number in 0..100 {
            let live = worth.live_words(1_000_000 + number * minute);
            let exact = (100 - number) * 10;
            assert!(live <= before, "after {number} minutes");
            assert!(live.abs_diff(exact) <= 60, "{live} for {exact}");
            before = live;
        }
        assert_eq!(worth.live_words(1_000_000 + 100 * minute), 0);
    }

    #[test]
    fn what_was_removed_does_not_count() {
        let worth = Worth::new(0);
        worth.add(86_400_000, 100);
        worth.add(86_400_000, 50);
        worth.remove(86_400_000, 100);
        assert_eq!(worth.live_words(1), 50);
        worth.remove(86_400_000, 100);
        assert_eq!(worth.live_words(1), 0);
    }
}
