//! Readers, which hold a segment and no lock, against everything that happens to it: it is rolled
//! over, synced, closed, cut, and given up by its store. A segment of these models that is reached
//! after its map was given back, or behind the end of its file, fails as the process would.

use super::*;

/// Room for one operation in each segment.
fn two_segments() -> Arc<Store> {
    Store::with(&[2, 2], Options::new().stripes(1))
}

/// The segment is full, and done with as soon as it is durable.
#[test]
fn a_response_is_read_while_its_segment_is_done_with() {
    explore(2, || {
        let store = two_segments();
        store.store(&store.key, b"a");
        let reader = spawn(&store, |store| store.replay(&store.key));
        let request = Request {
            key: Cow::Owned(key("l")),
            ..store.request(SYNC)
        };
        let claimed = block_on(store.engine.claim(&request)).expect("nothing fails");
        assert!(is_granted(&claimed));
        assert_eq!(reader.join().expect("answered"), b"a");
        // What was done with is durable: the next sync leaves it out.
        assert_eq!(store.platters[0].durable_up_to(), store.segment_end(0));
    });
}

/// A completion rolls over while others look the key up.
#[test]
fn a_key_is_found_across_a_roll_over() {
    explore(2, || {
        let store = Store::with(&[1, 2], Options::new().stripes(1));
        let grant = store.start();
        let reader = spawn(&store, |store| match store.claim() {
            Outcome::InProgress(_) => {}
            Outcome::Completed(stored) => assert_eq!(response_of(&stored), b"a"),
            other => panic!("{other:?}"),
        });
        store.complete(&grant, b"a").expect("still held");
        reader.join().expect("answered");
        assert_eq!(store.replay(&store.key), b"a");
        store.check_quiet(0);
    });
}

/// A response is read while the store is closed, and after it.
#[test]
fn a_response_outlives_a_close() {
    explore(3, || {
        let store = Store::new(2);
        store.store(&store.key, b"a");
        let reader = spawn(&store, |store| {
            let claimed = block_on(store.engine.claim(&store.request(BUFFERED)));
            match claimed {
                Ok(Outcome::Completed(stored)) => assert_eq!(response_of(&stored), b"a"),
                Err(ClaimError::Unavailable(Unavailable::Closed)) => {}
                other => panic!("{other:?}"),
            }
        });
        store.engine.close().expect("nothing fails");
        reader.join().expect("answered");
    });
}

/// The last handle of the store goes while a response is still held.
#[test]
fn a_response_outlives_its_store() {
    explore(3, || {
        let store = Store::new(2);
        store.store(&store.key, b"a");
        let Outcome::Completed(stored) = store.claim() else {
            panic!("it is completed")
        };
        let holder = sync::spawn(move || {
            assert_eq!(response_of(&stored), b"a");
            assert_eq!(response_of(&stored), b"a");
        });
        drop(store);
        holder.join().expect("read");
    });
}

/// The answer to a completion points into a segment that others may be done with by then.
#[test]
fn the_own_answer_outlives_a_roll_over_and_a_sync() {
    explore(2, || {
        let store = two_segments();
        let grant = store.start();
        let other = spawn(&store, |store| {
            let request = Request {
                key: Cow::Owned(key("l")),
                ..store.request(SYNC)
            };
            let claimed = block_on(store.engine.claim(&request)).expect("nothing fails");
            assert!(is_granted(&claimed));
        });
        let finished = block_on(store.engine.finish(&grant, completion(b"a"), BUFFERED));
        let stored = finished.map_err(|refusal| refusal.error);
        let stored = stored.expect("still held").expect("completed");
        other.join().expect("claimed");
        assert_eq!(response_of(&stored), b"a");
    });
}
