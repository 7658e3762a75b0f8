//! Compacted files: which of them count, and whether they are whole.
//!
//! A compacted file gets its name when all of it is durable, and counts from the update of META that
//! says so. Until then nothing refers to it; from then on all of it was durable, so whatever is wrong
//! with one is corruption, never a torn tail. What does not count is left over from a pass that was
//! cut off, and goes.

use crate::corruption::{Corruption, Damage};
use crate::log::members::{Members, Tally};
use crate::log::prepare::{compacted_name, segment_name};
use crate::log::recover::files::Files;
use crate::log::recover::judge::Kept;
use crate::log::recover::listing::Listing;
use crate::log::recover::{Candidate, RecoverError};
use crate::log::scan::Spot;
use crate::log::segment::FIRST_RECORD;

impl Listing {
    /// Puts the files that do not count any more, or not yet, among those that go.
    pub(super) fn leave_out(&mut self, members: &Members) {
        let (counting, given_up) = divide(&self.segments, |base| base >= members.log_start);
        self.segments = counting;
        let is_member = |base| base < members.compacted_end && base != members.removing;
        let (counting, not_counted) = divide(&self.compacted, is_member);
        self.compacted = counting;
        // A job was cut off that had no other room: the next one will have none either.
        let never_counted = not_counted
            .iter()
            .find(|base| **base >= members.compacted_end);
        let becomes_spare = never_counted.filter(|_| !self.spare);
        self.becomes_spare = becomes_spare.map(|base| compacted_name(*base));
        let names = given_up.into_iter().map(segment_name);
        self.leftovers.extend(names);
        let names = not_counted.into_iter().map(compacted_name);
        let names = names.filter(|name| self.becomes_spare.as_ref() != Some(name));
        self.leftovers.extend(names);
    }
}

fn divide(bases: &[u64], counts: impl Fn(u64) -> bool) -> (Vec<u64>, Vec<u64>) {
    bases.iter().partition(|base| counts(**base))
}

impl Files {
    /// Checks that these are the compacted files that META counted, no more and no fewer.
    ///
    /// # Errors
    ///
    /// That one is missing or too many, unless `salvage`.
    pub(super) fn match_tally(
        &mut self,
        found: Tally,
        members: &Members,
        salvage: bool,
    ) -> Result<(), RecoverError> {
        if found == members.compacted {
            return Ok(());
        }
        let is_fewer = found.count < members.compacted.count;
        let damage = if is_fewer {
            Damage::MissingSegment
        } else {
            Damage::Unlinked
        };
        // A sum is all that is known of one missing file; of more, not even that.
        let base = match members.compacted.count.wrapping_sub(found.count) {
            1 => members.compacted.sum.wrapping_sub(found.sum),
            _ => 0,
        };
        self.lose(
            Corruption {
                damage,
                file: if base > 0 {
                    compacted_name(base)
                } else {
                    String::from("compacted-*.log")
                },
                offset: 0,
                bytes: 0,
                first_sequence: 0,
                last_sequence: members.log_start.saturating_sub(1),
            },
            salvage,
        )
    }
}

/// Judges a compacted file: all of it was durable.
///
/// # Errors
///
/// The first corruption, unless `salvage`.
pub(super) fn judge(
    candidate: &Candidate,
    losses: &mut Vec<Corruption>,
    salvage: bool,
) -> Result<Kept, RecoverError> {
    let mut kept = Kept {
        tail: candidate.scan.end.max(FIRST_RECORD + 1),
        records: candidate.scan.records,
        ..Kept::default()
    };
    let mut spots = candidate.scan.spots.clone();
    if let Some(expected) = candidate.file.expected_end {
        if candidate.scan.end < expected {
            spots.push(Spot {
                from: candidate.scan.end,
                to: expected,
                damage: Damage::EndsEarly,
                records_before: candidate.scan.records,
            });
        }
        kept.tail = expected;
    } else if candidate.scan.end < kept.tail {
        // Its header is gone, and nothing behind it can be read.
        kept.fills.push((candidate.scan.end, kept.tail));
    }
    for spot in spots {
        let corruption = candidate.corruption(spot);
        if !salvage {
            return Err(RecoverError::Corrupt(corruption));
        }
        losses.push(corruption);
        kept.lossy = true;
        kept.fills.push((spot.from, spot.to));
    }
    Ok(kept)
}
