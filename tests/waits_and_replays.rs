//! A duplicate waits for the owner without costing a thread, and gets the owner's answer.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use oncekey::{Claim, ClaimError, ClaimOptions, Durability, Forget, KeyState, Replay, Unavailable};

use support::*;

#[test]
fn a_retry_after_a_lost_answer_replays_the_answer_and_runs_nothing() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let runs = AtomicU32::new(0);
        let handle = |store: &oncekey::Store| match mode.claim(store, &key, request()) {
            Claim::Started(operation) => {
                runs.fetch_add(1, Ordering::SeqCst);
                bytes(&mode.complete(operation, b"paid").expect("a completion"))
            }
            other => bytes(&completed(other)),
        };
        // The first answer is lost on its way to the client, which repeats the request.
        drop(handle(&store));
        assert_eq!(handle(&store), b"paid");
        drop(store);
        // Also by a process that has never seen it.
        let store = mode.options().open(directory.path()).expect("reopens");
        assert_eq!(handle(&store), b"paid");
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{mode:?}");
    }
}

#[test]
fn a_replay_tells_when_it_was_completed_by_which_attempt_and_until_when_it_answers() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let created_at = store.now();
        drop(mode.claim(&store, &key, request()));
        clock.advance(ms(250));
        let operation = interrupted(mode.claim(&store, &key, request()));
        let token = operation.token();
        clock.advance(ms(750));
        let completed_at = store.now();
        let own = mode.complete(operation, b"paid").expect("a completion");
        clock.advance(ms(5_000));
        let replayed = completed(mode.claim(&store, &key, request()));
        for saved in [own, replayed] {
            assert_eq!(saved.attempt(), 2, "{mode:?}");
            assert_eq!(saved.token(), token);
            assert_eq!(saved.created_at(), created_at);
            assert_eq!(saved.completed_at(), completed_at);
            let retention = Duration::from_secs(24 * 3_600);
            assert_eq!(saved.expires_at(), completed_at + retention);
            assert!(saved.sequence() > token.as_u64());
            assert_eq!(bytes(&saved), b"paid");
        }
    }
}

#[test]
fn an_empty_response_is_replayed_as_an_empty_response() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        mode.complete(operation, b"").expect("a completion");
        assert_eq!(bytes(&completed(mode.claim(&store, &key, request()))), b"");
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        assert_eq!(bytes(&completed(mode.claim(&store, &key, request()))), b"");
    }
}

#[test]
fn an_operation_completed_without_its_response_is_done_and_is_not_run_again() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        let own = match mode.style {
            Style::Blocking => operation.complete_without_response(),
            Style::Async => block_on(operation.complete_without_response_async()),
        };
        assert_eq!(own.expect("done").by_scope(), Ok(Replay::NotStored));
        let check = |store: &oncekey::Store| {
            let saved = completed(mode.claim(store, &key, request()));
            assert_eq!(saved.by_scope(), Ok(Replay::NotStored));
            assert!(saved.by_scope().unwrap().response().is_none());
        };
        check(&store);
        drop(store);
        check(&mode.options().open(directory.path()).expect("reopens"));
    }
}

#[test]
fn responses_of_every_length_come_back_byte_for_byte() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let lengths = [
            0, 1, 7, 8, 9, 63, 511, 512, 4_095, 4_096, 4_097, 9_000, 15_000,
        ];
        let response = |len: usize| -> Vec<u8> {
            let mut random = Random::new(len as u64);
            (0..len).map(|_| random.below(256) as u8).collect()
        };
        for len in lengths {
            let operation = started(mode.claim(&store, &key(&len.to_string()), request()));
            let saved = mode.complete(operation, response(len)).expect("fits");
            assert_eq!(bytes(&saved), response(len));
        }
        let check = |store: &oncekey::Store| {
            for len in lengths {
                let saved = completed(mode.claim(store, &key(&len.to_string()), request()));
                assert_eq!(bytes(&saved), response(len), "{mode:?}, {len} bytes");
            }
        };
        check(&store);
        drop(store);
        check(&mode.options().open(directory.path()).expect("reopens"));
    }
}

#[test]
fn a_claim_on_a_key_in_progress_tells_since_when_and_which_attempt() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        drop(mode.claim(&store, &key, request()));
        clock.advance(ms(100));
        let since = store.now();
        let _operation = interrupted(mode.claim(&store, &key, request()));
        clock.advance(ms(100));
        let progress = in_progress(mode.claim(&store, &key, request()));
        assert_eq!(progress.since(), since);
        assert_eq!(progress.attempt(), 2);
        assert_eq!(progress.lease_left(), None);
        assert!(!progress.is_same_batch());
    }
}

#[test]
fn a_thread_whose_time_to_wait_is_over_learns_that_the_key_is_still_in_progress() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let key = key("k-1");
        let operation = started(store.claim(&key, request()).expect("a claim"));
        for timeout in [Duration::ZERO, ms(3)] {
            let progress = in_progress(store.claim(&key, request()).expect("a claim"));
            let again = in_progress(progress.wait(timeout).expect("an answer"));
            assert_eq!(again.attempt(), 1);
        }
        assert_eq!(store.stats().waiters, 0);
        let progress = in_progress(store.claim(&key, request()).expect("a claim"));
        operation.complete(b"paid").expect("a completion");
        // Done meanwhile: the answer is there even for who has no time at all.
        let saved = completed(progress.wait(Duration::ZERO).expect("an answer"));
        assert_eq!(bytes(&saved), b"paid");
    }
}

#[test]
fn a_time_to_wait_without_end_is_no_overflow() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let operation = started(store.claim(&key, request()).expect("a claim"));
    let progress = in_progress(store.claim(&key, request()).expect("a claim"));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| progress.wait(Duration::MAX).expect("an answer"));
        eventually("the waiter", || store.stats().waiters == 1);
        operation.complete(b"paid").expect("a completion");
        assert_eq!(bytes(&completed(waiting.join().unwrap())), b"paid");
    });
}

#[test]
fn a_thousand_futures_wait_for_one_key_without_a_thread_and_without_a_runtime() {
    const WAITERS: usize = 1_000;
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let key = key("k-1");
        let operation = started(store.claim(&key, request()).expect("a claim"));
        eventually("the store's own threads", || {
            store.stats().segments_prepared >= 1
        });
        let claims: Vec<_> = (0..WAITERS)
            .map(|_| in_progress(store.claim(&key, request()).expect("a claim")))
            .collect();
        // Other tests of this file run beside this one, so the store's threads are counted by name.
        let before = store_threads();
        let waiting: Vec<_> = claims
            .into_iter()
            .map(|progress| Polled::new(progress.wait_async()).pending())
            .collect();
        assert_eq!(store.stats().waiters, WAITERS as u64);
        assert!(store_threads() <= before + OTHER_TESTS_THREADS);
        assert!(waiting.iter().all(|one| one.wakes() == 0));
        operation.complete(b"paid").expect("a completion");
        for one in waiting {
            let saved = completed(one.finish().expect("an answer"));
            assert_eq!(bytes(&saved), b"paid");
        }
        assert_eq!(store.stats().waiters, 0);
    }
}

/// What the stores of the tests beside one may start meanwhile: far less than a thread a waiter.
const OTHER_TESTS_THREADS: usize = 100;

fn store_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").expect("a list");
    names
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("oncekey"))
        .count()
}

#[test]
fn futures_that_wait_for_a_lease_share_one_timer_thread() {
    const WAITERS: usize = 500;
    let (_directory, store, _clock) = buffered_and_clock();
    let key = key("k-1");
    let claim = store.claim_with(&key, request(), lease(60_000));
    let _operation = started(claim.expect("a claim"));
    let before = store_threads();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let progress = in_progress(store.claim(&key, request()).expect("a claim"));
            Polled::new(progress.wait_async()).pending()
        })
        .collect();
    assert!(store_threads() <= before + OTHER_TESTS_THREADS);
    drop(waiting);
    assert_eq!(store.stats().waiters, 0);
}

#[test]
fn a_dropped_guard_wakes_those_who_wait() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let progress = in_progress(mode.claim(&store, &key, request()));
                interrupted(mode.wait(progress).expect("an answer")).attempt()
            });
            eventually("the waiter", || store.stats().waiters == 1);
            drop(operation);
            assert_eq!(waiting.join().unwrap(), 2, "{mode:?}");
        });
    }
}

#[test]
fn whatever_ends_an_owners_hold_wakes_those_who_wait() {
    type End = fn(&oncekey::Store, oncekey::Operation);
    let ends: [(&str, &str, End); 5] = [
        ("complete", "Completed", |_, operation| {
            drop(operation.complete(b"paid").expect("a completion"));
        }),
        ("release", "Started", |_, operation| {
            operation.release().expect("a release");
        }),
        ("drop", "Interrupted", |_, operation| drop(operation)),
        ("interrupt", "Interrupted", |store, operation| {
            store
                .interrupt(operation.key(), operation.token())
                .expect("interrupted");
        }),
        ("forget", "Started", |store, operation| {
            store
                .forget(operation.key(), Forget::Force)
                .expect("forgotten");
        }),
    ];
    for durability in DURABILITIES {
        for (name, expected, end) in ends {
            let directory = directory();
            let store = small(durability).open(directory.path()).expect("a store");
            let key = key("k-1");
            let operation = started(store.claim(&key, request()).expect("a claim"));
            let progress = in_progress(store.claim(&key, request()).expect("a claim"));
            let future = Polled::new(progress.wait_async()).pending();
            end(&store, operation);
            let claim = future.finish().expect("an answer");
            let text = format!("{claim:?}");
            assert!(text.starts_with(expected), "{name}, {durability:?}: {text}");
        }
    }
}

#[test]
fn a_closed_store_sends_those_who_wait_away() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let _operation = started(mode.claim(&store, &key, request()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let progress = in_progress(mode.claim(&store, &key, request()));
                mode.wait(progress)
            });
            eventually("the waiter", || store.stats().waiters == 1);
            store.close().expect("closes");
            let answer = waiting.join().unwrap();
            let closed = matches!(answer, Err(ClaimError::Unavailable(Unavailable::Closed)));
            assert!(closed, "{mode:?}: {answer:?}");
        });
    }
}

#[test]
fn a_key_that_is_taken_for_another_request_meanwhile_is_a_mismatch_for_those_who_wait() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let key = key("k-1");
        let operation = started(store.claim(&key, request()).expect("a claim"));
        let progress = in_progress(store.claim(&key, request()).expect("a claim"));
        let future = Polled::new(progress.wait_async()).pending();
        operation.release().expect("a release");
        let other = started(store.claim(&key, other_request()).expect("a claim"));
        assert!(!mismatch(future.finish().expect("an answer")).completed);
        other.complete(b"the other").expect("a completion");
    }
}

#[test]
fn a_lease_that_runs_out_wakes_waiting_futures_and_threads() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_500));
        let stale = started(claim.expect("a claim"));
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            let (store, key) = (&store, &key);
            scope.spawn(move || {
                let progress = in_progress(mode.claim(store, key, request()));
                let operation = interrupted(mode.wait(progress).expect("an answer"));
                sender.send(operation).expect("somebody listens");
            });
            eventually("the waiter", || store.stats().waiters == 1);
            clock.advance(ms(1_499));
            // It may look now, but must not be granted anything.
            let early = receiver.recv_timeout(ms(20));
            assert!(early.is_err(), "{mode:?}: taken over early");
            clock.advance(ms(1));
            let operation = receiver.recv_timeout(LONG).expect("woken");
            assert_eq!(operation.attempt(), 2);
        });
        assert!(stale.complete(b"too late").is_err());
    }
}

#[test]
fn a_renewed_lease_keeps_those_who_wait_waiting() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_000));
        let mut operation = started(claim.expect("a claim"));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let progress = in_progress(mode.claim(&store, &key, request()));
                bytes(&completed(mode.wait(progress).expect("an answer")))
            });
            eventually("the waiter", || store.stats().waiters == 1);
            for _ in 0..20 {
                clock.advance(ms(999));
                operation.renew().expect("still ours");
            }
            operation.complete(b"paid").expect("a completion");
            assert_eq!(waiting.join().unwrap(), b"paid", "{mode:?}");
        });
        assert_eq!(store.stats().claims_taken_over, 0);
    }
}

#[test]
fn no_more_callers_wait_for_a_key_than_allowed() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().max_waiters_per_key(2);
        let store = options.open(directory.path()).expect("a store");
        let (one, other) = (key("k-1"), key("k-2"));
        let operation = started(mode.claim(&store, &one, request()));
        let _other = started(mode.claim(&store, &other, request()));
        let wait = |key| {
            let progress = in_progress(mode.claim(&store, key, request()));
            Polled::new(progress.wait_async())
        };
        let first = wait(&one).pending();
        let second = wait(&one).pending();
        let refused = mode.wait(in_progress(mode.claim(&store, &one, request())));
        let too_many = matches!(refused, Err(ClaimError::TooManyWaiters { limit: 2 }));
        assert!(too_many, "{mode:?}: {refused:?}");
        // Another key has its own places, and a place that is given up is free.
        drop(wait(&other).pending());
        drop(second);
        let third = wait(&one).pending();
        assert_eq!(store.stats().waiters, 2);
        mode.complete(operation, b"paid").expect("a completion");
        for waiting in [first, third] {
            completed(waiting.finish().expect("an answer"));
        }
        assert_eq!(store.stats().waiters, 0);
    }
}

#[test]
fn no_more_callers_wait_in_all_than_allowed() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().max_waiters(3);
        let store = options.open(directory.path()).expect("a store");
        let keys: Vec<_> = (0..4).map(|number| key(&format!("k-{number}"))).collect();
        let _operations: Vec<_> = keys
            .iter()
            .map(|key| started(mode.claim(&store, key, request())))
            .collect();
        let mut waiting: Vec<_> = keys[..3]
            .iter()
            .map(|key| {
                let progress = in_progress(mode.claim(&store, key, request()));
                Polled::new(progress.wait_async()).pending()
            })
            .collect();
        let refused = mode.wait(in_progress(mode.claim(&store, &keys[3], request())));
        let too_many = matches!(refused, Err(ClaimError::TooManyWaiters { limit: 3 }));
        assert!(too_many, "{mode:?}: {refused:?}");
        drop(waiting.pop());
        let progress = in_progress(mode.claim(&store, &keys[3], request()));
        drop(Polled::new(progress.wait_async()).pending());
        drop(waiting);
        assert_eq!(store.stats().waiters, 0);
    }
}

#[test]
fn a_store_without_places_to_wait_refuses_every_wait_at_once() {
    for options in [
        small(Durability::Buffered).max_waiters(0),
        small(Durability::Buffered).max_waiters_per_key(0),
    ] {
        let directory = directory();
        let store = options.open(directory.path()).expect("a store");
        let key = key("k-1");
        let _operation = started(store.claim(&key, request()).expect("a claim"));
        let progress = in_progress(store.claim(&key, request()).expect("a claim"));
        let refused = progress.wait(LONG);
        let too_many = matches!(refused, Err(ClaimError::TooManyWaiters { limit: 0 }));
        assert!(too_many, "{refused:?}");
    }
}

#[test]
fn an_owners_checkpoint_costs_nobody_the_place_in_the_line() {
    let directory = directory();
    let options = small(Durability::Buffered).max_waiters_per_key(1);
    let store = options.open(directory.path()).expect("a store");
    let key = key("k-1");
    let mut operation = started(store.claim(&key, request()).expect("a claim"));
    let wait = || {
        let progress = in_progress(store.claim(&key, request()).expect("a claim"));
        Polled::new(progress.wait_async())
    };
    let mut waiting = wait().pending();
    for _ in 0..3 {
        operation.checkpoint(b"half way").expect("a checkpoint");
        // Nobody else slips into the place of the one that waits already.
        let refused = wait().poll();
        let too_many = matches!(
            refused,
            std::task::Poll::Ready(Err(ClaimError::TooManyWaiters { limit: 1 }))
        );
        assert!(too_many, "{refused:?}");
        assert!(waiting.poll().is_pending(), "it was let in before");
    }
    operation.complete(b"paid").expect("a completion");
    assert_eq!(
        bytes(&completed(waiting.finish().expect("an answer"))),
        b"paid"
    );
}

#[test]
fn an_answer_is_never_weaker_than_its_callers_level() {
    for style in STYLES {
        // A buffered store: nothing is synced unless somebody asks for it.
        let mode = Mode {
            durability: Durability::Buffered,
            style,
        };
        let sync = ClaimOptions::new().durability(Durability::Sync);
        let (_directory, store) = mode.store();
        let syncs = || store.stats().syncs;
        assert_eq!(syncs(), 0);

        let done = key("done");
        finish(&store, &done, b"paid");
        completed(mode.claim(&store, &done, request()));
        assert_eq!(syncs(), 0, "a buffered caller waits for nobody");
        completed(
            mode.claim_with(&store, &done, request(), sync.clone())
                .expect("a claim"),
        );
        assert_eq!(syncs(), 1, "a replay");
        completed(
            mode.claim_with(&store, &done, request(), sync.clone())
                .expect("a claim"),
        );
        assert_eq!(syncs(), 1, "it is durable already");

        let held = key("held");
        let operation = started(mode.claim(&store, &held, request()));
        in_progress(
            mode.claim_with(&store, &held, request(), sync.clone())
                .expect("a claim"),
        );
        assert_eq!(syncs(), 2, "in progress");
        drop(operation);
        mismatch(
            mode.claim_with(&store, &held, other_request(), sync.clone())
                .expect("a claim"),
        );
        assert_eq!(syncs(), 2, "it was durable when it was in progress");

        // The waiter's level counts, not the owner's.
        let operation = interrupted(mode.claim(&store, &held, request()));
        let progress = in_progress(
            mode.claim_with(&store, &held, request(), sync.clone())
                .expect("a claim"),
        );
        assert_eq!(syncs(), 3, "in progress as a new attempt");
        mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(syncs(), 3);
        completed(mode.wait(progress).expect("an answer"));
        assert_eq!(syncs(), 4, "a wait");

        // A completion by its own level.
        let operation = started(mode.claim(&store, &key("own"), request()));
        let completion = operation
            .complete_with(b"paid")
            .durability(Durability::Sync);
        match style {
            Style::Blocking => completion.commit(),
            Style::Async => block_on(completion.commit_async()),
        }
        .expect("a completion");
        assert_eq!(syncs(), 5);
        assert_eq!(store.stats().unsynced_bytes, 0);
    }
}

#[test]
fn a_look_is_as_durable_as_the_stores_level() {
    let directory = directory();
    let store = small(Durability::Sync)
        .open(directory.path())
        .expect("a store");
    let buffered = ClaimOptions::new().durability(Durability::Buffered);
    let key = key("k-1");
    let claim = store.claim_with(&key, request(), buffered);
    let operation = started(claim.expect("a claim"));
    assert_eq!(store.stats().syncs, 0);
    assert!(matches!(store.get(&key), Ok(KeyState::InProgress { .. })));
    assert_eq!(store.stats().syncs, 1);
    operation.complete(b"paid").expect("a completion");
    assert_eq!(
        store.stats().syncs,
        1,
        "the completion is of its claim's level"
    );
    assert!(matches!(
        block_on(store.get_async(&key)),
        Ok(KeyState::Completed(_))
    ));
    assert_eq!(store.stats().syncs, 2);
}
