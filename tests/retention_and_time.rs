//! How long results answer, and what time it is.

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oncekey::{
    Claim, ClaimError, ClaimOptions, ClaimOptionsError, Clock, Durability, KeyState, ManualClock,
    OpenError, Options, OptionsError, Store, WriteError,
};

use support::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn retention(value: Duration) -> ClaimOptions {
    ClaimOptions::new().retention(value)
}

fn first_sent(at: SystemTime) -> ClaimOptions {
    ClaimOptions::new().first_sent(at)
}

fn wall(clock: &ManualClock) -> SystemTime {
    SystemTime::UNIX_EPOCH + ms(clock.wall_ms())
}

fn open(directory: &tempfile::TempDir, options: Options, clock: &ManualClock) -> Store {
    options
        .clock(Arc::new(clock.clone()))
        .open(directory.path())
        .expect("opens")
}

#[test]
fn a_retention_of_0_of_1_ms_or_without_end_is_an_error() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        for value in [
            Duration::ZERO,
            ms(1),
            ms(999),
            Duration::from_nanos(999_999_999),
            oncekey::limits::RETENTION_MAX + ms(1),
            ms(u64::MAX),
            Duration::MAX,
        ] {
            #[track_caller]
            fn check(error: ClaimOptionsError, value: Duration) {
                match error {
                    ClaimOptionsError::OutOfRange {
                        option,
                        value: named,
                        ..
                    } => assert_eq!((option, named), ("retention", value)),
                    other => panic!("{other:?}"),
                }
            }
            // Of a claim: nothing is claimed.
            match mode.claim_with(&store, &key, request(), retention(value)) {
                Err(ClaimError::Options(error)) => check(error, value),
                other => panic!("{mode:?}: {other:?}"),
            }
            assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
            // Of a completion: the key is still held.
            let operation = started(mode.claim(&store, &key, request()));
            let completion = operation.complete_with(b"paid").retention(value);
            let refused = match mode.style {
                Style::Blocking => completion.commit(),
                Style::Async => block_on(completion.commit_async()),
            };
            let refused = refused.expect_err("refused");
            match refused.error() {
                WriteError::Options(error) => check(*error, value),
                other => panic!("{mode:?}: {other:?}"),
            }
            let operation = refused.into_operation().expect("the guard");
            mode.release(operation).expect("a release");
            // Of a store.
            let opened = mode.options().retention(value).open(directory().path());
            match opened {
                Err(OpenError::Options(OptionsError::Claim(error))) => check(error, value),
                other => panic!("{mode:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_result_answers_up_to_its_deadline_and_not_at_it() {
    for mode in modes() {
        for length in [
            Duration::from_secs(1),
            Duration::from_millis(1_500),
            DAY,
            45 * DAY,
            oncekey::limits::RETENTION_MAX,
        ] {
            let (_directory, store, clock) = mode.store_and_clock();
            let key = key("k-1");
            let claim = mode.claim_with(&store, &key, request(), retention(length));
            let operation = started(claim.expect("a claim"));
            // Retention begins at completion, not at the claim.
            clock.advance(10 * DAY);
            let saved = mode.complete(operation, b"paid").expect("a completion");
            assert_eq!(saved.completed_at(), wall(&clock));
            assert_eq!(saved.expires_at(), wall(&clock) + length);
            clock.advance(length - ms(1));
            completed(mode.claim(&store, &key, request()));
            assert!(matches!(store.get(&key), Ok(KeyState::Completed(_))));
            clock.advance(ms(1));
            assert!(matches!(store.get(&key), Ok(KeyState::Absent)), "{mode:?}");
            let operation = started(mode.claim(&store, &key, request()));
            assert_eq!(operation.attempt(), 1);
            assert!(operation.previous().is_none());
            assert!(operation.token() > saved.token());
        }
    }
}

#[test]
fn a_replay_does_not_make_a_result_last_longer() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let saved = finish(&store, &key, b"paid");
        for _ in 0..24 {
            clock.advance(Duration::from_secs(3_599));
            let replayed = completed(mode.claim(&store, &key, request()));
            assert_eq!(replayed.expires_at(), saved.expires_at());
        }
        clock.advance(Duration::from_secs(24));
        drop(started(mode.claim(&store, &key, request())));
    }
}

#[test]
fn a_completions_retention_goes_before_the_claims_and_that_before_the_stores() {
    for mode in modes() {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let store = open(&directory, mode.options().retention(DAY), &clock);
        let lasts = |claim: ClaimOptions, completion: Option<Duration>| {
            let key = key("k-1");
            let claim = mode.claim_with(&store, &key, request(), claim);
            let mut ended = started(claim.expect("a claim")).complete_with(b"paid");
            if let Some(value) = completion {
                ended = ended.retention(value);
            }
            let saved = match mode.style {
                Style::Blocking => ended.commit(),
                Style::Async => block_on(ended.commit_async()),
            };
            let saved = saved.expect("a completion");
            let after = saved.expires_at().duration_since(saved.completed_at());
            store.forget(&key, oncekey::Forget::Force).expect("free");
            after.expect("later")
        };
        assert_eq!(lasts(ClaimOptions::new(), None), DAY);
        assert_eq!(lasts(retention(3 * DAY), None), 3 * DAY);
        assert_eq!(lasts(ClaimOptions::new(), Some(4 * DAY)), 4 * DAY);
        assert_eq!(lasts(retention(3 * DAY), Some(ms(1_000))), ms(1_000));
    }
}

#[test]
fn results_of_different_retentions_live_on_one_store_each_for_its_own_time() {
    let (directory, store, clock) = buffered_and_clock();
    let lengths: Vec<Duration> = (1..=50).map(|step| step * ms(1_000)).collect();
    for (number, length) in lengths.iter().enumerate() {
        let claim = store.claim_with(&key(&number.to_string()), request(), retention(*length));
        let operation = started(claim.expect("a claim"));
        operation.complete(b"paid").expect("a completion");
    }
    let mut store = store;
    for passed in 0..lengths.len() {
        for number in 0..lengths.len() {
            let answers = matches!(
                store.get(&key(&number.to_string())),
                Ok(KeyState::Completed(_))
            );
            assert_eq!(answers, number >= passed, "key {number} after {passed} s");
        }
        clock.advance(ms(1_000));
        if passed % 10 == 9 {
            drop(store);
            store = open(&directory, small(Durability::Buffered), &clock);
        }
    }
}

#[test]
fn a_result_expires_at_the_same_moment_whether_or_not_the_store_was_reopened() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        finish(&store, &key, b"paid");
        clock.advance(DAY - ms(1));
        drop(store);
        let store = mode.reopen(&directory, &clock);
        completed(mode.claim(&store, &key, request()));
        clock.advance(ms(1));
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        drop(store);
        let store = mode.reopen(&directory, &clock);
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        drop(started(mode.claim(&store, &key, request())));
    }
}

#[test]
fn a_result_that_has_expired_never_comes_back() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        finish(&store, &key, b"the first");
        clock.advance(DAY);
        let operation = started(mode.claim(&store, &key, request()));
        // Neither while the new one is pending, nor when it is released.
        in_progress(mode.claim(&store, &key, request()));
        mode.release(operation).expect("a release");
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        // Nor by a wall clock that is set back, with or without a restart.
        clock.set_wall_ms(START_MS);
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        drop(store);
        let store = mode.reopen(&directory, &clock);
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)), "{mode:?}");
        let operation = started(mode.claim(&store, &key, request()));
        mode.complete(operation, b"the second")
            .expect("a completion");
        drop(store);
        let store = mode.reopen(&directory, &clock);
        let saved = completed(mode.claim(&store, &key, request()));
        assert_eq!(bytes(&saved), b"the second");
        assert_eq!(store.stats().completed_keys, 1);
    }
}

#[test]
fn a_key_used_anew_each_time_it_expires_has_one_result_at_a_time() {
    for mode in modes() {
        let (directory, mut store, clock) = mode.store_and_clock();
        let keys: Vec<_> = (0..5).map(|number| key(&number.to_string())).collect();
        for generation in 0..12 {
            for key in &keys {
                let claim = mode.claim_with(&store, key, request(), retention(ms(1_000)));
                let operation = started(claim.expect("a claim"));
                let answer = format!("of generation {generation}");
                mode.complete(operation, &answer).expect("a completion");
                for _ in 0..2 {
                    let saved = completed(mode.claim(&store, key, request()));
                    assert_eq!(bytes(&saved), answer.as_bytes(), "{mode:?}");
                }
            }
            assert_eq!(store.stats().completed_keys, keys.len() as u64, "{mode:?}");
            if generation % 4 == 3 {
                drop(store);
                store = mode.reopen(&directory, &clock);
                assert_eq!(store.stats().completed_keys, keys.len() as u64);
            }
            clock.advance(ms(1_000));
        }
    }
}

#[test]
fn an_expired_key_whose_new_owner_dies_is_interrupted_and_not_completed() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        finish(&store, &key, b"the first");
        clock.advance(DAY);
        let operation = started(mode.claim(&store, &key, request()));
        let copy = killed(&store);
        drop(operation);
        for store in [store, mode.reopen(&copy, &clock)] {
            let operation = interrupted(mode.claim(&store, &key, request()));
            assert_eq!(operation.attempt(), 2);
        }
    }
}

#[test]
fn a_store_opened_with_a_shorter_retention_keeps_what_it_promised_before() {
    for mode in modes() {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let store = open(&directory, mode.options().retention(10 * DAY), &clock);
        let (done, gone) = (key("done"), key("gone"));
        finish(&store, &done, b"paid");
        drop(started(mode.claim(&store, &gone, request())));
        drop(store);
        let store = open(&directory, mode.options().retention(ms(1_000)), &clock);
        clock.advance(10 * DAY - ms(1));
        completed(mode.claim(&store, &done, request()));
        // What is claimed now is kept as is asked for now.
        let operation = interrupted(mode.claim(&store, &gone, request()));
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(saved.expires_at(), saved.completed_at() + ms(1_000));
    }
}

#[test]
fn a_wall_clock_that_jumps_expires_nothing_early_and_keeps_nothing_long() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), retention(ms(100_000)));
        let operation = started(claim.expect("a claim"));
        mode.complete(operation, b"paid").expect("a completion");
        // Ten years ahead, then to the beginning of time.
        for wall_ms in [START_MS + 315_360_000_000, 0] {
            clock.set_wall_ms(wall_ms);
            for _ in 0..40 {
                clock.advance(ms(1_000));
                completed(mode.claim(&store, &key, request()));
            }
        }
        // Steered by no more than a twentieth, it is over at 105 s at the latest.
        clock.advance(ms(25_000));
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)), "{mode:?}");
    }
}

#[test]
fn store_time_never_goes_back_not_even_over_a_restart_with_the_clock_set_back() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        finish(&store, &key("k-1"), b"paid");
        clock.advance(DAY / 2);
        finish(&store, &key("k-2"), b"paid");
        let before = store.now();
        let copy = killed(&store);
        store.close().expect("closes");
        clock.set_wall_ms(START_MS - 5 * 86_400_000);
        for directory in [&directory, &copy] {
            let store = mode.reopen(directory, &clock);
            assert!(store.now() >= before, "{mode:?}");
            completed(mode.claim(&store, &key("k-1"), request()));
            let saved = finish(&store, &key("k-3"), b"paid");
            assert!(saved.completed_at() >= before);
            // The monotonic clock counts on from there.
            clock.advance(DAY);
            assert!(matches!(store.get(&key("k-1")), Ok(KeyState::Absent)));
        }
    }
}

#[test]
fn a_clock_far_ahead_at_open_is_an_error_until_it_is_allowed_and_expires_nothing() {
    for durability in DURABILITIES {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let options = small(durability).max_clock_jump(DAY);
        let store = open(&directory, options.clone(), &clock);
        finish(&store, &key("k-1"), b"paid");
        store.close().expect("closes");
        drop(store);
        let before = contents(directory.path());
        let wrong = ManualClock::new(START_MS + 86_400_001);
        for _ in 0..2 {
            let refused = options
                .clone()
                .clock(Arc::new(wrong.clone()))
                .open(directory.path());
            match refused {
                Err(
                    ref error @ OpenError::ClockJumped {
                        wall_ms,
                        high_water_ms,
                        max_clock_jump_ms,
                    },
                ) => {
                    assert_eq!(wall_ms, START_MS + 86_400_001);
                    assert_eq!(high_water_ms, START_MS);
                    assert_eq!(max_clock_jump_ms, 86_400_000);
                    assert!(error.to_string().contains("allow_clock_jump"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            contents(directory.path()),
            before,
            "a refused open changes nothing"
        );
        // Exactly as far as allowed is no jump.
        let right = ManualClock::new(START_MS + 86_399_999);
        let store = open(&directory, options.clone(), &right);
        completed(store.claim(&key("k-1"), request()).expect("a claim"));
        drop(store);
        let late = ManualClock::new(START_MS + 10 * 86_400_000);
        let store = open(&directory, options.allow_clock_jump(true), &late);
        assert!(matches!(store.get(&key("k-1")), Ok(KeyState::Absent)));
        assert_eq!(store.now(), wall(&late));
    }
}

#[test]
fn a_store_closed_for_long_needs_no_manual_step_within_the_jump_that_is_allowed() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let store = open(&directory, small(Durability::Buffered), &clock);
    let claim = store.claim_with(&key("k-1"), request(), retention(100 * DAY));
    let operation = started(claim.expect("a claim"));
    operation.complete(b"paid").expect("a completion");
    clock.advance(20 * DAY);
    finish(&store, &key("k-2"), b"paid");
    // Killed: the newest record tells how late it was, not META.
    let copy = killed(&store);
    drop(store);
    clock.advance(30 * DAY);
    let store = open(&copy, small(Durability::Buffered), &clock);
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
    assert_eq!(store.now(), wall(&clock));
}

#[test]
fn a_first_request_sent_longer_ago_than_results_are_kept_is_too_late() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = |key, sent| {
            mode.claim_with(&store, key, request(), first_sent(sent))
                .expect("a claim")
        };
        let (one, two) = (key("k-1"), key("k-2"));
        let sent = wall(&clock);
        clock.advance(DAY + ms(1));
        match claim(&one, sent) {
            Claim::TooLate(late) => {
                assert_eq!(late.first_sent, sent);
                assert_eq!(late.limit, wall(&clock) - DAY + ms(1));
            }
            other => panic!("{mode:?}: {other:?}"),
        }
        assert!(matches!(store.get(&one), Ok(KeyState::Absent)));
        assert_eq!(store.stats().pending_keys, 0);
        // To the millisecond.
        let limit = wall(&clock) - DAY + ms(1);
        assert!(matches!(claim(&one, limit - ms(1)), Claim::TooLate(_)));
        drop(started(claim(&one, limit)));
        drop(started(claim(&two, wall(&clock) + DAY)));
        // What is known is answered, however old the request is.
        let operation = interrupted(claim(&one, limit - 100 * DAY));
        in_progress(claim(&one, limit - 100 * DAY));
        mode.complete(operation, b"paid").expect("a completion");
        completed(claim(&one, limit - 100 * DAY));
        let options = first_sent(limit - 100 * DAY);
        mismatch(
            mode.claim_with(&store, &one, other_request(), options)
                .expect("a claim"),
        );
        // Its result came and went: running again is what must not happen.
        clock.advance(DAY);
        assert!(matches!(claim(&one, limit), Claim::TooLate(_)));
        // Who does not say when it was first sent takes the risk.
        drop(started(mode.claim(&store, &one, request())));
    }
}

/// Sent, claimed and completed within one millisecond, its result expires a retention later to the
/// millisecond: from that moment on a retry is too late, and not one moment after.
#[test]
fn a_retry_is_too_late_from_the_moment_its_result_expires() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let sent = wall(&clock);
        let claim = || {
            mode.claim_with(&store, &key("k-1"), request(), first_sent(sent))
                .expect("a claim")
        };
        let operation = started(claim());
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(saved.expires_at(), sent + DAY);
        clock.advance(DAY - ms(1));
        completed(claim());
        clock.advance(ms(1));
        assert!(matches!(claim(), Claim::TooLate(_)), "{mode:?}");
        // In a batch, and to one who runs it, as well.
        let options = first_sent(sent);
        let mut batch = store.claim_many([(&key("k-1"), request())], options);
        assert!(matches!(batch.remove(0), Ok(Claim::TooLate(_))));
        assert_eq!(store.stats().claims_too_late, 2);
    }
}

/// One who waited for an owner that says that nothing happened is told that it is too late by now.
#[test]
fn a_waiter_whose_request_grew_too_old_is_too_late() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let sent = wall(&clock);
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        let claim = mode.claim_with(&store, &key("k-1"), request(), first_sent(sent));
        let progress = in_progress(claim.expect("a claim"));
        clock.advance(DAY);
        mode.release(operation).expect("a release");
        let claim = mode.wait(progress).expect("an answer");
        assert!(matches!(claim, Claim::TooLate(_)), "{mode:?}");
    }
}

/// A key that is interrupted is not absent, so its retry is never too late.
#[test]
fn an_interrupted_operation_is_taken_up_however_long_ago_it_was_sent() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let sent = wall(&clock);
        drop(started(mode.claim(&store, &key("k-1"), request())));
        drop(store);
        clock.advance(20 * DAY);
        let store = mode.reopen(&directory, &clock);
        let claim = mode.claim_with(&store, &key("k-1"), request(), first_sent(sent));
        drop(interrupted(claim.expect("a claim")));
    }
}

#[test]
fn every_answer_that_has_an_end_tells_it() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        let other = mismatch(mode.claim(&store, &key("k-1"), other_request()));
        assert_eq!((other.completed, other.expires_at), (false, None));
        let own = mode.complete(operation, b"paid").expect("a completion");
        let expires_at = wall(&clock) + DAY;
        assert_eq!(own.expires_at(), expires_at);
        let operation = mode.claim_with(&store, &key("k-2"), request(), lease(1_000));
        let ticket = started(operation.expect("a claim")).into_ticket();
        let ticket = ticket.expect("a ticket");
        let resumed = started(store.resume(&ticket).expect("a guard"));
        mode.complete(resumed, b"paid").expect("a completion");
        clock.advance(ms(5));
        let copy = killed(&store);
        drop((store, directory));
        let store = mode.reopen(&copy, &clock);
        let replayed = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(replayed.expires_at(), expires_at);
        let other = mismatch(mode.claim(&store, &key("k-1"), other_request()));
        assert_eq!(
            (other.completed, other.expires_at),
            (true, Some(expires_at))
        );
        match store.get(&key("k-1")).expect("an answer") {
            KeyState::Completed(saved) => assert_eq!(saved.expires_at(), expires_at),
            other => panic!("{other:?}"),
        }
        let resumed = completed(store.resume(&ticket).expect("an answer"));
        assert_eq!(resumed.expires_at(), expires_at);
        let ran = store.run(&key("k-1"), request(), oncekey::RunOptions::new(), |_| {
            Ok::<_, std::io::Error>(b"never")
        });
        assert_eq!(ran.expect("a result").expires_at(), expires_at);
    }
}

#[test]
fn too_late_is_measured_by_the_claims_own_retention() {
    let (_directory, store, clock) = buffered_and_clock();
    let sent = wall(&clock);
    clock.advance(2 * DAY);
    let longer = first_sent(sent).retention(3 * DAY);
    let claim = store.claim_with(&key("k-1"), request(), longer);
    drop(started(claim.expect("a claim")));
    let shorter = first_sent(sent).retention(DAY);
    let claim = store.claim_with(&key("k-2"), request(), shorter);
    assert!(matches!(claim, Ok(Claim::TooLate(_))));
}

#[test]
fn in_a_restored_copy_what_was_first_sent_before_the_restore_is_too_late() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        finish(&store, &key("known"), b"paid");
        let known = store.get(&key("known"));
        let copy = killed(&store);
        // Ran after the backup was made.
        clock.advance(ms(1_000));
        let sent = wall(&clock);
        finish(&store, &key("lost"), b"paid");
        store.close().expect("closes");
        drop((store, directory));

        clock.advance(ms(1_000));
        let restored_at = wall(&clock);
        let options = mode.options().clock(Arc::new(clock.clone()));
        let store = options
            .clone()
            .restored(true)
            .open(copy.path())
            .expect("opens");
        clock.advance(ms(1_000));
        let check = |store: &Store| {
            let claim = mode.claim_with(store, &key("lost"), request(), first_sent(sent));
            match claim.expect("a claim") {
                Claim::TooLate(late) => {
                    assert_eq!((late.first_sent, late.limit), (sent, restored_at));
                }
                other => panic!("{mode:?}: {other:?}"),
            }
            let claim = mode.claim_with(store, &key("known"), request(), first_sent(sent));
            assert_eq!(
                completed(claim.expect("a claim")).sequence(),
                match &known {
                    Ok(KeyState::Completed(saved)) => saved.sequence(),
                    other => panic!("{other:?}"),
                }
            );
            let claim = mode.claim_with(store, &key("new"), request(), first_sent(restored_at));
            drop(owned(claim.expect("a claim")));
        };
        check(&store);
        // The mark stays when the store is opened as usual from then on.
        drop(store);
        check(&options.open(copy.path()).expect("reopens"));
    }
}

#[test]
fn the_system_clock_tells_the_time_of_day() {
    let (_directory, store) = buffered();
    // Store time is steered to the wall clock, not set by it.
    let before = SystemTime::now() - ms(1_000);
    let saved = finish(&store, &key("k-1"), b"paid");
    let after = SystemTime::now() + ms(1_000);
    assert!((before..=after).contains(&saved.completed_at()));
    assert!((before..=after).contains(&store.now()));
}
