//! An operation in hand: its attempts, and its ways to end.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{Request, Response};

use crate::backend::{Answer, AnyGuard, Backend, Guard};
use crate::clock::time;
use crate::error::WriteError;
use crate::key::Key;
use crate::stored_response::StoredResponse;

use super::error::{JournalError, SendError};
use super::journal::{Journal, key_of};
use super::key::IdempotencyKey;
use super::policy::now;
use super::record::Record;
use super::verdict::Verdict;

/// The guard of an operation, with its key.
#[derive(Debug)]
pub(super) struct Held {
    journal: Journal,
    operation: AnyGuard,
    key: IdempotencyKey,
}

impl Held {
    pub(super) fn new(journal: Journal, operation: AnyGuard) -> Self {
        Self {
            key: key_of(&operation),
            journal,
            operation,
        }
    }

    fn key(&self) -> &Key {
        self.operation.key()
    }

    /// Without an answer, or with one that is too large, it is only marked.
    async fn complete(self, answer: Option<&StoredResponse>) -> Result<(), JournalError> {
        let (journal, key) = (self.journal, self.operation.key().clone());
        let max = journal.backend().limits().response_bytes;
        let bytes = answer.and_then(StoredResponse::encode);
        let answer = Answer {
            response: bytes.as_deref().filter(|bytes| bytes.len() <= max),
            ..Answer::default()
        };
        // The claim was not durable, and this is, with all that was written before.
        let completed: Result<(), WriteError> = match self.operation.into_embedded() {
            Ok(operation) => {
                let completion = operation.completion(answer);
                let completion = match journal.backend().embedded() {
                    Some(store) => completion.durability(store.settings().durability),
                    None => completion,
                };
                let completed = completion.commit_async().await.map(drop);
                completed.map_err(|error| error.error().clone())
            }
            Err(guard) => {
                let completed = guard.complete(answer).await.map(drop);
                completed.map_err(|error| error.error().clone())
            }
        };
        completed.map_err(JournalError::Write)?;
        // Only now: without its request the operation would look as if it had never been sent.
        journal.remove_request(&key).await;
        Ok(())
    }

    async fn discard(self) -> Result<(), JournalError> {
        // Before the name is free: whoever begins it then writes a request of his own.
        self.journal.remove_request(self.operation.key()).await;
        let released = self.operation.release().await;
        released.map_err(|error| JournalError::Write(error.error().clone()))?;
        self.journal.flush().await
    }
}

/// An operation in the journal that may be sent. It has one key, and whatever retries only borrows
/// it.
///
/// Dropped, it is [unfinished](Journal::unfinished).
#[derive(Debug)]
#[must_use = "dropped without an answer it is unfinished"]
pub struct JournaledOperation {
    held: Held,
    record: Record,
}

/// One attempt: the request with its key, borrowed from the operation.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    operation: &'a JournaledOperation,
}

impl<'a> Attempt<'a> {
    /// The request as it was journaled, with the key's header.
    #[must_use]
    pub fn request(&self) -> Request<Bytes> {
        self.operation.record.request()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a IdempotencyKey {
        &self.operation.held.key
    }
}

impl JournaledOperation {
    pub(super) fn new(held: Held, record: Record) -> Self {
        Self { held, record }
    }

    /// What it was begun as.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.held.key().id()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.held.key
    }

    /// Whether it was begun before, so that an earlier attempt may have been carried out.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.held.operation.attempt() > 1
    }

    /// Until when it may be sent.
    #[must_use]
    pub fn send_until(&self) -> SystemTime {
        time(self.record.send_until_ms)
    }

    /// An attempt, for clients that [`send`](Self::send) does not suit; `None` when it is
    /// [too old](super::Journaled::TooOld) to be sent.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt<'_>> {
        let is_in_time = self.held.journal.backend().now() < self.send_until();
        is_in_time.then_some(Attempt { operation: self })
    }

    /// Sends it, and marks it done if the answer is [final](Verdict::Final).
    ///
    /// `client` is called once. It may send the request many times, as a client with a
    /// [`RetryPolicy`](super::RetryPolicy) does, and adds the credentials. `Set-Cookie` of the answer
    /// is not kept. An answer over the store's limit is given out and not kept.
    ///
    /// # Errors
    ///
    /// [`SendError`]: in all but one of its kinds the operation goes on, with the same key, at once
    /// or after a restart.
    pub async fn send<E>(
        self,
        client: impl AsyncFnOnce(Attempt<'_>) -> Result<Response<Bytes>, E>,
    ) -> Result<StoredResponse, SendError<E>> {
        let Some(attempt) = self.attempt() else {
            let Self { held, record } = self;
            return Err(SendError::TooOld(Box::new(Unsendable::new(
                held,
                Some(record),
            ))));
        };
        let answer = match client(attempt).await {
            Ok(answer) => stored(answer),
            Err(source) => {
                let operation = Box::new(self);
                return Err(SendError::NoAnswer { source, operation });
            }
        };
        if Verdict::of(answer.status, &answer.headers, now()) != Verdict::Final {
            let operation = Box::new(self);
            return Err(SendError::NotFinal { answer, operation });
        }
        match self.complete(&answer).await {
            Ok(()) => Ok(answer),
            Err(source) => Err(SendError::NotMarked { answer, source }),
        }
    }

    /// Marks it done, whatever the answer is.
    ///
    /// # Errors
    ///
    /// [`JournalError::Write`]: the operation is unfinished, and sent again it gets the same answer.
    pub async fn complete(self, answer: &StoredResponse) -> Result<(), JournalError> {
        self.held.complete(Some(answer)).await
    }

    /// Marks it done and keeps no answer.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn complete_without_answer(self) -> Result<(), JournalError> {
        self.held.complete(None).await
    }

    /// Takes it out of the journal: it was not carried out and will not be. The name is new again.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn discard(self) -> Result<(), JournalError> {
        self.held.discard().await
    }
}

/// An operation that must not be sent as it is. Its key and its request are here to find out what
/// became of it: then complete it, or discard it.
///
/// Dropped, it is [unfinished](Journal::unfinished).
#[derive(Debug)]
#[must_use = "dropped without a decision it is unfinished"]
pub struct Unsendable {
    held: Held,
    record: Option<Record>,
}

impl Unsendable {
    pub(super) fn new(held: Held, record: Option<Record>) -> Self {
        Self { held, record }
    }

    /// What it was begun as.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.held.key().id()
    }

    /// The key, under which the server may know it.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.held.key
    }

    /// The request, to look at; `None` where it was never sent.
    #[must_use]
    pub fn request(&self) -> Option<Request<Bytes>> {
        self.record.as_ref().map(Record::request)
    }

    /// Until when it could be sent; `None` where it was never sent.
    #[must_use]
    pub fn send_until(&self) -> Option<SystemTime> {
        self.record
            .as_ref()
            .map(|record| time(record.send_until_ms))
    }

    /// Marks it done with the answer that was found.
    ///
    /// # Errors
    ///
    /// As for [`JournaledOperation::complete`].
    pub async fn complete(self, answer: &StoredResponse) -> Result<(), JournalError> {
        self.held.complete(Some(answer)).await
    }

    /// Marks it done and keeps no answer.
    ///
    /// # Errors
    ///
    /// As for [`JournaledOperation::complete`].
    pub async fn complete_without_answer(self) -> Result<(), JournalError> {
        self.held.complete(None).await
    }

    /// Takes it out of the journal: it was not carried out and will not be.
    ///
    /// # Errors
    ///
    /// As for [`JournaledOperation::complete`].
    pub async fn discard(self) -> Result<(), JournalError> {
        self.held.discard().await
    }
}

fn stored(answer: Response<Bytes>) -> StoredResponse {
    let (mut parts, body) = answer.into_parts();
    parts.headers.remove(SET_COOKIE);
    StoredResponse {
        status: parts.status,
        headers: parts.headers,
        trailers: http::HeaderMap::new(),
        body,
    }
}
