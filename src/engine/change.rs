//! The mark that a transition is under way, and its end.

use crate::engine::Engine;
use crate::index::{Live, Phase, Stripe};
use crate::key::Key;
use crate::sync::{Ordering, mutation};

/// A key that this call has marked as changing. Ended by [`publish`](Self::publish),
/// [`retire`](Self::retire) or [`undo`](Self::undo); dropped otherwise (a panic), it leaves the key
/// interrupted, never stuck.
#[must_use]
pub(crate) struct Change<'a> {
    engine: &'a Engine,
    hash: u64,
    key: &'a Key,
    ended: bool,
}

impl Engine {
    /// For a key whose entry was just set to [`Phase::Changing`] under the lock.
    pub(crate) fn change<'a>(&'a self, hash: u64, key: &'a Key) -> Change<'a> {
        Change {
            engine: self,
            hash,
            key,
            ended: false,
        }
    }
}

impl Change<'_> {
    /// Publishes what the transition led to, and wakes those who wait.
    pub(crate) fn publish(&mut self, apply: impl FnOnce(&mut Live)) {
        self.ended = true;
        let waiters = {
            let mut stripe = self.engine.index.lock(self.hash);
            let Some(live) = stripe.live(self.hash, self.key) else {
                return;
            };
            assert_eq!(
                live.phase,
                Phase::Changing,
                "a changing key belongs to one transition"
            );
            let owner = live.token;
            live.rewritten = None;
            apply(live);
            let changed_hands = (live.token != owner && !mutation("takeover_wakes_nobody"))
                || live.phase == Phase::Interrupted;
            live.wakers(changed_hands)
        };
        waiters.wake();
    }

    /// Ends the key's entry: it is completed or absent now. `apply` tells whether the key's place is
    /// free with that.
    pub(crate) fn retire(mut self, apply: impl FnOnce(&mut Stripe) -> bool) {
        self.ended = true;
        let (waiters, is_place_free) = {
            let mut stripe = self.engine.index.lock(self.hash);
            let live = stripe.remove_live(self.hash, self.key);
            if mutation("retired_in_two_steps") {
                drop(stripe);
                stripe = self.engine.index.lock(self.hash);
            }
            let is_place_free = if mutation("taken_out_to_grow") {
                let mut grown = std::mem::take(&mut *stripe);
                drop(stripe);
                let is_place_free = apply(&mut grown);
                stripe = self.engine.index.lock(self.hash);
                *stripe = grown;
                is_place_free
            } else {
                apply(&mut stripe)
            };
            let waiters = live.map(|mut live| live.take_waiters());
            (waiters.unwrap_or_default(), is_place_free)
        };
        self.engine.pending.fetch_sub(1, Ordering::Relaxed);
        if is_place_free {
            self.engine.places.give_back(self.key.scope());
        }
        if mutation("end_wakes_nobody") {
            return;
        }
        waiters.wake();
    }

    /// Nothing was written: the key goes back to what it was.
    pub(crate) fn undo(&mut self, phase: Phase) {
        self.publish(|live| live.phase = phase);
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.ended && !mutation("mark_left_by_a_panic") {
            self.publish(|live| live.phase = Phase::Interrupted);
        }
    }
}
