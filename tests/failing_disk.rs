//! A disk that is full, and one that does not sync: every caller is told what became of its call,
//! nobody hangs, and what was acknowledged stays.

#![cfg(feature = "testing")]

mod support;

use std::sync::Barrier;
use std::thread;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{
    AdminError, Claim, ClaimError, ClaimOptions, Durability, Forget, Key, KeyState, OpenError,
    Operation, RunError, RunOptions, Store, Unavailable, WriteError,
};

use support::*;

const SEGMENT_BYTES: u64 = 64 << 10;
const RESERVED_BYTES: usize = 4_096;

fn open(disk: &SimulatedDisk, durability: Durability) -> Store {
    small(durability).open_simulated(disk).expect("opens")
}

fn numbered(number: usize) -> Key {
    key(&format!("n-{number}"))
}

/// Claims keys until there is no room for another.
fn fill(mode: Mode, store: &Store) -> Vec<Operation> {
    let mut guards = Vec::new();
    loop {
        match mode.try_claim(store, &numbered(guards.len()), request()) {
            Ok(claim) => guards.push(started(claim)),
            Err(ClaimError::OutOfSpace(error)) => {
                assert!(error.to_string().contains("free disk space"), "{error}");
                return guards;
            }
            Err(other) => panic!("{mode:?}: {other:?}"),
        }
        assert!(guards.len() < 10_000, "the disk never fills");
    }
}

/// A store on a disk with room for a few segments, all of it promised.
fn full(mode: Mode) -> (SimulatedDisk, Store, Vec<Operation>) {
    let disk = SimulatedDisk::new();
    disk.capacity(5 * SEGMENT_BYTES);
    let store = open(&disk, mode.durability);
    let guards = fill(mode, &store);
    assert!(guards.len() > 20, "{} claims", guards.len());
    (disk, store, guards)
}

#[track_caller]
fn out_of_space<T: std::fmt::Debug>(result: Result<T, ClaimError>) {
    match result {
        Err(ClaimError::OutOfSpace(error)) => assert!(error.needed_bytes > 0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_disk_is_an_error_of_new_claims_that_changes_nothing_and_goes_away_with_space() {
    for mode in modes() {
        let (disk, store, guards) = full(mode);
        let next = numbered(guards.len());
        let before = store.stats();
        for _ in 0..5 {
            out_of_space(mode.try_claim(&store, &next, request()));
        }
        let after = store.stats();
        assert_eq!(after.pending_keys, before.pending_keys, "{mode:?}");
        assert_eq!(after.available_bytes, before.available_bytes);
        assert!(!after.poisoned);
        assert!(matches!(store.get(&next), Ok(KeyState::Absent)));
        // What is known is answered.
        in_progress(mode.claim(&store, &numbered(0), request()));
        mismatch(mode.claim(&store, &numbered(0), other_request()));
        disk.capacity(None);
        let operation = started(mode.claim(&store, &next, request()));
        mode.complete(operation, b"paid").expect("a completion");
    }
}

#[test]
fn whoever_claims_at_once_on_a_full_disk_is_told_and_none_hangs() {
    for mode in modes() {
        let (disk, store, guards) = full(mode);
        let count = guards.len();
        let barrier = Barrier::new(8);
        thread::scope(|scope| {
            for number in 0..8 {
                let (store, barrier) = (&store, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for round in 0..20 {
                        let key = numbered(count + 100 * number + round);
                        out_of_space(mode.try_claim(store, &key, request()));
                    }
                });
            }
        });
        disk.capacity(None);
        drop(started(mode.claim(&store, &numbered(count), request())));
    }
}

#[test]
fn claims_that_wait_for_room_and_are_dropped_take_none() {
    let mode = Mode {
        durability: Durability::Buffered,
        style: Style::Async,
    };
    let (disk, store, mut guards) = full(mode);
    let count = guards.len();
    let before = store.stats().available_bytes;
    for round in 0..50 {
        let mut future = Polled::new(store.claim_async(&numbered(count + round), request()));
        match future.poll() {
            std::task::Poll::Pending => drop(future),
            std::task::Poll::Ready(claim) => out_of_space(claim),
        }
    }
    assert_eq!(store.stats().available_bytes, before);
    assert_eq!(store.stats().pending_keys, count as u64);
    disk.capacity(None);
    guards.extend(
        (0..50).map(|round| started(mode.claim(&store, &numbered(count + round), request()))),
    );
    for operation in guards {
        mode.complete(operation, vec![7; RESERVED_BYTES])
            .expect("a completion");
    }
}

#[test]
fn on_a_full_disk_owners_complete_release_renew_and_give_up_as_they_like() {
    for mode in modes() {
        let (disk, store, guards) = full(mode);
        let count = guards.len();
        for (number, mut operation) in guards.into_iter().enumerate() {
            operation.renew().expect("nothing is written");
            match number % 5 {
                0 => mode.release(operation).expect("a release has room"),
                1 => drop(operation),
                2 => {
                    let completion = operation
                        .complete_with(vec![7; RESERVED_BYTES])
                        .principal(vec![b'p'; 255]);
                    let saved = match mode.style {
                        Style::Blocking => completion.commit(),
                        Style::Async => block_on(completion.commit_async()),
                    };
                    saved.expect("a completion of the reserved size has room");
                }
                3 => drop(operation.complete_without_response().expect("has room")),
                _ => drop(mode.complete(operation, b"").expect("has room")),
            }
        }
        let check = |store: &Store| {
            for number in 0..count {
                match store.get(&numbered(number)).expect("a look") {
                    KeyState::Absent => assert_eq!(number % 5, 0, "{mode:?}"),
                    KeyState::Interrupted { .. } => assert_eq!(number % 5, 1, "{mode:?}"),
                    KeyState::Completed(_) => assert!(number % 5 >= 2, "{mode:?}"),
                    other => panic!("{other:?}"),
                }
            }
        };
        check(&store);
        store.close().expect("closes on a full disk");
        drop(store);
        check(&open(&disk, mode.durability));
    }
}

#[test]
fn what_is_larger_than_was_set_aside_may_find_no_room_and_the_guard_is_still_held() {
    for mode in modes() {
        let (_disk, store, mut guards) = full(mode);
        let mut operation = guards.pop().expect("at least one");
        let error = mode
            .checkpoint(&mut operation, vec![7; 4_096])
            .expect_err("no room");
        assert!(matches!(error, WriteError::OutOfSpace(_)), "{error:?}");
        assert_eq!(operation.last_checkpoint(), None);
        let error = mode
            .complete(operation, vec![7; 15_000])
            .expect_err("no room");
        assert!(
            matches!(error.error(), WriteError::OutOfSpace(_)),
            "{error:?}"
        );
        let operation = error.into_operation().expect("the guard");
        in_progress(mode.claim(&store, operation.key(), request()));
        mode.complete(operation, vec![7; RESERVED_BYTES])
            .expect("the room that was set aside is still there");
        // Nobody else's room was taken for it.
        for operation in guards {
            mode.complete(operation, vec![7; RESERVED_BYTES])
                .expect("a completion has room");
        }
    }
}

#[test]
fn room_that_owners_give_back_is_there_for_the_next_claims() {
    for mode in modes() {
        let (_disk, store, guards) = full(mode);
        let count = guards.len();
        for operation in guards {
            mode.release(operation).expect("a release has room");
        }
        // Less than before, since the first round's records are there, but not none.
        let again = fill(mode, &store);
        assert!(
            again.len() > count / 2,
            "{} of {count}, {mode:?}",
            again.len()
        );
        drop(again);
        let third = store.claim(&numbered(0), request());
        drop(interrupted(third.expect("room was given back")));
    }
}

#[test]
fn a_late_owners_key_and_a_ticket_find_room_on_a_full_disk_or_say_so() {
    for mode in modes() {
        let (disk, store, guards) = full(mode);
        let mut guards = guards.into_iter();
        // Interrupted: its room went back, and is enough to take it over again.
        let operation = guards.next().expect("at least one");
        let key = operation.key().clone();
        drop(operation);
        let operation = interrupted(mode.claim(&store, &key, request()));
        mode.complete(operation, vec![7; RESERVED_BYTES])
            .expect("a completion has room");
        drop(guards);
        disk.capacity(None);
        assert_eq!(store.pending().expect("a list").len(), 0);
    }
    let disk = SimulatedDisk::new();
    disk.capacity(5 * SEGMENT_BYTES);
    let store = open(&disk, Durability::Buffered);
    let claim = store.claim_with(&key("k-1"), request(), lease(3_600_000));
    let ticket = started(claim.expect("a claim")).into_ticket().expect("one");
    let mode = Mode {
        durability: Durability::Buffered,
        style: Style::Blocking,
    };
    let guards = fill(mode, &store);
    match store.resume(&ticket) {
        Ok(claim) => drop(started(claim).complete(b"paid").expect("has room")),
        Err(oncekey::ResumeError::Claim(ClaimError::OutOfSpace(_))) => {}
        Err(other) => panic!("{other:?}"),
    }
    drop(guards);
}

#[test]
fn a_batch_on_a_full_disk_fails_only_the_keys_that_found_no_room() {
    for mode in modes() {
        let disk = SimulatedDisk::new();
        disk.capacity(5 * SEGMENT_BYTES);
        let store = open(&disk, mode.durability);
        let keys: Vec<_> = (0..200).map(numbered).collect();
        let pairs = keys.iter().map(|key| (key, request()));
        let claims = match mode.style {
            Style::Blocking => store.claim_many(pairs, ClaimOptions::new()),
            Style::Async => block_on(store.claim_many_async(pairs, ClaimOptions::new())),
        };
        let mut full_from = None;
        for (number, claim) in claims.into_iter().enumerate() {
            match claim {
                Ok(claim) => {
                    assert_eq!(full_from, None, "{mode:?}");
                    let operation = started(claim);
                    mode.complete(operation, vec![7; RESERVED_BYTES])
                        .expect("a completion has room");
                }
                Err(ClaimError::OutOfSpace(_)) => {
                    full_from.get_or_insert(number);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        let full_from = full_from.expect("two hundred don't fit");
        assert!(full_from > 20, "{full_from}");
        let stats = store.stats();
        assert_eq!(
            (stats.completed, stats.pending_keys),
            (full_from as u64, 0),
            "{mode:?}"
        );
    }
}

#[test]
fn a_full_disk_can_be_opened_answers_and_takes_claims_when_there_is_space() {
    for mode in modes() {
        let (disk, store, mut guards) = full(mode);
        let done = guards.pop().expect("at least one");
        let (done_key, gone_key) = (done.key().clone(), guards[0].key().clone());
        mode.complete(done, b"paid").expect("has room");
        drop(guards);
        drop(store);
        // Down to the last byte: not even an empty segment can be made.
        let used: u64 = disk
            .names()
            .iter()
            .filter_map(|name| disk.contents(name))
            .map(|bytes| bytes.len() as u64)
            .sum();
        disk.capacity(used);
        for _ in 0..2 {
            let store = open(&disk, mode.durability);
            let saved = completed(mode.claim(&store, &done_key, request()));
            assert_eq!(bytes(&saved), b"paid");
            assert!(matches!(
                store.get(&gone_key),
                Ok(KeyState::Interrupted { .. })
            ));
            out_of_space(mode.try_claim(&store, &key("new"), request()));
            out_of_space(mode.try_claim(&store, &gone_key, request()));
            assert_eq!(store.stats().available_bytes, 0);
            match store.forget(&done_key, Forget::IfCompleted) {
                Err(AdminError::Claim(error)) => out_of_space::<()>(Err(error)),
                other => panic!("{other:?}"),
            }
            let ran = store.run(&key("new"), request(), RunOptions::new(), |_| {
                Ok::<_, std::io::Error>(b"never run")
            });
            assert!(
                matches!(ran, Err(RunError::Claim(ClaimError::OutOfSpace(_)))),
                "{ran:?}"
            );
            store.close().expect("closes");
        }
        let store = open(&disk, mode.durability);
        disk.capacity(None);
        drop(started(mode.claim(&store, &key("new"), request())));
        let operation = interrupted(mode.claim(&store, &gone_key, request()));
        mode.complete(operation, b"paid").expect("a completion");
    }
}

#[test]
fn an_error_while_a_segment_is_made_is_told_and_the_next_claim_tries_again() {
    for kind in [
        OperationKind::Create,
        OperationKind::Write,
        OperationKind::Sync,
        OperationKind::Rename,
        OperationKind::SyncDirectory,
        OperationKind::Map,
    ] {
        let mode = Mode {
            durability: Durability::Buffered,
            style: Style::Blocking,
        };
        let disk = SimulatedDisk::new();
        let store = open(&disk, mode.durability);
        eventually("the prepared segment", || {
            store.stats().segments_prepared >= 1
        });
        let file = match kind {
            OperationKind::SyncDirectory => "",
            _ => "segment-",
        };
        disk.fail(FaultPlan::new(kind, Fault::InputOutput).on(file).sticky());
        let mut guards = Vec::new();
        let error = loop {
            match store.claim(&numbered(guards.len()), request()) {
                Ok(claim) => guards.push(started(claim)),
                Err(error) => break error,
            }
            assert!(guards.len() < 1_000, "{kind:?} is never met");
        };
        match error {
            ClaimError::OutOfSpace(error) => assert!(error.source.is_some(), "{kind:?}"),
            // The sync of the first segment, asked for when the second was begun, failed as well.
            ClaimError::Unavailable(Unavailable::Poisoned { .. }) => {
                assert_eq!(kind, OperationKind::Sync);
                continue;
            }
            other => panic!("{kind:?}: {other:?}"),
        }
        assert!(matches!(
            store.get(&numbered(guards.len())),
            Ok(KeyState::Absent)
        ));
        disk.heal();
        drop(started(
            store.claim(&key("new"), request()).expect("tried again"),
        ));
        for operation in guards {
            operation.complete(b"paid").expect("a completion");
        }
        store.close().expect("closes");
        drop(store);
        let store = open(&disk, mode.durability);
        completed(store.claim(&numbered(0), request()).expect("a claim"));
    }
}

fn failing_syncs() -> FaultPlan {
    FaultPlan::new(OperationKind::Sync, Fault::InputOutput)
        .on("segment-")
        .drops_pages()
}

/// Waits until no segment is being made: the sync that fails is to be one of the log.
fn is_quiet(store: &Store) {
    eventually("the prepared segment", || {
        store.stats().segments_prepared >= 1
    });
}

/// A store with a durable result, whose next sync of the log fails.
fn about_to_fail(durability: Durability) -> (SimulatedDisk, Store) {
    let disk = SimulatedDisk::new();
    let store = open(&disk, durability);
    finish(&store, &key("durable"), b"paid");
    store.flush().expect("synced");
    is_quiet(&store);
    disk.fail(failing_syncs());
    (disk, store)
}

#[track_caller]
fn poisoned<T: std::fmt::Debug>(result: Result<T, ClaimError>) {
    match result {
        Err(ClaimError::Unavailable(Unavailable::Poisoned { file, .. })) => {
            assert!(file.starts_with("segment-"), "{file}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn unknown<T: std::fmt::Debug>(result: Result<T, ClaimError>) {
    match result {
        Err(ref error @ ClaimError::OutcomeUnknown(_)) => {
            assert!(error.to_string().contains("may or may not"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// What still works on a poisoned store, and what does not.
#[track_caller]
fn is_poisoned(mode: Mode, store: &Store) {
    assert!(store.stats().poisoned);
    let saved = completed(mode.claim(store, &key("durable"), request()));
    assert_eq!(bytes(&saved), b"paid");
    assert!(matches!(
        store.get(&key("durable")),
        Ok(KeyState::Completed(_))
    ));
    mismatch(mode.claim(store, &key("durable"), other_request()));
    for number in 0..3 {
        poisoned(mode.try_claim(store, &numbered(number), request()));
    }
    match store.forget(&key("durable"), Forget::IfCompleted) {
        Err(AdminError::Claim(error)) => poisoned::<()>(Err(error)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.flush(), Err(Unavailable::Poisoned { .. })));
}

#[test]
fn a_claim_whose_sync_fails_is_of_unknown_outcome_and_nobody_gets_the_guard() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        let (disk, store) = about_to_fail(mode.durability);
        unknown(mode.try_claim(&store, &key("k-1"), request()));
        is_poisoned(mode, &store);
        // Whether it is there can't be told.
        poisoned(mode.try_claim(&store, &key("k-1"), request()));
        assert!(store.pending().expect("a list").is_empty());
        assert!(store.close().is_err());
        drop(store);
        disk.heal();
        for image in [disk.crash_all_lost(), disk.crash_none_lost(), disk] {
            let store = open(&image, mode.durability);
            completed(mode.claim(&store, &key("durable"), request()));
            let operation = owned(mode.claim(&store, &key("k-1"), request()));
            mode.complete(operation, b"paid").expect("works again");
        }
    }
}

#[test]
fn a_batch_whose_sync_fails_is_of_unknown_outcome_for_all_its_new_keys() {
    for style in STYLES {
        let (_disk, store) = about_to_fail(Durability::Sync);
        let (one, two, durable) = (key("k-1"), key("k-2"), key("durable"));
        let pairs = [&one, &durable, &two].map(|key| (key, request()));
        let mut claims = match style {
            Style::Blocking => store.claim_many(pairs, ClaimOptions::new()),
            Style::Async => block_on(store.claim_many_async(pairs, ClaimOptions::new())),
        };
        unknown(claims.pop().expect("three"));
        completed(claims.pop().expect("three").expect("durable before"));
        unknown(claims.pop().expect("three"));
        assert!(store.pending().expect("a list").is_empty());
    }
}

#[test]
fn every_end_whose_sync_fails_is_of_unknown_outcome_and_gives_no_guard_back() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        for end in ["complete", "release", "checkpoint"] {
            let disk = SimulatedDisk::new();
            let store = open(&disk, mode.durability);
            finish(&store, &key("durable"), b"paid");
            let mut operation = started(mode.claim(&store, &key("k-1"), request()));
            is_quiet(&store);
            disk.fail(failing_syncs());
            let (error, held) = match end {
                "complete" => {
                    let error = mode.complete(operation, b"paid").expect_err("failed");
                    (error.error().clone(), error.into_operation())
                }
                "release" => {
                    let error = mode.release(operation).expect_err("failed");
                    (error.error().clone(), error.into_operation())
                }
                _ => {
                    let error = mode
                        .checkpoint(&mut operation, b"note")
                        .expect_err("failed");
                    (error, None)
                }
            };
            assert!(
                matches!(error, WriteError::OutcomeUnknown(_)),
                "{end}, {mode:?}: {error:?}"
            );
            assert!(held.is_none(), "{end}");
            is_poisoned(mode, &store);
            // Nobody is told of what a power loss could take back.
            poisoned(mode.try_claim(&store, &key("k-1"), request()));
            poisoned(store.get(&key("k-1")));
            assert!(store.close().is_err());
            drop(store);
            disk.heal();
            let store = open(&disk.crash_all_lost(), mode.durability);
            let again = mode.claim(&store, &key("k-1"), request());
            assert_eq!(interrupted(again).attempt(), 2, "{end}");
        }
    }
}

#[test]
fn all_who_wait_for_one_sync_are_told_when_it_fails() {
    let (_disk, store) = about_to_fail(Durability::Sync);
    let barrier = Barrier::new(12);
    thread::scope(|scope| {
        for number in 0..12 {
            let (store, barrier) = (&store, &barrier);
            scope.spawn(move || {
                let mode = Mode {
                    durability: Durability::Sync,
                    style: STYLES[number % 2],
                };
                barrier.wait();
                match mode.try_claim(store, &numbered(number), request()) {
                    Err(ClaimError::OutcomeUnknown(Unavailable::Poisoned { .. })) => {}
                    // It came when the sync had failed already.
                    result => poisoned(result),
                }
            });
        }
    });
    assert!(store.pending().expect("a list").is_empty());
}

#[test]
fn who_waits_for_an_owner_whose_completion_fails_to_sync_is_told() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        let disk = SimulatedDisk::new();
        let store = open(&disk, mode.durability);
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let progress = in_progress(mode.claim(&store, &key("k-1"), request()));
                mode.wait(progress)
            });
            eventually("the waiter", || store.stats().waiters == 1);
            is_quiet(&store);
            disk.fail(failing_syncs());
            assert!(mode.complete(operation, b"paid").is_err());
            poisoned(waiting.join().expect("no panic"));
        });
    }
}

#[test]
fn a_buffered_store_whose_background_sync_fails_answers_only_what_is_durable() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Buffered,
            style,
        };
        let (disk, store) = about_to_fail(mode.durability);
        finish(&store, &key("buffered"), b"paid");
        let held = started(mode.claim(&store, &key("held"), request()));
        assert!(store.flush().is_err());
        is_poisoned(mode, &store);
        // It was acknowledged as buffered, but is not known to be on the disk.
        poisoned(mode.try_claim(&store, &key("buffered"), request()));
        poisoned(mode.try_claim(&store, &key("held"), request()));
        let error = mode.complete(held, b"paid").expect_err("refused");
        assert!(
            matches!(
                error.error(),
                WriteError::Unavailable(Unavailable::Poisoned { .. })
            ),
            "{error:?}"
        );
        let mut held = error.into_operation().expect("nothing was written");
        let error = held.checkpoint(b"note").expect_err("refused");
        assert!(matches!(
            error,
            WriteError::Unavailable(Unavailable::Poisoned { .. })
        ));
        drop(held);
        assert!(store.close().is_err());
        drop(store);
        disk.heal();
        // The process was not killed: what the page cache shows is written again and relied on.
        let store = open(&disk, mode.durability);
        completed(mode.claim(&store, &key("buffered"), request()));
        drop(interrupted(mode.claim(&store, &key("held"), request())));
    }
}

#[test]
fn a_release_that_a_power_loss_takes_back_leaves_the_key_interrupted_and_not_free() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Buffered,
            style,
        };
        let disk = SimulatedDisk::new();
        let store = open(&disk, mode.durability);
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        store.flush().expect("synced");
        mode.release(operation).expect("a release");
        assert!(matches!(store.get(&key("k-1")), Ok(KeyState::Absent)));
        let after = open(&disk.crash_all_lost(), mode.durability);
        let operation = interrupted(mode.claim(&after, &key("k-1"), request()));
        assert_eq!(operation.attempt(), 2);
    }
}

#[test]
fn a_buffered_claim_that_a_power_loss_takes_back_starts_again_with_a_greater_token() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Durability::Buffered);
    let lost = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let mut newest = lost.token();
    let mut image = disk.crash_all_lost();
    for _ in 0..5 {
        let store = open(&image, Durability::Buffered);
        let again = started(store.claim(&key("k-1"), request()).expect("a claim"));
        assert_eq!(again.attempt(), 1);
        assert!(again.token() > newest, "a token was given out twice");
        newest = again.token();
        image = image.crash_all_lost();
    }
}

#[test]
fn a_synced_claim_survives_power_loss_before_its_owner_has_it() {
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        let disk = SimulatedDisk::new();
        let store = open(&disk, mode.durability);
        let mut operation = started(mode.claim(&store, &key("k-1"), request()));
        let after = open(&disk.crash_all_lost(), mode.durability);
        assert_eq!(
            interrupted(mode.claim(&after, &key("k-1"), request())).attempt(),
            2
        );
        mode.checkpoint(&mut operation, b"half way")
            .expect("a checkpoint");
        let after = open(&disk.crash_all_lost(), mode.durability);
        let second = interrupted(mode.claim(&after, &key("k-1"), request()));
        let previous = second.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
        mode.complete(operation, b"paid").expect("a completion");
        let after = open(&disk.crash_all_lost(), mode.durability);
        completed(mode.claim(&after, &key("k-1"), request()));
        assert!(
            store
                .forget(&key("k-1"), Forget::IfCompleted)
                .expect("forgotten")
        );
        let after = open(&disk.crash_all_lost(), mode.durability);
        assert!(matches!(after.get(&key("k-1")), Ok(KeyState::Absent)));
    }
}

/// An open makes durable what it finds, and says so in META: the next segment's header would say so
/// as well, but on a full disk there is none.
#[test]
fn what_an_open_on_a_full_disk_has_found_is_not_taken_for_a_torn_tail_later() {
    let killed = SimulatedDisk::new();
    let store = open(&killed, Durability::Buffered);
    finish(&store, &key("k-1"), b"paid");
    let disk = killed.crash_none_lost();
    disk.capacity(0);
    let store = small(Durability::Buffered).open_simulated(&disk);
    let store = store.expect("opens on a full disk");
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
    let killed = disk.crash_none_lost();
    drop(store);
    let mut names = killed.names().into_iter();
    let name = names.find(|name| name.starts_with("segment-"));
    let name = name.expect("a segment");
    let mut contents = killed.contents(&name).expect("a segment");
    let at = contents.windows(4).rposition(|bytes| bytes == b"paid");
    contents[at.expect("the response")] ^= 1;
    killed.put(&name, &contents);
    match small(Durability::Buffered).open_simulated(&killed) {
        Err(OpenError::Corrupt { .. }) => {}
        other => panic!("a result was lost without a word: {other:?}"),
    }
}

/// What a buffered call wrote is on no disk yet, but an answer in `Sync` that rests on it is: it may
/// have been told to a client by then.
#[test]
fn an_answer_in_sync_makes_durable_what_a_buffered_call_wrote_before() {
    let answers = [
        "get", "forget", "claim", "mismatch", "held", "reused", "batch", "taken",
    ];
    for style in STYLES {
        let mode = Mode {
            durability: Durability::Sync,
            style,
        };
        for answer in answers {
            let disk = SimulatedDisk::new();
            let store = open(&disk, mode.durability);
            let buffered = ClaimOptions::new().durability(Durability::Buffered);
            let claim = |key: &Key| {
                let claim = mode.claim_with(&store, key, request(), buffered.clone());
                owned(claim.expect("a claim"))
            };
            let k = key("k-1");
            let operation = claim(&k);
            if !matches!(answer, "held" | "reused") {
                store.flush().expect("synced");
            }
            let look = || match style {
                Style::Blocking => store.get(&k).expect("a look"),
                Style::Async => block_on(store.get_async(&k)).expect("a look"),
            };
            let mut held = None;
            match answer {
                "get" | "forget" => mode.release(operation).expect("a release"),
                "claim" | "mismatch" | "batch" => {
                    drop(mode.complete(operation, b"paid").expect("a completion"));
                }
                "taken" => {
                    drop(operation);
                    held = Some(claim(&k));
                }
                _ => held = Some(operation),
            }
            let before = open(&disk.crash_all_lost(), mode.durability);
            let attempt_lost = match before.get(&k).expect("a look") {
                KeyState::Absent => 0,
                KeyState::Interrupted { attempt, .. } => attempt,
                other => panic!("{answer}: it was synced: {other:?}"),
            };
            match answer {
                "get" => assert!(matches!(look(), KeyState::Absent)),
                "forget" => {
                    let forgotten = match style {
                        Style::Blocking => store.forget(&k, Forget::IfCompleted),
                        Style::Async => block_on(store.forget_async(&k, Forget::IfCompleted)),
                    };
                    assert!(!forgotten.expect("absent"));
                }
                "claim" => drop(completed(mode.claim(&store, &k, request()))),
                "batch" => {
                    let pairs = [(&k, request())];
                    let mut claims = match style {
                        Style::Blocking => store.claim_many(pairs, ClaimOptions::new()),
                        Style::Async => {
                            block_on(store.claim_many_async(pairs, ClaimOptions::new()))
                        }
                    };
                    drop(completed(claims.pop().expect("one").expect("a claim")));
                }
                "mismatch" | "reused" => {
                    mismatch(mode.claim(&store, &k, other_request()));
                }
                _ => drop(in_progress(mode.claim(&store, &k, request()))),
            }
            let after = open(&disk.crash_all_lost(), mode.durability);
            let state = after.get(&k).expect("a look");
            let context = format!("{answer}, {mode:?}: {state:?}, was lost as {attempt_lost}");
            match (answer, state) {
                ("get" | "forget", KeyState::Absent) => assert_eq!(attempt_lost, 1, "{context}"),
                ("claim" | "mismatch" | "batch", KeyState::Completed(_)) => {
                    assert_eq!(attempt_lost, 1, "{context}");
                }
                ("held" | "reused", KeyState::Interrupted { attempt: 1, .. }) => {
                    assert_eq!(attempt_lost, 0, "{context}");
                }
                ("taken", KeyState::Interrupted { attempt: 2, .. }) => {
                    assert_eq!(attempt_lost, 1, "{context}");
                }
                _ => panic!("{context}"),
            }
            drop(held);
        }
    }
}

#[test]
fn a_store_that_could_not_be_opened_for_an_error_opens_when_it_is_gone() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Durability::Sync);
    finish(&store, &key("k-1"), b"paid");
    drop(store);
    for kind in [
        OperationKind::List,
        OperationKind::Create,
        OperationKind::Open,
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::Sync,
        OperationKind::SyncDirectory,
        OperationKind::Rename,
        OperationKind::Map,
    ] {
        for number in 0..4 {
            disk.fail(FaultPlan::new(kind, Fault::InputOutput).after(number));
            match small(Durability::Sync).open_simulated(&disk) {
                Ok(store) => drop(store),
                Err(OpenError::Io { .. }) => {}
                Err(other) => panic!("{kind:?} {number}: {other:?}"),
            }
            disk.heal();
            let store = open(&disk, Durability::Sync);
            let saved = completed(store.claim(&key("k-1"), request()).expect("a claim"));
            assert_eq!(bytes(&saved), b"paid", "{kind:?} {number}");
            let claim = store.claim(&key("k-2"), request()).expect("a claim");
            assert!(matches!(claim, Claim::Started(_)));
            started(claim).release().expect("a release");
        }
    }
}
