//! META: what the store knows about itself, in two slots written in turn.
//!
//! Each slot is a page of its own. An update writes the slot that does not count, syncs, and only
//! then lets it count: whatever happens to it, the other one is whole. The valid slot with the
//! higher serial counts. The file has both slots from the start, so an update needs no space, and a
//! full disk can be opened.
//!
//! A new META is written as [`META_PREPARING`], synced and renamed, so that a file called META is
//! always whole. Only the thread that holds the log's plan (or recovery, before there are threads)
//! updates it.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::corruption::Damage;
use crate::fs::{Storage, StorageFile};
use crate::log::header::{PAGE_BYTES, PageFault, PageReader, PageWriter};
use crate::log::members::Members;
use crate::log::position;
use crate::sync::os::fill_random;

/// Name of the file.
pub(crate) const META: &str = "META";
/// Its name while it is being made.
pub(crate) const META_PREPARING: &str = "META.tmp";

const MAGIC: &[u8; 8] = b"ONCEKEYM";
const SLOTS: usize = 2;
const FILE_BYTES: u64 = (SLOTS * PAGE_BYTES) as u64;

/// Offset of each field in a slot, in bytes. Magic, version and checksum are the page's.
mod at {
    pub(super) const SERIAL: usize = 16;
    pub(super) const STORE_ID: usize = 24;
    pub(super) const SECRET: usize = 40;
    pub(super) const EPOCH: usize = 72;
    pub(super) const HIGH_WATER: usize = 80;
    pub(super) const WATERMARK: usize = 88;
    pub(super) const RESTORED: usize = 96;
    pub(super) const CREATED: usize = 104;
    pub(super) const CLEAN: usize = 112;
    pub(super) const SNAPSHOT: usize = 113;
}

// The table in docs/format.md, field by field: each begins where the one before it ends.
const _: () = {
    assert!(at::SERIAL == 16 && at::STORE_ID == at::SERIAL + 8);
    assert!(at::SECRET == at::STORE_ID + 16 && at::EPOCH == at::SECRET + 32);
    assert!(at::HIGH_WATER == at::EPOCH + 8 && at::WATERMARK == at::HIGH_WATER + 8);
    assert!(at::RESTORED == at::WATERMARK + 8 && at::CREATED == at::RESTORED + 8);
    assert!(at::CLEAN == at::CREATED + 8 && at::CLEAN == 112);
    assert!(at::SNAPSHOT == at::CLEAN + 1);
};

/// What META holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) store_id: u128,
    pub(crate) secret: [u8; 32],
    /// The newest epoch in which positions may have been given out.
    pub(crate) epoch: u64,
    /// Store time in ms that was reached for sure.
    pub(crate) high_water_ms: u64,
    /// Everything below was durable when this was written; the end of the log if `clean`.
    pub(crate) watermark: u64,
    /// Closed properly.
    pub(crate) clean: bool,
    /// A snapshot that was not opened yet: the original may have gone on since.
    pub(crate) snapshot: bool,
    /// Store time in ms of the newest restore, 0 if there was none.
    pub(crate) restored_at_ms: u64,
    /// Store time in ms.
    pub(crate) created_ms: u64,
    /// The files that count.
    pub(crate) members: Members,
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("Meta")
            .field("store_id", &format_args!("{:032x}", self.store_id))
            .field("epoch", &self.epoch)
            .field("high_water_ms", &self.high_water_ms)
            .field("watermark", &format_args!("{:#x}", self.watermark))
            .field("clean", &self.clean)
            .field("snapshot", &self.snapshot)
            .field("restored_at_ms", &self.restored_at_ms)
            .field("created_ms", &self.created_ms)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Meta {
    /// A new store's, with an identity and secrets nobody else has.
    ///
    /// # Errors
    ///
    /// When the system gives no random bytes.
    pub(crate) fn fresh(now_ms: u64) -> io::Result<Self> {
        let mut store_id = [0; 16];
        let mut secret = [0; 32];
        for bytes in [&mut store_id[..], &mut secret[..]] {
            fill_random(bytes).map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(Self {
            store_id: u128::from_le_bytes(store_id),
            secret,
            epoch: 0,
            high_water_ms: 0,
            watermark: 0,
            clean: true,
            snapshot: false,
            restored_at_ms: 0,
            created_ms: now_ms,
            members: Members::default(),
        })
    }

    fn encode(&self, serial: u64) -> [u8; PAGE_BYTES] {
        let mut page = PageWriter::new(MAGIC);
        page.put(at::SERIAL, &serial.to_le_bytes());
        page.put(at::STORE_ID, &self.store_id.to_le_bytes());
        page.put(at::SECRET, &self.secret);
        page.put(at::EPOCH, &self.epoch.to_le_bytes());
        page.put(at::HIGH_WATER, &self.high_water_ms.to_le_bytes());
        page.put(at::WATERMARK, &self.watermark.to_le_bytes());
        page.put(at::RESTORED, &self.restored_at_ms.to_le_bytes());
        page.put(at::CREATED, &self.created_ms.to_le_bytes());
        page.put(at::CLEAN, &[u8::from(self.clean)]);
        page.put(at::SNAPSHOT, &[u8::from(self.snapshot)]);
        self.members.put(&mut page);
        page.finish()
    }

    fn decode(bytes: &[u8]) -> Result<(u64, Self), PageFault> {
        let page = PageReader::open(MAGIC, bytes)?;
        let [clean] = page.field(at::CLEAN);
        let [snapshot] = page.field(at::SNAPSHOT);
        let meta = Self {
            store_id: u128::from_le_bytes(page.field(at::STORE_ID)),
            secret: page.field(at::SECRET),
            epoch: page.u64(at::EPOCH),
            high_water_ms: page.u64(at::HIGH_WATER),
            watermark: page.u64(at::WATERMARK),
            clean: clean == 1,
            snapshot: snapshot == 1,
            restored_at_ms: page.u64(at::RESTORED),
            created_ms: page.u64(at::CREATED),
            members: Members::read(&page),
        };
        let fault = |field| Err(PageFault::Damaged(Damage::Field(field)));
        if clean > 1 {
            return fault("clean mark");
        }
        if snapshot > 1 {
            return fault("snapshot mark");
        }
        if meta.epoch > position::EPOCH_MAX {
            return fault("epoch");
        }
        // All epochs up to this one may be in use, none behind it.
        if position::epoch_of(meta.watermark) > meta.epoch {
            return fault("watermark");
        }
        if let Some(field) = meta.members.fault(meta.epoch) {
            return fault(field);
        }
        // No update counts up to this one.
        let serial = page.u64(at::SERIAL);
        if serial == u64::MAX {
            return fault("serial");
        }
        Ok((serial, meta))
    }
}

/// Why META cannot be used.
#[derive(Debug)]
pub(crate) enum MetaError {
    /// The system reported an error.
    Io(io::Error),
    /// Both slots are bad; why, in order.
    Damaged([Damage; SLOTS]),
    /// Written by a later version of the format (or one that never was).
    Version(u32),
}

/// META, open for updates.
#[derive(Debug)]
pub(crate) struct MetaFile {
    file: Arc<dyn StorageFile>,
    meta: Meta,
    serial: u64,
    /// The slot that counts.
    slot: usize,
    /// Why the other slot could not be read, until it is written again.
    bad_slot: Option<Damage>,
    /// Whether the slot that counts is known to be on the disk, and not in the cache alone.
    durable: bool,
}

impl MetaFile {
    /// Makes META durably, replacing one that may be there.
    ///
    /// # Errors
    ///
    /// What the storage says; there is then either no META or the earlier one.
    pub(crate) fn create(storage: &dyn Storage, meta: Meta) -> io::Result<Self> {
        match storage.remove(META_PREPARING) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = storage.create(META_PREPARING, FILE_BYTES)?;
        for (slot, serial) in [(0, 1), (1, 2)] {
            file.write_at(slot * PAGE_BYTES as u64, &meta.encode(serial))?;
        }
        file.sync_data()?;
        storage.rename(META_PREPARING, META)?;
        storage.sync_directory()?;
        Ok(Self {
            file,
            meta,
            serial: 2,
            slot: 1,
            bad_slot: None,
            durable: true,
        })
    }

    /// Reads META.
    ///
    /// # Errors
    ///
    /// [`MetaError`]; one bad slot is none, see [`Self::bad_slot`].
    pub(crate) fn load(storage: &dyn Storage) -> Result<Self, MetaError> {
        let file = storage.open(META).map_err(MetaError::Io)?;
        let len = file.len().map_err(MetaError::Io)?;
        let first = read_slot(file.as_ref(), len, 0)?;
        let second = read_slot(file.as_ref(), len, 1)?;
        // Even the older slot: a later version that wrote one may have left the other as it was.
        for slot in [&first, &second] {
            if let Err(PageFault::Version(version)) = slot {
                return Err(MetaError::Version(*version));
            }
        }
        let (slot, (serial, meta), bad_slot) = match (first, second) {
            (Ok(first), Ok(second)) if first.0 > second.0 => (0, first, None),
            (Ok(_), Ok(second)) => (1, second, None),
            (Ok(first), Err(fault)) => (0, first, Some(damage(fault))),
            (Err(fault), Ok(second)) => (1, second, Some(damage(fault))),
            (Err(first), Err(second)) => {
                return Err(MetaError::Damaged([damage(first), damage(second)]));
            }
        };
        Ok(Self {
            file,
            meta,
            serial,
            slot,
            bad_slot,
            durable: false,
        })
    }

    /// What counts.
    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Why one slot could not be read, until an update has written it again. It may have been the
    /// newer one.
    pub(crate) fn bad_slot(&self) -> Option<Damage> {
        self.bad_slot
    }

    /// Makes durable what was read: a process that was killed in an update may have left it in the
    /// cache alone. To be done before anything goes that only this META gives up.
    ///
    /// Written once more and not only synced, since a sync that failed may have left it in the
    /// cache as clean. Into its own slot: the other one is what the disk holds meanwhile.
    ///
    /// # Errors
    ///
    /// What the storage says.
    pub(crate) fn make_durable(&mut self) -> io::Result<()> {
        if self.durable {
            return Ok(());
        }
        let page = self.meta.encode(self.serial);
        self.file.write_at((self.slot * PAGE_BYTES) as u64, &page)?;
        self.file.sync_data()?;
        self.durable = true;
        Ok(())
    }

    /// Changes META durably.
    ///
    /// # Errors
    ///
    /// What the storage says. Nothing has changed then, neither here nor, as far as the next open
    /// is concerned, on the disk, unless the new slot made it there all the same.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        // Two slots in doubt at once could both be lost.
        self.make_durable()?;
        let mut meta = self.meta.clone();
        change(&mut meta);
        assert!(
            meta.epoch <= position::EPOCH_MAX,
            "an epoch of more than 28 bits"
        );
        assert!(
            position::epoch_of(meta.watermark) <= meta.epoch,
            "a watermark above the epoch"
        );
        assert_eq!(meta.members.fault(meta.epoch), None, "{:?}", meta.members);
        // What counts is told by the serial: one that can't be read back would bring the other slot
        // up again.
        let serial = self.serial.saturating_add(1);
        if serial == u64::MAX {
            return Err(io::Error::other("META has no higher serial left"));
        }
        let slot = SLOTS - 1 - self.slot;
        // Also counted up when it fails: whatever of a failed write reached the disk, the next one
        // is the newer.
        self.serial = serial;
        self.file
            .write_at((slot * PAGE_BYTES) as u64, &meta.encode(self.serial))?;
        self.file.sync_data()?;
        self.meta = meta;
        self.slot = slot;
        self.bad_slot = None;
        Ok(())
    }
}

fn read_slot(
    file: &dyn StorageFile,
    len: u64,
    slot: u64,
) -> Result<Result<(u64, Meta), PageFault>, MetaError> {
    let offset = slot * PAGE_BYTES as u64;
    if len < offset + PAGE_BYTES as u64 {
        return Ok(Err(PageFault::Damaged(Damage::Truncated)));
    }
    let mut page = [0; PAGE_BYTES];
    file.read_at(offset, &mut page).map_err(MetaError::Io)?;
    Ok(Meta::decode(&page))
}

fn damage(fault: PageFault) -> Damage {
    match fault {
        PageFault::Damaged(damage) => damage,
        // Sorted out before.
        PageFault::Version(_) => Damage::Field("version"),
    }
}

/// The watermark in a slot that is being written, for models.
#[cfg(all(test, oncekey_loom))]
pub(crate) fn watermark_in(slot: &[u8]) -> u64 {
    let (_, meta) = Meta::decode(slot).expect("a whole slot");
    meta.watermark
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::simulated::{Fault, FaultPlan, OperationKind, SimulatedDisk};

    fn fresh() -> Meta {
        Meta::fresh(77).expect("random bytes")
    }

    #[test]
    fn what_is_written_is_read() {
        let disk = SimulatedDisk::new();
        let mut meta = Meta {
            epoch: 5,
            high_water_ms: 6,
            watermark: position::first_position(5) + 7,
            clean: false,
            snapshot: true,
            restored_at_ms: 8,
            ..fresh()
        };
        let mut file = MetaFile::create(&disk, meta.clone()).expect("META");
        assert_eq!(disk.contents(META).expect("META").len(), 8192);
        for epoch in 6..12 {
            file.update(|meta| meta.epoch = epoch).expect("an update");
            meta.epoch = epoch;
            assert_eq!(file.meta(), &meta);
            let loaded = MetaFile::load(&disk).expect("META");
            assert_eq!((loaded.meta(), loaded.bad_slot()), (&meta, None));
        }
        assert_eq!(disk.names(), [META]);
    }

    /// Torn into words of 8 bytes, at every moment: old or new, and the slot that counts is whole.
    #[test]
    fn an_update_that_power_cuts_off_happened_or_did_not() {
        let mut seen = [0; 2];
        for cut in 0..4 {
            for seed in 0..100 {
                let disk = SimulatedDisk::with_granule(8);
                let mut file = MetaFile::create(&disk, fresh()).expect("META");
                // A new META says the same in both slots: only from here on does it matter which
                // of them is written.
                for epoch in 1..=1 + seed % 2 {
                    file.update(|meta| meta.epoch = epoch).expect("an update");
                }
                let start = disk.operations();
                disk.crash_at(start + cut);
                let old = file.meta().clone();
                let done = file
                    .update(|meta| {
                        meta.epoch = 9;
                        meta.high_water_ms = u64::MAX;
                    })
                    .is_ok();
                let crashed = disk.crash_random(seed);
                let loaded = MetaFile::load(&crashed).expect("one slot is whole");
                let new = loaded.meta().epoch == 9;
                assert!(new || (!done && loaded.meta() == &old));
                seen[usize::from(new)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    }

    /// The slot that a killed process left in the cache, and the one that the next process writes:
    /// never are both in doubt.
    #[test]
    fn a_kill_in_an_update_and_a_power_cut_in_the_next_never_go_back_two_updates() {
        let mut seen = [0; 4];
        for cut in 0..5 {
            for seed in 0..100 {
                let disk = SimulatedDisk::with_granule(8);
                let mut file = MetaFile::create(&disk, fresh()).expect("META");
                file.update(|meta| meta.epoch = 1).expect("an update");
                disk.crash_at(disk.operations() + 1);
                file.update(|meta| meta.epoch = 2).expect_err("a kill");
                let killed = disk.crash_none_lost();
                let mut file = MetaFile::load(&killed).expect("both slots are whole");
                assert_eq!(file.meta().epoch, 2);
                killed.crash_at(killed.operations() + cut);
                let done = file.update(|meta| meta.epoch = 3).is_ok();
                assert_eq!(done, cut == 4);
                let found = MetaFile::load(&killed.crash_random(seed));
                let epoch = found.expect("one slot is whole").meta().epoch;
                assert!((1..=3).contains(&epoch) && (!done || epoch == 3), "{epoch}");
                seen[epoch as usize] += 1;
            }
        }
        assert!(seen[1..].iter().all(|count| *count > 20), "{seen:?}");
    }

    #[test]
    fn a_new_meta_is_whole_or_not_there() {
        for cut in 0..8 {
            for seed in 0..20 {
                let disk = SimulatedDisk::with_granule(512);
                disk.crash_at(cut);
                let done = MetaFile::create(&disk, fresh()).is_ok();
                let crashed = disk.crash_random(seed);
                match MetaFile::load(&crashed) {
                    Ok(file) => assert_eq!(file.bad_slot(), None),
                    Err(MetaError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                        assert!(!done);
                    }
                    Err(other) => panic!("{other:?}"),
                }
                // What was left of it is in nobody's way.
                MetaFile::create(&crashed, fresh()).expect("META");
            }
        }
    }

    #[test]
    fn a_failed_update_changes_nothing_and_the_next_one_counts() {
        for kind in [OperationKind::Write, OperationKind::Sync] {
            for happens in [false, true] {
                let disk = SimulatedDisk::new();
                let mut file = MetaFile::create(&disk, fresh()).expect("META");
                let plan = FaultPlan::new(kind, Fault::InputOutput).drops_pages();
                disk.fail(if happens { plan.happens_anyway() } else { plan });
                file.update(|meta| meta.epoch = 1).expect_err("a fault");
                assert_eq!(file.meta().epoch, 0);
                file.update(|meta| meta.epoch = 2).expect("an update");
                assert_eq!(file.meta().epoch, 2);
                let loaded = MetaFile::load(&disk.crash_all_lost()).expect("META");
                assert_eq!((loaded.meta(), loaded.bad_slot()), (file.meta(), None));
            }
        }
    }

    #[test]
    fn an_update_repairs_the_slot_that_is_bad() {
        for slot in [0, 1] {
            let disk = SimulatedDisk::new();
            let mut file = MetaFile::create(&disk, fresh()).expect("META");
            file.update(|meta| meta.epoch = 1).expect("an update");
            let mut bytes = disk.contents(META).expect("META");
            bytes[slot * PAGE_BYTES + 16] ^= 1;
            disk.put(META, &bytes);
            let mut file = MetaFile::load(&disk).expect("META");
            assert_eq!(file.bad_slot(), Some(Damage::PageChecksum));
            file.update(|meta| meta.epoch = 2).expect("an update");
            assert_eq!(file.bad_slot(), None);
            let loaded = MetaFile::load(&disk).expect("META");
            assert_eq!((loaded.meta().epoch, loaded.bad_slot()), (2, None));
        }
    }

    #[test]
    fn impossible_fields_are_damage() {
        type Change = fn(&mut Meta);
        let changes: [(&str, Change); 2] = [
            ("epoch", |meta| meta.epoch = position::EPOCH_MAX + 1),
            ("watermark", |meta| {
                meta.watermark = position::first_position(1)
            }),
        ];
        for (field, change) in changes {
            let mut meta = fresh();
            change(&mut meta);
            let fault = Meta::decode(&meta.encode(1)).map(drop);
            assert_eq!(fault, Err(PageFault::Damaged(Damage::Field(field))));
        }
    }

    #[test]
    fn a_serial_that_cannot_be_counted_up_is_damage() {
        let fault = Meta::decode(&fresh().encode(u64::MAX)).map(drop);
        assert_eq!(fault, Err(PageFault::Damaged(Damage::Field("serial"))));
        assert!(Meta::decode(&fresh().encode(u64::MAX - 1)).is_ok());
    }

    #[test]
    fn an_update_that_could_not_be_read_back_is_an_error() {
        let disk = SimulatedDisk::new();
        drop(MetaFile::create(&disk, fresh()).expect("META"));
        let mut bytes = disk.contents(META).expect("META");
        bytes[..PAGE_BYTES].copy_from_slice(&fresh().encode(u64::MAX - 2));
        disk.put(META, &bytes);
        let mut file = MetaFile::load(&disk).expect("META");
        file.update(|meta| meta.epoch = 1).expect("the last update");
        assert_eq!(MetaFile::load(&disk).expect("META").meta().epoch, 1);
        for _ in 0..2 {
            file.update(|meta| meta.epoch = 2).expect_err("no serial");
            assert_eq!(MetaFile::load(&disk).expect("META").meta(), file.meta());
        }
    }

    #[test]
    fn the_secret_stays_out_of_debug_output() {
        let meta = fresh();
        let secret = format!("{:?}", meta.secret);
        assert!(!format!("{meta:?}").contains(secret.trim_matches(['[', ']'])));
    }
}
