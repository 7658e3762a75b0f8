//! Reading a segment whose bytes nobody vouches for.
//!
//! [`scan`] walks the chain of lengths from the first record on and verifies every record. Where
//! the chain breaks it looks for the next place that proves itself: a word whose check holds for
//! that very position, and, if it claims a record, a record whose checksum holds. So damage costs
//! what it hit and no more, and zeros in the middle are told apart from the end of the log by what
//! stands behind them.
//!
//! Nothing here judges: what is damage and what a torn tail depends on what was durable, which
//! [`recover`](crate::log::recover) knows after all segments were scanned. Nothing is allocated by
//! a number that was read, and every range is checked against the segment before it is touched.

use crate::corruption::Damage;
use crate::log::attached::{Attached, attached};
use crate::log::header::Header;
use crate::log::record::{Malformed, Record};
use crate::log::segment::FIRST_RECORD;
use crate::log::word::{self, Decoded, State};
use crate::mem::Memory;
use crate::sync::Ordering;

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Word offset behind the last range, good or bad. Only zeros and unreadable bytes follow.
    pub(crate) end: u64,
    /// Word offset behind the last word that is not zero, at least `end`.
    pub(crate) written_end: u64,
    /// Ranges without a readable record that are not padding, in order.
    pub(crate) spots: Vec<Spot>,
    /// Records read.
    pub(crate) records: u64,
    /// Word offset behind the last of them.
    pub(crate) records_end: u64,
    /// The highest watermark that any record knew.
    pub(crate) watermark: u64,
    /// The latest store time in ms that any record mentions as past.
    pub(crate) high_water_ms: u64,
}

/// A range that holds no readable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// First word.
    pub(crate) from: u64,
    /// The word behind it.
    pub(crate) to: u64,
    /// What is wrong; [`Damage::Unfinished`] for a range whose writer did not come to its end.
    pub(crate) damage: Damage,
    /// How many records stand before it in the segment.
    pub(crate) records_before: u64,
}

/// Reads the segment of this header up to word `limit`, or its end if that comes first.
pub(crate) fn scan_file(memory: &Memory, header: &Header, limit: u64) -> Scan {
    visit_file(memory, header, limit, &mut |_, _| {})
}

/// The same, and hands over every record that it reads with its word offset.
pub(crate) fn visit_file(
    memory: &Memory,
    header: &Header,
    limit: u64,
    visit: &mut dyn FnMut(u64, &Record<'_>),
) -> Scan {
    let reader = Reader {
        memory,
        base: header.base,
        seed: header.seed(),
        is_compacted: header.is_compacted(),
        limit: limit.min(memory.words() as u64),
    };
    scan_with(&reader, visit)
}

/// The same for the segment of the log at `base`.
#[cfg(test)]
pub(crate) fn scan(memory: &Memory, base: u64, seed: u64, limit: u64) -> Scan {
    let reader = Reader {
        memory,
        base,
        seed,
        is_compacted: false,
        limit: limit.min(memory.words() as u64),
    };
    scan_with(&reader, &mut |_, _| {})
}

fn scan_with(reader: &Reader<'_>, visit: &mut dyn FnMut(u64, &Record<'_>)) -> Scan {
    let limit = reader.limit;
    let mut scan = Scan {
        end: FIRST_RECORD.min(limit),
        written_end: FIRST_RECORD.min(limit),
        spots: Vec::new(),
        records: 0,
        records_end: FIRST_RECORD.min(limit),
        watermark: 0,
        high_water_ms: 0,
    };
    while scan.end < limit {
        let from = scan.end;
        let (next, damage) = match reader.range_at(from) {
            Range::Record(words, record) => {
                scan.count(&record);
                visit(from, &record);
                let attached = reader.attached(from, words, &record);
                attached.flatten().for_each(|one| scan.count(&one.record));
                scan.records_end = from + words;
                (Some(from + words), None)
            }
            Range::Padding(words) => (Some(from + words), None),
            Range::Unfinished(words) => (Some(from + words), Some(Damage::Unfinished)),
            Range::Bad(words, damage) => (Some(from + words), Some(damage)),
            Range::Lost(damage) => (reader.search(from, &mut scan.written_end), Some(damage)),
        };
        match (next, damage) {
            (Some(next), damage) => {
                scan.end = next;
                scan.written_end = scan.written_end.max(next);
                if let Some(damage) = damage {
                    scan.add_spot(from, next, damage);
                }
            }
            // Zeros with nothing behind that proves itself: here the segment ends.
            (None, Some(Damage::Zeros)) | (None, None) => break,
            // Bytes that nothing true follows.
            (None, Some(damage)) => {
                let next = scan.written_end.max(from + 1);
                scan.written_end = next;
                scan.add_spot(from, next, damage);
                scan.end = next;
                break;
            }
        }
    }
    scan
}

impl Scan {
    fn count(&mut self, record: &Record<'_>) {
        self.records += 1;
        self.watermark = self.watermark.max(record.watermark);
        self.high_water_ms = self.high_water_ms.max(record.latest_ms());
    }

    fn add_spot(&mut self, from: u64, to: u64, damage: Damage) {
        self.spots.push(Spot {
            from,
            to,
            damage,
            records_before: self.records,
        });
    }
}

/// What begins at a word.
enum Range<'a> {
    /// A record of this many words.
    Record(u64, Record<'a>),
    /// Words to skip.
    Padding(u64),
    /// Words that somebody reserved and never finished.
    Unfinished(u64),
    /// A word of true length with an unreadable record.
    Bad(u64, Damage),
    /// Nothing that tells where the next range begins.
    Lost(Damage),
}

/// A segment being read.
struct Reader<'a> {
    memory: &'a Memory,
    base: u64,
    seed: u64,
    is_compacted: bool,
    limit: u64,
}

impl<'a> Reader<'a> {
    /// What begins at word `offset`, which is below the limit.
    fn range_at(&self, offset: u64) -> Range<'a> {
        // Nobody else has the store open; acquire, as everywhere where a record is read.
        let raw = u64::from_le(self.memory.word(offset as usize).load(Ordering::Acquire));
        let (words, state) = match word::decode(raw, self.base + offset, self.seed) {
            Decoded::Empty => return Range::Lost(Damage::Zeros),
            Decoded::Invalid => return Range::Lost(Damage::Length),
            Decoded::Word { words, .. } if words > self.limit - offset => {
                return Range::Lost(Damage::Length);
            }
            Decoded::Word { words, state } => (words, state),
        };
        match state {
            State::Padding => Range::Padding(words),
            State::Reserved => Range::Unfinished(words),
            // Part of a whole that is not there.
            State::Attached => Range::Lost(Damage::Length),
            State::Committed => {
                let bytes = self.memory.bytes(offset as usize * 8, words as usize * 8);
                match Record::parse(bytes, self.seed) {
                    Ok(record) if !self.belongs(&record, offset) => {
                        Range::Bad(words, Damage::Misplaced)
                    }
                    Ok(record)
                        if self
                            .attached(offset, words, &record)
                            .any(|one| one.is_err()) =>
                    {
                        Range::Bad(words, Damage::Field("extension"))
                    }
                    Ok(record) => Range::Record(words, record),
                    Err(Malformed::Field(field)) => Range::Bad(words, Damage::Field(field)),
                    Err(Malformed::Short | Malformed::Checksum) => {
                        Range::Bad(words, Damage::Checksum)
                    }
                }
            }
        }
    }

    /// What is attached to the record of `words` words at this offset.
    fn attached(
        &self,
        offset: u64,
        words: u64,
        record: &Record<'_>,
    ) -> impl Iterator<Item = Result<Attached<'a>, Malformed>> + use<'a> {
        let bytes = match record.extension_bytes {
            0 => &[],
            _ => self.memory.bytes(offset as usize * 8, words as usize * 8),
        };
        attached(record, bytes, self.base + offset, self.seed)
    }

    /// Whether a record stands where it was written: at its own position in the log, or as a copy
    /// in a compacted file.
    fn belongs(&self, record: &Record<'_>, offset: u64) -> bool {
        record.is_copy == self.is_compacted
            && (record.is_copy || record.sequence == self.base + offset)
    }

    /// The first word behind `from` at which something true begins. Raises `written_end` over all
    /// that is not zero on the way.
    fn search(&self, from: u64, written_end: &mut u64) -> Option<u64> {
        for offset in from..self.limit {
            if self.memory.word(offset as usize).load(Ordering::Acquire) == 0 {
                continue;
            }
            *written_end = (*written_end).max(offset + 1);
            if offset == from {
                continue;
            }
            match self.range_at(offset) {
                Range::Record(..) | Range::Padding(_) | Range::Unfinished(_) => {
                    return Some(offset);
                }
                // True words of unreadable records prove nothing: they may be what was lost.
                Range::Bad(..) | Range::Lost(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::{contents, encode};

    const BASE: u64 = 7 << 36;
    const SEED: u64 = 42;

    /// A segment of the given ranges, each with its state; committed ones hold a record.
    fn segment(words: usize, ranges: &[State]) -> (Memory, Vec<u64>) {
        let memory = Memory::heap(words);
        let mut offsets = Vec::new();
        let mut at = FIRST_RECORD;
        for (number, state) in ranges.iter().enumerate() {
            let key = format!("so{number}");
            let contents = contents(key.as_bytes(), b"response");
            let bytes = encode(&contents, BASE + at, SEED);
            memory.copy_in(at as usize * 8, &bytes);
            let word = word::encode(contents.words(), *state, BASE + at, SEED);
            memory
                .word(at as usize)
                .store(word.to_le(), Ordering::Release);
            offsets.push(at);
            at += contents.words();
        }
        offsets.push(at);
        (memory, offsets)
    }

    fn spots(found: &Scan) -> Vec<(u64, u64, Damage)> {
        found
            .spots
            .iter()
            .map(|spot| (spot.from, spot.to, spot.damage))
            .collect()
    }

    fn read(memory: &Memory) -> Scan {
        scan(memory, BASE, SEED, u64::MAX)
    }

    const ALL: [State; 5] = [State::Committed; 5];

    #[test]
    fn a_chain_of_all_kinds_of_ranges() {
        let states = [
            State::Committed,
            State::Padding,
            State::Reserved,
            State::Committed,
        ];
        let (memory, at) = segment(1024, &states);
        let found = read(&memory);
        assert_eq!(
            (found.end, found.written_end, found.records),
            (at[4], at[4], 2)
        );
        assert_eq!(found.records_end, at[4]);
        assert_eq!(spots(&found), [(at[2], at[3], Damage::Unfinished)]);
        assert_eq!(found.spots[0].records_before, 1);
        assert_eq!((found.watermark, found.high_water_ms), (512, 30));
    }

    #[test]
    fn an_empty_segment_and_a_full_one() {
        let (memory, at) = segment(1024, &ALL);
        let full = scan(&memory, BASE, SEED, at[5]);
        assert_eq!((full.end, full.records), (at[5], 5));
        // The last record reaches behind the limit.
        let cut = scan(&memory, BASE, SEED, at[5] - 1);
        assert_eq!(spots(&cut), [(at[4], at[5] - 1, Damage::Length)]);
        let empty = read(&Memory::heap(1024));
        assert_eq!((empty.end, empty.written_end, empty.records), (512, 512, 0));
        for words in [0, 1, 511, 512] {
            let short = read(&Memory::heap(words));
            assert_eq!((short.end, short.records), (words as u64, 0));
        }
    }

    #[test]
    fn after_a_damaged_length_the_next_record_is_found() {
        let (memory, at) = segment(1024, &ALL);
        memory
            .word(at[1] as usize)
            .fetch_xor(1 << 20, Ordering::Relaxed);
        let found = read(&memory);
        assert_eq!(spots(&found), [(at[1], at[2], Damage::Length)]);
        assert_eq!((found.end, found.records), (at[5], 4));
    }

    #[test]
    fn after_a_bad_record_whose_length_is_good_the_walk_goes_on_at_once() {
        let (memory, at) = segment(1024, &ALL);
        memory
            .word(at[1] as usize + 5)
            .fetch_xor(1, Ordering::Relaxed);
        memory
            .word(at[2] as usize + 5)
            .fetch_xor(1, Ordering::Relaxed);
        let found = read(&memory);
        let expected = [
            (at[1], at[2], Damage::Checksum),
            (at[2], at[3], Damage::Checksum),
        ];
        assert_eq!(spots(&found), expected);
        assert_eq!(found.records, 3);
    }

    #[test]
    fn zeros_in_the_middle_are_told_from_the_end() {
        let (memory, at) = segment(1024, &ALL);
        for word in at[1]..at[3] - 2 {
            memory.word(word as usize).store(0, Ordering::Relaxed);
        }
        let found = read(&memory);
        assert_eq!(spots(&found), [(at[1], at[3], Damage::Zeros)]);
        assert_eq!((found.end, found.records), (at[5], 3));

        for word in at[3]..at[5] {
            memory.word(word as usize).store(0, Ordering::Relaxed);
        }
        // What is left of the third record proves nothing.
        let found = read(&memory);
        assert_eq!(spots(&found), []);
        assert_eq!(
            (found.end, found.written_end, found.records),
            (at[1], at[3], 1)
        );
    }

    #[test]
    fn unreadable_bytes_at_the_end_are_one_spot() {
        let (memory, at) = segment(1024, &ALL);
        memory
            .word(at[4] as usize)
            .fetch_xor(1 << 40, Ordering::Relaxed);
        let found = read(&memory);
        assert_eq!(spots(&found), [(at[4], found.written_end, Damage::Length)]);
        assert_eq!(found.end, found.written_end);
        assert!(found.end > at[4] + 10 && found.end <= at[5]);
    }

    #[test]
    fn a_record_of_another_place_is_damage_though_its_checksum_holds() {
        let (memory, at) = segment(1024, &ALL);
        let elsewhere = encode(&contents(b"so1", b"response"), BASE + at[1] + 1, SEED);
        memory.copy_in(at[1] as usize * 8, &elsewhere);
        let words = elsewhere.len() as u64 / 8;
        let word = word::encode(words, State::Committed, BASE + at[1], SEED);
        memory.word(at[1] as usize).store(word, Ordering::Relaxed);
        assert_eq!(spots(&read(&memory)), [(at[1], at[2], Damage::Misplaced)]);
    }

    #[test]
    fn another_segments_records_are_not_believed() {
        let (memory, _) = segment(1024, &ALL);
        for (base, seed) in [(BASE + 1024, SEED), (BASE, SEED + 1)] {
            let found = scan(&memory, base, seed, u64::MAX);
            assert_eq!((found.records, found.spots.len()), (0, 1));
            assert_eq!(found.watermark, 0);
        }
    }

    #[test]
    fn nothing_behind_the_limit_is_looked_at() {
        let (memory, at) = segment(1024, &ALL);
        memory
            .word(at[3] as usize)
            .store(u64::MAX, Ordering::Relaxed);
        let found = scan(&memory, BASE, SEED, at[3]);
        assert_eq!(
            (found.end, found.written_end, found.records),
            (at[3], at[3], 3)
        );
        assert_eq!(spots(&found), []);
    }
}
