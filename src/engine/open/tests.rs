//! The index that an open rebuilds, from records in every order.

use super::*;
use crate::log::record::Contents;
use crate::log::record::tests::{contents, encode};
use crate::log::segment::FIRST_RECORD;
use crate::log::word::{self, State};
use crate::mem::Memory;
use crate::sync::Ordering;

const BASE: u64 = 1 << 36;
const SEED: u64 = 7;

/// A segment that holds these records, one after the other.
fn segment(records: &[Contents<'_>]) -> Arc<Segment> {
    let memory = Memory::heap(1024);
    let mut at = FIRST_RECORD;
    for contents in records {
        let bytes = encode(contents, BASE + at, SEED);
        memory.copy_in(at as usize * 8, &bytes);
        let word = word::encode(contents.words(), State::Committed, BASE + at, SEED);
        let first = memory.word(at as usize);
        first.store(word.to_le(), Ordering::Release);
        at += contents.words();
    }
    let name = String::from("a segment");
    Arc::new(Segment::new(0, BASE, SEED, name, None, memory, at))
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
        let mut builder = Builder {
            index: &index,
            secret: &secret,
            segments: &segments,
        };
        builder.apply_segment(&segments[0]).expect("whole records");
        let key = Key::new("a", "b", "key").expect("a key");
        let hash = key.hash_with(secret.bytes());
        let mut stripe = index.lock(hash);
        assert!(stripe.candidates(hash).is_empty(), "{kind:?}");
        let live = stripe.live(hash, &key).expect("a pending key");
        assert_eq!((live.token, live.attempt), (tokens[1], 2), "{kind:?}");
        assert_eq!(live.phase, Phase::Interrupted);
    }
}
