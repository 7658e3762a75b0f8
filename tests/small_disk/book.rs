//! What a store must know of the keys that it was given, and a file that eats the rest of a disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use oncekey::{ClaimError, Key, KeyState, Operation, Replay, Store};

use crate::support::{Mode, Style, completed, interrupted, key, request};

/// Responses up to here have room set aside.
pub const RESERVED: usize = 4_096;

/// What was acknowledged of each key, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Held,
    /// With a response of so many bytes, for a principal or not.
    Completed(usize, bool),
    Interrupted,
    Absent,
}

#[derive(Debug, Default)]
pub struct Book(pub BTreeMap<usize, Known>);

pub fn numbered(number: usize) -> Key {
    key(&format!("key-{number}"))
}

pub fn response(number: usize, len: usize) -> Vec<u8> {
    vec![number as u8 | 1; len]
}

const PRINCIPAL: [u8; 255] = [b'p'; 255];

impl Book {
    /// Completes a guard, which must succeed.
    #[track_caller]
    pub fn complete(&mut self, operation: Operation, number: usize, len: usize) {
        let with_principal = number.is_multiple_of(2);
        let mut completion = operation.complete_with(response(number, len));
        if with_principal {
            completion = completion.principal(PRINCIPAL);
        }
        let saved = completion.commit();
        saved.unwrap_or_else(|error| panic!("key {number}, {len} bytes: {error}"));
        self.0.insert(number, Known::Completed(len, with_principal));
    }

    pub fn note(&mut self, number: usize, known: Known) {
        self.0.insert(number, known);
    }

    /// The process is gone, or the store was closed.
    pub fn orphan(&mut self) {
        for known in self.0.values_mut() {
            if *known == Known::Held {
                *known = Known::Interrupted;
            }
        }
    }

    pub fn count(&self, what: impl Fn(Known) -> bool) -> usize {
        self.0.values().filter(|known| what(**known)).count()
    }

    /// The store answers for every key as it must; nothing is written for that.
    #[track_caller]
    pub fn check(&self, store: &Store) {
        for (number, known) in &self.0 {
            let state = store.get(&numbered(*number)).expect("an answer");
            match (&state, known) {
                (KeyState::Absent, Known::Absent)
                | (KeyState::InProgress { .. }, Known::Held)
                | (KeyState::Interrupted { .. }, Known::Interrupted) => {}
                (KeyState::Completed(saved), Known::Completed(len, with_principal)) => {
                    let replay = if *with_principal {
                        saved.for_principal(PRINCIPAL)
                    } else {
                        saved.by_scope()
                    };
                    match replay.expect("allowed") {
                        Replay::Response(found) => {
                            assert_eq!(found[..], response(*number, *len)[..], "key {number}");
                        }
                        other => panic!("key {number}: {other:?}"),
                    }
                    // A claim is answered with it, too.
                    drop(completed(
                        store
                            .claim(&numbered(*number), request())
                            .expect("a replay"),
                    ));
                }
                _ => panic!("key {number}: {state:?}, not {known:?}"),
            }
        }
        let lists = (store.pending(), store.interrupted());
        let (pending, waiting) = (lists.0.expect("a list"), lists.1.expect("a list"));
        assert_eq!(pending.len(), self.count(|known| known == Known::Held));
        assert_eq!(
            waiting.len(),
            self.count(|known| known == Known::Interrupted)
        );
    }

    /// New claims find no room, whichever way they come, and that is all that happens.
    #[track_caller]
    pub fn check_full(&self, store: &Store, mode: Mode) {
        for style in [Style::Blocking, Style::Async] {
            for number in 0..3 {
                let key = key(&format!("no-room-{number}"));
                let mode = Mode { style, ..mode };
                match mode.try_claim(store, &key, request()) {
                    Err(ClaimError::OutOfSpace(_)) => {}
                    other => panic!("{other:?}"),
                }
                assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
            }
        }
        assert!(!store.stats().poisoned);
    }

    /// Takes over what is interrupted and completes it; there has to be room.
    pub fn resolve(&mut self, store: &Store) {
        let numbers: Vec<_> = self
            .0
            .iter()
            .map(|(number, known)| (*number, *known))
            .collect();
        for (number, known) in numbers {
            if known == Known::Interrupted {
                let claim = store.claim(&numbered(number), request());
                self.complete(interrupted(claim.expect("a claim")), number, 700);
            }
        }
    }
}

/// A file that takes what room there is.
pub struct Filler {
    path: PathBuf,
}

impl Filler {
    pub fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("filler"),
        }
    }

    /// Takes all that is left, to the last block; how many KiB it has now.
    pub fn eat(&self) -> u64 {
        let open = File::options().create(true).append(true).open(&self.path);
        let mut file = match open {
            Ok(file) => file,
            // Not even a name.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return 0,
            Err(error) => panic!("{error}"),
        };
        // Blocks that were set aside for pages not yet written count only when they are.
        for _ in 0..3 {
            for chunk in [1 << 16, 4_096, 1_024, 1] {
                loop {
                    match file.write(&[0xFF; 1 << 16][..chunk]) {
                        Ok(written) if written > 0 => {}
                        Ok(_) => break,
                        Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                        Err(error) => panic!("{error}"),
                    }
                    if chunk == 1 {
                        break;
                    }
                }
            }
            match file.sync_all() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                Err(error) => panic!("{error}"),
            }
        }
        file.metadata().expect("there").len() >> 10
    }

    /// Takes so much.
    pub fn take(&self, bytes: u64) {
        let file = File::create(&self.path).expect("made");
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
        allocated.expect("there is room");
    }

    /// Gives so much back.
    pub fn shrink(&self, by_bytes: u64) {
        let file = File::options().write(true).open(&self.path).expect("there");
        let len = file.metadata().expect("there").len();
        file.set_len(len.saturating_sub(by_bytes)).expect("cut");
        file.sync_all().expect("synced");
    }

    pub fn remove(&self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
        // The blocks of a removed file are free when the removal is written.
        let directory = self.path.parent().expect("in a directory");
        File::open(directory)
            .expect("there")
            .sync_all()
            .expect("synced");
    }
}
