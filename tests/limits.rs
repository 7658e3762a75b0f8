//! Limits on what may be stored: typed, exact, felt by new claims only, and nothing is evicted.

mod support;

use std::sync::Barrier;
use std::thread;

use oncekey::{
    Claim, ClaimError, Durability, Forget, Key, KeyState, Limit, LimitReached, OpenError, Options,
    Store, WriteError,
};

use support::*;

/// A key of a scope of its own choice.
fn scoped(scope: &str, id: &str) -> Key {
    Key::new(scope, "POST /v1/payments", id).expect("a key")
}

#[track_caller]
fn reached(claimed: Result<Claim, ClaimError>) -> LimitReached {
    match claimed {
        Err(ClaimError::LimitReached(reached)) => reached,
        other => panic!("expected LimitReached, got {other:?}"),
    }
}

#[track_caller]
fn check(reached: &LimitReached, limit: Limit, value: u64, used: u64) {
    let found = (reached.limit, reached.value, reached.used);
    assert_eq!(found, (limit, value, used));
}

#[test]
fn no_more_keys_exist_than_allowed_and_those_that_do_are_served() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().max_keys(3);
        let store = options.open(directory.path()).expect("a store");
        let claim = |id: &str| mode.try_claim(&store, &key(id), request());
        let full = |id: &str| check(&reached(claim(id)), Limit::Keys, 3, 3);
        let done = started(claim("done").expect("a claim"));
        mode.complete(done, b"paid").expect("a completion");
        let leased = mode.claim_with(&store, &key("leased"), request(), lease(1_000_000));
        let mut leased = started(leased.expect("a claim"));
        let mut held = started(claim("held").expect("a claim"));
        full("more");
        assert!(matches!(store.get(&key("more")), Ok(KeyState::Absent)));
        // All that is there goes on.
        assert_eq!(
            bytes(&completed(claim("done").expect("an answer"))),
            b"paid"
        );
        in_progress(claim("held").expect("an answer"));
        leased.renew().expect("a renewal");
        mode.checkpoint(&mut held, b"note").expect("a checkpoint");
        drop(held);
        let held = interrupted(claim("held").expect("a takeover"));
        mode.complete(held, b"paid").expect("a completion");
        full("more");
        // A place is free when a key is no more: released, forgotten as completed, or by force.
        mode.release(leased).expect("a release");
        let more = started(claim("more").expect("a claim"));
        full("one too many");
        assert!(
            store
                .forget(&key("done"), Forget::IfCompleted)
                .expect("done")
        );
        let again = started(claim("done").expect("a claim"));
        full("one too many");
        assert!(store.forget(&key("more"), Forget::Force).expect("gone"));
        drop(more);
        let _last = started(claim("last").expect("a claim"));
        full("one too many");
        mode.complete(again, b"paid").expect("a completion");
        full("one too many");
        assert_eq!(store.stats().limits_reached.keys, 6, "{mode:?}");
    }
}

#[test]
fn of_ten_who_come_for_the_last_place_exactly_one_gets_it() {
    for options in [Options::max_keys, Options::max_keys_per_scope] {
        for mode in modes() {
            let directory = directory();
            let store = options(mode.options(), 4).open(directory.path());
            let store = store.expect("a store");
            for id in ["a", "b", "c"] {
                finish(&store, &key(id), b"paid");
            }
            for round in 0..20 {
                let barrier = Barrier::new(10);
                let come = |number: usize| {
                    let key = key(&format!("{round}-{number}"));
                    barrier.wait();
                    mode.try_claim(&store, &key, request())
                };
                let claims: Vec<_> = thread::scope(|scope| {
                    let come = &come;
                    let threads: Vec<_> = (0..10)
                        .map(|number| scope.spawn(move || come(number)))
                        .collect();
                    let claims = threads.into_iter().map(|thread| thread.join());
                    claims.map(|claim| claim.expect("no panic")).collect()
                });
                let mut won = Vec::new();
                for claim in claims {
                    match claim {
                        Ok(claim) => won.push(started(claim)),
                        refused => assert_eq!(reached(refused).used, 4),
                    }
                }
                assert_eq!(won.len(), 1, "{mode:?}");
                let winner = won.remove(0);
                // The place is the next round's.
                mode.release(winner).expect("a release");
            }
        }
    }
}

#[test]
fn a_scope_that_is_full_leaves_the_others_alone() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().max_keys_per_scope(2);
        let store = options.open(directory.path()).expect("a store");
        let claim = |store: &Store, scope: &str, id: &str| {
            mode.try_claim(store, &scoped(scope, id), request())
        };
        let full = |store: &Store, scope: &str| {
            check(
                &reached(claim(store, scope, "3")),
                Limit::KeysPerScope,
                2,
                2,
            );
        };
        for scope in ["acct_1", "acct_2", ""] {
            let one = started(claim(&store, scope, "1").expect("a claim"));
            mode.complete(one, b"paid").expect("a completion");
            drop(started(claim(&store, scope, "2").expect("a claim")));
            full(&store, scope);
        }
        // Parts of keys that run together the same are of different scopes.
        drop(started(claim(&store, "acct_", "12").expect("a claim")));
        // The count is the same after a restart, that of completed keys too.
        drop(store);
        let store = options.open(directory.path()).expect("reopens");
        for scope in ["acct_1", "acct_2", ""] {
            full(&store, scope);
            completed(claim(&store, scope, "1").expect("an answer"));
        }
        let forgotten = store.forget(&scoped("acct_2", "1"), Forget::IfCompleted);
        assert!(forgotten.expect("forgotten"));
        full(&store, "acct_1");
        let two = interrupted(claim(&store, "acct_1", "2").expect("a takeover"));
        mode.release(two).expect("a release");
        for scope in ["acct_1", "acct_2"] {
            drop(started(claim(&store, scope, "3").expect("a claim")));
            check(
                &reached(claim(&store, scope, "4")),
                Limit::KeysPerScope,
                2,
                2,
            );
        }
        assert_eq!(store.stats().limits_reached.keys_per_scope, 6, "{mode:?}");
    }
}

#[test]
fn an_expired_result_makes_way_for_its_own_key() {
    for mode in modes() {
        let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
        let options = mode
            .options()
            .retention(ms(1_000))
            .max_keys(2)
            .max_keys_per_scope(2)
            .clock(std::sync::Arc::new(clock.clone()));
        let store = options.open(directory.path()).expect("a store");
        finish(&store, &key("1"), b"paid");
        finish(&store, &key("2"), b"paid");
        for round in 0..5 {
            clock.advance(ms(1_000));
            // Its place and no other: the other expired one still counts.
            let claim = mode.try_claim(&store, &key("1"), request());
            let one = started(claim.expect("a place"));
            let claim = mode.try_claim(&store, &key("3"), request());
            check(&reached(claim), Limit::KeysPerScope, 2, 2);
            if round % 2 == 0 {
                mode.complete(one, b"paid").expect("a completion");
            } else {
                // Its record was all that was left of the expired result.
                mode.release(one).expect("a release");
                finish(&store, &key("1"), b"paid");
            }
        }
        // To be forgotten is enough too, and to everybody else it was absent already.
        clock.advance(ms(1_000));
        let forgotten = store.forget(&key("2"), Forget::IfCompleted);
        assert!(!forgotten.expect("an answer"));
        drop(started(mode.claim(&store, &key("3"), request())));
    }
}

#[test]
fn a_store_over_a_limit_that_was_lowered_opens_and_takes_nothing_new() {
    for mode in modes() {
        let (directory, store) = mode.store();
        for id in ["1", "2", "3"] {
            finish(&store, &key(id), b"paid");
        }
        drop(started(mode.claim(&store, &key("4"), request())));
        drop(store);
        for (options, limit) in [
            (mode.options().max_keys(2), Limit::Keys),
            (mode.options().max_keys_per_scope(2), Limit::KeysPerScope),
        ] {
            let store = options.open(directory.path()).expect("opens");
            let claim = |id: &str| mode.try_claim(&store, &key(id), request());
            check(&reached(claim("5")), limit, 2, 4);
            for id in ["1", "2", "3"] {
                completed(claim(id).expect("an answer"));
            }
            drop(interrupted(claim("4").expect("a takeover")));
        }
        let store = mode.options().max_keys(2).open(directory.path());
        let store = store.expect("opens");
        for (id, left) in [("1", 3), ("2", 2)] {
            assert!(store.forget(&key(id), Forget::Force).expect("forgotten"));
            let refused = mode.try_claim(&store, &key("5"), request());
            check(&reached(refused), Limit::Keys, 2, left);
        }
        assert!(store.forget(&key("3"), Forget::Force).expect("forgotten"));
        drop(started(mode.claim(&store, &key("5"), request())));
    }
}

/// Claims that are cancelled, and those that other limits refuse, leave no place taken.
#[test]
fn what_is_refused_or_cancelled_takes_no_place() {
    let directory = directory();
    let store = small(Durability::Sync)
        .max_keys(2)
        .max_keys_per_scope(2)
        .max_pending(1)
        .open(directory.path())
        .expect("a store");
    let only = started(store.claim(&key("only"), request()).expect("a claim"));
    for _ in 0..5 {
        let refused = store.claim(&key("2"), request());
        assert!(matches!(refused, Err(ClaimError::TooManyPending { .. })));
    }
    only.release().expect("a release");
    for number in 0..20 {
        let key = key(&number.to_string());
        let mut claim = Polled::new(store.claim_async(&key, request()));
        drop(claim.poll());
        drop(claim);
        let forced = store.forget(&key, Forget::Force);
        forced.expect("nothing or a claim that was faster");
    }
    assert_eq!(store.stats().pending_keys, 0);
    finish(&store, &key("1"), b"paid");
    finish(&store, &key("2"), b"paid");
    let claim = store.claim(&key("3"), request());
    check(&reached(claim), Limit::KeysPerScope, 2, 2);
}

#[test]
fn the_log_takes_no_more_of_the_disk_than_allowed() {
    const SEGMENT: u64 = 64 << 10;
    for mode in modes() {
        let directory = directory();
        let options = mode
            .options()
            .reserved_response(4_096)
            .max_disk_bytes(3 * SEGMENT + 100);
        let store = options.open(directory.path()).expect("a store");
        let mut held = Vec::new();
        let refused = loop {
            match mode.try_claim(&store, &key(&held.len().to_string()), request()) {
                Ok(claim) => held.push(started(claim)),
                refused => break reached(refused),
            }
        };
        check(&refused, Limit::DiskBytes, 3 * SEGMENT + 100, 3 * SEGMENT);
        assert!(held.len() > 30, "{}", held.len());
        let stats = store.stats();
        assert_eq!((stats.segments, stats.segment_bytes), (3, 3 * SEGMENT));
        assert_eq!(segment_bytes(&directory), 3 * SEGMENT);
        assert!(stats.limits_reached.disk_bytes >= 1);
        assert_eq!(stats.out_of_space, 0);
        // What was promised is kept: completions, releases, replays. More is refused, and held.
        let large = held.pop().expect("one");
        let error = mode.complete(large, vec![7; 15_000]).expect_err("refused");
        match error.error() {
            WriteError::LimitReached(reached) => assert_eq!(reached.limit, Limit::DiskBytes),
            other => panic!("{other:?}"),
        }
        let large = error.into_operation().expect("the guard");
        mode.complete(large, b"short").expect("a completion");
        let released = held.pop().expect("one");
        mode.release(released).expect("a release");
        let count = held.len();
        for operation in held {
            mode.complete(operation, vec![7; 4_096]).expect("promised");
        }
        for number in 0..count {
            completed(mode.claim(&store, &key(&number.to_string()), request()));
        }
        assert_eq!(segment_bytes(&directory), 3 * SEGMENT);
        // A limit that was lowered below what is there is no obstacle to opening.
        drop(store);
        let store = mode.options().max_disk_bytes(2 * SEGMENT);
        let store = store.open(directory.path()).expect("opens");
        completed(mode.claim(&store, &key("0"), request()));
        let refused = reached(mode.try_claim(&store, &key("new"), request()));
        assert!(refused.used > 2 * SEGMENT, "{refused}");
        // Nor is it for ever.
        drop(store);
        let store = mode.options().open(directory.path()).expect("opens");
        drop(started(mode.claim(&store, &key("new"), request())));
    }
}

/// Bytes of all segment files.
fn segment_bytes(directory: &tempfile::TempDir) -> u64 {
    let files = contents(directory.path()).into_iter();
    files
        .filter(|(name, ..)| name.starts_with("segment-"))
        .map(|(_, bytes, _)| bytes as u64)
        .sum()
}

#[test]
fn limits_out_of_range_are_named() {
    let base = || small(Durability::Buffered);
    for (name, options) in [
        ("max_keys", base().max_keys(0)),
        ("max_keys_per_scope", base().max_keys_per_scope(0)),
        ("max_disk_bytes", base().max_disk_bytes((128 << 10) - 1)),
        #[cfg(target_pointer_width = "64")]
        ("max_keys", base().max_keys(1 << 32)),
    ] {
        let parent = directory();
        match options.open(parent.path().join("store")) {
            Err(OpenError::Options(error)) => {
                let message = error.to_string();
                assert!(message.contains(&format!("Options::{name} ")), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn an_error_says_which_limit_what_is_used_and_what_to_do() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .max_keys(2)
        .max_keys_per_scope(1)
        .open(directory.path())
        .expect("a store");
    finish(&store, &scoped("a", "1"), b"");
    let of_scope = store.claim(&scoped("a", "2"), request()).unwrap_err();
    finish(&store, &scoped("b", "1"), b"");
    let of_all = store.claim(&scoped("c", "1"), request()).unwrap_err();
    for (error, message) in [
        (
            of_scope,
            "1 keys of this scope exist and Options::max_keys_per_scope is 1; forget keys of it, \
             wait until results expire and are reclaimed, or raise it",
        ),
        (
            of_all,
            "2 keys exist and Options::max_keys is 2; forget keys, wait until results expire and \
             are reclaimed, or raise it",
        ),
    ] {
        assert_eq!(error.to_string(), message);
    }
}
