//! Maintenance: giving disk space and memory back while claims go on.
//!
//! One pass after the other, by a thread of its own and by whoever calls for one; never two at once.
//! A pass looks what is worth doing ([`choose`]), does it job by job ([`job`]), and gives index
//! memory back.
//!
//! Nothing here is done under a lock that a claim waits for, but for single looks at single keys and
//! a walk over one stripe at a time. A pass that fails, panics or is cut off anywhere leaves a store
//! with the same answers.

mod choose;
mod copies;
mod job;
mod refresh;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Unavailable;
use crate::log::segment::Segment;
use crate::maintenance::{MaintenanceError, MaintenanceReport, MaintenanceStats};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Condvar, Mutex};
use crate::timer;

/// How often the thread looks whether there is something to do.
const EVERY: Duration = Duration::from_millis(500);
/// How often it looks after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How often it looks whether a snapshot that is in the way is done.
const WHILE_HELD: Duration = Duration::from_millis(5);
/// Reading counts so much less than writing.
const READING_PARTS: u64 = 4;
/// This part of a segment is promised in advance to keys that must be written again.
const ROOM_PART: u64 = 32;
/// Each job gives up more than it writes, so a pass comes to an end; the limit is for faults.
const JOBS_MAX: usize = 1 << 16;

/// Who does maintenance, and what was done.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Words of the log that are promised to keys which must be written again when there is no other
    /// room.
    room: Mutex<u64>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// Who is at a pass.
    running: Option<ThreadId>,
    /// How many wait for a pass of their own: one at its leisure hurries up.
    waiting: usize,
    stats: MaintenanceStats,
}

/// How fast a pass goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Leisurely,
    AtOnce,
}

/// One pass under way.
struct Pass<'a> {
    engine: &'a Engine,
    pace: Pace,
    report: MaintenanceReport,
    /// Segments that stay because a record in them cannot be read, and why the first one does.
    damaged: Vec<u64>,
    damage: Option<MaintenanceError>,
}

impl Maintenance {
    /// Starts the thread. It ends when the store is closed, and must be closed for that.
    ///
    /// # Errors
    ///
    /// When the system has no thread left.
    pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<()> {
        let own = Arc::clone(engine);
        let thread = timer::spawn("oncekey-maintain", move || own.maintain_until_stopped())?;
        *engine.maintenance.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread and every pass, and waits for them; but not for a pass of this thread, which
    /// was called from within it and does nothing more.
    pub(crate) fn stop(&self) {
        let this_thread = thread::current().id();
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        while state.running.is_some_and(|thread| thread != this_thread) {
            self.changed.wait(&mut state);
        }
        drop(state);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            timer::join(thread);
        }
    }

    /// What was done so far.
    pub(crate) fn stats(&self) -> MaintenanceStats {
        self.state.lock().stats.clone()
    }

    /// Waits until nobody else is at it.
    fn begin(&self) -> Result<Running<'_>, Unavailable> {
        let this_thread = thread::current().id();
        let mut state = self.state.lock();
        state.waiting += 1;
        // Once: two who wait would wake each other for as long as the pass takes.
        self.changed.notify_all();
        // From within a pass, by a waker that it woke: that pass does all there is to do.
        while !state.stopped && state.running.is_some_and(|thread| thread != this_thread) {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
        if state.stopped || state.running.is_some() {
            return Err(Unavailable::Closed);
        }
        state.running = Some(this_thread);
        Ok(Running(self))
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Sleeps, unless stopped or in the way of somebody who is in a hurry.
    fn pause(&self, duration: Duration) {
        let mut state = self.state.lock();
        if !state.stopped && state.waiting == 0 && !duration.is_zero() {
            self.changed.wait_for(&mut state, duration);
        }
    }

    /// Sleeps, unless stopped.
    fn nap(&self, duration: Duration) {
        let mut state = self.state.lock();
        if !state.stopped {
            self.changed.wait_for(&mut state, duration);
        }
    }
}

/// A pass under way, of this thread.
struct Running<'a>(&'a Maintenance);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running = None;
        self.0.changed.notify_all();
    }
}

impl Engine {
    /// One pass, as fast as it goes.
    ///
    /// # Errors
    ///
    /// [`MaintenanceError`]: why it could not do all there was to do.
    pub(crate) fn maintain(&self) -> Result<MaintenanceReport, MaintenanceError> {
        self.check_process()?;
        self.maintain_at(Pace::AtOnce)
    }

    /// What maintenance has done so far.
    pub(crate) fn maintenance_stats(&self) -> MaintenanceStats {
        self.maintenance.stats()
    }

    fn maintain_until_stopped(&self) {
        let mut pause = EVERY;
        loop {
            // Whoever waits for a pass of his own is not made to wait for another one of this thread.
            self.maintenance.nap(pause);
            if self.maintenance.is_stopped() {
                return;
            }
            pause = match self.maintain_at(Pace::Leisurely) {
                Ok(_) => EVERY,
                Err(_) => AFTER_FAILURE,
            };
        }
    }

    fn maintain_at(&self, pace: Pace) -> Result<MaintenanceReport, MaintenanceError> {
        let _running = self.maintenance.begin()?;
        let mut pass = Pass {
            engine: self,
            pace,
            report: MaintenanceReport::default(),
            damaged: Vec::new(),
            damage: None,
        };
        let worked = catch_unwind(AssertUnwindSafe(|| pass.work()));
        let worked = worked.unwrap_or(Err(MaintenanceError::Panicked));
        let report = pass.report;
        let mut state = self.maintenance.state.lock();
        state.stats.done.add(&report);
        match worked {
            Ok(()) => {
                state.stats.passes += 1;
                state.stats.last_failure = None;
                Ok(report)
            }
            Err(error) => {
                if !state.stopped {
                    state.stats.passes_failed += 1;
                    state.stats.last_failure = Some(error.to_string());
                    tracing::warn!(%error, "maintenance failed");
                }
                Err(error)
            }
        }
    }
}

impl Pass<'_> {
    fn work(&mut self) -> Result<(), MaintenanceError> {
        self.clear_away()?;
        for _ in 0..JOBS_MAX {
            self.check()?;
            self.keep_room();
            let Some(mut plan) = self.choose()? else {
                break;
            };
            let done = loop {
                let done = self.give_up(&plan);
                let Err(error) = &done else {
                    break done;
                };
                // What it had written takes space that may be what it lacks.
                self.clear_away()?;
                // And one source always fits into what is set aside.
                match plan.oldest_alone() {
                    Some(smaller) if error.is_full() => plan = smaller,
                    _ => break done,
                }
            };
            match done {
                Err(MaintenanceError::Damaged(corruption)) => {
                    let file = corruption.file.clone();
                    let sources = plan.sources();
                    let bad = sources.filter(|segment| segment.name == file);
                    self.damaged.extend(bad.map(|segment| segment.base));
                    let damage = MaintenanceError::Damaged(corruption);
                    self.damage.get_or_insert(damage);
                }
                done => done?,
            }
        }
        for stripe in self.engine.index.stripes() {
            stripe.lock().shrink();
        }
        match self.damage.take() {
            None => Ok(()),
            Some(damage) => Err(damage),
        }
    }

    /// Sets aside what it takes to compact a store on a full disk, as soon as there may be something
    /// to compact. Where there is no room for that the next pass tries again.
    fn keep_room(&self) {
        let log = &self.engine.log;
        let sources = log.sources();
        if sources.log.is_empty() && sources.compacted.is_empty() {
            return;
        }
        if let Err(error) = log.keep_spare() {
            tracing::debug!(%error, "no room could be set aside for a compaction");
        }
        let mut room = self.engine.maintenance.room.lock();
        let wanted = self.engine.settings.segment_bytes / 8 / ROOM_PART;
        let missing = wanted.saturating_sub(*room);
        if missing > 0 && log.try_room(missing) {
            *room = wanted;
        }
    }

    /// Whether a record of this segment was found that cannot be read.
    fn is_damaged(&self, segment: &Segment) -> bool {
        self.damaged.contains(&segment.base)
    }

    /// Fails once the store is being closed or can't be written.
    fn check(&self) -> Result<(), MaintenanceError> {
        if self.engine.maintenance.is_stopped() {
            return Err(Unavailable::Closed.into());
        }
        Ok(self.engine.check_writable()?)
    }

    /// Takes the time that writing so many bytes may take.
    fn wrote(&self, bytes: u64) -> Result<(), MaintenanceError> {
        if self.pace == Pace::Leisurely {
            let rate = self.engine.settings.maintenance_bytes_per_second;
            let micros = bytes.saturating_mul(1_000_000) / rate;
            let pause = Duration::from_micros(micros);
            self.engine.maintenance.pause(pause);
        }
        self.check()
    }

    /// The same for reading.
    fn read(&self, bytes: u64) -> Result<(), MaintenanceError> {
        self.wrote(bytes / READING_PARTS)
    }
}
