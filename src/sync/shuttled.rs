//! The same surface under shuttle: the whole store in random schedules.
//!
//! shuttle runs all threads of a schedule on one thread of the system and changes between them only
//! at *scheduling points*, so whatever blocks or is shared has to be one. All is sequentially
//! consistent: what weaker orderings allow is for loom to show.
//!
//! Time stands still but for [`os::time_passed`], which moving a `ManualClock` calls: a timed wait
//! ends when it is notified or when its time has come by that clock. A schedule in which nobody can
//! go on is reported as a deadlock. Chance comes from the schedule, so that a replay is exact.

use std::sync::atomic;

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
pub(crate) use std::sync::Arc;

pub(crate) use self::os::thread::{self, park_timeout};
pub(crate) use self::os::{Condvar, Mutex, MutexGuard};

/// Lets any other thread go on first.
fn scheduling_point() {
    // shuttle has no time: to sleep is exactly that.
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

/// A real word, so that mapped memory can be made of it; what is done to it is a scheduling point.
/// Relaxed loads and stores are none: they copy data in and out by words, and nobody is to decide
/// anything by them.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct AtomicU64(atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, ordering: Ordering) -> u64 {
        if ordering != Ordering::Relaxed {
            scheduling_point();
        }
        self.0.load(ordering)
    }

    pub(crate) fn store(&self, value: u64, ordering: Ordering) {
        if ordering != Ordering::Relaxed {
            scheduling_point();
        }
        self.0.store(value, ordering);
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        scheduling_point();
        self.0.compare_exchange(current, new, success, failure)
    }

    pub(crate) fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        scheduling_point();
        self.0.fetch_add(value, ordering)
    }

    pub(crate) fn fetch_max(&self, value: u64, ordering: Ordering) -> u64 {
        scheduling_point();
        self.0.fetch_max(value, ordering)
    }
}

/// The shared pointer that ships, with a scheduling point before each use.
#[derive(Debug)]
pub(crate) struct Swap<T>(arc_swap::ArcSwap<T>);

pub(crate) type Loaded<T> = arc_swap::Guard<Arc<T>>;

impl<T> Swap<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    pub(crate) fn load(&self) -> Loaded<T> {
        scheduling_point();
        self.0.load()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        scheduling_point();
        self.0.store(value);
    }
}

/// shuttle's own panics must come through.
pub(crate) fn wake(waker: std::task::Waker) {
    waker.wake();
}

/// Whether the schedules are run with this fault in the code: `ONCEKEY_MUTATION` names one.
pub(crate) fn mutation(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ONCEKEY_MUTATION").ok());
    CHOSEN.as_deref() == Some(name)
}

/// Gives way to the other threads, before all to the one that is waited for.
pub(crate) fn relax(_round: u32) {
    shuttle::thread::yield_now();
}

pub(crate) mod os {
    //! What the system gives, as shuttle gives it.

    use std::future::poll_fn;
    use std::ops::Add;
    use std::sync::{Arc, Mutex as Plain, MutexGuard as PlainGuard, PoisonError};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use shuttle::rand::{Rng, RngCore, thread_rng};

    use super::scheduling_point;

    pub(crate) use crate::sync::locks::{Mutex, MutexGuard};
    pub(crate) use shuttle::thread_local;

    /// To the end: whoever sleeps for a clock is woken when it is moved.
    pub(crate) fn manual_sleep(left: Duration) -> Duration {
        left
    }

    /// Random as far as a schedule is, and the same in each replay of it.
    pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        thread_rng().fill_bytes(bytes);
        Ok(())
    }

    pub(crate) mod thread {
        use std::io;
        use std::num::NonZero;
        use std::time::Duration;

        pub(crate) use shuttle::thread::*;

        /// Enough to have recovery work on two threads.
        pub(crate) fn available_parallelism() -> io::Result<NonZero<usize>> {
            NonZero::new(2).ok_or_else(|| io::ErrorKind::Unsupported.into())
        }

        /// Until somebody unparks the thread, or its time has come.
        pub(crate) fn park_timeout(duration: Duration) {
            let this_thread = current();
            super::ring_after(duration, Box::new(move || this_thread.unpark()));
            park();
        }
    }

    /// A lock that no other thread of the schedule can be waiting for while it is held, since there
    /// is no scheduling point meanwhile.
    fn at_once<T>(lock: &Plain<T>) -> PlainGuard<'_, T> {
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    shuttle::lazy_static! {
        /// One for each schedule.
        static ref TIME: Plain<Time> = Plain::default();
    }

    #[derive(Default)]
    struct Time {
        now: Duration,
        alarms: Vec<(Duration, Ring)>,
    }

    type Ring = Box<dyn FnOnce() + Send>;

    /// Calls `ring` when so much time has passed, and at once where that is none.
    fn ring_after(after: Duration, ring: Ring) {
        let due_now = {
            let mut time = at_once(&TIME);
            let due = time.now.saturating_add(after);
            if due > time.now {
                time.alarms.push((due, ring));
                None
            } else {
                Some(ring)
            }
        };
        if let Some(ring) = due_now {
            ring();
        }
    }

    /// A clock was moved by hand: wakes those whose time has come.
    pub(crate) fn time_passed(ms: u64) {
        scheduling_point();
        let due: Vec<Ring> = {
            let mut time = at_once(&TIME);
            time.now = time.now.saturating_add(Duration::from_millis(ms));
            let now = time.now;
            let alarms = &mut time.alarms;
            alarms
                .extract_if(.., |(due, _)| *due <= now)
                .map(|(_, ring)| ring)
                .collect()
        };
        due.into_iter().for_each(|ring| ring());
    }

    /// A moment of that time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Instant(Duration);

    impl Instant {
        pub(crate) fn now() -> Self {
            Self(at_once(&TIME).now)
        }

        pub(crate) fn checked_add(self, duration: Duration) -> Option<Self> {
            self.0.checked_add(duration).map(Self)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, duration: Duration) -> Self {
            Self(self.0 + duration)
        }
    }

    /// A condition variable with `parking_lot`'s signature, whose timed waits go by [`TIME`]. A
    /// notification goes to whichever waiter chance picks.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(Plain<Vec<Arc<Waiter>>>);

    #[derive(Debug, Default)]
    struct Waiter(Plain<Wait>);

    #[derive(Debug, Default)]
    struct Wait {
        ended: Option<End>,
        waker: Option<Waker>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum End {
        Notified,
        TimedOut,
    }

    /// How a timed wait ended.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct WaitTimeoutResult(End);

    impl WaitTimeoutResult {
        pub(crate) fn timed_out(&self) -> bool {
            self.0 == End::TimedOut
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.wait_as(&Arc::default(), guard);
        }

        pub(crate) fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            duration: Duration,
        ) -> WaitTimeoutResult {
            let waiter = Arc::<Waiter>::default();
            let timed = Arc::clone(&waiter);
            ring_after(duration, Box::new(move || timed.time_out()));
            WaitTimeoutResult(self.wait_as(&waiter, guard))
        }

        pub(crate) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            due: Instant,
        ) -> WaitTimeoutResult {
            let left = due.0.saturating_sub(Instant::now().0);
            self.wait_for(guard, left)
        }

        fn wait_as<T>(&self, waiter: &Arc<Waiter>, guard: &mut MutexGuard<'_, T>) -> End {
            at_once(&self.0).push(Arc::clone(waiter));
            let end = MutexGuard::unlocked(guard, || {
                shuttle::future::block_on(poll_fn(|context| waiter.poll(context)))
            });
            at_once(&self.0).retain(|other| !Arc::ptr_eq(other, waiter));
            end
        }

        pub(crate) fn notify_one(&self) {
            scheduling_point();
            let mut waiters = at_once(&self.0);
            while !waiters.is_empty() {
                let chosen = thread_rng().gen_range(0..waiters.len());
                if waiters.swap_remove(chosen).end(End::Notified) {
                    return;
                }
            }
        }

        pub(crate) fn notify_all(&self) {
            scheduling_point();
            for waiter in at_once(&self.0).drain(..) {
                waiter.end(End::Notified);
            }
        }
    }

    impl Waiter {
        fn time_out(&self) {
            self.end(End::TimedOut);
        }

        /// Whether it was still waiting.
        fn end(&self, end: End) -> bool {
            let mut wait = at_once(&self.0);
            let was_waiting = wait.ended.is_none();
            wait.ended.get_or_insert(end);
            if let Some(waker) = wait.waker.take() {
                waker.wake();
            }
            was_waiting
        }

        fn poll(&self, context: &mut Context<'_>) -> Poll<End> {
            let mut wait = at_once(&self.0);
            if let Some(end) = wait.ended {
                return Poll::Ready(end);
            }
            wait.waker = Some(context.waker().clone());
            Poll::Pending
        }
    }
}
