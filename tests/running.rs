//! `run`: claim, work, complete in one call; the work runs once.

mod support;

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use oncekey::{
    ClaimError, ClaimOptions, KeyState, OnInterrupted, Operation, RunError, RunOptions, Saved,
    Store, WriteError,
};

use support::*;

type Ran = Result<Saved, RunError<String>>;

fn run(
    mode: Mode,
    store: &Store,
    options: RunOptions,
    work: impl FnOnce(&mut Operation) -> Result<Vec<u8>, String>,
) -> Ran {
    let key = key("k-1");
    match mode.style {
        Style::Blocking => store.run(&key, request(), options, work),
        Style::Async => block_on(store.run_async(
            &key,
            request(),
            options,
            async |operation: &mut Operation| work(operation),
        )),
    }
}

fn rerun() -> RunOptions {
    RunOptions::new().on_interrupted(OnInterrupted::Rerun)
}

#[test]
fn the_work_runs_once_and_every_duplicate_gets_its_result() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let runs = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let saved = run(mode, &store, RunOptions::new(), |_| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok(b"paid".to_vec())
                    });
                    assert_eq!(bytes(&saved.expect("a result")), b"paid");
                });
            }
        });
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{mode:?}");
    }
}

#[test]
fn work_that_fails_leaves_its_key_interrupted_and_returns_its_error() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        match run(mode, &store, RunOptions::new(), |_| Err("declined".into())) {
            Err(RunError::Work(error)) => assert_eq!(error, "declined"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            store.get(&key("k-1")),
            Ok(KeyState::Interrupted { attempt: 1, .. })
        ));
    }
}

#[test]
fn work_that_panics_leaves_its_key_interrupted() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            run(mode, &store, RunOptions::new(), |_| {
                panic!("the work panics, as this test wants it to")
            })
        }));
        assert!(panicked.is_err());
        let saved = run(mode, &store, rerun(), |operation| {
            assert_eq!(operation.attempt(), 2);
            Ok(b"paid".to_vec())
        });
        assert_eq!(bytes(&saved.expect("a result")), b"paid");
    }
}

#[test]
fn an_interrupted_key_is_not_run_again_unless_it_is_asked_for() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mut operation = started(mode.claim(&store, &key("k-1"), request()));
        operation.checkpoint(b"half way").expect("a checkpoint");
        drop(operation);
        match run(mode, &store, RunOptions::new(), |_| {
            panic!("the work must not run")
        }) {
            Err(RunError::Interrupted(operation)) => {
                assert_eq!(operation.attempt(), 2);
                let previous = operation.previous().expect("an attempt before");
                assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
                // Reconciled by hand.
                mode.complete(*operation, b"paid after all")
                    .expect("a completion");
            }
            other => panic!("{other:?}"),
        }
        let saved = run(mode, &store, RunOptions::new(), |_| {
            panic!("the work must not run")
        });
        assert_eq!(bytes(&saved.expect("a result")), b"paid after all");
    }
}

#[test]
fn a_duplicate_whose_owner_dies_takes_over_by_the_policy() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                run(mode, &store, rerun(), |operation| {
                    Ok(operation.attempt().to_string().into_bytes())
                })
            });
            eventually("the waiter", || store.stats().waiters == 1);
            drop(operation);
            let saved = waiting.join().expect("no panic").expect("a result");
            assert_eq!(bytes(&saved), b"2", "{mode:?}");
        });
    }
}

#[test]
fn a_duplicate_waits_no_longer_than_it_says() {
    let (_directory, store) = buffered();
    let _operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    for wait in [Duration::ZERO, ms(2)] {
        let ran = store.run(&key("k-1"), request(), RunOptions::new().wait(wait), |_| {
            Ok::<_, String>(b"never run")
        });
        assert!(matches!(ran, Err(RunError::InProgress)), "{ran:?}");
    }
}

#[test]
fn a_result_that_is_too_large_comes_back_with_the_guard() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        match run(mode, &store, RunOptions::new(), |_| Ok(vec![0; 1 << 20])) {
            Err(RunError::Finish(error)) => {
                assert!(matches!(error.error(), WriteError::ResponseTooLarge { .. }));
                let operation = error.into_operation().expect("the guard");
                operation.complete_without_response().expect("done");
            }
            other => panic!("{other:?}"),
        }
        let again = run(mode, &store, RunOptions::new(), |_| {
            panic!("the work must not run")
        });
        let replay = again.expect("a result").by_scope().expect("for nobody");
        assert!(replay.response().is_none());
    }
}

#[test]
fn the_claims_options_are_those_of_run() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let short = ClaimOptions::new().retention(ms(5_000));
        let saved = run(mode, &store, RunOptions::new().claim(short), |_| {
            Ok(b"paid".to_vec())
        });
        let saved = saved.expect("a result");
        assert_eq!(saved.expires_at(), saved.completed_at() + ms(5_000));
        clock.advance(ms(5_000));
        let wrong = ClaimOptions::new().retention(Duration::ZERO);
        let ran = run(mode, &store, RunOptions::new().claim(wrong), |_| {
            panic!("the work must not run")
        });
        assert!(
            matches!(ran, Err(RunError::Claim(ClaimError::Options(_)))),
            "{ran:?}"
        );
        let late = ClaimOptions::new().first_sent(std::time::SystemTime::UNIX_EPOCH);
        let ran = run(mode, &store, RunOptions::new().claim(late), |_| {
            panic!("the work must not run")
        });
        assert!(matches!(ran, Err(RunError::TooLate(_))), "{ran:?}");
    }
}

#[test]
fn work_that_outlives_its_lease_is_told_that_its_result_was_not_stored() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let options = RunOptions::new().claim(lease(1_000));
        let ran = run(mode, &store, options, |_| {
            clock.advance(ms(1_000));
            let other = interrupted(mode.claim(&store, &key("k-1"), request()));
            mode.complete(other, b"fresh").expect("a completion");
            Ok(b"stale".to_vec())
        });
        match ran {
            Err(RunError::Finish(error)) => {
                assert!(matches!(error.error(), WriteError::LeaseLost { .. }));
            }
            other => panic!("{other:?}"),
        }
        let saved = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(bytes(&saved), b"fresh");
    }
}
