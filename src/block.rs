//! Blocking on a future: the whole of the blocking interface.
//!
//! Every operation is written once, as a state machine that is polled; a blocking call polls it on
//! its own thread and parks in between. No runtime is involved.

#[cfg(not(oncekey_loom))]
use std::cell::OnceCell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[cfg(not(oncekey_loom))]
use crate::sync::os::thread_local;
use crate::sync::thread::{self, Thread};
use crate::sync::{self, AtomicBool, Ordering, mutation};

struct Parker {
    thread: Thread,
    notified: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_early = mutation("unparked_before_it_is_noted");
        if is_early {
            self.thread.unpark();
        }
        if !self.notified.swap(true, Ordering::AcqRel) && !is_early {
            self.thread.unpark();
        }
    }
}

#[cfg(not(oncekey_loom))]
thread_local! {
    static PARKER: OnceCell<(Arc<Parker>, Waker)> = const { OnceCell::new() };
}

#[cfg(oncekey_loom)]
pub(crate) use loom::future::block_on;

/// Polls `future` to its end on this thread.
#[cfg(not(oncekey_loom))]
pub(crate) fn block_on<F: std::future::Future>(future: F) -> F::Output {
    park_on(future)
}

/// What [`block_on`] is outside of models, which have loom's own but for a few.
#[cfg_attr(all(oncekey_loom, not(test)), expect(dead_code))]
fn park_on<F: std::future::Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    with_parker(|parker, context| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return output;
            }
            while !parker.notified.swap(false, Ordering::AcqRel) {
                thread::park();
            }
        }
    })
}

/// Calls `poll` until it is ready or says that time is up. `Pending` comes with how long the thread
/// may sleep before it must look again; `None` is until it is woken.
pub(crate) fn block_with_timeout<T>(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    mut sleep: impl FnMut() -> Option<Duration>,
) -> T {
    with_parker(|parker, context| {
        loop {
            if let Poll::Ready(output) = poll(context) {
                return output;
            }
            while !parker.notified.swap(false, Ordering::AcqRel) {
                match sleep() {
                    Some(duration) => {
                        sync::park_timeout(duration);
                        parker.notified.store(false, Ordering::Release);
                        break;
                    }
                    None => thread::park(),
                }
            }
        }
    })
}

fn with_parker<T>(body: impl FnOnce(&Parker, &mut Context<'_>) -> T) -> T {
    #[cfg(oncekey_loom)]
    {
        let (parker, waker) = new_parker();
        body(&parker, &mut Context::from_waker(&waker))
    }
    #[cfg(not(oncekey_loom))]
    with_own_parker(body)
}

/// The thread keeps its parker.
#[cfg(not(oncekey_loom))]
fn with_own_parker<T>(body: impl FnOnce(&Parker, &mut Context<'_>) -> T) -> T {
    let mut body = Some(body);
    let mut run = |(parker, waker): &(Arc<Parker>, Waker)| {
        body.take()
            .map(|body| body(parker, &mut Context::from_waker(waker)))
    };
    // A thread that is ending has no thread-locals any more, but its destructors may still call us.
    let done = match PARKER.try_with(|cell| run(cell.get_or_init(new_parker))) {
        Ok(done) => done,
        Err(_) => run(&new_parker()),
    };
    done.unwrap_or_else(|| unreachable!("the body runs once"))
}

fn new_parker() -> (Arc<Parker>, Waker) {
    let parker = Arc::new(Parker {
        thread: thread::current(),
        notified: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&parker));
    (parker, waker)
}

#[cfg(all(test, oncekey_loom))]
mod loom_tests;

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wake_from_another_thread_ends_the_wait() {
        let mut first = true;
        let value = block_on(std::future::poll_fn(|context| {
            if std::mem::take(&mut first) {
                let waker = context.waker().clone();
                thread::spawn(move || waker.wake());
                return Poll::Pending;
            }
            Poll::Ready(7)
        }));
        assert_eq!(value, 7);
    }

    #[test]
    fn a_timed_wait_looks_again_when_its_time_is_up() {
        let mut polls = 0;
        let polled = block_with_timeout(
            |_| {
                polls += 1;
                if polls == 3 {
                    Poll::Ready(polls)
                } else {
                    Poll::Pending
                }
            },
            || Some(Duration::from_millis(1)),
        );
        assert_eq!(polled, 3);
    }
}
