//! Messages of the outbox: handing them out, and what becomes of them.
//!
//! A message is a record of its own domain, attached to the completion that sent it. Its newest record
//! says how often it failed and whether it is a dead letter; its removal is its acknowledgement. Which
//! one is next is decided by the [queue](Queue), in memory, from what the log says at the open.

mod queue;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_secret;

use self::queue::{Backlog, Next};
pub(super) use self::queue::{Listed, Queue};
use crate::engine::attached::Mark;
use crate::engine::lookup::{Message, check_open};
use crate::engine::{Engine, Level, Opened, RoomError};
use crate::error::{ClaimError, Unavailable, WriteError};
use crate::index::Slot;
use crate::log::append::NoSpace;
use crate::log::record::{Contents, Kind, words_for};
use crate::timer::Alarm;

/// Removals that one acknowledgement makes up for.
const OWED_AT_ONCE: usize = 8;

/// How much is outstanding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutboxState {
    pub(crate) outstanding: usize,
    pub(crate) dead: usize,
    /// How long the oldest outstanding one has been there, in ms.
    pub(crate) lag_ms: u64,
}

/// A message that was taken out of the queue, and goes back into it when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    engine: Arc<Opened>,
    listed: Listed,
    /// What waits this long before it is handed out again, in ms.
    pub(crate) back_after_ms: u64,
    is_settled: bool,
}

/// A wait for a message that is due.
#[derive(Debug)]
pub(crate) struct NextMessage {
    engine: Arc<Opened>,
    id: u64,
    look_at_ms: u64,
    alarm: Option<Alarm>,
}

impl Engine {
    /// The id of a message at this position: the same for ever, in this store and its copies.
    pub(crate) fn message_id(&self, position: u64) -> (u64, u64) {
        let store = self.store_id.to_le_bytes();
        let store = xxh3_64_with_secret(&store, self.downstream_secret.bytes());
        (store, position)
    }

    pub(crate) fn outbox_state(&self) -> OutboxState {
        let Backlog {
            outstanding,
            dead,
            oldest,
        } = self.queue.backlog();
        let oldest = oldest.and_then(|(position, hash)| self.message(position, hash).ok()?);
        let lag_ms = oldest.map_or(0, |message| {
            self.time.now_ms().saturating_sub(message.stored.created_ms)
        });
        OutboxState {
            outstanding,
            dead,
            lag_ms,
        }
    }

    /// How many messages there are, dead letters included.
    pub(crate) fn message_count(&self) -> usize {
        let backlog = self.queue.backlog();
        backlog.outstanding + backlog.dead
    }

    /// The dead letters, oldest first.
    pub(crate) fn dead_letters(&self) -> Result<Vec<(u64, Message)>, ClaimError> {
        self.check_process()?;
        let mut dead = Vec::new();
        for (position, hash) in self.queue.dead() {
            if let Some(message) = self.message(position, hash)? {
                dead.push((position, message));
            }
        }
        Ok(dead)
    }

    /// The newest record of the message at this position; `None` where it is gone.
    pub(crate) fn message(&self, position: u64, hash: u64) -> Result<Option<Message>, ClaimError> {
        let located = {
            let stripe = self.index.lock(hash);
            check_open(&stripe)?;
            self.locate(&stripe.candidates(hash))
        };
        for one in located.all() {
            let message = one.message()?;
            if let Some(message) = message.filter(|message| message.stored.token == position) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Removes a message from the log, not from the queue. Not waited for: one whose removal a loss of power takes back comes again.
    pub(crate) async fn remove_message(
        &self,
        position: u64,
        hash: u64,
    ) -> Result<bool, WriteError> {
        self.check_process()?;
        self.check_writable()?;
        let Some(message) = self.message(position, hash).map_err(for_write)? else {
            return Ok(false);
        };
        let words = words_for(message.key.as_bytes().len(), 0, 0, 0);
        let mut promise = self
            .promise(words)
            .await
            .map_err(RoomError::into::<WriteError>)?;
        let mark = self.mark(&message.key, hash)?;
        if mark.found.is_none() {
            return Ok(false);
        }
        mark.remove(&mut promise);
        Ok(true)
    }

    /// Removes messages that were acknowledged while there was no room, as long as there is now. What
    /// fails here is none of the caller's.
    async fn remove_owed(&self) {
        for _ in 0..OWED_AT_ONCE {
            let Some((position, hash)) = self.queue.oldest_owed() else {
                break;
            };
            match self.remove_message(position, hash).await {
                Ok(_) => self.queue.remove(position),
                Err(WriteError::OutOfSpace(_) | WriteError::LimitReached(_)) => break,
                Err(error) => {
                    tracing::warn!(%error, "an acknowledged message could not be removed");
                    break;
                }
            }
        }
    }

    /// Writes a message again: how often it was handed out, and whether it is dead.
    pub(crate) async fn rewrite_message(
        &self,
        position: u64,
        hash: u64,
        attempt: u32,
        is_dead: bool,
    ) -> Result<Option<Message>, WriteError> {
        self.check_process()?;
        self.check_writable()?;
        let Some(message) = self.message(position, hash).map_err(for_write)? else {
            return Ok(None);
        };
        let created_ms = message.stored.created_ms;
        let ended_ms = self.time.now_ms().max(created_ms);
        let contents = Contents {
            is_dead,
            token: position,
            attempt,
            deadline_ms: u64::MAX,
            response: Some(message.payload()),
            ..Contents::unowned(Kind::Complete, &message.key, created_ms, ended_ms)
        };
        let mut promise = self
            .promise(contents.words())
            .await
            .map_err(RoomError::into::<WriteError>)?;
        let mut rest = None;
        loop {
            let mark = self.mark(&message.key, hash)?;
            if mark.found.is_none() {
                return Ok(None);
            }
            drop(rest.take());
            match self.log.append_held(&contents) {
                Ok((appended, segment)) => {
                    promise.spend(contents.words());
                    segment.worth().add(contents.deadline_ms, contents.words());
                    let slot = Slot::new(hash, appended.segment, appended.offset);
                    mark.publish(Some(slot)).wake();
                    break;
                }
                Err(NoSpace { words }) => {
                    drop::<Mark<'_>>(mark);
                    rest = Some(
                        self.promise(words)
                            .await
                            .map_err(RoomError::into::<WriteError>)?,
                    );
                }
            }
        }
        Ok(Some(message))
    }

    /// Makes a dead letter a message again, as if it had never been handed out.
    pub(crate) async fn revive(&self, position: u64) -> Result<bool, WriteError> {
        let Some(hash) = self.queue.dead_hash(position) else {
            return Ok(false);
        };
        let written = self.rewrite_message(position, hash, 1, false).await?;
        let Some(message) = written else {
            return Ok(false);
        };
        let listed = Listed {
            position,
            hash,
            lane: message.key.lane(self.secret.bytes()),
            attempt: 1,
            is_dead: false,
        };
        self.queue.revive(listed, self.time.monotonic_ms());
        Ok(true)
    }

    /// Removes a dead letter.
    pub(crate) async fn discard_message(&self, position: u64) -> Result<bool, WriteError> {
        let Some(hash) = self.queue.dead_hash(position) else {
            return Ok(false);
        };
        let was_there = self.remove_message(position, hash).await?;
        self.queue.remove(position);
        Ok(was_there)
    }
}

fn for_write(error: ClaimError) -> WriteError {
    match error {
        ClaimError::Damaged(damaged) => WriteError::Damaged(damaged),
        ClaimError::Unavailable(error) => WriteError::Unavailable(error),
        _ => unreachable!("reading a message fails for no other reason"),
    }
}

impl NextMessage {
    pub(crate) fn new(engine: &Arc<Opened>) -> Self {
        Self {
            engine: Arc::clone(engine),
            id: engine.waiter_id(),
            look_at_ms: u64::MAX,
            alarm: None,
        }
    }

    /// One look; is woken for the next where nothing is due.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<Taken, ClaimError>> {
        self.engine.check_process()?;
        let now_ms = self.engine.time.monotonic_ms();
        match self.engine.queue.take(now_ms, self.id, context.waker()) {
            Next::Taken(listed) => Poll::Ready(Ok(Taken {
                engine: Arc::clone(&self.engine),
                listed,
                back_after_ms: 0,
                is_settled: false,
            })),
            Next::Wait(due_ms) => {
                self.look_at_ms = due_ms.unwrap_or(u64::MAX);
                Poll::Pending
            }
            Next::Closed => Poll::Ready(Err(Unavailable::Closed.into())),
        }
    }

    /// How long a thread may sleep before it must look again; `None` is until it is woken.
    pub(crate) fn sleep(&self, until_ms: u64) -> Option<Duration> {
        let look_at_ms = self.look_at_ms.min(until_ms);
        (look_at_ms != u64::MAX).then(|| self.engine.time.real_time_until(look_at_ms))
    }
}

impl Future for NextMessage {
    type Output = Result<Taken, ClaimError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.look(context);
        self.alarm = None;
        if polled.is_pending()
            && let Some(after) = self.sleep(u64::MAX)
        {
            self.alarm = Some(self.engine.timer.wake_after(after, context.waker().clone()));
        }
        polled
    }
}

impl Drop for NextMessage {
    fn drop(&mut self) {
        if !self.engine.is_forked() {
            self.engine.queue.cancel(self.id);
        }
    }
}

impl Taken {
    pub(crate) fn position(&self) -> u64 {
        self.listed.position
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.listed.attempt
    }

    pub(crate) fn engine(&self) -> &Arc<Opened> {
        &self.engine
    }

    /// What it says, once no loss of power can take it back in `Sync`; `None` where it is gone.
    pub(crate) async fn read(&mut self, level: Level) -> Result<Option<Message>, ClaimError> {
        let Listed { position, hash, .. } = self.listed;
        let message = self.engine.message(position, hash)?;
        match &message {
            Some(message) => self.engine.reach(message.stored.end, level).await?,
            None => {
                self.is_settled = true;
                self.engine.queue.remove(position);
            }
        }
        Ok(message)
    }

    /// It is done with.
    pub(crate) async fn acknowledge(mut self) -> Result<(), WriteError> {
        let Listed { position, hash, .. } = self.listed;
        match self.engine.remove_message(position, hash).await {
            Ok(_) => {
                self.is_settled = true;
                self.engine.queue.remove(position);
                self.engine.remove_owed().await;
                Ok(())
            }
            // It is known to be done, and that is enough as long as this process lives.
            Err(WriteError::OutOfSpace(_) | WriteError::LimitReached(_)) => {
                self.is_settled = true;
                self.engine.queue.owe(position);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// It failed: it comes again after a while, or is a dead letter.
    pub(crate) async fn fail(mut self, after_ms: u64, is_dead: bool) -> Result<(), WriteError> {
        let Listed { position, hash, .. } = self.listed;
        self.back_after_ms = after_ms;
        // Counts also if it can't be written.
        self.listed.attempt = self.listed.attempt.saturating_add(1);
        let attempt = self.listed.attempt;
        let engine = Arc::clone(&self.engine);
        engine
            .rewrite_message(position, hash, attempt, is_dead)
            .await?;
        if is_dead {
            self.is_settled = true;
            engine.queue.bury(position);
        }
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.is_settled || self.engine.is_forked() {
            return;
        }
        let due_ms = self.engine.time.monotonic_ms();
        let due_ms = due_ms.saturating_add(self.back_after_ms);
        let Listed {
            position, attempt, ..
        } = self.listed;
        self.engine.queue.give_back(position, attempt, due_ms);
    }
}
