use super::*;
use crate::clock::{ManualClock, SystemClock};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;
use std::thread;

const HOUR_MS: u64 = 3_600_000;
const START_MS: u64 = 1_700_000_000_000;

fn start(wall_ms: u64, high_water_ms: u64) -> (ManualClock, StoreTime) {
    let clock = ManualClock::new(wall_ms);
    let time = StoreTime::start(Arc::new(clock.clone()), high_water_ms);
    (clock, time)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets `seconds` pass with a reading in each.
fn pass_seconds(clock: &ManualClock, time: &StoreTime, seconds: u64) {
    for _ in 0..seconds {
        clock.advance(ms(1_000));
        time.now_ms();
    }
}

#[test]
fn begins_at_the_later_of_wall_clock_and_high_water() {
    assert_eq!(start(5_000, 0).1.now_ms(), 5_000);
    assert_eq!(start(5_000, 5_000).1.now_ms(), 5_000);
    assert_eq!(start(5_000, 9_000).1.now_ms(), 9_000);
}

#[test]
fn advances_exactly_while_the_clocks_agree() {
    let (clock, time) = start(START_MS, 0);
    for step_ms in [1, 999, 1, 1_000, 1_500, 365 * 24 * HOUR_MS, 0, 7] {
        let before_ms = time.now_ms();
        clock.advance(ms(step_ms));
        assert_eq!(time.now_ms(), before_ms + step_ms);
    }
    assert_eq!(time.now_ms(), clock.wall_ms());
}

#[test]
fn a_wall_clock_that_jumps_ahead_is_steered_to_and_not_followed() {
    let (clock, time) = start(START_MS, 0);
    clock.set_wall_ms(START_MS + HOUR_MS);
    assert_eq!(time.now_ms(), START_MS);
    // The jump is seen at the next look, a second later.
    clock.advance(ms(1_000));
    assert_eq!(time.now_ms(), START_MS + 1_000);
    clock.advance(ms(1_000));
    assert_eq!(time.now_ms(), START_MS + 2_050);
    pass_seconds(&clock, &time, 3_598);
    assert_eq!(time.now_ms(), START_MS + HOUR_MS + 50 * 3_599);
}

#[test]
fn a_wall_clock_that_is_set_back_slows_store_time_and_never_turns_it() {
    let (clock, time) = start(START_MS, 0);
    clock.set_wall_ms(0);
    clock.advance(ms(1_000));
    assert_eq!(time.now_ms(), START_MS + 1_000);
    for second in 1..100 {
        clock.advance(ms(1_000));
        assert_eq!(time.now_ms(), START_MS + 1_000 + second * 950);
    }
}

#[test]
fn a_jump_that_is_put_right_leaves_no_trace() {
    let (clock, time) = start(START_MS, 0);
    clock.set_wall_ms(START_MS + 1_000 * HOUR_MS);
    pass_seconds(&clock, &time, 10);
    clock.set_wall_ms(START_MS + 10_000);
    pass_seconds(&clock, &time, 11);
    assert_eq!(time.now_ms(), clock.wall_ms());
}

#[test]
fn a_store_ahead_of_the_wall_clock_comes_back_to_it() {
    let (clock, time) = start(START_MS, START_MS + 60_000);
    // A minute at 50 ms a second.
    pass_seconds(&clock, &time, 1_199);
    assert_eq!(time.now_ms(), clock.wall_ms() + 50);
    pass_seconds(&clock, &time, 1);
    assert_eq!(time.now_ms(), clock.wall_ms());
    pass_seconds(&clock, &time, 100);
    assert_eq!(time.now_ms(), clock.wall_ms());
}

#[test]
fn an_idle_store_acts_on_its_last_look_for_a_minute_only() {
    let (clock, time) = start(START_MS, 0);
    clock.set_wall_ms(START_MS + 1_000 * HOUR_MS);
    pass_seconds(&clock, &time, 1);
    // Put right while nobody uses the store, for a day.
    clock.set_wall_ms(START_MS + 1_000);
    clock.advance(ms(24 * HOUR_MS));
    assert_eq!(time.now_ms(), clock.wall_ms() + CORRECTION_MS_MAX);
    pass_seconds(&clock, &time, 60);
    assert_eq!(time.now_ms(), clock.wall_ms());
}

#[test]
fn the_ends_of_time_are_survived() {
    let (clock, time) = start(u64::MAX, 0);
    assert_eq!(time.now_ms(), u64::MAX);
    clock.advance(Duration::MAX);
    assert_eq!(time.now_ms(), u64::MAX);

    let (clock, time) = start(0, u64::MAX - 1_500);
    clock.advance(ms(1_000));
    assert_eq!(time.now_ms(), u64::MAX - 550);
    clock.advance(Duration::MAX);
    assert!(time.now_ms() >= u64::MAX - 550);

    let (clock, time) = start(0, 0);
    clock.advance_monotonic(ms(1_000));
    assert_eq!(time.now_ms(), 1_000);
    clock.advance_monotonic(Duration::MAX);
    assert!(time.now_ms() >= u64::MAX - CORRECTION_MS_MAX);
}

/// A clock on which a second passes while it is being read, as long as `stalls` lasts.
#[derive(Debug)]
struct Stalling {
    clock: ManualClock,
    stalls: AtomicU64,
    wall_reads: AtomicU64,
}

impl Clock for Stalling {
    fn wall_ms(&self) -> u64 {
        self.wall_reads.fetch_add(1, Ordering::Relaxed);
        if self.stalls.load(Ordering::Relaxed) > 0 {
            self.stalls.fetch_sub(1, Ordering::Relaxed);
            self.clock.advance(ms(1_000));
        }
        self.clock.wall_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }
}

fn start_stalling() -> (Arc<Stalling>, StoreTime) {
    let clock = Arc::new(Stalling {
        clock: ManualClock::new(START_MS),
        stalls: AtomicU64::new(0),
        wall_reads: AtomicU64::new(0),
    });
    let time = StoreTime::start(Arc::clone(&clock) as Arc<dyn Clock>, 0);
    (clock, time)
}

#[test]
fn a_thread_stopped_between_two_readings_does_not_take_them_for_one() {
    let (clock, time) = start_stalling();
    clock.clock.advance(ms(1_000));
    clock.stalls.store(2, Ordering::Relaxed);
    // The look ends two seconds after it began, and the call answers for its beginning.
    time.now_ms();
    assert_eq!(clock.stalls.load(Ordering::Relaxed), 0);
    for _ in 0..100 {
        clock.clock.advance(ms(100));
        assert_eq!(time.now_ms(), clock.clock.wall_ms());
    }
}

#[test]
fn a_clock_too_slow_to_be_sampled_still_steers() {
    let (clock, time) = start_stalling();
    clock.clock.set_wall_ms(START_MS + HOUR_MS);
    clock.stalls.store(u64::MAX, Ordering::Relaxed);
    let begin_ms = time.now_ms();
    let monotonic_ms = clock.monotonic_ms();
    for _ in 0..100 {
        clock.clock.advance(ms(1_000));
        time.now_ms();
    }
    let went_ms = time.now_ms() - begin_ms;
    let passed_ms = clock.monotonic_ms() - monotonic_ms;
    assert!(went_ms > passed_ms + passed_ms / 25 && went_ms <= passed_ms + passed_ms / 20);
}

#[test]
fn the_wall_clock_is_looked_at_once_a_second() {
    let (clock, time) = start_stalling();
    let before = clock.wall_reads.load(Ordering::Relaxed);
    for _ in 0..10_000 {
        clock.clock.advance(ms(1));
        time.now_ms();
        time.now_ms();
    }
    assert_eq!(clock.wall_reads.load(Ordering::Relaxed) - before, 10);
}

#[test]
fn a_latch_never_shows_halves_of_two_plans() {
    let plan_of = |number: u64| Plan {
        anchor_monotonic_ms: number,
        anchor_store_ms: number.wrapping_mul(3),
        correction_ms: -(number as i64),
    };
    let latch = Latch::new(plan_of(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut newest = 0;
                while !done.load(Ordering::Relaxed) {
                    let plan = latch.read();
                    assert_eq!(plan, plan_of(plan.anchor_monotonic_ms));
                    assert!(plan.anchor_monotonic_ms >= newest);
                    newest = plan.anchor_monotonic_ms;
                }
            });
        }
        for number in 1..=200_000 {
            latch.replace(plan_of(number));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(latch.read(), plan_of(200_000));
}

/// Each thread publishes what it got; nobody may get less than was published before its call.
fn check_never_goes_back_across_threads(time: &StoreTime, rounds: usize, tick: impl Fn() + Sync) {
    let published_ms = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let before_ms = published_ms.load(Ordering::Acquire);
                    let now_ms = time.now_ms();
                    assert!(now_ms >= before_ms);
                    published_ms.fetch_max(now_ms, Ordering::AcqRel);
                    tick();
                }
            });
        }
    });
}

#[test]
fn threads_agree_that_it_never_goes_back() {
    let (clock, time) = start(START_MS, START_MS + 2_000);
    let advances = AtomicU64::new(0);
    check_never_goes_back_across_threads(&time, 20_000, || {
        advances.fetch_add(1, Ordering::Relaxed);
        clock.advance(ms(7));
    });
    assert_eq!(clock.monotonic_ms(), 7 * advances.load(Ordering::Relaxed));

    let time = StoreTime::start(Arc::new(SystemClock::new()), 0);
    check_never_goes_back_across_threads(&time, 20_000, || {});
}

#[test]
fn a_manual_clock_moved_by_another_thread_is_followed_exactly() {
    let (clock, time) = start(START_MS, 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                time.now_ms();
            }
        });
        for _ in 0..2_000 {
            clock.advance(ms(1_000));
            assert_eq!(time.now_ms(), clock.wall_ms());
        }
        done.store(true, Ordering::Relaxed);
    });
}

proptest! {
    /// Whatever is done to the wall clock, between any two readings store time passes at 95 to
    /// 105 % of the monotonic clock's pace, give or take a millisecond for rounding.
    #[test]
    fn its_pace_stays_within_a_twentieth(
        high_water_ms in 0..2 * START_MS,
        moves in prop::collection::vec((0..10_000_u64, prop::option::of(0..2 * START_MS)), 1..60),
    ) {
        let (clock, time) = start(START_MS, high_water_ms);
        let mut readings = vec![(0, time.now_ms())];
        for (step_ms, wall_ms) in moves {
            clock.advance(ms(step_ms));
            if let Some(wall_ms) = wall_ms {
                clock.set_wall_ms(wall_ms);
            }
            let reading = (clock.monotonic_ms(), time.now_ms());
            for (monotonic_ms, store_ms) in &readings {
                let passed_ms = reading.0 - monotonic_ms;
                let went_ms = reading.1 - store_ms;
                prop_assert!(went_ms <= passed_ms + passed_ms / 20 + 1, "{went_ms} in {passed_ms}");
                prop_assert!(went_ms + 2 >= passed_ms - passed_ms / 20, "{went_ms} in {passed_ms}");
            }
            readings.push(reading);
        }
    }

    #[test]
    fn it_is_exact_for_any_steps_of_agreeing_clocks(
        wall_ms in 0..2 * START_MS,
        steps in prop::collection::vec((0..100_000_u64, any::<bool>()), 1..60),
    ) {
        let (clock, time) = start(wall_ms, 0);
        for (step_ms, reads) in steps {
            clock.advance(ms(step_ms));
            if reads {
                prop_assert_eq!(time.now_ms(), clock.wall_ms());
            }
        }
        prop_assert_eq!(time.now_ms(), clock.wall_ms());
    }

    /// Once the wall clock is left alone it is reached in twenty times the difference, and kept.
    #[test]
    fn it_converges(apart_ms in -100_000..100_000_i64, step_ms in 1_000..20_000_u64) {
        let (clock, time) = start(START_MS, 0);
        clock.set_wall_ms(START_MS.saturating_add_signed(apart_ms));
        clock.advance(ms(LOOK_EVERY_MS));
        time.now_ms();
        let needed_ms = apart_ms.unsigned_abs() * STEER_PARTS;
        // A step may leave up to a millisecond of its steering to the next.
        for _ in 0..needed_ms.div_ceil(step_ms / STEER_PARTS * STEER_PARTS) {
            clock.advance(ms(step_ms));
            time.now_ms();
        }
        for _ in 0..10 {
            prop_assert_eq!(time.now_ms(), clock.wall_ms());
            clock.advance(ms(step_ms));
        }
    }
}
