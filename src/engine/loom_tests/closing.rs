//! Closing, against everything that may be under way: claims, other closes, the last handle.

use super::*;

/// Closing lets transitions under way end, makes them durable, and refuses all others.
#[test]
fn a_close_waits_for_transitions_under_way() {
    explore(2, || {
        let store = Store::new(2);
        let claimant = spawn(&store, |store| {
            block_on(store.engine.claim(&store.request(BUFFERED)))
        });
        store.engine.close().expect("nothing fails");
        let durable = store.platters[0].durable_up_to();
        match claimant.join().expect("answered") {
            Ok(Outcome::Started(grant)) => {
                assert_eq!(durable, grant.token + RECORD_WORDS);
                assert!(matches!(
                    store.complete(&grant, b"a"),
                    Err(WriteError::Unavailable(Unavailable::Closed))
                ));
            }
            Err(ClaimError::Unavailable(Unavailable::Closed)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// Whoever closes finds the store closed and synced on return, also where somebody else does it.
#[test]
fn two_close_and_both_find_it_closed() {
    explore(3, || {
        let store = Store::new(2);
        let grant = store.start();
        let end = grant.token + RECORD_WORDS;
        let close = move |store: &Store| {
            store.engine.close().expect("nothing fails");
            assert!(store.engine.is_closed());
            // The platter is hidden from loom, the watermark is not.
            assert_eq!(store.engine.log.watermark(), end);
            assert_eq!(store.platters[0].durable_up_to(), end);
        };
        let other = spawn(&store, close);
        close(&store);
        other.join().expect("closed");
    });
}

/// The store goes with the last of its handles and guards, whichever that is, and is closed then.
#[test]
fn the_last_of_handle_and_guard_closes() {
    explore(3, || {
        let store = Store::new(2);
        let platter = Arc::clone(&store.platters[0]);
        let grant = store.start();
        let end = grant.token + RECORD_WORDS;
        let guard = crate::operation::Operation::new(Arc::clone(&store.engine), grant);
        // References are counted behind loom's back: this shows it that the order matters.
        let turn = Arc::new(sync::AtomicU64::new(0));
        let holders = Arc::clone(&turn);
        let holder = sync::spawn(move || {
            holders.fetch_add(1, sync::Ordering::AcqRel);
            drop(guard);
        });
        turn.fetch_add(1, sync::Ordering::AcqRel);
        drop(store);
        holder.join().expect("dropped");
        assert_eq!(platter.durable_up_to(), end);
    });
}

/// A completion on its way when the store is closed is stored, and durable when the close returns;
/// or it is refused, and its guard still holds the key.
#[test]
fn a_completion_is_stored_or_refused_at_a_close() {
    explore(3, || {
        let store = Store::new(2);
        let grant = store.start();
        let end = grant.token + 2 * RECORD_WORDS;
        let owner = spawn(&store, move |store| store.complete(&grant, b"a"));
        store.engine.close().expect("nothing fails");
        let durable = store.platters[0].durable_up_to();
        match owner.join().expect("answered") {
            Ok(()) => assert_eq!(durable, end),
            Err(WriteError::Unavailable(Unavailable::Closed)) => {
                assert_eq!(durable, end - RECORD_WORDS);
            }
            Err(other) => panic!("{other:?}"),
        }
    });
}
