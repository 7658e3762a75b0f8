//! loom's and shuttle's mutex, which have the standard library's shape, with `parking_lot`'s
//! signature.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

#[cfg(oncekey_loom)]
use loom::sync as given;
#[cfg(oncekey_shuttle)]
use shuttle::sync as given;

/// A mutex that is never poisoned.
#[derive(Debug)]
pub(crate) struct Mutex<T>(given::Mutex<T>);

/// Holds a [`Mutex`].
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only within [`MutexGuard::unlocked`] and a wait.
    pub(super) held: Option<given::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(given::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            held: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard {
            mutex: self,
            held: Some(held),
        })
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> MutexGuard<'_, T> {
    /// Lets go of the lock meanwhile.
    pub(crate) fn unlocked<R>(guard: &mut Self, body: impl FnOnce() -> R) -> R {
        drop(guard.held.take());
        let done = body();
        guard.held = guard.mutex.lock().held.take();
        done
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("held but for a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held but for a wait")
    }
}
