//! Opening and closing.
//!
//! Order of an open: lock the directory, repair the log, check the clock, rebuild the index, advance
//! the epoch in META durably, prepare a segment of the new epoch. Nothing is answered before all
//! of that is durable. Every pending record found belongs to a process that is gone, so its key is
//! interrupted at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tracing::field::Empty;

use crate::clock::StoreTime;
use crate::engine::maintenance::Maintenance;
use crate::engine::outbox::Queue;
use crate::engine::places::Places;
use crate::engine::{Engine, Opened, rebuild};
use crate::error::{ClaimError, Unavailable};
use crate::fs::Storage;
use crate::fs::lock::DirectoryLock;
use crate::index::{Index, Phase};
use crate::log::position;
use crate::log::prepare::Zeroing;
use crate::log::record::words_for;
use crate::log::recover::{self, Recovered};
use crate::log::{Log, LogParts};
use crate::mem::ForkMark;
use crate::open_error::OpenError;
use crate::options::{Durability, Recovery, Settings};
use crate::secret::{DOWNSTREAM, HashSecret, INDEX};
use crate::stats::Counters;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{self, AtomicU64, AtomicUsize, Condvar, Mutex, mutation};
use crate::timer::{self, Timer};

/// How far ahead a restored copy's epochs begin: the original may have been opened this often since.
const RESTORED_EPOCHS: u64 = 1 << 20;

/// Opens a store on `storage`. `lock` keeps others out for as long as the engine lives.
pub(crate) fn start(
    storage: Arc<dyn Storage>,
    settings: Settings,
    path: &Path,
    lock: Option<DirectoryLock>,
) -> Result<Opened, OpenError> {
    let span = tracing::info_span!(
        "open",
        path = %path.display(),
        created = Empty,
        clean = Empty,
        epoch = Empty,
        completed = Empty,
        interrupted = Empty,
    );
    let _entered = span.enter();
    let begun = Instant::now();
    let wall_ms = settings.clock.wall_ms();
    let salvage = settings.recovery == Recovery::Salvage;
    let recovered = recover::recover(storage.as_ref(), salvage, wall_ms)
        .map_err(|error| OpenError::from_recovery(path, error))?;
    let Recovered {
        mut meta,
        segments,
        side_cars,
        members,
        log_end,
        previous,
        high_water_ms,
        mut report,
    } = recovered;
    check_clock(&settings, wall_ms, high_water_ms)?;
    let time = Arc::new(StoreTime::start(Arc::clone(&settings.clock), high_water_ms));

    let secret = HashSecret::derive(&meta.meta().secret, INDEX);
    let index = Index::new(settings.stripes);
    let rebuilt = rebuild::rebuild(&index, &secret, &segments, side_cars)
        .map_err(|error| OpenError::from_recovery(path, error))?;

    // A snapshot is a copy whose original has gone on, whether its opener says so or not.
    let restored = settings.restored || meta.meta().snapshot;
    // One for compacted files and, behind it, one for the log.
    let epochs = if restored { RESTORED_EPOCHS } else { 2 };
    let newest = position::epoch_of(log_end).max(meta.meta().epoch);
    let epoch = newest
        .checked_add(epochs)
        .filter(|epoch| *epoch <= position::EPOCH_MAX)
        .ok_or(OpenError::EpochsExhausted)?;
    let now_ms = time.now_ms();
    meta.update(|meta| {
        meta.epoch = epoch;
        meta.clean = false;
        meta.snapshot = false;
        meta.members = members;
        // All of it was made durable just now, so what is missing from it later is damage.
        meta.watermark = log_end;
        meta.high_water_ms = meta.high_water_ms.max(high_water_ms).max(now_ms);
        if restored {
            meta.restored_at_ms = now_ms;
        }
    })
    .map_err(|source| OpenError::io(path, source))?;
    let identity = meta.meta().clone();

    let pending = index
        .stripes()
        .map(|stripe| stripe.lock().live_entries().count())
        .sum::<usize>();

    let log = Log::start(LogParts {
        storage,
        meta,
        time: Arc::clone(&time),
        recovered: segments,
        previous,
        segment_bytes: settings.segment_bytes,
        prepared_segments: settings.prepared_segments,
        disk_bytes_max: settings.disk_bytes_max,
        zeroing: match settings.durability {
            Durability::Sync => Zeroing::Ahead,
            Durability::Buffered => Zeroing::WithRecords,
        },
        slop: slop(&settings),
    })
    .map_err(|source| OpenError::io(path, source))?;
    report.interrupted = pending as u64;
    report.duration = begun.elapsed();
    let stripes = index.stripes();
    let completed: usize = stripes.map(|stripe| stripe.lock().completed_count()).sum();
    span.record("created", report.created);
    span.record("clean", report.clean);
    span.record("epoch", epoch);
    span.record("completed", completed);
    span.record("interrupted", report.interrupted);
    tracing::info!(%report, "opened");
    let queue = Queue::new(settings.outbox_max, rebuilt.messages);
    let places = Places::new(&settings, &identity.secret);
    let engine = Engine {
        index,
        log: Arc::new(log),
        time,
        settings,
        secret,
        downstream_secret: HashSecret::derive(&identity.secret, DOWNSTREAM),
        store_id: identity.store_id,
        restored_at_ms: identity.restored_at_ms,
        fork_mark: Arc::new(ForkMark::new()),
        pending: AtomicUsize::new(pending),
        versions: AtomicUsize::new(rebuilt.versions),
        queue,
        places,
        waiters: AtomicUsize::new(0),
        next_waiter: AtomicU64::new(0),
        timer: Timer::default(),
        counters: Counters::default(),
        report,
        path: path.to_path_buf(),
        lock: Mutex::new(Held {
            stage: Stage::Open,
            lock,
        }),
        closed: Condvar::new(),
        maintenance: Maintenance::default(),
    };
    engine.count_places();
    let opened = Opened::new(Arc::new(engine));
    if opened.settings.maintenance {
        Maintenance::start(&opened.0).map_err(|source| OpenError::io(path, source))?;
    }
    Ok(opened)
}

/// The directory's lock, and how far the store is closed.
#[derive(Debug)]
pub(crate) struct Held {
    stage: Stage,
    lock: Option<DirectoryLock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// This thread is at it.
    Closing(ThreadId),
    Closed,
}

#[cfg(all(test, oncekey_loom))]
impl Held {
    /// Of an open store without a directory.
    pub(crate) fn modelled() -> Self {
        Self {
            stage: Stage::Open,
            lock: None,
        }
    }
}

/// Ends a close, also one that unwinds.
struct Closing<'a>(&'a Engine);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut held = self.0.lock.lock();
        drop(held.lock.take());
        held.stage = Stage::Closed;
        if !mutation("end_of_close_not_told") {
            self.0.closed.notify_all();
        }
    }
}

/// The largest record that is appended on a promise alone: a claim that carries a checkpoint, or a
/// completion of the reserved size.
fn slop(settings: &Settings) -> u64 {
    let key_bytes = 3 * settings.key_part_bytes_max;
    let principal = crate::limits::PRINCIPAL_BYTES_MAX;
    let claim = words_for(key_bytes, 0, crate::limits::CHECKPOINT_BYTES_MAX, 0);
    let completion = words_for(key_bytes, principal, 0, settings.reserved_response_bytes);
    claim.max(completion)
}

/// One boot with a wrong clock must not expire everything.
fn check_clock(settings: &Settings, wall_ms: u64, high_water_ms: u64) -> Result<(), OpenError> {
    let limit_ms = high_water_ms.saturating_add(settings.max_clock_jump_ms);
    if high_water_ms == 0 || settings.allow_clock_jump || wall_ms <= limit_ms {
        return Ok(());
    }
    Err(OpenError::ClockJumped {
        wall_ms,
        high_water_ms,
        max_clock_jump_ms: settings.max_clock_jump_ms,
    })
}

impl Engine {
    /// Ends the store: every guard is interrupted, transitions under way are finished, everything
    /// is synced, the directory is unlocked. Later calls give `Closed`.
    pub(crate) fn close(&self) -> Result<(), ClaimError> {
        self.check_process()?;
        if !self.begin_close() {
            return Ok(());
        }
        let closing = Closing(self);
        self.maintenance.stop();
        for stripe in self.index.stripes() {
            stripe.lock().closed = !mutation("claims_go_on_after_a_close");
        }
        for stripe in self.index.stripes() {
            let mut round = 0;
            while stripe.lock().is_changing() && !mutation("closed_while_changing") {
                round += 1;
                sync::relax(round);
            }
            let waiters: Vec<_> = {
                let mut stripe = stripe.lock();
                stripe
                    .live_entries_mut()
                    .map(|live| {
                        live.phase = Phase::Interrupted;
                        live.take_waiters()
                    })
                    .collect()
            };
            if !mutation("close_wakes_nobody") {
                for list in waiters {
                    list.wake();
                }
            }
        }
        self.queue.close();
        self.timer.stop();
        let closed = self.log.close();
        drop(closing);
        closed.map_err(|source| {
            ClaimError::Unavailable(Unavailable::Poisoned {
                file: self.path.display().to_string(),
                source: Arc::new(source),
            })
        })
    }

    /// Whether the caller is the one to close. A second close returns when the first is done, unless
    /// the first waits for it: a waker may close the store within a close, on the same thread or on
    /// one that the first will join.
    fn begin_close(&self) -> bool {
        let mut held = self.lock.lock();
        let this_thread = thread::current().id();
        loop {
            match held.stage {
                Stage::Open => {
                    held.stage = Stage::Closing(this_thread);
                    return true;
                }
                Stage::Closing(thread) if thread == this_thread || timer::is_own_thread() => {
                    return false;
                }
                Stage::Closing(_) if mutation("second_close_does_not_wait") => return false,
                Stage::Closing(_) => self.closed.wait(&mut held),
                Stage::Closed => return false,
            }
        }
    }

    /// Whether the store was closed, or is being closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock.lock().stage != Stage::Open
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_forked() {
            // The threads and the state of the locks belong to the parent: leave them alone.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        if mutation("dropped_store_left_open") {
            return;
        }
        if let Err(error) = self.close() {
            tracing::error!(%error, "the store could not be closed properly");
        }
    }
}
