//! Results that maintenance moves, against those who use and remove them.

use super::*;
use crate::domain::Domain;
use crate::engine::Forgotten;
use crate::index::Slot;
use crate::log::record::{Contents, Kind};

/// A result in the first segment, with a copy in the second: where it stands, and where the copy.
fn copied(store: &Store) -> (u64, Slot, Slot) {
    store.store(&store.key, b"a");
    let hash = store.engine.hash(&store.key);
    let old = store.engine.index.lock(hash).candidates(hash).first();
    let old = old.expect("completed");
    let located = store.engine.locate_slot(old);
    let (_, record, words) = located.record().expect("whole");
    let copy = Contents {
        kind: Kind::Complete,
        domain: Domain::Operations,
        is_dead: false,
        fingerprint: record.fingerprint,
        token: record.token,
        ticket: record.ticket,
        attempt: record.attempt,
        created_ms: record.created_ms,
        started_ms: record.started_ms,
        ended_ms: record.ended_ms,
        deadline_ms: record.deadline_ms,
        key: record.key,
        key_lengths: record.key_lengths,
        principal: None,
        checkpoint: &[],
        response: record.response,
        attached: &[],
    };
    assert!(store.engine.log.try_room(words));
    let copy = store.engine.log.append(&copy).expect("room");
    assert_eq!(copy.segment, 1);
    (hash, old, Slot::new(hash, copy.segment, copy.offset))
}

fn two_segments() -> Arc<Store> {
    Store::with(&[2, 3], Options::new().stripes(1))
}

/// Whoever looks finds it, in one place or the other.
#[test]
fn a_result_is_found_while_it_is_moved() {
    explore(3, || {
        let store = two_segments();
        let (hash, old, new) = copied(&store);
        let reader = spawn(&store, |store| store.replay(&store.key));
        assert!(store.engine.move_slot(hash, old, new));
        store.engine.log.segments().remove(0);
        assert_eq!(reader.join().expect("answered"), b"a");
        assert_eq!(store.replay(&store.key), b"a");
        store.check_quiet(0);
    });
}

/// A removal is a removal, whether the result was moved before it, during it or not at all.
#[test]
fn a_result_is_moved_or_removed() {
    explore(3, || {
        let store = two_segments();
        let (hash, old, new) = copied(&store);
        let other = spawn(&store, |store| {
            block_on(store.engine.forget(&store.key, true, BUFFERED))
        });
        store.engine.move_slot(hash, old, new);
        let forgotten = other.join().expect("answered").expect("nothing fails");
        assert_eq!(forgotten, Forgotten::Removed);
        assert!(store.engine.index.lock(hash).candidates(hash).is_empty());
        store.check_quiet(0);
    });
}
