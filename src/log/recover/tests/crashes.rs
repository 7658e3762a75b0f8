//! Losses of power: once, and again at every moment of the recovery.

use super::*;
use crate::fs::simulated::{Fault, FaultPlan, OperationKind};

/// What was written before the power went.
struct Scenario {
    disk: SimulatedDisk,
    records: Vec<Seen>,
    /// How many of them were durable.
    durable: usize,
}

/// A few segments, of which a part is synced.
fn scenario(granule: usize, durable: usize, unsynced: usize, holes: bool) -> Scenario {
    let disk = SimulatedDisk::with_granule(granule);
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("closed", 4);
    writer.close();
    let mut writer = Writer::open(&disk);
    records.extend(writer.append_some("durable", durable));
    writer.sync();
    let durable = records.len();
    for round in 0..unsynced {
        records.extend(writer.append_some(&format!("unsynced{round}"), 3));
        if holes && round % 2 == 0 {
            writer.leave_hole(9);
        }
    }
    Scenario {
        disk,
        records,
        durable,
    }
}

/// All that was durable, and of the rest a part without gaps.
fn assert_prefix(found: &[Seen], scenario: &Scenario, what: &str) {
    assert!(
        found.len() >= scenario.durable,
        "{what}: only {} records",
        found.len()
    );
    assert_eq!(found, &scenario.records[..found.len()], "{what}");
}

#[test]
fn whatever_survives_of_the_unsynced_pages_a_prefix_is_found() {
    for granule in [512, 4096] {
        for (durable, unsynced) in [(0, 1), (0, 12), (7, 5), (30, 20)] {
            let scenario = scenario(granule, durable, unsynced, false);
            for seed in 0..150 {
                let what = format!("{granule} {durable} {unsynced} seed {seed}");
                let disk = scenario.disk.crash_random(seed);
                let recovered = open(&disk).expect(&what);
                let found = seen(&recovered);
                assert_prefix(&found, &scenario, &what);
                drop(recovered);
                assert_settled(&disk, &found);
            }
        }
    }
}

#[test]
fn every_combination_of_surviving_pages_of_a_small_log() {
    let scenario = scenario(512, 3, 5, false);
    let pages = scenario.disk.differences().len();
    assert!(
        (6..=12).contains(&pages),
        "{:?}",
        scenario.disk.differences()
    );
    let mut lengths = std::collections::BTreeSet::new();
    for answers in 0..1_u32 << pages {
        let mut question = 0;
        let disk = scenario.disk.crash(&mut |_| {
            question += 1;
            answers >> (question - 1) & 1 == 1
        });
        let found = seen(&open(&disk).expect("a store"));
        assert_prefix(&found, &scenario, &format!("{answers:#b}"));
        lengths.insert(found.len());
    }
    assert!(lengths.len() > 3, "{lengths:?}");
    assert_eq!(lengths.last(), Some(&scenario.records.len()));
}

/// With holes a gap is possible where a reserved word survived and its record did not. Records
/// behind it still count, and all that was durable is there.
#[test]
fn with_holes_what_is_found_was_written_and_what_was_durable_is_found() {
    let scenario = scenario(512, 7, 9, true);
    for seed in 0..300 {
        let disk = scenario.disk.crash_random(seed);
        let found = seen(&open(&disk).expect("a store"));
        assert!(found.len() >= scenario.durable);
        assert_eq!(
            found[..scenario.durable],
            scenario.records[..scenario.durable]
        );
        let mut written = scenario.records.iter();
        assert!(
            found
                .iter()
                .all(|record| written.any(|other| other == record))
        );
        assert_settled(&disk, &found);
    }
}

/// Power fails once, and again at every operation of the recovery: the answers stay the same.
#[test]
fn a_second_crash_at_any_moment_of_the_recovery_changes_no_answer() {
    for holes in [false, true] {
        let scenario = scenario(512, 7, 14, holes);
        for first in 0..12 {
            let image = scenario.disk.crash_random(first);
            let settled = fork(&image);
            let expected = seen(&open(&settled).expect("a store"));
            let operations = settled.operations();
            assert!(operations > 3);
            for cut in 0..operations {
                let disk = fork(&image);
                disk.crash_at(cut);
                let error = open(&disk).expect_err("the power fails");
                assert!(matches!(error, RecoverError::Io { .. }), "{error:?}");
                for second in 0..4 {
                    let crashed = disk.crash_random(second);
                    let what = format!("holes {holes}, first {first}, cut {cut}, second {second}");
                    let recovered = open(&crashed).expect(&what);
                    assert_eq!(seen(&recovered), expected, "{what}");
                    drop(recovered);
                    assert_settled(&crashed, &expected);
                }
            }
        }
    }
}

/// A kill, and a loss of power while the next process recovers: what was never synced may go, but
/// a prefix is found and the durable part is whole.
#[test]
fn power_lost_while_recovering_from_a_kill() {
    let scenario = scenario(512, 7, 14, false);
    let operations = {
        let disk = fork(&scenario.disk);
        drop(open(&disk).expect("a store"));
        disk.operations()
    };
    for cut in 0..=operations {
        let disk = fork(&scenario.disk);
        disk.crash_at(cut);
        let done = open(&disk).is_ok();
        assert_eq!(done, cut == operations);
        for seed in 0..10 {
            let crashed = disk.crash_random(seed);
            let found = seen(&open(&crashed).expect("a store"));
            assert_prefix(&found, &scenario, &format!("cut {cut}, seed {seed}"));
            assert!(!done || found.len() == scenario.records.len());
        }
    }
}

/// After a failed sync the page cache holds what the disk does not. Whatever the next open answers
/// must be durable by then, in the segment where the log ends and in those before.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_written_again() {
    for segment_bytes in [SEGMENT_BYTES, 5 * 4096] {
        let mut scenario = scenario(512, 7, 0, false);
        let disk = fork(&scenario.disk);
        let mut writer = Writer::open_with(&disk, segment_bytes);
        scenario.records.extend(writer.append_some("lost", 80));
        let plan = FaultPlan::new(OperationKind::Sync, Fault::InputOutput).sticky();
        disk.fail(plan.drops_pages());
        for segment in &writer.segments {
            segment.sync().expect_err("a fault");
        }
        disk.heal();
        let killed = writer.kill();
        assert_ne!(
            seen(&open(&killed.crash_all_lost()).expect("a store")),
            scenario.records
        );
        let recovered = open(&killed).expect("a store");
        assert!(recovered.segments.len() > 2);
        let found = seen(&recovered);
        assert_eq!(found, scenario.records);
        drop(recovered);
        assert_settled(&killed.crash_all_lost(), &found);
    }
}

#[test]
fn a_page_lost_in_the_middle_ends_the_log_when_it_was_not_durable() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let records = writer.append_some("x", 20);
    let (name, byte) = place(&writer.disk, records[11].0);
    let disk = writer.kill();
    edit(&disk, &name, |bytes| {
        bytes[byte - byte % 512..][..512].fill(0)
    });
    let recovered = open(&disk).expect("a store");
    let found = seen(&recovered);
    let first_lost = records.iter().position(|record| {
        let (other, at) = place(&disk, record.0);
        other == name && at + 160 > byte - byte % 512
    });
    assert!(found.len() >= 8 && found.len() <= 11);
    assert!(first_lost.is_some());
    assert_eq!(found, records[..found.len()]);
    let torn = recovered.report.torn_tail.clone().expect("a torn tail");
    assert_eq!(torn.file, name);
    assert!(torn.offset <= byte as u64 && torn.bytes > 0);
    drop(recovered);
    assert_settled(&disk, &found);
}

#[test]
fn a_later_segment_is_discarded_with_the_tail_before_it() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let records = writer.append_some("x", 60);
    let disk = writer.kill();
    let names = segment_names(&disk);
    assert!(names.len() >= 3);
    let (name, byte) = place(&disk, records[4].0);
    assert_eq!(name, names[0]);
    edit(&disk, &name, |bytes| bytes[byte + 100] ^= 4);
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records[..4]);
    let torn = recovered.report.torn_tail.clone().expect("a torn tail");
    assert_eq!((torn.file, torn.offset), (name, byte as u64));
    assert_eq!(
        torn.segments,
        names.len() as u64 - 2,
        "all with records, not the empty one"
    );
    drop(recovered);
    assert_eq!(segment_names(&disk), names[..1]);
    assert_settled(&disk, &records[..4]);
}
