//! Reconciliation: what is asked about a key whose outcome is unknown, what a verdict does, and who
//! comes first where others use the key at the same time.

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use oncekey::reconcile::{Interrupted, ReconcileError, ReconcileReport, Verdict};
use oncekey::{
    Claim, ClaimError, Forget, Key, KeyState, ManualClock, Options, Store, Unavailable, WriteError,
};

use support::*;

fn reconcile(
    mode: Mode,
    store: &Store,
    mut ask: impl FnMut(&Interrupted) -> Verdict,
) -> Result<ReconcileReport, Unavailable> {
    match mode.style {
        Style::Blocking => store.reconcile(ask),
        Style::Async => block_on(store.reconcile_async(async |one: &Interrupted| ask(one))),
    }
}

/// A key that was claimed, noted and left.
fn leave(mode: Mode, store: &Store, id: &str) -> String {
    let mut operation = started(mode.claim(store, &key(id), request()));
    mode.checkpoint(&mut operation, format!("note of {id}"))
        .expect("a note");
    operation.downstream_key("charge")
}

fn attempt(store: &Store, key: &Key) -> u32 {
    match store.get(key).expect("an answer") {
        KeyState::Interrupted { attempt, .. } => attempt,
        other => panic!("expected Interrupted, got {other:?}"),
    }
}

fn state(store: &Store, id: &str) -> KeyState {
    store.get(&key(id)).expect("an answer")
}

#[test]
fn each_verdict_does_what_it_says() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let ids = ["completed", "done", "released", "kept"];
        let mut charges = ids.map(|id| (key(id), leave(mode, &store, id))).to_vec();
        let held = started(mode.claim(&store, &key("held"), request()));
        finish(&store, &key("old"), b"paid");
        clock.advance(ms(1_500));
        let report = reconcile(mode, &store, |interrupted| {
            let at = charges.iter().position(|(key, _)| key == interrupted.key());
            let (key, charge) = charges.remove(at.expect("each at most once"));
            assert_eq!(interrupted.downstream_key("charge"), charge);
            assert_eq!((interrupted.attempt(), interrupted.age()), (1, ms(1_500)));
            assert_eq!(interrupted.started_at(), interrupted.created_at());
            assert!(!interrupted.is_abandoned());
            let id = String::from_utf8(key.id().to_vec()).expect("text");
            let note = interrupted.checkpoint().expect("a note");
            assert_eq!(note, format!("note of {id}").as_bytes());
            match id.as_str() {
                "completed" => Verdict::completed("charge 17"),
                "done" => Verdict::Done,
                "released" => Verdict::Release,
                _ => Verdict::Keep,
            }
        });
        let report = report.expect("a walk");
        assert!(charges.is_empty(), "{charges:?}");
        let counts = (report.completed, report.released, report.kept);
        assert_eq!((counts, report.overtaken, report.failed), ((2, 1, 1), 0, 0));
        let saved = completed(mode.claim(&store, &key("completed"), request()));
        assert_eq!((bytes(&saved), saved.attempt()), (b"charge 17".to_vec(), 1));
        let done = completed(mode.claim(&store, &key("done"), request()));
        assert!(done.by_scope().expect("no principal").response().is_none());
        assert!(matches!(state(&store, "released"), KeyState::Absent));
        assert_eq!(attempt(&store, &key("kept")), 1, "keeping is no attempt");
        // Another request under the key is another operation, as ever.
        mismatch(mode.claim(&store, &key("completed"), other_request()));
        mode.complete(held, b"paid").expect("nobody touched it");
        let stats = store.stats();
        assert_eq!((stats.pending_keys, stats.interrupted_keys), (1, 1));
    }
}

#[test]
fn what_was_settled_outlives_a_kill_and_what_was_kept_stays() {
    for mode in modes() {
        let (_directory, store, _clock) = mode.store_and_clock();
        for id in ["completed", "released", "kept"] {
            leave(mode, &store, id);
        }
        let report = reconcile(mode, &store, |interrupted| match interrupted.key().id() {
            b"completed" => Verdict::completed("charge 17"),
            b"released" => Verdict::Release,
            _ => Verdict::Keep,
        });
        assert_eq!(report.expect("a walk").kept, 1);
        let copy = killed(&store);
        let clock = ManualClock::new(START_MS);
        let store = mode.reopen(&copy, &clock);
        assert!(matches!(state(&store, "completed"), KeyState::Completed(_)));
        assert!(matches!(state(&store, "released"), KeyState::Absent));
        let kept = interrupted(mode.claim(&store, &key("kept"), request()));
        assert_eq!(kept.last_checkpoint().expect("it"), &b"note of kept"[..]);
        assert_eq!(kept.attempt(), 2);
    }
}

/// Does something to the key while it is asked about, and then gives a verdict that comes too late.
fn overtaken(mode: Mode, store: &Store, verdict: Verdict, meanwhile: impl Fn(&Key)) {
    let report = reconcile(mode, store, |interrupted| {
        meanwhile(interrupted.key());
        verdict.clone()
    });
    let report = report.expect("a walk");
    assert_eq!(report.overtaken, 1, "{mode:?} {verdict:?} {report:?}");
    assert_eq!(
        (report.completed, report.released, report.failed),
        (0, 0, 0)
    );
}

#[test]
fn a_key_that_changes_while_it_is_asked_about_is_left_alone() {
    for mode in modes() {
        for verdict in [Verdict::completed("late"), Verdict::Done, Verdict::Release] {
            let (_directory, store, _clock) = mode.store_and_clock();
            // Claimed, and still held.
            leave(mode, &store, "k");
            let taken = Mutex::new(None);
            overtaken(mode, &store, verdict.clone(), |key| {
                let operation = interrupted(mode.claim(&store, key, request()));
                *taken.lock().expect("no panic") = Some(operation);
            });
            let owner = taken.into_inner().expect("no panic").expect("an owner");
            // Claimed, and left again: interrupted as before, and not the same attempt.
            drop(owner);
            overtaken(mode, &store, verdict.clone(), |key| {
                drop(interrupted(mode.claim(&store, key, request())));
            });
            assert_eq!(attempt(&store, &key("k")), 3);
            // Completed.
            overtaken(mode, &store, verdict.clone(), |key| {
                let operation = interrupted(mode.claim(&store, key, request()));
                mode.complete(operation, b"paid").expect("a completion");
            });
            let saved = completed(mode.claim(&store, &key("k"), request()));
            assert_eq!(bytes(&saved), b"paid");
            // Removed, and begun anew by somebody.
            leave(mode, &store, "l");
            let taken = Mutex::new(None);
            overtaken(mode, &store, verdict, |key| {
                assert!(store.forget(key, Forget::Force).expect("removed"));
                let operation = started(mode.claim(&store, key, request()));
                *taken.lock().expect("no panic") = Some(operation);
            });
            let owner = taken.into_inner().expect("no panic").expect("an owner");
            mode.complete(owner, b"paid").expect("it is the owner's");
        }
    }
}

#[test]
fn an_owner_whose_lease_is_over_is_fenced_by_a_verdict_and_not_by_a_question() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = mode.claim_with(&store, &key("k"), request(), lease(100));
        let mut late = started(claim.expect("a claim"));
        clock.advance(ms(99));
        let none = reconcile(mode, &store, |_| unreachable!("its lease lasts"));
        assert_eq!(none.expect("a walk").kept, 0);
        clock.advance(ms(1));
        let kept = reconcile(mode, &store, |_| Verdict::Keep);
        assert_eq!(kept.expect("a walk").kept, 1);
        mode.checkpoint(&mut late, b"still here")
            .expect("nobody took over");
        let done = reconcile(mode, &store, |_| Verdict::completed("by hand"));
        assert_eq!(done.expect("a walk").completed, 1);
        let lost = mode.complete(late, b"too late").expect_err("it is fenced");
        assert!(matches!(lost.error(), WriteError::LeaseLost { .. }));
        let saved = completed(mode.claim(&store, &key("k"), request()));
        assert_eq!(bytes(&saved), b"by hand");
    }
}

#[test]
fn a_ticket_is_good_after_its_key_was_kept_and_void_after_it_was_settled() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let mut tickets = Vec::new();
        for id in ["kept", "completed", "released"] {
            let claim = mode.claim_with(&store, &key(id), request(), lease(100));
            let operation = started(claim.expect("a claim"));
            tickets.push(operation.into_ticket().expect("a ticket"));
        }
        clock.advance(ms(100));
        let report = reconcile(mode, &store, |interrupted| match interrupted.key().id() {
            b"kept" => Verdict::Keep,
            b"completed" => Verdict::completed("by hand"),
            _ => Verdict::Release,
        });
        assert_eq!(report.expect("a walk").failed, 0);
        let resumed = interrupted(store.resume(&tickets[0]).expect("a guard"));
        assert_eq!(resumed.attempt(), 2);
        completed(store.resume(&tickets[1]).expect("its result"));
        store.resume(&tickets[2]).expect_err("the key is free");
    }
}

#[test]
fn what_is_abandoned_can_be_settled_like_the_rest() {
    const LIMIT: Duration = Duration::from_secs(60);
    for mode in modes() {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let options: Options = mode.options().clock(Arc::new(clock.clone()));
        let store = options.abandon_after(LIMIT).open(directory.path());
        let store = store.expect("a store");
        for id in ["completed", "released", "kept"] {
            leave(mode, &store, id);
        }
        clock.advance(LIMIT);
        let report = reconcile(mode, &store, |interrupted| {
            assert!(interrupted.is_abandoned());
            assert_eq!(interrupted.age(), LIMIT);
            assert!(interrupted.checkpoint().is_some());
            match interrupted.key().id() {
                b"completed" => Verdict::completed("charge 17"),
                b"released" => Verdict::Release,
                _ => Verdict::Keep,
            }
        });
        let report = report.expect("a walk");
        assert_eq!((report.completed, report.released, report.kept), (1, 1, 1));
        let saved = completed(mode.claim(&store, &key("completed"), request()));
        assert_eq!(bytes(&saved), b"charge 17");
        drop(started(mode.claim(&store, &key("released"), request())));
        let refused = mode.try_claim(&store, &key("kept"), request());
        assert!(
            matches!(refused, Err(ClaimError::Abandoned(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn an_error_of_one_key_does_not_end_the_walk() {
    for mode in modes() {
        let directory = directory();
        let store = mode.options().max_response(100).open(directory.path());
        let store = store.expect("a store");
        for number in 0..20 {
            leave(mode, &store, &number.to_string());
        }
        let report = reconcile(mode, &store, |interrupted| match interrupted.key().id() {
            b"7" | b"13" => Verdict::completed(vec![0; 101]),
            _ => Verdict::completed("charge"),
        });
        let report = report.expect("a walk");
        assert_eq!((report.completed, report.failed), (18, 2));
        for failure in &report.failures {
            assert!([&b"7"[..], b"13"].contains(&failure.key.id()));
            let ReconcileError::Write(WriteError::ResponseTooLarge { len: 101, max: 100 }) =
                &failure.error
            else {
                panic!("{failure:?}")
            };
            // As it was.
            assert_eq!(attempt(&store, &failure.key), 1);
        }
        let again = reconcile(mode, &store, |_| Verdict::Done).expect("a walk");
        assert_eq!((again.completed, again.failed), (2, 0));
    }
}

#[test]
fn a_closed_store_ends_the_walk() {
    for mode in modes() {
        let (_directory, store, _clock) = mode.store_and_clock();
        leave(mode, &store, "a");
        leave(mode, &store, "b");
        let mut asked = 0;
        let ended = reconcile(mode, &store, |_| {
            asked += 1;
            store.close().expect("closes");
            Verdict::Done
        });
        assert!(matches!(ended, Err(Unavailable::Closed)), "{ended:?}");
        assert_eq!(asked, 1);
        let none = reconcile(mode, &store, |_| unreachable!("it is closed"));
        assert!(matches!(none, Err(Unavailable::Closed)));
    }
}

#[test]
fn a_panic_of_the_question_leaves_its_key_as_it_was() {
    for mode in modes() {
        let (_directory, store, _clock) = mode.store_and_clock();
        leave(mode, &store, "k");
        let walk =
            std::panic::AssertUnwindSafe(|| reconcile(mode, &store, |_| panic!("on purpose")));
        std::panic::catch_unwind(walk).expect_err("it panicked");
        assert_eq!(attempt(&store, &key("k")), 1);
        let report = reconcile(mode, &store, |_| Verdict::Done).expect("a walk");
        assert_eq!(report.completed, 1);
    }
}

#[test]
fn a_walk_that_is_dropped_leaves_its_key_interrupted_or_settled() {
    let mode = Mode {
        durability: oncekey::Durability::Sync,
        style: Style::Async,
    };
    for verdict in [Verdict::completed("charge"), Verdict::Release] {
        for polls in 1..5 {
            let (_directory, store, _clock) = mode.store_and_clock();
            leave(mode, &store, "k");
            let mut walk =
                Polled::new(store.reconcile_async(async |_: &Interrupted| verdict.clone()));
            for _ in 0..polls {
                if walk.poll().is_ready() {
                    break;
                }
            }
            drop(walk);
            match (state(&store, "k"), &verdict) {
                (KeyState::Interrupted { attempt: 1, .. }, _)
                | (KeyState::Completed(_), Verdict::Completed(_))
                | (KeyState::Absent, Verdict::Release) => {}
                (other, _) => panic!("{other:?} after {polls} polls"),
            }
        }
    }
}

#[test]
fn ten_walks_and_claimers_at_once_settle_each_key_once() {
    for mode in modes() {
        let (_directory, store, _clock) = mode.store_and_clock();
        for number in 0..60 {
            leave(mode, &store, &number.to_string());
        }
        let (settled, barrier) = (AtomicU64::new(0), Barrier::new(12));
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    barrier.wait();
                    let report = reconcile(mode, &store, |one| {
                        Verdict::completed(one.key().id().to_vec())
                    });
                    let report = report.expect("a walk");
                    assert_eq!(report.failed, 0, "{report:?}");
                    settled.fetch_add(report.completed, Ordering::Relaxed);
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    barrier.wait();
                    for number in 0..60 {
                        let key = key(&number.to_string());
                        match mode.claim(&store, &key, request()) {
                            Claim::Interrupted(operation) => {
                                mode.complete(operation, key.id()).expect("a completion");
                                settled.fetch_add(1, Ordering::Relaxed);
                            }
                            Claim::InProgress(_) | Claim::Completed(_) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        assert_eq!(settled.into_inner(), 60);
        for number in 0..60 {
            let saved = completed(mode.claim(&store, &key(&number.to_string()), request()));
            assert_eq!(bytes(&saved), number.to_string().as_bytes());
        }
    }
}

#[test]
fn every_key_is_asked_about_however_many_stripes_there_are() {
    for stripes in [1, 16] {
        let directory = directory();
        let options = small(oncekey::Durability::Buffered).stripes(stripes);
        let store = options.open(directory.path()).expect("a store");
        let all: HashSet<_> = (0..300).map(|number| key(&number.to_string())).collect();
        for key in &all {
            drop(started(store.claim(key, request()).expect("a claim")));
        }
        let mut asked = HashSet::new();
        let report = store.reconcile(|interrupted| {
            assert!(asked.insert(interrupted.key().clone()), "asked twice");
            Verdict::Keep
        });
        assert_eq!(report.expect("a walk").kept, 300);
        assert_eq!(asked, all);
    }
}

#[cfg(feature = "testing")]
mod lost_power {
    use oncekey::Durability;
    use oncekey::testing::SimulatedDisk;

    use super::*;

    const VERDICTS: [fn() -> Verdict; 2] = [|| Verdict::completed("charge"), || Verdict::Release];

    /// Power is lost at every operation of the disk during a walk.
    #[test]
    fn a_verdict_that_power_takes_back_leaves_the_key_interrupted() {
        for verdict in VERDICTS {
            let mut at = 0;
            loop {
                let disk = SimulatedDisk::new();
                let store = small(Durability::Sync).open_simulated(&disk);
                let store = store.expect("a store");
                drop(started(store.claim(&key("k"), request()).expect("a claim")));
                store.flush().expect("durable");
                disk.crash_at(disk.operations() + at);
                let report = store.reconcile(|_| verdict());
                let has_lost_power = disk.has_lost_power();
                drop(store);
                for seed in 0..4 {
                    let image = disk.crash_random(seed);
                    let store = small(Durability::Sync).open_simulated(&image);
                    let store = store.expect("reopens");
                    let state = store.get(&key("k")).expect("an answer");
                    match (&report, state) {
                        (Ok(_), KeyState::Completed(_)) if verdict() != Verdict::Release => {}
                        (Ok(_), KeyState::Absent) if verdict() == Verdict::Release => {}
                        (Ok(report), state) => panic!("{report:?}, then {state:?}"),
                        (Err(_), KeyState::Absent) => assert_eq!(verdict(), Verdict::Release),
                        (Err(_), KeyState::Completed(_)) => {
                            assert_ne!(verdict(), Verdict::Release);
                        }
                        (Err(_), KeyState::Interrupted { attempt, .. }) => assert_eq!(attempt, 1),
                        (Err(_), state) => panic!("{state:?}"),
                    }
                }
                if !has_lost_power {
                    assert!(report.is_ok());
                    break;
                }
                at += 1;
            }
            assert!(at > 0, "the walk touched the disk");
        }
    }
}
