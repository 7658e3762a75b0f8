//! Backends and guards as trait objects: the futures in boxes, the guards as [`AnyGuard`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;

use crate::backend::{Answer, AnyGuard, Backend, BackendLimits, Guard, Outcome};
use crate::claim::Saved;
use crate::error::{AdminError, ClaimError, FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::{KeyState, PendingKey};
use crate::operation::Previous;
use crate::options::{ClaimOptions, ClaimOptionsError};
use crate::store::Forget;
use crate::token::Token;

pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Backend`] without its types.
pub(super) trait ErasedBackend: Send + Sync {
    fn claim<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Boxed<'a, Result<Outcome<AnyGuard>, ClaimError>>;

    fn wait<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Boxed<'a, Result<Outcome<AnyGuard>, ClaimError>>;

    fn look<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<KeyState, ClaimError>>;

    fn forget<'a>(&'a self, key: &'a Key, forget: Forget) -> Boxed<'a, Result<bool, AdminError>>;

    fn interrupt<'a>(&'a self, key: &'a Key, token: Token) -> Boxed<'a, Result<(), AdminError>>;

    fn interrupted(&self, max: usize) -> Boxed<'_, Result<Vec<PendingKey>, ClaimError>>;

    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String;

    fn limits(&self) -> BackendLimits;

    fn check(&self, options: &ClaimOptions) -> Result<(), ClaimOptionsError>;

    fn now(&self) -> SystemTime;
}

impl<B: Backend> ErasedBackend for B {
    fn claim<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Boxed<'a, Result<Outcome<AnyGuard>, ClaimError>> {
        Box::pin(async move {
            let claimed = Backend::claim(self, key, fingerprint, options).await?;
            Ok(claimed.map(AnyGuard::erased))
        })
    }

    fn wait<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Boxed<'a, Result<Outcome<AnyGuard>, ClaimError>> {
        Box::pin(async move {
            let claimed = Backend::wait(self, key, fingerprint, options).await?;
            Ok(claimed.map(AnyGuard::erased))
        })
    }

    fn look<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<KeyState, ClaimError>> {
        Box::pin(Backend::look(self, key))
    }

    fn forget<'a>(&'a self, key: &'a Key, forget: Forget) -> Boxed<'a, Result<bool, AdminError>> {
        Box::pin(Backend::forget(self, key, forget))
    }

    fn interrupt<'a>(&'a self, key: &'a Key, token: Token) -> Boxed<'a, Result<(), AdminError>> {
        Box::pin(Backend::interrupt(self, key, token))
    }

    fn interrupted(&self, max: usize) -> Boxed<'_, Result<Vec<PendingKey>, ClaimError>> {
        Box::pin(Backend::interrupted(self, max))
    }

    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
        Backend::downstream_key(self, key, fingerprint, label)
    }

    fn limits(&self) -> BackendLimits {
        Backend::limits(self)
    }

    fn check(&self, options: &ClaimOptions) -> Result<(), ClaimOptionsError> {
        Backend::check(self, options)
    }

    fn now(&self) -> SystemTime {
        Backend::now(self)
    }
}

/// [`Guard`] without its type.
pub(super) trait ErasedGuard: fmt::Debug + Send + Sync {
    fn key(&self) -> &Key;

    fn fingerprint(&self) -> Fingerprint;

    fn attempt(&self) -> u32;

    fn token(&self) -> Token;

    fn started_at(&self) -> SystemTime;

    fn created_at(&self) -> SystemTime;

    fn previous(&self) -> Option<Previous>;

    fn last_checkpoint(&self) -> Option<Bytes>;

    fn downstream_key(&self, label: &str) -> String;

    fn checkpoint<'a>(&'a mut self, note: &'a [u8]) -> Boxed<'a, Result<(), WriteError>>;

    fn renew(&mut self) -> Boxed<'_, Result<(), WriteError>>;

    fn complete<'a>(
        self: Box<Self>,
        answer: Answer<'a>,
    ) -> Boxed<'a, Result<Saved, FinishError<AnyGuard>>>;

    fn release(self: Box<Self>) -> Boxed<'static, Result<(), FinishError<AnyGuard>>>;

    fn give_back(self: Box<Self>);
}

impl<G: Guard> ErasedGuard for G {
    fn key(&self) -> &Key {
        Guard::key(self)
    }

    fn fingerprint(&self) -> Fingerprint {
        Guard::fingerprint(self)
    }

    fn attempt(&self) -> u32 {
        Guard::attempt(self)
    }

    fn token(&self) -> Token {
        Guard::token(self)
    }

    fn started_at(&self) -> SystemTime {
        Guard::started_at(self)
    }

    fn created_at(&self) -> SystemTime {
        Guard::created_at(self)
    }

    fn previous(&self) -> Option<Previous> {
        Guard::previous(self)
    }

    fn last_checkpoint(&self) -> Option<Bytes> {
        Guard::last_checkpoint(self)
    }

    fn downstream_key(&self, label: &str) -> String {
        Guard::downstream_key(self, label)
    }

    fn checkpoint<'a>(&'a mut self, note: &'a [u8]) -> Boxed<'a, Result<(), WriteError>> {
        Box::pin(Guard::checkpoint(self, note))
    }

    fn renew(&mut self) -> Boxed<'_, Result<(), WriteError>> {
        Box::pin(Guard::renew(self))
    }

    fn complete<'a>(
        self: Box<Self>,
        answer: Answer<'a>,
    ) -> Boxed<'a, Result<Saved, FinishError<AnyGuard>>> {
        Box::pin(async move {
            let completed = Guard::complete(*self, answer).await;
            completed.map_err(|error| error.map(AnyGuard::erased))
        })
    }

    fn release(self: Box<Self>) -> Boxed<'static, Result<(), FinishError<AnyGuard>>> {
        Box::pin(async move {
            let released = Guard::release(*self).await;
            released.map_err(|error| error.map(AnyGuard::erased))
        })
    }

    fn give_back(self: Box<Self>) {
        Guard::give_back(*self);
    }
}
