//! A key for the next system: the same for every attempt of one operation, and of no other.

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use oncekey::{Fingerprint, Key, Recovery, Store};

use support::*;

fn of(store: &Store, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
    let operation = owned(store.claim(key, fingerprint).expect("a claim"));
    let downstream = operation.downstream_key(label);
    assert_eq!(operation.downstream_key(label), downstream);
    operation.release().expect("a release");
    downstream
}

#[test]
fn it_is_the_same_for_every_attempt_and_over_every_restart() {
    for mode in modes() {
        let (directory, mut store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let first = started(mode.claim(&store, &key, request()));
        let downstream = first.downstream_key("charge");
        assert_eq!(downstream.len(), 32);
        assert!(downstream.bytes().all(|byte| byte.is_ascii_hexdigit()));
        drop(first);
        for attempt in 2..6 {
            let copy = killed(&store);
            let operation = interrupted(mode.claim(&store, &key, request()));
            assert_eq!(operation.attempt(), attempt);
            assert_eq!(operation.downstream_key("charge"), downstream, "{mode:?}");
            drop(operation);
            store.close().expect("closes");
            // Also in a copy that is put back elsewhere.
            let restored = mode
                .options()
                .clock(Arc::new(clock.clone()))
                .restored(true)
                .open(copy.path())
                .expect("opens");
            let operation = interrupted(mode.claim(&restored, &key, request()));
            assert_eq!(operation.downstream_key("charge"), downstream);
            drop(operation);
            store = mode.reopen(&directory, &clock);
        }
    }
}

#[test]
fn it_is_the_same_after_meta_was_lost_and_made_anew() {
    let (directory, store) = buffered();
    let key = key("k-1");
    let operation = started(store.claim(&key, request()).expect("a claim"));
    let downstream = operation.downstream_key("charge");
    drop((operation, store));
    std::fs::remove_file(directory.path().join("META")).expect("removed");
    let store = small(oncekey::Durability::Buffered)
        .recovery(Recovery::Salvage)
        .open(directory.path())
        .expect("salvages");
    assert!(store.recovery_report().meta_rebuilt);
    let operation = interrupted(store.claim(&key, request()).expect("a claim"));
    assert_eq!(operation.downstream_key("charge"), downstream);
}

#[test]
fn it_is_another_for_every_label_key_and_request() {
    let (_directory, store) = buffered();
    let keys = [
        ("acct_1", "charge", "k-1"),
        ("acct_1", "charge", "k-2"),
        ("acct_2", "charge", "k-1"),
        ("acct_1", "refund", "k-1"),
        // Alike when joined.
        ("acct_1", "chargek", "-1"),
        ("acct_1c", "harge", "k-1"),
        ("", "acct_1charge", "k-1"),
    ];
    let fingerprints = [
        request(),
        other_request(),
        Fingerprint::none(),
        Fingerprint::builder().part(b"x").finish(),
    ];
    let labels = ["", "charge", "charge ", "refund", "k-1"];
    let mut seen = HashSet::new();
    for (scope, operation, id) in keys {
        let key = Key::new(scope, operation, id).expect("a key");
        for fingerprint in fingerprints {
            for label in labels {
                let downstream = of(&store, &key, fingerprint, label);
                assert!(seen.insert(downstream), "{key} {fingerprint:?} {label:?}");
            }
        }
    }
}

#[test]
fn a_label_that_continues_the_id_is_not_taken_for_it() {
    let (_directory, store) = buffered();
    let one = of(&store, &key("k-1"), request(), "23");
    let other = of(&store, &key("k-123"), request(), "");
    assert_ne!(one, other);
}

#[test]
fn it_is_another_in_every_store() {
    let (_one_directory, one) = buffered();
    let (_other_directory, other) = buffered();
    let key = key("k-1");
    assert_ne!(
        of(&one, &key, request(), "charge"),
        of(&other, &key, request(), "charge")
    );
}

#[test]
fn a_key_used_again_for_the_same_request_after_its_retention_gives_the_same() {
    let (_directory, store, clock) = buffered_and_clock();
    let key = key("k-1");
    let operation = started(store.claim(&key, request()).expect("a claim"));
    let downstream = operation.downstream_key("charge");
    operation.complete(b"paid").expect("a completion");
    clock.advance(std::time::Duration::from_secs(24 * 3_600));
    assert_eq!(of(&store, &key, request(), "charge"), downstream);
}
