//! What opening a store found and did.

use std::fmt;
use std::time::Duration;

use crate::corruption::{Corruption, Damage};

/// What the newest open found and did.
///
/// After a proper close it is [`clean`](Self::clean) and only counts. After a crash a torn tail and
/// holes are normal; nothing that was acknowledged as durable is among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether the store was closed properly, so that nothing had to be repaired.
    pub clean: bool,
    /// Whether the store was made by this open.
    pub created: bool,
    /// Segments that hold records.
    pub segments: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of the log read. Records of a segment that its side-car stands for are not.
    pub bytes_scanned: u64,
    /// Segments of which the side-car index file was read instead of the records.
    pub side_cars: u64,
    /// Segments without a side-car, whose records were read. After a crash that is the one being
    /// written and maybe the one before. The store writes what is missing in the background.
    pub side_cars_missing: u64,
    /// Side-cars that were not believed. They were removed, the records were read, and the store
    /// writes new ones in the background. Nothing is lost by it.
    pub side_cars_bad: Vec<BadSideCar>,
    /// What was cut off the end of the log, if anything stood there.
    pub torn_tail: Option<TornTail>,
    /// Records whose writers died in the middle. They were never acknowledged.
    pub holes: u64,
    /// A copy of META that was torn or damaged; the other copy was used.
    pub meta_slot: Option<Damage>,
    /// Whether META was made anew from the segments (only with `Recovery::Salvage`).
    pub meta_rebuilt: bool,
    /// Durable records that were given up (only with `Recovery::Salvage`).
    pub losses: Vec<Corruption>,
    /// Files that salvage set aside or kept a copy in.
    pub kept_copies: Vec<String>,
    /// Keys that were pending when the earlier process ended.
    pub interrupted: u64,
    /// How long it took.
    pub duration: Duration,
}

/// A side-car index file that was not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadSideCar {
    /// Its name in the store's directory.
    pub file: String,
    /// What is wrong with it.
    pub damage: Damage,
}

/// The unfinished end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornTail {
    /// The segment in which the log ends now.
    pub file: String,
    /// Where in it the log ends now, in bytes.
    pub offset: u64,
    /// Bytes behind that which were discarded.
    pub bytes: u64,
    /// Later segments with records that were discarded whole.
    pub segments: u64,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.created, self.clean) {
            (true, _) => "created",
            (false, true) => "closed properly",
            (false, false) => "recovered",
        };
        write!(
            f,
            "{state}: {} records in {} segments ({} bytes) read in {:?}",
            self.records, self.segments, self.bytes_scanned, self.duration
        )?;
        if self.side_cars > 0 {
            write!(f, "; {} segments by their side-cars", self.side_cars)?;
        }
        for bad in &self.side_cars_bad {
            write!(f, "; side-car {} was not used: {}", bad.file, bad.damage)?;
        }
        if self.interrupted > 0 {
            write!(f, "; {} keys interrupted", self.interrupted)?;
        }
        if self.holes > 0 {
            write!(f, "; {} unfinished records skipped", self.holes)?;
        }
        if let Some(torn) = &self.torn_tail {
            write!(
                f,
                "; torn tail: {} bytes behind byte {} of {} discarded",
                torn.bytes, torn.offset, torn.file
            )?;
            if torn.segments > 0 {
                write!(f, ", with {} later segments", torn.segments)?;
            }
        }
        if let Some(damage) = &self.meta_slot {
            write!(f, "; one copy of META was bad ({damage})")?;
        }
        if self.meta_rebuilt {
            f.write_str("; META was rebuilt from the segments")?;
        }
        for loss in &self.losses {
            write!(
                f,
                "; LOST: {} bytes at byte {} of {} (sequences {:#x} to {:#x}): {}",
                loss.bytes,
                loss.offset,
                loss.file,
                loss.first_sequence,
                loss.last_sequence,
                loss.damage
            )?;
        }
        for copy in &self.kept_copies {
            write!(f, "; kept: {copy}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_open_says_little_and_a_salvage_says_it_all() {
        let clean = RecoveryReport {
            clean: true,
            segments: 2,
            records: 10,
            bytes_scanned: 4096,
            ..RecoveryReport::default()
        };
        let text = clean.to_string();
        assert_eq!(
            text,
            "closed properly: 10 records in 2 segments (4096 bytes) read in 0ns"
        );

        let salvaged = RecoveryReport {
            holes: 3,
            interrupted: 4,
            torn_tail: Some(TornTail {
                file: "segment-b.log".into(),
                offset: 5000,
                bytes: 77,
                segments: 1,
            }),
            side_cars: 7,
            side_cars_bad: vec![BadSideCar {
                file: "segment-a.idx".into(),
                damage: Damage::Checksum,
            }],
            meta_slot: Some(Damage::Truncated),
            meta_rebuilt: true,
            losses: vec![Corruption {
                damage: Damage::Zeros,
                file: "segment-a.log".into(),
                offset: 4096,
                bytes: 8,
                first_sequence: 0x10,
                last_sequence: 0x11,
            }],
            kept_copies: vec!["segment-a.damaged".into()],
            ..clean
        };
        let text = RecoveryReport {
            clean: false,
            ..salvaged
        }
        .to_string();
        for part in [
            "recovered: 10 records",
            "7 segments by their side-cars",
            "side-car segment-a.idx was not used: the checksum",
            "4 keys interrupted",
            "3 unfinished records",
            "77 bytes behind byte 5000 of segment-b.log",
            "1 later segments",
            "META was bad (the file is truncated)",
            "META was rebuilt",
            "LOST: 8 bytes at byte 4096 of segment-a.log (sequences 0x10 to 0x11)",
            "kept: segment-a.damaged",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }
}
