//! The journal: operations by name, each with its key, its request and in the end its answer.
//!
//! An operation is a key of the store like any other, and a second one holds its request:
//!
//! ```text
//! (scope, "operation", name)   pending while somebody sends it, interrupted when nobody does,
//!                              completed with the answer
//! (scope, "request", name)     completed with the request; removed when the operation is done
//! ```
//!
//! The operation is written first. One without a request was never sent, for sending begins when
//! both are durable. The key is derived from the operation, so that it is the same whatever became
//! of the second record.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, PROXY_AUTHORIZATION};
use http::{HeaderName, Request};

use crate::backend::{Answer, AnyBackend, AnyGuard, Backend, Guard, Outcome};
use crate::claim::Saved;
use crate::clock::{time, unix_ms};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::RETENTION_MAX;
use crate::listing::{KeyState, PendingKey};
use crate::options::{ClaimOptions, Durability};
use crate::response::Replay;
use crate::stored_response::StoredResponse;
use crate::sync::os::fill_random;

use super::error::JournalError;
use super::key::{IdempotencyKey, KeyFormat};
use super::operation::{Held, JournaledOperation, Unsendable};
use super::record::Record;

const OPERATION: &str = "operation";
const REQUEST: &str = "request";
/// Interrupted keys that a backend is asked for at once, those of others included.
const INTERRUPTED_MAX: usize = 100_000;

/// Operations that are sent to other systems, from before their first attempt until their answer.
///
/// It lives in a store of its own, or in a scope of one that has other uses
/// ([`scope`](Self::scope)). A handle: cloning it is cheap, and a clone can have other options.
#[derive(Clone, Debug)]
#[must_use]
pub struct Journal {
    backend: AnyBackend,
    scope: Vec<u8>,
    send_for: Duration,
    header: HeaderName,
    format: KeyFormat,
    keep_answers: Option<Duration>,
}

/// What the journal has of an operation.
#[derive(Debug)]
#[must_use]
pub enum Journaled {
    /// To be sent: it is new, or nobody knows what became of it and its key is still good. Yours
    /// until it is done or dropped.
    Ready(JournaledOperation),
    /// Nobody knows what became of it, and the server may have forgotten the key: sent again, it
    /// might be carried out twice.
    TooOld(Unsendable),
    /// Its process died before the request was in the journal, so it was never sent.
    /// [`Journal::begin`] with the request makes it ready.
    NeverSent(Unsendable),
    /// It is done: here is the answer, unless that was not kept. Without one as well where an
    /// operation ended, and was forgotten, since it was [listed](Journal::unfinished).
    Done(Option<StoredResponse>),
    /// Somebody has it: in this process where the store is embedded, anywhere where it is shared.
    InHand,
}

/// An operation whose outcome is not known and that nobody is at work on, from
/// [`Journal::unfinished`].
#[derive(Clone, Debug)]
pub struct Unfinished {
    pending: PendingKey,
}

impl Unfinished {
    /// What it was begun as.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.pending.key.id()
    }

    /// When it was begun.
    #[must_use]
    pub fn created_at(&self) -> SystemTime {
        self.pending.created_at
    }

    /// How often it was taken up: 1 for an operation that was begun and not resumed yet.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.pending.attempt
    }
}

impl Journal {
    /// A journal in a [`Store`](crate::Store) or any other backend, for a server that keeps keys for longer than `send_for`.
    ///
    /// `send_for` says how long after it was begun an operation may be sent. After that it is
    /// [too old](Journaled::TooOld), so take the server's retention less the time that a request
    /// may take and that two clocks may differ: 23 hours for a server that keeps keys for 24.
    pub fn new(backend: impl Backend, send_for: Duration) -> Self {
        Self {
            backend: AnyBackend::new(backend),
            scope: b"client-journal".to_vec(),
            send_for,
            header: HeaderName::from_static("idempotency-key"),
            format: KeyFormat::StructuredString,
            keep_answers: None,
        }
    }

    /// The scope of its keys in the store. Default: `client-journal`. One journal for each server
    /// whose operations have names of their own.
    pub fn scope(mut self, scope: impl Into<Vec<u8>>) -> Self {
        self.scope = scope.into();
        self
    }

    /// The header that carries the key. Default: `Idempotency-Key`. Tell
    /// [`RetryPolicy::key_header`](super::RetryPolicy::key_header) of it as well.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// How the key is written. An operation keeps the form that it was begun with.
    pub fn format(mut self, format: KeyFormat) -> Self {
        self.format = format;
        self
    }

    /// How long a name that is done gives its answer. Default: the store's retention. **After that
    /// the name is new**, though the same request gets the same key.
    pub fn keep_answers(mut self, retention: Duration) -> Self {
        self.keep_answers = Some(retention);
        self
    }

    /// Begins the operation called `name`, or finds what became of it.
    ///
    /// The name says which operation it is: the number of the order that is paid. Whoever begins it
    /// again, after a crash or because a queue delivers its task twice, gets the same key for the
    /// same request (method, URI, content type, body), and the answer once there is one.
    ///
    /// The request is kept with its headers and its body, and sent with the same in every attempt.
    /// Headers that are different each time are for the client to add, and so are credentials,
    /// which are refused here. At the store's level of durability both operation and request are
    /// durable on return.
    ///
    /// A future that is dropped has sent nothing.
    ///
    /// # Errors
    ///
    /// [`JournalError::OtherRequest`] where the name stands for another request, and what
    /// [`JournalError`] lists.
    pub async fn begin(
        &self,
        name: impl AsRef<[u8]>,
        request: Request<Bytes>,
    ) -> Result<Journaled, JournalError> {
        self.check(&request)?;
        let key = Key::new(&self.scope, OPERATION, name).map_err(JournalError::Name)?;
        let fingerprint = fingerprint(&request);
        let operation = match self.claim(&key, fingerprint).await? {
            Taken::Own(operation) => operation,
            Taken::Other(journaled) => return Ok(*journaled),
        };
        if operation.attempt() > 1
            && let Some(record) = self.record(&operation).await?
        {
            return Ok(self.resumed(operation, record));
        }
        let record = self.new_record(&operation, request);
        let written = match record.encode() {
            Some(bytes) => self.write_request(&key, &bytes).await,
            None => Err(JournalError::TooManyHeaders),
        };
        let written = match written {
            Ok(()) => self.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // Nothing was sent. Where even this fails, the operation is listed as never sent.
            drop(operation.release().await);
            return Err(error);
        }
        Ok(Journaled::Ready(JournaledOperation::new(
            self.held(operation),
            record,
        )))
    }

    /// Begins an operation that has no name: it is never found but by
    /// [`unfinished`](Self::unfinished). It gets a random name of 128 bits.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin), and [`JournalError::NoRandomness`].
    pub async fn begin_unnamed(&self, request: Request<Bytes>) -> Result<Journaled, JournalError> {
        let mut random = [0; 16];
        fill_random(&mut random).map_err(|_| JournalError::NoRandomness)?;
        let name = format!("{:032x}", u128::from_le_bytes(random));
        self.begin(name, request).await
    }

    /// The operations whose outcome is not known and that nobody has in hand, oldest first: what a
    /// crash left, and what was given up. To be [resumed](Self::resume).
    ///
    /// # Errors
    ///
    /// [`JournalError::Store`]: it is closed, or can't be reached.
    pub async fn unfinished(&self) -> Result<Vec<Unfinished>, JournalError> {
        let interrupted = self.backend.interrupted(INTERRUPTED_MAX).await;
        let mut unfinished: Vec<_> = interrupted
            .map_err(JournalError::Store)?
            .into_iter()
            .filter(|pending| {
                pending.key.scope() == self.scope && pending.key.operation() == OPERATION.as_bytes()
            })
            .map(|pending| Unfinished { pending })
            .collect();
        unfinished.sort_by_key(Unfinished::created_at);
        Ok(unfinished)
    }

    /// Takes an operation up again, with the same key and the same request.
    ///
    /// # Errors
    ///
    /// [`JournalError`].
    pub async fn resume(&self, unfinished: &Unfinished) -> Result<Journaled, JournalError> {
        let key = &unfinished.pending.key;
        let operation = match self.claim(key, unfinished.pending.fingerprint).await? {
            Taken::Own(operation) => operation,
            Taken::Other(journaled) => return Ok(*journaled),
        };
        if operation.attempt() == 1 {
            // There was nothing to take up any more, so the claim began another one.
            let released = operation.release().await;
            released.map_err(|error| JournalError::Write(error.error().clone()))?;
            return Ok(Journaled::Done(None));
        }
        match self.record(&operation).await? {
            Some(record) => Ok(self.resumed(operation, record)),
            None => Ok(Journaled::NeverSent(Unsendable::new(
                self.held(operation),
                None,
            ))),
        }
    }

    pub(super) fn backend(&self) -> &AnyBackend {
        &self.backend
    }

    /// Removes the request of an operation that ends. One that a crash leaves behind is overwritten
    /// when its name is used again.
    pub(super) async fn remove_request(&self, operation: &Key) {
        let removed = match self.request_key(operation) {
            Ok(key) => self.backend.forget_unsynced(&key).await.map(drop),
            Err(_) => return,
        };
        if let Err(error) = removed {
            tracing::warn!(key = %operation, %error, "the request of an ended operation stays");
        }
    }

    fn request_key(&self, operation: &Key) -> Result<Key, JournalError> {
        Key::new(&self.scope, REQUEST, operation.id()).map_err(JournalError::Name)
    }

    /// Whether a request may be journaled.
    fn check(&self, request: &Request<Bytes>) -> Result<(), JournalError> {
        let authority = request.uri().authority();
        if authority.is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(JournalError::CredentialsInUri);
        }
        if request.headers().contains_key(&self.header) {
            return Err(JournalError::HasKey(self.header.clone()));
        }
        let credentials = request.headers().iter().find(|(name, value)| {
            [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(name) || value.is_sensitive()
        });
        match credentials {
            Some((name, _)) => Err(JournalError::Credentials(name.clone())),
            None => Ok(()),
        }
    }

    /// Claims the operation, not durably: the [`flush`](Self::flush) that follows takes the request
    /// with it.
    async fn claim(&self, key: &Key, fingerprint: Fingerprint) -> Result<Taken, JournalError> {
        let mut options = ClaimOptions::new().durability(Durability::Buffered);
        if let Some(retention) = self.keep_answers {
            options = options.retention(retention);
        }
        let claim = self.backend.claim(key, fingerprint, options).await;
        match claim.map_err(JournalError::Store)? {
            Outcome::Started(operation) | Outcome::Interrupted(operation) => {
                Ok(Taken::Own(operation))
            }
            Outcome::InProgress(_) => Ok(Taken::Other(Box::new(Journaled::InHand))),
            Outcome::Completed(saved) => {
                // An answer is not taken back by a loss of power once it was given out.
                self.flush().await?;
                Ok(Taken::Other(Box::new(Journaled::Done(answer(&saved)?))))
            }
            Outcome::Mismatch(_) | Outcome::TooLate(_) => Err(JournalError::OtherRequest),
        }
    }

    /// Makes all that was written as durable as the store's level says.
    pub(super) async fn flush(&self) -> Result<(), JournalError> {
        match self.backend.embedded() {
            Some(store) if store.settings().durability == Durability::Sync => {
                let flushed = store.flush_async().await;
                flushed.map_err(JournalError::Unavailable)
            }
            _ => Ok(()),
        }
    }

    fn held(&self, operation: AnyGuard) -> Held {
        Held::new(self.clone(), operation)
    }

    fn resumed(&self, operation: AnyGuard, record: Record) -> Journaled {
        let is_too_old = time(record.send_until_ms) <= self.backend.now();
        let held = self.held(operation);
        match is_too_old {
            true => Journaled::TooOld(Unsendable::new(held, Some(record))),
            false => Journaled::Ready(JournaledOperation::new(held, record)),
        }
    }

    fn new_record(&self, operation: &AnyGuard, request: Request<Bytes>) -> Record {
        let created_at = operation.created_at();
        let until = created_at.checked_add(self.send_for);
        let until = until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok());
        let (parts, body) = request.into_parts();
        let mut record = Record {
            begun_ms: unix_ms(created_at),
            send_until_ms: until.map_or(u64::MAX, |until| {
                u64::try_from(until.as_millis()).unwrap_or(u64::MAX)
            }),
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
        };
        let key = key_of(operation).header(self.format);
        record.headers.insert(self.header.clone(), key);
        record
    }

    /// Writes the request, over one that an earlier operation of this name left behind, whole or
    /// half-written.
    async fn write_request(&self, operation: &Key, bytes: &[u8]) -> Result<(), JournalError> {
        let max = self.backend.limits().response_bytes;
        if bytes.len() > max {
            let len = bytes.len();
            return Err(JournalError::RequestTooLarge { len, max });
        }
        let key = self.request_key(operation)?;
        let forgotten = self.backend.forget_unsynced(&key).await;
        forgotten.map_err(JournalError::Admin)?;
        let options = ClaimOptions::new()
            .durability(Durability::Buffered)
            .retention(RETENTION_MAX);
        let claim = self.backend.claim(&key, Fingerprint::none(), options);
        match claim.await.map_err(JournalError::Store)? {
            Outcome::Started(request) | Outcome::Interrupted(request) => {
                let written = request.complete(Answer::response(bytes)).await;
                written
                    .map(drop)
                    .map_err(|error| JournalError::Write(error.error().clone()))
            }
            // Only the owner of the operation comes here.
            _ => Err(JournalError::Damaged),
        }
    }

    /// The request of an operation; `None` where it was not written yet.
    async fn record(&self, operation: &AnyGuard) -> Result<Option<Record>, JournalError> {
        let key = self.request_key(operation.key())?;
        let state = self.backend.look(&key).await;
        let KeyState::Completed(saved) = state.map_err(JournalError::Store)? else {
            return Ok(None);
        };
        let Ok(Replay::Response(bytes)) = saved.by_scope() else {
            return Err(JournalError::Damaged);
        };
        let record = Record::decode(bytes.into()).ok_or(JournalError::Damaged)?;
        // Otherwise it was left by another operation of the same name.
        let is_its_own = record.begun_ms == unix_ms(operation.created_at())
            && fingerprint(&record.request()) == operation.fingerprint();
        Ok(is_its_own.then_some(record))
    }
}

/// The key of an operation: the same in all attempts, and when it is begun again.
pub(super) fn key_of(operation: &AnyGuard) -> IdempotencyKey {
    IdempotencyKey::from_digest(&operation.downstream_key("idempotency-key"))
}

enum Taken {
    Own(AnyGuard),
    Other(Box<Journaled>),
}

fn fingerprint(request: &Request<Bytes>) -> Fingerprint {
    let content_type = request.headers().get(CONTENT_TYPE);
    Fingerprint::builder()
        .part(request.method().as_str())
        .part(request.uri().to_string())
        .part(content_type.map_or(&[][..], |value| value.as_bytes()))
        .part(request.body())
        .finish()
}

fn answer(saved: &Saved) -> Result<Option<StoredResponse>, JournalError> {
    match saved.by_scope() {
        Ok(Replay::Response(bytes)) => {
            let answer = StoredResponse::decode(bytes.into());
            answer.map(Some).map_err(|_| JournalError::Damaged)
        }
        Ok(Replay::NotStored) => Ok(None),
        Err(_) => Err(JournalError::Damaged),
    }
}
