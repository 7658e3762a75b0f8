//! A disk in memory that forgets what was not synced, and fails on demand.
//!
//! For every file there are two contents: the *live* one, which reads and maps see (a real system's
//! page cache), and the *durable* one, which is what the platter holds. The directory, too, is kept
//! twice. `sync_data` and `sync_directory` carry the one over to the other; [`SimulatedDisk::crash`]
//! builds the disk that a machine would find after losing power, in which of every unsynced page,
//! length and directory entry either the old or the new state survives, as the caller chooses.
//!
//! Everything is deterministic: there is no clock, and randomness comes from a seed. Tests of this
//! crate use it in place of `os`; under the feature `testing` a service can do the same.
//!
//! Limits of the model: a crash finds a page as it was last synced, or as it is now, and nothing in
//! between, unless [`SimulatedDisk::write_back`] was called then or the disk is
//! [restless](SimulatedDisk::restless); and a page that is stored to
//! through a map with the very bytes it holds already does not count as written.

mod crash;
mod fault;
#[cfg(all(test, not(oncekey_loom)))]
mod fault_tests;
mod file;
mod handle;
#[cfg(all(test, not(oncekey_loom)))]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

pub use self::crash::Difference;
use self::crash::{Change, SplitMix64};
use self::fault::Asked;
pub use self::fault::{Fault, FaultPlan, Operation, OperationKind, is_power_loss};
use self::file::FileImage;
use super::{FileEntry, Storage, StorageFile};
use crate::sync::Mutex;

/// How much of a file is written as a whole, unless set otherwise.
const DEFAULT_GRANULE: usize = 4096;

/// A file, whatever it is called.
type FileId = u64;

/// A simulated disk with one directory; clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    disk: Arc<Mutex<Disk>>,
}

/// All of it, under one mutex.
struct Disk {
    granule: usize,
    capacity: Option<u64>,
    files: BTreeMap<FileId, FileImage>,
    next_file: FileId,
    /// The directory as processes see it.
    live: BTreeMap<String, FileId>,
    /// The directory as of its last sync.
    durable: BTreeMap<String, FileId>,
    /// What led from the one to the other, oldest first.
    changes: Vec<Change>,
    log: Vec<Operation>,
    faults: Vec<FaultPlan>,
    /// What faults have hit.
    struck: Vec<Operation>,
    /// Decides which pages are written back before each operation.
    restless: Option<SplitMix64>,
    keeps_states: bool,
    /// The disk as it was before each operation, with the operation's number.
    states: Vec<(u64, Disk)>,
    crash_at: Option<u64>,
    /// The disk as it was when the power went, from then on.
    at_power_loss: Option<Box<Disk>>,
}

impl SimulatedDisk {
    /// An empty disk without limit, on which pages of 4,096 bytes survive or not as a whole.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Disk::new(DEFAULT_GRANULE, None))
    }

    /// The same with pages of `bytes`, say 512 for a disk that tears a page into sectors.
    ///
    /// # Panics
    ///
    /// If `bytes` is not a power of two of at least 8.
    #[must_use]
    pub fn with_granule(bytes: usize) -> Self {
        assert!(
            bytes.is_power_of_two() && bytes >= 8,
            "a granule of {bytes} bytes"
        );
        Self::of(Disk::new(bytes, None))
    }

    fn of(disk: Disk) -> Self {
        Self {
            disk: Arc::new(Mutex::new(disk)),
        }
    }

    /// Limits the total length of all files, those included that are removed but still open; what
    /// would go beyond fails with `StorageFull`. May be raised, lowered and removed at any time.
    pub fn capacity(&self, bytes: impl Into<Option<u64>>) {
        self.disk.lock().capacity = bytes.into();
    }

    /// Adds a fault. Several may be active; of those that meet an operation, the first added fires.
    pub fn fail(&self, plan: FaultPlan) {
        self.disk.lock().faults.push(plan);
    }

    /// Removes all faults, those to come included.
    pub fn heal(&self) {
        self.disk.lock().faults.clear();
    }

    /// Cuts the power right before the `number`-th operation (from 0, as [`SimulatedDisk::log`]
    /// counts): it and all later ones that would change the disk fail with an error that
    /// [`is_power_loss`] knows, and `crash` starts from the state at that moment.
    ///
    /// To try every point of a scenario, run it once, ask for [`SimulatedDisk::operations`], and
    /// run it again for each number up to that.
    pub fn crash_at(&self, number: u64) {
        self.disk.lock().crash_at = Some(number);
    }

    /// Whether [`SimulatedDisk::crash_at`] has cut the power.
    #[must_use]
    pub fn has_lost_power(&self) -> bool {
        self.disk.lock().at_power_loss.is_some()
    }

    /// From now on keeps a copy of the disk before each operation that changes it, for
    /// [`SimulatedDisk::take_states`]: with that, one run of a scenario shows every moment at which
    /// the power may fail.
    pub fn keep_states(&self) {
        self.disk.lock().keeps_states = true;
    }

    /// Takes the copies made so far, each with the number of the operation that came next. Each is a
    /// disk of its own, as after the death of the process: what was not synced by then still is not.
    #[must_use]
    pub fn take_states(&self) -> Vec<(u64, Self)> {
        let states = std::mem::take(&mut self.disk.lock().states);
        states
            .into_iter()
            .map(|(number, disk)| (number, Self::of(disk)))
            .collect()
    }

    /// From now on, before each operation that changes the disk, some unsynced pages are written
    /// back, as a kernel does at any time; chance decides which. A crash may then find a page in a
    /// state between its last sync and now.
    pub fn restless(&self, seed: u64) {
        self.disk.lock().restless = Some(SplitMix64(seed));
    }

    /// The operations that a fault has hit, in order, those included that are not counted.
    #[must_use]
    pub fn struck(&self) -> Vec<Operation> {
        self.disk.lock().struck.clone()
    }

    /// How many operations that change the disk were asked for, failed ones included; none is
    /// counted after the power was cut.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.disk.lock().log.len() as u64
    }

    /// These operations, in order.
    #[must_use]
    pub fn log(&self) -> Vec<Operation> {
        self.disk.lock().log.clone()
    }

    /// How often one kind of operation was asked for.
    #[must_use]
    pub fn count(&self, kind: OperationKind) -> u64 {
        self.disk
            .lock()
            .log
            .iter()
            .filter(|operation| operation.kind == kind)
            .count() as u64
    }

    /// Names of all files, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.disk.lock().live.keys().cloned().collect()
    }

    /// Live contents of a file, if there is one of that name.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        let file = disk.files.get(disk.live.get(name)?)?;
        Some(file.live_bytes())
    }

    /// Puts a file with these contents there, durably, in place of one of that name: to damage a
    /// file, take its contents, change them and put them back. Neither counted nor failed; those
    /// who have the old file open or mapped keep it.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let mut disk = self.disk.lock();
        let id = disk.add_file(FileImage::durable(contents.to_vec()));
        disk.live.insert(name.to_owned(), id);
        disk.durable.insert(name.to_owned(), id);
        // Else an unsynced change of the old file's name would fall upon the new one.
        disk.changes.retain(|change| !change.concerns(name));
        disk.forget_unreachable();
    }
}

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk.lock();
        formatter
            .debug_struct("SimulatedDisk")
            .field("files", &disk.live)
            .field("operations", &disk.log.len())
            .finish_non_exhaustive()
    }
}

impl Disk {
    fn new(granule: usize, capacity: Option<u64>) -> Self {
        Self {
            granule,
            capacity,
            files: BTreeMap::new(),
            next_file: 0,
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            changes: Vec::new(),
            log: Vec::new(),
            faults: Vec::new(),
            struck: Vec::new(),
            restless: None,
            keeps_states: false,
            states: Vec::new(),
            crash_at: None,
            at_power_loss: None,
        }
    }

    fn add_file(&mut self, file: FileImage) -> FileId {
        let id = self.next_file;
        self.next_file += 1;
        self.files.insert(id, file);
        id
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        self.live
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&mut self, id: FileId) -> io::Result<&mut FileImage> {
        self.files
            .get_mut(&id)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What a file is called now, for messages.
    fn name(&self, id: FileId) -> String {
        let named = |directory: &BTreeMap<String, FileId>| {
            directory
                .iter()
                .find(|(_, named)| **named == id)
                .map(|(name, _)| name.clone())
        };
        named(&self.live)
            .or_else(|| named(&self.durable))
            .unwrap_or_else(|| "(removed)".to_owned())
    }

    /// Fails unless `more` bytes fit.
    fn check_room(&self, more: u64) -> io::Result<()> {
        let used: u64 = self
            .files
            .iter()
            .filter(|(id, file)| file.is_in_use() || self.live.values().any(|live| live == *id))
            .map(|(_, file)| file.len())
            .sum();
        match self.capacity {
            Some(capacity) if used.saturating_add(more) > capacity => Err(Fault::NoSpace.error()),
            _ => Ok(()),
        }
    }

    /// Fails if a mapped file is to grow: the map would not. Cutting one is allowed, as a proper
    /// close does behind the last record: only touching what was cut off would be a fault.
    fn resize(&mut self, id: FileId, len: u64) -> io::Result<()> {
        let old = self.file(id)?.len();
        if len == old {
            return Ok(());
        }
        if len > old && self.file(id)?.is_mapped() {
            let message = format!("{} would grow while mapped", self.name(id));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if len > old {
            self.check_room(len - old)?;
        }
        self.file(id)?.resize(len)
    }

    fn write(&mut self, id: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if end > self.file(id)?.len() {
            self.resize(id, end)?;
        }
        let granule = self.granule;
        self.file(id)?.write(offset, bytes, granule);
        Ok(())
    }

    fn create(&mut self, name: &str, len: u64) -> io::Result<FileId> {
        if self.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.check_room(len)?;
        let mut file = FileImage::default();
        file.resize(len)?;
        let id = self.add_file(file);
        self.live.insert(name.to_owned(), id);
        self.changes.push(Change::Create {
            name: name.to_owned(),
            id,
        });
        Ok(id)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let id = self.id(from)?;
        if from != to {
            self.live.remove(from);
            self.live.insert(to.to_owned(), id);
            self.changes.push(Change::Rename {
                from: from.to_owned(),
                to: to.to_owned(),
                id,
            });
            self.forget_unreachable();
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let id = self.id(name)?;
        self.live.remove(name);
        self.changes.push(Change::Remove {
            name: name.to_owned(),
            id,
        });
        self.forget_unreachable();
        Ok(())
    }

    fn sync_directory(&mut self) {
        self.durable = self.live.clone();
        self.changes.clear();
        self.forget_unreachable();
    }

    /// Drops files that no name leads to, neither now nor after any crash, and no one has open.
    fn forget_unreachable(&mut self) {
        let Self {
            files,
            live,
            durable,
            changes,
            ..
        } = self;
        files.retain(|id, file| {
            file.is_in_use()
                || live.values().any(|named| named == id)
                || durable.values().any(|named| named == id)
                || changes.iter().any(|change| change.id() == *id)
        });
    }
}

impl Storage for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let mut disk = self.disk.lock();
        disk.ask(&Asked::new(OperationKind::List, ""))?;
        let len = |id| disk.files.get(id).map_or(0, FileImage::len);
        let entry = |(name, id): (&String, _)| FileEntry {
            name: name.clone(),
            len: len(id),
            is_file: true,
        };
        Ok(disk.live.iter().map(entry).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        let asked = Asked::new(OperationKind::Create, name);
        let id = self
            .disk
            .lock()
            .act(&asked, |disk| disk.create(name, len))?;
        Ok(self.handle(id))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let id = {
            let mut disk = self.disk.lock();
            disk.ask(&Asked::new(OperationKind::Open, name))?;
            disk.id(name)?
        };
        Ok(self.handle(id))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let asked = Asked::new(OperationKind::Rename, from);
        self.disk.lock().act(&asked, |disk| disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let asked = Asked::new(OperationKind::Remove, name);
        self.disk.lock().act(&asked, |disk| disk.remove(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let asked = Asked::new(OperationKind::SyncDirectory, "");
        self.disk.lock().act(&asked, |disk| {
            disk.sync_directory();
            Ok(())
        })
    }
}
