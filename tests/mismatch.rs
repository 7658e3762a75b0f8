//! The same key with another fingerprint is never answered with the first request's result, never
//! run, and never changes the first one's record.

mod support;

use std::task::Poll;

use oncekey::{
    Claim, ClaimOptions, Durability, Fingerprint, KeyState, OnInterrupted, RunError, RunOptions,
    Store,
};

use support::*;

/// All that a look shows, to compare.
fn look(store: &Store) -> String {
    format!("{:?}", store.get(&key("k-1")).expect("a look"))
}

#[test]
fn another_fingerprint_on_a_pending_key_is_a_mismatch_and_the_owner_goes_on() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let mut operation = started(mode.claim(&store, &key, request()));
        let since = operation.started_at();
        operation.checkpoint(b"half way").expect("a checkpoint");
        clock.advance(ms(10));
        let before = look(&store);
        let found = mismatch(mode.claim(&store, &key, other_request()));
        assert_eq!(
            (found.completed, found.attempt, found.since),
            (false, 1, since)
        );
        assert_eq!(look(&store), before, "{mode:?}");
        operation.renew().expect("still ours");
        mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(
            bytes(&completed(mode.claim(&store, &key, request()))),
            b"paid"
        );
    }
}

#[test]
fn another_fingerprint_on_a_completed_key_is_a_mismatch_and_the_result_stays() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let saved = finish(&store, &key, b"paid");
        clock.advance(ms(10));
        let before = look(&store);
        let check = |store: &Store| {
            let found = mismatch(mode.claim(store, &key, other_request()));
            assert_eq!(
                (found.completed, found.attempt, found.since),
                (true, 1, saved.completed_at())
            );
            let replayed = completed(mode.claim(store, &key, request()));
            assert_eq!(bytes(&replayed), b"paid");
            assert_eq!(replayed.sequence(), saved.sequence());
        };
        check(&store);
        assert_eq!(look(&store), before, "{mode:?}");
        drop(store);
        check(&mode.reopen(&directory, &clock));
    }
}

#[test]
fn another_fingerprint_on_an_interrupted_key_is_a_mismatch_and_takes_nothing_over() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let mut operation = started(mode.claim(&store, &key, request()));
        let since = operation.started_at();
        operation.checkpoint(b"half way").expect("a checkpoint");
        drop(operation);
        clock.advance(ms(10));
        let before = look(&store);
        let check = |store: &Store| {
            let found = mismatch(mode.claim(store, &key, other_request()));
            assert_eq!(
                (found.completed, found.attempt, found.since),
                (false, 1, since)
            );
        };
        check(&store);
        assert_eq!(look(&store), before, "{mode:?}");
        drop(store);
        let store = mode.reopen(&directory, &clock);
        check(&store);
        let operation = interrupted(mode.claim(&store, &key, request()));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(operation.attempt(), 2);
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
    }
}

#[test]
fn a_lease_that_is_over_is_no_reason_to_give_the_key_to_another_request() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_000));
        let operation = started(claim.expect("a claim"));
        clock.advance(ms(5_000));
        mismatch(mode.claim(&store, &key, other_request()));
        mode.complete(operation, b"paid").expect("still ours");
    }
}

#[test]
fn a_key_is_free_for_another_request_once_it_is_released_forgotten_or_expired() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        mode.release(operation).expect("a release");
        let operation = started(mode.claim(&store, &key, other_request()));
        drop(operation);
        store
            .forget(&key, oncekey::Forget::Force)
            .expect("forgotten");
        finish(&store, &key, b"paid");
        mismatch(mode.claim(&store, &key, other_request()));
        clock.advance(std::time::Duration::from_secs(24 * 3_600));
        started(mode.claim(&store, &key, other_request()))
            .complete(b"the other")
            .expect("a completion");
        mismatch(mode.claim(&store, &key, request()));
    }
}

/// Every way to an answer checks the fingerprint: the index's fast path, the log, after a reopen,
/// in a batch, by a wait, in `run`.
#[test]
fn no_way_to_an_answer_forgets_to_compare_the_fingerprint() {
    let (directory, store) = buffered();
    let (done, held) = (key("done"), key("held"));
    finish(&store, &done, b"paid");
    let operation = started(store.claim(&held, request()).expect("a claim"));
    let check = |store: &Store| {
        for key in [&done, &held] {
            let other = other_request();
            mismatch(store.claim(key, other).expect("a claim"));
            mismatch(block_on(store.claim_async(key, other)).expect("a claim"));
            let claims = [(key, other), (key, other)];
            for claim in store.claim_many(claims, ClaimOptions::new()) {
                mismatch(claim.expect("a claim"));
            }
            for claim in block_on(store.claim_many_async(claims, ClaimOptions::new())) {
                mismatch(claim.expect("a claim"));
            }
            let rerun = RunOptions::new().on_interrupted(OnInterrupted::Rerun);
            let ran = store.run(
                key,
                other,
                rerun.clone(),
                |_| -> Result<&[u8], std::io::Error> { panic!("the work must not run") },
            );
            assert!(matches!(ran, Err(RunError::Mismatch(_))), "{ran:?}");
            let ran = block_on(store.run_async(key, other, rerun, async |_: &mut _| {
                if true {
                    panic!("the work must not run");
                }
                Ok::<&[u8], std::io::Error>(b"")
            }));
            assert!(matches!(ran, Err(RunError::Mismatch(_))), "{ran:?}");
        }
    };
    check(&store);
    // A batch in which the first entry claims the key for another request.
    let free = key("free");
    let claims = store.claim_many(
        [(&free, request()), (&free, other_request())],
        ClaimOptions::new(),
    );
    assert!(matches!(claims[0], Ok(Claim::Started(_))));
    assert!(matches!(claims[1], Ok(Claim::Mismatch(_))));
    drop(claims);
    drop(operation);
    check(&store);
    drop(store);
    check(&reopen(&directory, Durability::Buffered));
}

#[test]
fn a_mismatch_waits_for_nobody() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let _operation = started(store.claim(&key, request()).expect("a claim"));
    let mut future = Polled::new(store.claim_async(&key, other_request()));
    match future.poll() {
        Poll::Ready(claim) => drop(mismatch(claim.expect("a claim"))),
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn fingerprints_of_other_algorithms_are_no_mismatch() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        finish(&store, &key, b"paid");
        let comparable = [
            Fingerprint::none(),
            Fingerprint::builder().part(b"something else").finish(),
            Fingerprint::custom(200, [7; 16]).expect("free to use"),
        ];
        let check = |store: &Store| {
            for fingerprint in comparable {
                let claim = mode.claim(store, &key, fingerprint);
                assert_eq!(bytes(&completed(claim)), b"paid");
            }
            mismatch(mode.claim(store, &key, other_request()));
        };
        check(&store);
        drop(store);
        check(&mode.options().open(directory.path()).expect("reopens"));
    }
}

#[test]
fn a_takeover_with_nothing_to_compare_keeps_the_first_requests_fingerprint() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let first = started(store.claim(&key, request()).expect("a claim"));
    let downstream = first.downstream_key("charge");
    drop(first);
    let second = interrupted(store.claim(&key, Fingerprint::none()).expect("a claim"));
    assert_eq!(second.downstream_key("charge"), downstream);
    mismatch(store.claim(&key, other_request()).expect("a claim"));
    second.complete(b"paid").expect("a completion");
    mismatch(store.claim(&key, other_request()).expect("a claim"));
    assert!(matches!(store.get(&key), Ok(KeyState::Completed(_))));
}
