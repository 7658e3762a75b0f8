//! Store time: the time of everything that is written down.
//!
//! It begins, at open, at the later of the wall clock and the newest time on disk. From there the
//! monotonic clock drives it, and once a second it looks at the wall clock and steers towards it by
//! running up to 5 % faster or slower. So:
//!
//! * it never goes back, for all threads together and across restarts;
//! * it never jumps, whatever is done to the wall clock: 20 hours pass before an hour's difference
//!   is made up, and a wrong setting that is put right soon leaves hardly a trace;
//! * while both clocks agree it is exactly the wall clock.
//!
//! How it runs until the next look is a [`Plan`] of three words, read far more often than written.
//! Readers must see the three together and must never wait, not even for a writer that was
//! preempted half-way. Hence two places for plans, written in turn: a new plan goes to the one not
//! in use, then a counter says that it is in use. A reader goes again only if the place it read was
//! reused meanwhile, two looks later. (The kernel's timekeeping uses the same "latch" to be
//! readable from interrupts that stop the writer.)

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::sync::os::Mutex;
use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// How often the wall clock is looked at, in ms of the monotonic one.
const LOOK_EVERY_MS: u64 = 1_000;
/// Store time runs faster or slower by at most one part in this many.
const STEER_PARTS: u64 = 20;
/// The most that is made up on the strength of one look, a minute's steering. A store that nobody
/// uses does not look, and what it last saw may have been wrong.
const CORRECTION_MS_MAX: u64 = 60_000 / STEER_PARTS;
/// How often to try for readings of both clocks that belong together.
const SAMPLE_ATTEMPTS: usize = 4;

/// The store's own time. Shared by all its threads.
#[derive(Debug)]
pub(crate) struct StoreTime {
    clock: Arc<dyn Clock>,
    plan: Latch,
    /// Held by the one who looks at the wall clock; nobody waits for it.
    looking: Mutex<()>,
    /// The latest time given out. A thread that read the clock or the plan a little earlier than
    /// another must not answer with less than that one did.
    latest_ms: AtomicU64,
}

impl StoreTime {
    /// Begins at the later of the wall clock and `high_water_ms`, the newest time on disk.
    pub(crate) fn start(clock: Arc<dyn Clock>, high_water_ms: u64) -> Self {
        let sample = Sample::take(&*clock);
        let start_ms = sample.wall_ms.max(high_water_ms);
        Self {
            plan: Latch::new(Plan::from(start_ms, sample)),
            looking: Mutex::new(()),
            latest_ms: AtomicU64::new(start_ms),
            clock,
        }
    }

    /// Store time now, in ms since the Unix epoch. Never less than what any earlier call returned.
    ///
    /// Reads the monotonic clock once and takes no lock; about once a second one caller looks at
    /// the wall clock.
    pub(crate) fn now_ms(&self) -> u64 {
        let monotonic_ms = self.clock.monotonic_ms();
        let mut plan = self.plan.read();
        if plan.is_over(monotonic_ms) {
            self.look();
            plan = self.plan.read();
        }
        let now_ms = plan.store_ms(monotonic_ms);
        let latest_ms = self.latest_ms.load(Ordering::Relaxed);
        if now_ms <= latest_ms {
            return latest_ms;
        }
        self.latest_ms
            .fetch_max(now_ms, Ordering::Relaxed)
            .max(now_ms)
    }

    /// The monotonic clock, for leases.
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// See [`Clock::real_time_until`].
    pub(crate) fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        self.clock.real_time_until(monotonic_ms)
    }

    /// Looks at the wall clock and plans how to run until the next look, going on from where the
    /// current plan is by now.
    fn look(&self) {
        let Some(looking) = self.looking.try_lock() else {
            // Another thread is at it; the current plan will do for this once.
            return;
        };
        let plan = self.plan.read();
        let sample = Sample::take(&*self.clock);
        if plan.is_over(sample.monotonic_ms) {
            let store_ms = plan.store_ms(sample.monotonic_ms);
            self.plan.replace(Plan::from(store_ms, sample));
        }
        drop(looking);
    }
}

/// Readings of both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    monotonic_ms: u64,
    wall_ms: u64,
}

impl Sample {
    /// The wall clock between two equal readings of the monotonic one. A thread can be stopped
    /// between the two, for seconds, and would take the wall clock to be ahead by so much. A clock
    /// that is too slow for this gets the benefit of the doubt: what comes of it is steered away.
    fn take(clock: &dyn Clock) -> Self {
        let mut monotonic_ms = clock.monotonic_ms();
        let mut wall_ms = clock.wall_ms();
        for _ in 1..SAMPLE_ATTEMPTS {
            let after_ms = clock.monotonic_ms();
            if after_ms == monotonic_ms {
                break;
            }
            monotonic_ms = after_ms;
            wall_ms = clock.wall_ms();
        }
        Self {
            monotonic_ms,
            wall_ms,
        }
    }
}

/// How store time runs from one look at the wall clock to the next: with the monotonic clock from
/// an anchor, and on the way makes up for `correction_ms`, at most one part in [`STEER_PARTS`] at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    anchor_monotonic_ms: u64,
    anchor_store_ms: u64,
    correction_ms: i64,
}

impl Plan {
    /// From `store_ms` at the moment of the sample, towards its wall clock.
    fn from(store_ms: u64, sample: Sample) -> Self {
        let apart_ms = sample.wall_ms.abs_diff(store_ms).min(CORRECTION_MS_MAX) as i64;
        Self {
            anchor_monotonic_ms: sample.monotonic_ms,
            anchor_store_ms: store_ms,
            correction_ms: if sample.wall_ms < store_ms {
                -apart_ms
            } else {
                apart_ms
            },
        }
    }

    /// Whether it is time for another look at the wall clock.
    fn is_over(self, monotonic_ms: u64) -> bool {
        monotonic_ms.saturating_sub(self.anchor_monotonic_ms) >= LOOK_EVERY_MS
    }

    /// Store time by this plan. A monotonic time from before the plan counts as its beginning.
    fn store_ms(self, monotonic_ms: u64) -> u64 {
        let passed_ms = monotonic_ms.saturating_sub(self.anchor_monotonic_ms);
        let steered_ms = (passed_ms / STEER_PARTS).min(CORRECTION_MS_MAX) as i64;
        self.anchor_store_ms
            .saturating_add(passed_ms)
            .saturating_add_signed(self.correction_ms.clamp(-steered_ms, steered_ms))
    }
}

/// A plan that many threads read while one replaces it: see the top of the file.
#[derive(Debug)]
struct Latch {
    /// How many plans there have been. Its lowest bit tells the place of the current one.
    turn: AtomicU64,
    even: Place,
    odd: Place,
}

/// Room for a plan.
#[derive(Debug)]
struct Place {
    anchor_monotonic_ms: AtomicU64,
    anchor_store_ms: AtomicU64,
    correction_ms: AtomicI64,
}

impl Latch {
    fn new(plan: Plan) -> Self {
        Self {
            turn: AtomicU64::new(0),
            even: Place::new(plan),
            odd: Place::new(plan),
        }
    }

    fn place(&self, turn: u64) -> &Place {
        if turn.is_multiple_of(2) {
            &self.even
        } else {
            &self.odd
        }
    }

    fn read(&self) -> Plan {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            let plan = self.place(turn).load();
            // A word of a later plan, loaded with acquire, brings the turn that came before it
            // along: then this is another turn, and what was read may be of both plans.
            if self.turn.load(Ordering::Relaxed) == turn {
                return plan;
            }
        }
    }

    /// Only by the one who holds `looking`.
    fn replace(&self, plan: Plan) {
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.place(turn).store(plan);
        self.turn.store(turn, Ordering::Release);
    }
}

impl Place {
    fn new(plan: Plan) -> Self {
        Self {
            anchor_monotonic_ms: AtomicU64::new(plan.anchor_monotonic_ms),
            anchor_store_ms: AtomicU64::new(plan.anchor_store_ms),
            correction_ms: AtomicI64::new(plan.correction_ms),
        }
    }

    fn load(&self) -> Plan {
        Plan {
            anchor_monotonic_ms: self.anchor_monotonic_ms.load(Ordering::Acquire),
            anchor_store_ms: self.anchor_store_ms.load(Ordering::Acquire),
            correction_ms: self.correction_ms.load(Ordering::Acquire),
        }
    }

    fn store(&self, plan: Plan) {
        self.anchor_monotonic_ms
            .store(plan.anchor_monotonic_ms, Ordering::Release);
        self.anchor_store_ms
            .store(plan.anchor_store_ms, Ordering::Release);
        self.correction_ms
            .store(plan.correction_ms, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
