//! What the files of a store's directory are called, and which of them are there.
//!
//! Everything in the directory is the store's own. A name that is none of ours stops the open:
//! whoever put it there may believe that the directory is theirs.

use std::collections::BTreeMap;

use crate::fs::Storage;
use crate::fs::lock::LOCK_NAME;
use crate::log::meta::{META, META_PREPARING};
use crate::log::prepare::{PREPARING, compacted_name, segment_name};
use crate::log::recover::RecoverError;
use crate::log::spare::SPARE;

/// Ending of a copy that a salvage keeps of what it is about to change.
const COPY: &str = ".damaged";
/// Ending of a side-car.
const SIDE_CAR: &str = ".idx";
/// The one directory that file systems put into others.
const LOST_AND_FOUND: &str = "lost+found";

/// The files of a directory, sorted out.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Whether META is there.
    pub(super) meta: bool,
    /// Base of each segment, by its name, in order.
    pub(super) segments: Vec<u64>,
    /// Name of each side-car, by the base of its segment or compacted file.
    pub(super) side_cars: BTreeMap<u64, String>,
    /// Base of each compacted file, in order.
    pub(super) compacted: Vec<u64>,
    /// Files that were being made when the process ended, or given up. Nothing refers to them.
    pub(super) leftovers: Vec<String>,
    /// Copies kept by earlier salvages.
    pub(super) copies: Vec<String>,
    /// Whether room is set aside for a compaction.
    pub(super) spare: bool,
    /// A compacted file that never counted, and becomes that room.
    pub(super) becomes_spare: Option<String>,
}

impl Listing {
    /// Lists the directory.
    ///
    /// # Errors
    ///
    /// [`RecoverError::ForeignFile`] for the first name, in order, that is none of ours.
    pub(super) fn read(storage: &dyn Storage) -> Result<Self, RecoverError> {
        let mut entries = storage.list().map_err(|source| RecoverError::Io {
            file: ".".into(),
            source,
        })?;
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        let mut listing = Self::default();
        for entry in entries {
            let name = entry.name;
            let known = match Name::of(&name) {
                _ if !entry.is_file => name == LOST_AND_FOUND,
                None => false,
                Some(Name::Lock) => true,
                Some(Name::Spare) => {
                    listing.spare = true;
                    true
                }
                Some(Name::SideCar(base)) => {
                    listing.side_cars.insert(base, name.clone());
                    true
                }
                Some(Name::Meta) => {
                    listing.meta = true;
                    true
                }
                Some(Name::Segment(base)) => {
                    listing.segments.push(base);
                    true
                }
                Some(Name::Compacted(base)) => {
                    listing.compacted.push(base);
                    true
                }
                Some(Name::Leftover) => {
                    listing.leftovers.push(name.clone());
                    true
                }
                Some(Name::Copy) => {
                    listing.copies.push(name.clone());
                    true
                }
            };
            if !known {
                return Err(RecoverError::ForeignFile { name });
            }
        }
        Ok(listing)
    }
}

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Lock,
    Spare,
    Meta,
    Segment(u64),
    SideCar(u64),
    Compacted(u64),
    Leftover,
    Copy,
}

impl Name {
    fn of(name: &str) -> Option<Self> {
        if let Some(made) = name.strip_suffix(PREPARING) {
            let ours = name == META_PREPARING
                || matches!(
                    Self::of(made),
                    Some(
                        Self::Segment(_)
                            | Self::Compacted(_)
                            | Self::SideCar(_)
                            | Self::Copy
                            | Self::Spare
                    )
                );
            return ours.then_some(Self::Leftover);
        }
        if name == LOCK_NAME {
            return Some(Self::Lock);
        }
        if name == META {
            return Some(Self::Meta);
        }
        if name == SPARE {
            return Some(Self::Spare);
        }
        if let Some(copied) = name.strip_suffix(COPY) {
            let original = copied.split_once('.').map_or(copied, |(original, number)| {
                if number
                    .parse::<u32>()
                    .is_ok_and(|parsed| parsed.to_string() == number)
                {
                    original
                } else {
                    copied
                }
            });
            return (original == META || Self::of_stem(original).is_some()).then_some(Self::Copy);
        }
        if let Some(stem) = name.strip_suffix(SIDE_CAR) {
            return match Self::of_stem(stem)? {
                Self::Segment(base) | Self::Compacted(base) => Some(Self::SideCar(base)),
                _ => None,
            };
        }
        Self::of_stem(name.strip_suffix(".log")?)
    }

    /// A file of records, by its name without the ending.
    fn of_stem(stem: &str) -> Option<Self> {
        base_of(stem, "segment-", segment_name)
            .map(Self::Segment)
            .or_else(|| base_of(stem, "compacted-", compacted_name).map(Self::Compacted))
    }
}

/// The base in a name without its ending. Only the very way we write it counts.
fn base_of(stem: &str, prefix: &str, name: fn(u64) -> String) -> Option<u64> {
    let base = u64::from_str_radix(stem.strip_prefix(prefix)?, 16).ok()?;
    (name(base).strip_suffix(".log") == Some(stem)).then_some(base)
}

/// What the `number`-th copy (from 1) of a file is called.
pub(crate) fn copy_name(name: &str, number: u32) -> String {
    let stem = name.strip_suffix(".log").unwrap_or(name);
    if number == 1 {
        format!("{stem}{COPY}")
    } else {
        format!("{stem}.{number}{COPY}")
    }
}

/// What the side-car of a segment of this name is called.
pub(crate) fn side_car_name(segment: &str) -> String {
    let stem = segment.strip_suffix(".log").unwrap_or(segment);
    format!("{stem}{SIDE_CAR}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::simulated::SimulatedDisk;

    #[test]
    fn names_are_sorted_out() {
        let table = [
            ("LOCK", Some(Name::Lock)),
            ("META", Some(Name::Meta)),
            ("META.tmp", Some(Name::Leftover)),
            ("SPARE", Some(Name::Spare)),
            ("SPARE.tmp", Some(Name::Leftover)),
            ("META.damaged", Some(Name::Copy)),
            ("META.2.damaged", Some(Name::Copy)),
            ("META.damaged.tmp", Some(Name::Leftover)),
            ("segment-0000001000000000.log", Some(Name::Segment(1 << 36))),
            ("segment-0000001000000000.log.tmp", Some(Name::Leftover)),
            ("segment-0000001000000000.idx", Some(Name::SideCar(1 << 36))),
            (
                "compacted-0000001000000000.log",
                Some(Name::Compacted(1 << 36)),
            ),
            ("compacted-0000001000000000.log.tmp", Some(Name::Leftover)),
            (
                "compacted-0000001000000000.idx",
                Some(Name::SideCar(1 << 36)),
            ),
            ("compacted-0000001000000000.damaged", Some(Name::Copy)),
            ("compacted-1000000000.log", None),
            ("segment-0000001000000000.idx.tmp", Some(Name::Leftover)),
            ("segment-0000001000000000.damaged", Some(Name::Copy)),
            ("segment-0000001000000000.12.damaged", Some(Name::Copy)),
            ("segment-0000001000000000.damaged.tmp", Some(Name::Leftover)),
            ("segment-0000001000000000.012.damaged", None),
            ("segment-0000001000000000", None),
            ("segment-000000100000000.log", None),
            ("segment-+000001000000000.log", None),
            ("segment-000000100000000A.log", None),
            ("segment-0000001000000000.LOG", None),
            ("LOCK.tmp", None),
            ("lost+found", None),
            (".tmp", None),
            (".damaged", None),
            (".log", None),
            ("", None),
            ("notes.txt", None),
        ];
        for (name, expected) in table {
            assert_eq!(Name::of(name), expected, "{name:?}");
        }
        for number in [1, 2, 40] {
            for original in ["META", "segment-00000010000000ab.log"] {
                assert_eq!(Name::of(&copy_name(original, number)), Some(Name::Copy));
            }
        }
    }

    #[test]
    fn a_foreign_file_is_named() {
        let disk = SimulatedDisk::new();
        disk.put("META", b"");
        disk.put("photo.jpg", b"");
        disk.put("zebra", b"");
        match Listing::read(&disk) {
            Err(RecoverError::ForeignFile { name }) => assert_eq!(name, "photo.jpg"),
            other => panic!("{other:?}"),
        }
    }
}
