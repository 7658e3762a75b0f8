//! Options of a store and of a single claim, and their limits.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, SystemClock};
use crate::index::live::WHILE_ALIVE;
use crate::limits::{
    CLOCK_JUMP_DEFAULT, KEY_PART_BYTES_DEFAULT, KEY_PART_BYTES_MAX, LEASE_MAX, LEASE_MIN,
    PENDING_DEFAULT, PENDING_MAX, PREPARED_SEGMENTS_DEFAULT, PREPARED_SEGMENTS_MAX,
    RESERVED_RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_MAX, RETENTION_DEFAULT,
    RETENTION_MAX, RETENTION_MIN, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    STRIPES_DEFAULT, STRIPES_MAX, WAITERS_DEFAULT, WAITERS_MAX, WAITERS_PER_KEY_DEFAULT,
};

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// The death of the process: kill -9, a panic, the out-of-memory killer. Costs a memory copy. A
    /// claim lost to a power loss may run again as attempt 1.
    Buffered,
    /// Power loss and a crash of the kernel: every acknowledgement waits for a sync, which all who
    /// wait share.
    #[default]
    Sync,
}

/// How long the owner of a pending key is presumed alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lease {
    /// Until it completes, releases or drops its guard, or the process dies: a slow owner is never
    /// run over. An embedded store sees all of these, so this is the default.
    #[default]
    WhileAlive,
    /// For this long, unless renewed: for owners that may hang. 1 ms to 10 years; zero is an error,
    /// neither "for ever" nor "at once".
    For(Duration),
}

/// What an open does about durable records that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Nothing is opened or changed; the error names what is lost.
    #[default]
    Refuse,
    /// They are given up and listed in the recovery report; a copy of each damaged file is kept.
    Salvage,
}

/// Options of a store.
///
/// ```
/// use std::time::Duration;
/// use oncekey::{Durability, Options};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Options::new()
///     .durability(Durability::Buffered)
///     .retention(Duration::from_secs(7 * 24 * 3_600))
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
    stripes: usize,
    prepared_segments: usize,
    key_part_bytes_max: usize,
    response_bytes_max: Option<usize>,
    reserved_response_bytes: Option<usize>,
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
            durability: Durability::Sync,
            lease: Lease::WhileAlive,
            retention: RETENTION_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            stripes: STRIPES_DEFAULT,
            prepared_segments: PREPARED_SEGMENTS_DEFAULT,
            key_part_bytes_max: KEY_PART_BYTES_DEFAULT,
            response_bytes_max: None,
            reserved_response_bytes: None,
            pending_max: PENDING_DEFAULT,
            waiters_per_key_max: WAITERS_PER_KEY_DEFAULT,
            waiters_max: WAITERS_DEFAULT,
            max_clock_jump: CLOCK_JUMP_DEFAULT,
            allow_clock_jump: false,
            recovery: Recovery::Refuse,
            allow_network_file_system: false,
            lock_wait: Duration::ZERO,
            restored: false,
            clock: None,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $field:ident $(= $wrap:expr)?;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, $name: $type) -> Self {
                self.$field = setters!(@value $name $(, $wrap)?);
                self
            }
        )*
    };
    (@value $name:ident) => { $name };
    (@value $name:ident, $wrap:expr) => { $wrap($name) };
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// What an acknowledged write survives. Default: [`Durability::Sync`].
        durability: Durability => durability;
        /// How long an owner is presumed alive. Default: [`Lease::WhileAlive`].
        lease: Lease => lease;
        /// How long a result answers, from completion: 1 second to 10 years. Default: 24 hours.
        retention: Duration => retention;
        /// Bytes of a segment of the log: 64 KiB to 64 MiB, a multiple of 4,096. Default: 64 MiB.
        ///
        /// A store takes at least two segments of disk: one being written and those prepared ahead.
        /// Where the limits of responses were not set they are lowered to what a segment can hold.
        segment_size: u64 => segment_bytes;
        /// Stripes of the index, a power of two up to 65,536. Default: 1,024.
        stripes: usize => stripes;
        /// Segments kept ready ahead of the one being written, 1 to 64. Default: 1. More of them
        /// ride out longer bursts, each for its size in disk space and page cache.
        prepared_segments: usize => prepared_segments;
        /// Bytes of each key part, 1 to 1,024. Default: 255.
        max_key_part: usize => key_part_bytes_max;
        /// Bytes of a response, up to 16 MiB. Default: 1 MiB.
        max_response: usize => response_bytes_max = Some;
        /// Bytes of a response for which every claim sets room aside, so that its completion
        /// succeeds on a full disk. Default: 4,096, and at most the limit of a response.
        reserved_response: usize => reserved_response_bytes = Some;
        /// Keys that may be pending or interrupted at once, 1 to 100 million. Default: 1 million.
        /// A claim over it is an error; nothing is ever evicted.
        max_pending: usize => pending_max;
        /// Callers that may wait for one key. Default: 1,024.
        max_waiters_per_key: usize => waiters_per_key_max;
        /// Callers that may wait in all. Default: 65,536.
        max_waiters: usize => waiters_max;
        /// How far the wall clock may be ahead of the newest time in the store when it is opened.
        /// Default: 30 days. One boot with a wrong clock must not expire everything.
        max_clock_jump: Duration => max_clock_jump;
        /// Opens even so: the clock is right and the store was closed for long.
        allow_clock_jump: bool => allow_clock_jump;
        /// What to do about durable records that can't be read. Default: [`Recovery::Refuse`].
        recovery: Recovery => recovery;
        /// Opens on a network file system too, where neither locks nor maps can be relied on.
        allow_network_file_system: bool => allow_network_file_system;
        /// How long to wait for another process to let go of the directory, as in a rolling deploy.
        /// Default: not at all.
        lock_wait: Duration => lock_wait;
        /// The directory is a snapshot or a copy put back: its tokens begin far above those that the
        /// original may have given out since, and a claim that says when it was first sent
        /// ([`ClaimOptions::first_sent`]) gets `TooLate` if that was before now, since it may have
        /// run in what the copy does not hold. Set it for the first open only.
        restored: bool => restored;
        /// The source of time. Default: [`SystemClock`].
        clock: Arc<dyn Clock> => clock = Some;
    }

    /// Checks every option and works out those that depend on others.
    pub(crate) fn validate(&self) -> Result<Settings, OptionsError> {
        let segment = self.segment_bytes;
        in_range(
            "segment_size",
            segment,
            SEGMENT_BYTES_MIN,
            SEGMENT_BYTES_MAX,
        )?;
        if !segment.is_multiple_of(4_096) {
            return Err(OptionsError::NotAMultiple {
                option: "segment_size",
                value: segment,
                of: 4_096,
            });
        }
        in_range("stripes", self.stripes as u64, 1, STRIPES_MAX as u64)?;
        if !self.stripes.is_power_of_two() {
            let value = self.stripes as u64;
            return Err(OptionsError::NotAPowerOfTwo {
                option: "stripes",
                value,
            });
        }
        let prepared = self.prepared_segments as u64;
        in_range(
            "prepared_segments",
            prepared,
            1,
            PREPARED_SEGMENTS_MAX as u64,
        )?;
        let part = self.key_part_bytes_max;
        in_range("max_key_part", part as u64, 1, KEY_PART_BYTES_MAX as u64)?;
        in_range(
            "max_pending",
            self.pending_max as u64,
            1,
            PENDING_MAX as u64,
        )?;
        let per_key = self.waiters_per_key_max as u64;
        in_range("max_waiters_per_key", per_key, 0, WAITERS_MAX as u64)?;
        in_range(
            "max_waiters",
            self.waiters_max as u64,
            0,
            WAITERS_MAX as u64,
        )?;

        // Two of the largest records fit into a segment, and four of those that room is promised
        // for, so that what is left unused at its end stays small.
        let overhead = 3 * part as u64 + 16_384;
        let response_fits = (segment / 2).saturating_sub(overhead);
        let reserved_fits = (segment / 4).saturating_sub(3 * part as u64 + 8_192);
        let response_bytes_max = match self.response_bytes_max {
            Some(bytes) => {
                let most = (RESPONSE_BYTES_MAX as u64).min(response_fits);
                in_range("max_response", bytes as u64, 0, most)?;
                bytes
            }
            None => RESPONSE_BYTES_DEFAULT.min(response_fits as usize),
        };
        let reserved_response_bytes = match self.reserved_response_bytes {
            Some(bytes) => {
                let most = (response_bytes_max as u64).min(reserved_fits);
                in_range("reserved_response", bytes as u64, 0, most)?;
                bytes
            }
            None => RESERVED_RESPONSE_BYTES_DEFAULT
                .min(response_bytes_max)
                .min(reserved_fits as usize),
        };
        let clock = match &self.clock {
            Some(clock) => Arc::clone(clock),
            None => Arc::new(SystemClock::new()),
        };
        Ok(Settings {
            durability: self.durability,
            lease_ms: lease_ms("lease", self.lease)?,
            retention_ms: retention_ms(self.retention)?,
            segment_bytes: segment,
            stripes: self.stripes,
            prepared_segments: self.prepared_segments,
            key_part_bytes_max: part,
            response_bytes_max,
            reserved_response_bytes,
            pending_max: self.pending_max,
            waiters_per_key_max: self.waiters_per_key_max,
            waiters_max: self.waiters_max,
            max_clock_jump_ms: u64::try_from(self.max_clock_jump.as_millis()).unwrap_or(u64::MAX),
            allow_clock_jump: self.allow_clock_jump,
            recovery: self.recovery,
            allow_network_file_system: self.allow_network_file_system,
            lock_wait: self.lock_wait,
            restored: self.restored,
            clock,
        })
    }
}

/// Options that were checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) durability: Durability,
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

/// An option of a store that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The value is outside what is allowed, given the other options.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The smallest allowed.
        min: u64,
        /// The greatest allowed.
        max: u64,
    },
    /// The value is not a multiple of what it must be.
    NotAMultiple {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it must be a multiple of.
        of: u64,
    },
    /// The value is not a power of two.
    NotAPowerOfTwo {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
    },
    /// Lease or retention is out of range.
    Duration(ClaimOptionsError),
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange {
                option,
                value,
                min,
                max,
            } => {
                write!(
                    f,
                    "Options::{option} is {value}; choose from {min} to {max}"
                )
            }
            Self::NotAMultiple { option, value, of } => {
                write!(f, "Options::{option} is {value}; choose a multiple of {of}")
            }
            Self::NotAPowerOfTwo { option, value } => {
                write!(f, "Options::{option} is {value}; choose a power of two")
            }
            Self::Duration(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OptionsError {}

impl From<ClaimOptionsError> for OptionsError {
    fn from(error: ClaimOptionsError) -> Self {
        Self::Duration(error)
    }
}

/// Options of one claim; what is not set is the store's.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a claim is made with them"]
pub struct ClaimOptions {
    durability: Option<Durability>,
    lease: Option<Lease>,
    retention: Option<Duration>,
    first_sent: Option<SystemTime>,
}

impl ClaimOptions {
    /// The store's options.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// What the claim, and by default its completion, must survive.
        durability: Durability => durability = Some;
        /// How long the owner is presumed alive.
        lease: Lease => lease = Some;
        /// How long the result answers, from completion: 1 second to 10 years.
        retention: Duration => retention = Some;
        /// When the caller first sent the request. Where the key is absent and this is longer ago
        /// than the retention (or than the restore, in a restored copy), the claim is answered
        /// `TooLate` instead of running a second time.
        first_sent: SystemTime => first_sent = Some;
    }

    pub(crate) fn has_retention(&self) -> bool {
        self.retention.is_some()
    }

    pub(crate) fn resolve(&self, settings: &Settings) -> Result<ResolvedClaim, ClaimOptionsError> {
        let lease_ms = match self.lease {
            Some(lease) => lease_ms("lease", lease)?,
            None => settings.lease_ms,
        };
        let retention_ms = match self.retention {
            Some(retention) => retention_ms(retention)?,
            None => settings.retention_ms,
        };
        let first_sent_ms = self.first_sent.map(|sent| {
            let since = sent
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        let durability = self.durability.unwrap_or(settings.durability);
        Ok(ResolvedClaim {
            durability,
            lease_ms,
            retention_ms,
            first_sent_ms,
        })
    }
}

/// The options of a claim, checked and complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedClaim {
    pub(crate) durability: Durability,
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    pub(crate) first_sent_ms: Option<u64>,
}

/// A lease or retention that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimOptionsError {
    /// The duration is outside what is allowed.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
}

impl fmt::Display for ClaimOptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::OutOfRange {
            option,
            value,
            min,
            max,
        } = self;
        write!(
            f,
            "the {option} is {value:?}; choose from {min:?} to {max:?}"
        )
    }
}

impl std::error::Error for ClaimOptionsError {}

fn in_range(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), OptionsError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(OptionsError::OutOfRange {
            option,
            value,
            min,
            max,
        })
    }
}

fn lease_ms(option: &'static str, lease: Lease) -> Result<u64, ClaimOptionsError> {
    match lease {
        Lease::WhileAlive => Ok(WHILE_ALIVE),
        Lease::For(value) => duration_ms(option, value, LEASE_MIN, LEASE_MAX),
    }
}

fn retention_ms(value: Duration) -> Result<u64, ClaimOptionsError> {
    duration_ms("retention", value, RETENTION_MIN, RETENTION_MAX)
}

/// Whole milliseconds, rounded up: a lease is never shorter than asked for.
fn duration_ms(
    option: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<u64, ClaimOptionsError> {
    if value < min || value > max {
        return Err(ClaimOptionsError::OutOfRange {
            option,
            value,
            min,
            max,
        });
    }
    Ok(u64::try_from(value.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_at_every_segment_size() {
        let mut bytes = SEGMENT_BYTES_MIN;
        while bytes <= SEGMENT_BYTES_MAX {
            for part in [1, KEY_PART_BYTES_DEFAULT, KEY_PART_BYTES_MAX] {
                let settings = Options::new()
                    .segment_size(bytes)
                    .max_key_part(part)
                    .validate()
                    .unwrap();
                assert!(settings.response_bytes_max as u64 + 16_384 <= bytes / 2);
                assert!(settings.reserved_response_bytes <= settings.response_bytes_max);
            }
            bytes *= 2;
        }
    }

    #[test]
    fn every_option_out_of_range_names_itself_and_its_limits() {
        let cases = [
            (Options::new().segment_size(0), "segment_size"),
            (
                Options::new().segment_size(SEGMENT_BYTES_MAX + 4_096),
                "segment_size",
            ),
            (
                Options::new().segment_size(SEGMENT_BYTES_MIN + 8),
                "segment_size",
            ),
            (Options::new().stripes(0), "stripes"),
            (Options::new().stripes(3), "stripes"),
            (Options::new().stripes(131_072), "stripes"),
            (Options::new().prepared_segments(0), "prepared_segments"),
            (Options::new().prepared_segments(65), "prepared_segments"),
            (Options::new().max_key_part(0), "max_key_part"),
            (Options::new().max_key_part(1_025), "max_key_part"),
            (
                Options::new().max_response(RESPONSE_BYTES_MAX + 1),
                "max_response",
            ),
            (
                Options::new().segment_size(1 << 20).max_response(1 << 20),
                "max_response",
            ),
            (
                Options::new().reserved_response(2 << 20),
                "reserved_response",
            ),
            (Options::new().max_pending(0), "max_pending"),
            (Options::new().max_waiters(usize::MAX), "max_waiters"),
            (Options::new().lease(Lease::For(Duration::ZERO)), "lease"),
            (Options::new().lease(Lease::For(Duration::MAX)), "lease"),
            (Options::new().retention(Duration::ZERO), "retention"),
            (
                Options::new().retention(Duration::from_millis(1)),
                "retention",
            ),
            (Options::new().retention(Duration::MAX), "retention"),
        ];
        for (options, name) in cases {
            let message = options.validate().unwrap_err().to_string();
            assert!(
                message.contains(name) && message.contains("choose"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_lease_is_never_rounded_down() {
        let lease = |nanos| lease_ms("lease", Lease::For(Duration::from_nanos(nanos)));
        assert_eq!(lease(1_500_000_000), Ok(1_500));
        assert_eq!(lease(1_500_000_001), Ok(1_501));
        assert_eq!(lease_ms("lease", Lease::WhileAlive), Ok(WHILE_ALIVE));
    }
}
