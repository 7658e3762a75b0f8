//! Of any number of concurrent claims on one key exactly one gets the operation.

mod support;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use oncekey::{Claim, Durability, Key, KeyState, Lease, Options, Token};

use support::*;

/// Runs `work` on this many threads at once and returns what each gave.
fn at_once<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(number)
                })
            })
            .collect();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined.map(|result| result.expect("no panic")).collect()
    })
}

#[test]
fn ten_threads_claim_one_key_and_one_starts_while_nine_wait_and_get_the_same_bytes() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        for round in 0..5 {
            let key = key(&format!("k-{round}"));
            let runs = AtomicU32::new(0);
            let answers = at_once(10, |number| {
                let saved = match mode.claim(&store, &key, request()) {
                    Claim::Started(operation) => {
                        runs.fetch_add(1, Ordering::SeqCst);
                        // The nine others are waiting, or have not claimed yet.
                        let answer = format!("answer of thread {number}");
                        mode.complete(operation, answer).expect("a completion")
                    }
                    Claim::InProgress(progress) => {
                        completed(mode.wait(progress).expect("an answer"))
                    }
                    Claim::Completed(saved) => saved,
                    other => panic!("{mode:?}: {other:?}"),
                };
                (bytes(&saved), saved.attempt(), saved.token())
            });
            assert_eq!(runs.load(Ordering::SeqCst), 1, "{mode:?}");
            let distinct: HashSet<_> = answers.iter().collect();
            assert_eq!(distinct.len(), 1, "{mode:?}: {answers:?}");
        }
        assert_eq!(store.stats().pending_keys, 0);
        assert_eq!(store.stats().waiters, 0);
    }
}

#[test]
fn nine_waiters_that_wait_for_sure_get_the_bytes_of_the_one_that_started() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..9)
                .map(|_| {
                    scope.spawn(|| {
                        let progress = in_progress(mode.claim(&store, &key, request()));
                        bytes(&completed(mode.wait(progress).expect("an answer")))
                    })
                })
                .collect();
            eventually("nine waiters", || store.stats().waiters == 9);
            mode.complete(operation, b"paid").expect("a completion");
            for handle in waiting {
                assert_eq!(handle.join().expect("no panic"), b"paid", "{mode:?}");
            }
        });
        assert_eq!(store.stats().claims_started, 1);
    }
}

#[test]
fn ten_claims_at_once_without_waiting_give_one_guard() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        // Every thread keeps what it got until all have claimed.
        let claims = at_once(10, |_| mode.claim(&store, &key, request()));
        let owners = claims.iter().filter(|claim| claim.is_owned()).count();
        assert_eq!(owners, 1, "{mode:?}: {claims:?}");
        let others = claims.iter().filter(
            |claim| matches!(claim, Claim::InProgress(progress) if progress.attempt() == 1),
        );
        assert_eq!(others.count(), 9, "{mode:?}: {claims:?}");
    }
}

#[test]
fn ten_claims_at_once_on_an_interrupted_key_give_one_guard_with_the_next_attempt() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let key = key("k-1");
        let first = started(mode.claim(&store, &key, request())).token();
        store.close().expect("closes");
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        let claims = at_once(10, |_| mode.claim(&store, &key, request()));
        let mut owners: Vec<_> = claims
            .into_iter()
            .filter_map(|claim| match claim {
                Claim::Interrupted(operation) => Some(operation),
                Claim::InProgress(progress) => {
                    assert_eq!(progress.attempt(), 2);
                    None
                }
                other => panic!("{mode:?}: {other:?}"),
            })
            .collect();
        assert_eq!(owners.len(), 1, "{mode:?}");
        let owner = owners.remove(0);
        assert_eq!(owner.attempt(), 2);
        assert!(owner.token() > first);
    }
}

#[test]
fn ten_claims_at_once_on_an_expired_key_give_one_guard() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        finish(&store, &key, b"first");
        clock.advance(Duration::from_secs(24 * 3_600));
        let claims = at_once(10, |_| mode.claim(&store, &key, request()));
        let owners = claims.iter().filter(|claim| claim.is_owned()).count();
        assert_eq!(owners, 1, "{mode:?}: {claims:?}");
        for claim in claims {
            if claim.is_owned() {
                assert_eq!(started(claim).attempt(), 1);
            }
        }
    }
}

#[test]
fn ten_claims_at_once_after_a_lease_is_over_give_one_guard() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_500));
        let stale = started(claim.expect("a claim"));
        clock.advance(ms(1_500));
        let claims = at_once(10, |_| {
            mode.claim_with(&store, &key, request(), lease(1_500))
                .expect("a claim")
        });
        let owners = claims.iter().filter(|claim| claim.is_owned()).count();
        assert_eq!(owners, 1, "{mode:?}: {claims:?}");
        assert!(stale.complete(b"too late").is_err());
    }
}

#[test]
fn a_released_key_goes_to_one_of_those_who_wait() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        let runs = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut claim = mode.claim(&store, &key, request());
                    loop {
                        claim = match claim {
                            Claim::InProgress(progress) => mode.wait(progress).expect("an answer"),
                            Claim::Started(operation) => {
                                assert_eq!(operation.attempt(), 1, "nothing had happened");
                                runs.fetch_add(1, Ordering::SeqCst);
                                mode.complete(operation, b"paid").expect("a completion");
                                return;
                            }
                            other => return assert_eq!(bytes(&completed(other)), b"paid"),
                        };
                    }
                });
            }
            eventually("eight waiters", || store.stats().waiters == 8);
            mode.release(operation).expect("a release");
        });
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{mode:?}");
    }
}

#[test]
fn an_interrupted_key_goes_from_one_waiter_to_the_next_and_none_is_left_behind() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        let attempts = Mutex::new(BTreeSet::new());
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let progress = in_progress(mode.claim(&store, &key, request()));
                    let operation = interrupted(mode.wait(progress).expect("an answer"));
                    let attempt = operation.attempt();
                    assert!(attempts.lock().unwrap().insert(attempt), "{attempt} twice");
                    // Dropped: the next one's turn.
                });
            }
            eventually("eight waiters", || store.stats().waiters == 8);
            drop(operation);
        });
        let attempts: Vec<_> = attempts.into_inner().unwrap().into_iter().collect();
        assert_eq!(attempts, (2..=9).collect::<Vec<_>>(), "{mode:?}");
        assert_eq!(store.interrupted().expect("a list").len(), 1);
        assert_eq!(store.stats().waiters, 0);
    }
}

/// What the threads of [`storm`] hold against each other, for one key.
#[derive(Default)]
struct Watched {
    owned: AtomicBool,
    newest_token: AtomicU64,
    newest_attempt: AtomicU32,
}

/// Threads claim, wait, complete, release, drop, checkpoint and forget a few keys as chance has it.
/// An owner is alone for as long as it has its guard, and tokens only grow.
fn storm(options: Options, threads: usize, rounds: usize) {
    let directory = directory();
    let store = options.open(directory.path()).expect("a new store");
    let watched: Vec<Watched> = (0..4).map(|_| Watched::default()).collect();
    let keys: Vec<Key> = (0..4).map(|number| key(&format!("k-{number}"))).collect();
    let tokens: Mutex<HashSet<Token>> = Mutex::default();
    at_once(threads, |number| {
        let mut random = Random::new(number as u64 + 1);
        for _ in 0..rounds {
            let chosen = random.below(keys.len());
            let (key, watch) = (&keys[chosen], &watched[chosen]);
            let style = STYLES[random.below(2)];
            let mode = Mode {
                durability: Durability::Buffered,
                style,
            };
            let mut claim = mode.claim(&store, key, request());
            if let Claim::InProgress(progress) = claim {
                if random.below(4) == 0 {
                    continue;
                }
                claim = mode.wait(progress).expect("an answer");
            }
            let mut operation = match claim {
                Claim::Started(operation) | Claim::Interrupted(operation) => operation,
                Claim::Completed(_) => {
                    if random.below(2) == 0 {
                        store.forget(key, oncekey::Forget::IfCompleted).map_or_else(
                            |error| {
                                assert!(matches!(error, oncekey::AdminError::Pending { .. }));
                            },
                            drop,
                        );
                    }
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert!(!watch.owned.swap(true, Ordering::SeqCst), "two owners");
            let token = operation.token();
            assert!(tokens.lock().unwrap().insert(token), "a token twice");
            let newest = watch.newest_token.swap(token.as_u64(), Ordering::SeqCst);
            assert!(newest < token.as_u64(), "an older token after a newer one");
            let attempt = operation.attempt();
            let before = watch.newest_attempt.swap(attempt, Ordering::SeqCst);
            match operation.previous() {
                Some(previous) => {
                    assert_eq!(attempt, before + 1);
                    assert_eq!(previous.attempt, before);
                }
                None => assert_eq!(attempt, 1),
            }
            if random.below(3) == 0 {
                mode.checkpoint(&mut operation, b"half way")
                    .expect("a checkpoint");
            }
            operation.renew().expect("still ours");
            let end = random.below(4);
            // Up to here we are alone; from the next line on somebody else may be the owner.
            watch.owned.store(false, Ordering::SeqCst);
            match end {
                0 => drop(operation),
                1 => mode.release(operation).expect("a release"),
                _ => drop(mode.complete(operation, b"paid").expect("a completion")),
            }
        }
    });
    let stats = store.stats();
    assert_eq!(stats.waiters, 0);
    assert_eq!(
        stats.pending_keys, stats.interrupted_keys,
        "nobody owns one"
    );
    assert!(store.pending().expect("a list").is_empty());
    let settled: Vec<_> = keys
        .iter()
        .map(|key| format!("{:?}", store.get(key)))
        .collect();
    let recovered = killed(&store);
    let after = reopen(&recovered, Durability::Buffered);
    let again: Vec<_> = keys
        .iter()
        .map(|key| format!("{:?}", after.get(key)))
        .collect();
    let kinds = |states: &[String]| -> Vec<String> {
        let word = |state: &String| state.split([' ', '(', ')']).nth(1).map(String::from);
        states.iter().filter_map(word).collect()
    };
    assert_eq!(kinds(&again), kinds(&settled));
}

#[test]
fn a_storm_of_threads_never_makes_two_owners() {
    storm(small(Durability::Buffered), 8, 1_500);
}

#[test]
fn a_storm_of_threads_never_makes_two_owners_when_every_answer_is_synced() {
    storm(small(Durability::Sync), 8, 100);
}

#[test]
fn leases_that_run_out_under_a_storm_never_let_two_owners_complete() {
    let (_directory, store, clock) = buffered_and_clock();
    let key = key("k-1");
    let completions = AtomicU32::new(0);
    let claims = AtomicU32::new(0);
    at_once(8, |number| {
        let mut random = Random::new(number as u64 + 99);
        for _ in 0..400 {
            clock.advance(ms(1 + random.below(3) as u64));
            let claim = store
                .claim_with(&key, request(), lease(3))
                .expect("a claim");
            match claim {
                Claim::Started(operation) | Claim::Interrupted(operation) => {
                    claims.fetch_add(1, Ordering::SeqCst);
                    if random.below(2) == 0 {
                        thread::yield_now();
                    }
                    let token = operation.token();
                    if let Ok(saved) = operation.complete(token.as_u64().to_le_bytes()) {
                        assert_eq!(saved.token(), token);
                        completions.fetch_add(1, Ordering::SeqCst);
                    }
                }
                Claim::Completed(saved) => {
                    // Stored under the token of whoever completed, and by nobody else.
                    assert_eq!(bytes(&saved), saved.token().as_u64().to_le_bytes());
                    store
                        .forget(&key, oncekey::Forget::Force)
                        .expect("forgotten");
                }
                Claim::InProgress(_) => {}
                other => panic!("{other:?}"),
            }
        }
    });
    let stats = store.stats();
    assert_eq!(stats.completed, u64::from(completions.into_inner()));
    assert_eq!(
        stats.claims_started + stats.claims_taken_over,
        u64::from(claims.into_inner())
    );
}

#[test]
fn a_look_never_sees_an_owner_without_a_token() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3_000 {
                finish(&store, &key, b"paid");
                store
                    .forget(&key, oncekey::Forget::IfCompleted)
                    .expect("forgotten");
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    match store.get(&key).expect("a look") {
                        KeyState::InProgress { token, attempt, .. } => {
                            assert_ne!(token.as_u64(), 0, "a claim that is not written yet");
                            assert_eq!(attempt, 1);
                        }
                        KeyState::Absent => {}
                        KeyState::Completed(saved) => assert_eq!(bytes(&saved), b"paid"),
                        other => panic!("{other:?}"),
                    }
                    for listed in store.pending().expect("a list") {
                        assert_ne!(listed.token.as_u64(), 0);
                    }
                    assert!(store.interrupted().expect("a list").is_empty());
                }
            });
        }
    });
}

#[test]
fn keys_whose_parts_read_alike_when_joined_are_different_keys() {
    let (_directory, store) = buffered();
    let parts = [
        ("ab", "c", "d"),
        ("a", "bc", "d"),
        ("a", "b", "cd"),
        ("", "abc", "d"),
        ("abc", "", "d"),
        ("", "", "abcd"),
        ("ab", "", "cd"),
    ];
    for (scope, operation, id) in parts {
        let key = Key::new(scope, operation, id).expect("a key");
        finish(&store, &key, format!("{scope}|{operation}|{id}"));
    }
    for (scope, operation, id) in parts {
        let key = Key::new(scope, operation, id).expect("a key");
        let saved = completed(store.claim(&key, request()).expect("a claim"));
        assert_eq!(
            bytes(&saved),
            format!("{scope}|{operation}|{id}").as_bytes()
        );
    }
}

#[test]
fn keys_whose_hashes_share_what_a_slot_keeps_have_results_of_their_own() {
    // One stripe and 25 bits of the hash: among this many keys a dozen pairs are alike.
    const KEYS: usize = 30_000;
    let directory = directory();
    let options = Options::new()
        .durability(Durability::Buffered)
        .segment_size(1 << 20)
        .lease(Lease::WhileAlive)
        .stripes(1);
    let store = options.open(directory.path()).expect("a new store");
    for number in 0..KEYS {
        finish(&store, &key(&number.to_string()), number.to_string());
    }
    let check = |store: &oncekey::Store| {
        assert_eq!(store.stats().completed_keys, KEYS as u64);
        for number in 0..KEYS {
            let saved = completed(
                store
                    .claim(&key(&number.to_string()), request())
                    .expect("a claim"),
            );
            assert_eq!(bytes(&saved), number.to_string().as_bytes());
        }
    };
    check(&store);
    drop(store);
    check(&options.open(directory.path()).expect("reopens"));
}
