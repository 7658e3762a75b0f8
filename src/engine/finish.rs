//! Ending an operation: completed, released, abandoned, interrupted, forgotten.

use std::sync::Arc;

use crate::block::block_on;
use crate::domain::Domain;
use crate::engine::attached::{Attachments, Mark, Prepared, Published};
use crate::engine::change::Change;
use crate::engine::claim::Grant;
use crate::engine::lookup::{Examined, Found, Stored, check_open};
use crate::engine::{Engine, Level, Promise, RoomError};
use crate::error::{AdminError, ClaimError, Unavailable, WriteError};
use crate::index::live::Waiters;
use crate::index::{Live, Phase, Slot};
use crate::key::Key;
use crate::limits::PRINCIPAL_BYTES_MAX;
use crate::log::append::{Appended, NoSpace};
use crate::log::commit::Lead;
use crate::log::record::{Contents, Kind, Record, words_for};
use crate::log::segment::Segment;
use crate::options::Durability;
use crate::sync::{self, mutation};

/// How an owner ends its operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish<'a> {
    /// Done; `None` keeps no response.
    Complete {
        response: Option<&'a [u8]>,
        principal: Option<&'a [u8]>,
        retention_ms: u64,
        /// What is stored with it.
        attachments: Option<&'a Attachments>,
    },
    /// Nothing happened.
    Release,
}

/// What a forced or unforced removal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    Absent,
    Removed,
}

/// Why an ending was refused, and whether the guard still holds the key.
pub(crate) struct Refusal {
    pub(crate) error: WriteError,
    pub(crate) held: bool,
}

impl Engine {
    /// Ends the operation of `grant`. The record is appended at the first poll unless room for a
    /// large response must be waited for; after that it is never undone, and dropping the future
    /// only stops the waiting.
    pub(crate) async fn finish(
        &self,
        grant: &Grant,
        finish: Finish<'_>,
        level: Level,
    ) -> Result<Option<Stored>, Refusal> {
        self.check_finish(finish)?;
        let (end, stored) = self.finish_with_room(grant, finish, level).await?;
        self.counters.count_finish(stored.is_some());
        match self.reach(end, level).await {
            Ok(()) => Ok(stored),
            Err(error) => Err(Refusal::unknown(error)),
        }
    }

    /// [`finish`](Self::finish) for a thread that may block. Most endings have nothing to wait for,
    /// and then no future is made.
    pub(crate) fn finish_blocking(
        &self,
        grant: &Grant,
        finish: Finish<'_>,
        level: Level,
    ) -> Result<Option<Stored>, Refusal> {
        self.check_finish(finish)?;
        let (end, stored) = match self.finish_written(grant, finish, &mut None, &mut None) {
            Ok(written) => written,
            Err(FinishStep::Refused(refusal)) => return Err(refusal),
            Err(FinishStep::Room(_) | FinishStep::Rest(_) | FinishStep::Stale(..)) => {
                block_on(self.finish_with_room(grant, finish, level))?
            }
        };
        self.counters.count_finish(stored.is_some());
        if !self.is_reached(end, level) {
            block_on(self.reach(end, level)).map_err(Refusal::unknown)?;
        }
        Ok(stored)
    }

    async fn finish_with_room(
        &self,
        grant: &Grant,
        finish: Finish<'_>,
        level: Level,
    ) -> Result<(u64, Option<Stored>), Refusal> {
        let (mut extra, mut rest) = (None, None);
        loop {
            let (short, words) = match self.finish_written(grant, finish, &mut extra, &mut rest) {
                Ok(written) => return Ok(written),
                Err(FinishStep::Refused(refusal)) => return Err(refusal),
                Err(FinishStep::Room(words)) => (&mut extra, words),
                Err(FinishStep::Rest(words)) => (&mut rest, words),
                Err(FinishStep::Stale(error, end)) => {
                    drop((extra, rest));
                    self.reach(end, level).await?;
                    return Err(Refusal::held(error));
                }
            };
            drop(short.take());
            let promised = self.promise(words).await;
            *short = Some(promised.map_err(|error| Refusal::held(error.into()))?);
        }
    }

    fn check_finish(&self, finish: Finish<'_>) -> Result<(), Refusal> {
        self.check_process()?;
        self.check_sizes(finish).map_err(Refusal::held)
    }

    fn check_sizes(&self, finish: Finish<'_>) -> Result<(), WriteError> {
        let Finish::Complete {
            response,
            principal,
            ..
        } = finish
        else {
            return Ok(());
        };
        let len = response.map_or(0, <[u8]>::len);
        let max = self.settings.response_bytes_max;
        if len > max {
            return Err(WriteError::ResponseTooLarge { len, max });
        }
        let len = principal.map_or(0, <[u8]>::len);
        if len > PRINCIPAL_BYTES_MAX {
            return Err(WriteError::PrincipalTooLong {
                len,
                max: PRINCIPAL_BYTES_MAX,
            });
        }
        Ok(())
    }

    fn finish_written<'a>(
        &'a self,
        grant: &Grant,
        finish: Finish<'_>,
        extra: &mut Option<Promise<'a>>,
        rest: &mut Option<Promise<'a>>,
    ) -> Result<(u64, Option<Stored>), FinishStep> {
        let refused = |error: WriteError| {
            // Only a lost lease takes the key out of the guard's hand.
            let held = !matches!(error, WriteError::LeaseLost { .. });
            FinishStep::Refused(Refusal { error, held })
        };
        self.check_writable()
            .map_err(|error| refused(error.into()))?;
        let prepared = match finish {
            Finish::Complete {
                attachments: Some(attachments),
                ..
            } => self
                .prepare(grant, attachments)
                .map_err(|error| refused(error.into()))?,
            _ => Prepared::default(),
        };
        let contents = self.ending(grant, finish);
        let words = contents.words() + prepared.words;
        self.check_whole(words, &prepared)
            .map_err(|error| refused(error.into()))?;
        let registered = match prepared.messages.len() {
            0 => None,
            places => {
                let registered = self.queue.register(places, self.log.tail());
                Some(registered.map_err(|limit| refused(WriteError::OutboxFull { limit }))?)
            }
        };
        let promised = self
            .mark_changing(grant, |live| {
                let short = words.saturating_sub(live.promised_words);
                let room = short == 0 || self.hold_room(extra, short);
                room.then(|| std::mem::take(&mut live.promised_words))
                    .ok_or(short)
            })
            .map_err(refused)?;
        let promised = match promised {
            Ok(promised) => promised,
            Err(short) => return Err(FinishStep::Room(short)),
        };
        let mut change = self.change(grant.hash, &grant.key);
        // Nothing was written: the guard holds the key as before.
        let undone = |change: &mut Change<'_>| {
            change.publish(|live| {
                live.phase = Phase::Owned;
                live.promised_words = promised;
            });
        };
        let marks = match self.mark_versions(&prepared) {
            Ok(marks) => marks,
            Err(unmarked) => {
                undone(&mut change);
                unmarked.waiters.into_iter().for_each(Waiters::wake);
                return Err(match unmarked.end {
                    None => refused(unmarked.error),
                    Some(end) => FinishStep::Stale(unmarked.error, end),
                });
            }
        };
        let attached = self.attached_contents(&prepared, &marks, contents.ended_ms);
        let contents = Contents {
            attached: &attached,
            ..contents
        };
        drop(rest.take());
        let (appended, segment) = match self.log.append_held(&contents) {
            Ok(appended) => appended,
            Err(NoSpace { words }) => {
                // The rest of the segment is too small, and to be given up it must be paid for.
                let waiters: Vec<_> = marks.into_iter().map(Mark::undo).collect();
                undone(&mut change);
                waiters.into_iter().for_each(Waiters::wake);
                return Err(FinishStep::Rest(words));
            }
        };
        match extra {
            Some(extra) => extra.spend(extra.words),
            None => self.log.give_back(promised - words),
        }
        let completed = matches!(finish, Finish::Complete { .. });
        if completed {
            segment
                .worth()
                .add(contents.deadline_ms, contents.body_words());
        }
        let published = match attached.is_empty() {
            true => Published::default(),
            false => self.publish_attached(&prepared, marks, &contents, &appended, &segment),
        };
        change.retire(|stripe| {
            if completed {
                let slot = Slot::new(grant.hash, appended.segment, appended.offset);
                stripe.insert_completed(slot);
            }
            !completed
        });
        // Whoever is woken may run here at once, and come back: nothing is marked any more.
        published.waiters.into_iter().for_each(Waiters::wake);
        if let Some(registered) = registered {
            registered.list(published.listed, self.time.monotonic_ms());
        }
        // The segment was held from before the slot was published, so that the caller's own answer
        // can't be gone.
        let stored = completed.then(|| Stored::written(&contents, &appended, segment));
        Ok((appended.end, stored))
    }

    fn ending<'a>(&self, grant: &'a Grant, finish: Finish<'a>) -> Contents<'a> {
        let now_ms = self.time.now_ms().max(grant.started_ms);
        let (kind, deadline_ms, principal, response) = match finish {
            Finish::Complete {
                response,
                principal,
                retention_ms,
                ..
            } => (
                Kind::Complete,
                now_ms.saturating_add(retention_ms),
                principal,
                response,
            ),
            Finish::Release => (Kind::Release, 0, None, None),
        };
        Contents {
            kind,
            domain: Domain::Operations,
            is_dead: false,
            fingerprint: grant.fingerprint,
            token: grant.token,
            ticket: grant.ticket,
            attempt: grant.attempt,
            created_ms: grant.created_ms,
            started_ms: grant.started_ms,
            ended_ms: now_ms,
            deadline_ms,
            key: grant.key.as_bytes(),
            key_lengths: grant.key.lengths(),
            principal,
            checkpoint: &[],
            response,
            attached: &[],
        }
    }

    /// Checks that `grant` still holds its key and, if `ready` agrees, marks it as changing.
    pub(crate) fn mark_changing<T, N>(
        &self,
        grant: &Grant,
        ready: impl FnOnce(&mut Live) -> Result<T, N>,
    ) -> Result<Result<T, N>, WriteError> {
        let mut round = 0;
        let mut is_checked = false;
        loop {
            let mut stripe = self.index.lock(grant.hash);
            check_open(&stripe)?;
            let Some(live) = stripe.live(grant.hash, &grant.key) else {
                return Err(WriteError::LeaseLost { new_attempt: None });
            };
            if live.phase == Phase::Changing && !is_checked {
                // Somebody takes the key from us: a few hundred nanoseconds, then we know.
                drop(stripe);
                round += 1;
                sync::relax(round);
                continue;
            }
            if !is_checked {
                check_owner(live, grant)?;
            }
            if mutation("owner_checked_then_marked") && !is_checked {
                is_checked = true;
                continue;
            }
            let marked = ready(live);
            if marked.is_ok() {
                live.phase = Phase::Changing;
            }
            return Ok(marked);
        }
    }

    /// Gives a grant back that nobody has seen. Where that can't be written the key is interrupted.
    pub(crate) fn release_unseen(&self, grant: &Grant) {
        if self.is_forked() {
            return;
        }
        if self
            .finish_written(grant, Finish::Release, &mut None, &mut None)
            .is_err()
        {
            self.abandon_unseen(grant);
        }
    }

    /// The guard is gone without a word: the key is interrupted at once, and those who wait know.
    pub(crate) fn abandon(&self, grant: &Grant) {
        if let Some(waiters) = self.give_up(grant) {
            self.counters.interruptions.add();
            waiters.wake();
        }
    }

    /// The same for a grant that nobody has seen, which counts for nothing.
    pub(crate) fn abandon_unseen(&self, grant: &Grant) {
        if let Some(waiters) = self.give_up(grant) {
            waiters.wake();
        }
    }

    /// Whom to wake, if the key was held under this grant.
    fn give_up(&self, grant: &Grant) -> Option<Waiters> {
        if self.is_forked() {
            return None;
        }
        let mut round = 0;
        loop {
            let mut stripe = self.index.lock(grant.hash);
            let live = stripe.live(grant.hash, &grant.key)?;
            if live.phase == Phase::Changing {
                drop(stripe);
                round += 1;
                sync::relax(round);
                continue;
            }
            check_owner(live, grant).ok()?;
            return Some(self.set_interrupted(live));
        }
    }

    fn set_interrupted(&self, live: &mut Live) -> Waiters {
        live.phase = Phase::Interrupted;
        self.log.give_back(std::mem::take(&mut live.promised_words));
        if mutation("abandoned_wakes_nobody") {
            return Default::default();
        }
        live.wakers(true)
    }

    /// Takes the key from a hung owner, in memory: nothing is written, as at the owner's death.
    pub(crate) async fn interrupt(&self, key: &Key, token: u64) -> Result<(), AdminError> {
        self.check_process().map_err(ClaimError::from)?;
        let hash = self.hash(key);
        let waiters = loop {
            {
                let mut stripe = self.index.lock(hash);
                check_open(&stripe).map_err(ClaimError::from)?;
                match stripe.live(hash, key) {
                    Some(live)
                        if live.phase == Phase::Changing
                            && !mutation("interrupted_while_changing") => {}
                    Some(live)
                        if live.token == token && !matches!(live.phase, Phase::Interrupted) =>
                    {
                        break self.set_interrupted(live);
                    }
                    _ => {
                        return Err(AdminError::NotHeld {
                            token: crate::Token::from_u64(token),
                        });
                    }
                }
            }
            self.settled(hash, key).await?;
        };
        self.counters.interruptions.add();
        waiters.wake();
        Ok(())
    }

    /// Removes a key whatever it is; a pending one only by force, which fences its owner.
    pub(crate) async fn forget(
        &self,
        key: &Key,
        force: bool,
        level: Level,
    ) -> Result<Forgotten, AdminError> {
        self.check_process().map_err(ClaimError::from)?;
        key.check(self.settings.key_part_bytes_max)
            .map_err(ClaimError::from)?;
        self.check_writable().map_err(ClaimError::from)?;
        let hash = self.hash(key);
        let words = words_for(key.as_bytes().len(), 0, 0, 0);
        let mut promise = self
            .promise(words)
            .await
            .map_err(|error| AdminError::Claim(RoomError::into::<ClaimError>(error)))?;
        loop {
            match self.forget_step(key, hash, force, &mut promise)? {
                ForgetStep::Absent => {
                    // It may have been removed a moment ago: durable on return holds here too.
                    self.reach(self.log.tail(), level)
                        .await
                        .map_err(ClaimError::Unavailable)?;
                    return Ok(Forgotten::Absent);
                }
                ForgetStep::Written(forgotten, end) => {
                    self.reach(end, level)
                        .await
                        .map_err(ClaimError::OutcomeUnknown)?;
                    return Ok(forgotten);
                }
                ForgetStep::Settle => self.settled(hash, key).await?,
                ForgetStep::Again => {}
            }
        }
    }

    /// Removes an expired result for good, since it hides an older one that has not expired.
    pub(super) async fn uncover(&self, key: &Key) -> Result<(), ClaimError> {
        let level = Level {
            durability: Durability::Buffered,
            lead: Lead::Never,
        };
        match self.forget(key, false, level).await {
            // Somebody removed and claimed it already.
            Ok(_) | Err(AdminError::Pending { .. } | AdminError::NotHeld { .. }) => Ok(()),
            Err(AdminError::Claim(error)) => Err(error),
        }
    }

    fn forget_step(
        &self,
        key: &Key,
        hash: u64,
        force: bool,
        promise: &mut Promise<'_>,
    ) -> Result<ForgetStep, AdminError> {
        let now_ms = self.time.now_ms();
        let mut stripe = self.index.lock(hash);
        check_open(&stripe).map_err(ClaimError::from)?;
        if let Some(live) = stripe.live(hash, key) {
            if live.phase == Phase::Changing {
                return Ok(ForgetStep::Settle);
            }
            if !force {
                return Err(AdminError::Pending {
                    attempt: live.attempt,
                });
            }
            let removed = Removed::of_live(live);
            self.log.give_back(std::mem::take(&mut live.promised_words));
            if mutation("removed_in_two_steps") {
                drop(stripe);
                stripe = self.index.lock(hash);
                if let Some(live) = stripe.live(hash, key) {
                    live.phase = Phase::Changing;
                }
            } else {
                live.phase = Phase::Changing;
            }
            drop(stripe);
            let end = self.write_removal(key, hash, &removed, now_ms, None, promise);
            return Ok(ForgetStep::Written(Forgotten::Removed, end));
        }
        let candidates = stripe.candidates(hash);
        let located = self.locate(&candidates);
        drop(stripe);
        // An expired result is removed like a live one, since its bytes are there until they are
        // reclaimed; but to everybody who asks the key was absent already.
        let examined = self.examine(&located, key, now_ms);
        let (found, forgotten) = match examined.map_err(ClaimError::from)? {
            Examined::Found(found) => (found, Forgotten::Removed),
            Examined::Expired(found) => (found, Forgotten::Absent),
            Examined::NotFound => return Ok(ForgetStep::Absent),
        };
        let removed = Removed::of_result(&found);
        let mut stripe = self.index.lock(hash);
        check_open(&stripe).map_err(ClaimError::from)?;
        if (stripe.live(hash, key).is_some() || stripe.candidates(hash) != candidates)
            && !mutation("found_and_not_looked_at_again")
        {
            return Ok(ForgetStep::Again);
        }
        let mut live = Live::claiming(hash, key.clone(), removed.fingerprint, now_ms);
        live.attempt = removed.attempt;
        stripe.insert_live(Box::new(live));
        self.pending.fetch_add(1, sync::Ordering::Relaxed);
        drop(stripe);
        let end = self.write_removal(key, hash, &removed, now_ms, Some(found.slot), promise);
        if forgotten == Forgotten::Absent {
            self.counters.expired.add();
        }
        Ok(ForgetStep::Written(forgotten, end))
    }

    /// Appends a removal on this promise.
    pub(super) fn append_removal(
        &self,
        contents: &Contents<'_>,
        promise: &mut Promise<'_>,
    ) -> (Appended, Arc<Segment>) {
        promise.spend(contents.words());
        self.log
            .append_held(contents)
            .unwrap_or_else(|_| unreachable!("a promised removal has room"))
    }

    /// Appends the removal of a key that was marked as changing; where its record ends.
    pub(super) fn write_removal(
        &self,
        key: &Key,
        hash: u64,
        removed: &Removed,
        now_ms: u64,
        slot: Option<Slot>,
        promise: &mut Promise<'_>,
    ) -> u64 {
        let change = self.change(hash, key);
        let contents = Contents {
            fingerprint: removed.fingerprint,
            token: removed.token,
            attempt: removed.attempt,
            started_ms: removed.started_ms,
            deadline_ms: removed.deadline_ms,
            ..Contents::unowned(Kind::Forget, key, removed.created_ms, now_ms)
        };
        let (appended, segment) = self.append_removal(&contents, promise);
        segment.worth().keep_removals_until(removed.deadline_ms);
        if let Some(slot) = slot {
            self.discount(slot, removed.deadline_ms);
        }
        // Whoever takes a slot out of the index gives its place back.
        change.retire(|stripe| slot.is_none_or(|slot| stripe.remove_completed(slot)));
        appended.end
    }

    /// A result will not answer until its time.
    pub(super) fn discount(&self, slot: Slot, deadline_ms: u64) {
        if let Some(segment) = &*self.log.segments().load(slot.segment()) {
            let bytes = segment.record_bytes(slot.offset()).unwrap_or_default();
            let words = Record::parse_verified(bytes).map_or(0, |record| record.body_words());
            segment.worth().remove(deadline_ms, words);
        }
    }
}

/// Refuses a guard that was overtaken.
pub(crate) fn check_owner(live: &Live, grant: &Grant) -> Result<(), WriteError> {
    let is_same = live.token == grant.token || sync::mutation("stale_owner_accepted");
    if is_same && live.phase == Phase::Owned {
        return Ok(());
    }
    let new_attempt = (live.token != grant.token).then_some(live.attempt);
    Err(WriteError::LeaseLost { new_attempt })
}

enum FinishStep {
    Refused(Refusal),
    /// Room for this many words is needed besides what was promised.
    Room(u64),
    /// So many words at the end of the segment must be free to be left unused.
    Rest(u64),
    /// A version is not as expected, which is to be told once it is durable up to this position.
    Stale(WriteError, u64),
}

enum ForgetStep {
    /// There is nothing to remove.
    Absent,
    /// A removal was appended that ends at this position.
    Written(Forgotten, u64),
    Settle,
    Again,
}

/// What a removal record says of the key that it removes.
pub(super) struct Removed {
    fingerprint: crate::fingerprint::Fingerprint,
    token: u64,
    attempt: u32,
    created_ms: u64,
    started_ms: u64,
    /// Until when the result would have answered; 0 where there was none.
    deadline_ms: u64,
}

impl Removed {
    pub(super) fn of_result(found: &Found) -> Self {
        Self {
            fingerprint: found.fingerprint,
            token: found.stored.token,
            attempt: found.stored.attempt,
            created_ms: found.stored.created_ms,
            started_ms: found.started_ms,
            deadline_ms: found.stored.expires_ms.max(found.hides_until_ms),
        }
    }

    fn of_live(live: &Live) -> Self {
        Self {
            fingerprint: live.fingerprint,
            token: live.token,
            attempt: live.attempt,
            created_ms: live.created_ms,
            started_ms: live.started_ms,
            deadline_ms: 0,
        }
    }
}

impl Refusal {
    /// The guard has ended already.
    pub(crate) const LOST: Self = Self {
        error: WriteError::LeaseLost { new_attempt: None },
        held: false,
    };

    /// Nothing was written and the guard still holds the key.
    fn held(error: WriteError) -> Self {
        Self { error, held: true }
    }

    /// It was written, and what became of it is not known.
    fn unknown(error: Unavailable) -> Self {
        Self {
            error: WriteError::OutcomeUnknown(error),
            held: false,
        }
    }
}

impl From<Unavailable> for Refusal {
    fn from(error: Unavailable) -> Self {
        Self::held(error.into())
    }
}
