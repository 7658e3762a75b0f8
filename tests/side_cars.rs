//! Side-car index files: when they come, what a fault or a crash while one is written costs, and
//! that a store opened by them answers as one whose records are read.

mod support;

use std::sync::Arc;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Durability, KeyState, ManualClock, OpenError, Options, Recovery, Replay, Store};
use proptest::prelude::*;

use support::kinds::every_kind;
use support::*;

const KEYS: usize = 24;

fn options() -> Options {
    small(Durability::Sync).clock(Arc::new(ManualClock::new(START_MS)))
}

fn open(disk: &SimulatedDisk) -> Store {
    options().open_simulated(disk).expect("opens")
}

fn numbered(number: usize) -> oncekey::Key {
    key(&format!("n-{number}"))
}

fn names(disk: &SimulatedDisk, ending: &str) -> Vec<String> {
    let mut names = disk.names();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

fn without_side_cars(disk: &SimulatedDisk) -> SimulatedDisk {
    let copy = SimulatedDisk::new();
    // All at one moment: a store may be at work.
    let disk = disk.crash_none_lost();
    let is_side_car = |name: &str| name.ends_with(".idx") || name.ends_with(".idx.tmp");
    for name in disk.names().iter().filter(|name| !is_side_car(name)) {
        copy.put(name, &disk.contents(name).expect("a file"));
    }
    copy
}

/// All that a caller can see of these keys.
fn answers<'a>(store: &Store, keys: impl Iterator<Item = &'a oncekey::Key>) -> Vec<String> {
    let response = |state: &KeyState| match state {
        KeyState::Completed(saved) => match saved.by_scope() {
            Ok(Replay::Response(response)) => response.to_vec(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    keys.map(|key| {
        let state = store.get(key).expect("an answer");
        format!("{state:?} {:?}", response(&state))
    })
    .collect()
}

fn first_keys() -> Vec<oncekey::Key> {
    (0..KEYS).map(numbered).collect()
}

/// Large responses, so that segments fill up.
fn fill(store: &Store, keys: std::ops::Range<usize>) {
    for number in keys {
        finish(store, &numbered(number), vec![number as u8; 8_000]);
    }
}

#[test]
fn a_segment_that_is_full_gets_its_side_car_while_the_store_goes_on() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    fill(&store, 0..KEYS);
    assert!(names(&disk, ".log").len() > 3);
    let sealed = (KEYS * 8_000) / (64 << 10);
    eventually("the side-cars", || names(&disk, ".idx").len() >= sealed);
    // Whoever is killed now opens by them, but for the segment being written.
    let image = disk.crash_none_lost();
    let again = open(&image);
    let report = again.recovery_report();
    assert!(report.side_cars >= sealed as u64, "{report}");
    assert!(report.side_cars_missing <= 2, "{report}");
    assert!(report.side_cars_bad.is_empty(), "{report}");
    let keys = first_keys();
    assert_eq!(answers(&again, keys.iter()), answers(&store, keys.iter()));
}

#[test]
fn segments_that_a_recovery_had_to_read_get_theirs_after_it() {
    let disk = SimulatedDisk::new();
    fill(&open(&disk), 0..KEYS);
    let disk = without_side_cars(&disk);
    let store = open(&disk);
    let report = store.recovery_report();
    assert_eq!(
        (report.side_cars, report.segments),
        (0, report.side_cars_missing)
    );
    let expected = report.segments as usize;
    eventually("the side-cars", || names(&disk, ".idx").len() >= expected);
    store.close().expect("closes");
    drop(store);
    let store = open(&disk);
    let report = store.recovery_report();
    assert_eq!(
        (report.side_cars, report.bytes_scanned),
        (report.segments, 0)
    );
}

/// The operations on side-cars, one after the other, fail in every way; nothing is lost by it, and
/// no file that is half made stays.
#[test]
fn a_fault_while_a_side_car_is_written_costs_nothing_but_the_side_car() {
    let kinds = [
        OperationKind::Create,
        OperationKind::Write,
        OperationKind::Sync,
        OperationKind::Rename,
    ];
    let keys = first_keys();
    for kind in kinds {
        for fault in [Fault::NoSpace, Fault::InputOutput] {
            for happens_anyway in [false, true] {
                if happens_anyway && kind == OperationKind::Create {
                    continue;
                }
                let what = format!("{kind:?} {fault:?} {happens_anyway}");
                let disk = SimulatedDisk::new();
                let store = open(&disk);
                fill(&store, 0..3);
                let segment = names(&disk, ".log").first().cloned().expect("a segment");
                let name = segment.replace(".log", ".idx");
                let plan = FaultPlan::new(kind, fault).on(name.clone()).sticky();
                disk.fail(if happens_anyway {
                    plan.happens_anyway()
                } else {
                    plan
                });
                store.close().expect("side-cars are no reason to fail");
                drop(store);
                assert!(!disk.struck().is_empty(), "{what}");
                disk.heal();
                assert!(names(&disk, ".idx.tmp").is_empty(), "{what}");
                let store = open(&disk);
                let report = store.recovery_report();
                assert!(
                    report.clean && report.side_cars_bad.is_empty(),
                    "{what}: {report}"
                );
                let scanned = open(&without_side_cars(&disk));
                assert_eq!(
                    answers(&store, keys.iter()),
                    answers(&scanned, keys.iter()),
                    "{what}"
                );
                eventually("the side-car", || names(&disk, ".idx").contains(&name));
            }
        }
    }
}

/// Power goes at every operation of a close, the writing of side-cars included, with all, none and
/// some of the unsynced pages and names on the disk: a side-car that is there is whole and true.
#[test]
fn power_lost_while_a_side_car_is_written_leaves_a_whole_one_or_none() {
    let keys = first_keys();
    let (mut with, mut without) = (0, 0);
    for number in 0.. {
        let disk = SimulatedDisk::with_granule(512);
        let store = prepared(open(&disk));
        fill(&store, 0..3);
        let before = answers(&store, keys.iter());
        disk.crash_at(disk.operations() + number);
        let closed = store.close();
        drop(store);
        let lost_power = disk.has_lost_power();
        let images = [disk.crash_all_lost(), disk.crash_none_lost()];
        for image in images
            .into_iter()
            .chain((0..6).map(|seed| disk.crash_random(seed)))
        {
            let store = open(&image);
            let report = store.recovery_report();
            assert!(
                report.side_cars_bad.is_empty(),
                "cut off at {number}: {report}"
            );
            assert_eq!(answers(&store, keys.iter()), before, "cut off at {number}");
            with += report.side_cars;
            without += report.side_cars_missing;
        }
        if closed.is_ok() && !lost_power {
            break;
        }
        assert!(number < 100, "the close goes on for ever");
    }
    assert!(with > 0 && without > 0, "{with} and {without}");
}

#[test]
fn a_side_car_that_is_not_believed_is_told_and_made_again() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    fill(&store, 0..3);
    store.close().expect("closes");
    drop(store);
    let [name] = &names(&disk, ".idx")[..] else {
        panic!("one side-car");
    };
    let good = disk.contents(name).expect("a file");
    let mut bad = good.clone();
    *bad.last_mut().expect("bytes") ^= 1;
    for bytes in [
        bad,
        Vec::new(),
        good[..good.len() - 8].to_vec(),
        vec![0; 8_192],
    ] {
        disk.put(name, &bytes);
        let store = open(&disk);
        let report = store.recovery_report();
        assert_eq!(report.side_cars_bad.len(), 1, "{report}");
        assert_eq!(&report.side_cars_bad[0].file, name);
        assert!(report.bytes_scanned > 0);
        eventually("a new one", || disk.contents(name).as_ref() == Some(&good));
    }
}

/// What a salvage changed has other records than its side-car says: it goes before the change.
/// The file is shorter than what its side-car says of it: that is told when the store is opened, by
/// name, and no page behind the end is ever touched.
#[test]
fn a_segment_that_was_cut_after_its_side_car_was_written_is_told() {
    let directory = directory();
    let options = || options().maintenance(false);
    let store = options().open(directory.path()).expect("a store");
    fill(&store, 0..KEYS);
    let keys = first_keys();
    let expected = answers(&store, keys.iter());
    store.close().expect("closes");
    drop(store);
    let list = || std::fs::read_dir(directory.path()).expect("a list");
    let path_of = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").path();
    let side_cars = list().map(path_of);
    let side_cars: Vec<_> = side_cars
        .filter(|path| path.extension().is_some_and(|end| end == "idx"))
        .collect();
    assert!(side_cars.len() >= 3, "{side_cars:?}");
    let mut told = 0;
    'segments: for side_car in side_cars {
        let segment = side_car.with_extension("log");
        let whole = std::fs::read(&segment).expect("a segment");
        let len = whole.len();
        for cut in [
            0,
            8,
            4_096,
            len / 2,
            len / 4_096 * 2_048,
            len - 4_096,
            len - 8,
        ] {
            std::fs::write(&segment, &whole[..cut]).expect("cut");
            match options().open(directory.path()) {
                Err(OpenError::Corrupt { corruption, .. }) => {
                    let name = segment.file_name().expect("a name");
                    assert!(
                        corruption.file.ends_with(&*name.to_string_lossy()),
                        "{corruption}"
                    );
                    told += 1;
                }
                // Nothing but zeros was cut off behind the end of the log.
                Ok(store) if len - cut < 4_096 => {
                    assert_eq!(
                        store.recovery_report().side_cars_bad.len(),
                        1,
                        "{cut} of {len}"
                    );
                    assert_eq!(answers(&store, keys.iter()), expected, "{cut} of {len}");
                    continue 'segments;
                }
                other => panic!("{cut} of {len}: {other:?}"),
            }
            assert!(side_car.exists(), "a refused open changes nothing");
        }
        std::fs::write(&segment, &whole).expect("as it was");
    }
    assert!(told >= 20, "{told}");
    let store = options().open(directory.path()).expect("opens");
    assert_eq!(answers(&store, keys.iter()), expected);
}

#[test]
fn a_side_car_does_not_outlive_the_segment_that_a_salvage_changes() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    fill(&store, 0..3);
    store.close().expect("closes");
    drop(store);
    let segment = &names(&disk, ".log")[0];
    let side_car = segment.replace(".log", ".idx");
    let before = disk.contents(&side_car).expect("a side-car");
    let mut bytes = disk.contents(segment).expect("a segment");
    bytes[4_096 + 40] ^= 1;
    disk.put(segment, &bytes);
    for number in 0.. {
        let image = disk.crash_none_lost();
        image.crash_at(image.operations() + number);
        let salvaged = options().recovery(Recovery::Salvage).open_simulated(&image);
        let is_open = salvaged.is_ok();
        drop(salvaged);
        let lost_power = image.has_lost_power();
        for image in [image.crash_all_lost(), image.crash_none_lost()] {
            let changed = image.contents(segment).as_ref() != Some(&bytes);
            let stays = image.contents(&side_car).as_ref() == Some(&before);
            assert!(!(changed && stays), "cut off at {number}");
        }
        if is_open && !lost_power {
            break;
        }
        assert!(number < 200, "the salvage goes on for ever");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Complete(usize, usize),
    Leave(usize),
    Note(usize),
    Release(usize),
    Forget(usize),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS;
    let step = prop_oneof![
        4 => (key.clone(), 0..9_000_usize).prop_map(|(key, bytes)| Step::Complete(key, bytes)),
        2 => key.clone().prop_map(Step::Leave),
        2 => key.clone().prop_map(Step::Note),
        1 => key.clone().prop_map(Step::Release),
        2 => key.prop_map(Step::Forget),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..80)
}

fn take(store: &Store, number: usize) -> Option<oncekey::Operation> {
    match store.claim(&numbered(number), request()).expect("a claim") {
        oncekey::Claim::Started(operation) => Some(operation),
        oncekey::Claim::Interrupted(operation) => Some(operation),
        _ => None,
    }
}

fn step(store: &Store, step: &Step) {
    match *step {
        Step::Complete(number, bytes) => {
            if let Some(operation) = take(store, number) {
                operation.complete(vec![7; bytes]).expect("completes");
            }
        }
        Step::Leave(number) => drop(take(store, number)),
        Step::Note(number) => {
            if let Some(mut operation) = take(store, number) {
                operation.checkpoint(b"a note").expect("a note");
            }
        }
        Step::Release(number) => {
            if let Some(operation) = take(store, number) {
                operation.release().expect("a release");
            }
        }
        Step::Forget(number) => {
            let forgotten = store.forget(&numbered(number), oncekey::Forget::IfCompleted);
            drop(forgotten);
        }
        Step::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The same log, opened by side-cars, by some of them, and by its records.
    #[test]
    fn a_store_answers_the_same_by_its_side_cars_and_by_its_records(
        steps in steps(),
        kept in any::<u32>(),
    ) {
        let disk = SimulatedDisk::new();
        let mut store = open(&disk);
        for each in &steps {
            if matches!(each, Step::Reopen) {
                store.close().expect("closes");
                drop(store);
                store = open(&disk);
            }
            step(&store, each);
        }
        store.close().expect("closes");
        drop(store);
        let some = without_side_cars(&disk);
        for (number, name) in names(&disk, ".idx").iter().enumerate() {
            if kept >> (number % 32) & 1 == 1 {
                some.put(name, &disk.contents(name).expect("a file"));
            }
        }
        let scanned = open(&without_side_cars(&disk));
        prop_assert_eq!(scanned.recovery_report().side_cars, 0);
        let keys = first_keys();
        let expected = answers(&scanned, keys.iter());
        let indexed = open(&disk);
        prop_assert_eq!(indexed.recovery_report().bytes_scanned, 0);
        for store in [indexed, open(&some)] {
            prop_assert_eq!(&answers(&store, keys.iter()), &expected);
            let (one, other) = (store.stats(), scanned.stats());
            prop_assert_eq!(one.completed_keys, other.completed_keys);
            prop_assert_eq!(one.interrupted_keys, other.interrupted_keys);
            let notes = |store: &Store| {
                let mut keys: Vec<_> = store.interrupted().expect("a list");
                keys.sort_by_key(|each| each.token.as_u64());
                format!("{keys:?}")
            };
            prop_assert_eq!(notes(&store), notes(&scanned));
        }
    }
}

/// Every kind of record, beside the number of records that a scan counts.
#[test]
fn reports_say_the_same_of_a_log_whichever_way_it_was_read() {
    let disk = SimulatedDisk::new();
    let clock = ManualClock::new(START_MS);
    let store = small(Durability::Sync).clock(Arc::new(clock.clone()));
    let store = store.open_simulated(&disk).expect("opens");
    drop(every_kind(&store, &clock, "k"));
    store.close().expect("closes");
    drop(store);
    let report = |disk: &SimulatedDisk| {
        let store = small(Durability::Sync).clock(Arc::new(clock.clone()));
        let store = store.open_simulated(disk).expect("opens");
        let report = store.recovery_report().clone();
        (
            report.clean,
            report.records,
            report.segments,
            report.interrupted,
        )
    };
    let scanned = report(&without_side_cars(&disk));
    assert_eq!(report(&disk), scanned);
    assert!(scanned.1 > 20);
}
