//! Handling each event of a queue once, however often it is delivered.
//!
//! Brokers deliver at least once: after a crash, a rebalance, an acknowledgement that got lost. An
//! [`Inbox`] knows by an event's id and the consumer's name what became of it, runs the handler where
//! it has to run, and says what to tell the broker: acknowledge, retry later, or dead letter.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! use oncekey::Store;
//! use oncekey::inbox::{Acked, Failure, Inbox, OnInterrupted, Outcome};
//!
//! let inbox = Inbox::builder(Store::open(directory.path())?, "order-mailer")
//!     // After a crash nobody knows whether the mail went out: this consumer's provider takes
//!     // idempotency keys, so it is safe to send it again.
//!     .on_interrupted(OnInterrupted::rerun())
//!     .build()?;
//!
//! # struct Mails(Vec<String>);
//! # impl Mails {
//! #     fn send(&mut self, key: String) -> Result<(), Failure> { self.0.push(key); Ok(()) }
//! # }
//! # let mut mails = Mails(Vec::new());
//! for delivery in ["evt_1", "evt_2", "evt_1"] {
//!     let outcome = inbox.process(delivery, |event| {
//!         let key = event.downstream_key("mail");
//!         mails.send(key)
//!     });
//!     match outcome {
//!         Outcome::Ack(_) => { /* acknowledge */ }
//!         Outcome::RetryLater(retry) => { let _delay = retry.after; }
//!         Outcome::DeadLetter(dead) => { let _why = dead.reason; }
//!     }
//! }
//! # assert_eq!(mails.0.len(), 2);
//! let again = inbox.process("evt_2", |_| unreachable!("it was handled"));
//! assert!(matches!(again, Outcome::Ack(Acked::AlreadyProcessed)));
//! # Ok(())
//! # }
//! ```
//!
//! # What is told to the broker
//!
//! | broker | [`Ack`](Outcome::Ack) | [`RetryLater`](Outcome::RetryLater) | [`DeadLetter`](Outcome::DeadLetter) | the event's id |
//! |---|---|---|---|---|
//! | **Kafka** | commit the offset behind it, once every message before it in the partition is [settled](Outcome::is_settled) | commit nothing behind it: pause the partition and seek back to it when the time is over, polling meanwhile; or write it to a retry topic and count it as settled | write it to a topic of dead letters, then as for `Ack` | an id that the producer put into header or payload. Topic, partition and offset name one record only: what a producer wrote twice has two |
//! | **NATS JetStream** | `+ACK`, as a request, to know that it arrived | `-NAK` with the delay | publish it elsewhere, then `+TERM` | the publisher's `Nats-Msg-Id`. The stream's sequence number names one stored message |
//! | **Amazon SQS** | `DeleteMessage` | `ChangeMessageVisibility` to the delay in whole seconds, rounded up; up to 12 hours in all | send it to the queue of dead letters, then `DeleteMessage` | an attribute or the body. `MessageId` names one sent message: what a sender sent twice has two |
//! | **RabbitMQ** | `basic.ack` | nothing in AMQP waits: hold the delivery and `basic.nack` it with `requeue`, which delivers it at once; or publish it to a queue with a message TTL that dead-letters back, then `basic.ack` | `basic.reject` without `requeue`, **if** the queue has a dead-letter exchange; without one that discards it | the property `message_id`, if the publisher sets it. A delivery tag names a delivery |
//! | **job queues** | mark the job as done | put it back with the delay as its next run | mark it as failed for good | the job's id |
//!
//! In each of them a dead letter is put away *before* the message is acknowledged. If the consumer dies
//! in between, the event is delivered again and is a dead letter again. A broker that counts deliveries
//! itself (SQS's `maxReceiveCount`, `MaxDeliver` of JetStream, the delivery limit of RabbitMQ's quorum
//! queues) counts each `RetryLater`: set its limit well above
//! [`max_attempts`](InboxBuilder::max_attempts). A handler that takes longer than the broker waits for
//! an acknowledgement has its event delivered to somebody else, who gets
//! [`InProgress`](RetryReason::InProgress) here; extend the broker's time where it can be extended.
//!
//! # Attempts
//!
//! | what became of a run | the next delivery |
//! |---|---|
//! | the handler returned `Ok` | acknowledged |
//! | [`Failure::nothing_happened`] | runs the handler |
//! | [`Failure::may_have_acted`], any other error, a panic, a dropped future, the death of the process | as [`OnInterrupted`] says |
//! | [`Failure::reject`] | dead letter |
//!
//! Whatever the row, a handler is not started more than
//! [`max_attempts`](InboxBuilder::max_attempts) times. The count is noted in the store just before each
//! start, so it outlives the process. The note is not waited for: a loss of power may take back the
//! last one, and then that start is not counted.
//!
//! A dead letter of which no attempt can have acted is remembered for the retention, like an event that
//! was processed. One that may have acted stays [interrupted](crate::Store::interrupted), until
//! [`Store::reconcile`](crate::Store::reconcile) settles it. [`Inbox::redrive`] lets either run again.
//!
//! The [guide](crate::documentation::consumers) has more: batches, orders, what a crash at each step
//! leaves.
#![forbid(unsafe_code)]

mod batch;
mod builder;
mod event;
mod interrupted;
pub(crate) mod note;
mod outcome;
mod process;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use self::process::{Shared, Style, dead_marker};

pub use self::builder::{
    ATTEMPTS_DEFAULT, BACKOFF_FIRST_DEFAULT, BACKOFF_MAX_DEFAULT, InboxBuilder, InboxError,
    Undecided,
};
pub use self::event::{Event, Message};
pub use self::interrupted::OnInterrupted;
pub use self::note::CHECKPOINT_MAX;
pub use self::outcome::{
    Acked, DeadLetter, DeadReason, Failure, Outcome, RetryLater, RetryReason, SharedError,
};

use crate::backend::{AnyBackend, Backend};
use crate::block::block_on;
use crate::error::AdminError;
use crate::listing::KeyState;
use crate::reconcile::{ReconcileError, Verdict};
use crate::store::{Forget, Store};

/// What one consumer has received: see [the module](self).
///
/// A handle that clones cheaply, for every thread and task of the consumer. Consumers of different
/// names handle the same event once each.
pub struct Inbox<B = Store> {
    shared: Arc<Shared>,
    kind: PhantomData<fn() -> B>,
}

impl<B: Backend> Inbox<B> {
    /// An inbox in the making, for the consumer of this name. The name is part of every key: give
    /// each handler its own, and do not change it.
    ///
    /// On a [`Store`] it has blocking forms too; on any other backend it is used with those that are
    /// async, in a runtime, and several processes may share the consumer's name.
    pub fn builder(backend: B, consumer: impl AsRef<[u8]>) -> InboxBuilder<Undecided, B> {
        InboxBuilder::new(backend, consumer.as_ref().to_vec())
    }

    /// What keeps the events.
    pub fn backend(&self) -> &AnyBackend {
        &self.shared.backend
    }

    /// The name of the consumer.
    pub fn consumer(&self) -> &[u8] {
        &self.shared.consumer
    }

    /// [`process`](Inbox::process) without blocking. Dropping the future while the handler runs leaves
    /// the event interrupted.
    pub async fn process_async<'a>(
        &self,
        message: impl Into<Message<'a>>,
        handler: impl AsyncFnOnce(&mut Event<B>) -> Result<(), Failure>,
    ) -> Outcome {
        self.shared
            .process(Style::Async, message.into(), handler)
            .await
    }

    /// [`process_batch`](Inbox::process_batch) without blocking. Dropping the future leaves the event
    /// whose handler runs interrupted, and gives those behind it back.
    pub async fn process_batch_async<'a>(
        &self,
        messages: impl IntoIterator<Item = impl Into<Message<'a>>>,
        handler: impl AsyncFnMut(usize, &mut Event<B>) -> Result<(), Failure>,
    ) -> Vec<Outcome> {
        let messages = messages.into_iter().map(Into::into).collect();
        self.shared
            .process_batch(Style::Async, messages, handler)
            .await
    }
}

impl<B: Backend> Inbox<B> {
    /// [`redrive`](Inbox::redrive) on any backend. A dead letter whose outcome is unknown is claimed
    /// for it, so the message needs the same payload as when it was handled.
    ///
    /// # Errors
    ///
    /// As for [`redrive`](Inbox::redrive).
    pub async fn redrive_async<'a>(
        &self,
        message: impl Into<Message<'a>>,
    ) -> Result<bool, ReconcileError> {
        self.shared.redrive(message.into()).await
    }
}

impl Inbox {
    /// Handles a delivery of an event, unless that was done before: what to tell the broker.
    ///
    /// The handler runs in exactly one of any number of deliveries at once; the others are to be
    /// retried. It runs again after a failure or an interruption, as [the module](self) tells, and
    /// never after it returned `Ok` and this call returned [`Outcome::Ack`]. At the store's level of
    /// durability the answer is durable on return. A handler that panics leaves the event
    /// interrupted, and the panic goes on.
    ///
    /// There is no error besides the outcome: where the store takes no claim (a full disk, a limit,
    /// a closed store) the event has to come again, and the [reason](RetryReason::Refused) says why.
    /// A consumer should stop where that is
    /// [`ClaimError::Unavailable`](crate::ClaimError::Unavailable).
    pub fn process<'a>(
        &self,
        message: impl Into<Message<'a>>,
        handler: impl FnOnce(&mut Event) -> Result<(), Failure>,
    ) -> Outcome {
        let handler = async move |event: &mut Event| handler(event);
        block_on(
            self.shared
                .process(Style::Blocking, message.into(), handler),
        )
    }

    /// Handles a poll of messages: one outcome each, in order.
    ///
    /// All are claimed with one sync, handled one after the other in their order, and completed with
    /// one sync, so that a poll of a hundred costs two. The handler is told the message's place. An
    /// event that stands twice in the batch is handled once, and its second message has the outcome of
    /// the first.
    ///
    /// **A crash in the middle** leaves every event interrupted that was not completed by then, also
    /// those whose handler was not started: only the count of their runs knows the difference. With
    /// [`OnInterrupted::dead_letter`] all of them are dead letters then, so keep such batches small.
    /// A handler that panics leaves its own event interrupted; those behind it are given back.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use oncekey::Store;
    /// # use oncekey::inbox::{Inbox, Message, OnInterrupted, Outcome};
    /// # let inbox = Inbox::builder(Store::open(dir.path())?, "mailer")
    /// #     .on_interrupted(OnInterrupted::rerun())
    /// #     .build()?;
    /// let poll = [("evt_1", "to ann"), ("evt_2", "to bob"), ("evt_1", "to ann")];
    /// let messages = poll.map(|(id, text)| Message::new(id).payload(text));
    /// let mut sent = Vec::new();
    /// let outcomes = inbox.process_batch(messages, |index, _event| {
    ///     sent.push(poll[index].1);
    ///     Ok(())
    /// });
    /// assert_eq!(sent, ["to ann", "to bob"]);
    /// // What a consumer of Kafka may commit: all before the first that has to come again.
    /// let settled = outcomes.iter().take_while(|outcome| outcome.is_settled());
    /// assert_eq!(settled.count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process_batch<'a>(
        &self,
        messages: impl IntoIterator<Item = impl Into<Message<'a>>>,
        mut handler: impl FnMut(usize, &mut Event) -> Result<(), Failure>,
    ) -> Vec<Outcome> {
        let messages = messages.into_iter().map(Into::into).collect();
        let handler = async |index: usize, event: &mut Event| handler(index, event);
        block_on(
            self.shared
                .process_batch(Style::Blocking, messages, handler),
        )
    }

    /// Lets a dead letter run again: its next delivery starts afresh. Whether it was one.
    ///
    /// For operators, who have repaired what was wrong and put the message back into its queue.
    /// **Where its outcome is unknown this says that it may run all the same.** An event that was
    /// processed, that is being handled, or that has yet to come again is left alone. Redrives of one
    /// inbox and its clones are taken one after the other. Blocks.
    ///
    /// # Errors
    ///
    /// [`ReconcileError`]: the event stays a dead letter.
    pub fn redrive<'a>(&self, message: impl Into<Message<'a>>) -> Result<bool, ReconcileError> {
        let claim = |error| ReconcileError::Claim(error);
        let message = message.into();
        let key = self.shared.key(&message);
        let key = key.map_err(|error| claim(error.into()))?;
        let _one_at_a_time = self.shared.redrives.lock();
        let Some(store) = self.shared.backend.embedded() else {
            return block_on(self.redrive_async(message));
        };
        match store.get(&key).map_err(claim)? {
            KeyState::Completed(saved) if dead_marker(&saved).is_some() => {
                match store.forget(&key, Forget::IfCompleted) {
                    Ok(was_there) => Ok(was_there),
                    Err(AdminError::Claim(error)) => Err(claim(error)),
                    // It has expired and is being handled.
                    Err(_) => Ok(false),
                }
            }
            KeyState::Interrupted { .. } => store.settle_key(&key, |checkpoint| {
                let note = checkpoint.and_then(note::Note::decode);
                match note.and_then(|note| note.dead) {
                    Some(_) => Verdict::Release,
                    None => Verdict::Keep,
                }
            }),
            _ => Ok(false),
        }
    }
}

impl<B> Clone for Inbox<B> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            kind: PhantomData,
        }
    }
}

impl<B> fmt::Debug for Inbox<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.shared).finish()
    }
}
