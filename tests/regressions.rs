//! Faults that were found once, each by its symptom.

mod support;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Forget, Key, KeyState, ManualClock, Operation,
    Store,
};

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

/// An expired result was absent to `get` and to claims, yet forgetting it said that it was there.
#[test]
fn forgetting_an_expired_result_says_that_nothing_was_there_and_removes_what_is_left() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        finish(&store, &key("expired"), b"paid");
        clock.advance(ms(25 * 60 * 60 * 1_000));
        assert!(matches!(store.get(&key("expired")), Ok(KeyState::Absent)));
        let forget = || match mode.style {
            Style::Blocking => store.forget(&key("expired"), Forget::IfCompleted),
            Style::Async => block_on(store.forget_async(&key("expired"), Forget::IfCompleted)),
        };
        assert_eq!(store.stats().completed_keys, 1);
        assert!(!forget().expect("forgotten"));
        assert_eq!(store.stats().completed_keys, 0);
        assert!(!forget().expect("absent"));
        // It does not come back, not even to a process whose clock was set back.
        let left = killed(&store);
        clock.set_wall_ms(START_MS);
        let store = mode.reopen(&left, &clock);
        assert!(matches!(store.get(&key("expired")), Ok(KeyState::Absent)));
        assert_eq!(store.stats().completed_keys, 0);
        drop(directory);
    }
}

/// The list of interrupted keys told how long the lease of an owner would last that was gone.
#[test]
fn an_interrupted_key_has_no_lease_left() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let claim = |options| {
            let claim = mode.claim_with(&store, &key("k"), request(), options);
            owned(claim.expect("a claim"))
        };
        drop(claim(lease(60_000)));
        let listed = store.interrupted().expect("a list");
        assert_eq!(listed[0].lease_left, None);
        // An owner whose lease is over is there until somebody takes over.
        let _late = claim(lease(60_000));
        assert_eq!(
            store.pending().expect("a list")[0].lease_left,
            Some(ms(60_000))
        );
        clock.advance(ms(60_000));
        assert_eq!(
            store.interrupted().expect("a list")[0].lease_left,
            Some(ms(0))
        );
    }
}

/// To its guard an empty checkpoint was a note, to the next attempt there was none.
#[test]
fn an_empty_checkpoint_is_none_to_its_own_attempt_and_to_the_next() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let mut operation = started(mode.claim(&store, &key("k"), request()));
        mode.checkpoint(&mut operation, b"charged").expect("held");
        mode.checkpoint(&mut operation, b"").expect("held");
        assert_eq!(operation.last_checkpoint(), None);
        drop(operation);
        let operation = interrupted(mode.claim(&store, &key("k"), request()));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint, None);
    }
}

/// A sync that took longer than the lease let a guard out that anybody could take over at once.
#[test]
fn a_lease_begins_when_its_guard_is_handed_out() {
    let mode = Mode {
        durability: Durability::Sync,
        style: Style::Async,
    };
    let (_directory, store, clock) = mode.store_and_clock();
    let mut slow = 0;
    for number in 0..200 {
        let key = key(&number.to_string());
        let mut claim = Polled::new(store.claim_with_async(&key, request(), lease(1_000)));
        let operation = match claim.poll() {
            // The disk was faster than this thread.
            Poll::Ready(claim) => started(claim.expect("a claim")),
            Poll::Pending => {
                slow += 1;
                clock.advance(ms(5_000));
                started(claim.finish().expect("a claim"))
            }
        };
        let progress = in_progress(mode.claim(&store, &key, request()));
        assert_eq!(progress.lease_left(), Some(ms(1_000)));
        operation.complete(b"paid").expect("held");
    }
    assert!(slow > 0, "no claim ever waited for the disk");
}

/// Sync claims that are waiting for the disk, on keys of their own, with the store and its clock.
fn while_it_waits(each: impl Fn(&Store, &ManualClock, &Key, Polled<ClaimFuture<'_>>)) {
    let mode = Mode {
        durability: Durability::Sync,
        style: Style::Async,
    };
    let (_directory, store, clock) = mode.store_and_clock();
    let mut slow = 0;
    for number in 0..200 {
        let key = key(&number.to_string());
        let claim = store.claim_with_async(&key, request(), lease(1_000));
        let mut claim: Polled<ClaimFuture<'_>> = Polled::new(Box::pin(claim));
        if let Poll::Ready(claim) = claim.poll() {
            drop(started(claim.expect("a claim")));
            continue;
        }
        slow += 1;
        each(&store, &clock, &key, claim);
    }
    assert!(slow > 0, "no claim ever waited for the disk");
}

type ClaimFuture<'a> = Pin<Box<dyn Future<Output = Result<Claim, ClaimError>> + 'a>>;

/// A lease ran out while its claim waited for the disk. Two claims with leases shorter than a sync
/// took the key from each other for ever, and one of them was handed out after it had lost it.
#[test]
fn a_lease_does_not_run_while_its_claim_waits_for_the_disk() {
    while_it_waits(|store, clock, key, first| {
        clock.advance(ms(5_000));
        let second = store.claim_with(key, request(), lease(1_000));
        let second = in_progress(second.expect("an answer"));
        assert_eq!((second.attempt(), second.lease_left()), (1, None));
        let first = started(first.finish().expect("a claim"));
        let second = store.claim(key, request()).expect("an answer");
        assert_eq!(in_progress(second).lease_left(), Some(ms(1_000)));
        first.complete(b"paid").expect("held");
    });
}

/// Who came to wait before a lease had begun must learn when it ends.
#[test]
fn a_waiter_from_before_the_lease_began_takes_over_when_it_is_over() {
    while_it_waits(|store, clock, key, first| {
        let progress = in_progress(store.claim(key, request()).expect("an answer"));
        let waiter = Polled::new(progress.wait_async()).pending();
        let _first = started(first.finish().expect("a claim"));
        clock.advance(ms(1_001));
        interrupted(waiter.finish().expect("a claim"))
            .complete(b"paid")
            .expect("held");
    });
}

/// A claim that lost its key to an operator while it waited for the disk was handed out all the
/// same: two callers had been told that they own the key.
#[test]
fn a_claim_that_was_fenced_while_it_waited_for_the_disk_is_told_so() {
    while_it_waits(|store, _, key, first| {
        let pending = store.pending().expect("a list");
        let token = pending.iter().find(|pending| pending.key == *key);
        let token = token.expect("the claim").token;
        store.interrupt(key, token).expect("held");
        let second = interrupted(store.claim(key, request()).expect("a claim"));
        let first = in_progress(first.finish().expect("an answer"));
        assert_eq!((first.attempt(), second.attempt()), (2, 2));
        second.complete(b"paid").expect("held");
    });
}

/// The same in a batch, where a claim waits for the records of all the others.
#[test]
fn a_claim_of_a_batch_that_was_fenced_meanwhile_is_told_so() {
    let directory = directory();
    let store = small(Durability::Sync)
        .open(directory.path())
        .expect("a new store");
    let mut slow = 0;
    for number in 0..200 {
        let keys = [0, 1].map(|at| key(&format!("{number}-{at}")));
        let batch = keys.iter().map(|key| (key, request()));
        let batch = store.claim_many_async(batch, ClaimOptions::new());
        let mut batch = Polled::new(Box::pin(batch));
        if batch.poll().is_ready() {
            continue;
        }
        slow += 1;
        let pending = store.pending().expect("a list");
        let first = pending.iter().find(|pending| pending.key == keys[0]);
        let first = first.expect("the claim");
        store.interrupt(&first.key, first.token).expect("held");
        let taken = interrupted(store.claim(&keys[0], request()).expect("a claim"));
        let mut claims = batch.finish();
        let last = started(claims.pop().expect("two").expect("a claim"));
        let lost = in_progress(claims.pop().expect("two").expect("an answer"));
        assert_eq!(lost.attempt(), taken.attempt());
        last.complete(b"paid").expect("held");
        taken.complete(b"paid").expect("held");
    }
    assert!(slow > 0, "no batch ever waited for the disk");
}

/// A waiter that looked again, and found that somebody else had been faster, joined the list anew:
/// it could be turned away for want of a place after it had waited all along.
#[cfg(feature = "testing")]
#[test]
fn a_waiter_that_was_let_in_is_not_turned_away_later() {
    let disk = oncekey::testing::SimulatedDisk::new();
    let store = small(Durability::Buffered)
        .max_waiters_per_key(1)
        .open_simulated(&disk)
        .expect("a new store");
    let store = prepared(store);
    let claim = || store.claim(&key("k"), request()).expect("a claim");
    let first = started(claim());
    let mut waiter = Polled::new(in_progress(claim()).wait_async()).pending();
    // The takeover of the waiter finds no room and has to wait for it, outside of the list.
    disk.capacity(0);
    drop(first);
    let mut held = Vec::new();
    while let Ok(claim) = store.claim(&key(&held.len().to_string()), request()) {
        held.push(started(claim));
    }
    assert!(waiter.poll().is_pending(), "there is no room");
    assert_eq!(store.stats().waiters, 1);
    for operation in held.drain(..4) {
        operation.complete(b"").expect("room was set aside");
    }
    let second = interrupted(claim());
    let other = Polled::new(in_progress(claim()).wait_async()).pending();
    assert!(waiter.poll().is_pending(), "it waits on");
    assert_eq!(store.stats().waiters, 2);
    second.complete(b"paid").expect("held");
    completed(waiter.finish().expect("not turned away"));
    completed(other.finish().expect("an answer"));
}
