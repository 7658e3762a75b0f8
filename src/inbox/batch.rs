//! A poll of messages at once: claimed with one sync, completed with one.

use std::collections::HashMap;

use crate::backend::{self, AnyGuard, Backend, Guard};
use crate::error::WriteError;
use crate::fingerprint::Fingerprint;
use crate::inbox::event::{Event, Message};
use crate::inbox::outcome::{DeadReason, Failure, Outcome, RetryReason};
use crate::inbox::process::{Claimed, How, Shared, Style};
use crate::key::Key;
use crate::options::{ClaimOptions, Durability};

/// Events that were claimed and whose handler was not started yet. Dropped (a handler panics, the
/// future is dropped), they are given back.
struct Unstarted {
    guards: std::vec::IntoIter<(usize, AnyGuard)>,
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        for (_, guard) in self.guards.by_ref() {
            guard.give_back();
        }
    }
}

/// What was claimed while others of the batch were still to be. Dropped, it is given back.
struct Unclaimed(Vec<Claimed>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        for claim in self.0.drain(..).flatten() {
            if let Some(guard) = claim.into_guard() {
                guard.give_back();
            }
        }
    }
}

/// A batch whose messages are being sorted.
#[derive(Default)]
struct Batch {
    outcomes: Vec<Option<Outcome>>,
    claimed: Vec<(usize, AnyGuard)>,
    /// The first message of each event that was claimed.
    firsts: HashMap<Key, usize>,
    /// Messages with an event that an earlier one of the batch has, and that one.
    duplicates: Vec<(usize, usize)>,
}

impl Shared {
    pub(super) async fn process_batch<B>(
        &self,
        style: Style,
        messages: Vec<Message<'_>>,
        mut handler: impl AsyncFnMut(usize, &mut Event<B>) -> Result<(), Failure>,
    ) -> Vec<Outcome> {
        let mut batch = self.claim_batch(style, &messages).await;
        let how = How {
            style,
            is_flushed_later: true,
        };
        let mut unstarted = Unstarted {
            guards: std::mem::take(&mut batch.claimed).into_iter(),
        };
        let mut worked = Vec::new();
        for (index, guard) in unstarted.guards.by_ref() {
            let handle = async |event: &mut Event<B>| handler(index, event).await;
            let outcome = self.work(how, guard, handle).await;
            worked.push(index);
            batch.set(index, outcome);
        }
        self.flush(style, &mut batch, &worked).await;
        for (index, first) in std::mem::take(&mut batch.duplicates) {
            let of_first = batch.outcomes.get(first).cloned().flatten();
            if let Some(outcome) = of_first {
                batch.set(index, outcome.of_duplicate());
            }
        }
        let outcomes = batch.outcomes.into_iter();
        // Each was set above; one that was not would have to come again.
        outcomes
            .map(|outcome| {
                outcome
                    .unwrap_or_else(|| Outcome::retry(self.backoff.0, RetryReason::OutcomeUnknown))
            })
            .collect()
    }

    async fn claim_batch(&self, style: Style, messages: &[Message<'_>]) -> Batch {
        let mut batch = Batch {
            outcomes: vec![None; messages.len()],
            ..Batch::default()
        };
        let (mut indices, mut keys) = (Vec::new(), Vec::new());
        for (index, message) in messages.iter().enumerate() {
            match self.key(message) {
                Ok(key) => {
                    indices.push(index);
                    keys.push((key, message.fingerprint, self.options(message)));
                }
                Err(error) => {
                    let outcome = Outcome::dead_at_once(DeadReason::BadEventId(error));
                    batch.set(index, outcome);
                }
            }
        }
        let claims = self.claim_each(style, &keys).await;
        for ((claim, index), (key, ..)) in claims.into_iter().zip(indices).zip(keys) {
            // Whose event an earlier message of the batch holds.
            if let Ok(backend::Outcome::InProgress(_)) = &claim
                && let Some(first) = batch.firsts.get(&key)
            {
                batch.duplicates.push((index, *first));
                continue;
            }
            match self.owned(claim) {
                Ok(guard) => {
                    batch.firsts.insert(key, index);
                    batch.claimed.push((index, guard));
                }
                Err(outcome) => batch.set(index, outcome),
            }
        }
        batch
    }

    /// All with one sync where the store is embedded, one after the other elsewhere.
    async fn claim_each(
        &self,
        style: Style,
        keys: &[(Key, Fingerprint, ClaimOptions)],
    ) -> Vec<Claimed> {
        if let Some(store) = self.backend.embedded() {
            let claims = store.claim_each(keys, style.lead()).await.into_iter();
            let guarded = |claim| backend::Outcome::from(claim).map(AnyGuard::from);
            return claims.map(|claim| claim.map(guarded)).collect();
        }
        let mut claims = Unclaimed(Vec::with_capacity(keys.len()));
        for (key, fingerprint, options) in keys {
            let claim = self.backend.claim(key, *fingerprint, options.clone()).await;
            claims.0.push(claim);
        }
        std::mem::take(&mut claims.0)
    }

    /// Makes what was written durable; where that fails the broker is told nothing that rests on it.
    async fn flush(&self, style: Style, batch: &mut Batch, worked: &[usize]) {
        if self.durability == Durability::Buffered || worked.is_empty() {
            return;
        }
        let Err(error) = style.flush(&self.backend).await else {
            return;
        };
        for index in worked {
            if let Some(Some(outcome)) = batch.outcomes.get_mut(*index)
                && outcome.is_settled()
            {
                let error = WriteError::OutcomeUnknown(error.clone());
                *outcome = Outcome::retry(self.backoff.0, RetryReason::NotStored(error));
            }
        }
    }
}

impl Batch {
    fn set(&mut self, index: usize, outcome: Outcome) {
        if let Some(place) = self.outcomes.get_mut(index) {
            *place = Some(outcome);
        }
    }
}
