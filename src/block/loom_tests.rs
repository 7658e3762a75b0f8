//! A thread that parks is woken by whoever wakes its waker, however early that is.

use std::future::poll_fn;
use std::sync::Arc;

use super::*;
use crate::sync::{AtomicU64, Mutex, explore};

/// Something to happen, and a waker to be told of it.
#[derive(Default)]
struct Event {
    waker: Mutex<Option<Waker>>,
    happened: AtomicU64,
}

impl Event {
    /// Ready when it has happened so many times.
    fn poll(&self, times: u64, context: &mut Context<'_>) -> Poll<()> {
        *self.waker.lock() = Some(context.waker().clone());
        if self.happened.load(Ordering::Acquire) >= times {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn happen(&self) {
        self.happened.fetch_add(1, Ordering::AcqRel);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Runs `wait` against so many threads that wake it. It has a thread of its own: what loom joins
/// threads with does not go with parking.
fn race(wakers: usize, wait: impl FnOnce(&Event) + 'static) {
    let event = Arc::new(Event::default());
    let wakers: Vec<_> = (0..wakers)
        .map(|_| {
            let event = Arc::clone(&event);
            thread::spawn(move || event.happen())
        })
        .collect();
    let waiter = thread::spawn(move || wait(&event));
    waiter.join().expect("woken");
    for waker in wakers {
        waker.join().expect("it woke");
    }
}

#[test]
fn a_wake_is_never_lost() {
    explore(3, || {
        race(1, |event| {
            park_on(poll_fn(|context| event.poll(1, context)));
        });
    });
}

#[test]
fn two_wake_one_thread() {
    explore(2, || {
        race(2, |event| {
            block_with_timeout(|context| event.poll(2, context), || None);
        });
    });
}
