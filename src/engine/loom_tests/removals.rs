//! Removals by an operator, and notes of the owner, against the end of the operation.

use super::*;
use crate::engine::Forgotten;
use crate::error::AdminError;

fn forget(store: &Store) -> Result<Forgotten, AdminError> {
    block_on(store.engine.forget(&store.key, true, BUFFERED))
}

/// A forced removal and a completion: whoever is second finds what the first has done, and the key is
/// gone.
#[test]
fn a_forced_removal_fences_its_owner() {
    explore(3, || {
        let store = Store::new(4);
        let grant = store.start();
        let owner = spawn(&store, move |store| store.complete(&grant, b"a"));
        let forgotten = forget(&store).expect("nothing fails");
        assert_eq!(forgotten, Forgotten::Removed);
        assert!(matches!(
            owner.join().expect("answered"),
            Ok(()) | Err(WriteError::LeaseLost { .. })
        ));
        store.check_quiet(0);
        assert!(matches!(store.claim(), Outcome::Started(_)));
    });
}

/// Two remove one result: it is removed once.
#[test]
fn a_result_is_removed_once() {
    explore(3, || {
        let store = Store::new(4);
        store.store(&store.key, b"a");
        let other = spawn(&store, forget);
        let mut forgotten = [forget(&store), other.join().expect("answered")]
            .map(|forgotten| forgotten.expect("nothing fails"));
        forgotten.sort_by_key(|forgotten| *forgotten == Forgotten::Removed);
        assert_eq!(forgotten, [Forgotten::Absent, Forgotten::Removed]);
        store.check_quiet(0);
    });
}

/// A result is removed while it is claimed: the claimer gets it, or starts afresh.
#[test]
fn a_result_is_removed_or_replayed() {
    explore(3, || {
        let store = Store::new(4);
        store.store(&store.key, b"a");
        let other = spawn(&store, forget);
        let pending = match store.claim() {
            Outcome::Completed(stored) => {
                assert_eq!(response_of(&stored), b"a");
                0
            }
            Outcome::Started(_) => 1,
            other => panic!("{other:?}"),
        };
        // Forced, it takes what was started afresh as well.
        let forgotten = other.join().expect("answered").expect("nothing fails");
        assert_eq!(forgotten, Forgotten::Removed);
        store.check_quiet(pending);
    });
}

/// An owner writes a note while an operator takes the key: it is interrupted in the end, whoever was
/// first.
#[test]
fn a_checkpoint_does_not_undo_an_interruption() {
    explore(3, || {
        let store = Store::new(4);
        let mut grant = store.start();
        let token = grant.token;
        let owner = spawn(&store, move |store| {
            block_on(store.engine.checkpoint(&mut grant, b"n", BUFFERED))
        });
        block_on(store.engine.interrupt(&store.key, token)).expect("it was held");
        assert!(matches!(
            owner.join().expect("answered"),
            Ok(()) | Err(WriteError::LeaseLost { .. })
        ));
        let taken = store.claim();
        assert!(matches!(&taken, Outcome::Interrupted(grant) if grant.attempt == 2));
        store.check_quiet(1);
    });
}
