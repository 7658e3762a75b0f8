//! The guard, shared between the layer, which ends it, and the handler, which uses it.
//!
//! The layer's [`Owner`] decides when the guard ends. A handler may keep clones of its
//! [`IdempotentOperation`] for longer, in a task of its own for example: they hold no guard then.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use crate::backend::{AnyBackend, AnyGuard, Downstream, Guard};
use crate::error::WriteError;
use crate::key::Key;
use crate::operation::Previous;
use crate::token::Token;

use super::metrics::Counters;

/// The operation that a handler works on: in the request's extensions whenever the request has a
/// key.
///
/// With the feature `axum` it is an extractor; without, take it from the extensions
/// (`axum::Extension<IdempotentOperation>` does). Cloning is cheap, and every clone is the same
/// operation. It ends with the handler's answer: later calls give
/// [`WriteError::LeaseLost`].
///
/// ```
/// use oncekey::http::IdempotentOperation;
///
/// async fn charge(operation: IdempotentOperation) -> Result<&'static str, oncekey::WriteError> {
///     if operation.attempt() > 1 {
///         // An earlier attempt may have charged the card: see `operation.previous()`.
///     }
///     operation.checkpoint(b"calling the provider").await?;
///     let _charge_once = operation.downstream_key("charge");
///     Ok("paid")
/// }
/// ```
#[derive(Clone)]
pub struct IdempotentOperation {
    shared: Arc<Shared>,
}

struct Shared {
    guard: Mutex<Option<AnyGuard>>,
    /// The layer is done: whoever has the guard locked drops it afterwards.
    is_ended: AtomicBool,
    is_released: AtomicBool,
    downstream: Downstream,
    attempt: u32,
    token: Token,
    previous: Option<Previous>,
}

impl IdempotentOperation {
    /// 1 for the first time the handler runs for this key, one more after each interruption.
    pub fn attempt(&self) -> u32 {
        self.shared.attempt
    }

    /// The fencing token: greater than every token the store gave before.
    pub fn token(&self) -> Token {
        self.shared.token
    }

    /// The interrupted attempt before this one, with its checkpoint; `None` for the first.
    pub fn previous(&self) -> Option<&Previous> {
        self.shared.previous.as_ref()
    }

    /// The key: who, what and which one.
    pub fn key(&self) -> &Key {
        self.shared.downstream.key()
    }

    /// A key for a call to another system, 32 hexadecimal digits: the same in every attempt of this
    /// operation, different for every other and every other `label`. See
    /// [`Operation::downstream_key`](crate::Operation::downstream_key).
    pub fn downstream_key(&self, label: &str) -> String {
        self.shared.downstream.derive(label)
    }

    /// Stores a note of up to 4,096 bytes for whoever takes over if this attempt is interrupted. It
    /// replaces the note before it.
    ///
    /// # Errors
    ///
    /// As for [`Operation::checkpoint`](crate::Operation::checkpoint).
    pub async fn checkpoint(&self, note: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let mut held = self.shared.lock().await;
        match held.guard() {
            Some(guard) => guard.checkpoint(note.as_ref()).await,
            None => Err(WriteError::LeaseLost { new_attempt: None }),
        }
    }

    /// Starts a [limited lease](crate::Lease::For) anew. The layer does not do that by itself: a
    /// lease is for handlers that may hang.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] where somebody took over: stop working.
    pub async fn renew(&self) -> Result<(), WriteError> {
        match self.shared.lock().await.guard() {
            Some(guard) => guard.renew().await,
            None => Err(WriteError::LeaseLost { new_attempt: None }),
        }
    }

    /// Says that nothing happened: with the handler's answer, whatever its status, the key is free
    /// again, and a retry runs the handler as if for the first time.
    ///
    /// For answers given before anything was done, such as to a request that is not valid. In a
    /// second or later attempt it says so of the earlier attempts too: call it only where you found
    /// out.
    pub fn release(&self) {
        self.shared.is_released.store(true, Ordering::Release);
    }
}

impl fmt::Debug for IdempotentOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentOperation")
            .field("key", self.key())
            .field("attempt", &self.attempt())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl Shared {
    async fn lock(&self) -> Held<'_> {
        Held {
            guard: Some(self.guard.lock().await),
            shared: self,
        }
    }

    /// Drops the guard, now or as soon as whoever has it locked lets go: its key is interrupted.
    fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        if let Ok(mut guard) = self.guard.try_lock() {
            drop(guard.take());
        }
    }
}

/// The guard, locked. It does not outlive the layer's interest in it.
struct Held<'a> {
    guard: Option<MutexGuard<'a, Option<AnyGuard>>>,
    shared: &'a Shared,
}

impl Held<'_> {
    fn guard(&mut self) -> Option<&mut AnyGuard> {
        self.guard.as_mut()?.as_mut()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.guard = None;
        // Looked at after unlocking: `end` either finds it unlocked or is seen here.
        if self.shared.is_ended.load(Ordering::SeqCst) {
            self.shared.end();
        }
    }
}

/// The layer's hold on the guard. Dropped (the handler panicked, its task was cancelled) it leaves
/// the key interrupted, whatever clones the handler gave away.
pub(super) struct Owner {
    shared: Arc<Shared>,
    /// Counts what is dropped, until it is known better.
    interrupted: Option<Arc<Counters>>,
}

impl Owner {
    pub(super) fn new(backend: AnyBackend, guard: AnyGuard, counters: Arc<Counters>) -> Self {
        let (key, fingerprint) = (guard.key().clone(), guard.fingerprint());
        let shared = Shared {
            is_ended: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            downstream: Downstream::new(backend, key, fingerprint),
            attempt: guard.attempt(),
            token: guard.token(),
            previous: guard.previous(),
            guard: Mutex::new(Some(guard)),
        };
        Self {
            shared: Arc::new(shared),
            interrupted: Some(counters),
        }
    }

    pub(super) fn handle(&self) -> IdempotentOperation {
        IdempotentOperation {
            shared: Arc::clone(&self.shared),
        }
    }

    pub(super) fn attempt(&self) -> u32 {
        self.shared.attempt
    }

    pub(super) fn is_released(&self) -> bool {
        self.shared.is_released.load(Ordering::Acquire)
    }

    /// Takes the guard to end it. A checkpoint being written is waited for.
    pub(super) async fn take(mut self) -> Option<AnyGuard> {
        let guard = self.shared.guard.lock().await.take();
        self.interrupted = None;
        guard
    }

    /// Leaves the key interrupted as it was.
    pub(super) fn give_up(mut self) {
        self.interrupted = None;
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(counters) = &self.interrupted {
            counters.interrupted.add();
        }
        self.shared.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::block_on;
    use crate::{Claim, Fingerprint, Store};

    /// The handler gave a clone away that writes a checkpoint while the layer is done.
    #[test]
    fn whoever_has_the_guard_locked_drops_it_for_the_layer() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let key = Key::new("alice", "POST /payments", "k").unwrap();
        let Claim::Started(operation) = store.claim(&key, Fingerprint::none()).unwrap() else {
            panic!("the key was free")
        };
        let counters = Arc::new(Counters::default());
        let backend = AnyBackend::new(store.clone());
        let owner = Owner::new(backend, operation.into(), Arc::clone(&counters));
        let handle = owner.handle();
        let held = block_on(handle.shared.lock());
        drop(owner);
        assert_eq!(counters.interrupted.total(), 1);
        assert_eq!(store.interrupted().unwrap().len(), 0);
        drop(held);
        assert_eq!(store.interrupted().unwrap().len(), 1);
        let late = block_on(handle.checkpoint(b"late"));
        assert!(matches!(late, Err(WriteError::LeaseLost { .. })));
    }
}
