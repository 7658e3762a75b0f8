//! Faults that were found once, each by its symptom.

mod support;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;

use oncekey::{Durability, Key, Operation};

use support::*;

/// A small record that took the last words of a segment before a large one could give them up was
/// followed by the next segment, with a hole in between: the log ended there for every sync and for
/// the next open.
#[test]
fn records_of_mixed_sizes_leave_no_hole_at_a_roll_over() {
    let (directory, store) = buffered();
    let keys: Vec<Vec<Key>> = (0..4)
        .map(|thread| (0..600).map(|n| key(&format!("{thread}-{n}"))).collect())
        .collect();
    thread::scope(|scope| {
        for (number, keys) in keys.iter().enumerate() {
            let store = &store;
            scope.spawn(move || {
                for key in keys {
                    finish(store, key, vec![7; [0, 40, 900, 4_000][number]]);
                }
            });
        }
    });
    store.flush().expect("the log has no hole");
    drop(store);
    let store = reopen(&directory, Durability::Buffered);
    for key in keys.iter().flatten() {
        completed(store.claim(key, request()).expect("a claim"));
    }
}

/// A response larger than the room set aside was refused for want of space when all the segments
/// that were ready were promised to others, on a disk with plenty.
#[test]
fn large_responses_are_stored_however_much_is_promised_to_others() {
    let (_directory, store) = buffered();
    let mut held = VecDeque::new();
    for n in 0..400_usize {
        let claim = |id: &str| {
            let key = key(&format!("{id}-{n}"));
            started(store.claim(&key, request()).expect("a claim"))
        };
        let large = claim("large");
        held.extend(["a", "b", "c", "d"][..n % 5].iter().map(|id| claim(id)));
        held.drain(..held.len().saturating_sub(n % 17));
        large
            .complete(vec![7; 15_000])
            .expect("the disk is not full");
    }
}

/// A ticket's operation has room for its completion set aside, yet resuming it asked for as much
/// again: on a full disk a key that was claimed could not be completed.
#[cfg(feature = "testing")]
#[test]
fn a_ticket_is_resumed_and_completed_on_a_full_disk() {
    let disk = oncekey::testing::SimulatedDisk::new();
    let store = small(Durability::Buffered)
        .open_simulated(&disk)
        .expect("a new store");
    let claimed = store.claim_with(&key("handed on"), request(), lease(3_600_000));
    let ticket = started(claimed.expect("a claim"))
        .into_ticket()
        .expect("a ticket");
    eventually("a prepared segment", || {
        store.stats().segments_prepared == 1
    });
    disk.capacity(0);
    let mut held = Vec::new();
    while let Ok(claim) = store.claim(&key(&format!("{}", held.len())), request()) {
        held.push(started(claim));
    }
    let free = store.stats().available_bytes;
    assert!((500..4_000).contains(&free), "{free} bytes are left");
    let operation = started(store.resume(&ticket).expect("its room is still its own"));
    operation
        .complete(vec![7; 4_096])
        .expect("room was set aside");
    for operation in held {
        operation
            .complete(vec![7; 4_096])
            .expect("room was set aside");
    }
}

/// Runs what a test may hang in on a thread of its own.
fn ends(what: &str, body: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(body);
    eventually(what, || thread.is_finished());
    thread.join().expect("no panic");
}

/// A waker that does something when it is woken, and something when it is gone.
struct Reacts {
    woken: Box<dyn Fn() + Send + Sync>,
    #[expect(dead_code, reason = "only dropped")]
    gone: Mutex<Option<Operation>>,
}

impl Wake for Reacts {
    fn wake(self: Arc<Self>) {
        (self.woken)();
    }
}

fn reacts(woken: impl Fn() + Send + Sync + 'static, gone: Option<Operation>) -> Waker {
    Waker::from(Arc::new(Reacts {
        woken: Box::new(woken),
        gone: Mutex::new(gone),
    }))
}

fn is_pending<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> bool {
    future.poll(&mut Context::from_waker(waker)).is_pending()
}

/// The last handle of a task may be the waker that the store holds. Dropping it drops the task and
/// what is in it, a guard for example, which takes the lock that was held to drop the waker.
#[test]
fn a_guard_in_a_task_that_goes_with_its_waker_is_no_deadlock() {
    for replaced in [false, true] {
        ends("the wait", move || {
            let directory = directory();
            let options = small(Durability::Buffered).stripes(1);
            let store = options.open(directory.path()).expect("a new store");
            let _held = started(store.claim(&key("held"), request()).expect("a claim"));
            let inner = started(store.claim(&key("inner"), request()).expect("a claim"));
            let progress = in_progress(store.claim(&key("held"), request()).expect("a claim"));
            let mut wait = Box::pin(progress.wait_async());
            let waker = reacts(|| (), Some(inner));
            assert!(is_pending(wait.as_mut(), &waker));
            drop(waker);
            if replaced {
                assert!(is_pending(wait.as_mut(), Waker::noop()));
            }
            drop(wait);
            assert_eq!(store.interrupted().expect("open").len(), 1);
        });
    }
}

/// The same where a wait for the disk is replaced or given up.
#[test]
fn a_guard_in_a_task_that_waits_for_the_disk_is_no_deadlock() {
    for replaced in [false, true] {
        ends("the claim", move || {
            let directory = directory();
            let store = small(Durability::Sync)
                .open(directory.path())
                .expect("a new store");
            for n in 0..20 {
                let inner = store.claim(&key(&format!("inner-{n}")), request());
                let inner = started(inner.expect("a claim"));
                let mut claim = Box::pin(store.claim_async(&key(&n.to_string()), request()));
                let waker = reacts(|| (), Some(inner));
                if !is_pending(claim.as_mut(), &waker) {
                    continue;
                }
                drop(waker);
                if replaced {
                    let _ = is_pending(claim.as_mut(), Waker::noop());
                }
                drop(claim);
            }
        });
    }
}

/// An executor that polls inside of `wake` runs a task within `close`, and the task may use the
/// store.
#[test]
fn a_waker_may_use_the_store_while_it_is_being_closed() {
    ends("the close", || {
        let (_directory, store) = buffered();
        let _held = started(store.claim(&key("held"), request()).expect("a claim"));
        let progress = in_progress(store.claim(&key("held"), request()).expect("a claim"));
        let mut wait = Box::pin(progress.wait_async());
        let (inner, calls) = (store.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let waker = reacts(
            move || {
                assert!(inner.flush().is_err());
                assert!(inner.close().is_ok());
                counted.fetch_add(1, Ordering::Relaxed);
            },
            None,
        );
        assert!(is_pending(wait.as_mut(), &waker));
        store.close().expect("closes");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

/// A waker that panics took a thread of the store with it: whoever waited for the disk after that
/// waited for ever.
#[test]
fn a_waker_that_panics_hurts_nobody_else() {
    ends("the claims", || {
        let directory = directory();
        let store = small(Durability::Sync)
            .open(directory.path())
            .expect("a new store");
        let woken = Arc::new(AtomicUsize::new(0));
        for n in 0..5 {
            let counted = Arc::clone(&woken);
            let waker = reacts(
                move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                    panic!("a waker panics, as this test wants");
                },
                None,
            );
            let id = n.to_string();
            let mut claim = Box::pin(store.claim_async(&key(&id), request()));
            if is_pending(claim.as_mut(), &waker) {
                eventually("the wake", || woken.load(Ordering::Relaxed) > 0);
            }
            drop(owned(block_on(claim).expect("a claim")));
            let again = store.claim_async(&key(&format!("again-{n}")), request());
            drop(started(block_on(again).expect("a claim")));
        }
    });
}
