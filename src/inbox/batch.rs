//! A poll of messages at once: claimed with one sync, completed with one.

use std::collections::HashMap;

use crate::claim::Claim;
use crate::error::WriteError;
use crate::inbox::event::{Event, Message};
use crate::inbox::outcome::{DeadReason, Failure, Outcome, RetryReason};
use crate::inbox::process::{How, Shared, Style};
use crate::key::Key;
use crate::operation::Operation;
use crate::options::Durability;

/// Events that were claimed and whose handler was not started yet. Dropped (a handler panics, the
/// future is dropped), they are given back.
struct Unstarted {
    operations: std::vec::IntoIter<(usize, Operation)>,
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        for (_, operation) in self.operations.by_ref() {
            operation.give_back();
        }
    }
}

/// A batch whose messages are being sorted.
#[derive(Default)]
struct Batch {
    outcomes: Vec<Option<Outcome>>,
    claimed: Vec<(usize, Operation)>,
    /// The first message of each event that was claimed.
    firsts: HashMap<Key, usize>,
    /// Messages with an event that an earlier one of the batch has, and that one.
    duplicates: Vec<(usize, usize)>,
}

impl Shared {
    pub(super) async fn process_batch(
        &self,
        style: Style,
        messages: Vec<Message<'_>>,
        mut handler: impl AsyncFnMut(usize, &mut Event) -> Result<(), Failure>,
    ) -> Vec<Outcome> {
        let mut batch = self.claim_batch(style, &messages).await;
        let how = How {
            style,
            is_flushed_later: true,
        };
        let mut unstarted = Unstarted {
            operations: std::mem::take(&mut batch.claimed).into_iter(),
        };
        let mut worked = Vec::new();
        for (index, operation) in unstarted.operations.by_ref() {
            let handle = async |event: &mut Event| handler(index, event).await;
            let outcome = self.work(how, operation, handle).await;
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
        let claims = self.store.claim_each(&keys, style.lead()).await;
        for ((claim, index), (key, ..)) in claims.into_iter().zip(indices).zip(keys) {
            if let Ok(Claim::InProgress(progress)) = &claim
                && progress.is_same_batch()
                && let Some(first) = batch.firsts.get(&key)
            {
                batch.duplicates.push((index, *first));
                continue;
            }
            match self.owned(claim) {
                Ok(operation) => {
                    batch.firsts.insert(key, index);
                    batch.claimed.push((index, operation));
                }
                Err(outcome) => batch.set(index, outcome),
            }
        }
        batch
    }

    /// Makes what was written durable; where that fails the broker is told nothing that rests on it.
    async fn flush(&self, style: Style, batch: &mut Batch, worked: &[usize]) {
        if self.durability == Durability::Buffered || worked.is_empty() {
            return;
        }
        let Err(error) = style.flush(&self.store).await else {
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
