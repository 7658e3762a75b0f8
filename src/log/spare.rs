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
use crate::log::prepare::preparing_name;
use crate::log::repair::remove_if_there;
use crate::log::workers::is_full;
use crate::sync::Mutex;

/// Its name while nobody needs it.
pub(crate) const SPARE: &str = "SPARE";

/// What is set aside, and what copies take elsewhere. Made and taken by those who hold the plan.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// Bytes of copies that are being written elsewhere, in files that nobody counts yet.
    elsewhere: u64,
}

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
    /// What an earlier open has left: cut to `wanted` bytes, and removed where none are. What fails
    /// here stops no open: it is missing then, and made anew.
    pub(crate) fn found(storage: &dyn Storage, wanted: u64) -> Self {
        let look = || -> io::Result<State> {
            let file = storage.open(SPARE)?;
            if wanted == 0 {
                drop(file);
                remove_if_there(storage, SPARE)?;
                return Ok(State::Unwanted);
            }
            let bytes = file.len()?;
            if bytes > wanted {
                file.set_len(wanted)?;
            }
            Ok(State::Kept(bytes.min(wanted)))
        };
        let state = match look() {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound || wanted == 0 => State::Unwanted,
            Err(_) => State::Missing,
        };
        Self(Mutex::new(Inner {
            state,
            elsewhere: 0,
        }))
    }

    /// Bytes of the file, and of copies that are being written elsewhere.
    pub(crate) fn bytes(&self) -> u64 {
        self.held(0)
    }

    /// Bytes that no segment may take: those of the file, or the `wanted` ones that it is to have, and
    /// those of copies that are being written elsewhere.
    pub(crate) fn held(&self, wanted: u64) -> u64 {
        let inner = self.0.lock();
        inner.elsewhere
            + match inner.state {
                State::Unwanted => 0,
                State::Missing => wanted,
                State::Kept(bytes) | State::Used(bytes) => bytes.max(wanted),
            }
    }

    /// From now on it is wanted.
    pub(crate) fn want(&self) {
        let mut inner = self.0.lock();
        if inner.state == State::Unwanted {
            inner.state = State::Missing;
        }
    }

    /// Sets so many bytes aside, where that is wanted and not done. Called with the plan held, so
    /// that nobody takes what is being replaced.
    ///
    /// # Errors
    ///
    /// What the storage says; no room, above all, and also while copies take what was set aside.
    pub(crate) fn make(&self, storage: &dyn Storage, bytes: u64) -> io::Result<()> {
        let state = self.0.lock().state;
        match state {
            State::Unwanted => return Ok(()),
            State::Kept(kept) if kept >= bytes => return Ok(()),
            // What an error has left there takes room.
            State::Missing => remove_if_there(storage, SPARE)?,
            State::Kept(_) => {}
            State::Used(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "a compaction takes the room that was set aside for it",
                ));
            }
        }
        match self.make_anew(storage, bytes) {
            // The smaller one may be what is lacking.
            Err(error) if is_full(&error) && state != State::Missing => {
                remove_if_there(storage, SPARE)?;
                self.0.lock().state = State::Missing;
                storage.sync_directory()?;
                self.make_anew(storage, bytes)
            }
            made => made,
        }
    }

    fn make_anew(&self, storage: &dyn Storage, bytes: u64) -> io::Result<()> {
        let preparing = preparing_name(SPARE);
        remove_if_there(storage, &preparing)?;
        let made = (|| {
            storage.create(&preparing, bytes)?.sync_data()?;
            storage.rename(&preparing, SPARE)
        })();
        match &made {
            Ok(()) => self.0.lock().state = State::Kept(bytes),
            Err(_) => drop(remove_if_there(storage, &preparing)),
        }
        made?;
        storage.sync_directory()
    }

    /// Copies take so many bytes elsewhere, until [`found_elsewhere`](Self::found_elsewhere).
    pub(crate) fn put_elsewhere(&self, bytes: u64) {
        self.0.lock().elsewhere += bytes;
    }

    /// They are counted by others from now on, or are to go.
    pub(crate) fn found_elsewhere(&self, bytes: u64) {
        self.0.lock().elsewhere -= bytes;
    }

    /// Whether a file of so many bytes can be made of it.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        matches!(self.0.lock().state, State::Kept(kept) if kept >= bytes)
    }

    /// Takes it, for a file of so many bytes, if it is that large; how large it is. Called with the
    /// plan held, and ended by [`end`](Self::end).
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let mut inner = self.0.lock();
        match inner.state {
            State::Kept(kept) if kept >= bytes => {
                inner.state = State::Used(kept);
                Some(kept)
            }
            _ => None,
        }
    }

    /// It was taken, and so many bytes of it are left; 0 where it became another file.
    pub(crate) fn end(&self, left: u64) {
        self.0.lock().state = match left {
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
        let found = |wanted| Spare::found(&disk, wanted);
        let spare = found(4_096);
        spare.make(&disk, 4_096).expect("nothing to do");
        assert_eq!((spare.held(4_096), disk.names().len()), (0, 0));
        spare.want();
        assert_eq!((spare.held(4_096), spare.bytes()), (4_096, 0));
        disk.capacity(4_095);
        spare.make(&disk, 4_096).expect_err("no room");
        assert_eq!(disk.names().len(), 0);
        disk.capacity(None);
        spare.make(&disk, 4_096).expect("room");
        assert_eq!(spare.take(4_097), None);
        assert_eq!(spare.take(4_095), Some(4_096));
        assert_eq!(spare.take(1), None);
        let error = spare.make(&disk, 4_096).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        spare.end(4_000);
        // A smaller one is replaced.
        spare.make(&disk, 4_096).expect("room");
        assert_eq!(disk.names(), [SPARE]);
        let again = found(4_096);
        assert!(again.has(4_096) && !again.has(4_097));
        assert!(again.take(1).is_some());
        again.end(0);
        assert_eq!((again.held(4_096), again.bytes()), (4_096, 0));
    }

    #[test]
    fn what_an_open_of_other_options_left_is_made_to_fit() {
        let disk = SimulatedDisk::new();
        disk.put(SPARE, &[0; 8_192]);
        assert!(!Spare::found(&disk, 4_096).has(4_097));
        assert_eq!(disk.contents(SPARE).expect("cut").len(), 4_096);
        // There is room for a larger one only where the smaller one was.
        disk.capacity(8_192);
        let spare = Spare::found(&disk, 8_192);
        assert!(spare.has(4_096) && !spare.has(4_097));
        spare
            .make(&disk, 8_192)
            .expect("the room of the smaller one");
        assert!(spare.has(8_192));
        assert_eq!(Spare::found(&disk, 0).held(8_192), 0);
        assert!(disk.names().is_empty());
    }

    #[test]
    fn what_an_error_left_takes_no_room_from_the_next_one() {
        let disk = SimulatedDisk::new();
        disk.put(SPARE, &[0; 4_096]);
        disk.capacity(4_096);
        let spare = Spare::found(&disk, 4_096);
        assert!(spare.take(1).is_some());
        // It could not be told how much of it is left.
        spare.end(0);
        spare.make(&disk, 4_096).expect("room");
        assert!(spare.has(4_096));
    }

    #[test]
    fn copies_elsewhere_count() {
        let spare = Spare::default();
        spare.put_elsewhere(100);
        assert_eq!((spare.bytes(), spare.held(4_096)), (100, 100));
        spare.found_elsewhere(100);
        assert_eq!(spare.bytes(), 0);
    }
}
