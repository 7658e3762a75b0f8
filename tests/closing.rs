//! Closing: everybody is told, nothing acknowledged is lost, and the directory is free again.

mod support;

use std::sync::Barrier;
use std::thread;

use oncekey::{
    AdminError, Claim, ClaimError, ClaimOptions, Durability, Forget, KeyState, ResumeError,
    RunError, RunOptions, Store, Unavailable, WriteError,
};

use support::*;

#[track_caller]
fn closed<T: std::fmt::Debug>(result: Result<T, ClaimError>) {
    match result {
        Err(ClaimError::Unavailable(Unavailable::Closed)) => {}
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn closed_write<T: std::fmt::Debug>(result: Result<T, oncekey::FinishError>) -> bool {
    let error = result.expect_err("the store is closed");
    let refused = matches!(error.error(), WriteError::Unavailable(Unavailable::Closed));
    assert!(refused, "{error:?}");
    error.into_operation().is_some()
}

#[test]
fn after_close_every_call_on_every_handle_says_closed() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let (done, held, gone) = (key("done"), key("held"), key("gone"));
        finish(&store, &done, b"paid");
        drop(started(store.claim(&gone, request()).expect("a claim")));
        let mut guards: Vec<_> = (0..5)
            .map(|number| {
                let key = key(&number.to_string());
                let claim = store.claim_with(&key, request(), lease(60_000));
                started(claim.expect("a claim"))
            })
            .collect();
        let mut operation = started(store.claim(&held, request()).expect("a claim"));
        let progress = in_progress(store.claim(&held, request()).expect("a claim"));
        let other = in_progress(store.claim(&held, request()).expect("a claim"));
        let ticket = guards.pop().unwrap().into_ticket().expect("a ticket");
        let token = operation.token();
        let unpolled = store.claim_async(&gone, request());
        let clone = store.clone();
        store.close().expect("closes");
        for store in [&store, &clone] {
            for key in [&done, &held, &gone, &key("free")] {
                closed(store.claim(key, request()));
                closed(block_on(store.claim_async(key, request())));
                closed(store.get(key));
                closed(block_on(store.get_async(key)));
                for how in [Forget::IfCompleted, Forget::Force] {
                    match store.forget(key, how) {
                        Err(AdminError::Claim(error)) => closed::<()>(Err(error)),
                        other => panic!("{other:?}"),
                    }
                }
            }
            for claim in store.claim_many([(&done, request())], ClaimOptions::new()) {
                closed(claim);
            }
            match store.interrupt(&held, token) {
                Err(AdminError::Claim(error)) => closed::<()>(Err(error)),
                other => panic!("{other:?}"),
            }
            match store.resume(&ticket) {
                Err(ResumeError::Claim(error)) => closed(Err::<Claim, _>(error)),
                other => panic!("{other:?}"),
            }
            let ran = store.run(&done, request(), RunOptions::new(), |_| {
                Ok::<_, std::io::Error>(b"never run")
            });
            match ran {
                Err(RunError::Claim(error)) => closed::<()>(Err(error)),
                other => panic!("{other:?}"),
            }
            assert!(matches!(store.pending(), Err(Unavailable::Closed)));
            assert!(matches!(store.interrupted(), Err(Unavailable::Closed)));
            assert!(matches!(store.flush(), Err(Unavailable::Closed)));
            assert!(matches!(
                block_on(store.flush_async()),
                Err(Unavailable::Closed)
            ));
            store.close().expect("closing twice is fine");
            // What needs no directory still works.
            assert_eq!(store.path(), directory.path());
            assert!(store.recovery_report().created);
            assert!(!format!("{:?}", store.stats()).is_empty());
        }
        closed(block_on(unpolled));
        closed(progress.wait(LONG));
        closed(block_on(other.wait_async()));
        let checkpoint = operation.checkpoint(b"note").expect_err("closed");
        assert!(matches!(
            checkpoint,
            WriteError::Unavailable(Unavailable::Closed)
        ));
        assert!(matches!(
            operation.renew(),
            Err(WriteError::Unavailable(Unavailable::Closed))
        ));
        closed_write(operation.complete(b"paid"));
        closed_write(guards.pop().unwrap().release());
        closed_write(guards.pop().unwrap().into_ticket());
        closed_write(block_on(guards.pop().unwrap().complete_async(b"paid")));
        drop(guards);
        // Nothing of that reached the files.
        let store = reopen(&directory, durability);
        completed(store.claim(&done, request()).expect("a claim"));
        let mut interrupted = store.interrupted().expect("a list");
        interrupted.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(interrupted.len(), 7);
        assert!(interrupted.iter().all(|one| one.attempt == 1));
    }
}

#[test]
fn a_clean_close_is_told_apart_from_a_kill() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        assert!(store.recovery_report().created);
        finish(&store, &key("k-1"), b"paid");
        let copy = killed(&store);
        store.close().expect("closes");
        drop(store);
        let store = reopen(&directory, durability);
        assert!(store.recovery_report().clean && !store.recovery_report().created);
        completed(store.claim(&key("k-1"), request()).expect("a claim"));
        let store = reopen(&copy, durability);
        assert!(!store.recovery_report().clean);
        completed(store.claim(&key("k-1"), request()).expect("a claim"));
    }
}

#[test]
fn the_last_handle_closes_and_a_guard_is_a_handle() {
    let directory = directory();
    let options = small(Durability::Buffered);
    let store = options.open(directory.path()).expect("a store");
    let clone = store.clone();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(store);
    assert!(options.open(directory.path()).is_err());
    drop(clone);
    assert!(options.open(directory.path()).is_err(), "a guard holds it");
    operation.complete(b"paid").expect("still open");
    let store = options.open(directory.path()).expect("free");
    assert!(store.recovery_report().clean);
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}

#[test]
fn a_directory_can_be_opened_again_right_after_close_whoever_still_holds_handles() {
    let directory = directory();
    let options = small(Durability::Buffered);
    let old = options.open(directory.path()).expect("a store");
    let operation = started(old.claim(&key("k-1"), request()).expect("a claim"));
    old.close().expect("closes");
    let new = options.open(directory.path()).expect("free");
    let owner = interrupted(new.claim(&key("k-1"), request()).expect("a claim"));
    // The old store's guard can't touch what belongs to the new one.
    closed_write(operation.complete(b"stale"));
    old.close().expect("closing twice is fine");
    drop(old);
    assert!(
        options.open(directory.path()).is_err(),
        "the lock is the new one's"
    );
    owner.complete(b"fresh").expect("ours");
    let saved = completed(new.claim(&key("k-1"), request()).expect("a claim"));
    assert_eq!(bytes(&saved), b"fresh");
}

#[test]
fn what_was_acknowledged_before_a_close_is_there_after_it_however_busy_the_store() {
    for durability in DURABILITIES {
        for round in 0..3 {
            let directory = directory();
            let store = small(durability).open(directory.path()).expect("a store");
            let barrier = Barrier::new(5);
            let acknowledged: Vec<Vec<String>> = thread::scope(|scope| {
                let workers: Vec<_> = (0..4)
                    .map(|worker| {
                        let (store, barrier) = (&store, &barrier);
                        scope.spawn(move || {
                            barrier.wait();
                            let mut done = Vec::new();
                            for number in 0.. {
                                let id = format!("{worker}-{number}");
                                let style = STYLES[number % 2];
                                let mode = Mode { durability, style };
                                let claim = mode.try_claim(store, &key(&id), request());
                                let Ok(claim) = claim else { break };
                                if mode.complete(started(claim), &id).is_err() {
                                    break;
                                }
                                done.push(id);
                            }
                            done
                        })
                    })
                    .collect();
                barrier.wait();
                let enough = 20 * (round + 1);
                eventually("some work", || store.stats().completed >= enough);
                store.close().expect("closes");
                workers
                    .into_iter()
                    .map(|worker| worker.join().expect("no panic"))
                    .collect()
            });
            drop(store);
            let store = reopen(&directory, durability);
            assert!(store.recovery_report().clean);
            for id in acknowledged.iter().flatten() {
                let saved = completed(store.claim(&key(id), request()).expect("a claim"));
                assert_eq!(bytes(&saved), id.as_bytes(), "{durability:?}");
            }
            assert!(store.interrupted().expect("a list").len() <= 4);
        }
    }
}

#[test]
fn closing_from_many_threads_at_once_closes_once_and_returns_when_it_is_closed() {
    let directory = directory();
    let options = small(Durability::Sync);
    let store = options.open(directory.path()).expect("a store");
    finish(&store, &key("k-1"), b"paid");
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                store.close().expect("closes");
                closed(store.claim(&key("k-1"), request()));
            });
        }
    });
    assert!(options.open(directory.path()).is_ok());
}

#[test]
fn close_does_not_wait_for_owners_or_for_those_who_wait() {
    let (_directory, store) = buffered();
    let operations: Vec<_> = (0..50)
        .map(|number| {
            let claim = store.claim(&key(&number.to_string()), request());
            started(claim.expect("a claim"))
        })
        .collect();
    let waiting: Vec<_> = (0..50)
        .map(|number| {
            let claim = store.claim(&key(&number.to_string()), request());
            Polled::new(in_progress(claim.expect("a claim")).wait_async()).pending()
        })
        .collect();
    store.close().expect("closes");
    for future in waiting {
        closed(future.finish());
    }
    drop(operations);
    assert_eq!(store.stats().waiters, 0);
}

#[test]
fn a_flush_makes_buffered_writes_durable() {
    for style in STYLES {
        let (_directory, store) = buffered();
        let flush = |store: &Store| match style {
            Style::Blocking => store.flush(),
            Style::Async => block_on(store.flush_async()),
        };
        flush(&store).expect("nothing to do");
        assert_eq!(store.stats().syncs, 0);
        finish(&store, &key("k-1"), b"paid");
        flush(&store).expect("synced");
        assert_eq!(store.stats().syncs, 1);
        assert_eq!(store.stats().unsynced_bytes, 0);
        flush(&store).expect("nothing to do");
        assert_eq!(store.stats().syncs, 1);
    }
}

#[test]
fn an_idle_store_closes_and_opens_without_leaving_files_behind() {
    let directory = directory();
    let count = || std::fs::read_dir(directory.path()).expect("a list").count();
    let options = small(Durability::Buffered);
    drop(options.open(directory.path()).expect("a store"));
    let files = count();
    for _ in 0..10 {
        drop(options.open(directory.path()).expect("a store"));
        assert_eq!(count(), files);
    }
    assert!(matches!(
        options
            .open(directory.path())
            .expect("a store")
            .get(&key("k-1")),
        Ok(KeyState::Absent)
    ));
}

#[test]
fn many_short_lives_of_a_store_add_up() {
    let directory = directory();
    for durability in DURABILITIES.into_iter().cycle().take(12) {
        let store = reopen(&directory, durability);
        let lives = store.stats().completed_keys;
        for life in 0..lives {
            let saved = completed(
                store
                    .claim(&key(&life.to_string()), request())
                    .expect("a claim"),
            );
            assert_eq!(bytes(&saved), life.to_string().as_bytes());
        }
        finish(&store, &key(&lives.to_string()), lives.to_string());
    }
    assert_eq!(
        reopen(&directory, Durability::Sync).stats().completed_keys,
        12
    );
}
