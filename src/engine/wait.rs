//! Waiting: for a transition to settle, and for an owner to be done.
//!
//! A waiter is a waker in the key's entry, under the stripe's lock: registering, the transition that
//! takes the list, and cancelling can't miss each other. A waiter holds no thread. The end of a
//! lease wakes nobody by itself, so a wait looks again when the lease it saw is over: a blocking one
//! by sleeping no longer, a future by the timer thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::engine::lookup::check_open;
use crate::engine::{Engine, Opened, Request};
use crate::error::ClaimError;
use crate::fingerprint::{Comparison, Fingerprint};
use crate::index::Phase;
use crate::index::live::{Awaits, WHILE_ALIVE};
use crate::key::Key;
use crate::sync::{Ordering, mutation};
use crate::timer::Alarm;

impl Engine {
    pub(super) fn waiter_id(&self) -> u64 {
        self.next_waiter.fetch_add(1, Ordering::Relaxed)
    }

    fn cancel_waiter(&self, hash: u64, key: &Key, id: u64) {
        let waker = {
            let mut stripe = self.index.lock(hash);
            stripe.live(hash, key).and_then(|live| live.cancel(id))
        };
        drop(waker);
    }

    /// Waits until no transition of this key is under way: a few hundred nanoseconds, as a rule.
    pub(crate) async fn settled(&self, hash: u64, key: &Key) -> Result<(), ClaimError> {
        let place = Place {
            engine: self,
            hash,
            key,
            id: self.waiter_id(),
        };
        poll_fn(|context| {
            // Declared before the lock, so dropped after it.
            let _replaced;
            let mut stripe = self.index.lock(hash);
            check_open(&stripe)?;
            match stripe.live(hash, key) {
                Some(live) if live.phase == Phase::Changing => {
                    _replaced = live.register(place.id, context.waker(), Awaits::Settling);
                    Poll::Pending
                }
                _ => Poll::Ready(Ok(())),
            }
        })
        .await
    }
}

/// A place in a key's list of waiters, given up when dropped.
#[derive(Debug)]
struct Place<'a> {
    engine: &'a Engine,
    hash: u64,
    key: &'a Key,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.engine.is_forked() {
            self.engine.cancel_waiter(self.hash, self.key, self.id);
        }
    }
}

/// A wait for the owner of a key to be done, one way or another. Resolves when a new claim can tell
/// more than "in progress". Where that claim finds the key in progress after all, the same wait goes
/// on: who was let in is not turned away later.
#[derive(Debug)]
pub(crate) struct Wait {
    engine: Arc<Opened>,
    hash: u64,
    key: Key,
    fingerprint: Fingerprint,
    id: u64,
    /// Counted among the store's waiters.
    counted: bool,
    /// Monotonic ms at which to look again.
    look_at_ms: u64,
    alarm: Option<Alarm>,
}

impl Wait {
    pub(crate) fn new(engine: Arc<Opened>, request: &Request<'_>) -> Self {
        let key = Key::clone(&request.key);
        let hash = engine.hash(&key);
        let id = engine.waiter_id();
        Self {
            engine,
            hash,
            key,
            fingerprint: request.fingerprint,
            id,
            counted: false,
            look_at_ms: WHILE_ALIVE,
            alarm: None,
        }
    }

    /// One look; registers for the next where there is nothing new.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClaimError>> {
        self.engine.check_process()?;
        let engine = Arc::clone(&self.engine);
        // A waker that goes; declared before the lock, so dropped after it.
        let _replaced;
        let mut stripe = engine.index.lock(self.hash);
        check_open(&stripe)?;
        let Some(live) = stripe.live(self.hash, &self.key) else {
            return Poll::Ready(Ok(()));
        };
        // It may be another request's by now: then there is nothing to wait for.
        let is_other = self.fingerprint.compare(live.fingerprint) == Comparison::Different;
        if is_other || !live.is_held(engine.time.monotonic_ms()) {
            _replaced = live.cancel(self.id);
            return Poll::Ready(Ok(()));
        }
        if !live.is_registered(self.id) {
            // Who was let in once stays in.
            let limit = engine.settings.waiters_per_key_max;
            if !self.counted && live.waiting() >= limit {
                engine.counters.waiters_limit.add();
                return Poll::Ready(Err(ClaimError::TooManyWaiters { limit }));
            }
            self.count()?;
        }
        self.look_at_ms = live.lease_end_ms;
        if mutation("waiter_looks_then_registers") {
            drop(stripe);
            if let Some(live) = engine.index.lock(self.hash).live(self.hash, &self.key) {
                drop(live.register(self.id, context.waker(), Awaits::Owner));
            }
            return Poll::Pending;
        }
        _replaced = live.register(self.id, context.waker(), Awaits::Owner);
        Poll::Pending
    }

    /// How long a thread may sleep before it must look again; `None` is until it is woken.
    pub(crate) fn sleep(&self, until_ms: u64) -> Option<Duration> {
        let look_at_ms = self.look_at_ms.min(until_ms);
        (look_at_ms != WHILE_ALIVE).then(|| self.engine.time.real_time_until(look_at_ms))
    }

    fn count(&mut self) -> Result<(), ClaimError> {
        if self.counted {
            return Ok(());
        }
        let limit = self.engine.settings.waiters_max;
        if mutation("waiters_counted_in_two_steps") {
            let waiting = self.engine.waiters.load(Ordering::Relaxed);
            if waiting >= limit {
                return Err(ClaimError::TooManyWaiters { limit });
            }
            self.engine.waiters.store(waiting + 1, Ordering::Relaxed);
        } else if self.engine.waiters.fetch_add(1, Ordering::Relaxed) >= limit {
            self.engine.waiters.fetch_sub(1, Ordering::Relaxed);
            self.engine.counters.waiters_limit.add();
            return Err(ClaimError::TooManyWaiters { limit });
        }
        self.counted = true;
        Ok(())
    }
}

impl Future for Wait {
    type Output = Result<(), ClaimError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.look(context);
        self.alarm = None;
        if polled.is_pending()
            && let Some(after) = self.sleep(WHILE_ALIVE)
        {
            self.alarm = Some(self.engine.timer.wake_after(after, context.waker().clone()));
        }
        polled
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            return;
        }
        self.engine.cancel_waiter(self.hash, &self.key, self.id);
        if self.counted && !mutation("dropped_waiter_counted") {
            self.engine.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
