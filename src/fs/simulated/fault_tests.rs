//! Tests of the simulated disk: states that it keeps, faults at any call, in part, at a byte.

use super::*;
use crate::fs::{Storage, StorageFile};

fn file(disk: &SimulatedDisk, contents: &[u8]) -> Arc<dyn StorageFile> {
    disk.put("file", contents);
    disk.open("file").expect("a file")
}

#[test]
fn states_are_kept_as_they_were_before_each_operation() {
    let disk = SimulatedDisk::with_granule(8);
    let file = file(&disk, &[0; 16]);
    assert!(disk.take_states().is_empty(), "not asked for");
    disk.keep_states();
    file.write_at(0, &[1; 8]).expect("a write");
    file.sync_data().expect("a sync");
    file.write_at(8, &[2; 8]).expect("a write");
    disk.remove("file").expect("a removal");
    let states = disk.take_states();
    assert!(disk.take_states().is_empty(), "taken");
    let numbers: Vec<u64> = states.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let [.., last] = &states[..] else { panic!() };
    let found = |disk: &SimulatedDisk| disk.contents("file").map(|bytes| (bytes[0], bytes[8]));
    let live: Vec<_> = states.iter().map(|(_, state)| found(state)).collect();
    assert_eq!(
        live,
        [Some((0, 0)), Some((1, 0)), Some((1, 0)), Some((1, 2))]
    );
    let durable: Vec<_> = states
        .iter()
        .map(|(_, state)| found(&state.crash_all_lost()))
        .collect();
    assert_eq!(
        durable,
        [Some((0, 0)), Some((0, 0)), Some((1, 0)), Some((1, 0))]
    );
    // Independent of the disk they come from, and keeping nothing themselves.
    last.1.remove("file").expect("still there");
    assert!(last.1.take_states().is_empty());
    assert_eq!(last.1.operations(), 1);
}

#[test]
fn a_restless_disk_writes_pages_back_early_and_the_same_ones_each_time() {
    let run = |seed| {
        let disk = SimulatedDisk::with_granule(8);
        let file = file(&disk, &[0; 512]);
        disk.restless(seed);
        for value in 1..4 {
            file.write_at(0, &[value; 512]).expect("a write");
        }
        disk.crash_all_lost().contents("file").expect("a file")
    };
    let survived = run(7);
    for value in 0..3 {
        assert!(survived.contains(&value), "{value} nowhere");
    }
    assert!(
        !survived.contains(&3),
        "written last, with nothing after it"
    );
    assert_eq!(run(7), survived);
    assert_ne!(run(8), survived);
}

#[test]
fn any_call_can_fail_and_is_told_of() {
    use OperationKind::*;
    let calls = |disk: &SimulatedDisk| -> io::Result<()> {
        disk.list()?;
        let file = disk.open("file")?;
        file.read_at(0, &mut [0; 4])?;
        file.write_at(0, b"1")?;
        file.sync_data()?;
        file.map(false)?;
        disk.sync_directory()
    };
    let kinds = [List, Open, Read, Write, Sync, Map, SyncDirectory];
    for (number, kind) in kinds.into_iter().enumerate() {
        let disk = SimulatedDisk::new();
        file(&disk, b"0000");
        let already = disk.struck().len();
        disk.fail(FaultPlan::any(Fault::NoSpace).after(number as u64 + 1));
        drop(disk.list());
        let error = calls(&disk).expect_err("one fails");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let struck = disk.struck();
        assert_eq!((already, struck.len()), (0, 1));
        assert_eq!((struck[0].kind, struck[0].succeeded), (kind, false));
        calls(&disk).expect("once only");
    }
}

#[test]
fn a_short_write_leaves_what_it_wrote() {
    let disk = SimulatedDisk::new();
    let file = file(&disk, b"........");
    let plan = || FaultPlan::new(OperationKind::Write, Fault::InputOutput);
    disk.fail(plan().short(3));
    file.write_at(2, b"abcdef").expect_err("cut off");
    assert_eq!(disk.contents("file").expect("there"), b"..abc...");
    disk.fail(plan().short(100));
    file.write_at(6, b"xyz").expect_err("reported");
    assert_eq!(disk.contents("file").expect("there"), b"..abc.xyz");
}

#[test]
fn a_bad_byte_fails_what_touches_it_and_nothing_else() {
    let disk = SimulatedDisk::new();
    let file = file(&disk, &[0; 100]);
    let plan = FaultPlan::new(OperationKind::Read, Fault::InputOutput);
    disk.fail(plan.on("file").at_byte(50).sticky());
    let read = |from, len: usize| file.read_at(from, &mut vec![0; len]).is_ok();
    assert!(read(0, 50) && read(51, 49));
    assert!(!read(0, 51) && !read(50, 1) && !read(0, 100));
    file.write_at(0, &[1; 100]).expect("only reads");
    disk.fail(FaultPlan::any(Fault::InputOutput).at_byte(50));
    file.sync_data().expect("touches no byte in particular");
    file.write_at(40, &[2; 20]).expect_err("the byte is in it");
}

#[test]
fn a_lie_about_a_sync_is_reported_as_done() {
    let disk = SimulatedDisk::new();
    let file = file(&disk, b"old");
    file.write_at(0, b"new").expect("a write");
    for kind in [OperationKind::Sync, OperationKind::SyncDirectory] {
        disk.fail(FaultPlan::new(kind, Fault::InputOutput).lies());
    }
    disk.rename("file", "other").expect("a rename");
    disk.sync_directory().expect("says the disk");
    file.sync_data().expect("says the disk");
    let lost = disk.crash_all_lost();
    assert_eq!(lost.contents("file"), Some(b"old".to_vec()));
    file.sync_data().expect("the truth");
    let lost = disk.crash_all_lost();
    assert_eq!(lost.contents("file"), Some(b"new".to_vec()));
    assert!(disk.log().iter().all(|operation| operation.succeeded));
}

#[test]
fn a_lost_power_is_told_of() {
    let disk = SimulatedDisk::new();
    let file = file(&disk, b"0");
    disk.crash_at(1);
    file.write_at(0, b"1").expect("before");
    assert!(!disk.has_lost_power());
    file.write_at(0, b"2").expect_err("no power");
    assert!(disk.has_lost_power());
}
