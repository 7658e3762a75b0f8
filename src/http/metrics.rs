//! What the layer counts, and the handlers at work, which outlive their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::stats::Counter;

/// One counter for each way a request can go.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: Counter,
    pub(super) refused: Counter,
    pub(super) started: Counter,
    pub(super) reconciled: Counter,
    pub(super) outcome_unknown: Counter,
    pub(super) replayed: Counter,
    pub(super) not_replayable: Counter,
    pub(super) replays_refused: Counter,
    pub(super) waited: Counter,
    pub(super) in_progress: Counter,
    pub(super) mismatched: Counter,
    pub(super) too_late: Counter,
    pub(super) stored: Counter,
    pub(super) stored_without_body: Counter,
    pub(super) released: Counter,
    pub(super) interrupted: Counter,
    pub(super) store_failures: Counter,
    pub(super) unprotected: Counter,
}

/// What happened to requests since the layer was made, from
/// [`IdempotencyLayer::stats`](super::IdempotencyLayer::stats). Layers made from clones of one builder
/// count together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpStats {
    /// Went to the handler untouched: another method, no key where none is needed, a skipped route.
    pub passed: u64,
    /// Answered 400, 403 or 413 before anything was claimed.
    pub refused: u64,
    /// Ran the handler as the first attempt.
    pub started: u64,
    /// Ran the handler or your reconciling code after an interruption.
    pub reconciled: u64,
    /// Answered 500 because nobody knows what an earlier attempt did.
    pub outcome_unknown: u64,
    /// Answered with a stored answer.
    pub replayed: u64,
    /// Answered 410: done, and the answer was not kept.
    pub not_replayable: u64,
    /// Answered 403 in place of a stored answer.
    pub replays_refused: u64,
    /// Waited for the first request with their key, whatever came of it.
    pub waited: u64,
    /// Answered 409: the first request was still at work.
    pub in_progress: u64,
    /// Answered that the key was used for another request.
    pub mismatched: u64,
    /// Answered 409: the key is older than answers are kept.
    pub too_late: u64,
    /// Answers stored.
    pub stored: u64,
    /// Keys marked as done without an answer, because it was too large.
    pub stored_without_body: u64,
    /// Keys freed, because nothing had happened.
    pub released: u64,
    /// Keys left interrupted by an answer, an error or a panic of the handler.
    pub interrupted: u64,
    /// Calls of the store that failed.
    pub store_failures: u64,
    /// Of the requests, those that ran without protection because the store failed.
    pub unprotected: u64,
    /// Handlers at work, those whose clients are gone included.
    pub running: u64,
}

impl Counters {
    pub(super) fn read(&self, tasks: &Tasks) -> HttpStats {
        HttpStats {
            passed: self.passed.total(),
            refused: self.refused.total(),
            started: self.started.total(),
            reconciled: self.reconciled.total(),
            outcome_unknown: self.outcome_unknown.total(),
            replayed: self.replayed.total(),
            not_replayable: self.not_replayable.total(),
            replays_refused: self.replays_refused.total(),
            waited: self.waited.total(),
            in_progress: self.in_progress.total(),
            mismatched: self.mismatched.total(),
            too_late: self.too_late.total(),
            stored: self.stored.total(),
            stored_without_body: self.stored_without_body.total(),
            released: self.released.total(),
            interrupted: self.interrupted.total(),
            store_failures: self.store_failures.total(),
            unprotected: self.unprotected.total(),
            running: tasks.running.load(Ordering::Acquire) as u64,
        }
    }
}

/// The work that is under way, with clients and without.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: AtomicUsize,
    is_idle: Notify,
}

/// One of them, as long as it lives.
pub(super) struct Running(Arc<Tasks>);

impl Tasks {
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(self))
    }

    pub(super) async fn idle(&self) {
        loop {
            let mut notified = std::pin::pin!(self.is_idle.notified());
            // Registered before the look: no end of a task is missed.
            notified.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.is_idle.notify_waiters();
        }
    }
}
