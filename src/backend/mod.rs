//! The contract of a claim, apart from what keeps it: one trait for every kind of store.
//!
//! A [`Store`](crate::Store) belongs to one process. A fleet that can't be routed by key keeps its
//! keys where all of it can reach them: in PostgreSQL, SQLite or Redis (features `postgres`,
//! `sqlite`, `redis`). What is written against [`Backend`] runs on each of them, and on whatever else
//! implements it and passes the suite in `oncekey::conformance` (feature `conformance`).
//!
//! ```
//! use oncekey::backend::{Answer, Backend, Guard, Outcome};
//! use oncekey::{ClaimOptions, Fingerprint, Key};
//!
//! /// Charges once, whatever keeps the keys.
//! async fn pay<B: Backend>(backend: &B, key: &Key, body: &[u8]) -> Result<String, Box<dyn std::error::Error>> {
//!     match backend.wait(key, Fingerprint::of(body), ClaimOptions::new()).await? {
//!         Outcome::Started(guard) | Outcome::Interrupted(guard) => {
//!             let receipt = format!("charged under {}", guard.downstream_key("charge"));
//!             guard.complete(Answer::response(receipt.as_bytes())).await?;
//!             Ok(receipt)
//!         }
//!         Outcome::Completed(saved) => {
//!             let replay = saved.by_scope()?;
//!             Ok(String::from_utf8_lossy(replay.response().map_or(&[][..], |it| it)).into_owned())
//!         }
//!         _ => Err("not now".into()),
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! let store = oncekey::Store::open(dir.path())?;
//! let key = Key::new("acct_1", "POST /v1/payments", "order-17")?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let receipt = pay(&store, &key, b"1200 eur").await?;
//! assert_eq!(pay(&store, &key, b"1200 eur").await?, receipt);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What differs
//!
//! [Choosing a backend](crate::documentation::choosing) has the table. In short: the embedded store
//! sees its owners die and interrupts their keys at once. A shared one can only notice that an owner
//! has not been heard of for the length of a lease, so there even
//! [`Lease::WhileAlive`](crate::Lease::WhileAlive) is a lease, which the guard renews by itself.

mod any;
mod downstream;
mod embedded;
mod erased;
mod error;
mod parts;

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::claim::{Mismatch, Saved, TooLate};
use crate::error::{AdminError, ClaimError, FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::{KEY_PART_BYTES_DEFAULT, RESPONSE_BYTES_DEFAULT};
use crate::listing::{KeyState, PendingKey};
use crate::operation::Previous;
use crate::options::{ClaimOptions, ClaimOptionsError};
use crate::store::Forget;
use crate::token::Token;

pub use self::any::{AnyBackend, AnyGuard};
pub use self::error::{BackendError, MalformedRecord};
pub use self::parts::{PendingParts, SavedParts};

pub(crate) use self::downstream::Downstream;

/// What keeps keys: the contract of a claim.
///
/// A handle that clones cheaply; every clone is the same store. Futures are `Send`. Of any number of
/// concurrent claims on one key, by any number of processes where the backend is shared, exactly one
/// gets [`Outcome::Started`] or [`Outcome::Interrupted`].
///
/// An implementation makes each method one atomic step, compares fingerprints on every path that
/// answers for a key that is not free, decides by its own clock and not by its callers', and checks
/// the guard's token in every write. `oncekey::conformance` tests all of that.
pub trait Backend: Clone + Send + Sync + 'static {
    /// The right to act for a key.
    type Guard: Guard;

    /// Starts the operation of `key`, or tells what became of it.
    ///
    /// Dropping the future before it is done gives back what it may have claimed: a key that was free
    /// is free again, any other is interrupted.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: a limit, an option out of range, or the backend refuses or can't be reached.
    /// After [`ClaimError::Backend`] the key may have been claimed in nobody's name; it is then
    /// interrupted when its lease is over.
    fn claim(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> impl Future<Output = Result<Outcome<Self::Guard>, ClaimError>> + Send;

    /// [`claim`](Self::claim), but waits while somebody else is at work: never gives
    /// [`Outcome::InProgress`].
    ///
    /// It has no time limit of its own; wrap it in your runtime's. The number of waiters is bounded.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim), and [`ClaimError::TooManyWaiters`].
    fn wait(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> impl Future<Output = Result<Outcome<Self::Guard>, ClaimError>> + Send;

    /// What a key is, without claiming it.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    fn look(&self, key: &Key) -> impl Future<Output = Result<KeyState, ClaimError>> + Send;

    /// Removes a key: whether it was there. A forced removal fences the owner.
    ///
    /// # Errors
    ///
    /// [`AdminError::Pending`] where that needs [`Forget::Force`].
    fn forget(
        &self,
        key: &Key,
        forget: Forget,
    ) -> impl Future<Output = Result<bool, AdminError>> + Send;

    /// Takes a key from an owner that hangs: the key is interrupted, and the owner fenced.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotHeld`] where nobody holds the key under this token.
    fn interrupt(
        &self,
        key: &Key,
        token: Token,
    ) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Up to `max` keys whose owner is gone and whose outcome is unknown, those first whose operation
    /// is oldest where the backend can tell.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    fn interrupted(
        &self,
        max: usize,
    ) -> impl Future<Output = Result<Vec<PendingKey>, ClaimError>> + Send;

    /// A key for a call to another system, made of what an operation was first claimed with: what
    /// [`Guard::downstream_key`] gives every attempt, for those who have no guard.
    ///
    /// With it one asks another system about an [interrupted](Self::interrupted) operation. The
    /// fingerprint is that of the first claim, as [`PendingKey::fingerprint`] and
    /// [`Guard::fingerprint`] have it.
    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String;

    /// How large keys and responses may be. By default as in [`BackendLimits::default`].
    fn limits(&self) -> BackendLimits {
        BackendLimits::default()
    }

    /// Whether a claim with these options would be taken: asked once, when a layer or an inbox is
    /// built, so that what is wrong with them is not found out by the first request. By default the
    /// ranges that every backend has.
    ///
    /// # Errors
    ///
    /// What [`claim`](Self::claim) would give as [`ClaimError::Options`].
    fn check(&self, options: &ClaimOptions) -> Result<(), ClaimOptionsError> {
        options.check()
    }

    /// What the backend's clock shows, as far as this handle knows without asking. By default this
    /// machine's clock.
    ///
    /// For ages and for times that are told to people. Nothing about a key is decided by it.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// What a backend takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Bytes of each part of a key: scope, operation, id.
    pub key_part_bytes: usize,
    /// Bytes of a response.
    pub response_bytes: usize,
}

impl Default for BackendLimits {
    /// 255 bytes for each part of a key, 1 MiB for a response.
    fn default() -> Self {
        Self {
            key_part_bytes: KEY_PART_BYTES_DEFAULT,
            response_bytes: RESPONSE_BYTES_DEFAULT,
        }
    }
}

/// The right to act for a key: what [`Operation`](crate::Operation) is for every backend.
///
/// Dropped, it leaves its key interrupted: at once where the store is embedded, as soon as a shared
/// one hears of it, and at the latest when the lease is over.
pub trait Guard: fmt::Debug + Send + Sync + 'static + Sized {
    /// The key.
    fn key(&self) -> &Key;

    /// The request that the operation was first claimed for.
    fn fingerprint(&self) -> Fingerprint;

    /// 1 for the first owner, one more at each takeover.
    fn attempt(&self) -> u32;

    /// The fencing token: greater than those of all earlier owners of this key.
    fn token(&self) -> Token;

    /// When this attempt began.
    fn started_at(&self) -> SystemTime;

    /// When the operation was first claimed.
    fn created_at(&self) -> SystemTime;

    /// The interrupted attempt before this one; `None` for the first.
    fn previous(&self) -> Option<Previous>;

    /// The newest checkpoint, of this attempt or an earlier one.
    fn last_checkpoint(&self) -> Option<Bytes>;

    /// A key for a call to another system: the same for every attempt of this operation.
    fn downstream_key(&self, label: &str) -> String;

    /// Stores a note of up to 4,096 bytes for whoever takes over. An empty one takes it away.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where the guard was overtaken, [`WriteError::CheckpointTooLarge`],
    /// or the backend refuses.
    fn checkpoint(&mut self, note: &[u8]) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Starts the lease anew, at its full length.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where somebody took over: stop working.
    fn renew(&mut self) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Stores the result and ends the operation. Once polled it is not undone by dropping the future.
    ///
    /// # Errors
    ///
    /// The guard is inside every error that leaves it held. After [`WriteError::Backend`] the result
    /// may have been stored: completing again with the guard from the error gives the same answer.
    fn complete(
        self,
        answer: Answer<'_>,
    ) -> impl Future<Output = Result<Saved, FinishError<Self>>> + Send;

    /// Says that nothing happened: the key is absent again.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    fn release(self) -> impl Future<Output = Result<(), FinishError<Self>>> + Send;

    /// Says without waiting that this attempt did nothing: its key is free if it was free before, and
    /// interrupted if it was not. By default the guard is only dropped, which is always right and
    /// tells less.
    fn give_back(self) {}
}

/// What became of the operation: [`Claim`](crate::Claim) for every backend.
#[derive(Debug)]
#[must_use = "a started or interrupted operation that is dropped leaves its key interrupted"]
pub enum Outcome<G> {
    /// The key was free: you own the operation now.
    Started(G),
    /// The key was claimed before and its owner is gone. You own it now, as a new attempt; **what the
    /// earlier one did is unknown**.
    Interrupted(G),
    /// Another owner is at work.
    InProgress(Progress),
    /// The operation is done: here is its stored result.
    Completed(Saved),
    /// The key was used for another request.
    Mismatch(Mismatch),
    /// The key is absent, but was first sent before the time from which results are kept.
    TooLate(TooLate),
}

/// Somebody else's operation under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The attempt under way.
    pub attempt: u32,
    /// When it began.
    pub since: SystemTime,
    /// How long its owner is still presumed alive; `None` where nothing limits that.
    pub lease_left: Option<Duration>,
}

/// What a completion stores.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an answer is stored by Guard::complete"]
pub struct Answer<'a> {
    /// The response, which may be empty; `None` marks the operation as done and keeps none.
    pub response: Option<&'a [u8]>,
    /// For whom it is: see [`Saved::for_principal`]. At most 255 bytes.
    pub principal: Option<&'a [u8]>,
    /// How long it answers, from now on. The claim's by default.
    pub retention: Option<Duration>,
}

impl<'a> Answer<'a> {
    /// A response to be replayed.
    pub fn response(response: &'a [u8]) -> Self {
        Self {
            response: Some(response),
            ..Self::default()
        }
    }

    /// No response: a duplicate learns that the operation is done, and is not run.
    pub fn without_response() -> Self {
        Self::default()
    }

    /// For whom the result is.
    pub fn principal(mut self, principal: &'a [u8]) -> Self {
        self.principal = Some(principal);
        self
    }

    /// How long the result answers: 1 second to 3,653 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }
}

impl<G> Outcome<G> {
    /// Whether the caller owns the operation now.
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Started(_) | Self::Interrupted(_))
    }

    /// The same outcome with the guard in another form.
    pub(crate) fn map<H>(self, form: impl FnOnce(G) -> H) -> Outcome<H> {
        match self {
            Self::Started(guard) => Outcome::Started(form(guard)),
            Self::Interrupted(guard) => Outcome::Interrupted(form(guard)),
            Self::InProgress(progress) => Outcome::InProgress(progress),
            Self::Completed(saved) => Outcome::Completed(saved),
            Self::Mismatch(mismatch) => Outcome::Mismatch(mismatch),
            Self::TooLate(too_late) => Outcome::TooLate(too_late),
        }
    }

    /// The guard, if the caller owns the operation now.
    pub fn into_guard(self) -> Option<G> {
        match self {
            Self::Started(guard) | Self::Interrupted(guard) => Some(guard),
            _ => None,
        }
    }
}
