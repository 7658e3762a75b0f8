//! Options of a store.
//!
//! [`Options`] collects what the user sets and checks nothing. [`Options::validate`] checks all of
//! it at once and makes [`Settings`]: plain numbers in the units that the engine counts in, each
//! within its [limits](crate::limits) and all of them consistent. The engine sees only settings and
//! checks none of them again. Options of a single claim are the same in small: [`ClaimOptions`]
//! becomes a `ResolvedClaim`.

mod claim;
mod error;

use std::sync::Arc;
use std::time::Duration;

use self::claim::{lease_ms, retention_ms};
use crate::clock::{Clock, SystemClock};
use crate::limits::{
    CHECKPOINT_BYTES_MAX, CLOCK_JUMP_DEFAULT, KEY_PART_BYTES_DEFAULT, KEY_PART_BYTES_MAX,
    PENDING_DEFAULT, PENDING_MAX, PREPARED_SEGMENTS_DEFAULT, PREPARED_SEGMENTS_MAX,
    PRINCIPAL_BYTES_MAX, RESERVED_RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_DEFAULT,
    RESPONSE_BYTES_MAX, RETENTION_DEFAULT, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN, SEGMENT_BYTES_STEP, STRIPES_DEFAULT, STRIPES_MAX, WAITERS_DEFAULT,
    WAITERS_MAX, WAITERS_PER_KEY_DEFAULT,
};
use crate::log::record::HEAD_BYTES;
use crate::log::segment::HEADER_BYTES;

pub(crate) use self::claim::ResolvedClaim;
pub use self::claim::{ClaimOptions, ClaimOptionsError};
pub use self::error::OptionsError;

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
    /// For this long after the claim or the last [renewal](crate::Operation::renew): 1 millisecond
    /// to 3,653 days. For owners that may hang, and for work that is handed on as a
    /// [`Ticket`](crate::Ticket).
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
    segment_bytes: u64,
    prepared_segments: usize,
    key_part_bytes_max: usize,
    /// `None`: the default, or what a segment holds.
    response_bytes_max: Option<usize>,
    /// `None`: the default, or what a segment holds.
    reserved_response_bytes: Option<usize>,
    stripes: usize,
    pending_max: usize,
    waiters_per_key_max: usize,
    waiters_max: usize,
    max_clock_jump: Duration,
    allow_clock_jump: bool,
    recovery: Recovery,
    allow_network_file_system: bool,
    lock_wait: Duration,
    restored: bool,
    clock: Option<Arc<dyn Clock>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            lease: Lease::default(),
            retention: RETENTION_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            prepared_segments: PREPARED_SEGMENTS_DEFAULT,
            key_part_bytes_max: KEY_PART_BYTES_DEFAULT,
            response_bytes_max: None,
            reserved_response_bytes: None,
            stripes: STRIPES_DEFAULT,
            pending_max: PENDING_DEFAULT,
            waiters_per_key_max: WAITERS_PER_KEY_DEFAULT,
            waiters_max: WAITERS_DEFAULT,
            max_clock_jump: CLOCK_JUMP_DEFAULT,
            allow_clock_jump: false,
            recovery: Recovery::default(),
            allow_network_file_system: false,
            lock_wait: Duration::ZERO,
            restored: false,
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

    /// The source of time. Default: a [`SystemClock`].
    ///
    /// With a [`ManualClock`](crate::ManualClock) a test can let leases and results expire without
    /// sleeping.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }
}

/// Options that were checked, in the engine's units.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) durability: Durability,
    /// `WHILE_ALIVE` for none.
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) stripes: usize,
    pub(crate) prepared_segments: usize,
    pub(crate) key_part_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
    pub(crate) reserved_response_bytes: usize,
    pub(crate) pending_max: usize,
    pub(crate) waiters_per_key_max: usize,
    pub(crate) waiters_max: usize,
    pub(crate) max_clock_jump_ms: u64,
    pub(crate) allow_clock_jump: bool,
    pub(crate) recovery: Recovery,
    pub(crate) allow_network_file_system: bool,
    pub(crate) lock_wait: Duration,
    pub(crate) restored: bool,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Options {
    /// Checks every option and works out those that depend on others.
    pub(crate) fn validate(&self) -> Result<Settings, OptionsError> {
        let segment_bytes = self.checked_segment_bytes()?;
        let key_part_bytes_max = in_range(
            "max_key_part",
            self.key_part_bytes_max,
            1,
            KEY_PART_BYTES_MAX,
        )?;
        let key_bytes_max = 3 * key_part_bytes_max;
        let response_bytes_max = self.checked_response_bytes(segment_bytes, key_bytes_max)?;
        let reserved_response_bytes =
            self.checked_reserved_bytes(segment_bytes, key_bytes_max, response_bytes_max)?;
        let stripes = in_range("stripes", self.stripes, 1, STRIPES_MAX)?;
        if !stripes.is_power_of_two() {
            return Err(OptionsError::NotPowerOfTwo {
                option: "stripes",
                value: stripes as u64,
            });
        }
        Ok(Settings {
            durability: self.durability,
            lease_ms: lease_ms(self.lease)?,
            retention_ms: retention_ms(self.retention)?,
            segment_bytes,
            stripes,
            prepared_segments: in_range(
                "prepared_segments",
                self.prepared_segments,
                1,
                PREPARED_SEGMENTS_MAX,
            )?,
            key_part_bytes_max,
            response_bytes_max,
            reserved_response_bytes,
            pending_max: in_range("max_pending", self.pending_max, 1, PENDING_MAX)?,
            waiters_per_key_max: in_range(
                "max_waiters_per_key",
                self.waiters_per_key_max,
                0,
                WAITERS_MAX,
            )?,
            waiters_max: in_range("max_waiters", self.waiters_max, 0, WAITERS_MAX)?,
            max_clock_jump_ms: u64::try_from(self.max_clock_jump.as_millis()).unwrap_or(u64::MAX),
            allow_clock_jump: self.allow_clock_jump,
            recovery: self.recovery,
            allow_network_file_system: self.allow_network_file_system,
            lock_wait: self.lock_wait,
            restored: self.restored,
            clock: match &self.clock {
                Some(clock) => Arc::clone(clock),
                None => Arc::new(SystemClock::new()),
            },
        })
    }

    fn checked_segment_bytes(&self) -> Result<u64, OptionsError> {
        let (option, value) = ("segment_size", self.segment_bytes);
        let (min, max) = (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        if !(min..=max).contains(&value) {
            return Err(OptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            });
        }
        if !value.is_multiple_of(SEGMENT_BYTES_STEP) {
            let of = SEGMENT_BYTES_STEP;
            return Err(OptionsError::NotMultiple { option, value, of });
        }
        Ok(value)
    }

    fn checked_response_bytes(
        &self,
        segment_bytes: u64,
        key_bytes_max: usize,
    ) -> Result<usize, OptionsError> {
        let Some(set) = self.response_bytes_max else {
            let fits = LARGEST.response_bytes_that_fit(segment_bytes, key_bytes_max);
            return Ok(RESPONSE_BYTES_DEFAULT.min(fits));
        };
        in_range("max_response", set, 0, RESPONSE_BYTES_MAX)?;
        LARGEST.check("max_response", set, segment_bytes, key_bytes_max)?;
        Ok(set)
    }

    fn checked_reserved_bytes(
        &self,
        segment_bytes: u64,
        key_bytes_max: usize,
        response_bytes_max: usize,
    ) -> Result<usize, OptionsError> {
        let Some(set) = self.reserved_response_bytes else {
            let fits = RESERVED.response_bytes_that_fit(segment_bytes, key_bytes_max);
            return Ok(RESERVED_RESPONSE_BYTES_DEFAULT
                .min(response_bytes_max)
                .min(fits));
        };
        if set > response_bytes_max {
            return Err(OptionsError::ReservedAboveMax {
                reserved_response: set as u64,
                max_response: response_bytes_max as u64,
            });
        }
        RESERVED.check("reserved_response", set, segment_bytes, key_bytes_max)?;
        Ok(set)
    }
}

/// How many records of a kind a segment must hold, so that the end of it which is left unused,
/// since the next record does not fit, stays a small share.
struct Fit {
    records: u64,
    /// What a record, with its share of the segment's header, takes besides key and response.
    overhead_bytes: u64,
}

/// Records with the largest response.
const LARGEST: Fit = Fit {
    records: 2,
    overhead_bytes: 16 << 10,
};
/// Records that room is set aside for.
const RESERVED: Fit = Fit {
    records: 4,
    overhead_bytes: 8 << 10,
};

impl Fit {
    /// The smallest segment for records with a response of this size.
    const fn segment_bytes_needed(&self, response_bytes: u64, key_bytes_max: usize) -> u64 {
        let record_bytes = response_bytes + key_bytes_max as u64 + self.overhead_bytes;
        (self.records * record_bytes).next_multiple_of(SEGMENT_BYTES_STEP)
    }

    /// The largest response for segments of this size; 0 where none fits.
    fn response_bytes_that_fit(&self, segment_bytes: u64, key_bytes_max: usize) -> usize {
        let besides = key_bytes_max as u64 + self.overhead_bytes;
        let bytes = (segment_bytes / self.records).saturating_sub(besides);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn check(
        &self,
        option: &'static str,
        value: usize,
        segment_bytes: u64,
        key_bytes_max: usize,
    ) -> Result<(), OptionsError> {
        let needed_bytes = self.segment_bytes_needed(value as u64, key_bytes_max);
        if needed_bytes <= segment_bytes {
            return Ok(());
        }
        Err(OptionsError::SegmentTooSmall {
            option,
            value: value as u64,
            fits: self.response_bytes_that_fit(segment_bytes, key_bytes_max) as u64,
            segment_bytes,
            needed_bytes,
        })
    }
}

// The overheads cover what they stand for, and even the smallest segment holds the smallest
// records.
const _: () = {
    let header = HEADER_BYTES as u64;
    let besides = (HEAD_BYTES + PRINCIPAL_BYTES_MAX + CHECKPOINT_BYTES_MAX) as u64;
    let key_bytes_max = 3 * KEY_PART_BYTES_MAX;
    assert!(LARGEST.records * (LARGEST.overhead_bytes - besides) >= header);
    assert!(RESERVED.records * (RESERVED.overhead_bytes - besides) >= header);
    assert!(LARGEST.segment_bytes_needed(0, key_bytes_max) <= SEGMENT_BYTES_MIN);
    assert!(RESERVED.segment_bytes_needed(0, key_bytes_max) <= SEGMENT_BYTES_MIN);
    // The largest responses fit into the largest segments.
    let largest = RESPONSE_BYTES_MAX as u64;
    assert!(LARGEST.segment_bytes_needed(largest, key_bytes_max) <= SEGMENT_BYTES_MAX);
};

/// The value, if it is from `min` to `max`.
fn in_range(
    option: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<usize, OptionsError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(OptionsError::OutOfRange {
        option,
        value: value as u64,
        min: min as u64,
        max: max as u64,
    })
}

#[cfg(test)]
mod tests;
