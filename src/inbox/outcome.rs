//! What to tell the broker, and what a handler says.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::claim::{Mismatch, TooLate};
use crate::error::{ClaimError, WriteError};
use crate::key::KeyError;

/// An error of any kind, shared by those who are told of it.
pub type SharedError = Arc<dyn Error + Send + Sync>;

/// What is to be done about one delivery of an event.
#[derive(Clone, Debug)]
#[must_use = "the broker has to be told, or it delivers the event again"]
pub enum Outcome {
    /// The event is dealt with: acknowledge the message.
    Ack(Acked),
    /// Not yet: let the broker deliver it again.
    RetryLater(RetryLater),
    /// Never: put the message where somebody looks at it, then acknowledge it.
    DeadLetter(DeadLetter),
}

/// Why a message can be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acked {
    /// Its handler has run, in this delivery.
    Processed,
    /// Its handler had run before: this is a duplicate.
    AlreadyProcessed,
    /// An earlier attempt had carried it out, as
    /// [`OnInterrupted::reconcile`](super::OnInterrupted::reconcile) found out.
    Reconciled,
    /// It came late: an entity whose version it was to set has a newer one. It is done with, and nothing
    /// of what its handler wanted stored [at the completion](super::Event::on_completion) was.
    Stale,
}

/// An event that has to come again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RetryLater {
    /// When to deliver it again, from now.
    pub after: Duration,
    /// Why.
    pub reason: RetryReason,
}

/// Why an event has to come again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetryReason {
    /// Another delivery of it is being handled.
    InProgress {
        /// The attempt under way.
        attempt: u32,
        /// When it began.
        since: SystemTime,
    },
    /// Its handler failed.
    Failed(SharedError),
    /// An earlier attempt was interrupted, and nobody knows yet what became of it.
    OutcomeUnknown,
    /// The store took no claim: the handler has not run.
    Refused(ClaimError),
    /// The handler may have run, but what became of it could not be stored. Unless another attempt
    /// holds the event by now, its outcome is unknown.
    NotStored(WriteError),
}

/// An event that is not handled again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Why.
    pub reason: DeadReason,
    /// How often its handler was started.
    pub runs: u32,
    /// Whether some attempt may have acted. Its key is then kept as interrupted, to be
    /// [reconciled](crate::Store::reconcile).
    pub is_outcome_unknown: bool,
    /// What the last failure said, if there was one; of a delivery that came again, the beginning of
    /// it.
    pub error: Option<SharedError>,
}

/// Why an event is not handled again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadReason {
    /// Its handler [rejected](Failure::reject) it.
    Rejected,
    /// Its handler was started as often as allowed, and never came to an end that counts.
    TooManyAttempts,
    /// An attempt was interrupted, and nobody found out what became of it.
    OutcomeUnknown,
    /// An event with this id was received before, with another payload. That one is not affected.
    OtherPayload(Mismatch),
    /// It was sent longer ago than processed events are remembered, so it may be one of them. Only
    /// for messages with [`Message::sent_at`](super::Message::sent_at).
    TooLate(TooLate),
    /// Its id can't be a key.
    BadEventId(KeyError),
}

impl Outcome {
    /// Whether the message is done with, as far as the broker is concerned, once a dead letter is put
    /// away.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Self::RetryLater(_))
    }

    /// Whether the event was carried out: now or before.
    pub fn is_ack(&self) -> bool {
        matches!(self, Self::Ack(_))
    }

    pub(super) fn retry(after: Duration, reason: RetryReason) -> Self {
        Self::RetryLater(RetryLater { after, reason })
    }

    /// A dead letter of which this inbox has nothing stored.
    pub(super) fn dead_at_once(reason: DeadReason) -> Self {
        Self::DeadLetter(DeadLetter {
            reason,
            runs: 0,
            is_outcome_unknown: false,
            error: None,
        })
    }

    /// The outcome of another message with the same event in the same batch.
    pub(super) fn of_duplicate(&self) -> Self {
        match self {
            Self::Ack(_) => Self::Ack(Acked::AlreadyProcessed),
            other => other.clone(),
        }
    }
}

impl fmt::Display for RetryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProgress { attempt, .. } => {
                write!(f, "attempt {attempt} is handling the event")
            }
            Self::Failed(error) => write!(f, "the handler failed: {error}"),
            Self::OutcomeUnknown => {
                f.write_str("an attempt was interrupted and its outcome is not known yet")
            }
            Self::Refused(error) => write!(f, "the event could not be claimed: {error}"),
            Self::NotStored(error) => write!(f, "the outcome could not be stored: {error}"),
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected => f.write_str("the handler rejected the event"),
            Self::TooManyAttempts => f.write_str("the handler was started as often as allowed"),
            Self::OutcomeUnknown => {
                f.write_str("an attempt was interrupted and its outcome is unknown")
            }
            Self::OtherPayload(_) => {
                f.write_str("an event of this id was received with another payload")
            }
            Self::TooLate(_) => {
                f.write_str("the event was sent longer ago than processed ones are remembered")
            }
            Self::BadEventId(error) => write!(f, "the event's id can't be used: {error}"),
        }
    }
}

/// Why a handler has not carried out its event.
///
/// Any error turns into one by `?`, and then says the least: the handler [may have
/// acted](Self::may_have_acted). A handler that knows more says so.
#[derive(Debug)]
pub struct Failure {
    pub(super) kind: FailureKind,
    pub(super) after: Option<Duration>,
    pub(super) error: SharedError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    NothingHappened,
    MayHaveActed,
    Rejected,
}

impl Failure {
    /// It failed before it did anything: a connection was refused, a lock was not to be had. The
    /// event is handled again at its next delivery, whatever
    /// [`OnInterrupted`](super::OnInterrupted) says.
    ///
    /// That is about this run of the handler. Where an earlier attempt was interrupted, the event's
    /// outcome stays unknown.
    pub fn nothing_happened(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::NothingHappened, error)
    }

    /// It failed and may have acted before: a call timed out. The event's outcome is unknown, and
    /// what happens at its next delivery is for [`OnInterrupted`](super::OnInterrupted) to say.
    pub fn may_have_acted(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::MayHaveActed, error)
    }

    /// The event can't be handled, now or later, and nothing happened: its payload makes no sense.
    /// It is a dead letter at once.
    pub fn reject(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::Rejected, error)
    }

    /// When to deliver the event again, in place of the inbox's own
    /// [backoff](super::InboxBuilder::backoff): what a `Retry-After` of another system said.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    fn new(kind: FailureKind, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            after: None,
            error: error.into().into(),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::may_have_acted(error)
    }
}
