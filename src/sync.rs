//! The only place that chooses between the real synchronisation primitives and loom's.
//!
//! Everything hand-made in this crate (reservation, group commit, waiters) takes its atomics,
//! locks and thread operations from here, so that `RUSTFLAGS="--cfg oncekey_loom"` explores the
//! very code that ships. The cfg has a name of its own because dependencies react to `cfg(loom)`.
//! Only the surface that this crate uses is offered, in `parking_lot`'s shape: `lock` returns a
//! guard, and no lock is ever poisoned.

#[cfg(not(oncekey_loom))]
pub(crate) use self::real::*;

#[cfg(oncekey_loom)]
pub(crate) use self::modelled::*;

#[cfg(not(oncekey_loom))]
mod real {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

    /// A shared pointer that readers load without touching its reference count.
    #[derive(Debug)]
    pub(crate) struct Swap<T>(arc_swap::ArcSwap<T>);

    /// A loaded pointer. Short-lived: it takes one of the thread's few cheap slots.
    pub(crate) type Loaded<T> = arc_swap::Guard<Arc<T>>;

    impl<T> Swap<T> {
        pub(crate) fn new(value: Arc<T>) -> Self {
            Self(arc_swap::ArcSwap::new(value))
        }

        pub(crate) fn load(&self) -> Loaded<T> {
            self.0.load()
        }

        pub(crate) fn store(&self, value: Arc<T>) {
            self.0.store(value);
        }
    }

    /// Wakes a waker, which is foreign code: a panic in it must not unwind through a thread of the
    /// store, or keep the wakers behind it from being woken.
    pub(crate) fn wake(waker: std::task::Waker) {
        let wake = std::panic::AssertUnwindSafe(|| waker.wake());
        if std::panic::catch_unwind(wake).is_err() {
            tracing::error!("a waker panicked");
        }
    }

    /// Gives way to another thread while waiting for a step that takes well under a microsecond.
    pub(crate) fn relax(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else if round < 256 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

#[cfg(oncekey_loom)]
mod modelled {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

    /// loom's mutex with `parking_lot`'s signature.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }

    /// The shared pointer as a locked one: loom models our use of it, not the library.
    #[derive(Debug)]
    pub(crate) struct Swap<T>(Mutex<Arc<T>>);

    pub(crate) type Loaded<T> = Arc<T>;

    impl<T> Swap<T> {
        pub(crate) fn new(value: Arc<T>) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> Loaded<T> {
            Arc::clone(&self.0.lock())
        }

        pub(crate) fn store(&self, value: Arc<T>) {
            *self.0.lock() = value;
        }
    }

    /// loom's own panics must come through.
    pub(crate) fn wake(waker: std::task::Waker) {
        waker.wake();
    }

    /// A loom model has no time: giving way is all that waiting can mean.
    pub(crate) fn relax(_round: u32) {
        loom::thread::yield_now();
    }
}
