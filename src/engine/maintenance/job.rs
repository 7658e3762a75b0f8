//! One job: segments are given up, and what they hold of worth is kept elsewhere.
//!
//! In this order:
//! 1. every transition under way is awaited, so that the index knows of all that is in the sources;
//! 2. keys without an outcome are written to the log again;
//! 3. the sources are read: every slot that points into one belongs to a result that is kept or has
//!    expired, and removals are kept as long as a copy may exist of what they removed;
//! 4. what is kept is copied into files of its own, durably;
//! 5. all of the log up to now is made durable: a record was taken for superseded because of a newer
//!    one, which no loss of power may take back then;
//! 6. META says which files count, and that time was at least what results were judged by;
//! 7. slots are moved, one by one, each only if it is still the same;
//! 8. nothing points into the sources any more: they leave the table, and their files go.

use std::collections::HashMap;
use std::sync::Arc;

use super::Pass;
use super::choose::Plan;
use super::copies::{Keep, Moved};
use crate::block::block_on;
use crate::corruption::{Corruption, Damage};
use crate::domain::Domain;
use crate::engine::Engine;
use crate::error::Unavailable;
use crate::index::{Slot, Stripe};
use crate::key::Key;
use crate::log::commit::Lead;
use crate::log::compact::GivingUp;
use crate::log::record::{Kind, Record};
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::word::{Decoded, State};
use crate::maintenance::MaintenanceError;
use crate::sync::{MutexGuard, mutation, relax};

/// What the sources hold.
#[derive(Debug, Default)]
struct Findings {
    keep: Vec<Keep>,
    /// Removals of messages and versions, which are kept as long as a compacted file holds what they
    /// removed.
    removals: Vec<Keep>,
    /// Hash and slot of each result that has expired.
    expired: Vec<(u64, Slot)>,
}

impl<'a> Pass<'a> {
    /// Does it. After an error all that counted still does, or its copies do.
    pub(super) fn give_up(&mut self, plan: &Plan) -> Result<(), MaintenanceError> {
        let engine = self.engine;
        let span = tracing::info_span!(
            "compact",
            log_segments = plan.log.len(),
            compacted_files = plan.compacted.len(),
            copied_bytes = tracing::field::Empty,
        );
        let _entered = span.enter();
        self.settle()?;
        self.refresh(plan)?;
        let slots = self.slots_where(|number| plan.has(number));
        let judged_ms = engine.time.now_ms();
        let findings = self.read_sources(plan, &slots, judged_ms)?;
        let (copies, moved) = self.copy(plan, findings.keep, judged_ms)?;
        span.record(
            "copied_bytes",
            copies.iter().map(|each| each.used_words() * 8).sum::<u64>(),
        );
        let held = match self.make_durable() {
            Ok(held) => held,
            Err(error) => {
                // Nothing points to them.
                copies.iter().for_each(|copy| engine.log.discard(copy));
                return Err(error);
            }
        };
        let log = &engine.log;
        log.give_up(&GivingUp {
            log_start: (!plan.log.is_empty()).then_some(plan.log_rest),
            sources: &plan.log,
            added: &copies,
            removed: None,
            judged_ms,
        })
        .map_err(MaintenanceError::io("writing META"))?;
        self.relocate(&moved, &copies);
        self.expire(&findings.expired);
        let left = self.slots_where(|number| plan.has(number));
        assert!(
            left.is_empty(),
            "{} slots point into what is given up",
            left.len()
        );
        for segment in &plan.log {
            self.discard(segment);
        }
        self.clear_away()?;
        for segment in &plan.compacted {
            log.give_up(&GivingUp {
                log_start: None,
                sources: &[],
                added: &[],
                removed: Some(segment),
                judged_ms,
            })
            .map_err(MaintenanceError::io("writing META"))?;
            self.discard(segment);
            self.clear_away()?;
        }
        drop(held);
        Ok(())
    }

    /// Makes all of the log durable, and then keeps snapshots from seeing a change of the files that
    /// count half done.
    fn make_durable(&self) -> Result<MutexGuard<'a, ()>, MaintenanceError> {
        let log = &self.engine.log;
        let durable = block_on(log.durable(log.tail(), Lead::Allowed));
        durable.map_err(|poison| Unavailable::Poisoned {
            file: poison.file,
            source: poison.source,
        })?;
        loop {
            // Those who waited for the disk were woken, and may have closed the store.
            self.check()?;
            if let Some(held) = log.try_hold_members() {
                return Ok(held);
            }
            self.engine.maintenance.nap(super::WHILE_HELD);
        }
    }

    fn discard(&mut self, segment: &Segment) {
        self.engine.log.discard(segment);
        self.report.segments_removed += 1;
        self.report.bytes_removed += segment.file_bytes();
    }

    pub(super) fn clear_away(&self) -> Result<(), MaintenanceError> {
        let cleared = self.engine.log.clear_away();
        cleared.map_err(MaintenanceError::io("removing files that are not needed"))
    }

    /// Reads the sources and sorts out what is in them.
    fn read_sources(
        &self,
        plan: &Plan,
        slots: &[Slot],
        now_ms: u64,
    ) -> Result<Findings, MaintenanceError> {
        let mut findings = Findings::default();
        let mut rest = slots.to_vec();
        rest.sort_unstable_by_key(|slot| (slot.segment(), slot.offset()));
        for (index, segment) in plan.sources().enumerate() {
            let first = rest.partition_point(|slot| slot.segment() < segment.number);
            let own = rest.get(first..).unwrap_or_default();
            let count = own.partition_point(|slot| slot.segment() == segment.number);
            let own = own.get(..count).unwrap_or_default();
            if own.is_empty() && segment.worth().has_no_removals(now_ms) {
                continue;
            }
            let pages = segment.used_words() * 8;
            let storage = self.engine.log.storage();
            let read = crate::log::compact::read_through(storage, segment);
            read.map_err(MaintenanceError::io("reading a segment"))?;
            self.read(pages)?;
            self.read_source(segment, index, own, now_ms, &mut findings)?;
        }
        self.keep_removals(plan, &mut findings)?;
        Ok(findings)
    }

    fn read_source(
        &self,
        segment: &Segment,
        source: usize,
        slots: &[Slot],
        now_ms: u64,
        findings: &mut Findings,
    ) -> Result<(), MaintenanceError> {
        let mut slots = slots.iter().copied().peekable();
        let log_start = self.engine.log.log_start();
        records(segment, &mut |offset, words, record| {
            let Ok(key) = Key::from_parts(record.key, record.key_lengths) else {
                return Err(damage(segment, offset, words));
            };
            let hash = self.engine.hash(&key.within(record.domain));
            let slot = slots.next_if(|slot| slot.offset() == offset);
            let keep = Keep {
                source,
                offset,
                words,
                deadline_ms: record.deadline_ms.max(record.hides_until_ms()),
                domain: record.domain,
                hash,
                slot,
            };
            match (record.kind, slot) {
                (Kind::Complete, Some(_)) if record.is_live(now_ms) => findings.keep.push(keep),
                // It has expired, and a copy may exist of what it took the place of, which has not.
                (Kind::Complete, Some(_))
                    if record.token < log_start && now_ms < record.hides_until_ms() =>
                {
                    findings.keep.push(keep);
                }
                (Kind::Complete, Some(slot)) => findings.expired.push((hash, slot)),
                (Kind::Forget, None) if record.domain != Domain::Operations => {
                    findings.removals.push(keep);
                }
                // What it removed was copied only if the log has begun behind it since. Where it has
                // expired by itself the copy answers nobody, removed or not.
                (Kind::Forget, None) if record.token < log_start && now_ms < record.deadline_ms => {
                    findings.keep.push(keep);
                }
                (_, None) => {}
                (_, Some(_)) => return Err(damage(segment, offset, words)),
            }
            Ok(())
        })?;
        match slots.next() {
            None => Ok(()),
            // The index knows of a record that is not there.
            Some(slot) => Err(damage(segment, slot.offset(), 0)),
        }
    }

    /// Keeps those removals without which something would come back: of what they removed a copy is
    /// left in a compacted file. Files that this job gives up count too, since they do until after the
    /// removals are gone; but not the removal's own, with which both go.
    fn keep_removals(&self, plan: &Plan, findings: &mut Findings) -> Result<(), MaintenanceError> {
        let removals = std::mem::take(&mut findings.removals);
        if removals.is_empty() {
            return Ok(());
        }
        let mut found: HashMap<u64, Vec<u64>> = removals
            .iter()
            .map(|each| (each.hash, Vec::new()))
            .collect();
        let files = self.engine.log.segments().all();
        for file in files.iter().filter(|file| file.holds_attached()) {
            self.read(file.used_words() * 8)?;
            let read = records(file, &mut |_, _, record| {
                let is_copy = record.kind == Kind::Complete && record.domain != Domain::Operations;
                let hash = is_copy.then(|| self.engine.hash_of(&record)).flatten();
                if let Some(files) = hash.and_then(|hash| found.get_mut(&hash)) {
                    files.push(file.base);
                }
                Ok(())
            });
            // Of one that can't be read nobody knows what it holds.
            if read.is_err() {
                found.values_mut().for_each(|files| files.push(file.base));
            }
        }
        let sources: Vec<_> = plan.sources().map(|source| source.base).collect();
        findings.keep.extend(removals.into_iter().filter(|each| {
            let own = sources.get(each.source);
            let files = found.get(&each.hash);
            files.is_some_and(|files| files.iter().any(|file| Some(file) != own))
        }));
        Ok(())
    }

    /// Lets the index find each result in its copy.
    fn relocate(&self, moved: &[Moved], copies: &[Arc<Segment>]) {
        for moved in moved {
            let Some(segment) = copies.get(moved.copy) else {
                continue;
            };
            let new = Slot::new(moved.hash, segment.number, moved.offset);
            if self.engine.move_slot(moved.hash, moved.slot, new) {
                segment.worth().add(moved.deadline_ms, moved.words);
            }
        }
    }

    /// Takes expired results out of the index.
    fn expire(&mut self, expired: &[(u64, Slot)]) {
        for (hash, slot) in expired {
            let located = self.engine.locate_slot(*slot);
            let is_removed = self
                .engine
                .change_slot(*hash, *slot, |stripe| stripe.remove_completed(*slot));
            if is_removed && self.engine.uncount(&located) {
                self.engine.counters.expired.add();
                self.report.results_expired += 1;
            }
        }
    }
}

impl Engine {
    /// Lets a result be found in its copy, unless it is gone.
    pub(in crate::engine) fn move_slot(&self, hash: u64, old: Slot, new: Slot) -> bool {
        if mutation("moved_in_two_steps") {
            let is_removed = self.change_slot(hash, old, |stripe| stripe.remove_completed(old));
            if is_removed {
                self.index.lock(hash).insert_completed(new);
            }
            return is_removed;
        }
        self.change_slot(hash, old, |stripe| stripe.move_completed(old, new))
    }

    /// Changes a slot if it is still there, under its stripe's lock.
    ///
    /// While its key is being forgotten it stays, and whoever forgets it will take out exactly this
    /// one: that is awaited.
    fn change_slot(&self, hash: u64, slot: Slot, change: impl FnOnce(&mut Stripe) -> bool) -> bool {
        let mut round = 0;
        loop {
            let mut stripe = self.index.lock(hash);
            if !stripe.has_completed(slot) {
                return false;
            }
            if !stripe.is_changing_at(hash) || mutation("moved_while_it_is_forgotten") {
                return change(&mut stripe);
            }
            drop(stripe);
            round += 1;
            relax(round);
        }
    }
}

/// Visits the records of a segment, each verified, with its offset and length in words, and those that
/// are attached to one, which is without them, after it.
///
/// # Errors
///
/// The visitor's, and [`MaintenanceError::Damaged`] for the first that can't be read.
fn records(
    segment: &Segment,
    visit: &mut dyn FnMut(u64, u64, Record<'_>) -> Result<(), MaintenanceError>,
) -> Result<(), MaintenanceError> {
    let tail = segment.tail() - segment.base;
    let mut offset = FIRST_RECORD;
    while offset < tail {
        let (words, state) = match segment.word_at(offset) {
            Decoded::Word { words, state } if words <= tail - offset => (words, state),
            _ => return Err(damage(segment, offset, 1)),
        };
        match state {
            State::Padding => {}
            State::Reserved | State::Attached => return Err(damage(segment, offset, words)),
            State::Committed => {
                let (record, _) = segment
                    .verified_record(offset)
                    .ok_or_else(|| damage(segment, offset, words))?;
                visit(offset, record.body_words(), record)?;
                for one in segment.attached(offset, &record) {
                    let one = one.map_err(|_| damage(segment, offset, words))?;
                    visit(offset + one.offset, one.words, one.record)?;
                }
            }
        }
        offset += words;
    }
    Ok(())
}

/// A record that can't be read.
pub(super) fn damage(segment: &Segment, offset: u64, words: u64) -> MaintenanceError {
    MaintenanceError::Damaged(Corruption::of_words(
        Damage::Checksum,
        &segment.name,
        segment.base,
        offset,
        offset + words.max(1),
    ))
}
