//! What to do next: which segments cost more than they are worth.
//!
//! The log is given up from its oldest end only, so what is weighed there is every prefix of it: a
//! segment full of live results goes too when enough dead ones stand behind it. Compacted files are
//! weighed one by one. How far this is driven is a matter of write amplification against space: a
//! source of which a share `s` is live costs `s / (1 - s)` bytes of copies for each byte that it
//! gives back.

use std::collections::HashMap;
use std::sync::Arc;

use super::Pass;
use crate::index::Slot;
use crate::log::record::{Record, words_for};
use crate::log::segment::Segment;
use crate::maintenance::MaintenanceError;

/// Live parts of a hundred up to which a source is given up whenever it is found.
const LOW_SHARE: u64 = 50;
/// Live parts of a hundred up to which one is given up when too much space is used.
const HIGH_SHARE: u64 = 85;
/// Too much: more than so many parts of a hundred of what is live, and a segment.
const SPACE_PARTS: u64 = 130;
/// Compacted files that are taken together at most.
const COMPACTED_AT_ONCE: usize = 64;
/// Compacted files of less than this part of a segment are small, and so many of them are made one.
const SMALL_PART: u64 = 8;
const SMALL_AT_ONCE: usize = 16;
/// Segments whose results are counted at once, which takes memory for the places of all of them.
const COUNTED_AT_ONCE: usize = 16;

/// What one job gives up.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The oldest segments of the log, in order.
    pub(super) log: Vec<Arc<Segment>>,
    /// Base of the segment that follows them.
    pub(super) log_rest: u64,
    /// Compacted files.
    pub(super) compacted: Vec<Arc<Segment>>,
}

impl Plan {
    /// All segments that go.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.log.iter().chain(&self.compacted)
    }

    /// Less of it, if it is more than one source: removals that are kept weigh nothing when it is
    /// made, and copies may be more than was thought.
    pub(super) fn oldest_alone(&self) -> Option<Self> {
        if self.sources().count() < 2 {
            return None;
        }
        let smaller = match self.log.split_first() {
            Some((oldest, later)) => Self {
                log: vec![Arc::clone(oldest)],
                log_rest: later.first().map_or(self.log_rest, |next| next.base),
                compacted: Vec::new(),
            },
            None => Self {
                compacted: self.compacted.first().cloned().into_iter().collect(),
                ..Self::default()
            },
        };
        Some(smaller)
    }

    /// Whether this is the number of one that goes.
    pub(super) fn has(&self, number: u16) -> bool {
        self.sources().any(|segment| segment.number == number)
    }
}

/// A source with its weight, in words.
struct Weighed {
    segment: Arc<Segment>,
    used: u64,
    live: u64,
}

/// Parts of a hundred.
fn share(live: u64, used: u64) -> u64 {
    live.saturating_mul(100) / used.max(1)
}

impl Pass<'_> {
    /// The next job, if there is one that is worth it.
    pub(super) fn choose(&self) -> Result<Option<Plan>, MaintenanceError> {
        let engine = self.engine;
        let mut sources = engine.log.sources();
        // What stands behind a segment that must stay can't go either: it may hide what is in it.
        if let Some(at) = sources.log.iter().position(|each| self.is_damaged(each)) {
            sources.log_rest = sources.log.get(at).map_or(0, |stays| stays.base);
            sources.log.truncate(at);
        }
        sources.compacted.retain(|each| !self.is_damaged(each));
        self.count(&sources.log)?;
        self.count(&sources.compacted)?;
        let pending = self.pending_words();
        let now_ms = engine.time.now_ms();
        let weigh = |segment: &Arc<Segment>| {
            let used = segment.used_words();
            let pending = pending.get(&segment.number).copied().unwrap_or(0);
            let live = segment.worth().live_words(now_ms) + pending;
            Weighed {
                used,
                live: live.min(used),
                segment: Arc::clone(segment),
            }
        };
        let mut log: Vec<_> = sources.log.iter().map(weigh).collect();
        let compacted: Vec<_> = sources.compacted.iter().map(weigh).collect();
        let sum = |of: fn(&Weighed) -> u64| log.iter().chain(&compacted).map(of).sum::<u64>();
        let (used, live) = (sum(|each| each.used), sum(|each| each.live));
        let segment_words = engine.settings.segment_bytes / 8;
        let allowed = live.saturating_mul(SPACE_PARTS) / 100 + segment_words;
        let limit = if used > allowed {
            HIGH_SHARE
        } else {
            LOW_SHARE
        };

        let mut plan = Plan::default();
        let mut live = 0;
        // All of it fits into what is set aside.
        let copied_max = self.copied_words_max();
        let prefix = best_prefix(&log, copied_max);
        if let Some((count, _)) = prefix.filter(|(_, share)| *share <= limit) {
            let rest = log.get(count).map(|next| next.segment.base);
            plan.log_rest = rest.unwrap_or(sources.log_rest);
            log.truncate(count);
            live = log.iter().map(|each| each.live).sum();
            plan.log = log.into_iter().map(|each| each.segment).collect();
        }
        let is_small = |each: &Weighed| each.used < segment_words / SMALL_PART;
        let are_many = compacted.iter().filter(|each| is_small(each)).count() >= SMALL_AT_ONCE;
        let mut worth_it: Vec<_> = compacted
            .into_iter()
            .filter(|each| share(each.live, each.used) <= limit || are_many && is_small(each))
            .collect();
        worth_it.sort_by_key(|each| share(each.live, each.used));
        for each in worth_it.into_iter().take(COMPACTED_AT_ONCE) {
            live += each.live;
            let is_first = plan.log.is_empty() && plan.compacted.is_empty();
            // What is kept in memory for a job is bounded by what it copies.
            if live > copied_max && !is_first {
                break;
            }
            plan.compacted.push(each.segment);
        }
        let is_empty = plan.log.is_empty() && plan.compacted.is_empty();
        Ok((!is_empty).then_some(plan))
    }

    /// Counts what segments of earlier opens are worth, by the heads of the records that the index
    /// knows of.
    fn count(&self, segments: &[Arc<Segment>]) -> Result<(), MaintenanceError> {
        let uncounted = segments.iter().filter(|each| !each.worth().is_counted());
        let uncounted: Vec<_> = uncounted.collect();
        for some in uncounted.chunks(COUNTED_AT_ONCE) {
            let slots = self.slots_where(|number| some.iter().any(|each| each.number == number));
            for segment in some {
                let first = slots.partition_point(|slot| slot.segment() < segment.number);
                let own = slots.iter().skip(first);
                let own = own.take_while(|slot| slot.segment() == segment.number);
                own.for_each(|slot| count_one(segment, *slot));
                segment.worth().set_counted();
                self.check()?;
            }
        }
        Ok(())
    }

    /// Words of the newest records of keys without an outcome, by the number of their segment.
    fn pending_words(&self) -> HashMap<u16, u64> {
        let mut words = HashMap::new();
        for stripe in self.engine.index.stripes() {
            let stripe = stripe.lock();
            for live in stripe.live_entries() {
                if let Some(newest) = live.newest {
                    let key_bytes = live.key.as_bytes().len();
                    let own = words_for(key_bytes, 0, live.checkpoint_bytes, 0);
                    *words.entry(newest.segment).or_insert(0) += own;
                }
            }
        }
        words
    }

    /// The slots whose segment's number is wanted, in the order in which their records stand.
    pub(super) fn slots_where(&self, is_wanted: impl Fn(u16) -> bool) -> Vec<Slot> {
        let mut slots = Vec::new();
        for stripe in self.engine.index.stripes() {
            // Room is made without the lock, for most of the time.
            slots.reserve(1024);
            let stripe = stripe.lock();
            slots.extend(stripe.completed().filter(|slot| is_wanted(slot.segment())));
        }
        slots.sort_unstable_by_key(|slot| (slot.segment(), slot.offset()));
        slots
    }
}

/// Counts one result. One that can't be read counts for nothing here: it is met again when its
/// segment is to be given up.
fn count_one(segment: &Segment, slot: Slot) {
    let bytes = segment.record_bytes(slot.offset());
    if let Some(bytes) = bytes
        && let Ok(record) = Record::parse_verified(bytes)
    {
        segment.worth().add(record.deadline_ms, record.body_words());
    }
}

/// How many of the oldest segments to give up at best, and the live share of them.
fn best_prefix(log: &[Weighed], copied_max: u64) -> Option<(usize, u64)> {
    let (mut used, mut live) = (0, 0);
    let mut best = None;
    for (index, each) in log.iter().enumerate() {
        used += each.used;
        live += each.live;
        if live > copied_max && index > 0 {
            break;
        }
        let share = share(live, used);
        if best.is_none_or(|(_, best)| share <= best) {
            best = Some((index + 1, share));
        }
    }
    best
}
