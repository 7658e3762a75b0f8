//! An owner that is gone without a word leaves its key interrupted, at once: never stuck, never
//! silently free, and the next one is told.

mod support;

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use oncekey::{AdminError, Claim, Durability, Forget, KeyState, Lease, Store, Token};

use support::*;

#[test]
fn a_guard_dropped_in_a_panic_leaves_its_checkpoint_to_the_next_claimer_at_once() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let began = store.now();
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut operation = started(mode.claim(&store, &key, request()));
            mode.checkpoint(&mut operation, b"charge ch_1 requested")
                .expect("a checkpoint");
            panic!("the handler panics, as this test wants it to");
        }));
        assert!(panicked.is_err());
        clock.advance(ms(5));
        // The same clock tick would do: nothing has to run out.
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(operation.attempt(), 2, "{mode:?}");
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.attempt, 1);
        assert_eq!(previous.started_at, began);
        let checkpoint = previous.checkpoint.expect("a checkpoint");
        assert_eq!(&checkpoint[..], b"charge ch_1 requested");
        assert_eq!(operation.last_checkpoint(), Some(&checkpoint));
        assert_eq!(operation.created_at(), began);
        assert_eq!(operation.started_at(), began + ms(5));
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(saved.attempt(), 2);
    }
}

#[test]
fn an_early_return_interrupts() {
    fn handler(store: &Store) -> Result<(), std::num::ParseIntError> {
        let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let amount: u32 = "not a number".parse()?;
        operation.complete(amount.to_le_bytes()).expect("unreached");
        Ok(())
    }
    let (_directory, store) = buffered();
    assert!(handler(&store).is_err());
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

#[test]
fn a_thread_that_dies_with_its_guard_interrupts() {
    let (_directory, store) = buffered();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let thread = std::thread::spawn(move || {
        let _held = operation;
        panic!("the thread panics, as this test wants it to");
    });
    assert!(thread.join().is_err());
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

#[test]
fn a_completion_that_is_never_committed_interrupts() {
    let (_directory, store) = buffered();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(operation.complete_with(b"paid").principal("alice"));
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

#[test]
fn a_killed_process_leaves_its_keys_interrupted_whatever_their_leases_say() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let (plain, leased) = (key("plain"), key("leased"));
        let mut first = started(mode.claim(&store, &plain, request()));
        mode.checkpoint(&mut first, b"half way")
            .expect("a checkpoint");
        let year = Duration::from_secs(365 * 24 * 3_600);
        let options = oncekey::ClaimOptions::new().lease(Lease::For(year));
        let claim = mode.claim_with(&store, &leased, request(), options);
        let second = started(claim.expect("a claim"));
        let tokens = (first.token(), second.token());
        let copy = killed(&store);
        let after = mode.reopen(&copy, &clock);
        assert_eq!(after.recovery_report().interrupted, 2);
        assert_eq!(after.interrupted().expect("a list").len(), 2);
        let first = interrupted(mode.claim(&after, &plain, request()));
        let second = interrupted(mode.claim(&after, &leased, request()));
        let previous = first.previous().expect("an attempt before");
        assert_eq!((first.attempt(), second.attempt()), (2, 2), "{mode:?}");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
        assert_eq!(second.previous().expect("before").checkpoint, None);
        assert!(first.token() > tokens.0 && first.token() > tokens.1);
    }
}

#[test]
fn a_closed_store_leaves_its_keys_interrupted() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        store.close().expect("closes");
        drop((operation, store));
        let store = mode.options().open(directory.path()).expect("reopens");
        assert_eq!(
            interrupted(mode.claim(&store, &key, request())).attempt(),
            2
        );
    }
}

#[test]
fn every_takeover_is_one_more_attempt_also_across_restarts() {
    for mode in modes() {
        let (directory, mut store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let created_at = store.now();
        let mut newest = Token::from_u64(0);
        drop(started(mode.claim(&store, &key, request())));
        for attempt in 2..=9 {
            clock.advance(ms(10));
            let before = store.now();
            let operation = interrupted(mode.claim(&store, &key, request()));
            assert_eq!(operation.attempt(), attempt, "{mode:?}");
            let previous = operation.previous().expect("an attempt before");
            assert_eq!(previous.attempt, attempt - 1);
            assert_eq!(operation.created_at(), created_at);
            assert!(operation.started_at() >= before);
            assert!(operation.token() > newest);
            newest = operation.token();
            match attempt % 3 {
                0 => drop(operation),
                1 => {
                    let copy = killed(&store);
                    drop((operation, store));
                    copy_over(&copy, &directory);
                    store = mode.reopen(&directory, &clock);
                }
                _ => {
                    store.close().expect("closes");
                    drop((operation, store));
                    store = mode.reopen(&directory, &clock);
                }
            }
        }
        let operation = interrupted(mode.claim(&store, &key, request()));
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(saved.attempt(), 10);
        assert_eq!(saved.created_at(), created_at);
    }
}

/// Puts the files of a killed process in the place of those it would have left by closing.
fn copy_over(from: &tempfile::TempDir, to: &tempfile::TempDir) {
    for entry in std::fs::read_dir(to.path()).expect("a list") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    copy_directory(from.path(), to.path());
}

#[test]
fn the_newest_checkpoint_of_any_attempt_is_handed_on() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let mut operation = started(mode.claim(&store, &key, request()));
        assert_eq!(operation.last_checkpoint(), None);
        for note in ["one", "two"] {
            mode.checkpoint(&mut operation, note).expect("a checkpoint");
            let last = operation.last_checkpoint().map(|note| &note[..]);
            assert_eq!(last, Some(note.as_bytes()));
        }
        drop(operation);
        // An attempt that notes nothing passes on what it was given.
        drop(interrupted(mode.claim(&store, &key, request())));
        let operation = interrupted(mode.claim(&store, &key, request()));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"two"[..]));
        drop((operation, store));
        let store = mode.options().open(directory.path()).expect("reopens");
        let mut operation = interrupted(mode.claim(&store, &key, request()));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"two"[..]));
        let longest = vec![b'x'; 4_096];
        mode.checkpoint(&mut operation, &longest)
            .expect("a checkpoint");
        drop(operation);
        let operation = interrupted(mode.claim(&store, &key, request()));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&longest[..]));
        // What happened is over: a new operation knows nothing of it.
        mode.release(operation).expect("a release");
        let operation = started(mode.claim(&store, &key, request()));
        assert_eq!(operation.last_checkpoint(), None);
        assert!(operation.previous().is_none());
    }
}

#[test]
fn a_released_attempt_leaves_the_key_absent_and_the_next_one_is_the_first() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        drop(started(mode.claim(&store, &key, request())));
        let operation = interrupted(mode.claim(&store, &key, request()));
        mode.release(operation).expect("a release");
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        assert!(store.interrupted().expect("a list").is_empty());
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        let operation = started(mode.claim(&store, &key, request()));
        assert_eq!(operation.attempt(), 1);
        assert!(operation.previous().is_none());
    }
}

#[test]
fn an_interrupted_key_waits_for_its_outcome_longer_than_any_retention() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        drop(started(mode.claim(&store, &key, request())));
        let held = support::key("held");
        let operation = started(mode.claim(&store, &held, request()));
        clock.advance(Duration::from_secs(11 * 365 * 24 * 3_600));
        assert!(matches!(
            store.get(&key),
            Ok(KeyState::Interrupted { attempt: 1, .. })
        ));
        in_progress(mode.claim(&store, &held, request()));
        drop(operation);
        drop(store);
        let store = mode
            .options()
            .clock(std::sync::Arc::new(clock))
            .allow_clock_jump(true)
            .open(directory.path())
            .expect("reopens");
        drop(interrupted(mode.claim(&store, &key, request())));
        drop(interrupted(mode.claim(&store, &held, request())));
    }
}

#[test]
fn lists_tell_held_keys_from_interrupted_ones_with_their_age() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let began = store.now();
        let held = started(mode.claim(&store, &key("held"), request()));
        clock.advance(ms(100));
        drop(started(mode.claim(&store, &key("gone"), request())));
        let claim = mode.claim_with(&store, &key("leased"), request(), lease(60_000));
        let leased = started(claim.expect("a claim"));
        clock.advance(ms(900));

        let mut pending = store.pending().expect("a list");
        pending.sort_by(|one, other| one.key.cmp(&other.key));
        let names: Vec<_> = pending.iter().map(|one| one.key.id().to_vec()).collect();
        assert_eq!(names, [&b"held"[..], b"leased"]);
        assert_eq!(pending[0].token, held.token());
        assert_eq!(pending[0].age, ms(1_000));
        assert_eq!(pending[0].attempt, 1);
        assert_eq!(pending[0].started_at, began);
        assert_eq!(pending[0].created_at, began);
        assert_eq!(pending[0].fingerprint, request());
        assert_eq!(pending[0].lease_left, None);
        assert_eq!(pending[1].lease_left, Some(ms(59_100)));
        assert!(!pending[1].is_detached);

        let interrupted = store.interrupted().expect("a list");
        assert_eq!(interrupted.len(), 1);
        assert_eq!(interrupted[0].key, key("gone"));
        assert_eq!(interrupted[0].age, ms(900));

        // A lease that is over is as good as a guard that is gone.
        clock.advance(ms(60_000));
        assert_eq!(store.pending().expect("a list").len(), 1);
        assert_eq!(store.interrupted().expect("a list").len(), 2);
        drop((held, leased, store));
        let store = mode.reopen(&directory, &clock);
        assert!(store.pending().expect("a list").is_empty());
        let interrupted = store.interrupted().expect("a list");
        assert_eq!(interrupted.len(), 3);
        assert!(interrupted.iter().all(|one| one.age >= ms(60_900)));
    }
}

#[test]
fn a_look_tells_every_state_and_claims_nothing() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let key = key("k-1");
        let look = || match durability {
            Durability::Sync => store.get(&key).expect("a look"),
            Durability::Buffered => block_on(store.get_async(&key)).expect("a look"),
        };
        assert!(matches!(look(), KeyState::Absent));
        let operation = started(store.claim(&key, request()).expect("a claim"));
        match look() {
            KeyState::InProgress {
                attempt,
                token,
                since,
                lease_left,
            } => {
                assert_eq!((attempt, token), (1, operation.token()));
                assert_eq!((since, lease_left), (operation.started_at(), None));
            }
            other => panic!("{other:?}"),
        }
        let (token, since) = (operation.token(), operation.started_at());
        drop(operation);
        for _ in 0..2 {
            match look() {
                KeyState::Interrupted {
                    attempt,
                    token: found,
                    since: began,
                    is_abandoned: false,
                } => assert_eq!((attempt, found, began), (1, token, since)),
                other => panic!("{other:?}"),
            }
        }
        let operation = interrupted(store.claim(&key, request()).expect("a claim"));
        operation.complete(b"paid").expect("a completion");
        match look() {
            KeyState::Completed(saved) => assert_eq!(bytes(&saved), b"paid"),
            other => panic!("{other:?}"),
        }
        let stats = store.stats();
        assert_eq!((stats.claims_started, stats.claims_taken_over), (1, 1));
        assert_eq!(stats.claims_replayed, 0);
    }
}

#[test]
fn a_leaked_guard_is_listed_and_an_operator_frees_its_key() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        std::mem::forget(started(mode.claim(&store, &key, request())));
        in_progress(mode.claim(&store, &key, request()));
        let listed = store.pending().expect("a list").remove(0);
        store.interrupt(&listed.key, listed.token).expect("freed");
        assert!(store.pending().expect("a list").is_empty());
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(operation.attempt(), 2);
        drop(operation);
        // The guard that was leaked keeps the engine: close by hand, to unlock the directory.
        store.close().expect("closes");
    }
}

#[test]
fn an_operator_interrupts_only_the_owner_that_was_named() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let refused = |token: Token| match store.interrupt(&key, token) {
        Err(AdminError::NotHeld { token: named }) => assert_eq!(named, token),
        other => panic!("{other:?}"),
    };
    refused(Token::from_u64(0));
    let operation = started(store.claim(&key, request()).expect("a claim"));
    let first = operation.token();
    refused(Token::from_u64(first.as_u64() + 1));
    drop(operation);
    refused(first);
    let operation = interrupted(store.claim(&key, request()).expect("a claim"));
    refused(first);
    in_progress(store.claim(&key, request()).expect("a claim"));
    let second = operation.token();
    operation.complete(b"paid").expect("a completion");
    refused(first);
    refused(second);
    assert!(matches!(store.get(&key), Ok(KeyState::Completed(_))));
}

#[test]
fn forgetting_a_key_that_waits_for_an_outcome_needs_force() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let forget = |store: &Store, how| match mode.style {
            Style::Blocking => store.forget(&key, how),
            Style::Async => block_on(store.forget_async(&key, how)),
        };
        assert!(!forget(&store, Forget::IfCompleted).expect("absent"));
        assert!(!forget(&store, Forget::Force).expect("absent"));

        let operation = started(mode.claim(&store, &key, request()));
        let refused = forget(&store, Forget::IfCompleted);
        assert!(
            matches!(refused, Err(AdminError::Pending { attempt: 1 })),
            "{refused:?}"
        );
        in_progress(mode.claim(&store, &key, request()));
        drop(operation);
        let refused = forget(&store, Forget::IfCompleted);
        assert!(matches!(refused, Err(AdminError::Pending { attempt: 1 })));
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert!(forget(&store, Forget::Force).expect("forgotten"));
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        assert!(
            operation.complete(b"too late").is_err(),
            "its owner is fenced"
        );
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));

        finish(&store, &key, b"paid");
        assert!(forget(&store, Forget::IfCompleted).expect("forgotten"));
        assert!(!forget(&store, Forget::IfCompleted).expect("absent"));
        assert_eq!(store.stats().pending_keys, 0);
        assert_eq!(store.stats().completed_keys, 0);
        let copy = killed(&store);
        for directory in [&copy, &directory] {
            if directory.path() == store.path() {
                store.close().expect("closes");
            }
            let after = mode.options().open(directory.path()).expect("reopens");
            assert!(
                matches!(after.get(&key), Ok(KeyState::Absent)),
                "a forgotten key came back, {mode:?}"
            );
            let claim = mode.claim(&after, &key, request());
            assert!(matches!(claim, Claim::Started(_)));
        }
    }
}

#[test]
fn forgetting_a_pending_key_is_durable_too() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        store.forget(&key, Forget::Force).expect("forgotten");
        let copy = killed(&store);
        let after = mode.options().open(copy.path()).expect("reopens");
        assert!(matches!(after.get(&key), Ok(KeyState::Absent)));
        drop(operation);
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        drop(started(mode.claim(&store, &key, request())));
    }
}
