//! One handle over any backend: what is written against it is compiled once, and shows no type of a
//! backend to its users.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::backend::erased::{ErasedBackend, ErasedGuard};
use crate::backend::{Answer, Backend, BackendLimits, Guard, Outcome};
use crate::claim::Saved;
use crate::error::{AdminError, ClaimError, FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::{KeyState, PendingKey};
use crate::operation::{Operation, Previous};
use crate::options::{ClaimOptions, ClaimOptionsError};
use crate::store::{Forget, Store};
use crate::token::Token;

/// Any [`Backend`] behind one type.
///
/// A handle that clones cheaply. The HTTP layer, the inbox and the client's journal keep one, so that
/// nobody who uses them has to name what is behind it. Each call of it allocates a future, but for
/// those of an embedded [`Store`], which is called directly.
///
/// ```
/// use oncekey::Store;
/// use oncekey::backend::{AnyBackend, Backend};
///
/// # let dir = tempfile::tempdir()?;
/// let backend = AnyBackend::new(Store::open(dir.path())?);
/// assert_eq!(backend.limits().key_part_bytes, 255);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AnyBackend(Kind);

#[derive(Clone)]
enum Kind {
    Embedded(Store),
    Other(Arc<dyn ErasedBackend>),
}

/// The guard of an [`AnyBackend`].
pub struct AnyGuard(GuardKind);

enum GuardKind {
    Embedded(Operation),
    Other(Box<dyn ErasedGuard>),
}

impl AnyBackend {
    /// Hides the type of a backend.
    pub fn new(backend: impl Backend) -> Self {
        let any: &dyn Any = &backend;
        if let Some(store) = any.downcast_ref::<Store>() {
            return Self(Kind::Embedded(store.clone()));
        }
        match any.downcast_ref::<Self>() {
            Some(hidden) => hidden.clone(),
            None => Self::erased(backend),
        }
    }

    /// Hides the type of a backend, an embedded store's too: calls go through the trait.
    pub(crate) fn erased(backend: impl Backend) -> Self {
        Self(Kind::Other(Arc::new(backend)))
    }

    /// Removes a key by force, durably with the next sync where a backend can tell.
    #[cfg(feature = "client")]
    pub(crate) async fn forget_unsynced(&self, key: &Key) -> Result<bool, AdminError> {
        match self.embedded() {
            Some(store) => store.forget_unsynced(key).await,
            None => Backend::forget(self, key, Forget::Force).await,
        }
    }

    /// The store, where it is an embedded one.
    pub fn embedded(&self) -> Option<&Store> {
        match &self.0 {
            Kind::Embedded(store) => Some(store),
            Kind::Other(_) => None,
        }
    }
}

impl AnyGuard {
    pub(super) fn erased(guard: impl Guard) -> Self {
        Self(GuardKind::Other(Box::new(guard)))
    }

    /// The guard, where the store is an embedded one.
    pub(crate) fn embedded(&mut self) -> Option<&mut Operation> {
        match &mut self.0 {
            GuardKind::Embedded(operation) => Some(operation),
            GuardKind::Other(_) => None,
        }
    }

    /// The guard itself, where the store is an embedded one.
    pub(crate) fn into_embedded(self) -> Result<Operation, Self> {
        match self.0 {
            GuardKind::Embedded(operation) => Ok(operation),
            other => Err(Self(other)),
        }
    }

    /// [`checkpoint`](Guard::checkpoint), durable with the next sync where a backend can tell.
    pub(crate) async fn checkpoint_unsynced(&mut self, note: &[u8]) -> Result<(), WriteError> {
        match &mut self.0 {
            GuardKind::Embedded(operation) => operation.checkpoint_unsynced(note).await,
            GuardKind::Other(guard) => guard.checkpoint(note).await,
        }
    }
}

impl From<Operation> for AnyGuard {
    fn from(operation: Operation) -> Self {
        Self(GuardKind::Embedded(operation))
    }
}

impl Backend for AnyBackend {
    type Guard = AnyGuard;

    async fn claim(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<AnyGuard>, ClaimError> {
        match &self.0 {
            Kind::Embedded(store) => {
                let claimed = Backend::claim(store, key, fingerprint, options).await?;
                Ok(claimed.map(AnyGuard::from))
            }
            Kind::Other(backend) => backend.claim(key, fingerprint, options).await,
        }
    }

    async fn wait(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<AnyGuard>, ClaimError> {
        match &self.0 {
            Kind::Embedded(store) => {
                let claimed = Backend::wait(store, key, fingerprint, options).await?;
                Ok(claimed.map(AnyGuard::from))
            }
            Kind::Other(backend) => backend.wait(key, fingerprint, options).await,
        }
    }

    async fn look(&self, key: &Key) -> Result<KeyState, ClaimError> {
        match &self.0 {
            Kind::Embedded(store) => Backend::look(store, key).await,
            Kind::Other(backend) => backend.look(key).await,
        }
    }

    async fn forget(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        match &self.0 {
            Kind::Embedded(store) => Backend::forget(store, key, forget).await,
            Kind::Other(backend) => backend.forget(key, forget).await,
        }
    }

    async fn interrupt(&self, key: &Key, token: Token) -> Result<(), AdminError> {
        match &self.0 {
            Kind::Embedded(store) => Backend::interrupt(store, key, token).await,
            Kind::Other(backend) => backend.interrupt(key, token).await,
        }
    }

    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, ClaimError> {
        match &self.0 {
            Kind::Embedded(store) => Backend::interrupted(store, max).await,
            Kind::Other(backend) => backend.interrupted(max).await,
        }
    }

    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
        match &self.0 {
            Kind::Embedded(store) => store.derive(key, fingerprint, label),
            Kind::Other(backend) => backend.downstream_key(key, fingerprint, label),
        }
    }

    fn limits(&self) -> BackendLimits {
        match &self.0 {
            Kind::Embedded(store) => Backend::limits(store),
            Kind::Other(backend) => backend.limits(),
        }
    }

    fn check(&self, options: &ClaimOptions) -> Result<(), ClaimOptionsError> {
        match &self.0 {
            Kind::Embedded(store) => Backend::check(store, options),
            Kind::Other(backend) => backend.check(options),
        }
    }

    fn now(&self) -> SystemTime {
        match &self.0 {
            Kind::Embedded(store) => store.now(),
            Kind::Other(backend) => backend.now(),
        }
    }
}

/// Calls the same method of whichever guard it is.
macro_rules! either {
    ($guard:expr, $inner:ident => $call:expr) => {
        match $guard {
            GuardKind::Embedded($inner) => $call,
            GuardKind::Other($inner) => $call,
        }
    };
}

impl Guard for AnyGuard {
    fn key(&self) -> &Key {
        either!(&self.0, guard => guard.key())
    }

    fn fingerprint(&self) -> Fingerprint {
        either!(&self.0, guard => guard.fingerprint())
    }

    fn attempt(&self) -> u32 {
        either!(&self.0, guard => guard.attempt())
    }

    fn token(&self) -> Token {
        either!(&self.0, guard => guard.token())
    }

    fn started_at(&self) -> SystemTime {
        either!(&self.0, guard => guard.started_at())
    }

    fn created_at(&self) -> SystemTime {
        either!(&self.0, guard => guard.created_at())
    }

    fn previous(&self) -> Option<Previous> {
        either!(&self.0, guard => guard.previous())
    }

    fn last_checkpoint(&self) -> Option<Bytes> {
        match &self.0 {
            GuardKind::Embedded(operation) => Guard::last_checkpoint(operation),
            GuardKind::Other(guard) => guard.last_checkpoint(),
        }
    }

    fn downstream_key(&self, label: &str) -> String {
        either!(&self.0, guard => guard.downstream_key(label))
    }

    async fn checkpoint(&mut self, note: &[u8]) -> Result<(), WriteError> {
        match &mut self.0 {
            GuardKind::Embedded(operation) => operation.checkpoint_async(note).await,
            GuardKind::Other(guard) => guard.checkpoint(note).await,
        }
    }

    async fn renew(&mut self) -> Result<(), WriteError> {
        match &mut self.0 {
            GuardKind::Embedded(operation) => operation.renew(),
            GuardKind::Other(guard) => guard.renew().await,
        }
    }

    async fn complete(self, answer: Answer<'_>) -> Result<Saved, FinishError<Self>> {
        match self.0 {
            GuardKind::Embedded(operation) => {
                let completed = Guard::complete(operation, answer).await;
                completed.map_err(|error| error.map(Self::from))
            }
            GuardKind::Other(guard) => guard.complete(answer).await,
        }
    }

    async fn release(self) -> Result<(), FinishError<Self>> {
        match self.0 {
            GuardKind::Embedded(operation) => {
                let released = operation.release_async().await;
                released.map_err(|error| error.map(Self::from))
            }
            GuardKind::Other(guard) => guard.release().await,
        }
    }

    fn give_back(self) {
        either!(self.0, guard => guard.give_back());
    }
}

impl fmt::Debug for AnyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Embedded(_) => "AnyBackend(Store)",
            Kind::Other(_) => "AnyBackend",
        })
    }
}

impl fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(&self.0, guard => guard.fmt(f))
    }
}
