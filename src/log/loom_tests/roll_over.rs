//! Roll-over: records that do not fit, exact fits, races to pad; and the account of free words.

use super::*;
use crate::log::append::Appender;
use crate::sync::explore;
use loom::thread;

/// An appender over segments with so much room each, the first of them active.
fn appender(rooms: &[u64], slop: u64) -> Arc<Appender> {
    let (mut made, _) = segments(rooms);
    let appender = Appender::new(made.remove(0), slop, 0);
    for segment in made {
        appender.offer(segment);
    }
    Arc::new(appender)
}

/// Appends a record if room for it can be promised, and says whether it was.
fn append(appender: &Appender, words: u64) -> bool {
    if !appender.space().try_take(words) {
        return false;
    }
    match appender.reserve(words) {
        Ok(reservation) => {
            reservation.commit();
            true
        }
        Err(_) => {
            assert!(words > appender.space().slop(), "a promise is a promise");
            appender.space().give_back(words);
            false
        }
    }
}

/// What must hold when nobody is in the middle of anything.
fn check(appender: &Appender) {
    let chain = appender.chain();
    for replaced in &chain[..chain.len() - 1] {
        let room = replaced.words() - FIRST_RECORD;
        assert_eq!(
            reserved_words(replaced),
            room,
            "replaced before it was full"
        );
    }
    let active = appender.active();
    let left = active.words() - FIRST_RECORD - reserved_words(&active);
    let ready: Vec<u64> = appender
        .take_ready()
        .iter()
        .map(|segment| segment.words() - FIRST_RECORD)
        .collect();
    let slop = appender.space().slop() as i64;
    // A segment counts until it is full.
    let open = ready.iter().chain((left > 0).then_some(&left));
    let expected: i64 = open.map(|words| *words as i64 - slop).sum();
    assert_eq!(
        appender.space().balance(),
        expected,
        "{left} left, {ready:?} ready"
    );
}

fn records_in_chain(appender: &Appender) -> usize {
    let chain = appender.chain();
    let ranges = chain.iter().flat_map(|segment| walk(segment));
    ranges.filter(|range| range.2 == State::Committed).count()
}

/// Threads that append records of these sizes, the last of which is this one; how many were.
fn race(appender: &Arc<Appender>, sizes: &[u64]) -> usize {
    let (own, others) = sizes.split_last().expect("at least one");
    let others: Vec<_> = others
        .iter()
        .map(|words| {
            let (appender, words) = (Arc::clone(appender), *words);
            thread::spawn(move || append(&appender, words))
        })
        .collect();
    let own = usize::from(append(appender, *own));
    let others = others.into_iter().map(|other| other.join().expect("tried"));
    own + others.filter(|appended| *appended).count()
}

/// Runs a race and checks what is left.
fn explore_race(rooms: &'static [u64], slop: u64, sizes: &'static [u64], appended: usize) {
    explore(2, move || {
        let appender = appender(rooms, slop);
        assert_eq!(race(&appender, sizes), appended);
        assert_eq!(records_in_chain(&appender), appended);
        check(&appender);
    });
}

/// One fits, two do not: both pad what is left, one of them wins, one of them rolls over.
#[test]
fn two_race_to_pad_and_to_roll_over() {
    explore_race(&[4, 11], 3, &[3, 3, 3], 3);
}

#[test]
fn a_record_that_fits_exactly_closes_the_segment() {
    explore_race(&[6, 9], 3, &[3, 3, 3], 3);
}

/// The rest is too small for one, who wants to pad it, and large enough for the other.
#[test]
fn a_small_record_takes_the_rest_before_it_is_padded() {
    explore_race(&[4, 9], 3, &[3, 1, 2], 3);
}

#[test]
fn nothing_is_left_to_pad() {
    explore_race(&[2, 4, 6], 2, &[2, 2, 2], 3);
}

/// A record above the slop pays for what it leaves behind, or is refused.
#[test]
fn a_large_record_pays_for_the_rest_or_is_refused() {
    explore(2, || {
        let appender = appender(&[5, 8], 1);
        let appended = race(&appender, &[4, 3, 3]);
        assert_eq!(records_in_chain(&appender), appended);
        check(&appender);
    });
}

/// More is wanted than there is: whoever got a promise finds room, whoever did not changes nothing.
#[test]
fn only_what_was_promised_is_appended() {
    explore(2, || {
        let appender = appender(&[4, 5], 2);
        let appended = race(&appender, &[2, 2, 2]);
        assert!(appended >= 2, "two promises of two words were free");
        assert_eq!(records_in_chain(&appender), appended);
        check(&appender);
    });
}

/// Opened on a full disk: the first segment begins where the placeholder does.
#[test]
fn the_first_segment_replaces_a_placeholder_once() {
    explore(2, || {
        let (segments, _) = segments(&[4, 4]);
        let placeholder = Segment::placeholder(BASE);
        let appender = Arc::new(Appender::new(Arc::new(placeholder), 1, 0));
        for segment in segments {
            appender.offer(segment);
        }
        assert_eq!(race(&appender, &[1, 1, 1]), 3);
        assert_eq!(records_in_chain(&appender), 3);
        check(&appender);
    });
}

/// A segment is offered while a record waits for room in it.
#[test]
fn room_is_promised_as_soon_as_a_segment_is_offered() {
    explore(2, || {
        let (mut segments, _) = segments(&[2, 4]);
        let appender = Arc::new(Appender::new(segments.remove(0), 1, 0));
        assert!(append(&appender, 1));
        let preparer = {
            let appender = Arc::clone(&appender);
            thread::spawn(move || appender.offer(segments.remove(0)))
        };
        let appended = race(&appender, &[1, 1]);
        preparer.join().expect("offered");
        assert_eq!(records_in_chain(&appender), 1 + appended);
        check(&appender);
    });
}
