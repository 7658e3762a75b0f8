//! Options of a store.
//!
//! [`Options`] collects what the user sets and checks nothing. `Options::validate` checks all of
//! it at once and makes [`Settings`]: plain numbers in the units that the engine counts in, each
//! within its [limits](crate::limits) and all of them consistent. The engine sees only settings and
//! checks none of them again. Options of a single claim are the same in small: [`ClaimOptions`]
//! becomes a `ResolvedClaim`.

mod claim;
mod error;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::limits::{
    CLOCK_JUMP_DEFAULT, KEY_PART_BYTES_DEFAULT, MAINTENANCE_RATE_DEFAULT, PENDING_DEFAULT,
    PREPARED_SEGMENTS_DEFAULT, RETENTION_DEFAULT, SEGMENT_BYTES_DEFAULT, STRIPES_DEFAULT,
    WAITERS_DEFAULT, WAITERS_PER_KEY_DEFAULT,
};

pub(crate) use self::claim::ResolvedClaim;
pub use self::claim::{ClaimOptions, ClaimOptionsError};
pub use self::error::OptionsError;
pub(crate) use self::settings::Settings;

/// What an acknowledged write survives.
///
/// "Acknowledged" means that the call has returned without an error. Whichever level a record was
/// written at, a caller at `Sync` who meets it waits until it is durable: an answer is never weaker
/// than the level of the one who gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// The death of the process: `kill -9`, a panic, the out-of-memory killer.
    ///
    /// Costs a copy in memory. After a power loss or a crash of the kernel the last moments may be
    /// missing: a claim that was lost runs again, as attempt 1 and without a warning.
    Buffered,
    /// Power loss and a crash of the kernel, as well as the death of the process. The default.
    ///
    /// Costs a wait for the disk, which all who wait at the same time share.
    #[default]
    Sync,
}

/// How long the owner of a pending key is presumed alive.
///
/// Whoever claims the key after that takes it over and is told so
/// ([`Claim::Interrupted`](crate::Claim::Interrupted)). A lease is measured by the monotonic clock,
/// so setting the wall clock does not end one, and does not outlast the process: whatever its
/// lease, a key whose owner's process is gone is interrupted as soon as the store is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Lease {
    /// Until the owner completes, releases or drops its guard, or its process dies. The default.
    ///
    /// An embedded store sees all of these, so nothing has to be guessed and a slow owner is never
    /// run over. The exception is an owner that hangs, or leaks its guard: it keeps the key until
    /// the process ends or an operator calls [`Store::interrupt`](crate::Store::interrupt).
    #[default]
    WhileAlive,
    /// For this long after the guard was handed out or last
    /// [renewed](crate::Operation::renew): 1 millisecond to 3,653 days. For owners that may hang,
    /// and for work that is handed on as a [`Ticket`](crate::Ticket).
    ///
    /// Fractions of a millisecond are rounded up. Zero is an error; it means neither "for ever" nor
    /// "at once".
    For(Duration),
}

/// What opening a store does about durable records that can't be read.
///
/// A write that a crash cut short at the end of the log is not that: it was never acknowledged, and
/// every open cuts it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Recovery {
    /// Nothing is opened and nothing changed; the error names the files, the places and what is
    /// lost. The default: an operation whose record is lost could run a second time.
    #[default]
    Refuse,
    /// What can't be read is given up and listed in the
    /// [recovery report](crate::Store::recovery_report); a copy of each damaged file is kept. Keys
    /// whose newest record is lost are answered as if they had not been used since the one before.
    Salvage,
}

/// Options of a store: a builder that ends in [`open`](Self::open).
///
/// Every option has a default that is safe, so `Options::new().open(directory)` will do, and
/// [`Store::open`](crate::Store::open) is short for it. All are checked together when the store is
/// opened; what they can be set to is listed in [`limits`](crate::limits). None is stored: a
/// directory can be opened with other options each time, without losing anything that it holds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use oncekey::{Durability, Options};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Options::new()
///     .durability(Durability::Buffered)
///     .retention(Duration::from_secs(7 * 24 * 60 * 60))
///     .lock_wait(Duration::from_secs(30))
///     .open(dir.path())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a store is opened with them"]
pub struct Options {
    durability: Durability,
    lease: Lease,
    retention: Duration,
    version_retention: Duration,
    segment_bytes: u64,
    prepared_segments: usize,
    key_part_bytes_max: usize,
    /// `None`: the default, or what a segment holds.
    response_bytes_max: Option<usize>,
    /// `None`: the default, or what a segment holds.
    reserved_response_bytes: Option<usize>,
    stripes: usize,
    pending_max: usize,
    outbox_max: usize,
    keys_max: Option<usize>,
    keys_per_scope_max: Option<usize>,
    disk_bytes_max: Option<u64>,
    abandon_after: Option<Duration>,
    waiters_per_key_max: usize,
    waiters_max: usize,
    max_clock_jump: Duration,
    allow_clock_jump: bool,
    recovery: Recovery,
    allow_network_file_system: bool,
    lock_wait: Duration,
    restored: bool,
    maintenance: bool,
    maintenance_bytes_per_second: u64,
    clock: Option<Arc<dyn Clock>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            lease: Lease::default(),
            retention: RETENTION_DEFAULT,
            version_retention: crate::limits::VERSION_RETENTION_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            prepared_segments: PREPARED_SEGMENTS_DEFAULT,
            key_part_bytes_max: KEY_PART_BYTES_DEFAULT,
            response_bytes_max: None,
            reserved_response_bytes: None,
            stripes: STRIPES_DEFAULT,
            pending_max: PENDING_DEFAULT,
            outbox_max: crate::limits::OUTBOX_DEFAULT,
            keys_max: None,
            keys_per_scope_max: None,
            disk_bytes_max: None,
            abandon_after: None,
            waiters_per_key_max: WAITERS_PER_KEY_DEFAULT,
            waiters_max: WAITERS_DEFAULT,
            max_clock_jump: CLOCK_JUMP_DEFAULT,
            allow_clock_jump: false,
            recovery: Recovery::default(),
            allow_network_file_system: false,
            lock_wait: Duration::ZERO,
            restored: false,
            maintenance: true,
            maintenance_bytes_per_second: MAINTENANCE_RATE_DEFAULT,
            clock: None,
        }
    }
}

/// # Promises: what is kept, how safely and for how long
impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What an acknowledged write survives. Default: [`Durability::Sync`].
    ///
    /// A single claim or completion can ask for another level. That of the store also decides how
    /// new segments are prepared, so make it the one that most calls use.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long the owner of a key is presumed alive. Default: [`Lease::WhileAlive`].
    ///
    /// A single claim can ask for another lease.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// How long a result answers, counted from completion: 1 second to 3,653 days. Default: 24
    /// hours.
    ///
    /// It should outlast every retry of every client, queues and night-long outages included; after
    /// it the key is free and a late retry runs again. A single claim or completion can ask for
    /// another time. Pending and interrupted keys are kept until they are resolved, however long
    /// that takes.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long an entity's version is kept from when it was last set: 1 second to 3,653 days, 365 days
    /// by default. Longer than any event can come late: afterwards the entity counts as never seen.
    pub fn version_retention(mut self, retention: Duration) -> Self {
        self.version_retention = retention;
        self
    }

    /// How long an operation may be taken up again after it was first claimed: 1 second to 3,653
    /// days. Default: no limit.
    ///
    /// A key that is interrupted then is *abandoned*: nobody gets it as a new attempt any more, since
    /// what protects a repetition (a provider that still knows the downstream key) may be gone. It is
    /// not absent either. A claim gets
    /// [`ClaimError::Abandoned`](crate::ClaimError::Abandoned), the key stays among the
    /// [interrupted](crate::Store::interrupted) ones, and it is free again when somebody has found
    /// out what became of it and [forgets](crate::Store::forget) it by force, or [reconciles](crate::Store::reconcile) it. An owner at work is not
    /// affected, and may complete however late.
    pub fn abandon_after(mut self, age: Duration) -> Self {
        self.abandon_after = Some(age);
        self
    }
}

/// # Sizes: what fits, and the disk space it takes
impl Options {
    /// Bytes of each of a key's parts that the store takes: 1 to 1,024. Default: 255.
    ///
    /// A longer key is [an error](crate::KeyError::TooLong). Lowering the limit loses nothing, but
    /// what is stored under longer keys can't be asked for until it is raised again.
    pub fn max_key_part(mut self, bytes: usize) -> Self {
        self.key_part_bytes_max = bytes;
        self
    }

    /// Bytes of a response that the store keeps: up to 16 MiB. Default: 1 MiB.
    ///
    /// A segment must hold two of the largest records. Where this is not set, and the default does
    /// not fit, it is as much as the [segment size](Self::segment_size) allows. Where it is set and
    /// does not fit, the store does not open.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.response_bytes_max = Some(bytes);
        self
    }

    /// Bytes of a response for which every claim sets room aside, so that completing with no more
    /// than that succeeds even when the disk is full: up to [`max_response`](Self::max_response).
    /// Default: 4 KiB.
    ///
    /// The room costs no memory and is given back on completion; with many keys pending it is what
    /// the disk must have free. A segment must hold four records of this size. Where this is not
    /// set, it is at most what fits, and at most the largest response.
    pub fn reserved_response(mut self, bytes: usize) -> Self {
        self.reserved_response_bytes = Some(bytes);
        self
    }

    /// Bytes of a segment of the log: 64 KiB to 64 MiB, a multiple of 4,096. Default: 64 MiB.
    ///
    /// Space is taken from the disk and given back in whole segments. A store takes at least two:
    /// the one being written, and those [prepared ahead](Self::prepared_segments). Segments that
    /// are there already keep their size.
    pub fn segment_size(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Segments kept ready ahead of the one being written: 1 to 64. Default: 1.
    ///
    /// More of them ride out longer bursts of writing at the speed of memory; each takes its size
    /// in disk space and page cache.
    pub fn prepared_segments(mut self, count: usize) -> Self {
        self.prepared_segments = count;
        self
    }
}

/// # Limits: how much may be stored
///
/// Whoever comes to one gets [`ClaimError::LimitReached`](crate::ClaimError::LimitReached) for a new
/// claim. Nothing that is stored is evicted for it; replays go on, and so do completions, renewals
/// and releases of keys that are claimed already. A store that holds more than a limit that was
/// lowered opens, and takes nothing new.
impl Options {
    /// Keys that may exist: 1 to 4,294,967,295. Default: no limit.
    ///
    /// A key exists from its first claim on: while it is claimed, pending, interrupted or completed,
    /// until it is released or forgotten, or its expired result is reclaimed. An expired result
    /// counts as long as it has not been reclaimed, but not against a claim on the same key, which
    /// takes its place. Of any number of callers who come for the last place exactly one gets it.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.keys_max = Some(keys);
        self
    }

    /// Keys of one scope that may exist: 1 to 4,294,967,295. Default: no limit.
    ///
    /// Keys count as for [`max_keys`](Self::max_keys). Scopes that are not full are not affected by
    /// one that is. The count takes 16 to 39 bytes of memory for each scope that has keys, and
    /// only where this is set; opening then reads the first page of every completed record, to
    /// find its scope.
    pub fn max_keys_per_scope(mut self, keys: usize) -> Self {
        self.keys_per_scope_max = Some(keys);
        self
    }

    /// Bytes that the log's segments may take on the disk: at least two
    /// [segments](Self::segment_size). Default: no limit, but for the disk.
    ///
    /// Counted are the files of all segments, whole: those in use, the one being written and those
    /// [prepared ahead](Self::prepared_segments). No new segment is made that would take the log
    /// over the limit. A claim that finds no room in those that exist is then refused, by an error
    /// other than that of a full disk; room that was set aside for completions is there all the
    /// same. A completion that is larger than what was set aside may be
    /// [refused](crate::WriteError::LimitReached) as well, with the guard still held.
    ///
    /// Counted is also the file of a segment's size that is set aside for
    /// [maintenance](Self::maintenance) once it may have something to copy: so copies stay within the
    /// limit, too. Under a limit of less than four segments, and where the log was at its limit before
    /// that file was made, none is set aside; then copies may exceed the limit by a segment, until
    /// what they were made of is gone.
    pub fn max_disk_bytes(mut self, bytes: u64) -> Self {
        self.disk_bytes_max = Some(bytes);
        self
    }

    /// Whether a thread of the store gives disk space and memory back while claims go on. Default:
    /// yes.
    ///
    /// It removes segments in which nothing is live, and copies what is live out of sparse ones. It
    /// takes no part in claims and keeps no store open; a failure shows in
    /// [`Stats::maintenance`](crate::Stats::maintenance) and stops nothing. Without it the log only
    /// grows, unless [`Store::maintain`](crate::Store::maintain) is called.
    pub fn maintenance(mut self, enabled: bool) -> Self {
        self.maintenance = enabled;
        self
    }

    /// Bytes a second that the maintaining thread may write: 64 KiB to 16 GiB. Default: 64 MiB.
    ///
    /// What it reads counts a quarter. Where results come faster than they can be copied, more disk
    /// is used for a while. [`Store::maintain`](crate::Store::maintain) is not held back.
    pub fn maintenance_rate(mut self, bytes_per_second: u64) -> Self {
        self.maintenance_bytes_per_second = bytes_per_second;
        self
    }
}

/// # Concurrency: how many at once
impl Options {
    /// Keys that may be pending or interrupted at once: 1 to 100 million. Default: 1 million.
    ///
    /// These are held in memory whole, a few hundred bytes each. A claim over the limit is
    /// [an error](crate::ClaimError::TooManyPending), and nothing is ever evicted. Keys found
    /// pending or interrupted when the store is opened count, but never prevent opening it.
    pub fn max_pending(mut self, keys: usize) -> Self {
        self.pending_max = keys;
        self
    }

    /// Messages that the [outbox](crate::outbox) holds, dead letters included: 0 to 10 million. Default:
    /// 100,000. Beyond it completions with messages get
    /// [`WriteError::OutboxFull`](crate::WriteError::OutboxFull). Each takes about a hundred bytes of
    /// memory.
    pub fn max_outbox(mut self, messages: usize) -> Self {
        self.outbox_max = messages;
        self
    }

    /// Callers that may wait for one key at once, up to 16,777,216. Default: 1,024.
    ///
    /// One more gets [an error](crate::ClaimError::TooManyWaiters) at once. With 0 nobody waits.
    pub fn max_waiters_per_key(mut self, callers: usize) -> Self {
        self.waiters_per_key_max = callers;
        self
    }

    /// Callers that may wait for any key at once, up to 16,777,216. Default: 65,536.
    ///
    /// One more gets [an error](crate::ClaimError::TooManyWaiters) at once. With 0 nobody waits.
    pub fn max_waiters(mut self, callers: usize) -> Self {
        self.waiters_max = callers;
        self
    }

    /// Stripes of the index, each with a lock of its own: a power of two from 1 to 65,536. Default:
    /// 1,024.
    ///
    /// Locks are held for well under a microsecond, so there is little to gain above the default,
    /// but for hundreds of millions of keys: a stripe's table doubles under its lock, and more
    /// stripes make smaller tables.
    pub fn stripes(mut self, count: usize) -> Self {
        self.stripes = count;
        self
    }
}

/// # Opening: what may be in the way
impl Options {
    /// How long to wait for another process, or another store of this one, to let go of the
    /// directory. Default: not at all.
    ///
    /// For rolling deploys: the new process waits until the old one has closed its store or died.
    /// The lock is the system's and goes with its process; it is never broken because time is up.
    pub fn lock_wait(mut self, limit: Duration) -> Self {
        self.lock_wait = limit;
        self
    }

    /// What to do about durable records that can't be read. Default: [`Recovery::Refuse`].
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// Says that the directory is a snapshot or a copy put back. Default: `false`. Set it for the
    /// first open of the copy only.
    ///
    /// The copy knows nothing of what happened after it was made. So its tokens begin far above any
    /// that the original may have given out since, and a claim that says when it was
    /// [first sent](ClaimOptions::first_sent) is [too late](crate::Claim::TooLate) if its key is
    /// absent and that was before this open: the operation may have run in what the copy lacks.
    pub fn restored(mut self, restored: bool) -> Self {
        self.restored = restored;
        self
    }

    /// How far ahead of the newest time in the store the wall clock may be when it is opened.
    /// Default: 30 days.
    ///
    /// A machine that starts with its clock in the future would otherwise find every result
    /// expired, and run every retry again. Over the limit, opening is
    /// [an error](crate::OpenError::ClockJumped). Set it to more than a store is ever left closed.
    /// A wall clock that is behind is no danger: the store goes on from its newest time.
    pub fn max_clock_jump(mut self, limit: Duration) -> Self {
        self.max_clock_jump = limit;
        self
    }

    /// Opens whatever the wall clock says. Default: `false`. For the one open where the clock is
    /// known to be right and the store was closed for longer than
    /// [`max_clock_jump`](Self::max_clock_jump).
    pub fn allow_clock_jump(mut self, allow: bool) -> Self {
        self.allow_clock_jump = allow;
        self
    }

    /// Opens on a network file system too. Default: `false`.
    ///
    /// There neither locks nor mapped files can be relied on, so two processes may own one key, and
    /// acknowledged writes may be lost, without anybody noticing.
    pub fn allow_network_file_system(mut self, allow: bool) -> Self {
        self.allow_network_file_system = allow;
        self
    }

    /// The source of time. Default: a [`SystemClock`](crate::SystemClock).
    ///
    /// With a [`ManualClock`](crate::ManualClock) a test can let leases and results expire without
    /// sleeping.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }
}
