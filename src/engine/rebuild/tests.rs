//! The index that an open rebuilds, from records in every order.

use super::*;
use crate::log::record::Contents;
use crate::log::record::tests::{contents, encode};
use crate::log::segment::FIRST_RECORD;
use crate::log::word::{self, State};
use crate::mem::Memory;
use crate::secret::INDEX;
use crate::sync::Ordering;

const BASE: u64 = 1 << 36;
const SEED: u64 = 7;

/// A segment that holds these records, one after the other.
fn segment(records: &[Contents<'_>]) -> Arc<Segment> {
    segment_at(0, BASE, records)
}

fn segment_at(number: u16, base: u64, records: &[Contents<'_>]) -> Arc<Segment> {
    let memory = Memory::heap(1024);
    let mut at = FIRST_RECORD;
    for contents in records {
        let bytes = encode(contents, base + at, SEED);
        memory.copy_in(at as usize * 8, &bytes);
        let word = word::encode(contents.words(), State::Committed, base + at, SEED);
        let first = memory.word(at as usize);
        first.store(word.to_le(), Ordering::Release);
        at += contents.words();
    }
    let name = String::from("a segment");
    Arc::new(Segment::new(number, base, SEED, name, None, memory, at))
}

/// The format says that the highest token counts, then the highest sequence. A store keeps a late
/// owner from writing behind a takeover; a log in which one did must not let it win.
#[test]
fn a_record_of_an_earlier_owner_does_not_count_wherever_it_stands() {
    let claim = |attempt| Contents {
        kind: Kind::Claim,
        token: 0,
        attempt,
        ended_ms: 0,
        deadline_ms: 0,
        principal: None,
        response: None,
        ..contents(b"abkey", b"")
    };
    let words = claim(1).words();
    let tokens = [BASE + FIRST_RECORD, BASE + FIRST_RECORD + words];
    for kind in [
        Kind::Complete,
        Kind::Release,
        Kind::Forget,
        Kind::Checkpoint,
    ] {
        let late = Contents {
            kind,
            token: tokens[0],
            attempt: 1,
            deadline_ms: if kind == Kind::Complete { u64::MAX } else { 0 },
            ..claim(1)
        };
        let segments = [segment(&[claim(1), claim(2), late])];
        let index = Index::new(1);
        let secret = HashSecret::derive(&[1; 32], INDEX);
        rebuild(&index, &secret, &segments, vec![None]).expect("whole records");
        let key = Key::new("a", "b", "key").expect("a key");
        let hash = key.hash_with(secret.bytes());
        let mut stripe = index.lock(hash);
        assert!(stripe.candidates(hash).is_empty(), "{kind:?}");
        let live = stripe.live(hash, &key).expect("a pending key");
        assert_eq!((live.token, live.attempt), (tokens[1], 2), "{kind:?}");
        assert_eq!(live.phase, Phase::Interrupted);
    }
}

fn completion(id: &'static [u8], token: u64) -> Contents<'static> {
    Contents {
        token,
        deadline_ms: u64::MAX,
        key_lengths: (1, 1, id.len() as u16 - 2),
        ..contents(id, b"response")
    }
}

/// The slot of each of these keys, by the offsets in words of the records.
fn places(index: &Index, secret: &HashSecret, ids: &[&str]) -> Vec<Vec<(u16, u64)>> {
    let of = |id: &&str| {
        let hash = Key::new("a", "b", id)
            .expect("a key")
            .hash_with(secret.bytes());
        let found = index.lock(hash).candidates(hash);
        let slots = found
            .first()
            .into_iter()
            .chain(found.more().iter().copied());
        slots.map(|slot| (slot.segment(), slot.offset())).collect()
    };
    ids.iter().map(of).collect()
}

/// The order of the files says nothing: the copy of an older record may stand in a newer file.
#[test]
fn of_several_segments_the_highest_token_counts() {
    let secret = HashSecret::derive(&[1; 32], INDEX);
    for stripes in [1, 2, 64] {
        let older = segment_at(
            0,
            BASE,
            &[completion(b"abone", BASE + 512), completion(b"abtwo", BASE)],
        );
        let newer = segment_at(1, BASE + 1024, &[completion(b"abone", BASE + 100)]);
        let last = segment_at(2, BASE + 2048, &[completion(b"abtwo", BASE + 2048)]);
        let index = Index::new(stripes);
        rebuild(
            &index,
            &secret,
            &[older, newer, last],
            vec![None, None, None],
        )
        .expect("rebuilt");
        let expected = [vec![(0, FIRST_RECORD)], vec![(2, FIRST_RECORD)], vec![]];
        assert_eq!(places(&index, &secret, &["one", "two", "three"]), expected);
    }
}

/// A key in two segments needs its records read. One that is damaged there could be anybody's.
#[test]
fn a_damaged_record_that_has_to_be_read_refuses_the_open() {
    let secret = HashSecret::derive(&[1; 32], INDEX);
    let older = segment_at(0, BASE, &[completion(b"abone", BASE)]);
    let newer = segment_at(1, BASE + 1024, &[completion(b"abone", BASE + 1024)]);
    let side_cars = [&older, &newer].map(|segment| side_cars::make(segment, &secret).ok());
    older.copy_in(FIRST_RECORD as usize * 8 + 100, b"damage");
    let index = Index::new(1);
    match rebuild(&index, &secret, &[older, newer], side_cars.into()) {
        Err(RecoverError::Corrupt(corruption)) => {
            assert_eq!(
                (corruption.offset, corruption.damage),
                (4096, Damage::Checksum)
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Every key comes into the stripe that its hash chooses, whatever the number of stripes.
#[test]
fn every_key_is_found_in_its_stripe() {
    let secret = HashSecret::derive(&[1; 32], INDEX);
    let ids: Vec<String> = (0..20).map(|number| format!("ab{number:02}")).collect();
    for stripes in [1, 2, 16, 32, 1024] {
        let records: Vec<_> = ids
            .iter()
            .map(|id| Contents {
                deadline_ms: u64::MAX,
                token: BASE,
                ..contents(id.as_bytes(), b"")
            })
            .map(|record| Contents {
                key_lengths: (1, 1, 2),
                ..record
            })
            .collect();
        let index = Index::new(stripes);
        let segment = segment(&records);
        rebuild(&index, &secret, &[segment], vec![None]).expect("rebuilt");
        let found = ids
            .iter()
            .map(|id| places(&index, &secret, &[&id[2..]])[0].len());
        assert_eq!(found.sum::<usize>(), 20, "{stripes} stripes");
        let counts = index
            .stripes()
            .map(|stripe| stripe.lock().completed_count());
        assert_eq!(counts.sum::<usize>(), 20);
    }
}
