use std::sync::Arc;

use super::*;
use crate::block::block_on;
use crate::clock::ManualClock;
use crate::fs::simulated::SimulatedDisk;
use crate::{Claim, KeyState, Options, Store};

const HOUR_MS: u64 = 60 * 60 * 1_000;

fn options(clock: &Arc<ManualClock>) -> Options {
    Options::new()
        .clock(Arc::clone(clock) as Arc<dyn crate::Clock>)
        .maintenance(false)
        .segment_size(64 << 10)
}

fn key() -> Key {
    Key::new("redis", "", "k").unwrap()
}

fn put(store: &Store, key: &Key, value: &'static [u8], left_ms: u64) -> u64 {
    let replaced = store.engine().replace(key, |_, now_ms| Next::Store {
        response: Bytes::from_static(value),
        deadline_ms: now_ms + left_ms,
    });
    block_on(replaced).unwrap()
}

fn value(store: &Store, key: &Key) -> Option<Vec<u8>> {
    match store.get(key).unwrap() {
        KeyState::Completed(saved) => Some(saved.by_scope().unwrap().response().unwrap().to_vec()),
        KeyState::Absent => None,
        other => panic!("{other:?}"),
    }
}

/// Writes until the segments with what was there before are given up.
fn give_up_the_log(store: &Store) {
    let filler = Key::new("other", "", "filler").unwrap();
    for _ in 0..5 {
        for _ in 0..40 {
            put(store, &filler, &[7; 4_000], HOUR_MS / 60);
        }
        store.maintain().unwrap();
    }
}

#[test]
fn a_value_is_set_replaced_and_removed() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let disk = SimulatedDisk::new();
    let store = options(&clock).open_simulated(&disk).unwrap();
    put(&store, &key(), b"one", HOUR_MS);
    assert_eq!(value(&store, &key()).as_deref(), Some(&b"one"[..]));
    put(&store, &key(), b"two", 2 * HOUR_MS);
    assert_eq!(value(&store, &key()).as_deref(), Some(&b"two"[..]));
    assert_eq!(store.stats().completed_keys, 1);
    block_on(store.engine().replace(&key(), |_, _| Next::Remove)).unwrap();
    assert_eq!(value(&store, &key()), None);
    let stats = store.stats();
    assert_eq!((stats.completed_keys, stats.pending_keys), (0, 0));
}

#[test]
fn a_claimed_key_is_left_to_its_owner() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let store = options(&clock)
        .open_simulated(&SimulatedDisk::new())
        .unwrap();
    let Claim::Started(owner) = store.claim(&key(), Fingerprint::none()).unwrap() else {
        panic!("the key was free")
    };
    let refused = block_on(store.engine().replace(&key(), |_, _| Next::Remove));
    assert!(matches!(refused, Err(ReplaceError::Claimed { attempt: 1 })));
    owner.complete(b"done").unwrap();
    assert_eq!(value(&store, &key()).as_deref(), Some(&b"done"[..]));
}

/// A crash at any moment leaves the old value or the new one.
#[test]
fn a_crash_leaves_one_of_both_values() {
    for seed in 0..40 {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let disk = SimulatedDisk::new();
        let store = options(&clock).open_simulated(&disk).unwrap();
        put(&store, &key(), b"old", HOUR_MS);
        store.flush().unwrap();
        put(&store, &key(), b"new", HOUR_MS / 2);
        let image = disk.crash_random(seed);
        let store = options(&clock).open_simulated(&image).unwrap();
        let found = value(&store, &key()).expect("a value that was durable is gone");
        assert!(found == b"old" || found == b"new");
    }
}

/// A result that maintenance had copied must not answer again when one that took its place, and was to
/// be kept for less time, has expired or was removed.
#[test]
fn a_shorter_life_hides_what_it_took_the_place_of() {
    for ending in ["expired", "removed", "claimed", "set again"] {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let disk = SimulatedDisk::new();
        let store = options(&clock).open_simulated(&disk).unwrap();
        put(&store, &key(), b"long", 1_000 * HOUR_MS);
        // What is copied into the same file keeps it from being given up with what it hides.
        for number in 0..30 {
            let other = Key::new("redis", "", format!("other {number}")).unwrap();
            put(&store, &other, &[7; 1_000], 1_000 * HOUR_MS);
        }
        give_up_the_log(&store);
        put(&store, &key(), b"short", HOUR_MS);
        if ending == "removed" {
            block_on(store.engine().replace(&key(), |_, _| Next::Remove)).unwrap();
        } else {
            clock.advance(std::time::Duration::from_millis(2 * HOUR_MS));
        }
        if ending == "claimed" {
            let Claim::Started(owner) = store.claim(&key(), Fingerprint::none()).unwrap() else {
                panic!("it had expired")
            };
            owner.release().unwrap();
        }
        if ending == "set again" {
            put(&store, &key(), b"again", HOUR_MS);
            clock.advance(std::time::Duration::from_millis(2 * HOUR_MS));
        }
        for _ in 0..3 {
            give_up_the_log(&store);
            assert_eq!(value(&store, &key()), None, "{ending}");
        }
        store.close().unwrap();
        drop(store);
        let store = options(&clock).open_simulated(&disk).unwrap();
        assert_eq!(value(&store, &key()), None, "{ending}, opened again");
    }
}

#[test]
fn a_scan_meets_every_key_once() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let store = options(&clock)
        .stripes(4)
        .open_simulated(&SimulatedDisk::new())
        .unwrap();
    for number in 0..500 {
        let key = Key::new("redis", "", format!("k{number}")).unwrap();
        put(&store, &key, b"", HOUR_MS);
    }
    for count in [1, 7, 100, 10_000] {
        let (mut cursor, mut met) = (0, Vec::new());
        loop {
            let scanned = store.engine().scan(cursor, count, |record| {
                met.push(record.key.to_vec());
            });
            cursor = scanned.unwrap();
            if cursor == 0 {
                break;
            }
        }
        met.sort_unstable();
        let all = met.len();
        met.dedup();
        assert_eq!((all, met.len()), (500, 500), "{count} at once");
    }
}
