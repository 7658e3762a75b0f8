//! Versions of entities: set with a completion, all or nothing, and never back.

#![cfg(feature = "testing")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use oncekey::testing::SimulatedDisk;
use oncekey::{
    AttachmentError, Completion, Durability, Expected, FinishError, KeyState, ManualClock,
    Operation, Recovery, Saved, Store, WriteError,
};

use support::attached::{HOUR, claim, options, roll};
use support::*;

fn commit<R: AsRef<[u8]>>(style: Style, completion: Completion<R>) -> Result<Saved, FinishError> {
    match style {
        Style::Blocking => completion.commit(),
        Style::Async => block_on(completion.commit_async()),
    }
}

fn version(store: &Store, entity: &str) -> u64 {
    let version = store.version(entity).expect("an answer");
    version.map_or(0, |version| version.number)
}

/// The version that made this one stale, and the guard.
fn stale(error: FinishError) -> (u64, Operation) {
    let current = match error.error() {
        WriteError::StaleVersion(stale) => stale.current,
        other => panic!("{other:?}"),
    };
    (current, error.into_operation().expect("the guard is held"))
}

#[test]
fn what_was_cancelled_is_not_approved_by_a_late_event() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let approved = claim(&store, "approved");
        let cancelled = claim(&store, "cancelled");
        commit(
            mode.style,
            approved.complete_with(b"").version("order/42", 0, 1),
        )
        .expect("first");
        commit(
            mode.style,
            cancelled.complete_with(b"").version("order/42", 1, 2),
        )
        .expect("next");
        let late = claim(&store, "approved again");
        let late = late.complete_with(b"").version("order/42", 0, 1);
        let (current, guard) = stale(commit(mode.style, late).expect_err("it is late"));
        assert_eq!((current, version(&store, "order/42")), (2, 2));
        assert!(matches!(
            store.get(&key("approved again")).expect("an answer"),
            KeyState::InProgress { .. }
        ));
        commit(mode.style, guard.complete_with(b"late")).expect("settled without a change");
        assert_eq!(version(&store, "order/42"), 2);
        let stats = store.stats();
        assert_eq!((stats.completed_keys, stats.versions), (3, 1));
        assert_eq!(stats.pending_keys, 0);
    }
}

#[test]
fn a_gap_is_noticed_unless_it_is_allowed() {
    let (_directory, store) = buffered();
    let early = claim(&store, "a").complete_with(b"").version("e", 4, 5);
    let error = early.commit().expect_err("versions are missing");
    let WriteError::VersionGap(gap) = error.error() else {
        panic!("{error:?}");
    };
    assert_eq!((gap.current, gap.new), (0, 5));
    let guard = error.into_operation().expect("held");
    let jump = guard.complete_with(b"").version("e", Expected::Older, 5);
    jump.commit().expect("any that is older");
    let same = claim(&store, "b").complete_with(b"");
    let same = same.version("e", Expected::Older, 5).commit();
    assert_eq!(stale(same.expect_err("it is not newer")).0, 5);
}

#[test]
fn of_ten_at_once_one_wins() {
    let (_directory, store) = buffered();
    for round in 0..50 {
        let won = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..10 {
                let (store, won) = (&store, &won);
                let operation = claim(store, &format!("{round}-{number}"));
                scope.spawn(move || {
                    let both = operation
                        .complete_with(b"")
                        .version("one", round, round + 1);
                    // In either order.
                    match both.version("other", Expected::Older, round + 1).commit() {
                        Ok(_) => drop(won.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            let (current, guard) = stale(error);
                            assert_eq!(current, round + 1);
                            guard.release().expect("still its own");
                        }
                    }
                });
            }
        });
        assert_eq!(won.into_inner(), 1, "round {round}");
        assert_eq!(
            [version(&store, "one"), version(&store, "other")],
            [round + 1; 2]
        );
    }
    assert_eq!(store.stats().versions, 2);
}

#[test]
fn several_versions_are_set_together_or_not_at_all() {
    let (_directory, store) = buffered();
    let first = claim(&store, "first").complete_with(b"first");
    first.version("b", 0, 7).commit().expect("set");
    for other in ["a", "c", "d", "e", "f"] {
        let operation = claim(&store, &format!("with {other}"));
        let both = operation.complete_with(b"both").version(other, 0, 1);
        let error = both.version("b", 0, 1).commit().expect_err("one is stale");
        let (current, guard) = stale(error);
        assert_eq!((current, version(&store, other)), (7, 0));
        // The marks are gone: the other one can be set, by anybody.
        let alone = claim(&store, &format!("{other} alone")).complete_with(b"");
        alone.version(other, 0, 3).commit().expect("set");
        let both = guard
            .complete_with(b"both")
            .version("b", 7, 8 + version(&store, "b"));
        let error = both.version(other, 2, 3).commit().expect_err("stale");
        stale(error).1.release().expect("released");
    }
    assert_eq!(version(&store, "b"), 7);
    assert_eq!(store.stats().versions, 6);
}

#[test]
fn what_cannot_be_stored_is_refused_with_the_guard() {
    let (_directory, store) = buffered();
    let refused = |completion: Completion<&'static [u8]>| {
        let error = completion.commit().expect_err("refused");
        let WriteError::Attachment(reason) = error.error().clone() else {
            panic!("{error:?}");
        };
        (reason, error.into_operation().expect("held"))
    };
    let guard = claim(&store, "k");
    let (reason, guard) = refused(guard.complete_with(&b""[..]).version("", 0, 1));
    assert!(matches!(reason, AttachmentError::Name(_)), "{reason:?}");
    let (reason, guard) = refused(guard.complete_with(&b""[..]).version("e", 3, 3));
    let expected = AttachmentError::VersionNotAbove {
        expected: 3,
        new: 3,
    };
    assert_eq!(reason, expected);
    let twice = guard
        .complete_with(&b""[..])
        .version("e", 0, 1)
        .version("e", 1, 2);
    let (reason, guard) = refused(twice);
    assert_eq!(
        reason,
        AttachmentError::EntityTwice {
            entity: b"e".into()
        }
    );
    let mut many = guard.complete_with(&b""[..]);
    for number in 0..=oncekey::limits::ATTACHED_MAX {
        many = many.version(format!("{number}"), 0, 1);
    }
    let (reason, guard) = refused(many);
    assert!(
        matches!(reason, AttachmentError::TooMany { .. }),
        "{reason:?}"
    );
    let mut large = guard.complete_with(&b""[..]);
    for number in 0..oncekey::limits::ATTACHED_MAX {
        large = large.version(format!("{number:0>255}"), 0, 1);
    }
    let (reason, guard) = refused(large);
    assert!(
        matches!(reason, AttachmentError::TooLarge { .. }),
        "{reason:?}"
    );
    guard.complete(b"").expect("the guard was held all along");
    assert_eq!(store.stats().versions, 0);
}

/// Scope and operation of an entity's key are empty, like those of a user's key can be.
#[test]
fn entities_and_keys_of_the_same_bytes_do_not_meet() {
    let (_directory, store) = buffered();
    let same = oncekey::Key::new("", "", "e").expect("a good key");
    let operation = started(store.claim(&same, request()).expect("a claim"));
    assert_eq!(version(&store, "e"), 0);
    let completion = operation.complete_with(b"result").version("e", 0, 9);
    completion.commit().expect("set");
    assert_eq!(version(&store, "e"), 9);
    let saved = completed(store.claim(&same, request()).expect("an answer"));
    assert_eq!(bytes(&saved), b"result");
    assert!(
        store
            .forget(&same, oncekey::Forget::IfCompleted)
            .expect("forgotten")
    );
    assert_eq!(version(&store, "e"), 9);
    assert!(store.forget_version("e").expect("forgotten"));
    assert!(!store.forget_version("e").expect("gone already"));
    assert_eq!((version(&store, "e"), store.stats().versions), (0, 0));
}

#[test]
fn limits_on_keys_do_not_count_entities() {
    let directory = directory();
    let options = || small(Durability::Sync).max_keys(2).max_keys_per_scope(2);
    let store = options().open(directory.path()).expect("opens");
    for number in 0..2 {
        let operation = claim(&store, &format!("{number}"));
        let completion = operation
            .complete_with(b"")
            .version(format!("x{number}"), 0, 1);
        completion
            .version(format!("y{number}"), 0, 1)
            .commit()
            .expect("set");
    }
    for reopened in [false, true] {
        let store = match reopened {
            true => {
                store.close().expect("closed");
                options().open(directory.path()).expect("reopens")
            }
            false => store.clone(),
        };
        let stats = store.stats();
        assert_eq!((stats.completed_keys, stats.versions), (2, 4));
        store.claim(&key("third"), request()).expect_err("full");
        store
            .forget(&key("0"), oncekey::Forget::IfCompleted)
            .expect("forgotten");
        let operation = claim(&store, "0");
        store.claim(&key("third"), request()).expect_err("full");
        operation.complete(b"").expect("completed");
        assert!(store.pending().expect("a list").is_empty());
    }
}

#[test]
fn a_version_outlives_its_operation_restarts_and_maintenance() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let mut store = options(&clock).open(directory.path()).expect("opens");
    for number in 0..5 {
        let operation = claim(&store, &format!("k{number}")).complete_with(b"");
        let both = operation.version("order", number, number + 1);
        both.version(format!("own {number}"), 0, 1)
            .commit()
            .expect("set");
    }
    assert!(store.forget_version("own 4").expect("forgotten"));
    let mut compacted = 0;
    for round in 0..4 {
        roll(&store, &clock, round);
        let report = store.maintain().expect("a pass");
        assert!(report.segments_removed > 0, "{report:?}");
        compacted += store.stats().segments_compacted;
        assert!(matches!(
            store.get(&key("k1")).expect("an answer"),
            KeyState::Absent
        ));
        for _ in 0..2 {
            let round = round as u64;
            assert_eq!(version(&store, "order"), 5 + round);
            assert_eq!((version(&store, "own 3"), version(&store, "own 4")), (1, 0));
            assert_eq!(store.stats().versions, 5);
            store.close().expect("closed");
            store = options(&clock).open(directory.path()).expect("reopens");
            assert!(store.recovery_report().clean);
        }
        let late = claim(&store, &format!("late {round}")).complete_with(b"");
        stale(late.version("order", 0, 1).commit().expect_err("late"))
            .1
            .release()
            .expect("released");
        let next = claim(&store, &format!("next {round}")).complete_with(b"");
        let expected = 5 + round as u64;
        next.version("order", expected, expected + 1)
            .commit()
            .expect("set");
    }
    assert!(compacted > 0, "nothing was copied");
    // In the end versions go too, with their space.
    clock.advance(366 * 24 * HOUR);
    assert_eq!(version(&store, "order"), 0);
    roll(&store, &clock, 9);
    store.maintain().expect("a pass");
    let stats = store.stats();
    assert_eq!(
        (stats.versions, stats.segments_compacted),
        (0, 0),
        "{stats:?}"
    );
}

/// A removal must hide its copies however often those are moved, and go when they are gone.
#[test]
fn a_removed_version_does_not_come_back_and_leaves_nothing() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let mut store = options(&clock).open(directory.path()).expect("opens");
    for number in 0..3 {
        let operation = claim(&store, &format!("k{number}")).complete_with(b"");
        operation
            .version(format!("e{number}"), 0, 5)
            .commit()
            .expect("set");
    }
    roll(&store, &clock, 0);
    store.maintain().expect("a pass");
    assert!(
        store.stats().segments_compacted > 0,
        "the versions were copied"
    );
    for entity in ["e0", "e1"] {
        assert!(store.forget_version(entity).expect("forgotten"));
    }
    for round in 1..5 {
        roll(&store, &clock, round);
        store.maintain().expect("a pass");
        store.close().expect("closed");
        store = options(&clock).open(directory.path()).expect("reopens");
        let versions = ["e0", "e1", "e2"].map(|entity| version(&store, entity));
        assert_eq!(versions, [0, 0, 5], "round {round}");
        assert_eq!(store.stats().versions, 1);
    }
    assert!(store.forget_version("e2").expect("forgotten"));
    for round in 5..9 {
        roll(&store, &clock, round);
        store.maintain().expect("a pass");
    }
    assert_eq!(store.stats().segments_compacted, 0, "{:?}", store.stats());
}

/// What the store says of the entities and of the operations that set them.
fn answers(store: &Store) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for number in 0..4 {
        let (id, other) = (format!("k{number}"), format!("other {number}"));
        let state = match store.get(&key(&id)).expect("an answer") {
            KeyState::Completed(saved) => format!("{:?}", bytes(&saved)),
            _ => "no result".to_owned(),
        };
        all.insert(id, state);
        all.insert(other.clone(), version(store, &other).to_string());
    }
    all.insert("order".to_owned(), version(store, "order").to_string());
    all
}

#[test]
fn a_loss_of_power_leaves_all_of_a_completion_or_nothing() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
    let store = options(&clock).open_simulated(&disk).expect("opens");
    disk.keep_states();
    let mut known = vec![answers(&store)];
    let mut reached = vec![disk.operations()];
    for number in 0..4_u64 {
        // Larger than a page, so that it can be torn.
        let operation = claim(&store, &format!("k{number}")).complete_with(vec![1; 5_000]);
        let both = operation.version("order", number, number + 1);
        both.version(format!("other {number}"), 0, 1)
            .commit()
            .expect("set");
        known.push(answers(&store));
        reached.push(disk.operations());
    }
    let mut states = disk.take_states();
    states.push((disk.operations(), disk.clone()));
    let mut opened = 0;
    for (number, state) in &states {
        let least = reached.iter().filter(|done| *done <= number).count();
        let mut found = vec![state.crash_all_lost(), state.crash_none_lost()];
        found.extend((0..8).map(|seed| state.crash_random(number * 8 + seed)));
        for found in found {
            let store = options(&clock).open_simulated(&found).expect("opens");
            let at = known.iter().position(|known| *known == answers(&store));
            let at = at.unwrap_or_else(|| panic!("half of it at {number}: {:?}", answers(&store)));
            assert!(at + 1 >= least, "operation {number}: {at} of {least}");
            opened += 1;
        }
    }
    assert!(opened > 50, "{opened} opens");
}

#[test]
fn a_loss_of_power_during_maintenance_changes_no_version() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
    let store = options(&clock).open_simulated(&disk).expect("opens");
    for number in 0..4_u64 {
        let operation = claim(&store, &format!("k{number}")).complete_with(b"");
        let both = operation.version("order", number, number + 1);
        both.version(format!("other {number}"), 0, 1)
            .commit()
            .expect("set");
    }
    roll(&store, &clock, 0);
    store.maintain().expect("a pass");
    assert!(store.forget_version("other 1").expect("forgotten"));
    let next = claim(&store, "next").complete_with(b"");
    next.version("order", 4, 5).commit().expect("set");
    roll(&store, &clock, 1);
    let expected = answers(&store);
    disk.keep_states();
    assert!(store.maintain().expect("a pass").segments_removed > 0);
    assert_eq!(answers(&store), expected);
    for (number, state) in disk.take_states() {
        for seed in 0..3 {
            let found = state.crash_random(number * 3 + seed);
            let store = options(&clock).open_simulated(&found).expect("opens");
            assert_eq!(answers(&store), expected, "before operation {number}");
            store.maintain().expect("a pass");
            assert_eq!(
                answers(&store),
                expected,
                "before operation {number}, maintained"
            );
            drop(store);
            let store = options(&clock).open_simulated(&found).expect("opens");
            assert_eq!(
                answers(&store),
                expected,
                "before operation {number}, reopened"
            );
        }
    }
}

/// Every byte of a completion with what is attached to it, changed on the disk: the open refuses, or
/// every answer is what it was. Salvage loses all of it, never half.
#[test]
fn a_damaged_byte_is_noticed() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
    let store = options(&clock).open_simulated(&disk).expect("opens");
    claim(&store, "before")
        .complete(b"before")
        .expect("completed");
    // Not the one that is being prepared.
    let is_written = |name: &String| {
        let contents = disk.contents(name).unwrap_or_default();
        contents.windows(6).any(|bytes| bytes == b"before")
    };
    let name = disk.names().into_iter().find(is_written);
    let name = name.expect("a segment");
    let untouched = disk.contents(&name).expect("there");
    let operation = claim(&store, "k0").complete_with(b"k");
    let both = operation.version("order", 0, 1).version("other 0", 0, 1);
    both.commit().expect("set");
    let expected = answers(&store);
    // So that it is not the end of the log.
    claim(&store, "after")
        .complete(b"after")
        .expect("completed");
    // Without a side-car that vouches for it.
    let disk = disk.crash_none_lost();
    let clean = disk.contents(&name).expect("there");
    let names = [&b"k0"[..], b"order", b"other 0"];
    let find = |what: &[u8]| clean.windows(what.len()).rposition(|bytes| bytes == what);
    let last = names
        .iter()
        .filter_map(|name| find(name))
        .max()
        .expect("written");
    let first = find(b"order")
        .expect("written")
        .min(find(b"other 0").expect("written"));
    assert_eq!(untouched.get(first), Some(&0), "written since");
    let (mut refused, mut salvaged) = (0, 0);
    for at in first - 150..last + 20 {
        for mask in [1, 0x80] {
            let damaged = disk.crash_none_lost();
            let mut contents = clean.clone();
            contents[at] ^= mask;
            damaged.put(&name, &contents);
            match options(&clock).open_simulated(&damaged) {
                Ok(store) => assert_eq!(answers(&store), expected, "byte {at}"),
                Err(_) => {
                    refused += 1;
                    let salvage = options(&clock).recovery(Recovery::Salvage);
                    let store = salvage.open_simulated(&damaged).expect("salvaged");
                    let found = answers(&store);
                    let none = found
                        .values()
                        .all(|value| value == "0" || value == "no result");
                    assert!(none || found == expected, "byte {at}: {found:?}");
                    salvaged += 1;
                }
            }
        }
    }
    assert!(refused > 100, "{refused} refused, {salvaged} salvaged");
}
