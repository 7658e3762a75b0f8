//! The guard: the right to act for a key, and its ways to end.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::block::block_on;
use crate::claim::Saved;
use crate::clock::time;
use crate::completion::Completion;
use crate::engine::{Engine, Finish, Grant, Level, Opened, Refusal, Stored};
use crate::error::{FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::log::commit::Lead;
use crate::options::Durability;
use crate::ticket::Ticket;
use crate::token::Token;

/// A claimed key: yours until you complete it, release it, drop it, or lose it.
///
/// * [`complete`](Self::complete) stores the result: from then on every claim is answered with it.
/// * [`release`](Self::release) says that nothing happened: the key is free again.
/// * Dropping it (a panic, an early return, a cancelled future) says nothing: the key is
///   *interrupted* at once, and the next claimer is told so. It is never silently run again.
///
/// The guard is `Send + 'static` and has no borrowed parts, so it can travel to another thread or
/// task. Leaked with `mem::forget` it holds its key until the process ends;
/// [`Store::pending`](crate::Store::pending) lists it and
/// [`Store::interrupt`](crate::Store::interrupt) frees it.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use oncekey::{Claim, Fingerprint, Key, Store};
///
/// let store = Store::open(dir.path())?;
/// let key = Key::new("acct_1", "POST /v1/payments", "k-1")?;
/// let Claim::Started(mut operation) = store.claim(&key, Fingerprint::of(b"body"))? else {
///     panic!("the key was free")
/// };
/// operation.checkpoint(b"charge requested")?;
/// let saved = operation.complete(b"paid")?;
/// assert_eq!(saved.attempt(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the guard leaves the key interrupted"]
pub struct Operation {
    engine: Arc<Opened>,
    /// `None` once the guard has ended.
    grant: Option<Grant>,
}

/// The attempt before this one, whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Previous {
    /// Its number.
    pub attempt: u32,
    /// When it began.
    pub started_at: SystemTime,
    /// The newest checkpoint of any earlier attempt.
    pub checkpoint: Option<Bytes>,
}

impl Operation {
    #[inline]
    pub(crate) fn new(engine: Arc<Opened>, grant: Grant) -> Self {
        Self {
            engine,
            grant: Some(grant),
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.grant().key
    }

    /// 1 for the first owner, one more at each takeover.
    pub fn attempt(&self) -> u32 {
        self.grant().attempt
    }

    /// The fencing token: greater than every token the store gave before.
    pub fn token(&self) -> Token {
        Token::from_u64(self.grant().token)
    }

    /// When this attempt began.
    pub fn started_at(&self) -> SystemTime {
        time(self.grant().started_ms)
    }

    /// When the operation was first claimed.
    pub fn created_at(&self) -> SystemTime {
        time(self.grant().created_ms)
    }

    /// What the request was claimed with.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.grant().fingerprint
    }

    /// The interrupted attempt before this one; `None` for the first.
    pub fn previous(&self) -> Option<Previous> {
        let past = self.grant().past.as_ref()?;
        let previous = past.previous.as_ref()?;
        Some(Previous {
            attempt: previous.attempt,
            started_at: time(previous.started_ms),
            checkpoint: past.checkpoint.clone(),
        })
    }

    /// The newest checkpoint, of this attempt or an earlier one.
    pub fn last_checkpoint(&self) -> Option<&Bytes> {
        self.grant().past.as_ref()?.checkpoint.as_ref()
    }

    /// A key for a call to another system, 32 hexadecimal digits.
    ///
    /// It is the same for every attempt of this operation, also after a restart, a restored copy or
    /// a salvage, and different for every other operation and every other `label`. A payment
    /// provider that takes idempotency keys then charges once even when this operation runs again.
    /// It is derived from the store's identity, the key, the fingerprint and the label, keyed with
    /// the store's secret; a key used again for the same request after its retention gives the same
    /// downstream key, since by its client's word it is the same operation.
    pub fn downstream_key(&self, label: &str) -> String {
        let grant = self.grant();
        self.engine
            .downstream_key(&grant.key, grant.fingerprint, label)
    }

    /// Stores a note of up to 4,096 bytes for whoever takes over if this attempt is interrupted: a
    /// recovery point, the id of an external call. It replaces the note before it; an empty one
    /// takes it away.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where the guard was overtaken, [`WriteError::CheckpointTooLarge`],
    /// [`WriteError::OutOfSpace`] (the guard still holds the key), or the store refuses.
    pub fn checkpoint(&mut self, note: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let level = self.level(Lead::Allowed);
        let (engine, grant) = self.parts()?;
        block_on(engine.checkpoint(grant, note.as_ref(), level))
    }

    /// [`checkpoint`](Self::checkpoint) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`checkpoint`](Self::checkpoint).
    pub async fn checkpoint_async(&mut self, note: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let level = self.level(Lead::Never);
        let (engine, grant) = self.parts()?;
        engine.checkpoint(grant, note.as_ref(), level).await
    }

    /// [`checkpoint_async`](Self::checkpoint_async), durable with the next sync.
    pub(crate) async fn checkpoint_unsynced(
        &mut self,
        note: impl AsRef<[u8]>,
    ) -> Result<(), WriteError> {
        let level = Level {
            durability: Durability::Buffered,
            lead: Lead::Never,
        };
        let (engine, grant) = self.parts()?;
        engine.checkpoint(grant, note.as_ref(), level).await
    }

    /// Starts the lease anew, at its full length. Does nothing for
    /// [`Lease::WhileAlive`](crate::Lease::WhileAlive) but to check that the key is still held.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where somebody took over: stop working.
    pub fn renew(&mut self) -> Result<(), WriteError> {
        self.engine.renew(self.grant())
    }

    /// Stores the response and ends the operation. It is kept for the claim's retention.
    ///
    /// In [`Durability::Sync`] it is durable on return.
    ///
    /// # Errors
    ///
    /// The guard is inside every error that leaves it held: see [`FinishError::into_operation`].
    /// [`WriteError::LeaseLost`] where somebody took over: their result counts and this one was not
    /// stored. [`WriteError::OutcomeUnknown`] where the sync failed.
    pub fn complete(self, response: impl AsRef<[u8]>) -> Result<Saved, FinishError> {
        let finish = Finish::Complete {
            response: Some(response.as_ref()),
            principal: None,
            retention_ms: self.grant().retention_ms,
            attachments: None,
        };
        let level = self.level(Lead::Allowed);
        self.finish_blocking(finish, level).map(completed)
    }

    /// [`complete`](Self::complete) without blocking.
    ///
    /// The completion is appended at the first poll and never undone; dropping the future after that
    /// only stops the waiting for durability. Only a response larger than the room set aside
    /// ([`Options::reserved_response`](crate::Options::reserved_response)) may have to wait before.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn complete_async(self, response: impl AsRef<[u8]>) -> Result<Saved, FinishError> {
        self.complete_with(response).commit_async().await
    }

    /// Starts a completion with options of its own.
    pub fn complete_with<R: AsRef<[u8]>>(self, response: R) -> Completion<R> {
        Completion::new(self, response)
    }

    /// Ends the operation as done without keeping a response: a duplicate learns that it is done and
    /// is not run. For responses over the limit, and for those not worth keeping.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub fn complete_without_response(self) -> Result<Saved, FinishError> {
        let completion = self.complete_with(&[][..]);
        completion.without_response().commit()
    }

    /// [`complete_without_response`](Self::complete_without_response) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn complete_without_response_async(self) -> Result<Saved, FinishError> {
        let completion = self.complete_with(&[][..]);
        completion.without_response().commit_async().await
    }

    /// Says that nothing happened: the key is absent again and the next claim starts afresh.
    ///
    /// A release that a crash loses leaves the key interrupted, never silently free.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub fn release(self) -> Result<(), FinishError> {
        let level = self.level(Lead::Allowed);
        self.finish_blocking(Finish::Release, level).map(drop)
    }

    /// [`release`](Self::release) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn release_async(self) -> Result<(), FinishError> {
        let level = self.level(Lead::Never);
        self.finish(Finish::Release, level).await.map(drop)
    }

    /// Turns the guard into a ticket for work that goes on elsewhere, through a queue for example.
    ///
    /// The key stays in progress while its lease lasts; [`Store::resume`](crate::Store::resume)
    /// turns the ticket into a guard again, once.
    ///
    /// # Errors
    ///
    /// [`WriteError::TicketNeedsLease`] for a claim with
    /// [`Lease::WhileAlive`](crate::Lease::WhileAlive): a lost ticket would hold the key for ever.
    pub fn into_ticket(mut self) -> Result<Ticket, FinishError> {
        match self.engine.detach(self.grant()) {
            Ok(parts) => {
                self.grant = None;
                Ok(Ticket::new(parts))
            }
            Err(error @ WriteError::LeaseLost { .. }) => Err(FinishError::lost(error)),
            Err(error) => Err(FinishError::held(error, self)),
        }
    }

    /// Completes at a level that may be another than the claim's.
    pub(crate) async fn complete_at(
        self,
        level: Level,
        response: Option<&[u8]>,
    ) -> Result<Option<Saved>, FinishError> {
        let finish = Finish::Complete {
            response,
            principal: None,
            retention_ms: self.grant().retention_ms,
            attachments: None,
        };
        self.finish(finish, level).await
    }

    /// Releases at a level that may be another than the claim's.
    pub(crate) async fn release_at(self, level: Level) -> Result<(), FinishError> {
        self.finish(Finish::Release, level).await.map(drop)
    }

    /// Gives back a key that nothing was done about: free where it was, interrupted otherwise. Waits
    /// for nothing.
    pub(crate) fn give_back(mut self) {
        if let Some(grant) = self.grant.take() {
            match grant.past {
                None => self.engine.release_unseen(&grant),
                Some(_) => self.engine.abandon(&grant),
            }
        }
    }

    pub(crate) async fn finish(
        self,
        finish: Finish<'_>,
        level: Level,
    ) -> Result<Option<Saved>, FinishError> {
        let result = match &self.grant {
            Some(grant) => self.engine.finish(grant, finish, level).await,
            None => Err(Refusal::LOST),
        };
        self.finished(result)
    }

    pub(crate) fn finish_blocking(
        self,
        finish: Finish<'_>,
        level: Level,
    ) -> Result<Option<Saved>, FinishError> {
        let result = match &self.grant {
            Some(grant) => self.engine.finish_blocking(grant, finish, level),
            None => Err(Refusal::LOST),
        };
        self.finished(result)
    }

    fn finished(
        mut self,
        result: Result<Option<Stored>, Refusal>,
    ) -> Result<Option<Saved>, FinishError> {
        match result {
            Ok(stored) => {
                self.grant = None;
                Ok(stored.map(Saved::new))
            }
            Err(refusal) if refusal.held => Err(FinishError::held(refusal.error, self)),
            Err(refusal) => {
                self.grant = None;
                Err(FinishError::lost(refusal.error))
            }
        }
    }

    /// What the engine knows of the store.
    pub(crate) fn settings(&self) -> &crate::options::Settings {
        self.engine.settings()
    }

    fn level(&self, lead: Lead) -> Level {
        Level {
            durability: self.grant().level.durability,
            lead,
        }
    }

    fn parts(&mut self) -> Result<(&Engine, &mut Grant), WriteError> {
        match &mut self.grant {
            Some(grant) => Ok((&self.engine, grant)),
            None => Err(WriteError::LeaseLost { new_attempt: None }),
        }
    }

    /// Every public method takes the guard before its end, so there is a grant.
    pub(crate) fn grant(&self) -> &Grant {
        self.grant
            .as_ref()
            .unwrap_or_else(|| unreachable!("the guard has ended"))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.engine.abandon(&grant);
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Operation");
        if let Some(grant) = &self.grant {
            shown
                .field("key", &grant.key)
                .field("attempt", &grant.attempt)
                .field("token", &grant.token);
        }
        shown.finish_non_exhaustive()
    }
}

pub(crate) fn completed(saved: Option<Saved>) -> Saved {
    saved.unwrap_or_else(|| unreachable!("a completion has a stored result"))
}
