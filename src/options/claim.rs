//! Options of a single claim, and the checks of leases and retentions that it shares with a
//! store's.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::clock::{rounded_up_ms, unix_ms};
use crate::index::live::WHILE_ALIVE;
use crate::limits::{LEASE_MAX, LEASE_MIN, RETENTION_MAX, RETENTION_MIN};
use crate::options::{Durability, Lease, Settings};

/// Options of a single claim, for [`Store::claim_with`](crate::Store::claim_with) and its kind.
///
/// What is not set is as in the store's [`Options`](crate::Options).
///
/// # Examples
///
/// A transfer whose handler may hang, and whose result must answer for 45 days:
///
/// ```
/// use std::time::Duration;
/// use oncekey::{Claim, ClaimOptions, Fingerprint, Key, Lease, Store};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::open(dir.path())?;
/// let key = Key::new("acct_1", "POST /v1/transfers", "b2c4")?;
/// let options = ClaimOptions::new()
///     .lease(Lease::For(Duration::from_secs(60)))
///     .retention(Duration::from_secs(45 * 24 * 60 * 60));
/// let claim = store.claim_with(&key, Fingerprint::of(b"amount=1200"), options)?;
/// assert!(matches!(claim, Claim::Started(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a claim is made with them"]
pub struct ClaimOptions {
    durability: Option<Durability>,
    lease: Option<Lease>,
    retention: Option<Duration>,
    first_sent: Option<SystemTime>,
}

impl ClaimOptions {
    /// The options of the store.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the claim must survive before the call returns, and its completion unless that says
    /// otherwise.
    ///
    /// It is also the level at which the answer is given when the key is not free: with
    /// [`Durability::Sync`] nothing is replayed that a power loss could still take back.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How long the owner is presumed alive, if this claim makes one. [`Lease::For`] takes 1
    /// millisecond to 3,653 days.
    ///
    /// The lease of somebody who has the key already is not changed by it.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long the result answers, counted from completion, unless the completion says otherwise:
    /// 1 second to 3,653 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// When the caller sent the request for the first time, by the wall clock.
    ///
    /// With it the store can tell a new request from a retry that comes too late. If the key is
    /// absent, and this is longer ago than results are kept, the operation may have run and been
    /// forgotten: the claim is answered [`TooLate`](crate::Claim::TooLate) instead of running it a
    /// second time. The same goes for what was first sent before a copy was
    /// [restored](crate::Options::restored).
    ///
    /// A result is kept for the retention of its own claim or completion, but what is too late is
    /// measured by that of this claim: where completions ask for less, let retries ask for as little.
    ///
    /// The time has to come from whoever made the key and be the same in every attempt, such as the
    /// time an event was created. A time in the future is never too late.
    pub fn first_sent(mut self, at: SystemTime) -> Self {
        self.first_sent = Some(at);
        self
    }

    /// Whether the retention was set, rather than left to the store.
    pub(crate) fn has_retention(&self) -> bool {
        self.retention.is_some()
    }

    /// Checks what is set and takes the rest from the store.
    #[inline]
    pub(crate) fn resolve(&self, settings: &Settings) -> Result<ResolvedClaim, ClaimOptionsError> {
        Ok(ResolvedClaim {
            durability: self.durability.unwrap_or(settings.durability),
            lease_ms: self.lease.map_or(Ok(settings.lease_ms), lease_ms)?,
            retention_ms: self
                .retention
                .map_or(Ok(settings.retention_ms), retention_ms)?,
            first_sent_ms: self.first_sent.map(unix_ms),
        })
    }

    /// Checks the ranges that every store has.
    pub(crate) fn check(&self) -> Result<(), ClaimOptionsError> {
        self.resolve_shared().map(drop)
    }

    /// Lease, retention and first sending in ms, checked, where they are set; no lease for
    /// [`Lease::WhileAlive`].
    pub(crate) fn resolve_shared(&self) -> Result<SharedTerms, ClaimOptionsError> {
        let lease = self.lease.map(lease_ms).transpose()?;
        Ok((
            lease.filter(|lease_ms| *lease_ms != WHILE_ALIVE),
            self.retention.map(retention_ms).transpose()?,
            self.first_sent.map(unix_ms),
        ))
    }
}

type SharedTerms = (Option<u64>, Option<u64>, Option<u64>);

/// The options of a claim, checked and complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedClaim {
    pub(crate) durability: Durability,
    /// `WHILE_ALIVE` for none.
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    /// Since the Unix epoch.
    pub(crate) first_sent_ms: Option<u64>,
}

/// A lease or a retention that is out of range. Nothing was claimed or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimOptionsError {
    /// The lease is zero. For no lease use [`Lease::WhileAlive`].
    LeaseZero,
    /// The duration is outside the range that is allowed.
    OutOfRange {
        /// The option: `lease`, `retention` or, of a store, `abandon_after`.
        option: &'static str,
        /// What it was set to.
        value: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
}

impl fmt::Display for ClaimOptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseZero => write!(
                f,
                "the lease is zero, which means neither \"for ever\" nor \"at once\"; choose \
                 Lease::WhileAlive, or from {} to {}",
                readable(LEASE_MIN),
                readable(LEASE_MAX)
            ),
            Self::OutOfRange {
                option,
                value,
                min,
                max,
            } => write!(
                f,
                "the {option} is {}; choose from {} to {}",
                readable(*value),
                readable(*min),
                readable(*max)
            ),
        }
    }
}

impl std::error::Error for ClaimOptionsError {}

/// Shows a duration in days once it has several whole ones.
fn readable(duration: Duration) -> impl fmt::Display {
    const DAY_SECS: u64 = 24 * 60 * 60;
    fmt::from_fn(move |f| match duration.as_secs() / DAY_SECS {
        days if days > 1 && Duration::from_secs(days * DAY_SECS) == duration => {
            write!(f, "{days} days")
        }
        days if days > 1 => write!(f, "over {days} days"),
        _ => write!(f, "{duration:?}"),
    })
}

/// A lease as the engine has it; [`WHILE_ALIVE`] for none.
pub(super) fn lease_ms(lease: Lease) -> Result<u64, ClaimOptionsError> {
    match lease {
        Lease::WhileAlive => Ok(WHILE_ALIVE),
        Lease::For(Duration::ZERO) => Err(ClaimOptionsError::LeaseZero),
        Lease::For(value) => duration_ms("lease", value, LEASE_MIN, LEASE_MAX),
    }
}

/// A retention as the engine has it.
pub(super) fn retention_ms(value: Duration) -> Result<u64, ClaimOptionsError> {
    duration_ms("retention", value, RETENTION_MIN, RETENTION_MAX)
}

/// A retention of versions as the engine has it: as long as a result's may be.
pub(super) fn version_retention_ms(value: Duration) -> Result<u64, ClaimOptionsError> {
    duration_ms("version_retention", value, RETENTION_MIN, RETENTION_MAX)
}

/// An age of interrupted keys as the engine has it: as long as a retention may be.
pub(super) fn abandon_after_ms(value: Duration) -> Result<u64, ClaimOptionsError> {
    duration_ms("abandon_after", value, RETENTION_MIN, RETENTION_MAX)
}

/// In whole milliseconds, if it is in this range.
fn duration_ms(
    option: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<u64, ClaimOptionsError> {
    if !(min..=max).contains(&value) {
        return Err(ClaimOptionsError::OutOfRange {
            option,
            value,
            min,
            max,
        });
    }
    Ok(rounded_up_ms(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn settings() -> Settings {
        let options = Options::new()
            .durability(Durability::Buffered)
            .lease(Lease::For(Duration::from_secs(7)))
            .retention(Duration::from_secs(9));
        options.validate().unwrap()
    }

    #[test]
    fn what_is_not_set_is_the_stores() {
        let resolved = ClaimOptions::new().resolve(&settings()).unwrap();
        let expected = ResolvedClaim {
            durability: Durability::Buffered,
            lease_ms: 7_000,
            retention_ms: 9_000,
            first_sent_ms: None,
        };
        assert_eq!(resolved, expected);
        assert!(!ClaimOptions::new().has_retention());
    }

    #[test]
    fn what_is_set_goes_before_the_stores() {
        let options = ClaimOptions::new()
            .durability(Durability::Sync)
            .lease(Lease::WhileAlive)
            .retention(Duration::from_secs(45 * 24 * 60 * 60))
            .first_sent(SystemTime::UNIX_EPOCH + Duration::from_micros(1_999));
        let expected = ResolvedClaim {
            durability: Durability::Sync,
            lease_ms: WHILE_ALIVE,
            retention_ms: 3_888_000_000,
            first_sent_ms: Some(1),
        };
        assert_eq!(options.resolve(&settings()), Ok(expected));
        assert!(options.has_retention());
    }

    #[test]
    fn a_lease_is_whole_milliseconds_rounded_up() {
        let lease = |value| lease_ms(Lease::For(value));
        for (value, expected_ms) in [
            (Duration::from_millis(1), 1),
            (Duration::from_nanos(1_000_001), 2),
            (Duration::from_millis(1_500), 1_500),
            (Duration::from_nanos(1_500_000_001), 1_501),
            (LEASE_MAX, 3_653 * 24 * 60 * 60 * 1_000),
        ] {
            assert_eq!(lease(value), Ok(expected_ms));
        }
        assert_eq!(lease_ms(Lease::WhileAlive), Ok(WHILE_ALIVE));
        assert!(lease(LEASE_MAX).unwrap() < WHILE_ALIVE);
    }

    #[test]
    fn a_lease_out_of_range_is_neither_for_ever_nor_at_once() {
        let zero = lease_ms(Lease::For(Duration::ZERO));
        assert_eq!(zero, Err(ClaimOptionsError::LeaseZero));
        for value in [
            Duration::from_nanos(1),
            Duration::from_nanos(999_999),
            LEASE_MAX + Duration::from_nanos(1),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ] {
            let (min, max, option) = (LEASE_MIN, LEASE_MAX, "lease");
            let expected = ClaimOptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            };
            assert_eq!(lease_ms(Lease::For(value)), Err(expected));
        }
    }

    #[test]
    fn a_retention_is_between_a_second_and_ten_years() {
        assert_eq!(retention_ms(RETENTION_MIN), Ok(1_000));
        assert_eq!(retention_ms(RETENTION_MAX), Ok(315_619_200_000));
        for value in [
            Duration::ZERO,
            Duration::from_millis(1),
            Duration::from_millis(999),
            RETENTION_MAX + Duration::from_nanos(1),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ] {
            let options = ClaimOptions::new().retention(value);
            let error = options.resolve(&settings()).unwrap_err();
            assert!(matches!(
                error,
                ClaimOptionsError::OutOfRange {
                    option: "retention",
                    ..
                }
            ));
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        for (error, message) in [
            (
                lease_ms(Lease::For(Duration::ZERO)),
                "the lease is zero, which means neither \"for ever\" nor \"at once\"; choose \
                 Lease::WhileAlive, or from 1ms to 3653 days",
            ),
            (
                lease_ms(Lease::For(Duration::from_micros(5))),
                "the lease is 5µs; choose from 1ms to 3653 days",
            ),
            (
                retention_ms(Duration::ZERO),
                "the retention is 0ns; choose from 1s to 3653 days",
            ),
            (
                retention_ms(Duration::from_secs(4_000 * 24 * 60 * 60)),
                "the retention is 4000 days; choose from 1s to 3653 days",
            ),
            (
                retention_ms(RETENTION_MAX + Duration::from_nanos(1)),
                "the retention is over 3653 days; choose from 1s to 3653 days",
            ),
        ] {
            assert_eq!(error.unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn times_outside_of_what_milliseconds_can_hold_are_bounded() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(unix_ms(epoch), 0);
        assert_eq!(unix_ms(epoch - Duration::from_secs(1)), 0);
        assert_eq!(
            unix_ms(epoch + Duration::from_millis(1_700_000_000_123)),
            1_700_000_000_123
        );
    }
}
