//! Interrupted operations that are older than allowed: not run again, not absent, not forgotten.

mod support;

use std::sync::Arc;
use std::time::Duration;

use oncekey::{
    Abandoned, AdminError, Claim, ClaimError, Forget, KeyState, OpenError, Options, ResumeError,
    RunError, RunOptions, Store,
};

use support::*;

const LIMIT: Duration = Duration::from_secs(60);

fn store_with_limit(mode: Mode) -> (tempfile::TempDir, Store, oncekey::ManualClock) {
    let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
    let store = options(mode, &clock).open(directory.path());
    (directory, store.expect("a store"), clock)
}

fn options(mode: Mode, clock: &oncekey::ManualClock) -> Options {
    let options = mode.options().clock(Arc::new(clock.clone()));
    options.abandon_after(LIMIT)
}

#[track_caller]
fn abandoned(claimed: Result<Claim, ClaimError>) -> Abandoned {
    match claimed {
        Err(ClaimError::Abandoned(abandoned)) => abandoned,
        other => panic!("expected Abandoned, got {other:?}"),
    }
}

#[test]
fn an_interrupted_operation_that_is_too_old_is_not_run_again() {
    for mode in modes() {
        let (directory, mut store, clock) = store_with_limit(mode);
        let created_at = store.now();
        drop(started(mode.claim(&store, &key("k"), request())));
        // A new attempt does not make the operation any younger.
        clock.advance(LIMIT - ms(1));
        let since = store.now();
        drop(interrupted(mode.claim(&store, &key("k"), request())));
        clock.advance(ms(1));
        for reopened in [false, true] {
            if reopened {
                store.close().expect("closes");
                drop(store);
                store = options(mode, &clock).open(directory.path()).expect("opens");
            }
            let refused = abandoned(mode.try_claim(&store, &key("k"), request()));
            assert_eq!(
                (refused.attempt, refused.since, refused.created_at),
                (2, since, created_at)
            );
            // What it was used for is told all the same.
            mismatch(mode.claim(&store, &key("k"), other_request()));
            let listed = store.interrupted().expect("a list");
            assert_eq!(listed.len(), 1);
            assert!(listed[0].is_abandoned && listed[0].key == key("k"));
            match store.get(&key("k")).expect("an answer") {
                KeyState::Interrupted {
                    attempt,
                    is_abandoned,
                    ..
                } => assert_eq!((attempt, is_abandoned), (2, true)),
                other => panic!("{other:?}"),
            }
            let stats = store.stats();
            assert_eq!((stats.interrupted_keys, stats.abandoned_keys), (1, 1));
            assert_eq!(stats.claims_abandoned, 1);
        }
        // Only by force is it free again.
        let kept = store.forget(&key("k"), Forget::IfCompleted);
        assert!(matches!(kept, Err(AdminError::Pending { attempt: 2 })));
        assert!(store.forget(&key("k"), Forget::Force).expect("forgotten"));
        assert_eq!(store.stats().abandoned_keys, 0);
        let again = started(mode.claim(&store, &key("k"), request()));
        assert_eq!(again.attempt(), 1);
    }
}

#[test]
fn an_owner_at_work_is_not_abandoned_however_old_the_operation_is() {
    for mode in modes() {
        let (_directory, store, clock) = store_with_limit(mode);
        let held = started(mode.claim(&store, &key("held"), request()));
        let late = mode.claim_with(&store, &key("late"), request(), lease(1_000));
        let late = started(late.expect("a claim"));
        clock.advance(2 * LIMIT);
        in_progress(mode.claim(&store, &key("held"), request()));
        mode.complete(held, b"paid").expect("a completion");
        completed(mode.claim(&store, &key("held"), request()));
        // Its lease is over, so nobody gets it; but it was not taken over, so it may complete.
        abandoned(mode.try_claim(&store, &key("late"), request()));
        mode.complete(late, b"paid").expect("a completion");
        completed(mode.claim(&store, &key("late"), request()));
    }
}

#[test]
fn a_ticket_of_an_abandoned_operation_gives_no_guard() {
    let mode = modes().next().expect("one");
    let (_directory, store, clock) = store_with_limit(mode);
    let options = lease(2 * 60_000);
    let claim = store.claim_with(&key("in time"), request(), options.clone());
    let in_time = started(claim.expect("a claim")).into_ticket().expect("one");
    let claim = store.claim_with(&key("late"), request(), lease(1_000));
    let late = started(claim.expect("a claim")).into_ticket().expect("one");
    clock.advance(LIMIT);
    // While its lease lasts, the work that was handed on is under way.
    let resumed = started(store.resume(&in_time).expect("a guard"));
    resumed.complete(b"paid").expect("a completion");
    let refused = store.resume(&late);
    assert!(
        matches!(refused, Err(ResumeError::Claim(ClaimError::Abandoned(_)))),
        "{refused:?}"
    );
}

#[test]
fn those_who_wait_or_run_learn_of_it() {
    for mode in modes() {
        let (_directory, store, clock) = store_with_limit(mode);
        let held = started(mode.claim(&store, &key("k"), request()));
        let progress = in_progress(mode.claim(&store, &key("k"), request()));
        clock.advance(LIMIT);
        drop(held);
        abandoned(mode.wait(progress));
        let ran = store.run(&key("k"), request(), RunOptions::new(), |_| {
            Ok::<_, std::io::Error>(b"never")
        });
        assert!(
            matches!(ran, Err(RunError::Claim(ClaimError::Abandoned(_)))),
            "{ran:?}"
        );
        let mut batch = store.claim_many([(&key("k"), request())], lease(1_000));
        abandoned(batch.remove(0));
    }
}

/// The limit is read at each claim, so another one at the next open is what counts.
#[test]
fn without_the_limit_it_is_taken_up_again() {
    let mode = modes().next().expect("one");
    let (directory, store, clock) = store_with_limit(mode);
    drop(started(mode.claim(&store, &key("k"), request())));
    clock.advance(100 * LIMIT);
    abandoned(mode.try_claim(&store, &key("k"), request()));
    drop(store);
    let store = mode.reopen(&directory, &clock);
    let operation = interrupted(mode.claim(&store, &key("k"), request()));
    assert_eq!(operation.attempt(), 2);
}

#[test]
fn a_limit_out_of_range_is_named() {
    for age in [Duration::ZERO, ms(999), Duration::MAX] {
        let parent = directory();
        let options = modes().next().expect("one").options().abandon_after(age);
        match options.open(parent.path().join("store")) {
            Err(OpenError::Options(error)) => {
                let message = error.to_string();
                assert!(message.contains("abandon_after"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}
