//! Many keys claimed with one sync, one result each.

mod support;

use std::thread;
use std::time::Duration;

use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Fingerprint, InProgress, Key, KeyState, Store,
};

use support::*;

fn claim_many<'a>(
    mode: Mode,
    store: &Store,
    keys: impl IntoIterator<Item = (&'a Key, Fingerprint)>,
) -> Vec<Result<Claim, ClaimError>> {
    match mode.style {
        Style::Blocking => store.claim_many(keys, ClaimOptions::new()),
        Style::Async => block_on(store.claim_many_async(keys, ClaimOptions::new())),
    }
}

fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|number| key(&number.to_string())).collect()
}

#[track_caller]
fn held_by_same_batch(result: Result<Claim, ClaimError>) {
    assert!(
        matches!(result, Err(ClaimError::HeldBySameBatch)),
        "{result:?}"
    );
}

#[test]
fn a_batch_gives_every_key_its_own_outcome_in_order() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let [done, held, gone, free] = ["done", "held", "gone", "free"].map(key);
        finish(&store, &done, b"paid");
        let operation = started(mode.claim(&store, &held, request()));
        drop(started(mode.claim(&store, &gone, request())));
        let too_long = Key::new("", "", vec![b'x'; 256]).expect("a key");
        let claims = claim_many(
            mode,
            &store,
            [
                (&free, request()),
                (&done, request()),
                (&too_long, request()),
                (&held, request()),
                (&gone, request()),
                (&done, other_request()),
            ],
        );
        let mut claims = claims.into_iter();
        let mut next = || claims.next().expect("one a key");
        assert_eq!(started(next().unwrap()).key(), &free);
        assert_eq!(bytes(&completed(next().unwrap())), b"paid");
        assert!(matches!(next(), Err(ClaimError::Key(_))));
        assert!(!in_progress(next().unwrap()).is_same_batch());
        assert_eq!(interrupted(next().unwrap()).attempt(), 2);
        assert!(mismatch(next().unwrap()).completed);
        assert!(claims.next().is_none());
        mode.complete(operation, b"paid").expect("a completion");
    }
}

#[test]
fn a_batch_of_a_thousand_keys_takes_one_sync() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        let directory = directory();
        let store = mode
            .options()
            .segment_size(16 << 20)
            .open(directory.path())
            .expect("a store");
        let keys = keys(1_000);
        let claims = claim_many(mode, &store, keys.iter().map(|key| (key, request())));
        assert_eq!(claims.len(), 1_000);
        let stats = store.stats();
        assert_eq!((stats.syncs, stats.synced_records), (1, 1_000));
        assert_eq!(stats.unsynced_bytes, 0);
        let mut tokens: Vec<_> = claims
            .into_iter()
            .map(|claim| started(claim.expect("a claim")).token())
            .collect();
        assert!(tokens.is_sorted());
        tokens.dedup();
        assert_eq!(tokens.len(), 1_000);
    }
}

#[test]
fn a_duplicate_inside_a_batch_is_in_progress_and_waiting_for_it_is_an_error() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let (one, two) = (key("k-1"), key("k-2"));
        let pairs = [&one, &two, &one, &one].map(|key| (key, request()));
        let mut claims = claim_many(mode, &store, pairs);
        for _ in 0..2 {
            let progress = in_progress(claims.pop().unwrap().expect("an answer"));
            assert!(progress.is_same_batch(), "{mode:?}");
            held_by_same_batch(match mode.style {
                Style::Blocking => progress.wait(LONG),
                Style::Async => block_on(progress.wait_async()),
            });
        }
        // Somebody else's duplicate is none of the batch's, and may wait.
        let progress: InProgress = in_progress(mode.claim(&store, &one, request()));
        assert!(!progress.is_same_batch());
        for claim in claims {
            let operation = started(claim.expect("a claim"));
            mode.complete(operation, b"paid").expect("a completion");
        }
        completed(mode.wait(progress).expect("an answer"));
        assert_eq!(store.stats().waiters, 0);
    }
}

#[test]
fn duplicates_of_a_key_that_was_taken_before_the_batch_may_wait() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        let claims = claim_many(mode, &store, [(&key, request()), (&key, request())]);
        mode.complete(operation, b"paid").expect("a completion");
        for claim in claims {
            let progress = in_progress(claim.expect("an answer"));
            assert!(!progress.is_same_batch());
            completed(mode.wait(progress).expect("an answer"));
        }
    }
}

#[test]
fn duplicates_of_an_interrupted_key_inside_a_batch_give_one_guard() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        drop(started(mode.claim(&store, &key, request())));
        let mut claims = claim_many(mode, &store, [(&key, request()), (&key, request())]);
        let second = in_progress(claims.pop().unwrap().expect("an answer"));
        assert!(second.is_same_batch());
        assert_eq!(second.attempt(), 2);
        let first = interrupted(claims.pop().unwrap().expect("a claim"));
        assert_eq!(first.attempt(), 2);
    }
}

#[test]
fn guards_that_are_not_taken_out_of_the_result_leave_their_keys_interrupted() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let keys = keys(10);
        let mut claims = claim_many(mode, &store, keys.iter().map(|key| (key, request())));
        let taken = started(claims.swap_remove(3).expect("a claim"));
        drop(claims);
        assert_eq!(store.stats().interrupted_keys, 9);
        mode.complete(taken, b"paid").expect("a completion");
        for (number, key) in keys.iter().enumerate() {
            match store.get(key).expect("a look") {
                KeyState::Completed(_) => assert_eq!(number, 3),
                KeyState::Interrupted { attempt, .. } => assert_eq!(attempt, 1),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_batch_over_the_limit_of_pending_keys_fails_only_what_is_over() {
    for mode in modes() {
        let directory = directory();
        let store = mode
            .options()
            .max_pending(5)
            .open(directory.path())
            .expect("a store");
        let keys = keys(8);
        let claims = claim_many(mode, &store, keys.iter().map(|key| (key, request())));
        for (number, claim) in claims.into_iter().enumerate() {
            match claim {
                Ok(claim) => {
                    assert!(number < 5, "{mode:?}");
                    started(claim).release().expect("a release");
                }
                Err(ClaimError::TooManyPending { limit }) => {
                    assert!(number >= 5 && limit == 5, "{mode:?}");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(store.stats().pending_keys, 0);
    }
}

#[test]
fn options_that_are_wrong_fail_every_key_of_a_batch_and_claim_none() {
    for style in STYLES {
        let (_directory, store) = buffered();
        let keys = keys(3);
        let pairs = keys.iter().map(|key| (key, request()));
        let wrong = ClaimOptions::new().retention(Duration::ZERO);
        let claims = match style {
            Style::Blocking => store.claim_many(pairs, wrong),
            Style::Async => block_on(store.claim_many_async(pairs, wrong)),
        };
        assert_eq!(claims.len(), 3);
        for claim in claims {
            assert!(matches!(claim, Err(ClaimError::Options(_))), "{claim:?}");
        }
        assert_eq!(store.stats().pending_keys, 0);
    }
}

#[test]
fn an_empty_batch_is_empty() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        assert!(claim_many(mode, &store, []).is_empty());
        assert_eq!(store.stats().syncs, 0);
    }
}

#[test]
fn a_batch_that_is_cancelled_releases_all_that_nobody_saw() {
    let directory = directory();
    // Room for all of them at once, so that the first poll gets as far as the sync.
    let options = small(Durability::Sync).segment_size(1 << 20);
    let store = options.open(directory.path()).expect("a store");
    let keys = keys(20);
    drop(started(store.claim(&keys[7], request()).expect("a claim")));
    let pairs = keys.iter().map(|key| (key, request()));
    let future = Polled::new(store.claim_many_async(pairs, ClaimOptions::new())).pending();
    assert_eq!(store.stats().pending_keys, 20);
    drop(future);
    for (number, key) in keys.iter().enumerate() {
        match store.get(key).expect("a look") {
            KeyState::Absent => assert_ne!(number, 7),
            // Its first attempt ran: that is not undone.
            KeyState::Interrupted { .. } => assert_eq!(number, 7),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn batches_that_share_keys_in_opposite_order_do_not_block_each_other() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let keys = keys(20);
        thread::scope(|scope| {
            for forwards in [true, false, true, false] {
                let (store, keys) = (&store, &keys);
                scope.spawn(move || {
                    let mut order: Vec<_> = keys.iter().collect();
                    if !forwards {
                        order.reverse();
                    }
                    let pairs = order.into_iter().map(|key| (key, request()));
                    let claims = claim_many(mode, store, pairs);
                    let mut waiting = Vec::new();
                    for claim in claims {
                        match claim.expect("an answer") {
                            Claim::Started(operation) => {
                                mode.complete(operation, b"paid").expect("a completion");
                            }
                            Claim::InProgress(progress) => waiting.push(progress),
                            claim => drop(completed(claim)),
                        }
                    }
                    for progress in waiting {
                        completed(mode.wait(progress).expect("an answer"));
                    }
                });
            }
        });
        let stats = store.stats();
        assert_eq!((stats.completed, stats.claims_started), (20, 20));
    }
}

#[test]
fn a_batch_survives_as_a_whole_or_as_it_was_written() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let keys = keys(50);
        let claims = claim_many(mode, &store, keys.iter().map(|key| (key, request())));
        let copy = killed(&store);
        drop(claims);
        let after = mode.options().open(copy.path()).expect("reopens");
        assert_eq!(after.recovery_report().interrupted, 50, "{mode:?}");
    }
}
