//! Where a damaged store is opened: on a simulated disk, or in a directory.

use std::fs;

use oncekey::testing::SimulatedDisk;
use oncekey::{OpenError, Recovery, Store};
use tempfile::TempDir;

use crate::layout::Files;
use crate::stores::{all_files_of, disk_of, judging};
use crate::support::directory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Simulated,
    Directory,
}

/// The files of one case, in place.
pub enum Opened {
    Simulated(SimulatedDisk),
    Directory(TempDir),
}

impl Medium {
    pub fn put(self, files: &Files) -> Opened {
        match self {
            Self::Simulated => Opened::Simulated(disk_of(files)),
            Self::Directory => {
                let directory = directory();
                for (name, bytes) in files {
                    fs::write(directory.path().join(name), bytes).expect("written");
                }
                Opened::Directory(directory)
            }
        }
    }
}

impl Opened {
    pub fn open(&self, recovery: Recovery) -> Result<Store, OpenError> {
        match self {
            Self::Simulated(disk) => judging(recovery).open_simulated(disk),
            Self::Directory(directory) => judging(recovery).open(directory.path()),
        }
    }

    /// Whether these and no other files are there, but for the lock, which an open writes to.
    pub fn holds(&self, files: &Files) -> bool {
        let mut found = match self {
            Self::Simulated(disk) => all_files_of(disk),
            Self::Directory(directory) => read(directory),
        };
        let mut expected = files.clone();
        found.remove("LOCK");
        expected.remove("LOCK");
        found == expected
    }
}

/// The files of a directory.
pub fn read(directory: &TempDir) -> Files {
    fs::read_dir(directory.path())
        .expect("a list")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            (name, fs::read(entry.path()).expect("read"))
        })
        .collect()
}
