//! What an owner does while its operation is pending: checkpoint, renew, hand on by ticket.

use bytes::Bytes;

use crate::domain::Domain;
use crate::engine::claim::{Grant, Handover, Outcome, Request, Step, answer_completed};
use crate::engine::lookup::{Examined, LocatedSlots, check_open};
use crate::engine::{Engine, Level, RoomError};
use crate::error::{ClaimError, OutOfSpace, WriteError};
use crate::fingerprint::{Comparison, Fingerprint};
use crate::index::Phase;
use crate::index::live::WHILE_ALIVE;
use crate::key::Key;
use crate::limits::CHECKPOINT_BYTES_MAX;
use crate::log::record::{Contents, Kind};
use crate::sync::mutation;
use crate::ticket::ResumeError;

/// What a ticket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketParts {
    pub(crate) store_id: u128,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) attempt: u32,
    pub(crate) token: u64,
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
}

impl Engine {
    /// Writes a note that the next owner will see.
    pub(crate) async fn checkpoint(
        &self,
        grant: &mut Grant,
        note: &[u8],
        level: Level,
    ) -> Result<(), WriteError> {
        self.check_process()?;
        let (len, max) = (note.len(), CHECKPOINT_BYTES_MAX);
        if len > max {
            return Err(WriteError::CheckpointTooLarge { len, max });
        }
        self.check_writable()?;
        let contents = Contents {
            kind: Kind::Checkpoint,
            domain: Domain::Operations,
            is_dead: false,
            fingerprint: grant.fingerprint,
            token: grant.token,
            ticket: grant.ticket,
            attempt: grant.attempt,
            created_ms: grant.created_ms,
            started_ms: grant.started_ms,
            ended_ms: 0,
            deadline_ms: 0,
            key: grant.key.as_bytes(),
            key_lengths: grant.key.lengths(),
            principal: None,
            checkpoint: note,
            response: None,
            attached: &[],
        };
        let words = contents.words();
        let mut promise = self
            .promise(words)
            .await
            .map_err(RoomError::into::<WriteError>)?;
        let marked = self.mark_changing(grant, |_| Ok::<_, std::convert::Infallible>(()))?;
        let Ok(()) = marked;
        let mut change = self.change(grant.hash, &grant.key);
        let appended = match self.log.append(&contents) {
            Ok(appended) => appended,
            Err(_) => {
                change.undo(Phase::Owned);
                let full = OutOfSpace {
                    needed_bytes: words * 8,
                    source: None,
                };
                return Err(WriteError::OutOfSpace(full));
            }
        };
        promise.spend(words);
        change.publish(|live| {
            live.phase = Phase::Owned;
            live.newest = Some(appended);
            live.checkpoint_bytes = len;
        });
        // To a record an empty note is none, so it is to the guard.
        let noted = (len > 0).then(|| Bytes::copy_from_slice(note));
        grant.past.get_or_insert_default().checkpoint = noted;
        self.reach(appended.end, level)
            .await
            .map_err(WriteError::OutcomeUnknown)
    }

    /// Starts the lease anew, or at all: that of a grant which waited for the disk has not begun.
    /// Leases live in memory: nothing is written.
    pub(crate) fn renew(&self, grant: &Grant) -> Result<(), WriteError> {
        self.check_process()?;
        let lease_end_ms = self.lease_end(grant.lease_ms);
        let mut waiters = None;
        let marked = self.mark_changing(grant, |live| {
            // They know of no end yet at which to look again.
            if live.lease_end_ms == WHILE_ALIVE && lease_end_ms != WHILE_ALIVE {
                waiters = Some(live.take_waiters());
            }
            live.lease_end_ms = lease_end_ms;
            Err::<std::convert::Infallible, ()>(())
        })?;
        if let Some(waiters) = waiters {
            waiters.wake();
        }
        match marked {
            Ok(never) => match never {},
            Err(()) => Ok(()),
        }
    }

    /// Turns the guard's hold into a ticket's.
    pub(crate) fn detach(&self, grant: &Grant) -> Result<TicketParts, WriteError> {
        self.check_process()?;
        if grant.lease_ms == WHILE_ALIVE {
            return Err(WriteError::TicketNeedsLease);
        }
        let marked = self.mark_changing(grant, |live| {
            live.phase = Phase::Detached;
            Err::<std::convert::Infallible, ()>(())
        })?;
        match marked {
            Ok(never) => match never {},
            Err(()) => Ok(TicketParts {
                store_id: self.store_id,
                key: grant.key.clone(),
                fingerprint: grant.fingerprint,
                attempt: grant.attempt,
                token: grant.token,
                lease_ms: grant.lease_ms,
                retention_ms: grant.retention_ms,
            }),
        }
    }

    /// Turns a ticket into a guard, once. The request is made of the ticket.
    pub(crate) async fn resume(
        &self,
        ticket: &TicketParts,
        request: &Request<'_>,
    ) -> Result<Outcome, ResumeError> {
        self.check_process().map_err(ClaimError::from)?;
        if ticket.store_id != self.store_id {
            return Err(ResumeError::OtherStore);
        }
        let part_bytes_max = self.settings.key_part_bytes_max;
        request
            .key
            .check(part_bytes_max)
            .map_err(ClaimError::from)?;
        let hash = self.hash(&request.key);
        let mut promise = None;
        loop {
            let step = {
                let mut stripe = self.index.lock(hash);
                check_open(&stripe).map_err(ClaimError::from)?;
                match stripe.live(hash, &request.key) {
                    Some(live) if live.phase == Phase::Changing => Step::Settle,
                    Some(live)
                        if live.token != ticket.token
                            && live.ticket != ticket.token
                            && !mutation("overtaken_ticket_accepted") =>
                    {
                        return Err(ResumeError::LeaseLost {
                            new_attempt: Some(live.attempt),
                        });
                    }
                    Some(live) => {
                        let held = live.is_held(self.time.monotonic_ms());
                        let is_unused = (live.phase == Phase::Detached
                            && live.token == ticket.token)
                            || mutation("used_ticket_accepted");
                        let handover = match held {
                            true if is_unused => Some(Handover::SameAttempt {
                                ticket: ticket.token,
                            }),
                            true => None,
                            false => Some(Handover::NewAttempt {
                                ticket: ticket.token,
                            }),
                        };
                        match handover {
                            Some(handover) => {
                                self.take_over(stripe, request, hash, &mut promise, handover)?
                            }
                            None => self.progress_of(live),
                        }
                    }
                    None => {
                        let located = self.locate(&stripe.candidates(hash));
                        drop(stripe);
                        self.resumed_completed(located, request)?
                    }
                }
            };
            match step {
                Step::Answer(outcome, end) => {
                    let outcome = self.unconfirmed(outcome);
                    if let Some(outcome) = self.confirm(outcome, end, request.level).await? {
                        return Ok(outcome);
                    }
                }
                Step::Settle => self.settled(hash, &request.key).await?,
                Step::Room(words) => {
                    drop(promise.take());
                    let promised = self.promise(words).await;
                    promise = Some(promised.map_err(RoomError::into::<ClaimError>)?);
                }
                Step::Abandoned(abandoned, end) => {
                    return Err(self.abandoned(abandoned, end, request.level).await.into());
                }
                Step::Uncover => self.uncover(&request.key).await?,
                Step::Again => {}
            }
        }
    }

    fn resumed_completed(
        &self,
        located: LocatedSlots,
        request: &Request<'_>,
    ) -> Result<Step, ResumeError> {
        let lost = ResumeError::LeaseLost { new_attempt: None };
        match self
            .examine(&located, &request.key, self.time.now_ms())
            .map_err(ClaimError::from)?
        {
            Examined::Found(found)
                if request.fingerprint.compare(found.fingerprint) == Comparison::Different =>
            {
                Err(lost)
            }
            Examined::Found(found) => Ok(answer_completed(found, request)),
            Examined::NotFound | Examined::Expired(_) => Err(lost),
        }
    }
}
