//! Reservation in one segment: ranges are disjoint, none is hidden, and what is committed is whole.

use super::*;
use crate::log::append::{Appender, Reservation};
use crate::log::segment::Attempt;
use crate::sync::explore;
use loom::thread;

/// Takes a range, fills it with a byte that tells its length, and commits it. What a writer has
/// committed it finds by walking, whatever others have begun in front of it.
fn write(segment: &Segment, words: u64) -> u64 {
    let Attempt::Reserved(offset) = segment.try_reserve(words) else {
        panic!("there is room for all")
    };
    segment.copy_in(offset as usize * 8 + 8, &contents(words));
    segment.finish(offset, words, State::Committed);
    let own = (offset - FIRST_RECORD, words, State::Committed);
    assert!(walk(segment).contains(&own), "hidden");
    offset
}

fn contents(words: u64) -> Vec<u8> {
    vec![0xA0 + words as u8; (words as usize - 1) * 8]
}

/// Walks the chain; a record that is seen committed must be seen whole.
fn read(segment: &Segment) -> Vec<Range> {
    let ranges = walk(segment);
    for (offset, words, state) in &ranges {
        if *state == State::Committed {
            let start = (FIRST_RECORD + offset) as usize * 8 + 8;
            let expected = contents(*words);
            assert_eq!(segment.bytes(start, expected.len()), expected);
        }
    }
    ranges
}

#[test]
fn two_writers_and_a_reader() {
    explore(3, || {
        let segment = segments(&[5]).0.remove(0);
        let writers = [2, 3].map(|words| {
            let segment = Arc::clone(&segment);
            thread::spawn(move || write(&segment, words))
        });
        read(&segment);
        let offsets = writers.map(|writer| writer.join().expect("written"));
        assert_ne!(offsets[0], offsets[1]);
        let ranges = read(&segment);
        assert!(ranges.iter().all(|range| range.2 == State::Committed));
        assert_eq!(ranges.len(), 2);
        assert_eq!(segment.tail(), segment.end());
    });
}

/// With less room than is wanted: one of them learns where the chain ends, exactly.
#[test]
fn three_writers_for_the_room_of_two() {
    explore(3, || {
        let segment = segments(&[5]).0.remove(0);
        let reserve = |words| {
            let segment = Arc::clone(&segment);
            move || match segment.try_reserve(words) {
                Attempt::Reserved(offset) => {
                    segment.finish(offset, words, State::Committed);
                    Some(words)
                }
                Attempt::NoRoom { offset, remainder } => {
                    assert_eq!(offset + remainder, segment.words());
                    assert!(remainder < words);
                    None
                }
            }
        };
        let others = [thread::spawn(reserve(2)), thread::spawn(reserve(2))];
        let mut taken = vec![reserve(2)()];
        taken.extend(others.map(|other| other.join().expect("tried")));
        let taken: u64 = taken.into_iter().flatten().sum();
        assert_eq!(taken, 4);
        assert_eq!(reserved_words(&segment), taken);
    });
}

/// A writer that gives up in the middle leaves padding, not a hole that nobody gets past.
#[test]
fn a_dropped_reservation_becomes_padding() {
    explore(3, || {
        let (mut made, _) = segments(&[5]);
        let segment = made.remove(0);
        let appender = Arc::new(Appender::new(Arc::clone(&segment), 3, 0));
        let act = |words, end: fn(Reservation)| {
            let appender = Arc::clone(&appender);
            move || {
                assert!(appender.space().try_take(words));
                let reservation = appender.reserve(words).expect("it was promised");
                reservation
                    .segment()
                    .copy_in(reservation.byte_offset() + 8, &contents(words));
                end(reservation);
            }
        };
        let other = thread::spawn(act(2, drop));
        // The slop is given back by the one who fills the segment.
        appender.space().give_back(3);
        act(3, |reservation| {
            reservation.commit();
        })();
        read(&segment);
        other.join().expect("dropped");
        let mut ends: Vec<_> = read(&segment)
            .iter()
            .map(|range| (range.1, range.2))
            .collect();
        ends.sort_by_key(|(words, _)| *words);
        assert_eq!(ends, [(2, State::Padding), (3, State::Committed)]);
    });
}
