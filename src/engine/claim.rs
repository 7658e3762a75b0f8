//! `claim`: start an operation, or learn what became of it.

use std::borrow::Cow;

use bytes::Bytes;

use crate::block::block_on;
use crate::clock::time;
use crate::domain::Domain;
use crate::engine::lookup::{Examined, Found, Located, check_open};
use crate::engine::{Engine, Level, Promise, RoomError};
use crate::error::{Abandoned, ClaimError, WriteError};
use crate::fingerprint::{Comparison, Fingerprint};
use crate::index::live::WHILE_ALIVE;
use crate::index::{Live, Phase, Slot, Stripe};
use crate::key::Key;
use crate::log::record::{Contents, Kind, words_for};
use crate::options::{Durability, ResolvedClaim};
use crate::sync::{MutexGuard, Ordering, mutation};

use super::lookup::Stored;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    /// Borrowed where the caller waits for the answer: a clone counts references.
    pub(crate) key: Cow<'a, Key>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) options: ResolvedClaim,
    pub(crate) level: Level,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Started(Grant),
    Interrupted(Grant),
    InProgress(Progress),
    Completed(Stored),
    Mismatch {
        attempt: u32,
        completed: bool,
        since_ms: u64,
        /// Of a completed one.
        expires_ms: Option<u64>,
    },
    TooLate {
        first_sent_ms: u64,
        limit_ms: u64,
    },
}

/// The right to act for a key. Whoever gets one must end it.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    pub(crate) token: u64,
    pub(crate) ticket: u64,
    pub(crate) attempt: u32,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    pub(crate) level: Level,
    /// What most operations do without, out of the way of those that move grants about.
    pub(crate) past: Option<Box<Past>>,
}

/// What was before, or is kept for those who come after.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) previous: Option<PreviousAttempt>,
    /// The newest checkpoint, of this attempt or an earlier one.
    pub(crate) checkpoint: Option<Bytes>,
}

/// The attempt whose outcome is unknown.
#[derive(Clone, Debug)]
pub(crate) struct PreviousAttempt {
    pub(crate) attempt: u32,
    pub(crate) started_ms: u64,
}

/// Somebody else's operation under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) attempt: u32,
    pub(crate) since_ms: u64,
    pub(crate) lease_left_ms: Option<u64>,
}

/// What one look at the key under its lock led to.
pub(super) enum Step {
    /// The answer, and the record it rests on.
    Answer(Outcome, u64),
    /// A transition is under way: look again when it is over.
    Settle,
    /// Room for this many words is needed first.
    Room(u64),
    /// The operation is too old to be taken up again, and the end of the record that says so.
    Abandoned(Abandoned, u64),
    /// An expired result hides an older one, and has to be removed before the key is anybody's.
    Uncover,
    /// Something changed in between: look again.
    Again,
}

/// What the key was before a grant on it.
pub(super) struct Before {
    /// 0 where there was no attempt.
    attempt: u32,
    created_ms: u64,
    started_ms: u64,
    fingerprint: Fingerprint,
    /// The newest record, where it holds a checkpoint to carry on.
    checkpoint: Option<Located>,
}

/// Why a key that is not completed goes to a new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handover {
    /// The old owner is gone or late: its outcome is unknown.
    NewAttempt {
        /// Token of the ticket it comes from, 0 without one.
        ticket: u64,
    },
    /// A ticket hands the same attempt on.
    SameAttempt {
        /// Token of the ticket.
        ticket: u64,
    },
}

impl Outcome {
    /// The grant, if it is one.
    fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Started(grant) | Self::Interrupted(grant) => Some(grant),
            _ => None,
        }
    }
}

impl Grant {
    /// Whether it waits for the disk before it is handed out, and its lease begins only then. The key
    /// may be lost meanwhile: to an operator.
    fn begins_later(&self) -> bool {
        self.level.durability == Durability::Sync
    }
}

impl Request<'_> {
    /// The same with a key of its own.
    pub(crate) fn into_owned(self) -> Request<'static> {
        Request {
            key: Cow::Owned(self.key.into_owned()),
            ..self
        }
    }
}

impl Engine {
    /// The one entry: every claim, blocking or not, alone or in a batch, comes through here.
    pub(crate) async fn claim(&self, request: &Request<'_>) -> Result<Outcome, ClaimError> {
        loop {
            let (outcome, end) = self.claim_written(request).await?;
            if let Some(outcome) = self.confirm(outcome, end, request.level).await? {
                return Ok(outcome);
            }
        }
    }

    /// [`claim`](Self::claim) for a thread that may block. Most claims have nothing to wait for, and
    /// then no future is made.
    pub(crate) fn claim_blocking(&self, request: &Request<'_>) -> Result<Outcome, ClaimError> {
        self.check_process()?;
        request.key.check(self.settings.key_part_bytes_max)?;
        let hash = self.hash(&request.key);
        match self.step(request, hash, &mut None)? {
            Step::Answer(outcome, end) if self.is_ready(&outcome, end, request.level) => {
                Ok(outcome)
            }
            Step::Answer(outcome, end) => {
                let confirmed = self.confirm(self.unconfirmed(outcome), end, request.level);
                match block_on(confirmed)? {
                    Some(outcome) => Ok(outcome),
                    None => block_on(self.claim(request)),
                }
            }
            // Nothing was done: from the beginning, with all the waiting there is.
            Step::Settle | Step::Room(_) | Step::Abandoned(..) | Step::Uncover | Step::Again => {
                block_on(self.claim(request))
            }
        }
    }

    /// Claims without waiting for durability. The caller must pass the result to
    /// [`confirm`](Self::confirm).
    pub(crate) async fn claim_written(
        &self,
        request: &Request<'_>,
    ) -> Result<(Unconfirmed<'_>, u64), ClaimError> {
        self.check_process()?;
        request.key.check(self.settings.key_part_bytes_max)?;
        let hash = self.hash(&request.key);
        let mut promise = None;
        loop {
            match self.step(request, hash, &mut promise)? {
                Step::Answer(outcome, end) => return Ok((self.unconfirmed(outcome), end)),
                Step::Settle => self.settled(hash, &request.key).await?,
                Step::Room(words) => {
                    drop(promise.take());
                    let promised = self.promise(words).await;
                    promise = Some(promised.map_err(RoomError::into::<ClaimError>)?);
                }
                Step::Abandoned(abandoned, end) => {
                    return Err(self.abandoned(abandoned, end, request.level).await);
                }
                Step::Uncover => self.uncover(&request.key).await?,
                Step::Again => {}
            }
        }
    }

    pub(super) fn unconfirmed(&self, outcome: Outcome) -> Unconfirmed<'_> {
        Unconfirmed {
            engine: self,
            outcome: Some(outcome),
        }
    }

    /// Whether [`confirm`](Self::confirm) would have nothing to do.
    fn is_ready(&self, outcome: &Outcome, end: u64, level: Level) -> bool {
        let begins_later = outcome.grant().is_some_and(Grant::begins_later);
        !begins_later && self.is_reached(end, level)
    }

    /// Hands an outcome out once it is as durable as its caller asks. Dropped before that, a grant
    /// is released: nothing ran.
    ///
    /// The lease of a grant that waits for the disk begins here. `None` where the key was lost by
    /// then, before anything ran: ask again.
    pub(crate) async fn confirm(
        &self,
        mut outcome: Unconfirmed<'_>,
        end: u64,
        level: Level,
    ) -> Result<Option<Outcome>, ClaimError> {
        match self.reach(end, level).await {
            Ok(()) => {}
            Err(error) if outcome.is_grant() => return Err(ClaimError::OutcomeUnknown(error)),
            Err(error) => return Err(ClaimError::Unavailable(error)),
        }
        if let Some(grant) = outcome.grant()
            && grant.begins_later()
            && let Err(WriteError::LeaseLost { .. }) = self.renew(grant)
        {
            return Ok(None);
        }
        Ok(outcome.outcome.take())
    }

    fn step<'a>(
        &'a self,
        request: &Request<'_>,
        hash: u64,
        promise: &mut Option<Promise<'a>>,
    ) -> Result<Step, ClaimError> {
        let now_ms = self.time.now_ms();
        let mut stripe = self.index.lock(hash);
        check_open(&stripe)?;
        if let Some(live) = stripe.live(hash, &request.key) {
            return match self.judge_live(live, request) {
                Some(step) => Ok(step),
                None => {
                    let handover = Handover::NewAttempt { ticket: 0 };
                    self.take_over(stripe, request, hash, promise, handover)
                }
            };
        }
        let candidates = stripe.candidates(hash);
        if candidates.is_empty() {
            return self.start(stripe, request, hash, promise, None, now_ms);
        }
        let located = self.locate(&candidates);
        drop(stripe);
        let replaces = match self.examine(&located, &request.key, now_ms)? {
            Examined::Found(found) => return Ok(answer_completed(found, request)),
            Examined::Expired(found) if now_ms < found.hides_until_ms => return Ok(Step::Uncover),
            Examined::Expired(found) => Some(found.slot),
            Examined::NotFound => None,
        };
        let mut stripe = self.index.lock(hash);
        check_open(&stripe)?;
        if (stripe.live(hash, &request.key).is_some() || stripe.candidates(hash) != candidates)
            && !mutation("examined_and_not_looked_at_again")
        {
            return Ok(Step::Again);
        }
        self.start(stripe, request, hash, promise, replaces, now_ms)
    }

    /// What a key that is not completed answers, or `None` when it is to be taken over.
    fn judge_live(&self, live: &Live, request: &Request<'_>) -> Option<Step> {
        if live.phase == Phase::Changing && !mutation("changing_taken_for_owned") {
            return Some(Step::Settle);
        }
        let end = live.newest.map_or(0, |newest| newest.end);
        if request.fingerprint.compare(live.fingerprint) == Comparison::Different {
            let mismatch = Outcome::Mismatch {
                attempt: live.attempt,
                completed: false,
                since_ms: live.started_ms,
                expires_ms: None,
            };
            return Some(Step::Answer(mismatch, end));
        }
        live.is_held(self.time.monotonic_ms())
            .then(|| self.progress_of(live))
    }

    pub(super) fn progress_of(&self, live: &Live) -> Step {
        let progress = Progress {
            attempt: live.attempt,
            since_ms: live.started_ms,
            lease_left_ms: live.lease_left_ms(self.time.monotonic_ms()),
        };
        Step::Answer(
            Outcome::InProgress(progress),
            live.newest.map_or(0, |newest| newest.end),
        )
    }

    /// Starts an operation on a key that is absent.
    fn start<'a>(
        &'a self,
        mut stripe: MutexGuard<'a, Stripe>,
        request: &Request<'_>,
        hash: u64,
        promise: &mut Option<Promise<'a>>,
        replaces: Option<Slot>,
        now_ms: u64,
    ) -> Result<Step, ClaimError> {
        if let Some(too_late) = self.too_late(request, now_ms) {
            return Ok(Step::Answer(too_late, 0));
        }
        self.check_writable()?;
        let claim_words = words_for(request.key.as_bytes().len(), 0, 0, 0);
        let completion_words = self.completion_words(&request.key);
        if !self.hold_room(promise, claim_words + completion_words) {
            return Ok(Step::Room(claim_words + completion_words));
        }
        if mutation("started_in_two_steps") {
            drop(stripe);
            stripe = self.index.lock(hash);
        }
        // The expired result of this key leaves it its place.
        let needs_place = replaces.is_none();
        if needs_place {
            self.places
                .take(request.key.scope())
                .inspect_err(|reached| self.counters.count_limit(reached.limit))?;
        }
        if let Err(full) = self.count_pending() {
            if needs_place {
                self.places.give_back(request.key.scope());
            }
            return Err(full);
        }
        if let Some(expired) = replaces {
            stripe.remove_completed(expired);
            self.counters.expired.add();
        }
        let key = Key::clone(&request.key);
        let live = Live::claiming(hash, key, request.fingerprint, now_ms);
        stripe.insert_live(Box::new(live));
        drop(stripe);
        let before = Before {
            attempt: 0,
            created_ms: now_ms,
            started_ms: now_ms,
            fingerprint: request.fingerprint,
            checkpoint: None,
        };
        let handover = Handover::NewAttempt { ticket: 0 };
        self.grant(request, hash, promise, before, handover, now_ms)
    }

    /// Counts one more key that is not completed, if there may be one.
    fn count_pending(&self) -> Result<(), ClaimError> {
        let limit = self.settings.pending_max;
        if mutation("pending_counted_in_two_steps") {
            let pending = self.pending.load(Ordering::Relaxed);
            if pending >= limit {
                return Err(ClaimError::TooManyPending { limit });
            }
            self.pending.store(pending + 1, Ordering::Relaxed);
        } else if self.pending.fetch_add(1, Ordering::Relaxed) >= limit {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            self.counters.pending_limit.add();
            return Err(ClaimError::TooManyPending { limit });
        }
        Ok(())
    }

    /// Gives a key that is not completed to a new owner.
    pub(super) fn take_over<'a>(
        &'a self,
        mut stripe: MutexGuard<'a, Stripe>,
        request: &Request<'_>,
        hash: u64,
        promise: &mut Option<Promise<'a>>,
        handover: Handover,
    ) -> Result<Step, ClaimError> {
        let key = &request.key;
        if mutation("taken_over_in_two_steps") {
            drop(stripe);
            stripe = self.index.lock(hash);
        }
        let Some(live) = stripe.live(hash, key) else {
            return Ok(Step::Again);
        };
        let now_ms = self.time.now_ms();
        if matches!(handover, Handover::NewAttempt { .. })
            && live.is_too_old(now_ms, self.settings.abandon_after_ms)
        {
            let end = live.newest.map_or(0, |newest| newest.end);
            return Ok(Step::Abandoned(Abandoned::of(live), end));
        }
        self.check_writable()?;
        let claim_words = words_for(key.as_bytes().len(), 0, live.checkpoint_bytes, 0);
        // What is set aside for a ticket's or a late owner's completion goes to the new one, so that
        // a ticket can be resumed on a full disk.
        let words = claim_words
            + self
                .completion_words(key)
                .saturating_sub(live.promised_words);
        if !self.hold_room(promise, words) {
            return Ok(Step::Room(words));
        }
        live.phase = Phase::Changing;
        if let Some(promise) = promise {
            promise.words += std::mem::take(&mut live.promised_words);
        }
        let noted = live.newest.filter(|_| live.checkpoint_bytes > 0);
        let before = Before {
            attempt: live.attempt,
            created_ms: live.created_ms,
            started_ms: live.started_ms,
            fingerprint: live.fingerprint,
            checkpoint: noted.map(|at| self.locate_slot(Slot::new(hash, at.segment, at.offset))),
        };
        drop(stripe);
        self.grant(request, hash, promise, before, handover, now_ms)
    }

    /// Appends the grant of a key that was marked as changing, and publishes it.
    fn grant(
        &self,
        request: &Request<'_>,
        hash: u64,
        promise: &mut Option<Promise<'_>>,
        before: Before,
        handover: Handover,
        now_ms: u64,
    ) -> Result<Step, ClaimError> {
        let mut change = self.change(hash, &request.key);
        let checkpoint = match before.checkpoint.as_ref().map(Located::record).transpose() {
            Ok(found) => found.map(|(_, record, _)| Bytes::copy_from_slice(record.checkpoint)),
            Err(damaged) => {
                change.undo(Phase::Interrupted);
                return Err(damaged.into());
            }
        };
        let (attempt, started_ms, ticket) = match handover {
            Handover::NewAttempt { ticket } => (
                before.attempt.saturating_add(1),
                now_ms.max(before.created_ms),
                ticket,
            ),
            Handover::SameAttempt { ticket } => (before.attempt, before.started_ms, ticket),
        };
        let contents = Contents {
            kind: Kind::Claim,
            domain: Domain::Operations,
            is_dead: false,
            fingerprint: before.fingerprint,
            token: 0,
            ticket,
            attempt,
            created_ms: before.created_ms,
            started_ms,
            ended_ms: 0,
            deadline_ms: 0,
            key: request.key.as_bytes(),
            key_lengths: request.key.lengths(),
            principal: None,
            checkpoint: checkpoint.as_deref().unwrap_or_default(),
            response: None,
            attached: &[],
        };
        let mut held = promise.take().unwrap_or(Promise {
            log: &self.log,
            words: 0,
        });
        held.spend(contents.words());
        // A claim is never larger than the slop, so its promise always finds room.
        let appended = self
            .log
            .append(&contents)
            .unwrap_or_else(|_| unreachable!("a promised claim has room"));
        let promised_words = self.completion_words(&request.key);
        held.spend(promised_words);
        let lease_ms = request.options.lease_ms;
        // The disk may take longer than a lease lasts. Were it to run meanwhile, two who wait for a
        // slow disk could take the key from each other for ever.
        let lease_end_ms = match request.level.durability {
            Durability::Buffered => self.lease_end(lease_ms),
            Durability::Sync => WHILE_ALIVE,
        };
        change.publish(|live| {
            live.phase = Phase::Owned;
            live.token = appended.sequence;
            live.ticket = ticket;
            live.attempt = attempt;
            live.started_ms = started_ms;
            live.lease_end_ms = lease_end_ms;
            live.newest = Some(appended);
            live.promised_words = promised_words;
        });
        let is_new = matches!(handover, Handover::NewAttempt { .. });
        let previous = (is_new && before.attempt > 0).then_some(PreviousAttempt {
            attempt: before.attempt,
            started_ms: before.started_ms,
        });
        let interrupted = previous.is_some();
        let past = (interrupted || checkpoint.is_some()).then(|| {
            Box::new(Past {
                previous,
                checkpoint,
            })
        });
        let grant = Grant {
            key: Key::clone(&request.key),
            hash,
            token: appended.sequence,
            ticket,
            attempt,
            fingerprint: before.fingerprint,
            created_ms: before.created_ms,
            started_ms,
            lease_ms,
            retention_ms: request.options.retention_ms,
            level: request.level,
            past,
        };
        let outcome = if interrupted {
            Outcome::Interrupted(grant)
        } else {
            Outcome::Started(grant)
        };
        Ok(Step::Answer(outcome, appended.end))
    }

    /// The error for an operation that is too old, once the record it rests on is durable.
    pub(super) async fn abandoned(
        &self,
        abandoned: Abandoned,
        end: u64,
        level: Level,
    ) -> ClaimError {
        match self.reach(end, level).await {
            Ok(()) => {
                self.counters.claims_abandoned.add();
                ClaimError::Abandoned(abandoned)
            }
            Err(error) => ClaimError::Unavailable(error),
        }
    }

    /// Makes sure that `promise` holds exactly `words`, without waiting.
    pub(super) fn hold_room<'a>(&'a self, promise: &mut Option<Promise<'a>>, words: u64) -> bool {
        if promise.as_ref().is_some_and(|held| held.words == words) {
            return true;
        }
        *promise = None;
        if !self.log.try_room(words) {
            return false;
        }
        *promise = Some(Promise {
            log: &self.log,
            words,
        });
        true
    }

    /// Monotonic ms at which a lease that begins now is over.
    pub(crate) fn lease_end(&self, lease_ms: u64) -> u64 {
        if lease_ms == WHILE_ALIVE {
            WHILE_ALIVE
        } else {
            self.time.monotonic_ms().saturating_add(lease_ms)
        }
    }

    /// Whether an absent key was first sent so long ago that its result may have come and gone. What
    /// was sent, and completed, exactly a retention ago has expired just now.
    fn too_late(&self, request: &Request<'_>, now_ms: u64) -> Option<Outcome> {
        let first_sent_ms = request.options.first_sent_ms?;
        let limit_ms = now_ms
            .saturating_sub(request.options.retention_ms)
            .saturating_add(1)
            .max(self.restored_at_ms);
        (first_sent_ms < limit_ms).then_some(Outcome::TooLate {
            first_sent_ms,
            limit_ms,
        })
    }
}

impl Abandoned {
    fn of(live: &Live) -> Self {
        Self {
            attempt: live.attempt,
            since: time(live.started_ms),
            created_at: time(live.created_ms),
        }
    }
}

/// The one place where a stored result turns into an answer: fingerprint first.
pub(super) fn answer_completed(found: Found, request: &Request<'_>) -> Step {
    let end = found.stored.end;
    let outcome = match request.fingerprint.compare(found.fingerprint) {
        Comparison::Different => Outcome::Mismatch {
            attempt: found.stored.attempt,
            completed: true,
            since_ms: found.stored.completed_ms,
            expires_ms: Some(found.stored.expires_ms),
        },
        Comparison::Same | Comparison::NotComparable => Outcome::Completed(found.stored),
    };
    Step::Answer(outcome, end)
}

/// An outcome on its way to the caller. Dropped here (a cancelled future, a failed sync), a grant is
/// released: nobody saw it, so nothing ran.
pub(crate) struct Unconfirmed<'a> {
    engine: &'a Engine,
    outcome: Option<Outcome>,
}

impl Unconfirmed<'_> {
    pub(crate) fn is_grant(&self) -> bool {
        self.grant().is_some()
    }

    fn grant(&self) -> Option<&Grant> {
        self.outcome.as_ref().and_then(Outcome::grant)
    }
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if mutation("dropped_claim_kept") {
            return;
        }
        match self.outcome.take() {
            Some(Outcome::Started(grant)) if grant.ticket == 0 => {
                self.engine.release_unseen(&grant);
            }
            // What an earlier attempt, or this one before its ticket, did is still unknown.
            Some(Outcome::Started(grant) | Outcome::Interrupted(grant)) => {
                self.engine.abandon_unseen(&grant);
            }
            _ => {}
        }
    }
}
