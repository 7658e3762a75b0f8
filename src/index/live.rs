//! A key that is not completed: being claimed, pending or interrupted.

use std::task::Waker;

use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::log::append::Appended;
use crate::sync::{self, mutation};

/// Who has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A transition is appending its record. To others the key is in progress.
    Changing,
    /// A guard holds it.
    Owned,
    /// A ticket holds it: work was handed on and not yet resumed.
    Detached,
    /// Nobody holds it any more and the outcome is unknown.
    Interrupted,
}

/// The lease of an owner that is never run over.
pub(crate) const WHILE_ALIVE: u64 = u64::MAX;

/// The whole state of such a key in memory.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) hash: u64,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) phase: Phase,
    /// While it is [`Phase::Changing`] only because its record is written again elsewhere: what it was
    /// before and will be after, which to others it is all the time.
    pub(crate) rewritten: Option<Phase>,
    /// Of the current owner; 0 while the first claim is being appended.
    pub(crate) token: u64,
    /// Of the ticket the owner was resumed from, 0 without one.
    pub(crate) ticket: u64,
    pub(crate) attempt: u32,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    /// Monotonic ms at which the lease is over; [`WHILE_ALIVE`] for never.
    pub(crate) lease_end_ms: u64,
    /// The newest record; `None` while the first claim is being appended.
    pub(crate) newest: Option<Appended>,
    /// Bytes of the checkpoint in the newest record.
    pub(crate) checkpoint_bytes: usize,
    /// Room promised to the owner's completion, in words.
    pub(crate) promised_words: u64,
    waiters: Vec<Waiter>,
}

/// Who wants to know when something happens to the key.
#[derive(Debug)]
struct Waiter {
    /// Unique in the store.
    id: u64,
    waker: Waker,
    awaits: Awaits,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// The end of a transition: a few hundred nanoseconds.
    Settling,
    /// The end of the owner's hold. Only these count against the limits.
    Owner,
}

impl Live {
    /// A key whose first claim is about to be appended.
    #[inline]
    pub(crate) fn claiming(hash: u64, key: Key, fingerprint: Fingerprint, now_ms: u64) -> Self {
        Self {
            hash,
            key,
            fingerprint,
            phase: Phase::Changing,
            rewritten: None,
            token: 0,
            ticket: 0,
            attempt: 1,
            created_ms: now_ms,
            started_ms: now_ms,
            lease_end_ms: WHILE_ALIVE,
            newest: None,
            checkpoint_bytes: 0,
            promised_words: 0,
            waiters: Vec::new(),
        }
    }

    /// Whether the owner is presumed alive. A lease of 1,500 ms is alive at 1,499 and over at 1,500.
    pub(crate) fn is_held(&self, monotonic_ms: u64) -> bool {
        match self.rewritten.unwrap_or(self.phase) {
            Phase::Changing => true,
            Phase::Owned | Phase::Detached => monotonic_ms < self.lease_end_ms,
            Phase::Interrupted => false,
        }
    }

    /// Whether the operation was first claimed so long ago that no new attempt may begin.
    pub(crate) fn is_too_old(&self, now_ms: u64, limit_ms: u64) -> bool {
        now_ms.saturating_sub(self.created_ms) >= limit_ms
    }

    /// Whether it is interrupted, and too old.
    pub(crate) fn is_abandoned(&self, now_ms: u64, monotonic_ms: u64, limit_ms: u64) -> bool {
        !self.is_held(monotonic_ms) && self.is_too_old(now_ms, limit_ms)
    }

    /// How long the owner is still presumed alive, in ms; `None` without a lease or an owner.
    pub(crate) fn lease_left_ms(&self, monotonic_ms: u64) -> Option<u64> {
        let has_lease = self.phase != Phase::Interrupted && self.lease_end_ms != WHILE_ALIVE;
        has_lease.then(|| self.lease_end_ms.saturating_sub(monotonic_ms))
    }

    /// How many wait for the owner of this key.
    pub(crate) fn waiting(&self) -> usize {
        let waiters = self.waiters.iter();
        waiters
            .filter(|waiter| waiter.awaits == Awaits::Owner)
            .count()
    }

    /// Adds a waiter, or gives a known one its newest waker. Ids are unique in the store.
    ///
    /// The waker that was replaced must be dropped without the lock: with it may go a task, and
    /// what that holds of this store.
    #[must_use]
    pub(crate) fn register(&mut self, id: u64, waker: &Waker, awaits: Awaits) -> Option<Waker> {
        match self.waiters.iter_mut().find(|waiter| waiter.id == id) {
            Some(known) if known.waker.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(&mut known.waker, waker.clone())),
            None => {
                self.waiters.push(Waiter {
                    id,
                    waker: waker.clone(),
                    awaits,
                });
                None
            }
        }
    }

    /// Whether this waiter is on the list.
    pub(crate) fn is_registered(&self, id: u64) -> bool {
        self.waiters.iter().any(|waiter| waiter.id == id)
    }

    /// Takes a waiter off the list. Its waker must be dropped without the lock, as with
    /// [`register`](Self::register).
    #[must_use]
    pub(crate) fn cancel(&mut self, id: u64) -> Option<Waker> {
        if mutation("dropped_waiter_left") {
            return None;
        }
        let own = |waiter: &Waiter| waiter.id == id || mutation("dropped_waiter_takes_another");
        let at = self.waiters.iter().position(own)?;
        Some(self.waiters.remove(at).waker)
    }

    /// Those to be woken, after the lock is gone, because a transition has ended; if the key
    /// `changed_hands`, all of them. They keep their places until they look.
    pub(crate) fn wakers(&self, changed_hands: bool) -> Waiters {
        if self.waiters.is_empty() || (!changed_hands && mutation("settling_wakes_nobody")) {
            return Waiters::default();
        }
        let woken = self
            .waiters
            .iter()
            .filter(|waiter| changed_hands || waiter.awaits == Awaits::Settling);
        Waiters(woken.map(|waiter| waiter.waker.clone()).collect())
    }

    /// Everybody who waits for a key that is no more, to be woken after the lock is gone.
    pub(crate) fn take_waiters(&mut self) -> Waiters {
        let waiters = std::mem::take(&mut self.waiters);
        if waiters.is_empty() {
            return Waiters::default();
        }
        Waiters(waiters.into_iter().map(|waiter| waiter.waker).collect())
    }
}

/// Waiters that must be woken without a lock.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    #[inline]
    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(sync::wake);
    }
}
