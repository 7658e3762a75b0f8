//! What the inbox keeps of an event between two deliveries.
//!
//! It stands before the handler's own checkpoint, in the same record, so that both are replaced in one
//! step:
//!
//! ```text
//! 0   8  "\x89inbox1\n"
//! 8   4  runs: how often the handler was started
//! 12  4  harmless: the attempt up to which nothing happened
//! 16  1  dead: 0, or why the event is dead
//! 17  1  0
//! 18  2  bytes of text
//! 20  .. text: what the last failure said, of a dead event
//! ..  .. the handler's checkpoint
//! ```
//!
//! A dead event of which nothing happened is completed with a response in the same form. What does not
//! begin like this is none of ours, and is left as it is.

use bytes::Bytes;

use crate::inbox::outcome::DeadReason;
use crate::limits::CHECKPOINT_BYTES_MAX;

const MAGIC: [u8; 8] = *b"\x89inbox1\n";
const HEAD_BYTES: usize = 20;
/// Bytes that are kept of what the last failure said.
const TEXT_BYTES_MAX: usize = 500;
/// Bytes of a note without a handler's checkpoint: what a dead event is completed with.
pub(crate) const MARKER_BYTES_MAX: usize = HEAD_BYTES + TEXT_BYTES_MAX;
/// Bytes of a handler's own checkpoint: 4,076.
pub const CHECKPOINT_MAX: usize = CHECKPOINT_BYTES_MAX - HEAD_BYTES;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// How often the handler was started.
    pub(crate) runs: u32,
    /// The attempt up to which it is known that nothing happened; 0 for none.
    pub(crate) harmless: u32,
    pub(crate) dead: Option<Dead>,
    /// The handler's own.
    pub(crate) checkpoint: Option<Bytes>,
}

/// Why an event is never run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) cause: Cause,
    pub(crate) text: String,
}

/// The reasons that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Rejected = 1,
    TooManyAttempts = 2,
    OutcomeUnknown = 3,
}

impl From<Cause> for DeadReason {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Rejected => Self::Rejected,
            Cause::TooManyAttempts => Self::TooManyAttempts,
            Cause::OutcomeUnknown => Self::OutcomeUnknown,
        }
    }
}

impl Note {
    /// Reads a checkpoint or a response. What the inbox did not write is a handler's checkpoint.
    pub(crate) fn read(bytes: Bytes) -> Self {
        Self::decode(&bytes).unwrap_or_else(|| Self {
            checkpoint: Some(bytes),
            ..Self::default()
        })
    }

    /// The handler's own checkpoint in this one, or what it is if it is not the inbox's.
    pub(crate) fn of_handler(bytes: Bytes) -> Option<Bytes> {
        Self::read(bytes).checkpoint
    }

    /// `None` for what the inbox did not write.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let (magic, rest) = head.split_first_chunk::<8>()?;
        let (runs, rest) = rest.split_first_chunk()?;
        let (harmless, rest) = rest.split_first_chunk()?;
        let &[dead, 0, text_low, text_high] = rest else {
            return None;
        };
        let text_len = usize::from(u16::from_le_bytes([text_low, text_high]));
        let text = bytes.get(HEAD_BYTES..HEAD_BYTES + text_len)?;
        let cause = match dead {
            0 => None,
            1 => Some(Cause::Rejected),
            2 => Some(Cause::TooManyAttempts),
            3 => Some(Cause::OutcomeUnknown),
            _ => return None,
        };
        let checkpoint = bytes.slice(HEAD_BYTES + text_len..);
        (*magic == MAGIC).then(|| Self {
            runs: u32::from_le_bytes(*runs),
            harmless: u32::from_le_bytes(*harmless),
            dead: cause.map(|cause| Dead {
                cause,
                text: String::from_utf8_lossy(text).into_owned(),
            }),
            checkpoint: (!checkpoint.is_empty()).then_some(checkpoint),
        })
    }

    /// The bytes. Of the text goes in what fits; the handler's checkpoint always does, since it was
    /// checked.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let checkpoint = self.checkpoint.as_deref().unwrap_or_default();
        let text_max = CHECKPOINT_MAX
            .saturating_sub(checkpoint.len())
            .min(TEXT_BYTES_MAX);
        let text = self.dead.as_ref().map_or("", |dead| &dead.text);
        let text = &text[..text.floor_char_boundary(text_max)];
        let mut bytes = Vec::with_capacity(HEAD_BYTES + text.len() + checkpoint.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.runs.to_le_bytes());
        bytes.extend_from_slice(&self.harmless.to_le_bytes());
        bytes.push(self.dead.as_ref().map_or(0, |dead| dead.cause as u8));
        bytes.push(0);
        // At most TEXT_BYTES_MAX.
        bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(checkpoint);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(dead: Option<Cause>, text: &str, checkpoint: &[u8]) -> Note {
        Note {
            runs: 7,
            harmless: 3,
            dead: dead.map(|cause| Dead {
                cause,
                text: text.to_owned(),
            }),
            checkpoint: (!checkpoint.is_empty()).then(|| Bytes::copy_from_slice(checkpoint)),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let causes = [
            None,
            Some(Cause::Rejected),
            Some(Cause::TooManyAttempts),
            Some(Cause::OutcomeUnknown),
        ];
        for cause in causes {
            for checkpoint in [&b""[..], b"half way", &[0; CHECKPOINT_MAX - 30]] {
                let written = note(cause, "no such customer", checkpoint);
                let bytes = Bytes::from(written.encode());
                assert!(bytes.len() <= CHECKPOINT_BYTES_MAX);
                assert_eq!(Note::decode(&bytes), Some(written));
            }
        }
    }

    #[test]
    fn a_text_is_cut_to_what_fits_and_a_checkpoint_never_is() {
        let checkpoint = [7; CHECKPOINT_MAX - 3];
        let written = note(Some(Cause::Rejected), "äöü", &checkpoint);
        let bytes = Bytes::from(written.encode());
        assert!(bytes.len() <= CHECKPOINT_BYTES_MAX);
        let read = Note::decode(&bytes).expect("a note");
        assert_eq!(read.checkpoint.as_deref(), Some(&checkpoint[..]));
        assert_eq!(read.dead.expect("dead").text, "ä");
        let long = note(Some(Cause::Rejected), &"x".repeat(10_000), b"");
        assert_eq!(long.encode().len(), HEAD_BYTES + TEXT_BYTES_MAX);
    }

    #[test]
    fn other_bytes_are_a_handlers_checkpoint() {
        let whole = note(Some(Cause::Rejected), "why", b"mine").encode();
        // Cut anywhere before its checkpoint it is not a note, and changed in its head it is not.
        for len in 0..HEAD_BYTES + 3 {
            assert_eq!(Note::decode(&Bytes::copy_from_slice(&whole[..len])), None);
        }
        for at in (0..8).chain([16, 17]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x80;
            assert_eq!(Note::decode(&Bytes::from(bytes.clone())), None, "byte {at}");
            let read = Note::read(Bytes::from(bytes.clone()));
            assert_eq!((read.runs, read.checkpoint), (0, Some(bytes.into())));
        }
    }
}
