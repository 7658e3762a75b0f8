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
        one_executes_the_other_gets_its_answer(&store);
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
        let dropped = spawn(&store, look_once);
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

/// A waiter that goes while the key stays pending leaves nothing behind, whatever happens to the
/// key meanwhile.
#[test]
fn a_dropped_waiter_of_a_pending_key_is_gone() {
    explore(3, || {
        let store = Store::new(3);
        let mut grant = store.start();
        let dropped = spawn(&store, look_once);
        block_on(store.engine.checkpoint(&mut grant, b"n", BUFFERED)).expect("still held");
        dropped.join().expect("dropped");
        store.check_quiet(1);
    });
}

/// Two wait and one of them goes: the other one is woken all the same.
#[test]
fn a_dropped_waiter_takes_nobody_with_it() {
    explore(2, || {
        let store = Store::new(2);
        let grant = store.start();
        let waiter = spawn(&store, |store| store.wait());
        look_once(&store);
        store.complete(&grant, b"a").expect("still held");
        waiter.join().expect("woken");
        store.check_quiet(0);
    });
}

/// Looks, which may register, and goes.
fn look_once(store: &Store) {
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
}

/// Waits until the key is free, or until it is known when to look again.
fn wait_for_a_lease(store: &Store) {
    let mut wait = Wait::new(Arc::clone(&store.engine), &store.request(BUFFERED));
    block_on(poll_fn(|context| match wait.look(context) {
        Poll::Ready(waited) => {
            waited.expect("not closed");
            Poll::Ready(())
        }
        Poll::Pending if wait.sleep(WHILE_ALIVE).is_some() => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    }));
}

/// A claim under way has no lease yet: who sees it is told when it has one, or would sleep over its
/// end.
#[test]
fn a_waiter_learns_of_the_lease_of_a_new_owner() {
    explore(3, || {
        let store = Store::new(4);
        let waiter = spawn(&store, wait_for_a_lease);
        let _hung = store.start_leased();
        waiter.join().expect("it knows when to look again");
        store.check_quiet(1);
    });
}

/// The same where the key goes from an owner that is gone to one with a lease.
#[test]
fn a_waiter_learns_of_the_lease_of_a_takeover() {
    explore(3, || {
        let store = Store::new(4);
        store.engine.abandon(&store.start());
        let waiter = spawn(&store, wait_for_a_lease);
        let mut request = store.request(BUFFERED);
        request.options.lease_ms = 5;
        let taken = block_on(store.engine.claim(&request)).expect("nothing fails");
        assert!(matches!(taken, Outcome::Interrupted(_)), "{taken:?}");
        waiter.join().expect("it knows when to look again");
        store.check_quiet(1);
    });
}

/// The lease is over: its late owner completes while somebody takes over, and a third waits.
#[test]
fn a_waiter_sees_a_late_completion_or_a_takeover() {
    explore(2, || {
        let store = Store::new(4);
        let grant = store.start_leased();
        store.let_the_lease_end();
        let waiter = spawn(&store, |store| store.run(b"w"));
        let late = spawn(&store, move |store| store.complete(&grant, b"a"));
        let own = store.run(b"b");
        let late = late.join().expect("answered");
        let waited = waiter.join().expect("answered");
        let replayed = |answer: &[u8]| Ran::Replayed(answer.to_vec());
        match late {
            Ok(()) => assert_eq!([own, waited], [replayed(b"a"), replayed(b"a")]),
            Err(WriteError::LeaseLost { .. }) if own == Ran::Reconciled(2) => {
                assert_eq!(waited, replayed(b"b"));
            }
            Err(WriteError::LeaseLost { .. }) => {
                assert_eq!([own, waited], [replayed(b"w"), Ran::Reconciled(2)]);
            }
            Err(other) => panic!("{other:?}"),
        }
        store.check_quiet(0);
    });
}

/// The limit on waiters holds over all stripes, and who is turned away is not counted.
#[test]
fn no_more_wait_than_allowed() {
    explore(3, || {
        let store = Store::with(&[4], Options::new().stripes(2).max_waiters(1));
        let keys = keys_of_two_stripes(&store);
        for key in &keys {
            assert!(is_granted(&store.claim_key(key)));
        }
        let begin = |store: &Store, key: &Key| {
            let mut wait = Wait::new(Arc::clone(&store.engine), &store.request_for(key, BUFFERED));
            let looked = wait.look(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            match looked {
                Poll::Pending => Some(wait),
                Poll::Ready(Err(ClaimError::TooManyWaiters { limit: 1 })) => None,
                other => panic!("{other:?}"),
            }
        };
        let [first, second] = keys;
        let other = spawn(&store, move |store| begin(store, &first));
        let own = begin(&store, &second);
        let other = other.join().expect("let in or not");
        let waiting = [own, other].into_iter().flatten().count();
        assert!(waiting <= 1);
        store.check_quiet(2);
    });
}
