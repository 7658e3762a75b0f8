//! Maintenance: space comes back, and no answer changes by it.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use oncekey::{
    Claim, ClaimOptions, Durability, Forget, Key, KeyState, MaintenanceError, ManualClock, Options,
    Recovery, Store, Token,
};
use tempfile::TempDir;

use support::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn numbered(number: usize) -> Key {
    key(&format!("n-{number}"))
}

fn response(number: usize) -> Vec<u8> {
    format!("response {number} ").repeat(60).into_bytes()
}

/// A store of its own whose maintenance is done by hand.
struct World {
    directory: TempDir,
    clock: ManualClock,
    store: Store,
    filled: usize,
}

impl World {
    fn new() -> Self {
        Self::with(Durability::Sync)
    }

    fn with(durability: Durability) -> Self {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let store = options(durability, &clock);
        let store = store.open(directory.path()).expect("a new store");
        Self {
            directory,
            clock,
            store,
            filled: 0,
        }
    }

    fn reopen(self) -> Self {
        let Self {
            directory,
            clock,
            store,
            filled,
        } = self;
        drop(store);
        let store = options(Durability::Sync, &clock);
        let store = store.open(directory.path()).expect("reopens");
        assert!(store.recovery_report().clean);
        Self {
            directory,
            clock,
            store,
            filled,
        }
    }

    /// The store as the next process finds it after this one was killed.
    fn killed(&self) -> Self {
        let directory = killed(&self.store);
        let store = options(Durability::Sync, &self.clock);
        let store = store.open(directory.path()).expect("reopens");
        Self {
            directory,
            clock: self.clock.clone(),
            store,
            filled: self.filled,
        }
    }

    fn finish_for(&self, key: &Key, retention: Duration, response: impl AsRef<[u8]>) -> Token {
        let options = ClaimOptions::new().retention(retention);
        let operation = started(
            self.store
                .claim_with(key, request(), options)
                .expect("a claim"),
        );
        let token = operation.token();
        operation.complete(response).expect("a completion");
        token
    }

    /// Fills two segments with what dies within a minute.
    fn roll(&mut self) {
        for number in 0..120 {
            let filler = key(&format!("filler-{}", self.filled));
            self.finish_for(&filler, Duration::from_secs(60), response(number));
            self.filled += 1;
        }
        // What is not durable is not given up.
        self.store.flush().expect("durable");
        self.clock.advance(Duration::from_secs(61));
    }

    fn maintain(&self) -> oncekey::MaintenanceReport {
        self.store.maintain().expect("a pass")
    }

    fn files(&self, prefix: &str) -> Vec<String> {
        files(self.directory.path(), prefix)
    }
}

fn options(durability: Durability, clock: &ManualClock) -> Options {
    small(durability)
        .clock(Arc::new(clock.clone()))
        .max_clock_jump(Duration::from_secs(86_400 * 365))
        .maintenance(false)
}

fn files(directory: &Path, prefix: &str) -> Vec<String> {
    let names = fs::read_dir(directory).expect("a list").map(|entry| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("a name")
    });
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with(prefix) && name.ends_with(".log"))
        .collect();
    names.sort();
    names
}

/// Every side-car stands beside its file.
fn assert_no_stray_side_cars(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a list") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "idx") {
            assert!(path.with_extension("log").exists(), "{}", path.display());
        }
    }
}

/// All that a store says of keys that exist.
fn answers(store: &Store, keys: usize) -> BTreeMap<usize, String> {
    let answer = |number: usize| match store.get(&numbered(number)).expect("an answer") {
        KeyState::Completed(saved) => format!(
            "{} {:?} {:?} {:?} {:?} {}",
            saved.attempt(),
            saved.token(),
            saved.created_at(),
            saved.completed_at(),
            saved.expires_at(),
            crc32fast::hash(&bytes(&saved)),
        ),
        KeyState::Absent => "absent".into(),
        other => format!("{other:?}"),
    };
    (0..keys).map(|number| (number, answer(number))).collect()
}

#[test]
fn segments_in_which_nothing_is_live_are_removed() {
    for durability in DURABILITIES {
        let mut world = World::with(durability);
        for _ in 0..4 {
            world.roll();
        }
        let before = world.store.stats();
        assert!(before.segments >= 8, "{before:?}");
        let report = world.maintain();
        let after = world.store.stats();
        assert!(report.segments_removed >= 6, "{report:?}");
        assert_eq!(report.bytes_copied, 0, "{report:?}");
        assert!(after.segments <= 3, "{after:?}");
        assert!(after.segment_bytes <= 3 * (64 << 10), "{after:?}");
        assert!(world.files("segment-").len() <= 3);
        assert_eq!(
            after.completed_keys + report.results_expired,
            before.completed_keys
        );
        assert_eq!(world.maintain(), Default::default(), "nothing more to do");

        // All of it goes on, here and after a restart.
        world.finish_for(&key("later"), HOUR, "later");
        let world = world.reopen();
        completed(
            world
                .store
                .claim(&key("later"), request())
                .expect("an answer"),
        );
        drop(started(
            world
                .store
                .claim(&key("filler-0"), request())
                .expect("a claim"),
        ));
    }
}

#[test]
fn keys_without_an_outcome_outlive_their_segment() {
    let mut world = World::new();
    let mut held = started(world.store.claim(&key("held"), request()).expect("a claim"));
    held.checkpoint("charged ch_1").expect("a note");
    let dropped = started(
        world
            .store
            .claim(&key("dropped"), request())
            .expect("a claim"),
    );
    let token = dropped.token();
    drop(dropped);
    let ticket = started(
        world
            .store
            .claim_with(&key("handed on"), request(), lease(10_000_000))
            .expect("a claim"),
    );
    let ticket = ticket.into_ticket().expect("a ticket");
    for _ in 0..3 {
        world.roll();
    }
    let report = world.maintain();
    assert!(report.segments_removed >= 3, "{report:?}");
    assert_eq!(report.keys_refreshed, 3);

    // Owners, tickets and listings know of nothing.
    in_progress(
        world
            .store
            .claim(&key("held"), request())
            .expect("an answer"),
    );
    let listed = world.store.interrupted().expect("a list");
    let [only] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!((&only.key, only.token), (&key("dropped"), token));
    let copy = world.killed();
    let found = interrupted(copy.store.claim(&key("held"), request()).expect("a claim"));
    let previous = found.previous().expect("an attempt before");
    assert_eq!(previous.checkpoint.as_deref(), Some(&b"charged ch_1"[..]));
    assert_eq!(found.attempt(), 2);
    drop(copy.store.resume(&ticket).expect("the ticket counts"));

    held.complete("done").expect("the owner still holds it");
    drop(world.store.resume(&ticket).expect("the ticket counts"));
    let again = interrupted(
        world
            .store
            .claim(&key("dropped"), request())
            .expect("a claim"),
    );
    assert_eq!(again.attempt(), 2);
}

/// A key that is only written again is listed and counted all the while.
#[test]
fn keys_without_an_outcome_are_listed_while_they_are_written_again() {
    let mut world = World::with(Durability::Buffered);
    for number in 0..200 {
        drop(started(
            world
                .store
                .claim(&numbered(number), request())
                .expect("a claim"),
        ));
    }
    world.roll();
    let store = world.store.clone();
    let is_over = AtomicBool::new(false);
    let (report, looks) = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(store.interrupted().expect("a list").len(), 200);
                assert_eq!(store.pending().expect("a list").len(), 0);
                assert_eq!(store.stats().interrupted_keys, 200);
                looks += 1;
            }
            looks
        });
        let report = world.maintain();
        is_over.store(true, Ordering::Relaxed);
        (report, looking.join().expect("every look is whole"))
    });
    assert!(report.keys_refreshed >= 200, "{report:?}");
    println!("{looks} looks meanwhile");
}

#[test]
fn what_is_live_is_copied_and_answers_the_same() {
    let mut world = World::new();
    for round in 0..4 {
        for number in 10 * round..10 * (round + 1) {
            world.finish_for(&numbered(number), HOUR, response(number));
        }
        world.roll();
    }
    let held = completed(
        world
            .store
            .claim(&numbered(0), request())
            .expect("an answer"),
    );
    let expected = answers(&world.store, 50);
    let before = world.store.stats();
    let report = world.maintain();
    assert!(report.records_copied >= 30, "{report:?}");
    let after = world.store.stats();
    assert!(after.segments + 2 <= before.segments, "{after:?}");
    assert_eq!(
        after.segments_compacted,
        world.files("compacted-").len() as u64
    );
    assert!(after.segments_compacted >= 1);
    assert_eq!(answers(&world.store, 50), expected);
    assert_eq!(answers(&world.killed().store, 50), expected);
    let world = world.reopen();
    let report = world.store.recovery_report();
    assert_eq!(report.side_cars_missing, 0, "{report:?}");
    assert!(report.side_cars >= 2, "{report:?}");
    assert_no_stray_side_cars(world.directory.path());
    assert_eq!(answers(&world.store, 50), expected);
    assert_eq!(bytes(&held), response(0), "a response outlives its file");

    // When their time is over the copies go too.
    world.clock.advance(HOUR);
    let report = world.maintain();
    assert!(report.segments_removed >= 1, "{report:?}");
    assert!(world.files("compacted-").is_empty());
    drop(started(
        world.store.claim(&numbered(0), request()).expect("a claim"),
    ));
    let world = world.reopen();
    assert!(
        answers(&world.store, 50)
            .values()
            .all(|answer| answer == "absent" || answer.contains("Interrupted"))
    );
}

#[test]
fn sparse_compacted_files_are_compacted_again() {
    let mut world = World::new();
    for number in 0..40 {
        let retention = HOUR * (1 + number as u32 % 4);
        world.finish_for(&numbered(number), retention, response(number));
    }
    world.roll();
    world.roll();
    world.maintain();
    let files = world.files("compacted-");
    assert!(!files.is_empty());
    for hours in 1..=4 {
        world.clock.advance(HOUR);
        let expected = answers(&world.store, 40);
        world.maintain();
        assert_eq!(answers(&world.store, 40), expected, "after {hours} hours");
        world = world.reopen();
        assert_eq!(answers(&world.store, 40), expected, "after {hours} hours");
    }
    assert!(world.files("compacted-").is_empty());
}

/// The removal stays as long as there may be a copy of what it removed, though all segments of the
/// log that knew of either are gone.
#[test]
fn a_forgotten_result_does_not_come_back_by_its_copy() {
    let mut world = World::new();
    for number in 0..40 {
        world.finish_for(&numbered(number), HOUR * 10, response(number));
    }
    world.roll();
    world.maintain();
    assert!(!world.files("compacted-").is_empty());
    world
        .store
        .forget(&numbered(3), Forget::IfCompleted)
        .expect("forgotten");
    let again = started(
        world
            .store
            .claim(&numbered(4), request())
            .map(|claim| match claim {
                Claim::Completed(_) => {
                    world
                        .store
                        .forget(&numbered(4), Forget::IfCompleted)
                        .expect("forgotten");
                    world.store.claim(&numbered(4), request()).expect("a claim")
                }
                other => other,
            })
            .expect("an answer"),
    );
    again.release().expect("released");
    for round in 0..5 {
        world.roll();
        world.maintain();
        for store in [&world.store, &world.killed().store] {
            for number in [3, 4] {
                let found = store.get(&numbered(number)).expect("an answer");
                assert!(
                    matches!(found, KeyState::Absent),
                    "round {round}: {found:?}"
                );
            }
            let found = store.get(&numbered(5)).expect("an answer");
            assert!(matches!(found, KeyState::Completed(_)), "round {round}");
        }
        world = world.reopen();
    }
}

/// What was found to be expired, and given up, stays so: time does not go back behind it.
#[test]
fn an_expired_result_stays_expired_when_the_clock_steps_back() {
    let mut world = World::new();
    for number in 0..4 {
        world.finish_for(&numbered(number), HOUR, response(number));
    }
    world.finish_for(&numbered(4), 2 * HOUR, response(4));
    world.roll();
    assert!(world.maintain().records_copied >= 5);
    world.clock.advance(HOUR);
    assert_eq!(world.maintain().results_expired, 4);
    let World {
        directory, store, ..
    } = world;
    let copy = killed(&store);
    drop((store, directory));
    let earlier = ManualClock::new(START_MS);
    let store = options(Durability::Sync, &earlier)
        .open(copy.path())
        .expect("reopens");
    assert!(matches!(store.get(&numbered(0)), Ok(KeyState::Absent)));
    assert!(matches!(
        store.get(&numbered(4)),
        Ok(KeyState::Completed(_))
    ));
}

/// A segment in which a record can't be read stays, and the others of the log with it; compacted
/// files go on. It is told, claims go on, and a salvage is the way out.
#[test]
fn a_damaged_record_is_told_and_stops_no_claim() {
    let mut world = World::new();
    world.finish_for(&numbered(0), HOUR, response(0));
    world.roll();
    world.maintain();
    world.finish_for(&numbered(1), 24 * HOUR, response(1));
    world.roll();
    world.roll();
    let [first, ..] = &world.files("segment-")[..] else {
        panic!("segments");
    };
    let file = world.directory.path().join(first);
    let whole = fs::read(&file).expect("a segment");
    let stands_at = whole
        .windows(11)
        .position(|bytes| bytes == b"response 1 ")
        .expect("the response");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .expect("opens");
    file.write_all_at(b"X", stands_at as u64).expect("a fault");
    world.clock.advance(HOUR);

    for passes in 1..=2 {
        match world.store.maintain() {
            Err(MaintenanceError::Damaged(corruption)) => assert_eq!(&corruption.file, first),
            other => panic!("{other:?}"),
        }
        let stats = world.store.stats().maintenance;
        assert_eq!(stats.passes_failed, passes);
        let told = stats.last_failure.expect("a failure");
        assert!(told.contains(first.as_str()), "{told}");
        assert!(world.files("segment-").contains(first));
        assert!(
            world.files("compacted-").is_empty(),
            "given up all the same"
        );
    }
    world.finish_for(&key("later"), HOUR, "later");
    let World {
        directory,
        clock,
        store,
        ..
    } = world;
    drop(store);
    let store = options(Durability::Sync, &clock)
        .recovery(Recovery::Salvage)
        .open(directory.path())
        .expect("salvaged");
    assert_eq!(store.recovery_report().losses.len(), 1);
    let report = store.maintain().expect("a pass");
    assert!(report.segments_removed >= 1, "{report:?}");
    completed(store.claim(&key("later"), request()).expect("an answer"));
}

#[test]
fn the_thread_does_it_by_itself_and_keeps_no_store_open() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let store = options(Durability::Buffered, &clock)
        .maintenance(true)
        .open(directory.path())
        .expect("a new store");
    let short = ClaimOptions::new().retention(Duration::from_secs(1));
    for number in 0..400 {
        let claim = store.claim_with(&numbered(number), request(), short.clone());
        started(claim.expect("a claim"))
            .complete(response(number))
            .expect("a completion");
    }
    clock.advance(HOUR);
    eventually("space", || {
        store.stats().maintenance.done.segments_removed >= 4
    });
    let stats = store.stats();
    assert!(stats.segments <= 3, "{stats:?}");
    assert_eq!(stats.maintenance.last_failure, None);
    drop(store);
    let store = options(Durability::Buffered, &clock)
        .open(directory.path())
        .expect("nobody has it open");
    let names = files(directory.path(), "");
    assert!(names.len() <= 3, "{names:?}");
    drop(store);
}

#[test]
fn memory_of_the_index_is_given_back_after_a_peak() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let store = options(Durability::Buffered, &clock)
        .segment_size(1 << 20)
        .open(directory.path())
        .expect("a new store");
    for number in 0..20_000 {
        let claim = store.claim(&numbered(number), request());
        started(claim.expect("a claim"))
            .complete("")
            .expect("a completion");
    }
    let peak = store.stats().index_bytes;
    store.flush().expect("durable");
    clock.advance(25 * HOUR);
    store.maintain().expect("a pass");
    let stats = store.stats();
    assert!(stats.completed_keys < 5_000, "{stats:?}");
    assert!(
        stats.index_bytes * 3 < peak,
        "{} of {peak}",
        stats.index_bytes
    );
}

#[test]
fn a_snapshot_has_the_compacted_files_and_not_what_was_given_up() {
    let mut world = World::new();
    for number in 0..10 {
        world.finish_for(&numbered(number), HOUR * 10, response(number));
    }
    world.roll();
    world.roll();
    world.maintain();
    world
        .store
        .forget(&numbered(3), Forget::IfCompleted)
        .expect("forgotten");
    let expected = answers(&world.store, 10);
    let target = directory();
    let path = target.path().join("copy");
    world.store.snapshot(&path).expect("a snapshot");
    world.clock.advance(2 * HOUR);
    world.maintain();
    let copy = options(Durability::Sync, &world.clock)
        .open(&path)
        .expect("opens");
    assert!(copy.recovery_report().clean);
    assert_eq!(answers(&copy, 10), expected);
    assert_eq!(answers(&world.store, 10), expected);
}
