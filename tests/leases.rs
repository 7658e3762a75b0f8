//! How long an owner is presumed alive.

mod support;

use std::sync::Arc;
use std::time::Duration;

use oncekey::{
    ClaimError, ClaimOptions, ClaimOptionsError, Durability, KeyState, Lease, OpenError,
    OptionsError, Store,
};

use support::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

#[test]
fn a_lease_of_1500_ms_is_alive_at_1499_and_over_at_1500() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        // Not at a round moment of the clock.
        clock.advance(ms(777));
        let claim = mode.claim_with(&store, &key, request(), lease(1_500));
        let _operation = started(claim.expect("a claim"));
        for elapsed in [0, 1, 998, 500] {
            clock.advance(ms(elapsed));
            in_progress(mode.claim(&store, &key, request()));
            assert!(matches!(store.get(&key), Ok(KeyState::InProgress { .. })));
        }
        clock.advance(ms(1));
        assert!(matches!(store.get(&key), Ok(KeyState::Interrupted { .. })));
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(operation.attempt(), 2, "{mode:?}");
    }
}

#[test]
fn the_stores_lease_is_that_of_every_claim_that_names_none() {
    for mode in modes() {
        let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
        let store = mode
            .options()
            .lease(Lease::For(ms(1_500)))
            .clock(Arc::new(clock.clone()))
            .open(directory.path())
            .expect("a store");
        let (one, two, three) = (key("k-1"), key("k-2"), key("k-3"));
        let _first = started(mode.claim(&store, &one, request()));
        let claim = mode.claim_with(&store, &two, request(), lease(3_000));
        let _second = started(claim.expect("a claim"));
        let alive = ClaimOptions::new().lease(Lease::WhileAlive);
        let claim = mode.claim_with(&store, &three, request(), alive);
        let third = started(claim.expect("a claim"));
        clock.advance(ms(1_500));
        let _first = interrupted(mode.claim(&store, &one, request()));
        in_progress(mode.claim(&store, &two, request()));
        clock.advance(ms(1_500));
        drop(interrupted(mode.claim(&store, &two, request())));
        clock.advance(YEAR);
        in_progress(mode.claim(&store, &three, request()));
        drop(third);
    }
}

#[test]
fn an_owner_that_is_alive_is_never_run_over_without_a_lease() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let mut operation = started(mode.claim(&store, &key, request()));
        for _ in 0..20 {
            clock.advance(YEAR);
            let progress = in_progress(mode.claim(&store, &key, request()));
            assert_eq!(progress.lease_left(), None);
        }
        operation.renew().expect("still ours");
        mode.complete(operation, b"paid").expect("still ours");
    }
}

#[test]
fn a_lease_of_zero_or_without_end_is_an_error_and_claims_nothing() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        for value in [
            Duration::ZERO,
            Duration::from_nanos(999_999),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ] {
            #[track_caller]
            fn check(error: ClaimOptionsError, value: Duration) {
                match error {
                    ClaimOptionsError::LeaseZero => assert_eq!(value, Duration::ZERO),
                    ClaimOptionsError::OutOfRange {
                        option,
                        value: named,
                        ..
                    } => assert_eq!((option, named), ("lease", value)),
                    other => panic!("{other:?}"),
                }
            }
            let options = ClaimOptions::new().lease(Lease::For(value));
            match mode.claim_with(&store, &key, request(), options) {
                Err(ClaimError::Options(error)) => check(error, value),
                other => panic!("{mode:?}: {other:?}"),
            }
            let opened = small(Durability::Buffered)
                .lease(Lease::For(value))
                .open(directory().path());
            match opened {
                Err(OpenError::Options(OptionsError::Claim(error))) => check(error, value),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        assert_eq!(store.stats().pending_keys, 0);
    }
}

#[test]
fn leases_of_1_ms_and_of_10_years_hold_for_just_that_long() {
    let limits = oncekey::limits::LEASE_MAX;
    for length in [ms(1), ms(2), YEAR, limits] {
        let (_directory, store, clock) = buffered_and_clock();
        let options = ClaimOptions::new().lease(Lease::For(length));
        let key = key("k-1");
        let claim = store.claim_with(&key, request(), options);
        let _operation = started(claim.expect("a claim"));
        let progress = in_progress(store.claim(&key, request()).expect("a claim"));
        assert_eq!(progress.lease_left(), Some(length));
        clock.advance(length - ms(1));
        in_progress(store.claim(&key, request()).expect("a claim"));
        clock.advance(ms(1));
        drop(interrupted(store.claim(&key, request()).expect("a claim")));
    }
}

#[test]
fn a_part_of_a_millisecond_makes_a_lease_longer_never_shorter() {
    let (_directory, store, clock) = buffered_and_clock();
    let options = ClaimOptions::new().lease(Lease::For(Duration::from_micros(1_001)));
    let claim = store.claim_with(&key("k-1"), request(), options);
    let _operation = started(claim.expect("a claim"));
    clock.advance(ms(1));
    in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    clock.advance(ms(1));
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

#[test]
fn what_is_left_of_a_lease_counts_down() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_500));
        let mut operation = started(claim.expect("a claim"));
        let left = || {
            let progress = in_progress(mode.claim(&store, &key, request()));
            let in_look = match store.get(&key).expect("a look") {
                KeyState::InProgress { lease_left, .. } => lease_left,
                other => panic!("{other:?}"),
            };
            assert_eq!(progress.lease_left(), in_look);
            progress.lease_left()
        };
        assert_eq!(left(), Some(ms(1_500)));
        clock.advance(ms(600));
        assert_eq!(left(), Some(ms(900)));
        clock.advance(ms(899));
        assert_eq!(left(), Some(ms(1)));
        operation.renew().expect("still ours");
        assert_eq!(left(), Some(ms(1_500)));
    }
}

#[test]
fn a_renewed_lease_lasts_its_full_length_from_then_on() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_500));
        let mut operation = started(claim.expect("a claim"));
        for _ in 0..10 {
            clock.advance(ms(1_499));
            operation.renew().expect("still ours");
        }
        clock.advance(ms(1_499));
        in_progress(mode.claim(&store, &key, request()));
        clock.advance(ms(1));
        drop(interrupted(mode.claim(&store, &key, request())));
        assert!(operation.renew().is_err());
    }
}

#[test]
fn a_checkpoint_does_not_renew_the_lease() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_000));
        let mut operation = started(claim.expect("a claim"));
        clock.advance(ms(900));
        mode.checkpoint(&mut operation, b"half way")
            .expect("a checkpoint");
        let progress = in_progress(mode.claim(&store, &key, request()));
        assert_eq!(progress.lease_left(), Some(ms(100)), "{mode:?}");
        clock.advance(ms(100));
        drop(interrupted(mode.claim(&store, &key, request())));
    }
}

#[test]
fn whoever_takes_over_has_a_lease_of_its_own() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_000));
        let _first = started(claim.expect("a claim"));
        clock.advance(ms(5_000));
        let claim = mode.claim_with(&store, &key, request(), lease(300));
        let _second = interrupted(claim.expect("a claim"));
        clock.advance(ms(299));
        in_progress(mode.claim(&store, &key, request()));
        clock.advance(ms(1));
        // Without one: nobody takes it over again.
        let third = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(third.attempt(), 3);
        clock.advance(YEAR);
        in_progress(mode.claim(&store, &key, request()));
    }
}

#[test]
fn a_wall_clock_that_jumps_ends_no_lease_and_lengthens_none() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(10_000));
        let _operation = started(claim.expect("a claim"));
        for wall_ms in [START_MS * 2, 0, START_MS, u64::MAX / 2, 1] {
            clock.set_wall_ms(wall_ms);
            clock.advance(ms(1_999));
            in_progress(mode.claim(&store, &key, request()));
        }
        clock.advance(ms(4));
        in_progress(mode.claim(&store, &key, request()));
        clock.advance(ms(1));
        drop(interrupted(mode.claim(&store, &key, request())));
    }
}

#[test]
fn the_real_clock_ends_a_lease_too() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(30));
        let stale = started(claim.expect("a claim"));
        // No matter how late this thread is: it waits, or the lease is over already.
        let operation = match mode.claim(&store, &key, request()) {
            oncekey::Claim::InProgress(progress) => {
                interrupted(mode.wait(progress).expect("an answer"))
            }
            claim => interrupted(claim),
        };
        assert_eq!(operation.attempt(), 2);
        assert!(stale.complete(b"too late").is_err());
        mode.complete(operation, b"paid").expect("ours");
    }
}

#[test]
fn a_guard_travels_to_another_thread() {
    fn assert_send<T: Send + 'static>(_: &T) {}
    fn assert_shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (_directory, store) = buffered();
    assert_shared::<Store>(&store);
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    assert_send(&operation);
    assert_send(&store.claim_async(&key("k-2"), request()));
    std::thread::spawn(move || operation.complete(b"paid").expect("a completion"))
        .join()
        .expect("no panic");
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}
