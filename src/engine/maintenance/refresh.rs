//! Keys without an outcome: settled before anything is judged, and written to the log again before
//! the segment of their newest record goes.

use std::time::Duration;

use super::Pass;
use super::choose::Plan;
use crate::block::block_on;
use crate::domain::Domain;
use crate::error::ClaimError;
use crate::index::{Live, Phase, Slot};
use crate::key::Key;
use crate::log::append::Appended;
use crate::log::record::{Contents, Kind, words_for};
use crate::maintenance::MaintenanceError;
use crate::sync::mutation;

/// How often, and how far apart, room in the log is asked for before the pass gives up.
const TRIES: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

impl Pass<'_> {
    /// Waits until every transition that is under way now has been published. Segments that were
    /// full before have then no record whose place the index does not know of yet.
    pub(super) fn settle(&self) -> Result<(), MaintenanceError> {
        if mutation("judged_before_it_is_published") {
            return Ok(());
        }
        let is_changing = |live: &Live| live.phase == Phase::Changing;
        for (hash, key) in self.keys_where(is_changing) {
            let settled = block_on(self.engine.settled(hash, &key));
            settled.map_err(unavailable)?;
            self.check()?;
        }
        Ok(())
    }

    /// Writes every key again whose newest record is in a segment that goes.
    pub(super) fn refresh(&mut self, plan: &Plan) -> Result<(), MaintenanceError> {
        let is_leaving = |live: &Live| live.newest.is_some_and(|at| plan.has(at.segment));
        for (hash, key) in self.keys_where(is_leaving) {
            while !self.refresh_one(hash, &key, plan)? {
                let settled = block_on(self.engine.settled(hash, &key));
                settled.map_err(unavailable)?;
                self.check()?;
            }
        }
        Ok(())
    }

    fn keys_where(&self, is_wanted: impl Fn(&Live) -> bool) -> Vec<(u64, Key)> {
        let mut keys = Vec::new();
        for stripe in self.engine.index.stripes() {
            let stripe = stripe.lock();
            let wanted = stripe.live_entries().filter(|live| is_wanted(live));
            keys.extend(wanted.map(|live| (live.hash, live.key.clone())));
        }
        keys
    }

    /// `false` while a transition is under way: to be tried again.
    fn refresh_one(&mut self, hash: u64, key: &Key, plan: &Plan) -> Result<bool, MaintenanceError> {
        let engine = self.engine;
        let leaving = |live: &Live| live.newest.filter(|at| plan.has(at.segment));
        let (at, words) = {
            let mut stripe = engine.index.lock(hash);
            let Some(live) = stripe.live(hash, key) else {
                return Ok(true);
            };
            let Some(at) = leaving(live) else {
                return Ok(true);
            };
            (
                at,
                words_for(key.as_bytes().len(), 0, live.checkpoint_bytes, 0),
            )
        };
        // It can't go before this pass lets it.
        let located = engine.locate_slot(Slot::new(hash, at.segment, at.offset));
        let (_, record, _) = located.record().map_err(|damaged| {
            let corrupt = plan.sources().find(|each| each.number == at.segment);
            corrupt.map_or(MaintenanceError::Panicked, |segment| {
                super::job::damage(segment, damaged.offset / 8, 0)
            })
        })?;
        self.wrote(words * 8)?;
        self.hold_room(words)?;
        let mut stripe = engine.index.lock(hash);
        let found = stripe.live(hash, key);
        let same = found.filter(|live| live.newest == Some(at) && live.phase != Phase::Changing);
        let Some(live) = same else {
            drop(stripe);
            engine.log.give_back(words);
            return Ok(false);
        };
        let phase = std::mem::replace(&mut live.phase, Phase::Changing);
        live.rewritten = Some(phase);
        let contents = contents_of(live, key, record.checkpoint);
        drop(stripe);
        let mut change = engine.change(hash, key);
        // Never larger than the slop, as a claim that carries the same checkpoint.
        let appended = engine
            .log
            .append(&contents)
            .unwrap_or_else(|_| unreachable!("a promised checkpoint has room"));
        change.publish(|live| {
            live.phase = phase;
            // Nobody waits for what the record before says as well: that goes once this is durable.
            live.newest = Some(Appended {
                end: at.end,
                ..appended
            });
        });
        self.report.keys_refreshed += 1;
        self.check()?;
        Ok(true)
    }

    /// Takes a promise of room, waiting for the preparer for a while where none is left of what was
    /// promised in advance.
    fn hold_room(&self, words: u64) -> Result<(), MaintenanceError> {
        let log = &self.engine.log;
        for _ in 0..TRIES {
            if log.try_room(words) {
                return Ok(());
            }
            let mut promised = self.engine.maintenance.room.lock();
            if let Some(left) = promised.checked_sub(words) {
                *promised = left;
                return Ok(());
            }
            drop(promised);
            log.ask_for_room();
            self.engine.maintenance.nap(BETWEEN_TRIES);
            self.check()?;
        }
        Err(MaintenanceError::NoRoom {
            needed_bytes: words * 8,
        })
    }
}

/// The record that says of a key what the one before said.
fn contents_of<'a>(live: &Live, key: &'a Key, checkpoint: &'a [u8]) -> Contents<'a> {
    Contents {
        kind: Kind::Checkpoint,
        domain: Domain::Operations,
        is_dead: false,
        fingerprint: live.fingerprint,
        token: live.token,
        ticket: live.ticket,
        attempt: live.attempt,
        created_ms: live.created_ms,
        started_ms: live.started_ms,
        ended_ms: 0,
        deadline_ms: 0,
        key: key.as_bytes(),
        key_lengths: key.lengths(),
        principal: None,
        checkpoint,
        response: None,
        attached: &[],
    }
}

fn unavailable(error: ClaimError) -> MaintenanceError {
    match error {
        ClaimError::Unavailable(error) => error.into(),
        _ => MaintenanceError::Panicked,
    }
}
