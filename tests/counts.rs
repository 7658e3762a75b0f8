//! What `stats` counts: every claim by its answer, once, and every key by its state.

mod support;

use std::thread;

use oncekey::{ClaimOptions, Durability, Forget, Stats};

use support::*;

/// How often a claim was answered, by answer.
fn answers(stats: &Stats) -> [u64; 6] {
    [
        stats.claims_started,
        stats.claims_taken_over,
        stats.claims_in_progress,
        stats.claims_replayed,
        stats.claims_mismatched,
        stats.claims_too_late,
    ]
}

#[test]
fn every_claim_is_counted_once_by_its_answer() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        assert_eq!(answers(&store.stats()), [0; 6]);
        drop(started(mode.claim(&store, &key, request())));
        assert_eq!(answers(&store.stats()), [1, 0, 0, 0, 0, 0]);
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(answers(&store.stats()), [1, 1, 0, 0, 0, 0]);
        for _ in 0..3 {
            in_progress(mode.claim(&store, &key, request()));
        }
        assert_eq!(answers(&store.stats()), [1, 1, 3, 0, 0, 0]);
        mode.complete(operation, b"paid").expect("a completion");
        for _ in 0..4 {
            completed(mode.claim(&store, &key, request()));
        }
        assert_eq!(answers(&store.stats()), [1, 1, 3, 4, 0, 0]);
        for _ in 0..2 {
            mismatch(mode.claim(&store, &key, other_request()));
        }
        assert_eq!(answers(&store.stats()), [1, 1, 3, 4, 2, 0]);
        let long_ago = store.now() - std::time::Duration::from_secs(10 * 24 * 3_600);
        let late = ClaimOptions::new().first_sent(long_ago);
        let claim = mode.claim_with(&store, &support::key("k-2"), request(), late);
        assert!(matches!(claim, Ok(oncekey::Claim::TooLate(_))));
        assert_eq!(answers(&store.stats()), [1, 1, 3, 4, 2, 1]);
        let stats = store.stats();
        assert_eq!(
            (stats.completed, stats.released, stats.interruptions),
            (1, 0, 1)
        );
        clock.advance(ms(1));
        started(mode.claim(&store, &support::key("k-3"), request()))
            .release()
            .expect("a release");
        assert_eq!(store.stats().released, 1);
        assert_eq!(answers(&store.stats()), [2, 1, 3, 4, 2, 1]);
    }
}

#[test]
fn a_duplicate_that_waits_is_counted_once_as_in_progress_and_once_by_what_it_got() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        thread::scope(|scope| {
            for _ in 0..9 {
                scope.spawn(|| {
                    let progress = in_progress(mode.claim(&store, &key, request()));
                    completed(mode.wait(progress).expect("an answer"));
                });
            }
            eventually("nine waiters", || store.stats().waiters == 9);
            mode.complete(operation, b"paid").expect("a completion");
        });
        assert_eq!(answers(&store.stats()), [1, 0, 9, 9, 0, 0], "{mode:?}");
    }
}

#[test]
fn looks_of_a_waiter_that_nobody_sees_are_not_counted() {
    const WAITERS: u64 = 6;
    const ROUNDS: u64 = 50;
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Buffered,
            style,
        };
        let (_directory, store) = mode.store();
        for round in 0..ROUNDS {
            let key = key(&round.to_string());
            let operation = started(mode.claim(&store, &key, request()));
            thread::scope(|scope| {
                for _ in 0..WAITERS {
                    scope.spawn(|| {
                        let progress = in_progress(mode.claim(&store, &key, request()));
                        let operation = interrupted(mode.wait(progress).expect("an answer"));
                        // All the others look, find the key in progress, and go on waiting.
                        let others = WAITERS + 1 - u64::from(operation.attempt());
                        eventually("the others", || store.stats().waiters == others);
                    });
                }
                eventually("all waiters", || store.stats().waiters == WAITERS);
                drop(operation);
            });
        }
        // Each of them found it in progress once and took over in its turn.
        let each = ROUNDS * WAITERS;
        let counted = answers(&store.stats());
        assert_eq!(counted, [ROUNDS, each, each, 0, 0, 0], "{mode:?}");
        assert_eq!(store.stats().interruptions, ROUNDS + each);
    }
}

/// A takeover whose caller went away before it was told leaves the key interrupted, and as nobody
/// had the guard, nobody abandoned it.
#[test]
fn a_takeover_that_nobody_saw_is_not_counted_as_abandoned() {
    let (_directory, store) = Mode {
        durability: Durability::Sync,
        style: Style::Async,
    }
    .store();
    let key = key("k-1");
    drop(started(store.claim(&key, request()).expect("a claim")));
    assert_eq!(store.stats().interruptions, 1);
    // A future does not sync, so at its first poll it has written and was not told yet.
    let unseen = Polled::new(store.claim_async(&key, request())).pending();
    drop(unseen);
    let stats = store.stats();
    assert_eq!((stats.claims_started, stats.claims_taken_over), (1, 0));
    assert_eq!((stats.interrupted_keys, stats.interruptions), (1, 1));
}

#[test]
fn keys_are_counted_by_their_state() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let counts = |store: &oncekey::Store| {
            let stats = store.stats();
            [
                stats.completed_keys,
                stats.pending_keys,
                stats.interrupted_keys,
            ]
        };
        let mut held = Vec::new();
        for number in 0..10 {
            let claim = mode.claim_with(&store, &key(&number.to_string()), request(), lease(1_000));
            held.push(started(claim.expect("a claim")));
        }
        assert_eq!(counts(&store), [0, 10, 0]);
        mode.complete(held.pop().unwrap(), b"paid").expect("done");
        mode.complete(held.pop().unwrap(), b"paid").expect("done");
        assert_eq!(counts(&store), [2, 8, 0]);
        mode.release(held.pop().unwrap()).expect("released");
        assert_eq!(counts(&store), [2, 7, 0]);
        drop(held.pop());
        assert_eq!(counts(&store), [2, 7, 1]);
        clock.advance(ms(1_000));
        assert_eq!(counts(&store), [2, 7, 7], "their leases are over");
        held[0].renew().expect("nobody took over");
        assert_eq!(counts(&store), [2, 7, 6]);
        let removed = held.pop().unwrap();
        store
            .forget(removed.key(), Forget::Force)
            .expect("forgotten");
        drop(removed);
        assert_eq!(counts(&store), [2, 6, 5]);
        store
            .forget(&key("9"), Forget::IfCompleted)
            .expect("forgotten");
        assert_eq!(counts(&store), [1, 6, 5]);
        drop(held);
        assert_eq!(counts(&store), [1, 6, 6]);
        drop(store);
        let store = mode.reopen(&directory, &clock);
        assert_eq!(counts(&store), [1, 6, 6]);
        assert_eq!(store.recovery_report().interrupted, 6);
    }
}

#[test]
fn unsynced_bytes_are_those_appended_and_not_synced() {
    let (directory, store) = buffered();
    let check = |store: &oncekey::Store| {
        assert_eq!(store.stats().unsynced_bytes, 0);
        let operation = started(store.claim(&key("k"), request()).expect("a claim"));
        let one = store.stats().unsynced_bytes;
        assert!((50..1_000).contains(&one), "{one} bytes of one claim");
        operation.release().expect("a release");
        let two = store.stats().unsynced_bytes;
        assert!(
            (one + 50..2_000).contains(&two),
            "{two} bytes of two records"
        );
        store.flush().expect("synced");
        assert_eq!(store.stats().unsynced_bytes, 0);
    };
    check(&store);
    drop(store);
    // Positions jump at an open; bytes don't.
    check(&reopen(&directory, Durability::Buffered));
}

#[test]
fn a_group_of_writers_shares_a_sync_and_the_counts_tell_so() {
    let directory = directory();
    let store = small(Durability::Sync)
        .open(directory.path())
        .expect("a store");
    for number in 0..10 {
        finish(&store, &key(&number.to_string()), b"paid");
    }
    let stats = store.stats();
    assert_eq!(stats.synced_records, 20);
    assert!((1..=20).contains(&stats.syncs));
    assert_eq!(stats.unsynced_bytes, 0);
    assert!(!stats.poisoned);
    assert!(stats.index_bytes > 0);
}

#[test]
fn segments_are_counted_by_their_state_and_syncs_by_what_they_covered() {
    let (_directory, store) = buffered();
    let of = |stats: &Stats| {
        (
            stats.segments,
            stats.segments_unsynced,
            stats.segments_prepared,
            stats.segment_bytes / (64 << 10),
        )
    };
    assert_eq!(of(&store.stats()), (2, 1, 1, 2));
    finish(&store, &key("1"), b"paid");
    finish(&store, &key("2"), b"paid");
    assert!(store.stats().unsynced_bytes > 0);
    store.flush().expect("syncs");
    let stats = store.stats();
    assert_eq!((stats.syncs, stats.synced_records), (1, 4));
    assert_eq!((stats.largest_sync_records, stats.unsynced_bytes), (4, 0));
    finish(&store, &key("3"), b"paid");
    store.flush().expect("syncs");
    let stats = store.stats();
    assert_eq!((stats.syncs, stats.synced_records), (2, 6));
    assert_eq!(stats.largest_sync_records, 4);
    // Full ones are durable before long, and are segments all the same.
    for number in 0..10 {
        finish(&store, &key(&format!("large {number}")), vec![7; 15_000]);
    }
    store.flush().expect("syncs");
    eventually("a prepared segment", || {
        let stats = store.stats();
        stats.segments_prepared == 1 && stats.segments_unsynced == 1 && stats.segments > 3
    });
}

#[test]
fn limits_that_are_reached_are_counted_and_so_are_results_that_expired() {
    let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
    let store = small(Durability::Buffered)
        .max_pending(1)
        .max_waiters(0)
        .clock(std::sync::Arc::new(clock.clone()))
        .open(directory.path())
        .expect("a store");
    let held = started(store.claim(&key("1"), request()).expect("a claim"));
    for _ in 0..2 {
        drop(
            store
                .claim(&key("2"), request())
                .expect_err("one is pending"),
        );
    }
    for _ in 0..3 {
        let progress = in_progress(store.claim(&key("1"), request()).expect("an answer"));
        drop(progress.wait(ms(1)).expect_err("nobody may wait"));
    }
    let limits = store.stats().limits_reached;
    assert_eq!((limits.pending, limits.waiters), (2, 3));
    held.complete(b"paid").expect("a completion");
    finish(&store, &key("2"), b"paid");
    assert_eq!(store.stats().expired, 0);
    clock.advance(ms(24 * 3_600_000));
    finish(&store, &key("1"), b"paid again");
    assert_eq!(store.stats().expired, 1);
    let forgotten = store.forget(&key("2"), Forget::IfCompleted);
    assert!(!forgotten.expect("an answer"));
    assert_eq!(
        (store.stats().expired, store.stats().completed_keys),
        (2, 1)
    );
}
