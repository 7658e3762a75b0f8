//! Preparing segments ahead, and waiting for room.
//!
//! A background thread keeps some segments ready: real blocks allocated, mapped, every page brought
//! in, header written, synced, renamed into place, directory synced. The hot path therefore
//! never meets a page that faults on a missing block, a full disk, or a file whose directory entry
//! could be lost. Only here does the store meet "no space left": it is reported to those who asked
//! for room and forgotten; the next to ask tries again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::fs::Storage;
use crate::log::append::Appender;
use crate::log::header::Header;
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::sync::{self, Condvar, Mutex, mutation};

/// Coordinates the preparing thread with those who wait for room.
#[derive(Debug, Default)]
pub(crate) struct Preparer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// Somebody waits for room.
    demand: bool,
    /// A segment was used up, or the thread was told to look.
    poked: bool,
    started: u64,
    finished: u64,
    failure: Option<Arc<io::Error>>,
    waiters: Vec<Waker>,
}

/// Why there is no room.
#[derive(Clone, Debug)]
pub(crate) enum NoRoom {
    /// Preparing a segment failed just now: disk full, quota, too many segments.
    Failed(Arc<io::Error>),
    /// The log is closed.
    Stopped,
}

/// What the preparing thread should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Try to prepare a segment.
    Prepare,
    /// Nothing happened for a while: persist the clock.
    Idle,
    /// End.
    Stop,
}

impl Preparer {
    /// Tells the thread that a segment may be wanted.
    pub(crate) fn poke(&self) {
        self.state.lock().poked = true;
        self.wake.notify_one();
    }

    /// Tells the thread that somebody needs room, who looks again by himself.
    pub(crate) fn demand(&self) {
        self.state.lock().demand = true;
        self.wake.notify_one();
    }

    /// Ends the thread and everybody who waits for room.
    pub(crate) fn stop(&self) {
        let waiters = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.waiters)
        };
        if mutation("stop_wakes_nobody") {
            return;
        }
        self.wake.notify_all();
        waiters.into_iter().for_each(sync::wake);
    }

    /// Whether the log is closed: a waker that this thread woke may have done it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Blocks the preparing thread until there is something to do.
    pub(crate) fn next_task(&self, wanted: impl Fn() -> bool, idle: Duration) -> Task {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Task::Stop;
            }
            // After a failure only somebody who needs room makes it try again.
            let wanted = state.failure.is_none() && wanted();
            if state.demand || wanted {
                state.demand = false;
                state.poked = false;
                state.started += 1;
                return Task::Prepare;
            }
            if state.poked {
                state.poked = false;
                continue;
            }
            if self.wake.wait_for(&mut state, idle).timed_out() && !state.demand && !state.poked {
                return Task::Idle;
            }
        }
    }

    /// Reports how a try ended.
    pub(crate) fn finished(&self, outcome: Result<(), io::Error>) {
        let waiters = {
            let mut state = self.state.lock();
            state.finished = state.started;
            state.failure = outcome.err().map(Arc::new);
            std::mem::take(&mut state.waiters)
        };
        if mutation("prepared_wakes_nobody") {
            return;
        }
        waiters.into_iter().for_each(sync::wake);
    }

    /// Takes a promise of `words` words as soon as there is room for it.
    pub(crate) fn room<'a>(&'a self, appender: &'a Appender, words: u64) -> Room<'a> {
        Room {
            preparer: self,
            appender,
            words,
            awaited: None,
        }
    }
}

/// Resolves to a promise of room, or to the failure of a try that began after the wait did.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    preparer: &'a Preparer,
    appender: &'a Appender,
    words: u64,
    /// The try whose failure is ours.
    awaited: Option<u64>,
}

impl Future for Room<'_> {
    type Output = Result<(), NoRoom>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.preparer.state.lock();
        if this.appender.space().try_take(this.words) {
            return Poll::Ready(Ok(()));
        }
        if state.stopped {
            return Poll::Ready(Err(NoRoom::Stopped));
        }
        if this
            .awaited
            .is_some_and(|awaited| state.finished >= awaited)
            || mutation("failure_of_an_earlier_try")
        {
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(NoRoom::Failed(Arc::clone(failure))));
            }
            this.awaited = None;
        }
        this.awaited.get_or_insert(state.started + 1);
        state.demand = !mutation("demand_not_noted");
        if !state
            .waiters
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            state.waiters.push(context.waker().clone());
        }
        drop(state);
        if !mutation("preparer_not_woken") {
            this.preparer.wake.notify_one();
        }
        Poll::Pending
    }
}

/// Name of the file of the segment that begins at `base`.
pub(crate) fn segment_name(base: u64) -> String {
    format!("segment-{base:016x}.log")
}

/// Name of the compacted file that begins at `base`.
pub(crate) fn compacted_name(base: u64) -> String {
    format!("compacted-{base:016x}.log")
}

/// Ending of a file that is being made.
pub(crate) const PREPARING: &str = ".tmp";

/// What a file is called while it is made.
pub(crate) fn preparing_name(name: &str) -> String {
    format!("{name}{PREPARING}")
}

/// When a prepared segment's empty pages are written to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// Before it is used: a sync then writes only what was appended and no extent has to be
    /// converted. For stores that sync every acknowledgement.
    Ahead,
    /// With the records: the pages stay writable, so that appending meets no fault, and each is
    /// written once instead of twice. The first sync writes the whole segment.
    WithRecords,
}

/// Makes a segment durable and ready to be written: see the module's head for the order.
pub(crate) fn prepare_segment(
    storage: &dyn Storage,
    header: &Header,
    number: u16,
    zeroing: Zeroing,
) -> io::Result<Segment> {
    let name = segment_name(header.base);
    let preparing = preparing_name(&name);
    match storage.remove(&preparing) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let prepared = (|| {
        let file = storage.create(&preparing, header.file_bytes)?;
        let ahead = match zeroing {
            Zeroing::Ahead => Some(file.map(true)?),
            Zeroing::WithRecords => None,
        };
        file.write_at(0, &header.encode())?;
        file.sync_data()?;
        storage.rename(&preparing, &name)?;
        storage.sync_directory()?;
        let memory = match ahead {
            Some(memory) => memory,
            None => file.map(true)?,
        };
        Ok(Segment::new(
            number,
            header.base,
            header.seed(),
            name.clone(),
            Some(file),
            memory,
            FIRST_RECORD,
        )
        .made_at(header.created_ms))
    })();
    if prepared.is_err() {
        // Whichever name it has by now, it holds no record: the next try starts afresh.
        for leftover in [&preparing, &name] {
            drop(storage.remove(leftover));
        }
    }
    prepared
}
