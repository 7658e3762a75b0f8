//! Full disks, limits, failed syncs and lost power: the event has to come again, and is not lost.

use oncekey::{ClaimError, Durability, Limit, Options, Unavailable};

use super::*;
use crate::support::*;

#[track_caller]
fn refused(outcome: Outcome) -> ClaimError {
    match retry(outcome).reason {
        RetryReason::Refused(error) => error,
        other => panic!("expected Refused, got {other:?}"),
    }
}

#[test]
fn at_a_limit_the_event_has_to_come_again() {
    for mode in modes() {
        let directory = directory();
        let options: Options = mode.options().max_keys(2).max_pending(1);
        let store = options.open(directory.path()).expect("a store");
        let mine = inbox(&store, OnInterrupted::rerun());
        let outcome = mode.process(&mine, "evt_1", |_| {
            let error = refused(mine.process("evt_2", never));
            assert!(matches!(error, ClaimError::TooManyPending { limit: 1 }));
            Ok(())
        });
        acked(outcome);
        acked(mode.process(&mine, "evt_2", |_| Ok(())));
        for _ in 0..3 {
            match refused(mode.process(&mine, "evt_3", never)) {
                ClaimError::LimitReached(reached) => assert_eq!(reached.limit, Limit::Keys),
                other => panic!("{other:?}"),
            }
        }
        let outcomes = mode.process_batch(&mine, ["evt_1", "evt_3"], |_, _| panic!("no room"));
        assert!(outcomes[0].is_ack() && !outcomes[1].is_settled());
        let key = oncekey::Key::new("", "mailer", "evt_1").expect("a key");
        store
            .forget(&key, oncekey::Forget::IfCompleted)
            .expect("makes room");
        acked(mode.process(&mine, "evt_3", |event| {
            assert_eq!(event.run(), 1, "it never ran before");
            Ok(())
        }));
    }
}

#[test]
fn a_closed_store_says_so() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mine = inbox(&store, OnInterrupted::rerun());
        let outcome = mode.process(&mine, "evt_1", |_| {
            store.close().expect("closes");
            Ok(())
        });
        assert!(matches!(retry(outcome).reason, RetryReason::NotStored(_)));
        let error = refused(mode.process(&mine, "evt_1", never));
        assert!(matches!(
            error,
            ClaimError::Unavailable(Unavailable::Closed)
        ));
        for outcome in mode.process_batch(&mine, ["evt_1", "evt_2"], |_, _| Ok(())) {
            refused(outcome);
        }
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};

    use super::*;

    fn open(disk: &SimulatedDisk, durability: Durability) -> oncekey::Store {
        small(durability).open_simulated(disk).expect("opens")
    }

    #[test]
    fn on_a_full_disk_nothing_is_lost_and_it_goes_on_with_space() {
        for mode in modes() {
            let disk = SimulatedDisk::new();
            disk.capacity(5 * (64 << 10));
            let store = open(&disk, mode.durability);
            let mine = inbox(&store, OnInterrupted::dead_letter());
            let mut processed = Vec::new();
            let mut number = 0;
            let full = loop {
                let id = format!("evt_{number}");
                let outcome = mode.process(&mine, &id, |_| {
                    processed.push(number);
                    Ok(())
                });
                match outcome {
                    Outcome::Ack(Acked::Processed) => number += 1,
                    other => break refused(other),
                }
                assert!(number < 10_000, "the disk never fills");
            };
            assert!(matches!(full, ClaimError::OutOfSpace(_)), "{full:?}");
            assert_eq!(processed.len(), number);
            let batch: Vec<_> = (number - 2..number + 3)
                .map(|at| format!("evt_{at}"))
                .collect();
            let outcomes = mode.process_batch(&mine, &batch, |_, _| panic!("no room"));
            let acks = outcomes.iter().map(Outcome::is_ack);
            assert_eq!(acks.collect::<Vec<_>>(), [true, true, false, false, false]);
            disk.capacity(None);
            let outcomes = mode.process_batch(&mine, &batch, |_, event| {
                assert!(event.run() == 1 && event.previous().is_none());
                Ok(())
            });
            assert!(outcomes.iter().all(Outcome::is_ack));
        }
    }

    #[test]
    fn a_failed_sync_acknowledges_nothing() {
        for style in STYLES {
            // The sync of the claims, then that of the completions.
            for fails in 0..2 {
                for is_batch in [false, true] {
                    let mode = Mode {
                        durability: Durability::Sync,
                        style,
                    };
                    let disk = SimulatedDisk::new();
                    let store = open(&disk, mode.durability);
                    eventually("the prepared segment", || {
                        store.stats().segments_prepared >= 1
                    });
                    let mine = inbox(&store, OnInterrupted::rerun());
                    let failing = FaultPlan::new(OperationKind::Sync, Fault::InputOutput);
                    disk.fail(failing.after(fails).sticky());
                    let mut runs = 0;
                    let outcomes = match is_batch {
                        false => vec![mode.process(&mine, "evt_0", |_| {
                            runs += 1;
                            Ok(())
                        })],
                        true => mode.process_batch(&mine, ["evt_0", "evt_1"], |_, _| {
                            runs += 1;
                            Ok(())
                        }),
                    };
                    for outcome in outcomes {
                        match retry(outcome).reason {
                            RetryReason::Refused(ClaimError::OutcomeUnknown(_)) if fails == 0 => {}
                            RetryReason::NotStored(oncekey::WriteError::OutcomeUnknown(_))
                                if fails == 1 => {}
                            other => panic!("{other:?} at sync {fails}"),
                        }
                    }
                    assert_eq!(runs > 0, fails == 1);
                    drop(store);
                    drop(mine);
                    disk.heal();
                    let store = open(&disk.crash_all_lost(), mode.durability);
                    let mine = inbox(&store, OnInterrupted::rerun());
                    acked(mode.process(&mine, "evt_0", |event| {
                        // A handler that ran has left more than nothing.
                        assert!(fails == 0 || event.previous().is_some());
                        Ok(())
                    }));
                }
            }
        }
    }

    /// Deliveries of three events until the power is lost, then what the next consumer makes of it.
    #[test]
    fn power_lost_at_any_operation_takes_back_nothing_that_was_acknowledged() {
        for style in STYLES {
            for policy in [OnInterrupted::rerun(), OnInterrupted::dead_letter()] {
                let is_rerun = format!("{policy:?}").contains("rerun");
                let mode = Mode {
                    durability: Durability::Sync,
                    style,
                };
                let mut at = 0;
                loop {
                    let disk = SimulatedDisk::new();
                    let store = open(&disk, mode.durability);
                    let mine = inbox(&store, policy.clone());
                    disk.crash_at(disk.operations() + at);
                    let effects = RefCell::new(HashMap::<Vec<u8>, u32>::new());
                    let handle = |event: &mut Event| {
                        if event.id() == b"evt_2" {
                            return nothing_happened();
                        }
                        *effects.borrow_mut().entry(event.id().to_vec()).or_default() += 1;
                        Ok(())
                    };
                    let mut told = vec![mode.process(&mine, "evt_1", handle)];
                    let batch = ["evt_1", "evt_2", "evt_3"];
                    told.extend(mode.process_batch(&mine, batch, |_, event| handle(event)));
                    let has_lost_power = disk.has_lost_power();
                    drop((mine, store));
                    for seed in 0..3 {
                        let store = open(&disk.crash_random(seed), mode.durability);
                        let mine = inbox(&store, policy.clone());
                        let mut effects = effects.borrow().clone();
                        for (index, id) in [(0, "evt_1"), (1, "evt_1"), (3, "evt_3")] {
                            let before = effects.get(id.as_bytes()).copied().unwrap_or(0);
                            let again = mode.process(&mine, id, |event| {
                                assert!(!told[index].is_ack(), "{id} ran after it was told");
                                // Nothing is repeated without a word.
                                assert!(before == 0 || event.previous().is_some());
                                assert!(is_rerun || event.previous().is_none());
                                *effects.entry(event.id().to_vec()).or_default() += 1;
                                Ok(())
                            });
                            if told[index].is_ack() {
                                assert_eq!(acked(again), Acked::AlreadyProcessed);
                            }
                        }
                        if !is_rerun {
                            assert!(effects.values().all(|count| *count <= 1), "{effects:?}");
                        }
                    }
                    if !has_lost_power {
                        assert!(told[0].is_ack() && told[1].is_ack() && told[3].is_ack());
                        break;
                    }
                    at += 1;
                }
                assert!(at > 2, "the consumer touched the disk");
            }
        }
    }
}
