//! What a delivery leads to.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use oncekey::inbox::InboxError;
use oncekey::{ClaimOptions, Expected, Key, KeyState, Lease, PendingKey, Store};

use super::*;
use crate::support::*;

fn event_key(id: &str) -> Key {
    Key::new("", "mailer", id).expect("a key")
}

fn interrupted_keys(store: &Store) -> Vec<PendingKey> {
    store.interrupted().expect("a list")
}

#[test]
fn an_event_is_handled_once_and_every_other_delivery_is_acknowledged() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let mine = inbox(&store, OnInterrupted::rerun());
        let mut runs = 0;
        let outcome = mode.process(&mine, "evt_1", |event| {
            runs += 1;
            assert_eq!((event.id(), event.run()), (&b"evt_1"[..], 1));
            assert!(event.previous().is_none() && event.last_checkpoint().is_none());
            Ok(())
        });
        assert_eq!(acked(outcome), Acked::Processed);
        for _ in 0..3 {
            let again = mode.process(&mine, "evt_1", never);
            assert_eq!(acked(again), Acked::AlreadyProcessed);
        }
        store.close().expect("closes");
        let store = mode.reopen(&directory, &clock);
        let mine = inbox(&store, OnInterrupted::rerun());
        let again = mode.process(&mine, "evt_1", never);
        assert_eq!(acked(again), Acked::AlreadyProcessed);
        assert_eq!(runs, 1);
        // After its retention it is as good as new.
        clock.advance(Duration::from_secs(24 * 60 * 60));
        let late = mode.process(&mine, "evt_1", |_| Ok(()));
        assert_eq!(acked(late), Acked::Processed);
    }
}

#[test]
fn each_consumer_and_each_source_has_its_own_events() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mut runs = 0;
        for (consumer, scope) in [
            ("mailer", ""),
            ("mailer", "eu"),
            ("biller", ""),
            ("biller", "eu"),
        ] {
            let one = Inbox::builder(store.clone(), consumer)
                .scope(scope)
                .on_interrupted(OnInterrupted::rerun())
                .build()
                .expect("an inbox");
            for _ in 0..2 {
                let outcome = mode.process(&one, "evt_1", |_| {
                    runs += 1;
                    Ok(())
                });
                acked(outcome);
            }
        }
        assert_eq!(runs, 4);
    }
}

#[test]
fn ten_deliveries_at_once_run_one_handler() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        for round in 0..10 {
            let id = format!("evt_{round}");
            let (runs, barrier) = (AtomicUsize::new(0), Barrier::new(10));
            let (processed, before, later) = (
                AtomicUsize::new(0),
                AtomicUsize::new(0),
                AtomicUsize::new(0),
            );
            thread::scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|| {
                        barrier.wait();
                        let outcome = mode.process(&mine, &id, |_| {
                            runs.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            Ok(())
                        });
                        let count = match outcome {
                            Outcome::Ack(Acked::Processed) => &processed,
                            Outcome::Ack(Acked::AlreadyProcessed) => &before,
                            Outcome::RetryLater(RetryLater {
                                reason: RetryReason::InProgress { attempt: 1, .. },
                                ..
                            }) => &later,
                            other => panic!("{other:?}"),
                        };
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
            assert_eq!((runs.into_inner(), processed.into_inner()), (1, 1));
            assert_eq!(before.into_inner() + later.into_inner(), 9);
        }
    }
}

#[test]
fn an_event_in_progress_is_retried_when_its_lease_is_over_or_after_the_first_backoff() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let outer = inbox(&store, OnInterrupted::rerun());
        let outcome = mode.process(&outer, "evt_1", |_| {
            let inner = retry(outer.process("evt_1", never));
            assert!(matches!(
                inner.reason,
                RetryReason::InProgress { attempt: 1, .. }
            ));
            assert_eq!(inner.after, ms(100), "no lease to tell when");
            Ok(())
        });
        acked(outcome);

        for (lease_ms, expected_ms) in [(260, 200), (5_000, 350)] {
            let claim = ClaimOptions::new().lease(Lease::For(ms(lease_ms)));
            let leased = builder(&store, OnInterrupted::rerun()).claim(claim).build();
            let leased = leased.expect("an inbox");
            let id = format!("evt_{lease_ms}");
            let outcome = mode.process(&leased, &id, |_| {
                clock.advance(ms(60));
                assert_eq!(retry(leased.process(&id, never)).after, ms(expected_ms));
                Ok(())
            });
            acked(outcome);
        }
    }
}

#[test]
fn a_lease_that_is_over_hands_the_event_on_and_the_late_handler_counts_for_nothing() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = ClaimOptions::new().lease(Lease::For(ms(100)));
        let leased = builder(&store, OnInterrupted::rerun()).claim(claim).build();
        let leased = leased.expect("an inbox");
        let outcome = mode.process(&leased, "evt_1", |event| {
            clock.advance(ms(99));
            event.renew().expect("in time");
            clock.advance(ms(99));
            retry(leased.process("evt_1", never));
            clock.advance(ms(1));
            // It hangs; the event is delivered again.
            let second = leased.process("evt_1", |event| {
                assert_eq!(event.run(), 2);
                let previous = event.previous().expect("the one that hangs");
                assert_eq!(previous.attempt(), 1);
                Ok(())
            });
            assert_eq!(acked(second), Acked::Processed);
            event.renew().expect_err("it was overtaken");
            Ok(())
        });
        let late = retry(outcome);
        assert!(
            matches!(
                late.reason,
                RetryReason::NotStored(oncekey::WriteError::LeaseLost { .. })
            ),
            "{late:?}"
        );
        assert_eq!(
            acked(mode.process(&leased, "evt_1", never)),
            Acked::AlreadyProcessed
        );
    }
}

#[test]
fn the_same_id_with_another_payload_is_told_apart() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let paid = Message::new("evt_1").payload("order 17 is paid");
        let other = || Message::new("evt_1").payload("order 18 is paid");
        let outcome = mode.process(&mine, paid.clone(), |_| {
            let told = dead(mine.process(other(), never));
            let DeadReason::OtherPayload(mismatch) = told.reason else {
                panic!("{told:?}")
            };
            assert!(!mismatch.completed);
            Ok(())
        });
        acked(outcome);
        let told = dead(mode.process(&mine, other(), never));
        assert!(matches!(told.reason, DeadReason::OtherPayload(mismatch) if mismatch.completed));
        assert!(!told.is_outcome_unknown);
        assert_eq!(
            acked(mode.process(&mine, paid, never)),
            Acked::AlreadyProcessed
        );
    }
}

#[test]
fn an_event_older_than_what_is_remembered_is_too_late() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let mine = inbox(&store, OnInterrupted::rerun());
        let sent = SystemTime::UNIX_EPOCH + ms(START_MS);
        let message = || Message::new("evt_1").sent_at(sent);
        acked(mode.process(&mine, message(), |_| Ok(())));
        clock.advance(Duration::from_secs(24 * 60 * 60));
        // The consumer is set back to the beginning: its event is not known any more.
        let late = dead(mode.process(&mine, message(), never));
        assert!(matches!(late.reason, DeadReason::TooLate(_)), "{late:?}");
        let batch = [Message::new("evt_new").sent_at(store.now()), message()];
        let outcomes = mode.process_batch(&mine, batch, |index, _| {
            assert_eq!(index, 0);
            Ok(())
        });
        assert!(outcomes[0].is_ack() && outcomes[1].is_settled());
    }
}

#[test]
fn an_id_that_is_no_key_is_a_dead_letter_and_touches_nothing() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let long = "x".repeat(256);
        for id in ["", &long] {
            let told = dead(mode.process(&mine, id, never));
            assert!(matches!(told.reason, DeadReason::BadEventId(_)), "{told:?}");
        }
        let outcomes = mode.process_batch(&mine, ["", "evt_1", &long], |index, _| {
            assert_eq!(index, 1);
            Ok(())
        });
        for (index, outcome) in outcomes.into_iter().enumerate() {
            assert_eq!(outcome.is_ack(), index == 1);
        }
        assert_eq!(store.stats().completed_keys, 1);
    }
}

#[test]
fn a_completion_can_be_told_more() {
    for mode in modes() {
        let (_directory, store, _clock) = mode.store_and_clock();
        let mine = inbox(&store, OnInterrupted::rerun());
        let month = Duration::from_secs(30 * 24 * 60 * 60);
        let outcome = mode.process(&mine, "evt_1", |event| {
            event.on_completion(move |completion| completion.retention(month));
            Ok(())
        });
        acked(outcome);
        let KeyState::Completed(saved) = store.get(&event_key("evt_1")).expect("it") else {
            panic!("it was processed")
        };
        assert_eq!(saved.expires_at(), saved.completed_at() + month);
        // Of a run that fails nothing is said.
        let outcome = mode.process(&mine, "evt_2", |event| {
            event.on_completion(|_| unreachable!("it failed"));
            nothing_happened()
        });
        retry(outcome);
    }
}

#[test]
fn what_can_be_wrong_with_an_inbox_is_told_when_it_is_built() {
    let (_directory, store) = buffered();
    let build = |change: fn(InboxBuilder<OnInterrupted>) -> InboxBuilder<OnInterrupted>| {
        let error = change(builder(&store, OnInterrupted::rerun())).build();
        let error = error.expect_err("an error");
        assert!(!error.to_string().is_empty());
        error
    };
    assert_eq!(build(|it| it.max_attempts(0)), InboxError::NoAttempts);
    let backoff = |error| matches!(error, InboxError::Backoff { .. });
    assert!(backoff(build(|it| it.backoff(Duration::ZERO, ms(1)))));
    assert!(backoff(build(|it| it.backoff(ms(2), ms(1)))));
    assert!(matches!(
        build(|it| it.scope("x".repeat(256))),
        InboxError::Name(_)
    ));
    let retention = ClaimOptions::new().retention(ms(1));
    let error = builder(&store, OnInterrupted::rerun())
        .claim(retention)
        .build();
    assert!(matches!(error, Err(InboxError::Claim(_))));
    let directory = directory();
    let options = small(oncekey::Durability::Buffered).max_response(100);
    let store = options.open(directory.path()).expect("a store");
    let error = builder(&store, OnInterrupted::rerun()).build();
    assert!(matches!(
        error,
        Err(InboxError::ResponseLimit { max: 100, .. })
    ));
}

#[test]
fn an_event_that_is_too_old_to_be_taken_up_is_a_dead_letter_that_can_be_redriven() {
    for mode in modes() {
        let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
        let options = mode.options().clock(std::sync::Arc::new(clock.clone()));
        let store = options
            .abandon_after(Duration::from_secs(60))
            .open(directory.path());
        let store = store.expect("a store");
        let mine = inbox(&store, OnInterrupted::dead_letter());
        dead(mode.process(&mine, "evt_1", |_| Err(error().into())));
        clock.advance(Duration::from_secs(60));
        let told = dead(mode.process(&mine, "evt_1", never));
        assert_eq!(told.reason, DeadReason::OutcomeUnknown);
        assert!(told.is_outcome_unknown && told.error.is_some());
        assert!(interrupted_keys(&store)[0].is_abandoned);
        assert!(mine.redrive("evt_1").expect("redriven"));
        acked(mode.process(&mine, "evt_1", |_| Ok(())));
    }
}

/// A late event is settled at once: it is not tried again for ever, and changes nothing.
#[test]
fn an_event_with_an_old_version_is_settled_and_changes_nothing() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let deliver = |id: &'static str, version: u64| {
            mode.process(&mine, id, move |event| {
                event.on_completion(move |completion| {
                    let completion = completion.send("orders", "42", id);
                    completion.version("order/42", Expected::Older, version)
                });
                Ok(())
            })
        };
        assert_eq!(acked(deliver("cancelled", 2)), Acked::Processed);
        assert_eq!(acked(deliver("approved", 1)), Acked::Stale);
        let again = mode.process(&mine, "approved", never);
        assert_eq!(acked(again), Acked::AlreadyProcessed);
        let version = store.version("order/42").expect("an answer").expect("set");
        assert_eq!(version.number, 2);
        let stats = store.stats();
        assert_eq!((stats.outbox_messages, stats.completed_keys), (1, 2));
        assert_eq!(stats.pending_keys, 0);
    }
}
