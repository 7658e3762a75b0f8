//! Appending: reservation across segments and roll-over.
//!
//! [`Appender::reserve`] takes a range in the active segment; when the record does not fit, the rest
//! is padded and the next prepared segment becomes active. A [`Reservation`] is filled and
//! committed; dropped without that (a panic in between) it turns into padding, so that it never
//! holds up the records behind it.
//!
//! Invariants:
//! * a promise taken from [`Space`] (of at most its slop) always finds room, so `reserve` never
//!   waits and never fails for it;
//! * a segment is in the chain before it is active, so whoever waits for a record can reach it by
//!   walking the chain;
//! * only a full (wholly reserved) segment is ever replaced as the active one.

use std::collections::VecDeque;

use crate::log::segment::{Attempt, FIRST_RECORD, Segment};
use crate::log::space::Space;
use crate::log::word::State;
use crate::sync::{Arc, Loaded, Mutex, Swap, mutation};

/// The writing end of the log.
#[derive(Debug)]
pub(crate) struct Appender {
    active: Swap<Segment>,
    roll: Mutex<Roll>,
    space: Space,
    /// The end of the log when it was opened.
    opened_at: u64,
}

/// What changes at a roll-over, under one lock.
#[derive(Debug)]
struct Roll {
    /// Prepared segments, the next one first.
    ready: VecDeque<Arc<Segment>>,
    /// Segments with records that may not be durable, oldest first; the last one is active.
    chain: VecDeque<Arc<Segment>>,
}

/// There is no room for a record larger than what was promised to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSpace {
    /// How many words it would leave unused that were promised to others.
    pub(crate) words: u64,
}

impl Appender {
    /// Starts in `active`, whose chain is empty, or with a placeholder that has no room. Everything
    /// below `opened_at` is durable.
    pub(crate) fn new(active: Arc<Segment>, slop: u64, opened_at: u64) -> Self {
        let space = Space::new(slop);
        let mut chain = VecDeque::new();
        if !active.is_placeholder() {
            space.add(active.end() - active.tail());
            chain.push_back(Arc::clone(&active));
        }
        Self {
            active: Swap::new(active),
            roll: Mutex::new(Roll {
                ready: VecDeque::new(),
                chain,
            }),
            space,
            opened_at,
        }
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// Takes a range of `words`. The caller holds a promise of that many words from [`Space`],
    /// which the range uses up.
    ///
    /// # Errors
    ///
    /// [`NoSpace`] only for records larger than the slop, when what they would leave unused at the
    /// end of a segment cannot be paid for. The promise is then still the caller's.
    pub(crate) fn reserve(&self, words: u64) -> Result<Reservation, NoSpace> {
        let mut paid = 0;
        let mut rolled = false;
        loop {
            // A segment is closed once, by whoever takes its last word: that one settles the slop.
            let active = self.active.load();
            match active.try_reserve(words) {
                Attempt::Reserved(offset) => {
                    self.space.give_back(paid);
                    if offset + words == active.words() && !mutation("exact_fit_not_settled") {
                        self.space.give_back(self.space.slop());
                    }
                    return Ok(Reservation {
                        segment: active,
                        offset,
                        words,
                        rolled,
                        finished: false,
                    });
                }
                Attempt::NoRoom { offset, remainder } => {
                    let unpromised = remainder.saturating_sub(self.space.slop());
                    if unpromised > paid {
                        if !self.space.try_take(unpromised - paid) {
                            self.space.give_back(paid);
                            return Err(NoSpace { words: unpromised });
                        }
                        paid = unpromised;
                    }
                    if remainder > 0 {
                        if !active.try_pad(offset, remainder)
                            && !mutation("rolled_over_without_padding")
                        {
                            // Somebody took words there, maybe not all of them: look again.
                            continue;
                        }
                        self.space.give_back(paid - unpromised);
                        if !mutation("rest_paid_for_and_given_back") {
                            paid = 0;
                        }
                        if !mutation("padding_not_settled") {
                            self.space
                                .give_back(self.space.slop().saturating_sub(remainder));
                        }
                    }
                    rolled |= self.roll_over(&active);
                }
            }
        }
    }

    /// Offers a prepared segment.
    pub(crate) fn offer(&self, segment: Arc<Segment>) {
        let words = segment.end() - segment.tail();
        let mut roll = self.roll.lock();
        roll.ready.push_back(segment);
        // Only once it is there, and before anybody sees that it is.
        self.space.add(words);
    }

    /// How many prepared segments wait to become active.
    pub(crate) fn ready(&self) -> usize {
        self.roll.lock().ready.len()
    }

    /// The end of the log when it was opened.
    pub(crate) fn opened_at(&self) -> u64 {
        self.opened_at
    }

    /// The segments whose records may not be durable, oldest first.
    pub(crate) fn chain(&self) -> Vec<Arc<Segment>> {
        self.roll.lock().chain.iter().map(Arc::clone).collect()
    }

    /// Forgets the segments that are durable to their end.
    pub(crate) fn retire_durable(&self, watermark: u64) {
        let mut roll = self.roll.lock();
        while roll.chain.len() > 1
            && roll.chain.front().is_some_and(|segment| {
                segment.end() <= watermark || mutation("closed_before_durable")
            })
        {
            if let Some(durable) = roll.chain.pop_front() {
                durable.close_file();
                #[cfg(oncekey_loom)]
                if mutation("unmapped_when_durable") {
                    durable.unmap();
                }
            }
        }
    }

    /// The position behind everything reserved so far.
    pub(crate) fn tail(&self) -> u64 {
        let active = self.active.load();
        if active.tail() == active.base + FIRST_RECORD && self.is_first(&active) {
            return self.opened_at;
        }
        active.tail()
    }

    /// Whether nothing was appended since the open.
    fn is_first(&self, active: &Segment) -> bool {
        let roll = self.roll.lock();
        roll.chain
            .front()
            .is_none_or(|oldest| oldest.base == active.base)
    }

    /// The segment being written.
    pub(crate) fn active(&self) -> Loaded<Segment> {
        self.active.load()
    }

    /// Takes the segments that were prepared and never used.
    pub(crate) fn take_ready(&self) -> VecDeque<Arc<Segment>> {
        std::mem::take(&mut self.roll.lock().ready)
    }

    /// Makes the next segment active, unless somebody else has.
    fn roll_over(&self, full: &Segment) -> bool {
        let mut roll = self.roll.lock();
        // A placeholder and the first segment begin at the same position.
        let active = self.active.load();
        let active: &Segment = &active;
        let is_active = std::ptr::eq(active, full)
            || (mutation("segments_told_apart_by_base") && active.base == full.base);
        if !is_active {
            return false;
        }
        let next = roll
            .ready
            .pop_front()
            .expect("room that was promised is in a prepared segment");
        roll.chain.push_back(Arc::clone(&next));
        self.active.store(next);
        true
    }
}

/// A range of the log that is being written.
#[derive(Debug)]
pub(crate) struct Reservation {
    segment: Loaded<Segment>,
    offset: u64,
    words: u64,
    rolled: bool,
    finished: bool,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Number of the segment.
    pub(crate) segment: u16,
    /// Offset in the segment, in words.
    pub(crate) offset: u64,
    /// Position of the record, which is its sequence.
    pub(crate) sequence: u64,
    /// Position behind the record: durable when the watermark reaches it.
    pub(crate) end: u64,
}

impl Reservation {
    #[inline]
    pub(crate) fn sequence(&self) -> u64 {
        self.segment.base + self.offset
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The segment, to be kept for longer than the range is being written.
    #[inline]
    pub(crate) fn hold(&self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// Whether taking it made another segment active.
    #[inline]
    pub(crate) fn rolled(&self) -> bool {
        self.rolled
    }

    /// First byte of the range within the segment.
    #[inline]
    pub(crate) fn byte_offset(&self) -> usize {
        self.offset as usize * 8
    }

    /// Publishes the range as a whole record.
    #[inline]
    pub(crate) fn commit(mut self) -> Appended {
        self.finished = true;
        self.segment
            .finish(self.offset, self.words, State::Committed);
        Appended {
            segment: self.segment.number,
            offset: self.offset,
            sequence: self.sequence(),
            end: self.sequence() + self.words,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.finished && !mutation("dropped_reservation_left") {
            self.segment.finish(self.offset, self.words, State::Padding);
        }
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;
    use crate::log::word::Decoded;
    use crate::mem::Memory;

    const WORDS: u64 = FIRST_RECORD + 64;

    fn segment(number: u16) -> Arc<Segment> {
        let base = (u64::from(number) + 1) * WORDS;
        let memory = Memory::heap(WORDS as usize);
        let name = number.to_string();
        Arc::new(Segment::new(
            number,
            base,
            7,
            name,
            None,
            memory,
            FIRST_RECORD,
        ))
    }

    /// Who finds no room for a large record must not give up a segment whose last words somebody
    /// else takes for a small one: the log would end in the hole.
    #[test]
    fn no_segment_is_left_before_it_is_full() {
        let appender = Appender::new(segment(0), 24, WORDS);
        for number in 1..4_000 {
            appender.offer(segment(number));
        }
        std::thread::scope(|scope| {
            for sizes in [[1, 2], [24, 9], [3, 30], [5, 1]] {
                let appender = &appender;
                scope.spawn(move || {
                    for words in sizes.into_iter().cycle() {
                        if !appender.space().try_take(words) {
                            return;
                        }
                        match appender.reserve(words) {
                            Ok(reservation) => drop(reservation.commit()),
                            Err(NoSpace { .. }) => appender.space().give_back(words),
                        }
                    }
                });
            }
        });
        let chain = appender.chain();
        let (active, full) = chain.split_last().expect("an active segment");
        for segment in full {
            let mut offset = FIRST_RECORD;
            while offset < segment.words() {
                match segment.word_at(offset) {
                    Decoded::Word { words, .. } => offset += words,
                    other => panic!("{other:?} at {offset} of segment {}", segment.name),
                }
            }
        }
        let unused = appender.ready() as u64 * (WORDS - FIRST_RECORD - 24);
        let left = active.end() - active.tail();
        let account = left as i64 - if left == 0 { 0 } else { 24 } + unused as i64;
        assert_eq!(appender.space().available() as i64, account.max(0));
    }
}
