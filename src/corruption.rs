//! What is wrong with the bytes of a store.
//!
//! One type serves both policies: with `Recovery::Refuse` the first [`Corruption`] found is the
//! error of the open, with `Recovery::Salvage` all of them are listed in the recovery report. A
//! torn tail is none: bytes that were never acknowledged as durable are expected to be missing
//! after a loss of power.

use std::fmt;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// The file ends too early to hold its header, or is no whole number of words.
    Truncated,
    /// The file does not begin as its name says it should.
    Magic,
    /// The checksum of a header page does not match.
    PageChecksum,
    /// The checksum matches, but this field is outside of what any version writes.
    Field(&'static str),
    /// The length of a record cannot be read, so it is unknown where the next one begins.
    Length,
    /// The checksum of a record does not match.
    Checksum,
    /// A record that belongs somewhere else.
    Misplaced,
    /// Zeros where records were durable.
    Zeros,
    /// A record that was durable is back in the state from before it was finished: a write was
    /// lost by the device, or an older copy of the file was put in place.
    Unfinished,
    /// The file or the log ends before the end of what was durable.
    EndsEarly,
    /// A file of the log is missing.
    MissingSegment,
    /// The file is a segment, but not the one that its name says: it was renamed or copied.
    Misnamed,
    /// The file belongs to another store.
    ForeignSegment,
    /// The file is no part of this log: its neighbours do not know of it.
    Unlinked,
    /// The system reported an error when a file was read that the store can do without.
    Unreadable,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Truncated => "the file is truncated",
            Self::Magic => "the file does not begin as one of this kind does",
            Self::PageChecksum => "the checksum of the header does not match",
            Self::Field(field) => {
                return write!(f, "the checksum matches but the {field} cannot be right");
            }
            Self::Length => "the length of a record is unreadable",
            Self::Checksum => "the checksum of a record does not match",
            Self::Misplaced => "a record stands where it does not belong",
            Self::Zeros => "durable records were replaced by zeros",
            Self::Unfinished => "a durable record is unfinished again",
            Self::EndsEarly => "the log ends before what was durable",
            Self::MissingSegment => "the file is missing",
            Self::Misnamed => "the file is another segment than its name says",
            Self::ForeignSegment => "the file belongs to another store",
            Self::Unlinked => "the file is no part of this log",
            Self::Unreadable => "the file cannot be read",
        };
        f.write_str(text)
    }
}

/// Durable data that cannot be read.
///
/// A key whose newest record is lost answers from an older one or not at all, so the store does not
/// open over a corruption by itself: its message says what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// What is wrong.
    pub damage: Damage,
    /// The file, in the store's directory.
    pub file: String,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Bytes that cannot be read; 0 when that is unknown (a missing file).
    pub bytes: u64,
    /// First sequence that a lost record may have.
    pub first_sequence: u64,
    /// Last sequence that a lost record may have.
    pub last_sequence: u64,
}

impl Corruption {
    /// Damage to a range of words of a segment.
    pub(crate) fn of_words(damage: Damage, file: &str, base: u64, from: u64, to: u64) -> Self {
        Self {
            damage,
            file: file.to_owned(),
            offset: from * 8,
            bytes: (to - from) * 8,
            first_sequence: base + from,
            last_sequence: base + to - 1,
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, byte {}: {} (lost: sequences {:#x} to {:#x}); restore a copy of the directory, or \
             open with Recovery::Salvage, which keeps a copy of the file and goes on without these \
             records: keys whose newest record is among them answer from an older one, or as \
             absent",
            self.file, self.offset, self.damage, self.first_sequence, self.last_sequence,
        )
    }
}

impl std::error::Error for Corruption {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_where_what_and_what_to_do() {
        let corruption = Corruption {
            damage: Damage::Checksum,
            file: "segment-0000001000000000.log".into(),
            offset: 8192,
            bytes: 256,
            first_sequence: 0x10_0000_0400,
            last_sequence: 0x10_0000_041F,
        };
        let message = corruption.to_string();
        for part in [
            "segment-0000001000000000.log",
            "byte 8192",
            "checksum of a record",
            "0x1000000400",
            "0x100000041f",
            "restore a copy",
            "Recovery::Salvage",
        ] {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
    }
}
