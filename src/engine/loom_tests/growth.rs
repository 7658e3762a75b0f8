//! A stripe's table that grows: every key in it is found at every moment, and none is lost.

use super::*;

/// A table has room for so many before it grows for the first time.
const FULL: usize = 3;

fn keys() -> Vec<Key> {
    ["k", "l", "m", "n", "o"].map(key).to_vec()
}

/// A store whose stripe is full.
fn full() -> Arc<Store> {
    let store = Store::new(10);
    for key in &keys()[..FULL] {
        store.store(key, b"a");
    }
    store
}

#[test]
fn a_key_is_found_while_its_stripe_grows() {
    explore(2, || {
        let store = full();
        let grower = spawn(&store, |store| store.store(&keys()[FULL], b"a"));
        let reader = spawn(&store, |store| store.replay(&keys()[0]));
        assert_eq!(store.replay(&keys()[2]), b"a");
        grower.join().expect("stored");
        assert_eq!(reader.join().expect("found"), b"a");
        for key in &keys()[..=FULL] {
            assert_eq!(store.replay(key), b"a");
        }
        store.check_quiet(0);
    });
}

#[test]
fn two_complete_while_their_stripe_grows() {
    explore(2, || {
        let store = full();
        let other = spawn(&store, |store| store.store(&keys()[FULL], b"a"));
        store.store(&keys()[FULL + 1], b"a");
        other.join().expect("stored");
        for key in &keys() {
            assert_eq!(store.replay(key), b"a");
        }
        store.check_quiet(0);
    });
}

/// Two look at results while a third claims a key that makes the table of keys under way grow.
#[test]
fn an_owner_is_found_while_its_stripe_grows() {
    explore(2, || {
        let store = Store::new(8);
        let grants: Vec<_> = keys()[..FULL]
            .iter()
            .map(|key| match store.claim_key(key) {
                Outcome::Started(grant) => grant,
                other => panic!("{other:?}"),
            })
            .collect();
        let grower = spawn(&store, |store| is_granted(&store.claim_key(&keys()[FULL])));
        let claimant = spawn(&store, |store| is_granted(&store.claim_key(&keys()[1])));
        store.complete(&grants[0], b"a").expect("still held");
        assert!(grower.join().expect("answered"));
        assert!(!claimant.join().expect("answered"), "a second owner");
        store.check_quiet(FULL);
    });
}
