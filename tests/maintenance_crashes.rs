//! Maintenance that is cut off: by a loss of power before every operation of the disk, by an error in
//! every operation, by a full disk. The answers stay what they were, whatever survives, and however
//! often it happens.

#![cfg(feature = "testing")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{
    ClaimOptions, Durability, Forget, Key, KeyState, ManualClock, Operation, Options, Store,
};

use support::*;

const HOUR: Duration = Duration::from_secs(3_600);
/// Keys that the scenario uses, each in its own way.
const KEYS: usize = 40;

fn numbered(number: usize) -> Key {
    key(&format!("n-{number}"))
}

fn response(number: usize) -> Vec<u8> {
    format!("response {number} ").repeat(20).into_bytes()
}

fn options(clock: &ManualClock) -> Options {
    small(Durability::Sync)
        .clock(Arc::new(clock.clone()))
        .max_clock_jump(Duration::from_secs(86_400 * 365))
        .maintenance(false)
}

/// What the store says of each key; an owner counts as gone.
fn answers(store: &Store) -> BTreeMap<usize, String> {
    let answer = |number: usize| match store.get(&numbered(number)).expect("an answer") {
        KeyState::Absent => "absent".to_owned(),
        KeyState::Completed(saved) => format!(
            "{} {:?} {:?} {:?} {:?}",
            saved.attempt(),
            saved.token(),
            saved.completed_at(),
            saved.expires_at(),
            crc32fast::hash(&bytes(&saved)),
        ),
        KeyState::InProgress { attempt, token, .. }
        | KeyState::Interrupted { attempt, token, .. } => format!("pending {attempt} {token:?}"),
        other => panic!("{other:?}"),
    };
    (0..KEYS).map(|number| (number, answer(number))).collect()
}

struct World {
    disk: SimulatedDisk,
    clock: ManualClock,
    store: Store,
    held: Vec<Operation>,
}

impl World {
    /// A store that has been through some of it already, with a job for maintenance of each kind.
    fn new() -> Self {
        let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
        let store = options(&clock).open_simulated(&disk).expect("opens");
        let mut world = Self {
            disk,
            clock,
            store,
            held: Vec::new(),
        };
        // Results that live for long, for an hour, and that are forgotten once they are copied.
        for number in 0..15 {
            let hours = if number < 5 {
                100
            } else {
                1 + number as u32 % 2
            };
            world.finish(number, HOUR * hours);
        }
        world.roll(0);
        world.store.maintain().expect("a pass");
        assert!(world.store.stats().segments_compacted > 0);
        for number in 3..7 {
            world.forget(number);
        }
        // One of them is used again, and is free again.
        let again = started(world.claim(3));
        again.release().expect("released");
        let again = started(world.claim(5));
        again.complete("again").expect("completed");
        // What is pending, with and without a note, and a result that follows it.
        for number in 20..24 {
            let mut operation = started(world.claim(number));
            if number % 2 == 0 {
                operation.checkpoint(b"noted").expect("a note");
            }
            world.held.push(operation);
        }
        drop(world.held.pop());
        for number in 25..32 {
            world.finish(number, HOUR * (number as u32 - 24));
        }
        world.roll(1);
        world.forget(30);
        world.clock.advance(HOUR + HOUR / 2);
        world.roll(2);
        world
    }

    fn claim(&self, number: usize) -> oncekey::Claim {
        let claim = self.store.claim(&numbered(number), request());
        claim.expect("a claim")
    }

    fn finish(&self, number: usize, retention: Duration) {
        let options = ClaimOptions::new().retention(retention);
        let claim = self.store.claim_with(&numbered(number), request(), options);
        started(claim.expect("a claim"))
            .complete(response(number))
            .expect("a completion");
    }

    fn forget(&self, number: usize) {
        let forgotten = self.store.forget(&numbered(number), Forget::IfCompleted);
        assert!(forgotten.expect("an answer"));
    }

    fn roll(&self, round: usize) {
        let short = ClaimOptions::new().retention(Duration::from_secs(60));
        for number in 0..14 {
            let filler = key(&format!("filler-{round}-{number}"));
            let claim = self.store.claim_with(&filler, request(), short.clone());
            let operation = started(claim.expect("a claim"));
            operation.complete(vec![7; 7_000]).expect("a completion");
        }
        self.clock.advance(Duration::from_secs(120));
    }

    /// A disk as some process left it, opened by the next.
    fn open(&self, disk: &SimulatedDisk) -> Store {
        options(&self.clock).open_simulated(disk).expect("opens")
    }
}

/// The disks that may be found after the power went.
fn crashes(disk: &SimulatedDisk, seed: u64) -> Vec<SimulatedDisk> {
    let mut found = vec![disk.crash_all_lost(), disk.crash_none_lost()];
    found.extend((0..4).map(|more| disk.crash_random(seed * 4 + more)));
    found
}

#[test]
fn the_answers_outlive_a_loss_of_power_at_every_step() {
    let world = World::new();
    let expected = answers(&world.store);
    world.disk.keep_states();
    let report = world.store.maintain().expect("a pass");
    assert!(report.segments_removed >= 4, "{report:?}");
    assert!(
        report.segments_written >= 1 && report.keys_refreshed == 4,
        "{report:?}"
    );
    assert_eq!(answers(&world.store), expected);
    let mut states = world.disk.take_states();
    states.push((world.disk.operations(), world.disk.clone()));
    assert!(states.len() > 20, "{} states", states.len());
    let mut opened = 0;
    for (number, state) in &states {
        for found in crashes(state, *number) {
            let store = world.open(&found);
            assert_eq!(answers(&store), expected, "before operation {number}");
            // The next process is at it when the power goes once more.
            found.keep_states();
            store.maintain().expect("a pass");
            assert_eq!(answers(&store), expected, "before operation {number}");
            let states = found.take_states();
            let step = (states.len() / 3).max(1);
            for (later, state) in states.iter().skip(*number as usize % step).step_by(step) {
                let store = world.open(&state.crash_random(number + later));
                let again = format!("before operation {number}, then {later}");
                assert_eq!(answers(&store), expected, "{again}");
                opened += 1;
            }
            drop(store);
            let store = world.open(&found);
            assert!(store.recovery_report().clean);
            assert_eq!(
                answers(&store),
                expected,
                "before operation {number}, then closed"
            );
            opened += 2;
        }
    }
    println!("{} moments, {opened} opens", states.len());
}

/// What a killed process had written is in the cache only, and the next one believes it: the power
/// may take it back at any moment of that one's start.
#[test]
fn the_answers_outlive_a_kill_and_a_loss_of_power_in_the_start_after_it() {
    let world = World::new();
    let expected = answers(&world.store);
    world.disk.keep_states();
    world.store.maintain().expect("a pass");
    let mut opened = 0;
    for (number, state) in world.disk.take_states() {
        let killed = state.crash_none_lost();
        killed.keep_states();
        drop(world.open(&killed));
        for (later, state) in killed.take_states() {
            for found in crashes(&state, number + later) {
                let store = world.open(&found);
                let what = format!("killed before operation {number}, then {later}");
                assert_eq!(answers(&store), expected, "{what}");
                opened += 1;
            }
        }
    }
    assert!(opened > 1_000, "{opened} opens");
}

/// Whatever the disk refuses, claims go on and nothing is lost; unless a sync of the log failed,
/// which stops all writing until the store is opened again.
#[test]
fn an_error_in_any_operation_stops_no_claim_and_loses_nothing() {
    let mut met = 0;
    for fault in [Fault::InputOutput, Fault::NoSpace] {
        for number in 0.. {
            let world = World::new();
            let expected = answers(&world.store);
            let before = world.disk.struck().len();
            world.disk.fail(FaultPlan::any(fault).after(number));
            let outcome = world.store.maintain();
            world.disk.heal();
            if world.disk.struck().len() == before {
                outcome.expect("nothing was in the way");
                assert!(number > 30, "{number} operations");
                break;
            }
            met += 1;
            let what = format!("{fault:?} in operation {number}: {outcome:?}");
            // A store whose log can't be synced tells nobody what may not be durable.
            if !world.store.stats().poisoned {
                assert_eq!(answers(&world.store), expected, "{what}");
                let claim = world.claim(39);
                started(claim).release().expect("claims go on");
                world.store.maintain().expect("the next pass");
                assert_eq!(answers(&world.store), expected, "{what}");
            }
            for found in crashes(&world.disk, number) {
                assert_eq!(answers(&world.open(&found)), expected, "{what}");
            }
        }
    }
    println!("{met} faults");
}

/// A full disk gives room to removals, and to copies what was set aside for them.
#[test]
fn a_full_disk_loses_nothing_and_comes_back() {
    let world = World::new();
    let expected = answers(&world.store);
    let files = world.disk.names();
    let used: usize = files
        .iter()
        .filter_map(|name| world.disk.contents(name))
        .map(|bytes| bytes.len())
        .sum();
    world.disk.capacity(used as u64);
    // Room for one compaction was set aside.
    let report = world.store.maintain().expect("a pass on a full disk");
    assert!(report.segments_written > 0, "{report:?}");
    assert_eq!(answers(&world.store), expected);
    // A side-car may be on its way meanwhile.
    eventually("the end of every unfinished file", || {
        let names = world.disk.names();
        names.iter().all(|name| !name.ends_with(".tmp"))
    });
    assert_eq!(answers(&world.open(&world.disk.crash_all_lost())), expected);
    // When all that lived in the old segments is over, no room is needed to give them up.
    world.clock.advance(200 * HOUR);
    drop(world.held);
    world.disk.capacity(None);
    world.store.maintain().expect("a pass");
    let stats = world.store.stats();
    assert_eq!(stats.segments_compacted, 0, "{stats:?}");
}

/// What superseded a record in a segment that goes was not durable yet: it is by then.
#[test]
fn nothing_is_given_up_for_what_a_loss_of_power_takes_back() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
    let options = || options(&clock).durability(Durability::Buffered);
    let store = options().open_simulated(&disk).expect("opens");
    let operation = started(store.claim(&numbered(0), request()).expect("a claim"));
    for number in 0..30 {
        let filler = key(&format!("filler-{number}"));
        let claim = store.claim(&filler, request()).expect("a claim");
        started(claim).complete(vec![7; 6_000]).expect("completed");
    }
    store.flush().expect("durable");
    clock.advance(25 * HOUR);
    // The claim is superseded by a completion that is not durable.
    operation.complete("done").expect("completed");
    let report = store.maintain().expect("a pass");
    assert!(report.segments_removed >= 2, "{report:?}");
    let reopened = options()
        .open_simulated(&disk.crash_all_lost())
        .expect("opens");
    match reopened.get(&numbered(0)).expect("an answer") {
        KeyState::Completed(saved) => assert_eq!(bytes(&saved), b"done"),
        other => panic!("{other:?}"),
    }
    assert!(disk.count(OperationKind::Remove) >= 2);
}

/// The records of pending keys lie in segments that closes have cut short.
#[test]
fn keys_without_an_outcome_outlive_restarts_and_the_segments_between_them() {
    for durability in DURABILITIES {
        let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
        let open = || {
            let options = options(&clock).durability(durability);
            options.open_simulated(&disk).expect("opens")
        };
        for number in [0, 1] {
            let store = open();
            drop(store.claim(&numbered(number), request()).expect("a claim"));
        }
        let store = open();
        let again = interrupted(store.claim(&numbered(0), request()).expect("a claim"));
        let report = store.maintain().expect("a pass");
        assert!(report.segments_removed >= 1, "{report:?}");
        assert_eq!(store.stats().pending_keys, 2);
        drop((again, store));
        let store = open();
        assert_eq!(store.recovery_report().interrupted, 2, "{durability:?}");
    }
}
