//! How attempts are counted, what may run again, and what becomes of an event that never succeeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncekey::inbox::CHECKPOINT_MAX;
use oncekey::reconcile::{Interrupted, Verdict};
use oncekey::{Store, WriteError};

use super::*;
use crate::support::*;

fn policies() -> [OnInterrupted; 3] {
    [
        OnInterrupted::rerun(),
        OnInterrupted::dead_letter(),
        OnInterrupted::reconcile(|_| panic!("there is nothing to reconcile")),
    ]
}

fn open_keys(store: &Store) -> (u64, u64, u64) {
    let stats = store.stats();
    (
        stats.pending_keys,
        stats.interrupted_keys,
        stats.completed_keys,
    )
}

#[test]
fn failures_that_did_nothing_run_again_with_growing_delays_and_end_as_a_dead_letter() {
    for mode in modes() {
        for policy in policies() {
            let (directory, store, clock) = mode.store_and_clock();
            let mut store = store;
            for (run, after) in [(1, 100), (2, 200)] {
                let mine = inbox(&store, policy.clone());
                let outcome = mode.process(&mine, "evt_1", |event| {
                    assert_eq!(event.run(), run);
                    assert!(event.previous().is_none(), "nobody has acted");
                    nothing_happened()
                });
                let told = retry(outcome);
                assert_eq!(told.after, ms(after));
                assert!(matches!(&told.reason, RetryReason::Failed(_)));
                assert!(told.reason.to_string().contains("mail server is down"));
                // Counted across restarts.
                store.close().expect("closes");
                store = mode.reopen(&directory, &clock);
            }
            let mine = inbox(&store, policy);
            let told = dead(mode.process(&mine, "evt_1", |_| nothing_happened()));
            assert_eq!(
                (&told.reason, told.runs),
                (&DeadReason::TooManyAttempts, ATTEMPTS)
            );
            assert!(!told.is_outcome_unknown);
            // The message was not put away before the consumer died: it is told again.
            for _ in 0..2 {
                let again = dead(mode.process(&mine, "evt_1", never));
                assert_eq!(
                    (again.reason, again.runs),
                    (DeadReason::TooManyAttempts, ATTEMPTS)
                );
                let error = again.error.expect("what was said last");
                assert_eq!(error.to_string(), "the mail server is down");
            }
            assert_eq!(open_keys(&store), (0, 0, 1), "it is done with");
            assert!(mine.redrive("evt_1").expect("redriven"));
            assert!(!mine.redrive("evt_1").expect("it is none any more"));
            let fresh = mode.process(&mine, "evt_1", |event| {
                assert_eq!(event.run(), 1);
                Ok(())
            });
            assert_eq!(acked(fresh), Acked::Processed);
        }
    }
}

#[test]
fn a_handler_can_ask_for_a_delay() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let after = ms(77_000);
        for (id, failure) in [
            ("evt_1", Failure::nothing_happened(error()).after(after)),
            ("evt_2", Failure::may_have_acted("no answer").after(after)),
        ] {
            assert_eq!(
                retry(mode.process(&mine, id, |_| Err(failure))).after,
                after
            );
        }
    }
}

#[test]
fn a_rejected_event_is_a_dead_letter_at_once() {
    for mode in modes() {
        for policy in policies() {
            let (_directory, store) = mode.store();
            let mine = inbox(&store, policy);
            let told = dead(mode.process(&mine, "evt_1", |event| {
                event.checkpoint(b"read it").expect("a note");
                Err(Failure::reject("the payload is no JSON"))
            }));
            assert_eq!((&told.reason, told.runs), (&DeadReason::Rejected, 1));
            let again = dead(mode.process(&mine, "evt_1", never));
            assert_eq!(again.reason, DeadReason::Rejected);
            assert_eq!(
                again.error.expect("why").to_string(),
                "the payload is no JSON"
            );
            assert_eq!(open_keys(&store), (0, 0, 1));
        }
    }
}

/// How a handler ends.
type Ending = fn(&mut Event) -> Result<(), Failure>;

/// The ways in which a run can leave its outcome open.
const ENDINGS: [Ending; 3] = [
    |_| Err(Failure::may_have_acted(error())),
    |_| Err(error())?,
    |_| panic!("on purpose"),
];

/// Runs a handler that may panic; whether it told anything.
fn run(
    mode: Mode,
    inbox: &Inbox,
    handler: impl FnOnce(&mut Event) -> Result<(), Failure>,
) -> Option<Outcome> {
    catch_unwind(AssertUnwindSafe(|| mode.process(inbox, "evt_1", handler))).ok()
}

#[test]
fn a_run_that_may_have_acted_is_told_to_the_next() {
    for mode in modes() {
        for ending in ENDINGS {
            let (_directory, store) = mode.store();
            let mine = inbox(&store, OnInterrupted::rerun());
            let mut keys = Vec::new();
            let first = run(mode, &mine, |event| {
                keys.push(event.downstream_key("mail"));
                event.checkpoint(b"mail requested").expect("a note");
                ending(event)
            });
            if let Some(first) = first {
                assert_eq!(retry(first).after, ms(100));
            }
            let second = mode.process(&mine, "evt_1", |event| {
                keys.push(event.downstream_key("mail"));
                assert_eq!(event.run(), 2);
                let previous = event.previous().expect("it may have acted");
                assert_eq!(previous.attempt(), 1);
                assert_eq!(previous.checkpoint().expect("it"), &b"mail requested"[..]);
                assert_eq!(event.last_checkpoint().expect("it"), &b"mail requested"[..]);
                assert_eq!(previous.downstream_key("mail"), keys[0]);
                event.checkpoint(b"").expect("taken away");
                // That this run did nothing says nothing of the one before.
                nothing_happened()
            });
            assert_eq!(retry(second).after, ms(200));
            assert_eq!(keys[0], keys[1]);
            let third = mode.process(&mine, "evt_1", |event| {
                assert!(event.previous().is_some() && event.last_checkpoint().is_none());
                Ok(())
            });
            assert_eq!(acked(third), Acked::Processed);
        }
    }
}

#[test]
fn an_event_that_never_comes_to_an_end_is_a_dead_letter_and_stays_to_be_reconciled() {
    for mode in modes() {
        for ending in ENDINGS {
            let (_directory, store) = mode.store();
            let mine = inbox(&store, OnInterrupted::rerun());
            let mut told = None;
            for _ in 0..ATTEMPTS {
                told = run(mode, &mine, ending);
            }
            // A panic leaves nobody to tell; the next delivery is told.
            let told = told.unwrap_or_else(|| mode.process(&mine, "evt_1", never));
            let told = dead(told);
            assert_eq!(
                (&told.reason, told.runs),
                (&DeadReason::TooManyAttempts, ATTEMPTS)
            );
            assert!(told.is_outcome_unknown);
            let again = dead(mode.process(&mine, "evt_1", never));
            assert_eq!(again.reason, DeadReason::TooManyAttempts);
            assert_eq!(open_keys(&store).1, 1, "it is listed");
            // Somebody finds out that it was carried out after all.
            let report = store.reconcile(|_| Verdict::Done).expect("a walk");
            assert_eq!(report.completed, 1);
            assert_eq!(
                acked(mode.process(&mine, "evt_1", never)),
                Acked::AlreadyProcessed
            );
        }
    }
}

#[test]
fn with_dead_letters_for_what_is_unknown_nothing_runs_twice() {
    for mode in modes() {
        for ending in ENDINGS {
            let (_directory, store) = mode.store();
            let mine = inbox(&store, OnInterrupted::dead_letter());
            let told = run(mode, &mine, |event| {
                event.checkpoint(b"mail requested").expect("a note");
                ending(event)
            });
            let told = told.unwrap_or_else(|| mode.process(&mine, "evt_1", never));
            let told = dead(told);
            assert_eq!((&told.reason, told.runs), (&DeadReason::OutcomeUnknown, 1));
            assert!(told.is_outcome_unknown);
            dead(mode.process(&mine, "evt_1", never));
            // What the walk is shown is the handler's own note.
            let report = store.reconcile(|interrupted| {
                assert_eq!(
                    interrupted.checkpoint().expect("it"),
                    &b"mail requested"[..]
                );
                Verdict::Keep
            });
            assert_eq!(report.expect("a walk").kept, 1);
            assert!(mine.redrive("evt_1").expect("redriven"));
            let fresh = mode.process(&mine, "evt_1", |event| {
                assert!(event.run() == 1 && event.previous().is_none());
                Ok(())
            });
            acked(fresh);
        }
    }
}

#[test]
fn a_reconciliation_decides_before_the_handler_runs() {
    let verdicts = [
        Verdict::Done,
        Verdict::completed("charge 17"),
        Verdict::Release,
        Verdict::Keep,
    ];
    for mode in modes() {
        for verdict in &verdicts {
            for is_async in [false, true] {
                let (_directory, store) = mode.store();
                let asked = Arc::new(AtomicUsize::new(0));
                let (count, given) = (Arc::clone(&asked), verdict.clone());
                let ask = move |interrupted: &Interrupted| {
                    count.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(interrupted.checkpoint().expect("it"), &b"asked"[..]);
                    given.clone()
                };
                let mine = inbox(
                    &store,
                    match is_async {
                        false => OnInterrupted::reconcile(ask),
                        true => OnInterrupted::reconcile_async(move |interrupted| {
                            std::future::ready(ask(&interrupted))
                        }),
                    },
                );
                let first = mode.process(&mine, "evt_1", |event| {
                    event.checkpoint(b"asked").expect("a note");
                    Err(error())?
                });
                retry(first);
                let mut ran = 0;
                let outcome = mode.process(&mine, "evt_1", |event| {
                    ran += 1;
                    assert!(event.previous().is_none(), "it is known now");
                    assert_eq!(event.run(), 2);
                    Ok(())
                });
                assert_eq!(asked.load(Ordering::Relaxed), 1);
                match verdict {
                    Verdict::Release => {
                        assert_eq!((acked(outcome), ran), (Acked::Processed, 1));
                    }
                    Verdict::Keep => {
                        let told = retry(outcome);
                        assert_eq!((told.after, ran), (ms(200), 0));
                        assert!(matches!(told.reason, RetryReason::OutcomeUnknown));
                        // Asking in vain is an attempt too.
                        let told = dead(mode.process(&mine, "evt_1", never));
                        assert_eq!(told.reason, DeadReason::OutcomeUnknown);
                        assert!(told.is_outcome_unknown);
                        assert_eq!(open_keys(&store).1, 1);
                    }
                    _ => {
                        assert_eq!((acked(outcome), ran), (Acked::Reconciled, 0));
                        let again = mode.process(&mine, "evt_1", never);
                        assert_eq!(acked(again), Acked::AlreadyProcessed);
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_released_by_reconciliation_counts_on() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::reconcile(|_| Verdict::Release));
        for _ in 1..ATTEMPTS {
            retry(mode.process(&mine, "evt_1", |_| Err(error())?));
        }
        // The last run did nothing, and neither did those before.
        let told = dead(mode.process(&mine, "evt_1", |_| nothing_happened()));
        assert_eq!(told.reason, DeadReason::TooManyAttempts);
        assert!(!told.is_outcome_unknown);
    }
}

#[test]
fn only_dead_letters_can_be_redriven() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        assert!(!mine.redrive("evt_1").expect("unknown"));
        let outcome = mode.process(&mine, "evt_1", |_| {
            assert!(!mine.redrive("evt_1").expect("in progress"));
            nothing_happened()
        });
        retry(outcome);
        assert!(!mine.redrive("evt_1").expect("to be retried"));
        acked(mode.process(&mine, "evt_1", |event| {
            assert_eq!(event.run(), 2);
            Ok(())
        }));
        assert!(!mine.redrive("evt_1").expect("processed"));
        acked(mode.process(&mine, "evt_1", never));
        assert!(mine.redrive("").is_err());
    }
}

#[test]
fn a_handlers_checkpoint_has_its_own_limit() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let note = vec![7; CHECKPOINT_MAX];
        let outcome = mode.process(&mine, "evt_1", |event| {
            event.checkpoint(&note).expect("as much as fits");
            let larger = event.checkpoint(vec![8; CHECKPOINT_MAX + 1]);
            let Err(WriteError::CheckpointTooLarge { len, max }) = larger else {
                panic!("{larger:?}")
            };
            assert_eq!((len, max), (CHECKPOINT_MAX + 1, CHECKPOINT_MAX));
            assert_eq!(event.last_checkpoint().expect("it"), &note);
            Err(error())?
        });
        retry(outcome);
        let outcome = mode.process(&mine, "evt_1", |event| {
            assert_eq!(event.last_checkpoint().expect("it"), &note);
            Ok(())
        });
        acked(outcome);
    }
}

#[test]
fn a_dropped_future_leaves_its_event_interrupted() {
    let (_directory, store) = buffered();
    let mine = inbox(&store, OnInterrupted::rerun());
    let started = mine.process_async("evt_1", async |_: &mut Event| {
        std::future::pending::<()>().await;
        Ok(())
    });
    drop(Polled::new(started).pending());
    acked(mine.process("evt_1", |event| {
        assert!(event.run() == 2 && event.previous().is_some());
        Ok(())
    }));
}
