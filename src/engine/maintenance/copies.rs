//! Copying what is kept, grouped so that what is in one file dies together.

use std::sync::Arc;

use super::Pass;
use super::choose::Plan;
use super::job::damage;
use crate::domain::Domain;
use crate::index::Slot;
use crate::log::compact::Room;
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::maintenance::MaintenanceError;

/// A file has no results that live more than so many times as long as its first one, unless it
/// would be small.
const LIFE_TIMES: u64 = 4;
/// What is small: less than this part of a segment.
const SMALL_PART: u64 = 8;

/// A record to be copied.
#[derive(Debug)]
pub(super) struct Keep {
    /// Which of the plan's sources it is in, and where, in words.
    pub(super) source: usize,
    pub(super) offset: u64,
    pub(super) words: u64,
    pub(super) deadline_ms: u64,
    pub(super) domain: Domain,
    pub(super) hash: u64,
    /// The slot that points to it; none for a removal.
    pub(super) slot: Option<Slot>,
}

/// A result that was copied.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) hash: u64,
    pub(super) slot: Slot,
    /// Which of the copies it is in, and where, in words.
    pub(super) copy: usize,
    pub(super) offset: u64,
    pub(super) words: u64,
    pub(super) deadline_ms: u64,
}

impl Pass<'_> {
    /// Writes new files, durably, to which nothing points yet; into what is set aside for that where
    /// there is no other room.
    pub(super) fn copy(
        &mut self,
        plan: &Plan,
        mut keep: Vec<Keep>,
        now_ms: u64,
    ) -> Result<(Vec<Arc<Segment>>, Vec<Moved>), MaintenanceError> {
        keep.sort_unstable_by_key(|each| {
            let is_removal = each.slot.is_none();
            (
                each.domain,
                each.deadline_ms,
                is_removal,
                each.source,
                each.offset,
            )
        });
        match self.copy_into(Room::OnDisk, plan, &keep, now_ms) {
            Err(error) if error.is_full() && self.engine.log.has_spare() => {
                self.clear_away()?;
                self.copy_into(Room::SetAside, plan, &keep, now_ms)
            }
            copied => copied,
        }
    }

    fn copy_into(
        &mut self,
        room: Room,
        plan: &Plan,
        keep: &[Keep],
        now_ms: u64,
    ) -> Result<(Vec<Arc<Segment>>, Vec<Moved>), MaintenanceError> {
        let sources: Vec<_> = plan.sources().collect();
        let (mut copies, mut moved) = (Vec::new(), Vec::with_capacity(keep.len()));
        let mut rest = keep;
        while !rest.is_empty() {
            let count = self.group(rest, room, now_ms);
            let (group, later) = rest.split_at(count);
            rest = later;
            let copied = self.copy_group(&sources, group, room, copies.len(), &mut moved, now_ms);
            match copied {
                Ok(segment) => copies.push(segment),
                Err(error) => {
                    // Nothing points to those that are done.
                    copies.iter().for_each(|copy| self.engine.log.discard(copy));
                    return Err(error);
                }
            }
        }
        Ok((copies, moved))
    }

    /// How many of the records, which are in the order of their deadlines, go into the next file. Into
    /// what is set aside go as many as there is room for.
    fn group(&self, records: &[Keep], room: Room, now_ms: u64) -> usize {
        let segment_words = self.copied_words_max();
        let life = |each: &Keep| each.deadline_ms.saturating_sub(now_ms).max(1);
        let first = records.first().map_or(1, life);
        let mut words = 0;
        for (index, each) in records.iter().enumerate() {
            let is_full = words + each.words > segment_words;
            let is_long = life(each) > first.saturating_mul(LIFE_TIMES);
            // What is read for the sake of a removal is not mixed with results.
            let is_other = records
                .first()
                .is_some_and(|first| first.domain != each.domain);
            let is_enough = is_other || is_long && words >= segment_words / SMALL_PART;
            if index > 0 && (is_full || is_enough && room == Room::OnDisk) {
                return index;
            }
            words += each.words;
        }
        records.len()
    }

    /// Words of records that fit into a file as large as a segment.
    pub(super) fn copied_words_max(&self) -> u64 {
        self.engine.settings.segment_bytes / 8 - FIRST_RECORD
    }

    fn copy_group(
        &mut self,
        sources: &[&Arc<Segment>],
        group: &[Keep],
        room: Room,
        copy: usize,
        moved: &mut Vec<Moved>,
        now_ms: u64,
    ) -> Result<Arc<Segment>, MaintenanceError> {
        let writing = || MaintenanceError::io("writing a compacted file");
        let words = group.iter().map(|each| each.words).sum();
        let log = &self.engine.log;
        let mut writer = log.begin_copies(words, now_ms, room).map_err(writing())?;
        let mut removals_ms = 0;
        let mut unpaid = 0;
        for each in group {
            let Some(segment) = sources.get(each.source) else {
                continue;
            };
            let bytes = segment.record_bytes(each.offset);
            let pushed = writer.push(bytes.unwrap_or_default(), segment.seed);
            let offset = pushed
                .map_err(writing())?
                .ok_or_else(|| damage(segment, each.offset, each.words))?;
            match each.slot {
                Some(slot) => moved.push(Moved {
                    hash: each.hash,
                    slot,
                    copy,
                    offset,
                    words: each.words,
                    deadline_ms: each.deadline_ms,
                }),
                None => removals_ms = removals_ms.max(each.deadline_ms),
            }
            unpaid += each.words * 8;
            if unpaid >= PAID_EVERY_BYTES {
                self.wrote(std::mem::take(&mut unpaid))?;
            }
        }
        self.wrote(unpaid)?;
        let segment = writer.finish().map_err(writing())?;
        segment.worth().keep_removals_until(removals_ms);
        if group.iter().any(|each| each.domain != Domain::Operations) {
            segment.set_holds_attached();
        }
        for removal in group.iter().filter(|each| each.slot.is_none()) {
            // Nobody knows when the last copy of a message or version goes that it hides: after a while
            // that is looked at again.
            let until_ms = match removal.domain {
                Domain::Operations => removal.deadline_ms,
                Domain::Messages | Domain::Versions => now_ms + LOOKED_AT_AGAIN_MS,
            };
            segment.worth().add(until_ms, removal.words);
        }
        self.report.segments_written += 1;
        self.report.records_copied += group.len() as u64;
        self.report.bytes_copied += words * 8;
        Ok(segment)
    }
}

/// How long a removal of a message or version counts for once it was copied: an hour.
const LOOKED_AT_AGAIN_MS: u64 = 3_600_000;
/// How often the pace is kept while copying.
const PAID_EVERY_BYTES: u64 = 1 << 20;
