//! I/O errors, at every operation of a recovery.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::fs::simulated::{Fault, FaultPlan, OperationKind};
use crate::fs::{FileEntry, StorageFile};
use crate::sync::Ordering;
use parking_lot::Mutex;

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

/// A disk whose page cache drops one clean page of a segment between the scan and the repair, so
/// that what an earlier sync failed to write is gone.
#[derive(Debug)]
struct Forgetful {
    disk: SimulatedDisk,
    page: u64,
    /// How often each segment was mapped, through whichever descriptor.
    maps: Mutex<HashMap<String, Arc<AtomicU64>>>,
}

#[derive(Debug)]
struct ForgetfulFile {
    file: Arc<dyn StorageFile>,
    page: u64,
    maps: Arc<AtomicU64>,
}

impl Storage for Forgetful {
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        self.disk.list()
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        self.disk.create(name, len)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.disk.open(name)?;
        if !name.starts_with("segment") {
            return Ok(file);
        }
        Ok(Arc::new(ForgetfulFile {
            file,
            page: self.page,
            maps: Arc::clone(self.maps.lock().entry(name.to_owned()).or_default()),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
}

impl StorageFile for ForgetfulFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.maps.load(Ordering::Relaxed) == 1 {
            self.maps.store(2, Ordering::Relaxed);
            self.file.write_at(self.page * 4096, &[0; 4096])?;
        }
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn map(&self, populate: bool) -> io::Result<Memory> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        self.file.map(populate)
    }
}

#[test]
fn a_page_that_the_cache_drops_during_recovery_is_not_answered_from() {
    for page in 1..=3 {
        let mut writer = Writer::open_with(&SimulatedDisk::new(), 5 * 4096);
        let records = writer.append_some("x", 70);
        assert!(writer.tail() - writer.active().base > 3 * 512);
        let disk = writer.kill();
        let forgetful = Forgetful {
            disk: disk.clone(),
            page,
            maps: Mutex::default(),
        };
        match recover(&forgetful, false, 0) {
            Err(RecoverError::Io { file, source }) => {
                assert!(file.starts_with("segment"), "{file}");
                assert!(
                    source.to_string().contains("open the store again"),
                    "{source}"
                );
            }
            other => panic!("{other:?}"),
        }
        let recovered = open(&disk).expect("a store");
        let found = seen(&recovered);
        assert!(found.len() < records.len());
        assert_eq!(found, records[..found.len()]);
        drop(recovered);
        assert_settled(&disk, &found);
    }
}
