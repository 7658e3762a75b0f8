//! Corruption or torn tail: the judgement over what the scans found.
//!
//! A bad spot below any watermark that was recorded anywhere held durable data: that is corruption,
//! refused or, when salvaging, skipped and listed. The first bad spot at or above all watermarks is
//! where a loss of power tore the log: it ends there, whatever follows. A range that was reserved
//! and never finished is no bad spot there: its writer was killed, and what others appended behind
//! it counts.

use crate::corruption::{Corruption, Damage};
use crate::log::header::PAGE_BYTES;
use crate::log::recover::{Candidate, RecoverError};
use crate::log::scan::Spot;

/// What becomes of the log.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Everything below was durable.
    pub(super) watermark: u64,
    /// The segments that stay, in order; those behind them are discarded.
    pub(super) kept: Vec<Kept>,
    /// Unfinished ranges that were skipped.
    pub(super) holes: u64,
    /// Durable ranges that were given up.
    pub(super) losses: Vec<Corruption>,
}

/// What stays of one segment.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Word offset behind its last range.
    pub(super) tail: u64,
    /// Records up to there.
    pub(super) records: u64,
    /// Ranges to be turned into padding.
    pub(super) fills: Vec<(u64, u64)>,
    /// Whether some of them were durable.
    pub(super) lossy: bool,
}

/// Judges the segments, in order of their bases and linked.
///
/// # Errors
///
/// The first corruption, unless `salvage`.
pub(super) fn judge(
    candidates: &[Candidate],
    meta_watermark: u64,
    salvage: bool,
) -> Result<Verdict, RecoverError> {
    let known = |candidate: &Candidate| {
        candidate
            .file
            .header
            .watermark
            .max(candidate.scan.watermark)
    };
    let watermark = candidates.iter().map(known).fold(meta_watermark, u64::max);
    let mut verdict = Verdict {
        watermark,
        kept: Vec::with_capacity(candidates.len()),
        holes: 0,
        losses: Vec::new(),
    };
    for (index, candidate) in candidates.iter().enumerate() {
        let next_base = candidates.get(index + 1).map(|next| next.file.base);
        if verdict.take(candidate, next_base, salvage)? {
            break;
        }
    }
    if candidates.is_empty() && watermark > 0 {
        verdict.lose(no_segments(watermark), salvage)?;
    }
    Ok(verdict)
}

impl Verdict {
    /// Takes over what is good of the next segment; whether the log ends in it.
    fn take(
        &mut self,
        candidate: &Candidate,
        next_base: Option<u64>,
        salvage: bool,
    ) -> Result<bool, RecoverError> {
        let mut kept = Kept::default();
        for spot in &candidate.scan.spots {
            let position = candidate.file.base + spot.from;
            if position >= self.watermark {
                if spot.damage != Damage::Unfinished {
                    kept.tail = spot.from;
                    kept.records = spot.records_before;
                    self.kept.push(kept);
                    return Ok(true);
                }
                self.holes += 1;
            } else {
                self.lose(candidate.corruption(*spot), salvage)?;
                kept.lossy = true;
            }
            kept.fills.push((spot.from, spot.to));
        }
        kept.tail = candidate.scan.end;
        kept.records = candidate.scan.records;
        let end = candidate.file.base + kept.tail;
        let mut ends_here = false;
        match candidate.file.expected_end {
            Some(expected) if kept.tail < expected => {
                ends_here = end >= self.watermark;
                if !ends_here {
                    let spot = ends_early(kept.tail, expected);
                    self.lose(candidate.corruption(spot), salvage)?;
                    kept.lossy = true;
                    kept.fills.push((kept.tail, expected));
                    kept.tail = expected;
                }
            }
            None => {
                let lost_to = self.lost_to(candidate, next_base, kept.tail);
                if end < lost_to {
                    let mut corruption = candidate.corruption(ends_early(kept.tail, kept.tail + 1));
                    corruption.bytes = 0;
                    corruption.last_sequence = lost_to - 1;
                    self.lose(corruption, salvage)?;
                    kept.lossy = true;
                }
            }
            Some(_) => {}
        }
        self.kept.push(kept);
        Ok(ends_here)
    }

    /// Up to where records are gone behind `tail`, in a segment of which nobody tells any more where
    /// it ended.
    fn lost_to(&self, candidate: &Candidate, next_base: Option<u64>, tail: u64) -> u64 {
        let file = &candidate.file;
        // It did not end before a watermark that lies in it.
        let watermark = match next_base {
            Some(next) if self.watermark > next => 0,
            _ => self.watermark,
        };
        // No file ends within a page, nor within a record or behind one whose length nobody can read.
        let last = candidate.scan.spots.last();
        let torn = last.is_some_and(|spot| spot.to == tail && spot.damage == Damage::Length);
        let cut = torn || !file.len.is_multiple_of(PAGE_BYTES as u64);
        match next_base {
            Some(next) if cut => file.end_at_most(next).max(watermark),
            _ => watermark,
        }
    }

    fn lose(&mut self, corruption: Corruption, salvage: bool) -> Result<(), RecoverError> {
        if !salvage {
            return Err(RecoverError::Corrupt(corruption));
        }
        self.losses.push(corruption);
        Ok(())
    }
}

fn ends_early(from: u64, to: u64) -> Spot {
    Spot {
        from,
        to,
        damage: Damage::EndsEarly,
        records_before: 0,
    }
}

/// All segments are gone.
fn no_segments(watermark: u64) -> Corruption {
    Corruption {
        damage: Damage::EndsEarly,
        file: crate::log::meta::META.into(),
        offset: 0,
        bytes: 0,
        first_sequence: 0,
        last_sequence: watermark - 1,
    }
}
