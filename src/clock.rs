//! Time: clocks, and the store's own time made of them.
//!
//! The store never asks the system for the time. It asks a [`Clock`], which gives two: the *wall
//! clock*, which tells the date and may be set, and the *monotonic clock*, which only counts and is
//! never set. Leases use the monotonic clock alone. Everything that is written down uses *store
//! time* (`store_time.rs`), which is made of both so that setting the wall clock neither expires a
//! result early nor brings one back.
//!
//! All times are whole milliseconds in a `u64`: since the Unix epoch for wall clock and store time,
//! since a moment of the clock's own choosing for the monotonic one. The two kinds never mix.

mod store_time;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::sync::{Mutex, os};

pub(crate) use self::store_time::StoreTime;

/// Store time as the standard library's.
pub(crate) fn time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(ms))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Milliseconds since the Unix epoch, rounded down; 0 for what was before it.
pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up: nothing ends before its time.
pub(crate) fn rounded_up_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A source of time, in whole milliseconds.
///
/// A store reads [`SystemClock`] unless [`Options::clock`](crate::Options::clock) says otherwise;
/// tests use a [`ManualClock`]. Calls come from any thread, at least one for each claim, so they
/// must be cheap and must not call the store.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The wall clock: milliseconds since the Unix epoch.
    ///
    /// May jump either way, and by any amount. Looked at when the store is opened, and about once a
    /// second after that.
    fn wall_ms(&self) -> u64;

    /// The monotonic clock: milliseconds since a moment that stays the same for the clock's life.
    ///
    /// Never goes back, for any thread. May stand still while the machine is suspended; leases then
    /// last that much longer.
    fn monotonic_ms(&self) -> u64;

    /// How long a thread may really sleep before [`monotonic_ms`](Self::monotonic_ms) could have
    /// reached `monotonic_ms`; zero if it has.
    ///
    /// The default is the difference, which is right for every clock that runs at the pace of real
    /// time. Any other has to return a bound that is short enough: a waiter looks again after it.
    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        Duration::from_millis(monotonic_ms.saturating_sub(self.monotonic_ms()))
    }
}

/// The clocks of the system: the default.
///
/// On Linux the monotonic clock stands still while the machine is suspended, so a lease is extended
/// by a suspend and never cut short by one.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// The clocks of the system. The monotonic one counts from now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    /// A system set to before 1970 reads as 0.
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        whole_ms(since.unwrap_or_default())
    }

    fn monotonic_ms(&self) -> u64 {
        whole_ms(self.start.elapsed())
    }

    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        Duration::from_millis(monotonic_ms).saturating_sub(self.start.elapsed())
    }
}

/// A clock that moves only when told to, for tests of leases and retention without sleeping.
///
/// A handle: all clones are one clock. Both its times move together, as in
/// [`advance`](Self::advance), or the wall clock alone is set, as an operator or a time server
/// would. Times stop at the end of their range instead of wrapping around.
///
/// Blocking and async waits on a store with this clock notice an advance within about a millisecond
/// of real time.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use oncekey::{Claim, Fingerprint, Key, Lease, ManualClock, Options};
///
/// # let dir = tempfile::tempdir()?;
/// let clock = ManualClock::new(1_700_000_000_000);
/// let store = Options::new()
///     .lease(Lease::For(Duration::from_secs(30)))
///     .clock(Arc::new(clock.clone()))
///     .open(dir.path())?;
/// let key = Key::new("acct_1", "POST /v1/payments", "3f6c")?;
/// let slow = store.claim(&key, Fingerprint::none())?;
///
/// clock.advance(Duration::from_millis(29_999));
/// assert!(matches!(store.claim(&key, Fingerprint::none())?, Claim::InProgress(_)));
///
/// clock.advance(Duration::from_millis(1));
/// assert!(matches!(store.claim(&key, Fingerprint::none())?, Claim::Interrupted(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    /// Behind one lock, so that nobody sees the one moved and the other not yet.
    times: Arc<Mutex<Times>>,
}

#[derive(Debug)]
struct Times {
    wall_ms: u64,
    monotonic_ms: u64,
}

impl ManualClock {
    /// A clock that shows `wall_ms`, in milliseconds since the Unix epoch. Its monotonic time is 0.
    #[must_use]
    pub fn new(wall_ms: u64) -> Self {
        let times = Times {
            wall_ms,
            monotonic_ms: 0,
        };
        Self {
            times: Arc::new(Mutex::new(times)),
        }
    }

    /// Time passes: moves both clocks on, by whole milliseconds.
    pub fn advance(&self, by: Duration) {
        {
            let mut times = self.times.lock();
            times.wall_ms = times.wall_ms.saturating_add(whole_ms(by));
            times.monotonic_ms = times.monotonic_ms.saturating_add(whole_ms(by));
        }
        os::time_passed(whole_ms(by));
    }

    /// Moves the monotonic clock on alone, by whole milliseconds, as if the wall clock were slow or
    /// had been set back.
    pub fn advance_monotonic(&self, by: Duration) {
        {
            let mut times = self.times.lock();
            times.monotonic_ms = times.monotonic_ms.saturating_add(whole_ms(by));
        }
        os::time_passed(whole_ms(by));
    }

    /// Sets the wall clock, in either direction, without time passing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use oncekey::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new(1_000_000);
    /// clock.advance(Duration::from_secs(2));
    /// clock.set_wall_ms(500_000);
    /// assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (500_000, 2_000));
    /// ```
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.times.lock().wall_ms = wall_ms;
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> u64 {
        self.times.lock().wall_ms
    }

    fn monotonic_ms(&self) -> u64 {
        self.times.lock().monotonic_ms
    }

    /// At most a millisecond: the next advance may come at any moment.
    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        let left_ms = monotonic_ms.saturating_sub(self.monotonic_ms());
        os::manual_sleep(Duration::from_millis(left_ms))
    }
}

/// Whole milliseconds, rounded down; as many as there can be for longer times.
fn whole_ms(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000)
        .saturating_add(u64::from(duration.subsec_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clocks_move_on() {
        let clock = SystemClock::new();
        // 2024 began 1,704,067,200 seconds after the epoch.
        assert!(clock.wall_ms() > 1_704_067_200_000);
        let before_ms = clock.monotonic_ms();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.monotonic_ms() >= before_ms + 2);
    }

    #[test]
    fn the_system_clock_sleeps_no_longer_than_needed() {
        let clock = SystemClock::new();
        let until_ms = clock.monotonic_ms() + 10_000;
        let sleep = clock.real_time_until(until_ms);
        assert!(sleep > Duration::from_secs(5) && sleep <= Duration::from_secs(10));
        assert_eq!(clock.real_time_until(0), Duration::ZERO);
    }

    #[test]
    fn clones_of_a_manual_clock_are_one_clock() {
        let clock = ManualClock::new(5_000);
        clock.clone().advance(Duration::from_micros(1_500_999));
        assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (6_500, 1_500));
        clock.clone().advance_monotonic(Duration::from_secs(1));
        assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (6_500, 2_500));
        clock.clone().set_wall_ms(10);
        assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (10, 2_500));
    }

    #[test]
    fn a_manual_clock_stops_at_the_end_of_time() {
        let clock = ManualClock::new(5_000);
        clock.advance(Duration::MAX);
        assert_eq!(
            (clock.wall_ms(), clock.monotonic_ms()),
            (u64::MAX, u64::MAX)
        );
        clock.advance_monotonic(Duration::from_secs(1));
        assert_eq!(clock.monotonic_ms(), u64::MAX);
    }

    #[test]
    fn a_manual_clock_is_looked_at_every_millisecond() {
        let clock = ManualClock::new(0);
        clock.advance(Duration::from_millis(10));
        assert_eq!(clock.real_time_until(u64::MAX), Duration::from_millis(1));
        assert_eq!(clock.real_time_until(11), Duration::from_millis(1));
        assert_eq!(clock.real_time_until(10), Duration::ZERO);
        assert_eq!(clock.real_time_until(0), Duration::ZERO);
    }

    #[test]
    fn whole_milliseconds_are_rounded_down_and_saturate() {
        assert_eq!(whole_ms(Duration::from_nanos(1_999_999)), 1);
        assert_eq!(whole_ms(Duration::from_secs(86_400)), 86_400_000);
        assert_eq!(whole_ms(Duration::MAX), u64::MAX);
    }
}
