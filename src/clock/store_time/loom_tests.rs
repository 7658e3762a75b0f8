//! The latch: a reader sees a plan that was made, whole; and time does not go back for anybody.

use super::*;
use crate::sync::explore;
use crate::sync::thread;

fn plan(number: u64) -> Plan {
    Plan {
        anchor_monotonic_ms: number,
        anchor_store_ms: 10 * number,
        correction_ms: 100 * number as i64,
    }
}

/// The place that is read is written again meanwhile, two plans later.
#[test]
fn a_plan_is_read_whole_while_it_is_replaced_twice() {
    explore(3, || {
        let latch = Arc::new(Latch::new(plan(0)));
        let other = Arc::clone(&latch);
        let writer = thread::spawn(move || {
            other.replace(plan(1));
            other.replace(plan(2));
        });
        let first = latch.read();
        let second = latch.read();
        for read in [first, second] {
            assert_eq!(read, plan(read.anchor_monotonic_ms));
        }
        assert!(first.anchor_monotonic_ms <= second.anchor_monotonic_ms);
        writer.join().expect("replaced");
        assert_eq!(latch.read(), plan(2));
    });
}

/// A monotonic clock that anybody can move ahead, beside a wall clock that stands still.
#[derive(Debug)]
struct Moved(AtomicU64);

impl Clock for Moved {
    fn wall_ms(&self) -> u64 {
        5_000
    }

    fn monotonic_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One looks at the wall clock, and from there steers towards it; the other one comes late, and goes
/// by the earlier plan for once. What it was told it is not told less than afterwards.
#[test]
fn time_neither_goes_back_nor_jumps() {
    explore(3, || {
        let clock = Arc::new(Moved(AtomicU64::new(0)));
        let time = Arc::new(StoreTime::start(Arc::clone(&clock) as Arc<dyn Clock>, 0));
        let read_at = |monotonic_ms, times| {
            let (clock, time) = (Arc::clone(&clock), Arc::clone(&time));
            move || {
                clock.0.fetch_max(monotonic_ms, Ordering::Relaxed);
                let mut latest_ms = 5_000;
                for _ in 0..times {
                    let now_ms = time.now_ms();
                    assert!(now_ms >= latest_ms, "{now_ms} after {latest_ms}");
                    assert!(now_ms <= 5_000 + 2_600, "{now_ms} is ahead of both clocks");
                    latest_ms = now_ms;
                }
            }
        };
        let other = thread::spawn(read_at(1_500, 1));
        read_at(2_600, 2)();
        other.join().expect("told");
    });
}
