//! Waiting for the owner of a key: whatever the owner does, nobody sleeps for ever and nobody is
//! left on a list.

use super::*;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

#[test]
fn two_run_one_executes_the_other_gets_its_answer() {
    explore(2, || {
        let store = Store::new(2);
        let other = spawn(&store, |store| store.run(b"a"));
        let own = store.run(b"b");
        match (own, other.join().expect("answered")) {
            (Ran::Executed, Ran::Replayed(answer)) => assert_eq!(answer, b"b"),
            (Ran::Replayed(answer), Ran::Executed) => assert_eq!(answer, b"a"),
            both => panic!("{both:?}"),
        }
        store.check_quiet(0);
    });
}

#[test]
fn two_wait_for_a_completion() {
    explore(2, || {
        let store = Store::new(2);
        let grant = store.start();
        let waiters = [(); 2].map(|()| spawn(&store, |store| store.run(b"b")));
        store.complete(&grant, b"a").expect("still held");
        for waiter in waiters {
            let ran = waiter.join().expect("answered");
            assert_eq!(ran, Ran::Replayed(b"a".to_vec()));
        }
        store.check_quiet(0);
    });
}

#[test]
fn a_waiter_takes_over_from_an_owner_that_is_gone() {
    explore(3, || {
        let store = Store::new(3);
        let grant = store.start();
        let waiter = spawn(&store, |store| store.run(b"b"));
        store.engine.abandon(&grant);
        assert_eq!(waiter.join().expect("answered"), Ran::Reconciled(2));
        store.check_quiet(0);
    });
}

#[test]
fn one_of_two_waiters_takes_over() {
    explore(2, || {
        let store = Store::new(3);
        let grant = store.start();
        let waiter = spawn(&store, |store| store.run(b"b"));
        let gone = spawn(&store, move |store| store.engine.abandon(&grant));
        let own = store.run(b"c");
        gone.join().expect("gone");
        match (own, waiter.join().expect("answered")) {
            (Ran::Reconciled(2), Ran::Replayed(answer)) => assert_eq!(answer, b"c"),
            (Ran::Replayed(answer), Ran::Reconciled(2)) => assert_eq!(answer, b"b"),
            both => panic!("{both:?}"),
        }
        store.check_quiet(0);
    });
}

#[test]
fn a_waiter_starts_over_after_a_release() {
    explore(3, || {
        let store = Store::new(4);
        let grant = store.start();
        let waiter = spawn(&store, |store| store.run(b"b"));
        store.release(&grant);
        assert_eq!(waiter.join().expect("answered"), Ran::Executed);
        store.check_quiet(0);
    });
}

/// A waiter that is dropped leaves its place, and takes nobody else's wake-up with it.
#[test]
fn a_dropped_waiter_leaves_the_list() {
    explore(2, || {
        let store = Store::new(2);
        let grant = store.start();
        let dropped = spawn(&store, |store| {
            let mut wait = pin!(Wait::new(
                Arc::clone(&store.engine),
                &store.request(BUFFERED)
            ));
            block_on(poll_fn(|context| {
                if let Poll::Ready(waited) = wait.as_mut().poll(context) {
                    waited.expect("not closed");
                }
                Poll::Ready(())
            }));
        });
        let waiter = spawn(&store, |store| store.run(b"b"));
        store.complete(&grant, b"a").expect("still held");
        dropped.join().expect("dropped");
        let ran = waiter.join().expect("answered");
        assert_eq!(ran, Ran::Replayed(b"a".to_vec()));
        store.check_quiet(0);
    });
}

/// Closing the store wakes those who wait.
#[test]
fn a_waiter_learns_of_a_close() {
    explore(2, || {
        let store = Store::new(2);
        let _hung = store.start();
        let waiter = spawn(&store, |store| {
            block_on(Wait::new(
                Arc::clone(&store.engine),
                &store.request(BUFFERED),
            ))
        });
        store.engine.close().expect("nothing fails");
        let waited = waiter.join().expect("woken");
        assert!(matches!(
            waited,
            Ok(()) | Err(ClaimError::Unavailable(Unavailable::Closed))
        ));
    });
}
