//! The store wakes whoever waits, whatever their wakers do: run the task on the spot, panic, or drop
//! it with all that it holds of the store.

mod support;

use std::any::Any;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use oncekey::{Claim, ClaimOptions, Durability, Store};

use support::*;

#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// A future that waits for `k-1`, which `owner` holds.
fn waiting(store: &Store) -> Pin<Box<dyn Future<Output = Claim> + Send>> {
    let progress = in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    Box::pin(async move { progress.wait_async().await.expect("an answer") })
}

/// A future whose claim waits for its sync.
fn claiming(store: &Store, id: &str) -> Pin<Box<dyn Future<Output = Claim> + Send>> {
    let sync = ClaimOptions::new().durability(Durability::Sync);
    let claim = store.claim_with_async(&key(id), request(), sync);
    Box::pin(async move { claim.await.expect("a claim") })
}

#[test]
fn a_future_that_moves_to_another_task_is_woken_there() {
    let (_directory, store) = buffered();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let (old, new) = (Arc::<Counting>::default(), Arc::<Counting>::default());
    let (old_waker, new_waker) = (Waker::from(Arc::clone(&old)), Waker::from(Arc::clone(&new)));
    let mut future = waiting(&store);
    for _ in 0..2 {
        assert!(poll(future.as_mut(), &old_waker).is_pending());
        assert!(poll(future.as_mut(), &new_waker).is_pending());
    }
    // Not kept twice.
    assert_eq!(Arc::strong_count(&old), 2);
    operation.complete(b"paid").expect("a completion");
    assert_eq!((old.count(), new.count()), (0, 1));
    assert!(poll(future.as_mut(), &new_waker).is_ready());

    let mut future = claiming(&store, "k-2");
    let before = new.count();
    assert!(poll(future.as_mut(), &old_waker).is_pending());
    match poll(future.as_mut(), &new_waker) {
        Poll::Pending => eventually("its wake", || new.count() > before),
        Poll::Ready(_) => return,
    }
    assert!(poll(future.as_mut(), &new_waker).is_ready());
}

#[test]
fn polling_again_and_again_takes_no_second_place() {
    let directory = directory();
    let options = small(Durability::Buffered).max_waiters_per_key(1);
    let store = options.open(directory.path()).expect("a store");
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let mut future = waiting(&store);
    for _ in 0..100 {
        let waker = Waker::from(Arc::<Counting>::default());
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    assert_eq!(store.stats().waiters, 1);
    drop(operation);
    let waker = Waker::from(Arc::<Counting>::default());
    assert!(poll(future.as_mut(), &waker).is_ready());
    assert_eq!(store.stats().waiters, 0);
}

/// A task that runs on the spot, in whatever thread wakes it.
struct Inline {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    again: AtomicBool,
}

impl Inline {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        let task = Arc::new(Self {
            future: Mutex::new(Some(Box::pin(future))),
            again: AtomicBool::new(false),
        });
        Arc::clone(&task).wake();
        task
    }

    fn is_done(&self) -> bool {
        self.future.try_lock().is_ok_and(|future| future.is_none())
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst) {
            // Whoever holds it polls it once more before letting go.
            let Ok(mut future) = self.future.try_lock() else {
                return;
            };
            self.again.store(false, Ordering::SeqCst);
            if let Some(running) = future.as_mut() {
                let waker = Waker::from(Arc::clone(&self));
                if poll(running.as_mut(), &waker).is_ready() {
                    *future = None;
                }
            }
        }
    }
}

#[test]
fn tasks_that_run_inside_their_wake_come_to_an_end() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let owners = Arc::new(AtomicUsize::new(0));
        let first = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let tasks: Vec<_> = (0..30)
            .map(|number| {
                let (store, owners) = (store.clone(), Arc::clone(&owners));
                Inline::spawn(async move {
                    let mut claim = store.claim_async(&key("k-1"), request()).await;
                    while let Ok(Claim::InProgress(progress)) = claim {
                        claim = progress.wait_async().await;
                    }
                    let mut operation = owned(claim.expect("an answer"));
                    owners.fetch_add(1, Ordering::SeqCst);
                    operation
                        .checkpoint_async(number.to_string())
                        .await
                        .expect("a checkpoint");
                    if number % 2 == 0 {
                        drop(operation);
                    } else {
                        operation.release_async().await.expect("a release");
                    }
                })
            })
            .collect();
        first.release().expect("a release");
        eventually("every task's end", || {
            tasks.iter().all(|task| task.is_done())
        });
        assert_eq!(owners.load(Ordering::SeqCst), 30, "{durability:?}");
        drop(tasks);
        assert_eq!(store.stats().waiters, 0);
    }
}

/// A waker that does nothing, and drops what it holds when it goes.
struct Laden {
    _load: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Wake for Laden {
    fn wake(self: Arc<Self>) {}
}

fn laden(load: impl Any + Send) -> Waker {
    Waker::from(Arc::new(Laden {
        _load: Mutex::new(Some(Box::new(load))),
    }))
}

/// Runs `body` in a thread of its own, so that a deadlock is a failure and no hang.
#[track_caller]
fn comes_to_an_end(what: &str, body: impl FnOnce() + Send + 'static) {
    let running = thread::spawn(body);
    eventually(what, || running.is_finished());
    running.join().expect("no panic");
}

#[test]
fn a_waker_that_is_replaced_may_hold_what_waits_for_the_same_key() {
    comes_to_an_end("the replacement", || {
        let (_directory, store) = buffered();
        let _operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let mut inner = waiting(&store);
        assert!(poll(inner.as_mut(), Waker::noop()).is_pending());
        let mut outer = waiting(&store);
        assert!(poll(outer.as_mut(), &laden(inner)).is_pending());
        assert_eq!(store.stats().waiters, 2);
        // The old waker goes, and with it the inner future.
        assert!(poll(outer.as_mut(), Waker::noop()).is_pending());
        assert_eq!(store.stats().waiters, 1);
    });
}

#[test]
fn a_waker_that_is_cancelled_may_hold_what_waits_for_the_same_key() {
    comes_to_an_end("the cancellation", || {
        let (_directory, store) = buffered();
        let _operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let mut inner = waiting(&store);
        assert!(poll(inner.as_mut(), Waker::noop()).is_pending());
        let mut outer = waiting(&store);
        assert!(poll(outer.as_mut(), &laden(inner)).is_pending());
        drop(outer);
        assert_eq!(store.stats().waiters, 0);
    });
}

#[test]
fn a_waker_may_hold_a_guard_of_another_key() {
    comes_to_an_end("the cancellation", || {
        let directory = directory();
        let options = small(Durability::Buffered).stripes(1);
        let store = options.open(directory.path()).expect("a store");
        let _operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let other = started(store.claim(&key("k-2"), request()).expect("a claim"));
        let mut future = waiting(&store);
        assert!(poll(future.as_mut(), &laden(other)).is_pending());
        drop(future);
        assert_eq!(store.interrupted().expect("a list").len(), 1);
    });
}

#[test]
fn a_waker_that_waits_for_a_lease_may_hold_another_that_does() {
    comes_to_an_end("the cancellation", || {
        let (_directory, store) = buffered();
        let claim = store.claim_with(&key("k-1"), request(), lease(3_600_000));
        let _operation = started(claim.expect("a claim"));
        for cancel in [true, false] {
            let mut inner = waiting(&store);
            assert!(poll(inner.as_mut(), Waker::noop()).is_pending());
            let mut outer = waiting(&store);
            assert!(poll(outer.as_mut(), &laden(inner)).is_pending());
            if !cancel {
                assert!(poll(outer.as_mut(), Waker::noop()).is_pending());
            }
        }
        assert_eq!(store.stats().waiters, 0);
    });
}

#[test]
fn a_waker_that_waits_for_a_sync_may_hold_another_that_does() {
    comes_to_an_end("the cancellation", || {
        let (_directory, store) = buffered();
        for round in 0..50 {
            let mut inner = claiming(&store, &format!("inner-{round}"));
            drop(poll(inner.as_mut(), Waker::noop()));
            let mut outer = claiming(&store, &format!("outer-{round}"));
            let waker = laden(inner);
            if poll(outer.as_mut(), &waker).is_pending() && round % 2 == 0 {
                drop(waker);
                drop(poll(outer.as_mut(), Waker::noop()));
            }
        }
        assert_eq!(store.pending().expect("a list").len(), 0);
    });
}

struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics, as this test wants it to");
    }
}

#[test]
fn a_waker_that_panics_costs_neither_the_owner_nor_the_others_their_answer() {
    for end in ["complete", "release", "drop", "interrupt", "forget"] {
        let (_directory, store) = buffered();
        let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
        let mut wicked = waiting(&store);
        let panicking = Waker::from(Arc::new(Panicking));
        assert!(poll(wicked.as_mut(), &panicking).is_pending());
        let fair = Arc::<Counting>::default();
        let waker = Waker::from(Arc::clone(&fair));
        let mut other = waiting(&store);
        assert!(poll(other.as_mut(), &waker).is_pending());
        let ended = panic::catch_unwind(AssertUnwindSafe(|| match end {
            "complete" => drop(operation.complete(b"paid").expect("a completion")),
            "release" => operation.release().expect("a release"),
            "drop" => drop(operation),
            "interrupt" => store
                .interrupt(&key("k-1"), operation.token())
                .expect("interrupted"),
            _ => {
                store
                    .forget(&key("k-1"), oncekey::Forget::Force)
                    .expect("forgotten");
            }
        }));
        assert!(
            ended.is_ok(),
            "{end}: the owner pays for somebody else's waker"
        );
        assert_eq!(fair.count(), 1, "{end}: the other one was not woken");
        assert!(poll(other.as_mut(), &waker).is_ready());
    }
}

#[test]
fn a_waker_that_panics_in_the_stores_own_thread_stops_nothing() {
    let directory = directory();
    let store = small(Durability::Sync)
        .open(directory.path())
        .expect("a store");
    for round in 0..10 {
        let mut wicked = claiming(&store, &format!("wicked-{round}"));
        let panicking = Waker::from(Arc::new(Panicking));
        drop(poll(wicked.as_mut(), &panicking));
        // Others are served all the same, and so is this one when it is polled again.
        let fair = block_on(claiming(&store, &format!("fair-{round}")));
        drop(started(fair));
        drop(started(block_on(wicked)));
    }
    assert!(!store.stats().poisoned);
    store.close().expect("closes");
}
