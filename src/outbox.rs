//! The outbox: messages that are stored with a result, and delivered until somebody acknowledges them.
//!
//! A service that charges a card and tells the warehouse must not do one without the other.
//! [`Completion::send`](crate::Completion::send) stores the message in the record of the completion:
//! both are there after a crash, or none. A dispatcher, one loop or several, takes messages with
//! [`Outbox::next`] and hands them on.
//!
//! * **At least once.** A message is handed out until it is acknowledged, also after a restart. What
//!   comes twice has the same [`MessageId`]: make it the idempotency key of the call.
//! * **In order.** Of one topic and key only the oldest is out, and the next comes when that is
//!   acknowledged or dead. Different keys do not wait for each other.
//! * **Backoff.** One that [failed](Delivery::fail) comes again after a time that doubles, and holds
//!   up those behind it. After [`Outbox::max_attempts`] it is a dead letter: it is passed by, kept, and
//!   [listed](Outbox::dead_letters), to be [retried](Outbox::retry) or [discarded](Outbox::discard) by
//!   hand; its attempts and its backoff begin anew then. **Deliveries that a crash cut off do not count as
//!   attempts**, and after a restart everything is due at once: a message that kills the process is
//!   delivered again for ever, and holds up those of its topic and key. Where a payload could do that,
//!   count its deliveries outside, or hand it to a process of its own.
//! * **Bounded.** A store takes [`Options::max_outbox`](crate::Options::max_outbox) messages, dead
//!   letters included; then completions with messages are refused with
//!   `WriteError::OutboxFull` and keep their guard. A message takes
//!   about a hundred bytes of memory, whatever it says.
//! * **Durable first.** In [`Durability::Sync`](crate::Durability::Sync) no message is handed out that a
//!   loss of power can take back. An acknowledgement is not waited for: one that is lost brings the
//!   message again. One that finds the disk full is kept in memory, and written after the next that finds
//!   room; a process that ends before that brings the message again.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! use std::time::Duration;
//! # use oncekey::{Claim, Fingerprint, Key, Store};
//! use oncekey::outbox::Outbox;
//!
//! # let store = Store::open(dir.path())?;
//! # let key = Key::new("acct_1", "POST /v1/payments", "k-1")?;
//! let Claim::Started(operation) = store.claim(&key, Fingerprint::none())? else {
//!     panic!("the key was free")
//! };
//! operation.complete_with(b"paid").send("shipping", "order-17", b"ship it").commit()?;
//!
//! let outbox = Outbox::new(&store).max_attempts(10);
//! while let Some(delivery) = outbox.next(Duration::ZERO)? {
//!     assert_eq!(delivery.topic(), b"shipping");
//!     let sent = call_shipping(delivery.id().to_string(), delivery.payload());
//!     match sent {
//!         Ok(()) => delivery.acknowledge()?,
//!         Err(_) => delivery.fail()?,
//!     }
//! }
//! assert_eq!(store.stats().outbox_messages, 0);
//! # fn call_shipping(_: String, _: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::block::{block_on, block_with_timeout};
use crate::clock::{rounded_up_ms, time};
use crate::engine::{Level, Message, NextMessage, Opened, Taken};
use crate::error::{ClaimError, WriteError};
use crate::log::commit::Lead;
use crate::store::Store;

/// Attempts of a message by default.
const ATTEMPTS_DEFAULT: u32 = 16;
/// After a first failure, and the longest.
const BACKOFF_DEFAULT: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// The messages of a store, to be delivered: see the [module](self).
///
/// It is a handle with settings of its own; several dispatchers can have one each, or share clones.
#[derive(Clone, Debug)]
pub struct Outbox {
    engine: Arc<Opened>,
    attempts_max: u32,
    backoff: (Duration, Duration),
}

/// What identifies a message for ever: the same in every delivery, different for every other message
/// of this store, also after it was restored from a copy. It is shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    store: u64,
    position: u64,
}

/// A message in the hands of a dispatcher. No other message of its topic and key is out meanwhile.
///
/// Dropped without a word (a panic, a cancelled future) it comes again after the first backoff, and the
/// attempt does not count.
#[must_use = "a message that is neither acknowledged nor failed comes again"]
#[derive(Debug)]
pub struct Delivery {
    taken: Taken,
    message: Message,
    attempts_max: u32,
    backoff: (Duration, Duration),
}

/// A message that failed too often.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    id: MessageId,
    message: Message,
}

impl Outbox {
    /// The messages of this store. 16 attempts, after one second at first and 15 minutes at most.
    pub fn new(store: &Store) -> Self {
        Self {
            engine: Arc::clone(store.engine()),
            attempts_max: ATTEMPTS_DEFAULT,
            backoff: BACKOFF_DEFAULT,
        }
    }

    /// How often a message is tried before it is a dead letter: at least once.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// How long a message waits after it failed for the first time, and at most. Between the two the
    /// time doubles with each failure.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = (first, max.max(first));
        self
    }

    /// The next message that is due, waiting for one up to `timeout`; `None` where none came.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] on a store that is closed or poisoned, or where the message can't be read: that
    /// one is tried again after the first backoff.
    pub fn next(&self, timeout: Duration) -> Result<Option<Delivery>, ClaimError> {
        let time = self.engine.time();
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let until_ms = time.monotonic_ms().saturating_add(timeout_ms);
        let next = RefCell::new(NextMessage::new(&self.engine));
        loop {
            let taken = block_with_timeout(
                |context| match next.borrow_mut().look(context) {
                    Poll::Pending if time.monotonic_ms() >= until_ms => Poll::Ready(None),
                    polled => polled.map(Some),
                },
                || next.borrow().sleep(until_ms),
            );
            let Some(taken) = taken.transpose()? else {
                return Ok(None);
            };
            if let Some(delivery) = block_on(self.read(taken, Lead::Allowed))? {
                return Ok(Some(delivery));
            }
        }
    }

    /// The next message that is due, whenever that is. Dropping the future gives up the waiting.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    pub async fn next_async(&self) -> Result<Delivery, ClaimError> {
        loop {
            let taken = NextMessage::new(&self.engine).await?;
            if let Some(delivery) = self.read(taken, Lead::Never).await? {
                return Ok(delivery);
            }
        }
    }

    async fn read(&self, mut taken: Taken, lead: Lead) -> Result<Option<Delivery>, ClaimError> {
        taken.back_after_ms = rounded_up_ms(self.backoff.0);
        let level = Level {
            durability: self.engine.settings().durability,
            lead,
        };
        let message = taken.read(level).await?;
        Ok(message.map(|message| Delivery {
            taken,
            message,
            attempts_max: self.attempts_max,
            backoff: self.backoff,
        }))
    }

    /// The dead letters, oldest first.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] on a store that is closed, or where one can't be read.
    pub fn dead_letters(&self) -> Result<Vec<DeadLetter>, ClaimError> {
        let dead = self.engine.dead_letters()?;
        let letters = dead.into_iter().map(|(position, message)| DeadLetter {
            id: MessageId::new(&self.engine, position),
            message,
        });
        Ok(letters.collect())
    }

    /// Makes a dead letter a message again, with all its attempts before it; whether it was one. It
    /// comes before those of its topic and key that are still waiting.
    ///
    /// # Errors
    ///
    /// [`WriteError`] where it could not be written: it stays a dead letter.
    pub fn retry(&self, id: MessageId) -> Result<bool, WriteError> {
        block_on(self.retry_async(id))
    }

    /// [`retry`](Self::retry) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`retry`](Self::retry).
    pub async fn retry_async(&self, id: MessageId) -> Result<bool, WriteError> {
        match MessageId::new(&self.engine, id.position) == id {
            true => self.engine.revive(id.position).await,
            false => Ok(false),
        }
    }

    /// Removes a dead letter; whether it was one.
    ///
    /// # Errors
    ///
    /// [`WriteError`] where that could not be written: it stays a dead letter.
    pub fn discard(&self, id: MessageId) -> Result<bool, WriteError> {
        block_on(self.discard_async(id))
    }

    /// [`discard`](Self::discard) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`discard`](Self::discard).
    pub async fn discard_async(&self, id: MessageId) -> Result<bool, WriteError> {
        match MessageId::new(&self.engine, id.position) == id {
            true => self.engine.discard_message(id.position).await,
            false => Ok(false),
        }
    }
}

impl MessageId {
    fn new(engine: &Opened, position: u64) -> Self {
        let (store, position) = engine.message_id(position);
        Self { store, position }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.store, self.position)
    }
}

impl Delivery {
    /// Its id: the idempotency key for whoever receives it.
    pub fn id(&self) -> MessageId {
        MessageId::new(self.taken.engine(), self.taken.position())
    }

    /// Where it goes.
    pub fn topic(&self) -> &[u8] {
        self.message.key.scope()
    }

    /// What its order is kept for.
    pub fn key(&self) -> &[u8] {
        self.message.key.operation()
    }

    /// What it says.
    pub fn payload(&self) -> &[u8] {
        self.message.payload()
    }

    /// 1 at first, one more after each failure.
    pub fn attempt(&self) -> u32 {
        self.taken.attempt()
    }

    /// When it was stored, in store time.
    pub fn sent_at(&self) -> SystemTime {
        time(self.message.stored.created_ms)
    }

    /// It was delivered: it does not come again, and its space is given back.
    ///
    /// # Errors
    ///
    /// [`WriteError`] where that could not be written: it comes again, after the first backoff.
    pub fn acknowledge(self) -> Result<(), WriteError> {
        block_on(self.acknowledge_async())
    }

    /// [`acknowledge`](Self::acknowledge) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`acknowledge`](Self::acknowledge).
    pub async fn acknowledge_async(self) -> Result<(), WriteError> {
        self.taken.acknowledge().await
    }

    /// It was not delivered: it comes again after the backoff, or is a dead letter now.
    ///
    /// # Errors
    ///
    /// [`WriteError`] where that could not be written: it comes again after the backoff.
    pub fn fail(self) -> Result<(), WriteError> {
        block_on(self.fail_async())
    }

    /// [`fail`](Self::fail) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`fail`](Self::fail).
    pub async fn fail_async(self) -> Result<(), WriteError> {
        let attempt = self.attempt();
        let (first, max) = self.backoff;
        let doublings = attempt.saturating_sub(1).min(31);
        let after = first.saturating_mul(1 << doublings).min(max);
        self.taken
            .fail(rounded_up_ms(after), attempt >= self.attempts_max)
            .await
    }

    /// Nobody will ever take it: it is a dead letter at once.
    ///
    /// # Errors
    ///
    /// As for [`fail`](Self::fail).
    pub fn reject(self) -> Result<(), WriteError> {
        block_on(self.reject_async())
    }

    /// [`reject`](Self::reject) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`fail`](Self::fail).
    pub async fn reject_async(self) -> Result<(), WriteError> {
        self.taken.fail(rounded_up_ms(self.backoff.0), true).await
    }
}

impl DeadLetter {
    /// Its id.
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Where it was to go.
    pub fn topic(&self) -> &[u8] {
        self.message.key.scope()
    }

    /// What its order was kept for.
    pub fn key(&self) -> &[u8] {
        self.message.key.operation()
    }

    /// What it says.
    pub fn payload(&self) -> &[u8] {
        self.message.payload()
    }

    /// How often it was tried.
    pub fn attempts(&self) -> u32 {
        self.message.stored.attempt.saturating_sub(1)
    }

    /// When it was stored, in store time.
    pub fn sent_at(&self) -> SystemTime {
        time(self.message.stored.created_ms)
    }
}
