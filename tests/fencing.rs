//! A guard that was overtaken changes nothing any more, and is told so.

mod support;

use std::time::Duration;

use oncekey::{FinishError, Forget, KeyState, Operation, Options, Saved, Store, Token, WriteError};

use support::*;

/// The five things that a guard can do to its key.
const CALLS: [&str; 5] = ["complete", "checkpoint", "renew", "release", "into_ticket"];

/// Has a guard do one of them, and tells how it was refused.
#[track_caller]
fn refused(mode: Mode, call: &str, mut operation: Operation) -> WriteError {
    fn of<T: std::fmt::Debug>(result: Result<T, FinishError>) -> WriteError {
        let error = result.expect_err("refused");
        let cause = error.error().clone();
        let kept = error.into_operation().is_some();
        assert!(!kept, "a lost guard is not given back");
        cause
    }
    match call {
        "complete" => of(mode.complete(operation, b"stale")),
        "release" => of(mode.release(operation)),
        "into_ticket" => of(operation.into_ticket()),
        "checkpoint" => mode
            .checkpoint(&mut operation, b"stale")
            .expect_err("refused"),
        "renew" => operation.renew().expect_err("refused"),
        other => panic!("{other}"),
    }
}

#[track_caller]
fn lost(error: WriteError) -> Option<u32> {
    match error {
        WriteError::LeaseLost { new_attempt } => new_attempt,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stale_guard_after_a_takeover_gets_lease_lost_and_changes_nothing() {
    for mode in modes() {
        for call in CALLS {
            let (directory, store, clock) = mode.store_and_clock();
            let key = key("k-1");
            let claim = mode.claim_with(&store, &key, request(), lease(1_000));
            let mut stale = started(claim.expect("a claim"));
            mode.checkpoint(&mut stale, b"of the first")
                .expect("a checkpoint");
            clock.advance(ms(1_000));
            let claim = mode.claim_with(&store, &key, request(), lease(1_000));
            let mut owner = interrupted(claim.expect("a claim"));
            mode.checkpoint(&mut owner, b"of the second")
                .expect("a checkpoint");
            clock.advance(ms(400));
            let before = format!("{:?}", store.get(&key));
            let appended = store.stats().available_bytes;
            assert_eq!(
                lost(refused(mode, call, stale)),
                Some(2),
                "{call}, {mode:?}"
            );
            // The guard was dropped with that: it interrupted nobody.
            assert_eq!(format!("{:?}", store.get(&key)), before, "{call}, {mode:?}");
            assert_eq!(store.stats().available_bytes, appended);
            assert_eq!(store.stats().interruptions, 0);
            // Neither was the lease made longer.
            clock.advance(ms(599));
            in_progress(mode.claim(&store, &key, request()));
            clock.advance(ms(1));
            assert!(matches!(store.get(&key), Ok(KeyState::Interrupted { .. })));
            let saved = mode.complete(owner, b"fresh").expect("still ours");
            assert_eq!((bytes(&saved), saved.attempt()), (b"fresh".to_vec(), 2));
            drop(store);
            let store = mode.reopen(&directory, &clock);
            let replayed = completed(mode.claim(&store, &key, request()));
            assert_eq!(bytes(&replayed), b"fresh", "{call}, {mode:?}");
        }
    }
}

#[test]
fn a_stale_guard_leaves_the_new_owners_checkpoint_to_the_next_one() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let claim = mode.claim_with(&store, &key, request(), lease(1_000));
        let mut stale = started(claim.expect("a claim"));
        clock.advance(ms(1_000));
        let mut owner = interrupted(mode.claim(&store, &key, request()));
        mode.checkpoint(&mut owner, b"of the second")
            .expect("a checkpoint");
        lost(mode.checkpoint(&mut stale, b"stale").expect_err("refused"));
        assert_eq!(stale.last_checkpoint(), None);
        drop((stale, owner));
        let next = interrupted(mode.claim(&store, &key, request()));
        let previous = next.previous().expect("an attempt before");
        assert_eq!(next.attempt(), 3);
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"of the second"[..]));
    }
}

#[test]
fn a_stale_guard_stays_stale_whatever_became_of_the_key() {
    type Fate = fn(&Store, Operation);
    let fates: [(&str, Fate); 6] = [
        ("held", |_, owner| std::mem::forget(owner)),
        ("completed", |_, owner| {
            drop(owner.complete(b"fresh").expect("a completion"));
        }),
        ("released", |_, owner| owner.release().expect("a release")),
        ("dropped", |_, owner| drop(owner)),
        ("forgotten", |store, owner| {
            store.forget(owner.key(), Forget::Force).expect("forgotten");
        }),
        ("claimed anew", |store, owner| {
            let key = owner.key().clone();
            owner.release().expect("a release");
            std::mem::forget(started(store.claim(&key, request()).expect("a claim")));
        }),
    ];
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        for (name, fate) in fates {
            for call in CALLS {
                let key = key(&format!("{name}, {call}"));
                let claim = mode.claim_with(&store, &key, request(), lease(1_000));
                let stale = started(claim.expect("a claim"));
                clock.advance(ms(1_000));
                let owner = interrupted(mode.claim(&store, &key, request()));
                fate(&store, owner);
                let before = format!("{:?}", store.get(&key));
                lost(refused(mode, call, stale));
                let after = format!("{:?}", store.get(&key));
                assert_eq!(after, before, "{name}, {call}, {mode:?}");
            }
        }
        // The guards that were leaked keep the engine.
        store.close().expect("closes");
    }
}

#[test]
fn a_guard_whose_key_an_operator_took_gets_lease_lost() {
    type Take = fn(&Store, &Operation);
    let takes: [(&str, Take); 2] = [
        ("interrupt", |store, owner| {
            store.interrupt(owner.key(), owner.token()).expect("taken");
        }),
        ("forget", |store, owner| {
            store.forget(owner.key(), Forget::Force).expect("taken");
        }),
    ];
    for mode in modes() {
        let (_directory, store) = mode.store();
        for (name, take) in takes {
            for call in CALLS {
                let key = key(&format!("{name}, {call}"));
                let claim = mode.claim_with(&store, &key, request(), lease(60_000));
                let owner = started(claim.expect("a claim"));
                take(&store, &owner);
                let before = format!("{:?}", store.get(&key));
                assert_eq!(lost(refused(mode, call, owner)), None, "{name}, {call}");
                assert_eq!(format!("{:?}", store.get(&key)), before, "{name}, {call}");
            }
        }
    }
}

#[test]
fn a_lease_that_is_over_is_no_loss_as_long_as_nobody_took_over() {
    for mode in modes() {
        let claim_one = |store: &Store| {
            let claim = mode.claim_with(store, &key("k-1"), request(), lease(1_000));
            started(claim.expect("a claim"))
        };
        let (_directory, store, clock) = mode.store_and_clock();
        let operation = claim_one(&store);
        clock.advance(Duration::from_secs(3_600));
        mode.complete(operation, b"paid").expect("still ours");
        store.forget(&key("k-1"), Forget::Force).expect("forgotten");

        let mut operation = claim_one(&store);
        clock.advance(ms(1_000));
        mode.checkpoint(&mut operation, b"half way")
            .expect("still ours");
        operation.renew().expect("still ours");
        in_progress(mode.claim(&store, &key("k-1"), request()));
        clock.advance(ms(1_000));
        mode.release(operation).expect("still ours");
        assert!(matches!(store.get(&key("k-1")), Ok(KeyState::Absent)));
    }
}

#[test]
fn a_takeover_of_one_key_touches_no_other() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let keys: Vec<_> = (0..32).map(|number| key(&number.to_string())).collect();
        let held: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(number, key)| {
                let ms = if number == 7 { 1_000 } else { 5_000 };
                let claim = mode.claim_with(&store, key, request(), lease(ms));
                started(claim.expect("a claim"))
            })
            .collect();
        clock.advance(ms(1_000));
        interrupted(mode.claim(&store, &keys[7], request()))
            .complete(b"fresh")
            .expect("a completion");
        for (number, operation) in held.into_iter().enumerate() {
            let result = mode.complete(operation, b"paid");
            assert_eq!(result.is_ok(), number != 7, "key {number}, {mode:?}");
        }
    }
}

#[test]
fn the_first_completion_under_the_current_token_wins() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        let mut guards = Vec::new();
        for _ in 0..5 {
            let claim = mode.claim_with(&store, &key, request(), lease(100));
            guards.push(owned(claim.expect("a claim")));
            clock.advance(ms(100));
        }
        let newest = guards.pop().expect("five of them");
        for stale in guards.drain(..2) {
            assert_eq!(lost(refused(mode, "complete", stale)), Some(5));
        }
        let saved = mode.complete(newest, b"fresh").expect("ours");
        assert_eq!(saved.attempt(), 5);
        for stale in guards {
            lost(refused(mode, "complete", stale));
        }
        let replayed = completed(mode.claim(&store, &key, request()));
        assert_eq!(bytes(&replayed), b"fresh");
    }
}

#[test]
fn tokens_grow_with_every_grant_and_over_every_restart() {
    for mode in modes() {
        let (directory, mut store, clock) = mode.store_and_clock();
        let mut newest = Token::from_u64(0);
        for round in 0..6 {
            for number in 0..5 {
                let operation = owned(mode.claim(&store, &key(&number.to_string()), request()));
                assert!(operation.token() > newest, "round {round}, {mode:?}");
                newest = operation.token();
                // Every other round leaves them pending.
                if round % 2 == 0 {
                    mode.release(operation).expect("a release");
                }
            }
            if round == 3 {
                // What was granted after a backup was made, the backup does not know.
                let copy = killed(&store);
                drop(store);
                let options: Options = mode.options().clock(std::sync::Arc::new(clock.clone()));
                store = options
                    .clone()
                    .restored(true)
                    .open(copy.path())
                    .expect("opens");
                let granted = owned(mode.claim(&store, &key("after"), request())).token();
                assert!(
                    granted.as_u64() - newest.as_u64() > 1_000 << 36,
                    "far ahead"
                );
                store.close().expect("closes");
            } else {
                store.close().expect("closes");
            }
            drop(store);
            store = mode.reopen(&directory, &clock);
        }
    }
}

#[test]
fn an_error_that_leaves_the_key_held_gives_the_guard_back() {
    for mode in modes() {
        let directory = directory();
        let store = mode
            .options()
            .max_response(1_000)
            .open(directory.path())
            .expect("a store");
        let key = key("k-1");
        let operation = started(mode.claim(&store, &key, request()));
        let token = operation.token();
        #[track_caller]
        fn back(result: Result<Saved, FinishError>) -> (WriteError, Operation) {
            let error = result.expect_err("refused");
            let cause = error.error().clone();
            (cause, error.into_operation().expect("the guard"))
        }
        let (error, operation) = back(mode.complete(operation, vec![0; 1_001]));
        assert!(
            matches!(
                error,
                WriteError::ResponseTooLarge {
                    len: 1_001,
                    max: 1_000
                }
            ),
            "{error:?}"
        );
        let (error, operation) = back(
            operation
                .complete_with(b"paid")
                .principal(vec![b'p'; 256])
                .commit(),
        );
        assert!(
            matches!(error, WriteError::PrincipalTooLong { len: 256, max: 255 }),
            "{error:?}"
        );
        for retention in [Duration::ZERO, ms(1), Duration::MAX] {
            let completion = store_completion(&store, &key, retention);
            assert!(completion.is_none(), "the key is held");
        }
        let (error, operation) = back(
            operation
                .complete_with(b"paid")
                .retention(Duration::ZERO)
                .commit(),
        );
        assert!(matches!(error, WriteError::Options(_)), "{error:?}");
        let error = operation.into_ticket().expect_err("refused");
        assert!(matches!(error.error(), WriteError::TicketNeedsLease));
        let mut operation = error.into_operation().expect("the guard");
        let error = mode
            .checkpoint(&mut operation, vec![0; 4_097])
            .expect_err("refused");
        assert!(
            matches!(
                error,
                WriteError::CheckpointTooLarge {
                    len: 4_097,
                    max: 4_096
                }
            ),
            "{error:?}"
        );
        assert_eq!(operation.token(), token);
        in_progress(mode.claim(&store, &key, request()));
        let saved = mode.complete(operation, vec![7; 1_000]).expect("fits");
        assert_eq!(bytes(&saved), vec![7; 1_000]);
        assert_eq!(store.stats().interruptions, 0);
    }
}

/// `None` where the key is held by somebody else.
fn store_completion(store: &Store, key: &oncekey::Key, retention: Duration) -> Option<Saved> {
    match store.claim(key, request()).expect("a claim") {
        oncekey::Claim::InProgress(_) => None,
        claim => owned(claim)
            .complete_with(b"")
            .retention(retention)
            .commit()
            .ok(),
    }
}

#[test]
fn a_guard_dropped_with_its_error_interrupts() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let operation = started(store.claim(&key, request()).expect("a claim"));
    drop(operation.complete(vec![0; 1 << 20]).expect_err("too large"));
    drop(interrupted(store.claim(&key, request()).expect("a claim")));
}
