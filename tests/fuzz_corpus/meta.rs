//! META with edited slots, under true checksums or not; then the store that it belongs to.
//!
//! The first byte says which slots are sealed. Each edit has 10 bytes: what and in which slot,
//! where, and 8 bytes.

use oncekey::testing::{SimulatedDisk, internals};
use oncekey::{OpenError, Recovery, Store};

use crate::layout::{Files, PAGE};
use crate::stores::{disk_of, files_of, judging};
use crate::subjects::{CLOSED, Response, Seen, records_of};

pub const EDIT_BYTES: usize = 10;
const EDITS_MAX: usize = 8;
const FIELDS: usize = 128;

/// Whether META is readable.
pub fn run(input: &[u8]) -> bool {
    let Some((mode, edits)) = input.split_first() else {
        return false;
    };
    let mut files = CLOSED.files.clone();
    let mut meta = files.remove("META").expect("META");
    for edit in edits.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        self::edit(&mut meta, edit);
    }
    for (slot, page) in meta.chunks_exact_mut(PAGE).enumerate() {
        if mode & (1 << slot) != 0 {
            internals::seal_page(page);
        }
    }
    files.insert("META".to_owned(), meta);

    let readable = internals::meta(&disk_of(&files));
    let disk = disk_of(&files);
    match judging(Recovery::Refuse).open_simulated(&disk) {
        Ok(store) => {
            assert!(readable, "opened without META");
            judge(&store);
        }
        Err(error) => {
            let before: Files = files_of(&disk);
            let changed = before != files;
            assert!(
                !changed || is_of_the_end(&error),
                "refused and changed: {error}"
            );
            if let Ok(store) = judging(Recovery::Salvage).open_simulated(&disk) {
                judge(&store);
                store.close().expect("closes");
                drop(store);
                opens_again(&disk);
            }
        }
    }
    readable
}

fn edit(meta: &mut Vec<u8>, edit: &[u8]) {
    let (what, at, bytes) = (edit[0], usize::from(edit[1]), &edit[2..EDIT_BYTES]);
    let slot = usize::from(what & 1) * PAGE;
    let at = slot + at % FIELDS;
    match what >> 1 & 3 {
        0 => {
            if let Some(field) = meta.get_mut(at..at + 8) {
                field.copy_from_slice(bytes);
            }
        }
        1 => {
            if let Some(byte) = meta.get_mut(at) {
                *byte = byte.wrapping_add(bytes[0]);
            }
        }
        2 if meta.len() == 2 * PAGE => meta.copy_within(slot..slot + PAGE, PAGE - slot),
        _ => meta.truncate(usize::from(bytes[0]) * 64),
    }
}

/// Numbers that have come to their end are told in the middle of an open.
fn is_of_the_end(error: &OpenError) -> bool {
    matches!(error, OpenError::EpochsExhausted | OpenError::Io { .. })
}

/// No key answers what was not stored for it, whatever META says; the clock may have run on.
fn judge(store: &Store) {
    for key in CLOSED.keys.iter() {
        let seen = Seen::of(store, key);
        let stored = records_of(&CLOSED, key)
            .iter()
            .any(|record| Seen::by(record) == seen);
        let is_denied = matches!(
            seen,
            Seen::Completed {
                response: Response::Denied,
                ..
            }
        );
        assert!(stored || seen == Seen::Absent, "{key:?}: {seen:?}");
        assert!(!is_denied, "{key:?}: {seen:?}");
    }
    assert!(store.pending().expect("a list").is_empty());
}

fn opens_again(disk: &SimulatedDisk) {
    match judging(Recovery::Refuse).open_simulated(disk) {
        Ok(store) => judge(&store),
        Err(error) => assert!(is_of_the_end(&error), "what was salvaged: {error}"),
    }
}
