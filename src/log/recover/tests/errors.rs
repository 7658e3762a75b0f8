//! I/O errors, at every operation of a recovery.

use super::*;
use crate::fs::simulated::{Fault, FaultPlan, OperationKind};

/// An error while reading is an error, and never the end of the log.
#[test]
fn an_error_while_reading_is_reported_and_changes_nothing() {
    let (closed, records) = closed_store();
    let mut writer = Writer::open(&fork(&closed));
    let mut unclean_records = records.clone();
    unclean_records.extend(writer.append_some("more", 20));
    let unclean = writer.kill();
    let kinds = [
        OperationKind::List,
        OperationKind::Open,
        OperationKind::Read,
        OperationKind::Map,
    ];
    for (image, records) in [(&closed, &records), (&unclean, &unclean_records)] {
        for kind in kinds {
            for after in 0.. {
                let disk = fork(image);
                disk.fail(FaultPlan::new(kind, Fault::InputOutput).after(after));
                match open(&disk) {
                    Err(RecoverError::Io { source, .. }) => {
                        assert_eq!(source.raw_os_error(), Some(5), "{kind:?} {after}");
                    }
                    Err(other) => panic!("{kind:?} {after}: {other:?}"),
                    Ok(recovered) => {
                        assert!(after > 0);
                        assert_eq!(&seen(&recovered), records);
                        break;
                    }
                }
                disk.heal();
                assert_settled_after(&disk, records);
            }
        }
    }
}

#[test]
fn an_error_while_repairing_is_reported_and_the_next_open_ends_it() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let mut records = writer.append_some("durable", 9);
    writer.sync();
    records.extend(writer.append_some("not", 30));
    writer.leave_hole(4);
    records.extend(writer.append_some("more", 3));
    let image = writer.kill();
    let kinds = [
        OperationKind::Write,
        OperationKind::Sync,
        OperationKind::SyncDirectory,
        OperationKind::Remove,
        OperationKind::SetLen,
    ];
    for kind in kinds {
        for (after, anyway) in (0..).flat_map(|after| [(after, false), (after, true)]) {
            let disk = fork(&image);
            let plan = FaultPlan::new(kind, Fault::InputOutput).after(after);
            disk.fail(if anyway { plan.happens_anyway() } else { plan });
            match open(&disk) {
                Err(RecoverError::Io { .. }) => {}
                Err(other) => panic!("{kind:?} {after}: {other:?}"),
                Ok(recovered) => {
                    assert_eq!(seen(&recovered), records);
                    break;
                }
            }
            disk.heal();
            assert_settled_after(&disk, &records);
        }
    }
}

/// A new store whose making fails is made by the next open.
#[test]
fn a_store_that_could_not_be_made_can_be_made_later() {
    for after in 0..2 {
        for kind in [
            OperationKind::Create,
            OperationKind::Write,
            OperationKind::Rename,
        ] {
            let disk = SimulatedDisk::new();
            disk.fail(FaultPlan::new(kind, Fault::NoSpace).after(after));
            let failed = open(&disk).is_err();
            disk.heal();
            assert_eq!(failed, after == 0 || kind == OperationKind::Write);
            assert_eq!(seen(&open(&disk).expect("a store")), []);
        }
    }
}

/// META is rewritten in place and segments shrink: nothing in a recovery needs space.
#[test]
fn a_full_disk_can_be_opened() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let mut records = writer.append_some("durable", 9);
    writer.sync();
    records.extend(writer.append_some("not", 31));
    let disk = writer.kill();
    edit(&disk, "META", |bytes| bytes[20] ^= 1);
    disk.capacity(0);
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    drop(recovered);
    assert_settled(&disk, &records);
}

fn assert_settled_after(disk: &SimulatedDisk, records: &[Seen]) {
    let recovered = open(disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    drop(recovered);
    assert_settled(disk, records);
}
