//! What is attached to a completion: whole records of their own, in its extension.
//!
//! A completion and the messages and versions that belong to it are one range of the log: one
//! reservation, one checksum over all, one word that commits it. So all of it is there or none.
//! Each attached record is complete all the same, with a first word, a checksum and its own position
//! as its sequence. Slots point straight at it, and compaction copies it by itself.
//!
//! Its first word says [`State::Attached`]: a scan that looks for the next true range after damage
//! does not take a part of a damaged whole for one.

use crate::domain::Domain;
use crate::log::record::{Kind, Malformed, Record};
use crate::log::word::{self, Decoded, State};

/// A record within another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached<'a> {
    /// Words from the start of the whole.
    pub(crate) offset: u64,
    pub(crate) words: u64,
    pub(crate) record: Record<'a>,
}

/// The records that are attached to `record`, whose bytes these are and which stands at `position`
/// in the segment of `seed`. Each is verified; the first that is not as a writer makes it is the
/// last that is shown.
pub(crate) fn attached<'a>(
    record: &Record<'_>,
    bytes: &'a [u8],
    position: u64,
    seed: u64,
) -> impl Iterator<Item = Result<Attached<'a>, Malformed>> + use<'a> {
    let mut offset = record.body_words();
    let mut is_over = false;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset as usize * 8..).unwrap_or_default();
        if is_over || rest.is_empty() {
            return None;
        }
        let next = next(rest, offset, position, seed);
        match &next {
            Ok(attached) => offset += attached.words,
            Err(_) => is_over = true,
        }
        Some(next)
    })
}

fn next(rest: &[u8], offset: u64, position: u64, seed: u64) -> Result<Attached<'_>, Malformed> {
    let fault = Malformed::Field("extension");
    let raw = rest.first_chunk().ok_or(fault)?;
    let position = position.checked_add(offset).ok_or(fault)?;
    let Decoded::Word {
        words,
        state: State::Attached,
    } = word::decode(u64::from_le_bytes(*raw), position, seed)
    else {
        return Err(fault);
    };
    let own = rest.get(..words as usize * 8).ok_or(fault)?;
    let record = Record::parse(own, seed)?;
    let is_attachment = record.kind == Kind::Complete
        && record.domain != Domain::Operations
        && !record.is_copy
        && record.sequence == position
        && record.token == position;
    if !is_attachment {
        return Err(fault);
    }
    Ok(Attached {
        offset,
        words,
        record,
    })
}
