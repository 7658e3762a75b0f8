//! The thread of the timer: it rings what is due, sleeps while nothing is, and ends when it is told.
//! Time does not pass in a model, so every alarm that is to ring is due at once.

use std::future::poll_fn;
use std::task::Poll;

use super::*;
use crate::block::block_on;
use crate::sync::explore;

/// Waits for an alarm.
fn wait_for_an_alarm(timer: &Timer) {
    let mut alarm = None;
    block_on(poll_fn(|context| {
        if alarm.is_some() {
            return Poll::Ready(());
        }
        alarm = Some(timer.wake_after(Duration::ZERO, context.waker().clone()));
        Poll::Pending
    }));
}

#[test]
fn an_alarm_rings_for_each_who_waits() {
    explore(2, || {
        let timer = Arc::new(Timer::default());
        let other = {
            let timer = Arc::clone(&timer);
            thread::spawn(move || wait_for_an_alarm(&timer))
        };
        wait_for_an_alarm(&timer);
        other.join().expect("rung");
        timer.stop();
    });
}

/// An alarm is taken back while it may be ringing: it is gone, and the next one rings.
#[test]
fn a_dropped_alarm_is_gone() {
    explore(3, || {
        let timer = Timer::default();
        let never = Duration::from_secs(3_600);
        drop(timer.wake_after(never, std::task::Waker::noop().clone()));
        assert!(timer.shared.state.lock().alarms.is_empty());
        wait_for_an_alarm(&timer);
        timer.stop();
    });
}

/// Told to end before it has begun, in the middle of ringing, or asleep: it ends.
#[test]
fn the_thread_ends_when_told() {
    explore(3, || {
        let timer = Timer::default();
        let alarm = timer.wake_after(Duration::ZERO, std::task::Waker::noop().clone());
        timer.stop();
        drop(alarm);
        assert!(timer.shared.state.lock().alarms.is_empty());
    });
}
