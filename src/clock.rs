//! Time: clocks, and the store's own time made of them.
//!
//! The store never asks the system directly. A [`Clock`] gives a wall clock, which may jump, and a
//! monotonic one, which may not. Leases use the monotonic clock alone. Everything that is written
//! down uses *store time*: the later of the wall clock and the newest time on disk when the store was
//! opened, advanced by the monotonic clock from there and steered gently towards the wall clock. It
//! never goes back and never jumps, so no clock change expires a result early or brings one back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A source of time, in whole milliseconds.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since the Unix epoch; may jump both ways.
    fn wall_ms(&self) -> u64;

    /// Milliseconds since some fixed moment; never goes back. Must not stop while the process runs.
    fn monotonic_ms(&self) -> u64;

    /// How long a thread may really sleep before [`monotonic_ms`](Self::monotonic_ms) can reach
    /// `monotonic_ms`. A clock that is set by hand returns a short time, so that waits notice it.
    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        Duration::from_millis(monotonic_ms.saturating_sub(self.monotonic_ms()))
    }
}

/// The system's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// The system's clocks; the monotonic one counts from now.
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
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        let until = Duration::from_millis(monotonic_ms);
        until.saturating_sub(self.start.elapsed())
    }
}

/// A clock that only moves when told to: for tests of leases and retention.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use oncekey::{Clock, ManualClock, Options};
///
/// # let dir = tempfile::tempdir()?;
/// let clock = ManualClock::new(1_700_000_000_000);
/// let store = Options::new().clock(Arc::new(clock.clone())).open(dir.path())?;
/// clock.advance(Duration::from_secs(3_600));
/// assert_eq!(clock.wall_ms(), 1_700_003_600_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    times: Arc<(AtomicU64, AtomicU64)>,
}

impl ManualClock {
    /// A clock that stands at this wall time.
    pub fn new(wall_ms: u64) -> Self {
        Self {
            times: Arc::new((AtomicU64::new(wall_ms), AtomicU64::new(0))),
        }
    }

    /// Moves both clocks on.
    pub fn advance(&self, by: Duration) {
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.times.0.fetch_add(by_ms, Ordering::SeqCst);
        self.times.1.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Moves the monotonic clock alone.
    pub fn advance_monotonic(&self, by: Duration) {
        self.times.1.fetch_add(
            u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
            Ordering::SeqCst,
        );
    }

    /// Sets the wall clock, in either direction.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.times.0.store(wall_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> u64 {
        self.times.0.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.times.1.load(Ordering::SeqCst)
    }

    fn real_time_until(&self, _monotonic_ms: u64) -> Duration {
        Duration::from_millis(1)
    }
}

/// How often the wall clock is looked at, in ms of the monotonic one.
const STEER_EVERY_MS: u64 = 1_000;
/// Store time runs at most this share faster or slower than the monotonic clock.
const STEER_SHARE: i64 = 20;

/// The store's own time.
#[derive(Debug)]
pub(crate) struct StoreTime {
    clock: Arc<dyn Clock>,
    /// Store time is the monotonic clock plus this.
    offset_ms: AtomicI64,
    /// Monotonic ms at which to steer next.
    steer_at_ms: AtomicU64,
    /// Monotonic ms at which was steered last.
    steered_at_ms: AtomicU64,
    /// The latest time given out, so that steering back never shows.
    latest_ms: AtomicU64,
}

impl StoreTime {
    /// Begins at the later of the wall clock and the newest time on disk.
    pub(crate) fn start(clock: Arc<dyn Clock>, high_water_ms: u64) -> Self {
        let start_ms = clock.wall_ms().max(high_water_ms);
        let monotonic_ms = clock.monotonic_ms();
        Self {
            offset_ms: AtomicI64::new(start_ms.wrapping_sub(monotonic_ms) as i64),
            steer_at_ms: AtomicU64::new(monotonic_ms.saturating_add(STEER_EVERY_MS)),
            steered_at_ms: AtomicU64::new(monotonic_ms),
            latest_ms: AtomicU64::new(start_ms),
            clock,
        }
    }

    /// The time now, in ms since the Unix epoch. Never less than any time given out before.
    pub(crate) fn now_ms(&self) -> u64 {
        let monotonic_ms = self.clock.monotonic_ms();
        if monotonic_ms >= self.steer_at_ms.load(Ordering::Relaxed) {
            self.steer(monotonic_ms);
        }
        let now_ms = monotonic_ms.saturating_add_signed(self.offset_ms.load(Ordering::Acquire));
        let latest_ms = self.latest_ms.load(Ordering::Relaxed);
        if now_ms > latest_ms {
            self.latest_ms.fetch_max(now_ms, Ordering::Relaxed);
            return now_ms;
        }
        latest_ms
    }

    /// The monotonic clock, for leases.
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// See [`Clock::real_time_until`].
    pub(crate) fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        self.clock.real_time_until(monotonic_ms)
    }

    /// Moves store time towards the wall clock by at most a twentieth of the time since the last
    /// look. Only one thread at a time gets to do it.
    fn steer(&self, monotonic_ms: u64) {
        let due_ms = self.steer_at_ms.load(Ordering::Relaxed);
        let next_ms = monotonic_ms.saturating_add(STEER_EVERY_MS);
        let won =
            self.steer_at_ms
                .compare_exchange(due_ms, next_ms, Ordering::AcqRel, Ordering::Relaxed);
        if monotonic_ms < due_ms || won.is_err() {
            return;
        }
        let since_ms = monotonic_ms - self.steered_at_ms.swap(monotonic_ms, Ordering::AcqRel);
        let offset_ms = self.offset_ms.load(Ordering::Acquire);
        let behind_ms =
            self.clock
                .wall_ms()
                .wrapping_sub(monotonic_ms.wrapping_add_signed(offset_ms)) as i64;
        let most_ms = i64::try_from(since_ms).unwrap_or(i64::MAX) / STEER_SHARE;
        self.offset_ms
            .fetch_add(behind_ms.clamp(-most_ms, most_ms), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(wall_ms: u64, high_water_ms: u64) -> (ManualClock, StoreTime) {
        let clock = ManualClock::new(wall_ms);
        let time = StoreTime::start(Arc::new(clock.clone()), high_water_ms);
        (clock, time)
    }

    #[test]
    fn begins_at_the_later_of_wall_clock_and_high_water() {
        assert_eq!(start(5_000, 0).1.now_ms(), 5_000);
        assert_eq!(start(5_000, 9_000).1.now_ms(), 9_000);
    }

    #[test]
    fn advances_exactly_while_the_clocks_agree() {
        let (clock, time) = start(5_000, 0);
        for step_ms in [1, 999, 1_500, 86_400_000, 7] {
            let before_ms = time.now_ms();
            clock.advance(Duration::from_millis(step_ms));
            assert_eq!(time.now_ms(), before_ms + step_ms);
        }
    }

    #[test]
    fn a_wall_clock_that_jumps_ahead_only_steers() {
        let (clock, time) = start(1_000_000, 0);
        clock.set_wall_ms(1_000_000 + 3_600_000);
        assert_eq!(time.now_ms(), 1_000_000);
        clock.advance(Duration::from_secs(10));
        assert_eq!(time.now_ms(), 1_010_500);
    }

    #[test]
    fn a_store_ahead_of_the_wall_clock_comes_back_to_it() {
        let (clock, time) = start(1_000_000, 1_060_000);
        for _ in 0..2_000 {
            clock.advance(Duration::from_secs(1));
            time.now_ms();
        }
        assert_eq!(time.now_ms(), clock.wall_ms());
    }

    proptest! {
        #[test]
        fn never_goes_back(
            high_water_ms in 0..10_000_000_u64,
            moves in prop::collection::vec((0..100_000_u64, prop::option::of(0..20_000_000_u64)), 1..50),
        ) {
            let (clock, time) = start(5_000_000, high_water_ms);
            let mut before_ms = time.now_ms();
            for (step_ms, wall_ms) in moves {
                clock.advance(Duration::from_millis(step_ms));
                if let Some(wall_ms) = wall_ms {
                    clock.set_wall_ms(wall_ms);
                }
                let now_ms = time.now_ms();
                prop_assert!(now_ms >= before_ms);
                prop_assert!(now_ms <= before_ms + step_ms + step_ms / 20 + 1_000 / 20 + 1);
                before_ms = now_ms;
            }
        }
    }
}
