//! One event from its claim to what is told to the broker.
//!
//! A failed event is never released: its key stays interrupted, with a [note](super::note) of how often
//! the handler was started and up to which attempt nothing happened. The note is written when a handler
//! is about to start and not waited for: it outlives the process. A loss of power can take it back, and
//! then an attempt is not counted; that nothing happened is never concluded from its absence.

use std::time::Duration;

use crate::backend::{self, Answer, AnyBackend, AnyGuard, Backend, Guard, Progress};
use crate::claim::Saved;
use crate::completion::Completion;
use crate::error::{AdminError, ClaimError, FinishError, Unavailable, WriteError};
use crate::fingerprint::Fingerprint;
use crate::inbox::event::{Event, Message, OnCompletion};
use crate::inbox::interrupted::{Kind, OnInterrupted};
use crate::inbox::note::{Cause, Dead, Note};
use crate::inbox::outcome::{
    Acked, DeadLetter, DeadReason, Failure, FailureKind, Outcome, RetryReason, SharedError,
};
use crate::key::{Key, KeyError};
use crate::listing::KeyState;
use crate::log::commit::Lead;
use crate::operation::Operation;
use crate::options::{ClaimOptions, Durability};
use crate::reconcile::{ReconcileError, Verdict};
use crate::response::Replay;
use crate::store::Forget;
use crate::sync::Mutex;

/// What every clone of an inbox has.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) backend: AnyBackend,
    pub(super) scope: Vec<u8>,
    pub(super) consumer: Vec<u8>,
    pub(super) on_interrupted: OnInterrupted,
    pub(super) attempts_max: u32,
    /// The first retry's, and the longest.
    pub(super) backoff: (Duration, Duration),
    pub(super) claim: ClaimOptions,
    /// Of each claim, and of what is told to the broker.
    pub(super) durability: Durability,
    /// One redrive at a time.
    pub(super) redrives: Mutex<()>,
}

/// Whether the calls of the store block or are awaited: the only difference between the two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Blocking,
    Async,
}

/// How an event is processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) style: Style,
    /// Whether what is written is made durable by somebody else, before the broker is told.
    pub(super) is_flushed_later: bool,
}

impl Style {
    pub(super) fn lead(self) -> Lead {
        match self {
            Self::Blocking => Lead::Allowed,
            Self::Async => Lead::Never,
        }
    }

    /// On a shared backend nothing waits for a flush.
    pub(super) async fn flush(self, backend: &AnyBackend) -> Result<(), Unavailable> {
        match (self, backend.embedded()) {
            (Self::Blocking, Some(store)) => store.flush(),
            (Self::Async, Some(store)) => store.flush_async().await,
            (_, None) => Ok(()),
        }
    }

    async fn claim(
        self,
        backend: &AnyBackend,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Claimed {
        match (self, backend.embedded()) {
            (Self::Blocking, Some(store)) => {
                let claim = store.claim_with(key, fingerprint, options)?;
                Ok(backend::Outcome::from(claim).map(AnyGuard::from))
            }
            _ => backend.claim(key, fingerprint, options).await,
        }
    }
}

impl How {
    /// Writes a note that has to be durable before the broker is told.
    async fn checkpoint(self, guard: &mut AnyGuard, note: &Note) -> Result<(), WriteError> {
        let bytes = note.encode();
        match (self.style, guard.embedded()) {
            _ if self.is_flushed_later => guard.checkpoint_unsynced(&bytes).await,
            (Style::Blocking, Some(operation)) => operation.checkpoint(bytes),
            _ => guard.checkpoint(&bytes).await,
        }
    }

    /// Completes an event with what its handler wants to say at it, or without where that is stale: it
    /// would be so for ever.
    async fn complete(
        self,
        guard: AnyGuard,
        say: Option<OnCompletion>,
    ) -> Result<Stored, WriteError> {
        let operation = match guard.into_embedded() {
            Ok(operation) => operation,
            Err(guard) => {
                stored(guard.complete(Answer::without_response()).await)?;
                return Ok(Stored::AsAsked);
            }
        };
        let bare = |operation: Operation| {
            let completion = operation.complete_with(&[][..]).without_response();
            self.at_level(completion)
        };
        let completion = match say {
            Some(say) => say(bare(operation)),
            None => bare(operation),
        };
        let Err(refused) = self.try_commit(completion).await else {
            return Ok(Stored::AsAsked);
        };
        let error = refused.error().clone();
        let is_stale = matches!(error, WriteError::StaleVersion(_));
        let Some(operation) = refused.into_operation().filter(|_| is_stale) else {
            return Err(error);
        };
        self.commit(bare(operation)).await?;
        Ok(Stored::AsStale)
    }

    /// Completes an event as a dead letter.
    async fn complete_as(self, guard: AnyGuard, marker: &[u8]) -> Result<(), WriteError> {
        match guard.into_embedded() {
            Ok(operation) => {
                let completion = operation.complete_with(marker);
                self.commit(self.at_level(completion)).await
            }
            Err(guard) => stored(guard.complete(Answer::response(marker)).await),
        }
    }

    async fn commit<R: AsRef<[u8]>>(self, completion: Completion<R>) -> Result<(), WriteError> {
        stored(self.try_commit(completion).await)
    }

    /// With the guard in the error.
    async fn try_commit<R: AsRef<[u8]>>(
        self,
        completion: Completion<R>,
    ) -> Result<Saved, FinishError> {
        match self.style {
            Style::Blocking => completion.commit(),
            Style::Async => completion.commit_async().await,
        }
    }

    fn at_level<R: AsRef<[u8]>>(self, completion: Completion<R>) -> Completion<R> {
        match self.is_flushed_later {
            true => completion.durability(Durability::Buffered),
            false => completion,
        }
    }
}

/// How an event was completed.
enum Stored {
    AsAsked,
    AsStale,
}

fn stored<G>(completed: Result<Saved, FinishError<G>>) -> Result<(), WriteError> {
    completed.map(drop).map_err(|error| error.error().clone())
}

/// What a claim of an event gives.
pub(super) type Claimed = Result<backend::Outcome<AnyGuard>, ClaimError>;

impl Shared {
    pub(super) fn key(&self, message: &Message<'_>) -> Result<Key, KeyError> {
        Key::new(&self.scope, &self.consumer, message.id)
    }

    pub(super) fn options(&self, message: &Message<'_>) -> ClaimOptions {
        let options = self.claim.clone();
        match message.sent_at {
            Some(at) => options.first_sent(at),
            None => options,
        }
    }

    pub(super) async fn process<B>(
        &self,
        style: Style,
        message: Message<'_>,
        handler: impl AsyncFnOnce(&mut Event<B>) -> Result<(), Failure>,
    ) -> Outcome {
        let key = match self.key(&message) {
            Ok(key) => key,
            Err(error) => return Outcome::dead_at_once(DeadReason::BadEventId(error)),
        };
        let options = self.options(&message);
        let claimed = style.claim(&self.backend, &key, message.fingerprint, options);
        let guard = match self.owned(claimed.await) {
            Ok(guard) => guard,
            Err(outcome) => return outcome,
        };
        let how = How {
            style,
            is_flushed_later: false,
        };
        self.work(how, guard, handler).await
    }

    /// The operation, if the event is ours to handle; what to tell the broker otherwise.
    pub(super) fn owned(&self, claimed: Claimed) -> Result<AnyGuard, Outcome> {
        Err(match claimed {
            Ok(backend::Outcome::Started(guard) | backend::Outcome::Interrupted(guard)) => {
                return Ok(guard);
            }
            Ok(backend::Outcome::InProgress(progress)) => self.in_progress(&progress),
            Ok(backend::Outcome::Completed(saved)) => completed(&saved),
            Ok(backend::Outcome::Mismatch(mismatch)) => {
                Outcome::dead_at_once(DeadReason::OtherPayload(mismatch))
            }
            Ok(backend::Outcome::TooLate(too_late)) => {
                Outcome::dead_at_once(DeadReason::TooLate(too_late))
            }
            Err(error) => self.refused(error),
        })
    }

    /// When its lease is over, or the first retry is due where it has none.
    pub(super) fn in_progress(&self, progress: &Progress) -> Outcome {
        let (first, max) = self.backoff;
        let after = progress.lease_left.map_or(first, |left| left.min(max));
        let reason = RetryReason::InProgress {
            attempt: progress.attempt,
            since: progress.since,
        };
        Outcome::retry(after, reason)
    }

    fn refused(&self, error: ClaimError) -> Outcome {
        match error {
            ClaimError::Key(error) => Outcome::dead_at_once(DeadReason::BadEventId(error)),
            ClaimError::Abandoned(abandoned) => Outcome::DeadLetter(DeadLetter {
                reason: DeadReason::OutcomeUnknown,
                runs: abandoned.attempt,
                is_outcome_unknown: true,
                error: Some(SharedError::from(Box::from(abandoned))),
            }),
            error => Outcome::retry(self.backoff.0, RetryReason::Refused(error)),
        }
    }

    /// Handles an event that was claimed.
    pub(super) async fn work<B>(
        &self,
        how: How,
        guard: AnyGuard,
        handler: impl AsyncFnOnce(&mut Event<B>) -> Result<(), Failure>,
    ) -> Outcome {
        let event = Event::new(&self.backend, guard);
        if let Some(dead) = &event.note.dead {
            return Outcome::DeadLetter(dead_again(dead, event.note.runs, true));
        }
        let mut event = match self.resolve(how, event).await {
            Ok(event) => event,
            Err(outcome) => return outcome,
        };
        event.note.runs = event.note.runs.saturating_add(1);
        // The others of its batch may have taken long.
        let begun = match event.renew_async().await {
            Ok(()) => {
                let noted = event.note.encode();
                event.guard.checkpoint_unsynced(&noted).await
            }
            lost => lost,
        };
        if let Err(error) = begun {
            event.guard.give_back();
            return Outcome::retry(self.backoff.0, not_begun(error));
        }
        match handler(&mut event).await {
            Ok(()) => self.complete(how, event, Acked::Processed).await,
            Err(failure) => self.failed(how, event, failure).await,
        }
    }

    /// Decides about an event of which earlier attempts are known: whether its handler may run.
    async fn resolve<B>(&self, how: How, mut event: Event<B>) -> Result<Event<B>, Outcome> {
        if let Some(previous) = event.previous() {
            match &self.on_interrupted.0 {
                Kind::Rerun => {}
                Kind::DeadLetter => {
                    return Err(self.bury(how, event, Cause::OutcomeUnknown, None).await);
                }
                Kind::Reconcile(ask) => match ask(previous.clone()).await {
                    Verdict::Completed(_) | Verdict::Done => {
                        return Err(self.complete(how, event, Acked::Reconciled).await);
                    }
                    Verdict::Release => event.forget_previous(),
                    Verdict::Keep => return Err(self.kept(how, event).await),
                },
            }
        }
        if event.note.runs < self.attempts_max {
            return Ok(event);
        }
        Err(self.bury(how, event, Cause::TooManyAttempts, None).await)
    }

    /// Nobody could say what became of the event: that was one of its attempts.
    async fn kept<B>(&self, how: How, mut event: Event<B>) -> Outcome {
        event.note.runs = event.note.runs.saturating_add(1);
        if event.note.runs >= self.attempts_max {
            return self.bury(how, event, Cause::OutcomeUnknown, None).await;
        }
        note_if_possible(&mut event).await;
        Outcome::retry(self.delay(event.note.runs), RetryReason::OutcomeUnknown)
    }

    async fn complete<B>(&self, how: How, event: Event<B>, acked: Acked) -> Outcome {
        let (guard, say) = event.into_parts();
        match how.complete(guard, say).await {
            Ok(Stored::AsAsked) => Outcome::Ack(acked),
            Ok(Stored::AsStale) => Outcome::Ack(Acked::Stale),
            Err(error) => Outcome::retry(self.backoff.0, RetryReason::NotStored(error)),
        }
    }

    async fn failed<B>(&self, how: How, mut event: Event<B>, failure: Failure) -> Outcome {
        let Failure { kind, after, error } = failure;
        let runs = event.note.runs;
        if kind == FailureKind::MayHaveActed {
            event.mark_unknown();
        } else if event.previous().is_none() {
            event.note.harmless = event.guard.attempt();
        }
        let never_again = matches!(self.on_interrupted.0, Kind::DeadLetter);
        let cause = match kind {
            FailureKind::Rejected => Some(Cause::Rejected),
            FailureKind::MayHaveActed if never_again => Some(Cause::OutcomeUnknown),
            _ if runs >= self.attempts_max => Some(Cause::TooManyAttempts),
            _ => None,
        };
        if let Some(cause) = cause {
            return self.bury(how, event, cause, Some(error)).await;
        }
        if !event.is_outcome_unknown() {
            note_if_possible(&mut event).await;
        }
        let after = after.unwrap_or_else(|| self.delay(runs));
        Outcome::retry(after, RetryReason::Failed(error))
    }

    /// Makes an event a dead letter, also for deliveries to come. One that did nothing is done with;
    /// one that may have acted stays interrupted, to be reconciled.
    async fn bury<B>(
        &self,
        how: How,
        mut event: Event<B>,
        cause: Cause,
        error: Option<SharedError>,
    ) -> Outcome {
        let text = error.as_ref().map_or_else(String::new, ToString::to_string);
        let runs = event.note.runs;
        let is_outcome_unknown = event.is_outcome_unknown();
        event.note.dead = Some(Dead { cause, text });
        let buried = if is_outcome_unknown {
            let note = event.note.clone();
            how.checkpoint(&mut event.guard, &note).await
        } else {
            event.note.checkpoint = None;
            let marker = event.note.encode();
            how.complete_as(event.guard, &marker).await
        };
        match buried {
            Ok(()) => Outcome::DeadLetter(DeadLetter {
                reason: cause.into(),
                runs,
                is_outcome_unknown,
                error,
            }),
            Err(error) => Outcome::retry(self.backoff.0, RetryReason::NotStored(error)),
        }
    }

    /// See [`Inbox::redrive_async`](super::Inbox::redrive_async).
    pub(super) async fn redrive(&self, message: Message<'_>) -> Result<bool, ReconcileError> {
        let claim = ReconcileError::Claim;
        let key = self.key(&message).map_err(|error| claim(error.into()))?;
        match self.backend.look(&key).await.map_err(claim)? {
            KeyState::Completed(saved) if dead_marker(&saved).is_some() => {
                match self.backend.forget(&key, Forget::IfCompleted).await {
                    Ok(was_there) => Ok(was_there),
                    Err(AdminError::Claim(error)) => Err(claim(error)),
                    // It has expired and is being handled.
                    Err(_) => Ok(false),
                }
            }
            KeyState::Interrupted { .. } => {
                let options = self.claim.clone();
                let claimed = self.backend.claim(&key, message.fingerprint, options).await;
                match claimed.map_err(claim)? {
                    backend::Outcome::Interrupted(guard) => self.release_dead(guard).await,
                    // Somebody else is at it, or it is not what it was a moment ago.
                    backend::Outcome::Started(guard) => {
                        guard.give_back();
                        Ok(false)
                    }
                    _ => Ok(false),
                }
            }
            _ => Ok(false),
        }
    }

    /// Frees the event of a dead letter; any other is left as it was.
    async fn release_dead(&self, guard: AnyGuard) -> Result<bool, ReconcileError> {
        let mut event = Event::<()>::new(&self.backend, guard);
        if event.note.dead.is_some() {
            let released = event.guard.release().await;
            let write = |error: FinishError<_>| ReconcileError::Write(error.error().clone());
            return released.map(|()| true).map_err(write);
        }
        if event.previous().is_none() {
            // Nor did this attempt do anything.
            event.note.harmless = event.guard.attempt();
            note_if_possible(&mut event).await;
        }
        Ok(false)
    }

    /// How long an event waits after so many runs.
    fn delay(&self, runs: u32) -> Duration {
        let (first, max) = self.backoff;
        let doublings = runs.saturating_sub(1).min(31);
        first.saturating_mul(1 << doublings).min(max)
    }
}

/// A dead letter that comes again.
fn dead_again(dead: &Dead, runs: u32, is_outcome_unknown: bool) -> DeadLetter {
    let error = (!dead.text.is_empty()).then(|| SharedError::from(Box::from(dead.text.as_str())));
    DeadLetter {
        reason: dead.cause.into(),
        runs,
        is_outcome_unknown,
        error,
    }
}

fn completed(saved: &Saved) -> Outcome {
    match dead_marker(saved) {
        Some((dead, runs)) => Outcome::DeadLetter(dead_again(&dead, runs, false)),
        None => Outcome::Ack(Acked::AlreadyProcessed),
    }
}

/// Why the event is dead, and after how many runs, if it was completed as that.
pub(super) fn dead_marker(saved: &Saved) -> Option<(Dead, u32)> {
    let Ok(Replay::Response(response)) = saved.by_scope() else {
        return None;
    };
    let note = Note::decode(&response.into())?;
    Some((note.dead?, note.runs))
}

/// Writes what helps the next attempt. Without it that one counts less, or takes the outcome for
/// unknown: nothing is lost.
async fn note_if_possible<B>(event: &mut Event<B>) {
    let noted = event.note.encode();
    if let Err(error) = event.guard.checkpoint_unsynced(&noted).await {
        tracing::warn!(key = %event.key(), %error, "an attempt at an event was not noted");
    }
}

/// Why a handler was not started.
fn not_begun(error: WriteError) -> RetryReason {
    RetryReason::Refused(match error {
        WriteError::OutOfSpace(error) => error.into(),
        WriteError::LimitReached(error) => error.into(),
        WriteError::Unavailable(error) => error.into(),
        error => return RetryReason::NotStored(error),
    })
}
