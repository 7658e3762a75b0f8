//! Room for one compaction, kept on the disk before it is needed.
//!
//! A disk that is full of dead records can be freed only by copying what is live in them, which needs
//! room first. So a file as large as a segment is set aside as soon as there is something that could
//! be compacted, and no segment is made before it is there. Where there is no other room, copies are
//! written into that file, which becomes theirs; what they came from goes, and room is set aside anew.
//!
//! Nothing in the file counts, so a crash at any moment leaves it as good as it was.

use std::io;

use crate::fs::Storage;
use crate::log::recover::listing::preparing_name;
use crate::log::repair::remove_if_there;
use crate::sync::Mutex;

/// Its name while nobody needs it.
pub(crate) const SPARE: &str = "SPARE";

/// What is set aside. Changed by those who hold the plan.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<State>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// There is nothing to be compacted yet.
    #[default]
    Unwanted,
    Missing,
    /// So many bytes are there.
    Kept(u64),
    /// Copies are being written into them.
    Used(u64),
}

impl Spare {
    /// What an earlier open has left.
    pub(crate) fn found(storage: &dyn Storage) -> Self {
        let bytes = storage.open(SPARE).and_then(|file| file.len());
        Self(Mutex::new(bytes.map_or(State::Unwanted, State::Kept)))
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        match *self.0.lock() {
            State::Unwanted | State::Missing => 0,
            State::Kept(bytes) | State::Used(bytes) => bytes,
        }
    }

    /// Bytes that no segment may take: those of the file, or the `wanted` ones that it is to have.
    pub(crate) fn held(&self, wanted: u64) -> u64 {
        match *self.0.lock() {
            State::Unwanted => 0,
            State::Missing => wanted,
            State::Kept(bytes) | State::Used(bytes) => bytes.max(wanted),
        }
    }

    /// From now on it is wanted.
    pub(crate) fn want(&self) {
        let mut state = self.0.lock();
        if *state == State::Unwanted {
            *state = State::Missing;
        }
    }

    /// Sets so many bytes aside, where that is wanted and not done.
    ///
    /// # Errors
    ///
    /// What the storage says; no room, above all, and also while copies take what was set aside.
    pub(crate) fn make(&self, storage: &dyn Storage, bytes: u64) -> io::Result<()> {
        match *self.0.lock() {
            State::Unwanted => return Ok(()),
            State::Kept(kept) if kept >= bytes => return Ok(()),
            State::Missing | State::Kept(_) => {}
            State::Used(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "a compaction takes the room that was set aside for it",
                ));
            }
        }
        let preparing = preparing_name(SPARE);
        remove_if_there(storage, &preparing)?;
        let made = (|| {
            storage.create(&preparing, bytes)?.sync_data()?;
            storage.rename(&preparing, SPARE)?;
            storage.sync_directory()
        })();
        match &made {
            Ok(()) => *self.0.lock() = State::Kept(bytes),
            Err(_) => drop(remove_if_there(storage, &preparing)),
        }
        made
    }

    /// Whether a file of so many bytes can be made of it.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        matches!(*self.0.lock(), State::Kept(kept) if kept >= bytes)
    }

    /// Takes it, for a file of so many bytes, if it is that large. Ended by [`end`](Self::end).
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut state = self.0.lock();
        match *state {
            State::Kept(kept) if kept >= bytes => {
                *state = State::Used(kept);
                true
            }
            _ => false,
        }
    }

    /// It was taken, and so many bytes of it are left; 0 where it became another file.
    pub(crate) fn end(&self, left: u64) {
        *self.0.lock() = match left {
            0 => State::Missing,
            bytes => State::Kept(bytes),
        };
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;
    use crate::fs::simulated::SimulatedDisk;

    #[test]
    fn room_is_set_aside_when_it_is_wanted_and_again_when_it_was_taken() {
        let disk = SimulatedDisk::new();
        let spare = Spare::found(&disk);
        spare.make(&disk, 4_096).expect("nothing to do");
        assert_eq!((spare.held(4_096), disk.names().len()), (0, 0));
        spare.want();
        assert_eq!((spare.held(4_096), spare.bytes()), (4_096, 0));
        disk.capacity(4_095);
        spare.make(&disk, 4_096).expect_err("no room");
        assert_eq!(disk.names().len(), 0);
        disk.capacity(None);
        spare.make(&disk, 4_096).expect("room");
        assert!(!spare.take(4_097) && spare.take(4_096) && !spare.take(1));
        let error = spare.make(&disk, 4_096).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        spare.end(4_000);
        // A smaller one is replaced.
        spare.make(&disk, 4_096).expect("room");
        assert_eq!(disk.names(), [SPARE]);
        let again = Spare::found(&disk);
        assert!(again.has(4_096) && !again.has(4_097));
        assert!(again.take(1));
        again.end(0);
        assert_eq!((again.held(4_096), again.bytes()), (4_096, 0));
    }
}
