//! The only place that chooses between the real synchronisation primitives and loom's.
//!
//! Everything hand-made in this crate (reservation, group commit, waiters) takes its atomics,
//! locks and thread operations from here, so that `RUSTFLAGS="--cfg oncekey_loom"` explores the
//! very code that ships. The cfg has a name of its own because dependencies react to `cfg(loom)`.
//! Only the surface that this crate uses is offered, in `parking_lot`'s shape: `lock` returns a
//! guard, and no lock is ever poisoned.
//!
//! `RUSTFLAGS="--cfg oncekey_shuttle"` runs the whole store under shuttle instead, in random schedules:
//! then what [`os`] offers is shuttle's as well. See `tests/shuttle.rs` and `.ci/shuttle`.
//!
//! The models stand in modules called `loom_tests`, beside what they model. That they would notice
//! a fault is shown by putting one in: [`mutation`] names the places. `.ci/loom` runs all of it.

#[cfg(not(any(oncekey_loom, oncekey_shuttle)))]
pub(crate) use self::real::*;

#[cfg(oncekey_loom)]
pub(crate) use self::modelled::*;

#[cfg(any(oncekey_loom, oncekey_shuttle))]
mod locks;
#[cfg(oncekey_shuttle)]
mod shuttled;
#[cfg(oncekey_shuttle)]
pub(crate) use self::shuttled::*;

/// What the system gives: threads and their blocking, time, chance. Real in loom's models too, which
/// have none of it.
#[cfg(not(oncekey_shuttle))]
pub(crate) mod os {
    pub(crate) use getrandom::fill as fill_random;
    pub(crate) use std::thread;
    #[cfg(not(oncekey_loom))]
    pub(crate) use std::thread_local;
    pub(crate) use std::time::Instant;

    /// How long a thread may sleep, at most `left`, where somebody sets the clock by hand.
    pub(crate) fn manual_sleep(left: std::time::Duration) -> std::time::Duration {
        left.min(std::time::Duration::from_millis(1))
    }

    /// A clock was moved by hand: whoever sleeps for it looks every millisecond anyway.
    pub(crate) fn time_passed(_ms: u64) {}
}

#[cfg(not(any(oncekey_loom, oncekey_shuttle)))]
mod real {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread;

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

    /// Whether a model is to be run with this fault in the code: only ever in models.
    #[inline(always)]
    pub(crate) const fn mutation(_name: &str) -> bool {
        false
    }

    /// Parks this thread until it is unparked or the time is up.
    pub(crate) fn park_timeout(limit: std::time::Duration) {
        thread::park_timeout(limit);
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
    // Counting references is the library's affair; models are about what is done through them.
    pub(crate) use crate::sync::locks::{Mutex, MutexGuard};
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread;
    pub(crate) use std::sync::Arc;

    use std::sync::PoisonError;
    use std::time::{Duration, Instant};

    /// loom's condition with `parking_lot`'s signature. Time never passes: who waits and is not
    /// notified waits for ever, which loom notices.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    /// How a wait with a limit ended.
    pub(crate) struct Notified;

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.held.take() {
                let held = self.0.wait(held);
                guard.held = Some(held.unwrap_or_else(PoisonError::into_inner));
            }
        }

        pub(crate) fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _limit: Duration,
        ) -> Notified {
            self.wait(guard);
            Notified
        }

        pub(crate) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _due: Instant,
        ) -> Notified {
            self.wait(guard);
            Notified
        }
    }

    impl Notified {
        pub(crate) fn timed_out(&self) -> bool {
            false
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

    /// Whether the model is run with this fault in the code: `ONCEKEY_MUTATION` names one.
    pub(crate) fn mutation(name: &str) -> bool {
        static CHOSEN: std::sync::LazyLock<Option<String>> =
            std::sync::LazyLock::new(|| std::env::var("ONCEKEY_MUTATION").ok());
        CHOSEN.as_deref() == Some(name)
    }

    /// Runs a model through all its schedules with up to `preemptions` preemptions (or as many as
    /// `LOOM_MAX_PREEMPTIONS` says) and tells how many those were.
    #[cfg(test)]
    pub(crate) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        use std::sync::atomic::{AtomicU64, Ordering};

        let schedules = std::sync::Arc::new(AtomicU64::new(0));
        let counted = std::sync::Arc::clone(&schedules);
        let begun = std::time::Instant::now();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.max_branches = builder.max_branches.max(10_000);
        let model = std::sync::Arc::new(model);
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let model = std::sync::Arc::clone(&model);
            spawn(move || model())
                .join()
                .expect("its panic ends the process of the model");
        });
        println!(
            "explored {:>8} schedules in {:>6.1} s: {}",
            schedules.load(Ordering::Relaxed),
            begun.elapsed().as_secs_f64(),
            std::thread::current().name().unwrap_or_default(),
        );
    }

    /// A thread of a model. What a thread of a model has by itself, 32 KiB, is too little for a whole
    /// transition.
    #[cfg(test)]
    pub(crate) fn spawn<T: Send + 'static>(
        body: impl FnOnce() -> T + Send + 'static,
    ) -> loom::thread::JoinHandle<T> {
        const STACK_WORDS: usize = 16 << 10;
        let thread = loom::thread::Builder::new().stack_size(STACK_WORDS);
        thread.spawn(body).expect("a thread of a model")
    }

    /// Time never passes in a model.
    pub(crate) fn park_timeout(_limit: Duration) {
        thread::park();
    }

    /// A loom model has no time: giving way is all that waiting can mean.
    pub(crate) fn relax(_round: u32) {
        loom::thread::yield_now();
    }
}
