//! Group commit: many writers, one `fdatasync`.
//!
//! Whoever needs a record durable polls [`Durable`]. The first to come leads: it walks the chain of
//! committed records as far as it reaches, syncs the segments in between once, moves the watermark
//! and wakes everyone up to it. The rest wait, threads and futures alike. A blocking caller may
//! lead; a future never runs `fdatasync` on its executor's thread, so where only futures wait the
//! flusher is asked to lead for them. There is no timer: batches grow by themselves while a sync is
//! under way.
//!
//! Invariants:
//! * the watermark moves only after a sync that returned success, and only up to the committed
//!   prefix that was read *before* the call;
//! * after the first failed sync it never moves again ([`Poison`]): the kernel may have dropped the
//!   pages and marked them clean, so a later success would prove nothing;
//! * whenever somebody waits there is a leader, a waiter told to become one, or a request to the
//!   flusher: a leader that finishes hands on before it goes.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;

use crate::block::block_on;
use crate::log::append::Appender;
use crate::log::word::{Decoded, State};
use crate::sync::{self, AtomicBool, AtomicU64, Mutex, Ordering, mutation};

/// What the flusher is asked for when it is to end.
const END_OF_TIME: u64 = u64::MAX;

/// Who may run `fdatasync` for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// A thread that may block: it syncs as far as the committed records reach.
    Allowed,
    /// The flusher: it syncs just as far as it was asked to. At a roll-over that is the segment that
    /// is full; syncing the one being written as well would make each of its pages fault again.
    Background,
    /// A future: somebody else leads.
    Never,
}

/// The first failed sync. Nothing is written or acknowledged after it until the store is reopened.
#[derive(Clone, Debug)]
pub(crate) struct Poison {
    /// The segment whose sync failed.
    pub(crate) file: String,
    /// What the system said.
    pub(crate) source: std::sync::Arc<io::Error>,
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sync of {} failed: {}", self.file, self.source)
    }
}

/// The durable watermark and those who wait for it.
#[derive(Debug)]
pub(crate) struct Commit {
    watermark: CachePadded<AtomicU64>,
    poisoned: AtomicBool,
    state: Mutex<Waiting>,
    syncs: AtomicU64,
    records: AtomicU64,
    /// Records of the largest group.
    largest: AtomicU64,
}

/// How often the log was synced, and how many records that made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncCounts {
    pub(crate) syncs: u64,
    pub(crate) records: u64,
    /// The most that one sync covered.
    pub(crate) largest: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    leading: bool,
    poison: Option<Poison>,
    waiters: Vec<Waiter>,
    next_id: u64,
    /// Up to where the flusher was asked to sync.
    requested: Option<u64>,
    flusher: Option<Waker>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    target: u64,
    lead: Lead,
    waker: Waker,
}

impl Commit {
    /// Starts with everything below `watermark` durable.
    pub(crate) fn new(watermark: u64) -> Self {
        Self {
            watermark: CachePadded::new(AtomicU64::new(watermark)),
            poisoned: AtomicBool::new(false),
            state: Mutex::new(Waiting::default()),
            syncs: AtomicU64::new(0),
            records: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        }
    }

    /// The position below which everything survives power loss.
    #[inline]
    pub(crate) fn watermark(&self) -> u64 {
        self.watermark.load(Ordering::Acquire)
    }

    /// The failed sync, if there was one.
    pub(crate) fn poison(&self) -> Option<Poison> {
        if !self.poisoned.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().poison.clone()
    }

    /// Whether a sync has failed.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// How many syncs succeeded and how many records they made durable.
    pub(crate) fn counts(&self) -> SyncCounts {
        SyncCounts {
            syncs: self.syncs.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            largest: self.largest.load(Ordering::Relaxed),
        }
    }

    /// Waits until everything below `target` is durable.
    pub(crate) fn durable<'a>(
        &'a self,
        appender: &'a Appender,
        target: u64,
        lead: Lead,
    ) -> Durable<'a> {
        Durable {
            commit: self,
            appender,
            target,
            lead,
            registered: None,
        }
    }

    /// Asks the flusher to make everything below `target` durable in the background.
    pub(crate) fn request(&self, target: u64) {
        let flusher = self.state.lock().request(target);
        if let Some(flusher) = flusher {
            flusher.wake();
        }
    }

    /// Ends the flusher.
    pub(crate) fn stop_flusher(&self) {
        self.request(END_OF_TIME);
    }

    /// The flusher's life: syncs whenever it is asked to, until it is stopped.
    pub(crate) fn flush_until_stopped(&self, appender: &Appender) {
        loop {
            let target = block_on(poll_fn(|context| self.poll_request(context)));
            if target == END_OF_TIME {
                return;
            }
            if let Err(poison) = block_on(self.durable(appender, target, Lead::Background)) {
                tracing::error!(%poison, "the store is poisoned until it is reopened");
            }
        }
    }

    /// What the flusher was asked for, or `Pending` until it is asked.
    fn poll_request(&self, context: &mut Context<'_>) -> Poll<u64> {
        let mut waiting = self.state.lock();
        match waiting.requested.take() {
            Some(target) => Poll::Ready(target),
            None => {
                waiting.flusher = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Syncs once, as far as the committed prefix reaches, which is at least `target`.
    fn lead(&self, appender: &Appender, target: u64, lead: Lead) {
        let mut leading = Leading {
            commit: self,
            finished: false,
        };
        if mutation("watermark_before_sync") {
            self.watermark.store(target, Ordering::Release);
        }
        let outcome = self.sync_prefix(appender, target, lead);
        leading.finished = true;
        self.finish(outcome);
        appender.retire_durable(self.watermark());
    }

    fn finish(&self, outcome: Result<u64, Poison>) {
        let (woken, flusher) = {
            let mut waiting = self.state.lock();
            waiting.leading = false;
            match outcome {
                Ok(end) => {
                    self.watermark.store(end, Ordering::Release);
                    waiting.hand_on(end)
                }
                Err(_) if mutation("failed_sync_forgotten") => waiting.hand_on(self.watermark()),
                Err(poison) => {
                    waiting.poison = Some(poison);
                    self.poisoned.store(true, Ordering::Release);
                    if mutation("poison_wakes_nobody") {
                        return;
                    }
                    (std::mem::take(&mut waiting.waiters), waiting.flusher.take())
                }
            }
        };
        if let Some(flusher) = flusher {
            flusher.wake();
        }
        for waiter in woken {
            sync::wake(waiter.waker);
        }
    }

    fn sync_prefix(&self, appender: &Appender, target: u64, lead: Lead) -> Result<u64, Poison> {
        let start = self.watermark();
        let (end, records) = committed_prefix(appender, start, target, lead)?;
        for segment in appender.chain() {
            if segment.end() > start && segment.base < end {
                segment.sync().map_err(|source| Poison {
                    file: segment.name.clone(),
                    source: std::sync::Arc::new(source),
                })?;
            }
        }
        let (end, records) = if mutation("prefix_read_after_sync") {
            committed_prefix(appender, start, target, lead)?
        } else {
            (end, records)
        };
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.largest.fetch_max(records, Ordering::Relaxed);
        Ok(end)
    }
}

/// A leader that unwinds leaves the store poisoned instead of everybody waiting for ever.
struct Leading<'a> {
    commit: &'a Commit,
    finished: bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.commit.finish(Err(Poison {
                file: String::from("the log"),
                source: std::sync::Arc::new(io::Error::other("the syncing thread panicked")),
            }));
        }
    }
}

impl Waiting {
    /// Takes a waiter off the list, to be dropped without the lock.
    fn remove(&mut self, id: u64) -> Option<Waiter> {
        let at = self.waiters.iter().position(|waiter| waiter.id == id)?;
        Some(self.waiters.swap_remove(at))
    }

    fn request(&mut self, target: u64) -> Option<Waker> {
        self.requested = Some(self.requested.map_or(target, |known| known.max(target)));
        self.flusher.take()
    }

    /// Takes out those who are served and, if others are left, one of them to lead next: first in
    /// the list, so that the next sync starts before the served ones are woken.
    fn hand_on(&mut self, end: u64) -> (Vec<Waiter>, Option<Waker>) {
        let mut woken = Vec::with_capacity(self.waiters.len());
        let next = self
            .waiters
            .iter()
            .position(|waiter| waiter.target > end && waiter.lead != Lead::Never);
        let has_leader = next.is_some();
        if let Some(next) = next
            && !mutation("next_leader_not_woken")
        {
            woken.push(self.waiters.swap_remove(next));
        }
        let mut left_behind = None;
        let mut index = 0;
        while let Some(waiter) = self.waiters.get(index) {
            if waiter.target <= end {
                woken.push(self.waiters.swap_remove(index));
            } else {
                left_behind = left_behind.max(Some(waiter.target));
                index += 1;
            }
        }
        let flusher = match left_behind {
            Some(target) if !has_leader => self.request(target),
            _ => None,
        };
        (woken, flusher)
    }
}

/// Walks the chain from `start` over committed records and padding, waiting for those below
/// `target` whose writers are in the middle of a copy. Returns where it got to and over how many
/// records.
///
/// # Errors
///
/// When it does not get to `target`, all of which was appended: somebody changed the file. Nothing
/// can be told to be durable then.
fn committed_prefix(
    appender: &Appender,
    start: u64,
    target: u64,
    lead: Lead,
) -> Result<(u64, u64), Poison> {
    let mut position = start;
    let mut records = 0;
    let mut round = 0;
    let is_enough = |position| lead == Lead::Background && position >= target;
    'again: loop {
        for segment in appender.chain() {
            if is_enough(position) {
                break 'again;
            }
            if segment.end() <= position {
                continue;
            }
            // Positions jump where a new epoch begins: the next segment in the chain goes on.
            position = position.max(segment.base + crate::log::segment::FIRST_RECORD);
            while position < segment.end() && !is_enough(position) {
                match segment.word_at(position - segment.base) {
                    Decoded::Word {
                        words,
                        state: State::Committed,
                    } => {
                        position += words;
                        records += 1;
                    }
                    Decoded::Word {
                        words,
                        state: State::Padding,
                    } => position += words,
                    Decoded::Word { words, .. } if mutation("reserved_counts_as_committed") => {
                        position += words;
                    }
                    Decoded::Word {
                        state: State::Reserved,
                        ..
                    } if position < target => {
                        round += 1;
                        sync::relax(round);
                    }
                    _ => break 'again,
                }
            }
        }
        // Everything in the snapshot is committed; a target beyond it is in a newer segment.
        if position >= target {
            break;
        }
        round += 1;
        sync::relax(round);
    }
    if position >= target {
        return Ok((position, records));
    }
    let chain = appender.chain();
    let segment = chain.iter().find(|segment| segment.end() > position);
    Err(Poison {
        file: segment.map_or_else(|| String::from("the log"), |segment| segment.name.clone()),
        source: std::sync::Arc::new(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the log ends at {position:#x}, before the record at {target:#x}: the file was \
                 changed behind the store's back"
            ),
        )),
    })
}

/// Resolves when everything below its target is durable. Dropping it only stops the waiting.
#[derive(Debug)]
pub(crate) struct Durable<'a> {
    commit: &'a Commit,
    appender: &'a Appender,
    target: u64,
    lead: Lead,
    registered: Option<u64>,
}

impl Future for Durable<'_> {
    type Output = Result<(), Poison>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if this.commit.watermark() >= this.target {
                // Whoever moved the watermark takes us off the list under the same lock.
                this.registered = None;
                return Poll::Ready(Ok(()));
            }
            let mut waiting = this.commit.state.lock();
            if this.commit.watermark() >= this.target {
                continue;
            }
            if let Some(poison) = &waiting.poison {
                return Poll::Ready(Err(poison.clone()));
            }
            if !waiting.leading && this.lead != Lead::Never {
                waiting.leading = true;
                let registered = this.registered.take();
                let gone = registered.and_then(|id| waiting.remove(id));
                drop(waiting);
                drop(gone);
                this.commit.lead(this.appender, this.target, this.lead);
                continue;
            }
            if mutation("waiter_looks_then_locks_again") {
                drop(waiting);
                waiting = this.commit.state.lock();
            }
            let replaced = this.register(&mut waiting, context.waker());
            let flusher = if waiting.leading || mutation("flusher_not_asked") {
                None
            } else {
                waiting.request(this.target)
            };
            drop(waiting);
            drop(replaced);
            if let Some(flusher) = flusher {
                flusher.wake();
            }
            return Poll::Pending;
        }
    }
}

impl Durable<'_> {
    /// Gives back the waker that was replaced, to be dropped without the lock: with it may go a task
    /// that waits here itself.
    #[must_use]
    fn register(&mut self, waiting: &mut Waiting, waker: &Waker) -> Option<Waker> {
        let known = self
            .registered
            .and_then(|id| waiting.waiters.iter_mut().find(|waiter| waiter.id == id));
        if let Some(known) = known {
            return (!known.waker.will_wake(waker))
                .then(|| std::mem::replace(&mut known.waker, waker.clone()));
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        waiting.waiters.push(Waiter {
            id,
            target: self.target,
            lead: self.lead,
            waker: waker.clone(),
        });
        self.registered = Some(id);
        None
    }
}

impl Drop for Durable<'_> {
    fn drop(&mut self) {
        let Some(id) = self.registered else { return };
        let (gone, flusher) = {
            let mut waiting = self.commit.state.lock();
            let gone = waiting.remove(id);
            // It may have been the one told to lead next.
            let flusher = match waiting.waiters.iter().map(|waiter| waiter.target).max() {
                Some(target)
                    if !waiting.leading
                        && waiting.poison.is_none()
                        && !mutation("dropped_wait_hands_nothing_on") =>
                {
                    waiting.request(target)
                }
                _ => None,
            };
            (gone, flusher)
        };
        drop(gone);
        if let Some(flusher) = flusher {
            flusher.wake();
        }
    }
}
