//! A poll of messages at once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use oncekey::{ClaimOptions, Durability, Lease, ManualClock, WriteError};

use super::*;
use crate::support::*;

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("evt_{number}")).collect()
}

#[test]
fn a_batch_is_handled_in_order_and_told_in_order() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        acked(mode.process(&mine, "evt_3", |_| Ok(())));
        let ids = ids(8);
        let mut handled = Vec::new();
        let outcomes = mode.process_batch(&mine, &ids, |index, event| {
            assert_eq!(event.id(), ids[index].as_bytes());
            handled.push(index);
            match index {
                2 => nothing_happened(),
                5 => Err(Failure::reject("no JSON")),
                6 => Err(error())?,
                _ => Ok(()),
            }
        });
        assert_eq!(handled, [0, 1, 2, 4, 5, 6, 7]);
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match index {
                2 | 6 => assert!(matches!(retry(outcome).reason, RetryReason::Failed(_))),
                3 => assert_eq!(acked(outcome), Acked::AlreadyProcessed),
                5 => assert_eq!(dead(outcome).reason, DeadReason::Rejected),
                _ => assert_eq!(acked(outcome), Acked::Processed),
            }
        }
        let mut handled = Vec::new();
        let outcomes = mode.process_batch(&mine, &ids, |index, event| {
            handled.push((index, event.run(), event.previous().is_some()));
            Ok(())
        });
        assert_eq!(handled, [(2, 2, false), (6, 2, true)]);
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match index {
                2 | 6 => assert_eq!(acked(outcome), Acked::Processed),
                5 => assert_eq!(dead(outcome).reason, DeadReason::Rejected),
                _ => assert_eq!(acked(outcome), Acked::AlreadyProcessed),
            }
        }
    }
}

#[test]
fn an_event_that_stands_twice_in_a_batch_is_handled_once() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let text = |id, text| Message::new(id).payload(text);
        let batch = [
            text("evt_1", "paid"),
            text("evt_2", "paid"),
            text("evt_1", "paid"),
            text("evt_1", "cancelled"),
            text("evt_3", "paid"),
            text("evt_2", "paid"),
            text("evt_3", "paid"),
            text("evt_1", "paid"),
        ];
        let mut handled = Vec::new();
        let outcomes = mode.process_batch(&mine, batch, |index, _| {
            handled.push(index);
            match index {
                1 => nothing_happened(),
                4 => Err(Failure::reject("no JSON")),
                _ => Ok(()),
            }
        });
        assert_eq!(handled, [0, 1, 4]);
        let mut outcomes = outcomes.into_iter();
        let mut next = || outcomes.next().expect("eight of them");
        assert_eq!(acked(next()), Acked::Processed);
        assert_eq!(retry(next()).after, ms(100));
        assert_eq!(acked(next()), Acked::AlreadyProcessed);
        assert!(matches!(dead(next()).reason, DeadReason::OtherPayload(_)));
        assert_eq!(dead(next()).reason, DeadReason::Rejected);
        assert_eq!(retry(next()).after, ms(100));
        assert_eq!(dead(next()).reason, DeadReason::Rejected);
        assert_eq!(acked(next()), Acked::AlreadyProcessed);
        // The second message of a failed event was no attempt.
        acked(mode.process(&mine, text("evt_2", "paid"), |event| {
            assert_eq!(event.run(), 2);
            Ok(())
        }));
    }
}

#[test]
fn an_empty_batch_is_nothing() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let none: [&str; 0] = [];
        assert!(mode.process_batch(&mine, none, |_, _| Ok(())).is_empty());
    }
}

#[test]
fn a_batch_costs_two_syncs_and_what_is_told_is_durable() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        let (_directory, store, clock) = mode.store_and_clock();
        let mine = inbox(&store, OnInterrupted::dead_letter());
        let before = store.stats().syncs;
        let ids = ids(50);
        let outcomes = mode.process_batch(&mine, &ids, |index, _| match index {
            7 => Err(Failure::reject("no JSON")),
            9 => Err(error())?,
            _ => Ok(()),
        });
        assert_eq!(
            outcomes.iter().filter(|outcome| outcome.is_ack()).count(),
            48
        );
        let stats = store.stats();
        assert_eq!(stats.syncs - before, 2);
        assert_eq!(stats.unsynced_bytes, 0);
        let copy = killed(&store);
        let store = mode.reopen(&copy, &ManualClock::clone(&clock));
        let mine = inbox(&store, OnInterrupted::dead_letter());
        let again = mode.process_batch(&mine, &ids, |_, _| panic!("all of them are known"));
        for (index, outcome) in again.into_iter().enumerate() {
            match index {
                7 => assert_eq!(dead(outcome).reason, DeadReason::Rejected),
                9 => assert_eq!(dead(outcome).reason, DeadReason::OutcomeUnknown),
                _ => assert_eq!(acked(outcome), Acked::AlreadyProcessed),
            }
        }
    }
}

#[test]
fn a_panic_in_a_batch_leaves_its_own_event_interrupted_and_gives_the_rest_back() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::dead_letter());
        let ids = ids(5);
        catch_unwind(AssertUnwindSafe(|| {
            mode.process_batch(&mine, &ids, |index, _| match index {
                2 => panic!("on purpose"),
                _ => Ok(()),
            })
        }))
        .expect_err("it panicked");
        let mut handled = Vec::new();
        let outcomes = mode.process_batch(&mine, &ids, |index, event| {
            handled.push((index, event.run()));
            Ok(())
        });
        assert_eq!(handled, [(3, 1), (4, 1)]);
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match index {
                0 | 1 => assert_eq!(acked(outcome), Acked::AlreadyProcessed),
                2 => assert_eq!(dead(outcome).reason, DeadReason::OutcomeUnknown),
                _ => assert_eq!(acked(outcome), Acked::Processed),
            }
        }
    }
}

#[test]
fn a_batch_whose_future_is_dropped_gives_back_what_was_not_started() {
    let (_directory, store) = buffered();
    let mine = inbox(&store, OnInterrupted::rerun());
    let handler = async |index: usize, _: &mut Event| {
        if index == 1 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let ids = ids(4);
    drop(Polled::new(mine.process_batch_async(&ids, handler)).pending());
    let mut handled = Vec::new();
    let outcomes = mine.process_batch(&ids, |index, event| {
        handled.push((index, event.run(), event.previous().is_some()));
        Ok(())
    });
    assert_eq!(handled, [(1, 2, true), (2, 1, false), (3, 1, false)]);
    assert!(outcomes.iter().all(Outcome::is_ack));
}

#[test]
fn an_event_of_a_batch_whose_lease_ran_out_behind_a_slow_one_is_left_to_its_new_owner() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = ClaimOptions::new().lease(Lease::For(ms(100)));
        let leased = builder(&store, OnInterrupted::rerun()).claim(claim).build();
        let leased = leased.expect("an inbox");
        let outcomes = mode.process_batch(&leased, &ids(3), |index, event| {
            assert_ne!(index, 1, "it was taken over before it was started");
            if index == 0 {
                clock.advance(ms(100));
                // Somebody takes the second over; nobody wants the third, nor this one.
                let taken = leased.process("evt_1", |event| {
                    assert_eq!(event.run(), 1);
                    Ok(())
                });
                acked(taken);
            }
            assert_eq!(event.run(), 1);
            Ok(())
        });
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match index {
                1 => {
                    let reason = retry(outcome).reason;
                    let RetryReason::NotStored(WriteError::LeaseLost { .. }) = reason else {
                        panic!("{reason:?}")
                    };
                }
                _ => assert_eq!(acked(outcome), Acked::Processed),
            }
        }
    }
}

#[test]
fn two_batches_at_once_handle_each_event_once() {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let ids = ids(40);
        let runs: Vec<_> = ids.iter().map(|_| AtomicUsize::new(0)).collect();
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for from in 0..4 {
                let (ids, runs, mine, barrier) = (&ids, &runs, &mine, &barrier);
                scope.spawn(move || {
                    let mut left: Vec<_> = (0..40).map(|at| (at + 10 * from) % 40).collect();
                    barrier.wait();
                    while !left.is_empty() {
                        let batch = left.iter().map(|at| &ids[*at]);
                        let outcomes = mode.process_batch(mine, batch, |index, _| {
                            runs[left[index]].fetch_add(1, Ordering::Relaxed);
                            Ok(())
                        });
                        let told = left.iter().zip(&outcomes);
                        left = told
                            .filter(|(_, outcome)| !outcome.is_ack())
                            .map(|(at, _)| *at)
                            .collect();
                    }
                });
            }
        });
        for count in runs {
            assert_eq!(count.into_inner(), 1);
        }
    }
}
