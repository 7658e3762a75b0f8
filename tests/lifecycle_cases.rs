//! Faults seen in idempotency layers, each as a test named by its symptom. The number is that of the
//! case in the collection that the design was checked against.

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Fingerprint, Forget, Key, KeyState, Lease,
    ManualClock, Options, Replay, Store, WriteError,
};

use support::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// F1: a function times out, its record stays in progress, and all retries fail until the results'
/// retention is over.
#[test]
fn f1_a_handler_that_timed_out_does_not_block_its_key_until_the_retention_is_over() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = mode.claim_with(&store, &key("k-1"), request(), lease(1_500));
        // Neither completed nor dropped: it hangs.
        std::mem::forget(started(claim.expect("a claim")));
        clock.advance(ms(1_499));
        in_progress(mode.claim(&store, &key("k-1"), request()));
        clock.advance(ms(1));
        drop(interrupted(mode.claim(&store, &key("k-1"), request())));
        store.close().expect("closes");
    }
}

/// F2: 0 ms of remaining time taken for "not given", so that no lease is written at all.
#[test]
fn f2_a_lease_of_nothing_is_not_taken_for_no_lease() {
    let (_directory, store) = buffered();
    let claim = store.claim_with(&key("k-1"), request(), lease(0));
    assert!(matches!(claim, Err(ClaimError::Options(_))));
    assert!(matches!(store.get(&key("k-1")), Ok(KeyState::Absent)));
    let claim = store.claim_with(&key("k-1"), request(), lease(u64::MAX));
    assert!(matches!(claim, Err(ClaimError::Options(_))));
    let (_directory, store, clock) = buffered_and_clock();
    let claim = store.claim_with(&key("k-1"), request(), lease(1));
    let _operation = started(claim.expect("a claim"));
    in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    clock.advance(ms(1));
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

/// F3: a lease stored in milliseconds and compared with seconds.
#[test]
fn f3_milliseconds_are_not_compared_with_seconds() {
    let (_directory, store, clock) = buffered_and_clock();
    let claim = store.claim_with(&key("k-1"), request(), lease(1_500));
    let _operation = started(claim.expect("a claim"));
    for advance in [1, 2, 1_496] {
        clock.advance(ms(advance));
        in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    }
    clock.advance(ms(1));
    drop(interrupted(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
}

/// F4: a lease that is over re-runs a withdrawal that takes long at a third party.
#[test]
fn f4_a_withdrawal_that_takes_long_can_have_a_lease_of_its_own_or_none() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let store = small(Durability::Buffered)
        .lease(Lease::For(ms(1_000)))
        .clock(Arc::new(clock.clone()))
        .open(directory.path())
        .expect("a store");
    let hour = ClaimOptions::new().lease(Lease::For(Duration::from_secs(3_600)));
    let never = ClaimOptions::new().lease(Lease::WhileAlive);
    let claim = store.claim_with(&key("hour"), request(), hour);
    let _one = started(claim.expect("a claim"));
    let claim = store.claim_with(&key("never"), request(), never);
    let _two = started(claim.expect("a claim"));
    clock.advance(Duration::from_secs(3_599));
    in_progress(store.claim(&key("hour"), request()).expect("a claim"));
    clock.advance(300 * DAY);
    drop(interrupted(
        store.claim(&key("hour"), request()).expect("a claim"),
    ));
    in_progress(store.claim(&key("never"), request()).expect("a claim"));
}

/// F6, F13, F15: a crash or a rolling restart leaves a lock, and clients get 409 for days.
#[test]
fn f6_a_crash_leaves_no_key_locked_and_what_it_left_is_listed() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = mode.claim_with(&store, &key("k-1"), request(), lease(3 * 86_400_000));
        let operation = started(claim.expect("a claim"));
        clock.advance(ms(5_000));
        let copy = killed(&store);
        drop(operation);
        let after = mode.reopen(&copy, &clock);
        let listed = after.interrupted().expect("a list").remove(0);
        assert_eq!((listed.key, listed.age), (key("k-1"), ms(5_000)));
        drop(interrupted(mode.claim(&after, &key("k-1"), request())));
    }
}

/// F9, F95: the mark of a claim is written with the results' retention.
#[test]
fn f9_the_mark_of_a_claim_does_not_last_as_long_as_a_result_and_is_not_dropped_by_it() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let short = ClaimOptions::new().retention(ms(1_000));
        let claim = mode.claim_with(&store, &key("k-1"), request(), short);
        let operation = started(claim.expect("a claim"));
        clock.advance(DAY);
        in_progress(mode.claim(&store, &key("k-1"), request()));
        drop(operation);
        clock.advance(DAY);
        drop(store);
        let store = mode.reopen(&directory, &clock);
        drop(interrupted(mode.claim(&store, &key("k-1"), request())));
    }
}

/// F10, F14: the mark is deleted when the handler fails, and one that has charged the card runs
/// again as if nothing had happened.
#[test]
fn f10_a_handler_that_failed_after_it_charged_is_not_run_again_as_if_it_were_the_first() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let charges = AtomicU32::new(0);
        let handler = |operation: &mut oncekey::Operation| -> Result<(), &'static str> {
            if operation.previous().is_none() {
                charges.fetch_add(1, Ordering::SeqCst);
                operation.checkpoint(b"charged").expect("a checkpoint");
                return Err("the connection was lost after the charge");
            }
            Ok(())
        };
        let mut operation = started(mode.claim(&store, &key("k-1"), request()));
        assert!(handler(&mut operation).is_err());
        drop(operation);
        let mut operation = interrupted(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(operation.previous().expect("told").attempt, 1);
        handler(&mut operation).expect("it only looks this time");
        mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(charges.load(Ordering::SeqCst), 1);
    }
}

/// F11: the mark is freed only on one way out of the handler.
#[test]
fn f11_every_way_out_of_a_handler_ends_its_hold() {
    let (_directory, store) = buffered();
    let claim = |id: &str| started(store.claim(&key(id), request()).expect("a claim"));
    let early = || -> Option<()> {
        let _operation = claim("early return");
        None?;
        Some(())
    };
    assert!(early().is_none());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _operation = claim("panic");
        panic!("as this test wants it to");
    }));
    assert!(panicked.is_err());
    let operation = claim("cancelled");
    drop(
        Polled::new(async move {
            let _operation = operation;
            std::future::pending::<()>().await;
        })
        .pending(),
    );
    assert_eq!(store.stats().interrupted_keys, 3);
    assert!(store.pending().expect("a list").is_empty());
}

/// F24: a key scoped by the user alone: a cancel request gets the create request's answer.
#[test]
fn f24_the_same_key_on_two_operations_is_two_keys() {
    let (_directory, store) = buffered();
    let of = |operation: &str| Key::new("acct_1", operation, "k-1").expect("a key");
    finish(&store, &of("POST /orders"), b"created");
    finish(&store, &of("POST /orders/7/cancel"), b"cancelled");
    let saved = completed(
        store
            .claim(&of("POST /orders"), request())
            .expect("a claim"),
    );
    assert_eq!(bytes(&saved), b"created");
}

/// F26, F54: a second, different request under the same key is silently answered with the first.
#[test]
fn f26_a_different_request_under_the_same_key_is_neither_run_nor_answered() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        finish(&store, &key("k-1"), b"paid");
        let found = mismatch(mode.claim(&store, &key("k-1"), other_request()));
        assert!(found.completed);
        let saved = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(bytes(&saved), b"paid");
    }
}

/// F29, F31: the duplicates of before are accepted after a restart.
#[test]
fn f29_every_key_is_answered_the_same_before_and_after_a_restart() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let mut random = Random::new(29);
        let keys: Vec<_> = (0..120).map(|number| key(&number.to_string())).collect();
        for step in 0..600 {
            let chosen = &keys[random.below(keys.len())];
            match mode.claim(&store, chosen, request()) {
                Claim::Started(operation) | Claim::Interrupted(operation) => {
                    match random.below(4) {
                        0 => drop(operation),
                        1 => operation.release().expect("a release"),
                        _ => drop(operation.complete(step.to_string()).expect("done")),
                    }
                }
                Claim::Completed(_) if random.below(3) == 0 => {
                    store
                        .forget(chosen, Forget::IfCompleted)
                        .expect("forgotten");
                }
                _ => {}
            }
            if mode.durability == Durability::Sync && step == 150 {
                break;
            }
        }
        let answers = |store: &Store| -> Vec<String> {
            keys.iter()
                .map(|key| match store.get(key).expect("a look") {
                    KeyState::Absent => String::from("absent"),
                    KeyState::Interrupted { attempt, token, .. } => {
                        format!("interrupted {attempt} {token}")
                    }
                    KeyState::Completed(saved) => {
                        let text = String::from_utf8(bytes(&saved)).expect("text");
                        format!("completed {} {text}", saved.sequence())
                    }
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        let before = answers(&store);
        let copy = killed(&store);
        assert_eq!(answers(&mode.reopen(&copy, &clock)), before, "{mode:?}");
        drop(store);
        for _ in 0..3 {
            assert_eq!(answers(&mode.reopen(&directory, &clock)), before);
        }
    }
}

/// F30: it is not said whether the time to live slides with each duplicate.
#[test]
fn f30_a_duplicate_every_minute_does_not_keep_a_result_for_ever() {
    let (_directory, store, clock) = buffered_and_clock();
    let short = ClaimOptions::new().retention(Duration::from_secs(120));
    let mut runs = 0;
    for _minute in 0..10 {
        match store
            .claim_with(&key("k-1"), request(), short.clone())
            .expect("a claim")
        {
            Claim::Started(operation) => {
                runs += 1;
                operation.complete(b"sent").expect("a completion");
            }
            claim => drop(completed(claim)),
        }
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(runs, 5, "from completion, every two minutes");
}

/// F31, F80: restarts in the middle of work yield duplicates.
#[test]
fn f31_a_key_is_completed_once_however_often_the_service_is_killed() {
    for mode in modes() {
        let (mut directory, mut store, clock) = mode.store_and_clock();
        let keys: Vec<_> = (0..10).map(|number| key(&number.to_string())).collect();
        let mut answers: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut random = Random::new(31);
        for life in 0..12 {
            for (number, key) in keys.iter().enumerate() {
                match mode.claim(&store, key, request()) {
                    Claim::Completed(saved) => {
                        assert_eq!(Some(&bytes(&saved)), answers.get(&number), "{mode:?}");
                    }
                    claim => {
                        let operation = owned(claim);
                        assert!(!answers.contains_key(&number), "run again, {mode:?}");
                        if random.below(3) == 0 {
                            let answer = format!("of life {life}").into_bytes();
                            mode.complete(operation, &answer).expect("a completion");
                            answers.insert(number, answer);
                        }
                    }
                }
            }
            let copy = killed(&store);
            drop(store);
            directory = copy;
            store = mode.reopen(&directory, &clock);
        }
        drop((store, directory));
        assert!(answers.len() > 5);
    }
}

/// F32, F35: it is unclear whether a purge forgets; failed work can't be queued again with its id.
#[test]
fn f32_what_is_forgotten_or_released_can_be_claimed_at_once_under_the_same_id() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        finish(&store, &key("k-1"), b"paid");
        assert!(store.forget(&key("k-1"), Forget::IfCompleted).expect("it"));
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        mode.release(operation).expect("a release");
        let operation = started(mode.claim(&store, &key("k-1"), other_request()));
        mode.complete(operation, b"again").expect("a completion");
    }
}

/// F33: a bulk import stalls at duplicate ids.
#[test]
fn f33_an_import_with_duplicate_ids_finishes_and_the_first_one_wins() {
    let (_directory, store) = buffered();
    let keys: Vec<_> = (0..50)
        .map(|number| key(&(number % 20).to_string()))
        .collect();
    let pairs = keys.iter().map(|key| (key, Fingerprint::none()));
    let mut duplicates = 0;
    for (number, claim) in store
        .claim_many(pairs, ClaimOptions::new())
        .into_iter()
        .enumerate()
    {
        match claim.expect("an answer") {
            Claim::Started(operation) => {
                operation.complete(number.to_string()).expect("done");
            }
            // The batch is claimed before any of it is completed.
            claim => {
                assert!(in_progress(claim).is_same_batch());
                duplicates += 1;
            }
        }
    }
    assert_eq!(duplicates, 30);
    for number in 0..20 {
        let claim = store.claim(&key(&number.to_string()), Fingerprint::none());
        assert_eq!(
            bytes(&completed(claim.expect("a claim"))),
            number.to_string().as_bytes()
        );
    }
}

/// F34: after a change of the configuration the data is not recovered.
#[test]
fn f34_a_store_opens_with_other_options_than_it_was_written_with() {
    let directory = directory();
    let clock = ManualClock::new(START_MS);
    let open = |options: Options| {
        options
            .clock(Arc::new(clock.clone()))
            .open(directory.path())
            .expect("opens")
    };
    let large = Options::new()
        .durability(Durability::Sync)
        .segment_size(4 << 20)
        .stripes(1_024)
        .max_key_part(1_024);
    let store = open(large.clone());
    let long = Key::new("", "", vec![b'x'; 1_000]).expect("a key");
    let response = vec![7; 1 << 20];
    for key in [&key("k-1"), &long] {
        let claim = store.claim(key, request()).expect("a claim");
        started(claim).complete(&response).expect("a completion");
    }
    drop(started(store.claim(&key("gone"), request()).expect("it")));
    drop(store);
    for options in [
        small(Durability::Buffered).stripes(1).max_response(10),
        small(Durability::Sync)
            .retention(ms(1_000))
            .lease(Lease::For(ms(1)))
            .max_pending(1),
        large.clone(),
    ] {
        let store = open(options);
        let saved = completed(store.claim(&key("k-1"), request()).expect("a claim"));
        assert_eq!(bytes(&saved), response);
        assert_eq!(store.stats().completed_keys, 2);
        assert_eq!(store.stats().interrupted_keys, 1);
        drop(interrupted(
            store.claim(&key("gone"), request()).expect("it"),
        ));
    }
    let store = open(large);
    completed(store.claim(&long, request()).expect("a claim"));
}

/// F38, F43, F84: extending gives a new lock, and completing computes the key anew.
#[test]
fn f43_a_guard_completes_the_key_it_was_given_for_and_no_other() {
    let (_directory, store, clock) = buffered_and_clock();
    let claim = |id: &str| {
        let claim = store.claim_with(&key(id), request(), lease(1_000));
        started(claim.expect("a claim"))
    };
    let (mut one, mut two) = (claim("k-1"), claim("k-2"));
    for _ in 0..5 {
        clock.advance(ms(999));
        one.renew().expect("in place");
        two.renew().expect("in place");
    }
    std::mem::swap(&mut one, &mut two);
    assert_eq!((one.key(), two.key()), (&key("k-2"), &key("k-1")));
    one.complete(b"of k-2").expect("a completion");
    two.complete(b"of k-1").expect("a completion");
    for id in ["k-1", "k-2"] {
        let saved = completed(store.claim(&key(id), request()).expect("a claim"));
        assert_eq!(bytes(&saved), format!("of {id}").as_bytes());
    }
}

/// F39, F40, F74, F92: a holder that lost its lock overwrites or unlocks what is another's by now.
#[test]
fn f40_a_holder_that_was_overtaken_neither_overwrites_nor_unlocks() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let take = || {
            let claim = mode.claim_with(&store, &key("k-1"), request(), lease(1_000));
            let operation = owned(claim.expect("a claim"));
            clock.advance(ms(1_000));
            operation
        };
        let (first, second, third) = (take(), take(), take());
        let lost = mode.release(first).expect_err("refused");
        assert!(matches!(
            lost.error(),
            WriteError::LeaseLost {
                new_attempt: Some(3)
            }
        ));
        third_is_pending(&store);
        let lost = mode.complete(second, b"stale").expect_err("refused");
        assert!(matches!(lost.error(), WriteError::LeaseLost { .. }));
        mode.complete(third, b"fresh").expect("ours");
        let saved = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!((bytes(&saved), saved.attempt()), (b"fresh".to_vec(), 3));
    }
}

fn third_is_pending(store: &Store) {
    // Its lease is over as well, but it is still the newest owner.
    assert!(matches!(
        store.get(&key("k-1")),
        Ok(KeyState::Interrupted { attempt: 3, .. })
    ));
}

/// F41: a mutex for each key deadlocks under load, or is never freed.
#[test]
fn f41_many_threads_on_few_keys_come_to_an_end_and_leave_nothing_behind() {
    const THREADS: usize = 64;
    const ROUNDS: usize = 200;
    let (_directory, store) = buffered();
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                barrier.wait();
                for _ in 0..ROUNDS {
                    let key = key(&random.below(8).to_string());
                    let mut claim = store.claim(&key, request()).expect("a claim");
                    while let Claim::InProgress(progress) = claim {
                        claim = progress.wait(LONG).expect("an answer");
                    }
                    if claim.is_owned() {
                        let operation = owned(claim);
                        if random.below(2) == 0 {
                            operation.release().expect("a release");
                        } else {
                            operation.complete(b"paid").expect("a completion");
                        }
                    } else {
                        // Somebody else may have been quicker.
                        drop(store.forget(&key, Forget::IfCompleted));
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!((stats.waiters, stats.pending_keys), (0, 0));
    assert!(stats.completed_keys <= 8);
    assert!(stats.index_bytes < 64 << 10, "{} bytes", stats.index_bytes);
}

/// F45: a table that grows under concurrent claims loses entries.
#[test]
fn f45_an_index_that_grows_under_many_threads_loses_no_key() {
    const EACH: usize = 3_000;
    let directory = directory();
    let store = small(Durability::Buffered)
        .segment_size(4 << 20)
        .stripes(1)
        .open(directory.path())
        .expect("a store");
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for worker in 0..4 {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for number in 0..EACH {
                    // Every key is claimed by two threads.
                    let id = format!("{}-{number}", worker / 2);
                    let mut claim = store.claim(&key(&id), request()).expect("a claim");
                    if let Claim::InProgress(progress) = claim {
                        claim = progress.wait(LONG).expect("an answer");
                    }
                    match claim {
                        Claim::Started(operation) => {
                            operation.complete(&id).expect("a completion");
                        }
                        claim => assert_eq!(bytes(&completed(claim)), id.as_bytes()),
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.claims_started, 2 * EACH as u64);
    assert_eq!(stats.completed_keys, 2 * EACH as u64);
    for number in 0..EACH {
        for half in 0..2 {
            let id = format!("{half}-{number}");
            let saved = completed(store.claim(&key(&id), request()).expect("a claim"));
            assert_eq!(bytes(&saved), id.as_bytes());
        }
    }
}

/// F47: duplicates are counted twice in the metrics.
#[test]
fn f47_a_duplicate_counts_once() {
    let (_directory, store) = buffered();
    finish(&store, &key("k-1"), b"paid");
    for duplicates in 1..=7 {
        completed(store.claim(&key("k-1"), request()).expect("a claim"));
        assert_eq!(store.stats().claims_replayed, duplicates);
    }
    assert_eq!(store.stats().claims_in_progress, 0);
}

/// F49, F75: checking and inserting are two steps, and both deliveries of an event pass.
#[test]
fn f49_two_deliveries_of_one_event_at_once_start_one_operation() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        for event in 0..20 {
            let key = key(&format!("evt_{event}"));
            let barrier = Barrier::new(2);
            let claims: Vec<_> = thread::scope(|scope| {
                let deliveries: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            mode.claim(&store, &key, Fingerprint::none())
                        })
                    })
                    .collect();
                deliveries
                    .into_iter()
                    .map(|delivery| delivery.join().expect("no panic"))
                    .collect()
            });
            let owners = claims.iter().filter(|claim| claim.is_owned()).count();
            assert_eq!(owners, 1, "{mode:?}: {claims:?}");
        }
    }
}

/// F50: one event is to be handled by two handlers, once each.
#[test]
fn f50_every_handler_of_an_event_handles_it_once() {
    let (_directory, store) = buffered();
    let runs = AtomicU32::new(0);
    for _delivery in 0..3 {
        for handler in ["send the mail", "book the stock"] {
            let key = Key::new("shop", handler, "evt_1").expect("a key");
            if let Claim::Started(operation) =
                store.claim(&key, Fingerprint::none()).expect("a claim")
            {
                runs.fetch_add(1, Ordering::SeqCst);
                operation.complete_without_response().expect("done");
            }
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// F55, F57: what is stored is hashed differently from what is compared, or the way of hashing has
/// changed since.
#[test]
fn f57_a_new_way_to_make_fingerprints_makes_no_stored_key_a_mismatch() {
    for mode in modes() {
        let (directory, store) = mode.store();
        finish(&store, &key("k-1"), b"paid");
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        completed(mode.claim(&store, &key("k-1"), request()));
        let new = Fingerprint::custom(128, [1; 16]).expect("free to use");
        completed(mode.claim(&store, &key("k-1"), new));
        let operation = started(mode.claim(&store, &key("k-2"), new));
        mode.complete(operation, b"paid").expect("a completion");
        completed(mode.claim(&store, &key("k-2"), request()));
        let other = Fingerprint::custom(128, [2; 16]).expect("free to use");
        mismatch(mode.claim(&store, &key("k-2"), other));
    }
}

/// F58, F61, F63: no limit to a key's length, or too small a one for ids that are put together.
#[test]
fn f58_keys_of_every_allowed_length_work_and_longer_ones_are_refused() {
    let (_directory, store) = buffered();
    for len in [1, 2, 150, 254, 255] {
        let part = vec![0xF0; len];
        finish(
            &store,
            &Key::new(&part, &part, &part).expect("a key"),
            b"paid",
        );
    }
    let over = Key::new("", "", vec![b'x'; 256]).expect("a key");
    assert!(matches!(
        store.claim(&over, request()),
        Err(ClaimError::Key(_))
    ));
    assert!(Key::new("", "", "").is_err());
    assert!(Key::new("", "", vec![b'x'; 64 << 10]).is_err());
}

/// F64: a flood of keys takes all the memory, and those of others with it.
#[test]
fn f64_a_flood_of_keys_is_refused_and_what_is_held_stays_held() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .max_pending(100)
        .open(directory.path())
        .expect("a store");
    let held = started(store.claim(&key("held"), request()).expect("a claim"));
    finish(&store, &key("done"), b"paid");
    let mut flood = Vec::new();
    for number in 0..1_000 {
        match store.claim(&key(&format!("flood-{number}")), request()) {
            Ok(claim) => flood.push(started(claim)),
            Err(ClaimError::TooManyPending { limit: 100 }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(flood.len(), 99);
    completed(store.claim(&key("done"), request()).expect("a claim"));
    held.complete(b"paid").expect("a completion");
}

/// F66: a response over the limit is not stored, so the retry runs again.
#[test]
fn f66_an_operation_with_too_large_a_response_is_still_not_run_twice() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let runs = AtomicU32::new(0);
        let handle = |store: &Store| match mode.claim(store, &key("k-1"), request()) {
            Claim::Started(operation) => {
                runs.fetch_add(1, Ordering::SeqCst);
                let response = vec![7; 1 << 20];
                let refused = mode.complete(operation, &response).expect_err("too large");
                let operation = refused.into_operation().expect("the guard");
                operation.complete_without_response().expect("done");
                Some(response)
            }
            claim => match completed(claim).by_scope().expect("for nobody") {
                Replay::Response(response) => Some(response.to_vec()),
                Replay::NotStored => None,
            },
        };
        assert_eq!(handle(&store).map(|response| response.len()), Some(1 << 20));
        assert_eq!(handle(&store), None);
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        assert_eq!(handle(&store), None);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{mode:?}");
    }
}

/// F25, F69: one user gets another's result, or blocks another's key by using it first.
#[test]
fn f69_a_users_key_neither_shows_nor_blocks_another_users() {
    let (_directory, store) = buffered();
    let of = |user: &str| Key::new(user, "charge", "k-1").expect("a key");
    let _blocked = started(
        store
            .claim(&of("mallory"), other_request())
            .expect("a claim"),
    );
    finish(&store, &of("alice"), b"alice's");
    let claim = store.claim(&of("bob"), request()).expect("a claim");
    started(claim).complete(b"bob's").expect("a completion");
    in_progress(
        store
            .claim(&of("mallory"), other_request())
            .expect("a claim"),
    );
}

/// F75: a second request that comes before the first is finished is run as well.
#[test]
fn f75_the_mark_is_written_before_the_handler_runs() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        // Killed in the handler's first line.
        let copy = killed(&store);
        drop(operation);
        let after = mode.reopen(&copy, &clock);
        drop(interrupted(mode.claim(&after, &key("k-1"), request())));
    }
}

/// F78: a live key is evicted from a full table, and its request runs again.
#[test]
fn f78_no_number_of_keys_pushes_another_one_out() {
    const KEYS: usize = 20_000;
    let directory = directory();
    let store = small(Durability::Buffered)
        .segment_size(4 << 20)
        .open(directory.path())
        .expect("a store");
    let held = started(store.claim(&key("held"), request()).expect("a claim"));
    for number in 0..KEYS {
        finish(&store, &key(&number.to_string()), b"paid");
    }
    for number in 0..KEYS {
        let claim = store.claim(&key(&number.to_string()), request());
        completed(claim.expect("a claim"));
    }
    held.complete(b"paid").expect("still ours");
}

/// F79, F89: what was idle for long is forgotten between claim and completion, or stored with an
/// end that has passed.
#[test]
fn f79_an_operation_that_takes_years_completes_and_its_result_is_kept_from_then_on() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let short = ClaimOptions::new().retention(ms(1_000));
        let claim = mode.claim_with(&store, &key("k-1"), request(), short);
        let operation = started(claim.expect("a claim"));
        clock.advance(2_000 * DAY);
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert!(saved.expires_at() > store.now());
        completed(mode.claim(&store, &key("k-1"), request()));
    }
}

/// F81: an error on one partition voids the writers of all.
#[test]
fn f81_a_takeover_voids_the_guard_of_its_own_key_only() {
    let (_directory, store, clock) = buffered_and_clock();
    let claim = |id: &str, ms| {
        let claim = store.claim_with(&key(id), request(), lease(ms));
        owned(claim.expect("a claim"))
    };
    let (short, long) = (claim("k-1", 1_000), claim("k-2", 60_000));
    clock.advance(ms(1_000));
    let fresh = claim("k-1", 1_000);
    assert!(short.complete(b"stale").is_err());
    long.complete(b"paid").expect("untouched");
    fresh.complete(b"paid").expect("ours");
}

/// F83: a mark without a lease is taken for an orphan and overwritten at once.
#[test]
fn f83_a_key_without_a_lease_is_held_not_orphaned() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        for advance in [Duration::ZERO, ms(1), DAY, 3_000 * DAY] {
            clock.advance(advance);
            in_progress(mode.claim(&store, &key("k-1"), request()));
        }
        mode.complete(operation, b"paid").expect("a completion");
    }
}

/// F88: whether a lock can be taken depends on the taker's time-out instead of the owner's lease.
#[test]
fn f88_the_owners_lease_decides_not_the_takers() {
    let (_directory, store, clock) = buffered_and_clock();
    let claim = store.claim_with(&key("k-1"), request(), lease(10_000));
    let _operation = started(claim.expect("a claim"));
    clock.advance(ms(9_999));
    for ms in [1, 100_000] {
        let claim = store.claim_with(&key("k-1"), request(), lease(ms));
        in_progress(claim.expect("a claim"));
    }
    clock.advance(ms(1));
    let claim = store.claim_with(&key("k-1"), request(), lease(100_000));
    drop(interrupted(claim.expect("a claim")));
}

/// F93: waiting pins a worker for each duplicate of a key that can be guessed.
#[test]
fn f93_duplicates_over_the_limit_are_sent_away_at_once() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .max_waiters_per_key(5)
        .open(directory.path())
        .expect("a store");
    let _operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let mut waiting = Vec::new();
    let mut sent_away = 0;
    for _ in 0..50 {
        let progress = in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
        let mut future = Polled::new(progress.wait_async());
        match future.poll() {
            std::task::Poll::Pending => waiting.push(future),
            std::task::Poll::Ready(answer) => {
                assert!(matches!(answer, Err(ClaimError::TooManyWaiters { .. })));
                sent_away += 1;
            }
        }
    }
    assert_eq!((waiting.len(), sent_away), (5, 45));
}

/// F99: a duplicate learns nothing about the first one.
#[test]
fn f99_a_duplicate_learns_which_attempt_it_is_a_duplicate_of() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        let (token, since) = (operation.token(), operation.started_at());
        let progress = in_progress(mode.claim(&store, &key("k-1"), request()));
        assert_eq!((progress.attempt(), progress.since()), (1, since));
        mode.complete(operation, b"paid").expect("a completion");
        let saved = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!((saved.attempt(), saved.token()), (1, token));
    }
}

/// F51, F100: fifteen minutes are too short for some clients, and when a result ends is not told.
#[test]
fn f100_results_for_a_second_and_for_45_days_share_a_store_and_tell_their_end() {
    let (_directory, store, clock) = buffered_and_clock();
    let complete = |id: &str, retention: Duration| {
        let options = ClaimOptions::new().retention(retention);
        let claim = store.claim_with(&key(id), request(), options);
        let saved = started(claim.expect("a claim")).complete(b"paid");
        saved.expect("a completion").expires_at()
    };
    let now = store.now();
    assert_eq!(complete("second", ms(1_000)), now + ms(1_000));
    assert_eq!(complete("days", 45 * DAY), now + 45 * DAY);
    clock.advance(ms(1_000));
    assert!(matches!(store.get(&key("second")), Ok(KeyState::Absent)));
    clock.advance(45 * DAY - ms(1_001));
    let saved = completed(store.claim(&key("days"), request()).expect("a claim"));
    assert_eq!(saved.expires_at(), now + 45 * DAY);
}
