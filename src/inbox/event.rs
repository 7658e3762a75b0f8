//! An event on its way through the inbox: as it comes in, and as its handler has it.

use std::fmt;
use std::marker::PhantomData;
use std::time::SystemTime;

use bytes::Bytes;

use crate::backend::{AnyBackend, AnyGuard, Guard};
use crate::block::block_on;
use crate::completion::Completion;
use crate::error::WriteError;
use crate::fingerprint::Fingerprint;
use crate::inbox::note::{CHECKPOINT_MAX, Note};
use crate::key::Key;
use crate::reconcile::Interrupted;
use crate::store::Store;
use crate::token::Token;

/// One message, as the inbox takes it: the event's id, and what else is known of it.
///
/// An id alone will do, as text or bytes.
///
/// ```
/// use oncekey::inbox::Message;
///
/// let message = Message::new("evt_1").payload(br#"{"order":17}"#);
/// let by_id = Message::from("evt_1");
/// # let _ = (message, by_id);
/// ```
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub(super) id: &'a [u8],
    pub(super) fingerprint: Fingerprint,
    pub(super) sent_at: Option<SystemTime>,
}

impl<'a> Message<'a> {
    /// A message that carries this event. The id must be the event's and the same in every delivery:
    /// see [the table](super) for each broker.
    pub fn new(id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            id: id.as_ref(),
            fingerprint: Fingerprint::none(),
            sent_at: None,
        }
    }

    /// What the event says. The same id with another payload is then
    /// [`OtherPayload`](super::DeadReason::OtherPayload) and not a duplicate. Leave out what a
    /// redelivery changes: counters, trace ids, times of delivery.
    #[must_use]
    pub fn payload(self, payload: impl AsRef<[u8]>) -> Self {
        self.fingerprint(Fingerprint::of(payload))
    }

    /// [`payload`](Self::payload), with a fingerprint of your own making.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// When the event was sent for the first time, by whoever made it. If it is not known, and this
    /// is longer ago than processed events are remembered, it is
    /// [`TooLate`](super::DeadReason::TooLate) instead of being handled a second time: what protects
    /// a consumer that is set back to the beginning of a topic.
    #[must_use]
    pub fn sent_at(mut self, at: SystemTime) -> Self {
        self.sent_at = Some(at);
        self
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(id: &'a str) -> Self {
        Self::new(id)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(id: &'a String) -> Self {
        Self::new(id)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(id: &'a [u8]) -> Self {
        Self::new(id)
    }
}

/// More to say at the completion of an event.
pub(super) type OnCompletion =
    Box<dyn FnOnce(Completion<&'static [u8]>) -> Completion<&'static [u8]> + Send>;

/// An event in the hands of its handler.
///
/// `B` is the inbox's backend. What blocks, and what goes into the completion's record, is there for
/// an embedded [`Store`] only.
pub struct Event<B = Store> {
    pub(super) guard: AnyGuard,
    kind: PhantomData<fn() -> B>,
    pub(super) note: Note,
    previous: Option<Interrupted>,
    /// Whether this run may have acted before it failed.
    may_have_acted: bool,
    on_completion: Option<OnCompletion>,
}

impl<B> Event<B> {
    /// A claimed event, with what was noted of it.
    pub(super) fn new(backend: &AnyBackend, guard: AnyGuard) -> Self {
        let note = guard.last_checkpoint().map(Note::read).unwrap_or_default();
        let checkpoint = note.checkpoint.clone();
        let previous = Interrupted::before(backend, &guard, checkpoint)
            .filter(|previous| previous.attempt() != note.harmless);
        Self {
            guard,
            kind: PhantomData,
            note,
            previous,
            may_have_acted: false,
            on_completion: None,
        }
    }

    /// The event's id.
    pub fn id(&self) -> &[u8] {
        self.key().id()
    }

    /// The key under which the store knows it: scope, consumer, id.
    pub fn key(&self) -> &Key {
        self.guard.key()
    }

    /// How often a handler was started for this event, this time included: 1 at first.
    ///
    /// It counts what ran. [`Operation::attempt`](crate::Operation::attempt) also counts deliveries that were claimed and never
    /// came to run.
    pub fn run(&self) -> u32 {
        self.note.runs
    }

    /// The earlier attempt that may have acted; `None` where there was none, or where all of them
    /// are known to have done nothing.
    pub fn previous(&self) -> Option<&Interrupted> {
        self.previous.as_ref()
    }

    /// The fencing token of this attempt.
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// A key for a call to another system, the same in every attempt: see
    /// [`Operation::downstream_key`](crate::Operation::downstream_key).
    pub fn downstream_key(&self, label: &str) -> String {
        self.guard.downstream_key(label)
    }

    /// The newest checkpoint that a handler left, in this run or an earlier one.
    pub fn last_checkpoint(&self) -> Option<&Bytes> {
        self.note.checkpoint.as_ref()
    }

    /// [`checkpoint`](Event::checkpoint) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`Operation::checkpoint`](crate::Operation::checkpoint).
    pub async fn checkpoint_async(&mut self, note: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let noted = self.with_checkpoint(note.as_ref())?;
        self.guard.checkpoint(&noted.encode()).await?;
        self.note = noted;
        Ok(())
    }

    /// [`renew`](Event::renew) where the store may be elsewhere.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where somebody took over: stop working.
    pub async fn renew_async(&mut self) -> Result<(), WriteError> {
        self.guard.renew().await
    }

    /// Says that no earlier attempt acted.
    pub(super) fn forget_previous(&mut self) {
        self.previous = None;
    }

    /// Says that this run may have acted.
    pub(super) fn mark_unknown(&mut self) {
        self.may_have_acted = true;
    }

    /// Whether any attempt may have acted.
    pub(super) fn is_outcome_unknown(&self) -> bool {
        self.may_have_acted || self.previous.is_some()
    }

    /// The guard, and what the handler wants to say at the completion.
    pub(super) fn into_parts(self) -> (AnyGuard, Option<OnCompletion>) {
        (self.guard, self.on_completion)
    }

    fn with_checkpoint(&self, checkpoint: &[u8]) -> Result<Note, WriteError> {
        let (len, max) = (checkpoint.len(), CHECKPOINT_MAX);
        if len > max {
            return Err(WriteError::CheckpointTooLarge { len, max });
        }
        let checkpoint = (len > 0).then(|| Bytes::copy_from_slice(checkpoint));
        Ok(Note {
            checkpoint,
            ..self.note.clone()
        })
    }
}

impl Event {
    /// Leaves a note for the next attempt, of up to [`CHECKPOINT_MAX`] bytes: see
    /// [`Operation::checkpoint`](crate::Operation::checkpoint).
    ///
    /// # Errors
    ///
    /// As for [`Operation::checkpoint`](crate::Operation::checkpoint).
    pub fn checkpoint(&mut self, note: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let noted = self.with_checkpoint(note.as_ref())?;
        let bytes = noted.encode();
        match self.guard.embedded() {
            Some(operation) => operation.checkpoint(bytes)?,
            None => block_on(self.guard.checkpoint(&bytes))?,
        }
        self.note = noted;
        Ok(())
    }

    /// Starts the lease anew: see [`Operation::renew`](crate::Operation::renew).
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where somebody took over: stop working.
    pub fn renew(&mut self) -> Result<(), WriteError> {
        match self.guard.embedded() {
            Some(operation) => operation.renew(),
            None => block_on(self.guard.renew()),
        }
    }

    /// Says more at the event's completion, if the handler succeeds: what
    /// [`Operation::complete_with`](crate::Operation::complete_with) offers goes into the same record. The last one counts.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use std::time::Duration;
    /// # use oncekey::Store;
    /// # use oncekey::inbox::{Inbox, OnInterrupted};
    /// # let inbox = Inbox::builder(Store::open(dir.path())?, "mailer")
    /// #     .on_interrupted(OnInterrupted::rerun())
    /// #     .build()?;
    /// let outcome = inbox.process("evt_1", |event| {
    ///     // This one may come again much later than others.
    ///     let month = Duration::from_secs(30 * 24 * 60 * 60);
    ///     event.on_completion(move |completion| completion.retention(month));
    ///     Ok(())
    /// });
    /// assert!(outcome.is_ack());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_completion(
        &mut self,
        say: impl FnOnce(Completion<&'static [u8]>) -> Completion<&'static [u8]> + Send + 'static,
    ) {
        self.on_completion = Some(Box::new(say));
    }
}

impl<B> fmt::Debug for Event<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("key", self.key())
            .field("run", &self.run())
            .field("previous", &self.previous)
            .finish_non_exhaustive()
    }
}
