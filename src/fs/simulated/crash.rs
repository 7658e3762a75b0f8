//! What is left of a simulated disk when the power, or only the process, is gone.

use std::collections::BTreeMap;

use super::{Disk, FileId, SimulatedDisk};

/// A step of the directory from its durable state to its live one.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Create {
        name: String,
        id: FileId,
    },
    Rename {
        from: String,
        to: String,
        id: FileId,
    },
    Remove {
        name: String,
        id: FileId,
    },
}

impl Change {
    pub(super) fn id(&self) -> FileId {
        match self {
            Self::Create { id, .. } | Self::Rename { id, .. } | Self::Remove { id, .. } => *id,
        }
    }

    pub(super) fn concerns(&self, file: &str) -> bool {
        match self {
            Self::Create { name, .. } | Self::Remove { name, .. } => name == file,
            Self::Rename { from, to, .. } => from == file || to == file,
        }
    }

    /// Takes the step, also if earlier ones were lost: a rename that reached the disk brings its
    /// file along, and a name is only taken away from the file it was meant for.
    fn apply(&self, directory: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Create { name, id } => {
                directory.insert(name.clone(), *id);
            }
            Self::Rename { from, to, id } => {
                if directory.get(from) == Some(id) {
                    directory.remove(from);
                }
                directory.insert(to.clone(), *id);
            }
            Self::Remove { name, id } => {
                if directory.get(name) == Some(id) {
                    directory.remove(name);
                }
            }
        }
    }

    fn difference(&self) -> Difference {
        match self {
            Self::Create { name, .. } => Difference::Created { file: name.clone() },
            Self::Rename { from, to, .. } => Difference::Renamed {
                from: from.clone(),
                to: to.clone(),
            },
            Self::Remove { name, .. } => Difference::Removed { file: name.clone() },
        }
    }
}

/// Something unsynced, which a crash may keep or lose.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// A file was made.
    Created {
        /// Its name.
        file: String,
    },
    /// A file was renamed; this is never half done.
    Renamed {
        /// Its old name.
        from: String,
        /// Its new name.
        to: String,
    },
    /// A file was removed.
    Removed {
        /// Its name.
        file: String,
    },
    /// A file's length changed.
    Length {
        /// The file's name.
        file: String,
        /// Bytes at the last sync.
        old: u64,
        /// Bytes now.
        new: u64,
    },
    /// A page was written.
    Page {
        /// The file's name.
        file: String,
        /// Where in the file it begins, in bytes.
        offset: u64,
    },
}

impl SimulatedDisk {
    /// The disk after a loss of power: a new one, independent of this, on which everything is
    /// synced. For each difference between live and durable state `survives` says whether the new
    /// state made it to the disk (true) or the old one is found.
    ///
    /// It is asked first for the steps of the directory, oldest first, then for each file that the
    /// outcome names for its length and its pages. A page behind the end that a file got is not
    /// asked for, nor is one that a failed sync dropped ([`super::FaultPlan::drops_pages`]): they
    /// are lost. The order is the same each time, so that bits of a counter can stand for answers.
    ///
    /// Capacity and granule stay; faults, log and [`SimulatedDisk::crash_at`] do not.
    #[must_use]
    pub fn crash(&self, survives: &mut dyn FnMut(&Difference) -> bool) -> Self {
        let disk = self.disk.lock();
        Self::of(
            disk.at_power_loss
                .as_deref()
                .unwrap_or(&disk)
                .survivor(survives),
        )
    }

    /// A loss of power in which chance decides. Some seeds lose nearly everything, some nearly
    /// nothing, most about half.
    #[must_use]
    pub fn crash_random(&self, seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        let eighths = [1, 4, 4, 7][random.below(4) as usize];
        self.crash(&mut |_| random.below(8) < eighths)
    }

    /// A loss of power in which all that was not synced is lost.
    #[must_use]
    pub fn crash_all_lost(&self) -> Self {
        self.crash(&mut |_| false)
    }

    /// The death of the process alone: nothing is lost, but what was not synced still is not, and
    /// can be lost in a later crash of the new disk.
    #[must_use]
    pub fn crash_none_lost(&self) -> Self {
        let disk = self.disk.lock();
        Self::of(disk.at_power_loss.as_deref().unwrap_or(&disk).deep_copy())
    }

    /// What a crash would ask about, if every answer were yes.
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        let mut differences = Vec::new();
        drop(self.crash(&mut |difference| {
            differences.push(difference.clone());
            true
        }));
        differences
    }

    /// Writes back those unsynced pages that `chosen` picks, as a kernel may at any time. A crash
    /// later on finds them at least as new as now.
    pub fn write_back(&self, chosen: &mut dyn FnMut(&Difference) -> bool) {
        self.disk.lock().write_back(chosen);
    }
}

impl Disk {
    fn write_back(&mut self, chosen: &mut dyn FnMut(&Difference) -> bool) {
        let granule = self.granule;
        let ids: Vec<FileId> = self.files.keys().copied().collect();
        for id in ids {
            let name = self.name(id);
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            for page in file.dirty_pages(granule) {
                if chosen(&page_difference(&name, page, granule)) {
                    file.write_back(page, granule);
                }
            }
        }
    }

    /// What a restless kernel does of its own accord.
    pub(super) fn write_back_some(&mut self) {
        if let Some(mut random) = self.restless.take() {
            self.write_back(&mut |_| random.below(4) == 0);
            self.restless = Some(random);
        }
    }

    /// The same state in memory of its own, without handles, faults and log.
    pub(super) fn deep_copy(&self) -> Self {
        let mut copy = Self::new(self.granule, self.capacity);
        copy.files = self
            .files
            .iter()
            .map(|(id, file)| (*id, file.deep_copy()))
            .collect();
        copy.next_file = self.next_file;
        copy.live = self.live.clone();
        copy.durable = self.durable.clone();
        copy.changes = self.changes.clone();
        copy.forget_unreachable();
        copy
    }

    fn survivor(&self, survives: &mut dyn FnMut(&Difference) -> bool) -> Self {
        let mut directory = self.durable.clone();
        for change in &self.changes {
            if survives(&change.difference()) {
                change.apply(&mut directory);
            }
        }
        let mut survivor = Self::new(self.granule, self.capacity);
        survivor.next_file = self.next_file;
        // By number, so that the order of the questions depends on no name, and a file that two
        // names lead to is asked about once.
        let names: BTreeMap<FileId, &String> =
            directory.iter().map(|(name, id)| (*id, name)).collect();
        for (id, name) in names {
            let Some(file) = self.files.get(&id) else {
                continue;
            };
            let (old, new) = (file.durable_len(), file.len());
            let lengthens = old != new
                && survives(&Difference::Length {
                    file: name.clone(),
                    old,
                    new,
                });
            let len = if lengthens { new } else { old };
            let mut pages = file.dirty_pages(self.granule);
            pages.retain(|page| {
                ((page * self.granule) as u64) < len
                    && survives(&page_difference(name, *page, self.granule))
            });
            survivor
                .files
                .insert(id, file.survivor(len, &pages, self.granule));
        }
        survivor.live = directory.clone();
        survivor.durable = directory;
        survivor
    }
}

fn page_difference(file: &str, page: usize, granule: usize) -> Difference {
    Difference::Page {
        file: file.to_owned(),
        offset: (page * granule) as u64,
    }
}

/// A small generator: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a power of two.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
