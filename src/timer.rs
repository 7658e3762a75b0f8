//! A timer for futures: wakes a waker after a while, without a runtime.
//!
//! The thread starts with the first alarm, so that a store that never needs one has none. At most
//! one alarm a waiting future exists, and waiters are bounded.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::sync::os::Instant;
#[cfg(not(oncekey_loom))]
use crate::sync::os::thread_local;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{self, Condvar, Mutex, MutexGuard, mutation};

/// Wakes wakers later.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
    stopped: bool,
}

/// A pending alarm; dropping it takes it back.
#[derive(Debug)]
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    key: (Instant, u64),
}

impl Timer {
    /// Wakes `waker` once, `after` from now. An alarm that can't be served (no thread to be had)
    /// rings at once: too early is a wasted look, too late would be a hang.
    pub(crate) fn wake_after(&self, after: Duration, waker: Waker) -> Alarm {
        let now = Instant::now();
        let due = now
            .checked_add(after)
            .unwrap_or(now + Duration::from_secs(86_400));
        let key = {
            let mut state = self.shared.state.lock();
            let key = (due, state.next_id);
            state.next_id += 1;
            state.alarms.insert(key, waker);
            key
        };
        if self.ensure_thread() {
            if !mutation("alarm_not_told") {
                self.shared.changed.notify_one();
            }
        } else if let Some(waker) = self.shared.take(key) {
            sync::wake(waker);
        }
        Alarm {
            shared: Arc::clone(&self.shared),
            key,
        }
    }

    /// Ends the thread; alarms that are left never ring.
    pub(crate) fn stop(&self) {
        self.shared.state.lock().stopped = true;
        if !mutation("timer_not_told_to_stop") {
            self.shared.changed.notify_all();
        }
        if let Some(thread) = self.thread.lock().take() {
            join(thread);
        }
    }

    fn ensure_thread(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = spawn("oncekey-timer", move || run(&shared)).ok();
        }
        thread.is_some()
    }
}

impl Shared {
    /// The waker of an alarm, to be woken or dropped without the lock: both may come back here.
    fn take(&self, key: (Instant, u64)) -> Option<Waker> {
        self.state.lock().alarms.remove(&key)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if mutation("dropped_alarm_left") {
            return;
        }
        drop(self.shared.take(self.key));
    }
}

#[cfg(not(oncekey_loom))]
thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

#[cfg(oncekey_loom)]
loom::thread_local! {
    static IS_OWN: Cell<bool> = Cell::new(false);
}

/// Starts a thread of the store.
pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        IS_OWN.with(|is_own| is_own.set(true));
        body();
    })
}

/// Whether this is a thread of a store, which wakes wakers and must not wait for another of them.
pub(crate) fn is_own_thread() -> bool {
    IS_OWN.try_with(Cell::get).unwrap_or_default()
}

/// Waits for a thread of the store to end, unless it is this one: a waker that we call may drop the
/// last handle of the store.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() == thread::current().id() {
        return;
    }
    let name = thread.thread().name().unwrap_or_default().to_owned();
    if thread.join().is_err() {
        tracing::error!(name, "a thread of the store panicked");
    }
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    while !state.stopped {
        if mutation("timer_looks_then_locks_again") {
            let seen = state.alarms.len();
            MutexGuard::unlocked(&mut state, || ());
            if seen == 0 {
                shared.changed.wait(&mut state);
                continue;
            }
        }
        let now = Instant::now();
        let next = state.alarms.keys().next().copied();
        match next {
            Some(key) if key.0 <= now => {
                if let Some(waker) = state.alarms.remove(&key) {
                    MutexGuard::unlocked(&mut state, || sync::wake(waker));
                }
            }
            Some((due, _)) => {
                shared.changed.wait_until(&mut state, due);
            }
            None => shared.changed.wait(&mut state),
        }
    }
}

#[cfg(all(test, oncekey_loom))]
mod loom_tests;

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;
    use crate::block::block_on;
    use std::future::poll_fn;
    use std::task::Poll;

    #[test]
    fn an_alarm_rings_and_a_dropped_one_does_not() {
        let timer = Timer::default();
        let mut alarm = None;
        block_on(poll_fn(|context| {
            if alarm.is_some() {
                return Poll::Ready(());
            }
            let never = timer.wake_after(Duration::from_secs(3_600), context.waker().clone());
            drop(never);
            alarm = Some(timer.wake_after(Duration::from_millis(1), context.waker().clone()));
            Poll::Pending
        }));
        assert!(timer.shared.state.lock().alarms.is_empty());
        timer.stop();
    }
}
