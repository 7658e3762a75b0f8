//! A disk that is full of dead records, or a log at its limit, is freed by maintenance alone: room for
//! one compaction was set aside before. Nothing is lost on the way, wherever it is cut off.

#![cfg(feature = "testing")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey::testing::{OperationKind, SimulatedDisk};
use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Key, KeyState, LimitReached, ManualClock,
    Operation, Options, Store,
};

use support::*;

const SEGMENT: u64 = 64 << 10;
const DISK: u64 = 9 * SEGMENT;
const HOUR: Duration = Duration::from_secs(3_600);

fn options(clock: &ManualClock) -> Options {
    small(Durability::Sync)
        .clock(Arc::new(clock.clone()))
        .max_clock_jump(HOUR * 24 * 365)
        .maintenance(false)
}

fn numbered(number: usize) -> Key {
    key(&format!("n-{number}"))
}

/// A store on a disk, and what it must answer.
struct World {
    disk: SimulatedDisk,
    clock: ManualClock,
    store: Store,
    held: Vec<Operation>,
    next: usize,
    /// Results that live.
    live: BTreeMap<usize, usize>,
}

impl World {
    fn new(disk: SimulatedDisk, more: impl FnOnce(Options) -> Options) -> Self {
        let clock = ManualClock::new(START_MS);
        let store = more(options(&clock)).open_simulated(&disk).expect("opens");
        Self {
            disk,
            clock,
            store,
            held: Vec::new(),
            next: 0,
            live: BTreeMap::new(),
        }
    }

    /// One key; most of them expire within minutes. The error is that of a claim without room.
    fn one(&mut self, pending: bool) -> Result<(), ClaimError> {
        let number = self.next;
        let is_live = number % 4 == 3;
        let retention = if is_live { HOUR * 100 } else { HOUR / 60 };
        let options = ClaimOptions::new().retention(retention);
        let claim = self
            .store
            .claim_with(&numbered(number), request(), options)?;
        self.next += 1;
        let operation = started(claim);
        if pending && number % 24 == 6 {
            self.held.push(operation);
            return Ok(());
        }
        let len = 2_000 + number % 5 * 500;
        operation.complete(vec![number as u8; len]).expect("room");
        if is_live {
            self.live.insert(number, len);
        }
        Ok(())
    }

    /// Until there is no room.
    fn fill(&mut self, pending: bool) -> ClaimError {
        loop {
            // The thread does that by itself, long before the disk is full.
            if self.next == 60 {
                self.store.maintain().expect("a pass");
            }
            if let Err(error) = self.one(pending) {
                return error;
            }
            assert!(self.next < 100_000, "it never gets full");
        }
    }

    fn check(&self, store: &Store, context: &str) {
        for (number, len) in &self.live {
            match store.get(&numbered(*number)).expect("an answer") {
                KeyState::Completed(saved) => {
                    assert_eq!(bytes(&saved), vec![*number as u8; *len], "{context}");
                }
                other => panic!("{context}: key {number} is {other:?}"),
            }
        }
        for operation in &self.held {
            match store.get(operation.key()).expect("an answer") {
                KeyState::InProgress { .. } | KeyState::Interrupted { .. } => {}
                other => panic!("{context}: {other:?}"),
            }
        }
    }
}

/// What the log and what is set aside take on the disk.
fn log_bytes(disk: &SimulatedDisk) -> u64 {
    bytes_of(disk, |name| {
        !name.contains(".idx") && !name.starts_with("META")
    })
}

fn bytes_of(disk: &SimulatedDisk, is_counted: impl Fn(&str) -> bool) -> u64 {
    let names = disk.names().into_iter().filter(|name| is_counted(name));
    names
        .filter_map(|name| disk.contents(&name))
        .map(|contents| contents.len() as u64)
        .sum()
}

/// Somebody else takes the rest of the disk; how much is left to the store.
fn eat(disk: &SimulatedDisk) -> u64 {
    // A side-car may be on its way.
    eventually("the end of every unfinished file", || {
        disk.names().iter().all(|name| !name.ends_with(".tmp"))
    });
    let left = bytes_of(disk, |_| true);
    disk.capacity(left);
    left
}

fn used_the_spare(disk: &SimulatedDisk) -> usize {
    let log = disk.log();
    let is_use = |one: &&oncekey::testing::Operation| {
        one.kind == OperationKind::Rename && one.file == "SPARE"
    };
    log.iter().filter(is_use).count()
}

#[test]
fn a_disk_full_of_dead_records_is_freed_again_and_again() {
    let disk = SimulatedDisk::new();
    disk.capacity(DISK);
    let mut world = World::new(disk, |options| options);
    let mut copied = 0;
    for round in 0..8 {
        let full = world.fill(round < 4);
        assert!(matches!(full, ClaimError::OutOfSpace(_)), "{full:?}");
        world.check(&world.store, "full");
        world.clock.advance(HOUR / 30);
        eat(&world.disk);
        let report = world.store.maintain().expect("a pass on a full disk");
        assert!(report.segments_removed > 0, "{round}: {report:?}");
        copied += report.records_copied;
        assert!(
            round >= 4 || report.keys_refreshed > 0,
            "{round}: {report:?}"
        );
        world.check(&world.store, "freed");
        let before = world.next;
        while world.next < before + 20 {
            world.one(false).expect("there is room");
        }
        world.disk.capacity(DISK);
        if round == 3 {
            for operation in world.held.drain(..) {
                operation.complete("done").expect("its room was kept");
            }
        }
        // Else the live ones fill the disk in the end.
        if round % 2 == 1 {
            world.clock.advance(HOUR * 101);
            world.live.clear();
        }
    }
    let used = used_the_spare(&world.disk);
    assert!(used > 0 && copied > 0, "{used} times, {copied} records");
}

#[test]
fn whatever_cuts_it_off_the_next_process_frees_the_full_disk() {
    let disk = SimulatedDisk::new();
    disk.capacity(DISK);
    let mut world = World::new(disk, |options| options);
    let full = world.fill(false);
    assert!(matches!(full, ClaimError::OutOfSpace(_)), "{full:?}");
    world.clock.advance(HOUR / 30);
    let capacity = eat(&world.disk);
    world.disk.keep_states();
    world.store.maintain().expect("a pass on a full disk");
    assert!(used_the_spare(&world.disk) > 0);
    let states = world.disk.take_states();
    assert!(states.len() > 20, "{} states", states.len());
    for (number, state) in &states {
        let images = [
            state.crash_all_lost(),
            state.crash_none_lost(),
            state.crash_random(*number),
        ];
        for (which, image) in images.into_iter().enumerate() {
            let context = format!("before operation {number}, image {which}");
            image.capacity(capacity);
            let store = options(&world.clock).open_simulated(&image);
            let store = store.unwrap_or_else(|error| panic!("{context}: {error}"));
            world.check(&store, &context);
            let done = store.maintain();
            done.unwrap_or_else(|error| panic!("{context}: {error}"));
            world.check(&store, &context);
            let claim = store.claim(&key("afterwards"), request());
            let claim = claim.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(matches!(claim, Claim::Started(_)), "{context}");
        }
    }
    println!("{} moments", states.len());
}

#[test]
fn copies_stay_within_the_limit_on_the_logs_size() {
    let limit = 8 * SEGMENT + 100;
    let mut world = World::new(SimulatedDisk::new(), |options| {
        options.max_disk_bytes(limit)
    });
    for round in 0..4 {
        let full = world.fill(round == 1);
        assert!(
            matches!(full, ClaimError::LimitReached(LimitReached { .. })),
            "{full:?}"
        );
        world.clock.advance(HOUR / 30);
        world.disk.keep_states();
        let report = world.store.maintain().expect("a pass at the limit");
        assert!(report.records_copied > 0, "{round}: {report:?}");
        for (number, state) in world.disk.take_states() {
            let used = log_bytes(&state);
            assert!(used <= limit, "{used} bytes before operation {number}");
        }
        let stats = world.store.stats();
        assert!(stats.segment_bytes <= limit, "{stats:?}");
        world.check(&world.store, "at the limit");
        world.one(false).expect("there is room");
        if round == 1 {
            world.clock.advance(HOUR * 101);
            world.live.clear();
        }
    }
    assert!(used_the_spare(&world.disk) > 0);
}

/// With so low a limit nothing is set aside, and copies may go over it for as long as a pass takes.
#[test]
fn a_limit_of_two_segments_is_exceeded_by_no_more_than_a_segment() {
    let limit = 2 * SEGMENT;
    let mut world = World::new(SimulatedDisk::new(), |options| {
        options.max_disk_bytes(limit)
    });
    for _ in 0..4 {
        let full = world.fill(false);
        assert!(matches!(full, ClaimError::LimitReached(_)), "{full:?}");
        world.clock.advance(HOUR / 30);
        world.disk.keep_states();
        world.store.maintain().expect("a pass at the limit");
        for (number, state) in world.disk.take_states() {
            let used = log_bytes(&state);
            assert!(used <= limit + SEGMENT, "{used} before operation {number}");
            assert!(!state.names().contains(&"SPARE".to_owned()));
        }
        world.check(&world.store, "at the limit");
    }
}

/// Where room is set aside there is also some for new claims once the dead are gone.
#[test]
fn a_low_limit_does_not_stand_still_after_a_compaction() {
    for segments in [3, 4, 5, 6] {
        let limit = segments * SEGMENT + 100;
        let mut world = World::new(SimulatedDisk::new(), |options| {
            options.max_disk_bytes(limit)
        });
        for round in 0..4 {
            let full = world.fill(false);
            assert!(matches!(full, ClaimError::LimitReached(_)), "{full:?}");
            world.check(&world.store, "full");
            // All but a quarter is dead; after the second round all of it.
            let hours = if round % 2 == 0 { 1 } else { 101 };
            world.clock.advance(HOUR * hours);
            if hours > 100 {
                world.live.clear();
            }
            world.store.maintain().expect("a pass at the limit");
            let context = format!("{segments} segments, round {round}");
            world.check(&world.store, &context);
            let claim = world.one(false);
            claim.unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        let spare = world.disk.names().contains(&"SPARE".to_owned());
        assert_eq!(spare, segments > 3, "{segments} segments");
    }
}

/// What is set aside is no obstacle to a store of a lower limit.
#[test]
fn what_is_set_aside_goes_where_the_limit_has_no_room_for_it() {
    let mut world = World::new(SimulatedDisk::new(), |options| {
        options.max_disk_bytes(8 * SEGMENT)
    });
    world.fill(false);
    world.clock.advance(HOUR * 101);
    world.live.clear();
    world.store.maintain().expect("a pass");
    assert!(world.disk.names().contains(&"SPARE".to_owned()));
    world.store.close().expect("closed");
    let low = options(&world.clock).max_disk_bytes(3 * SEGMENT);
    world.store = low.open_simulated(&world.disk).expect("opens");
    assert!(!world.disk.names().contains(&"SPARE".to_owned()));
    world.one(false).expect("there is room");
}
