//! The way of blocking calls, which make no future where there is nothing to wait for, against the
//! other one: the same answers, and none before what it rests on is durable.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use crate::claim::Claim;

/// Everything up to this many records would survive a loss of power.
fn check_durable(store: &Store, records: u64) {
    let begin = crate::log::loom_tests::BASE + crate::log::segment::FIRST_RECORD;
    let durable = store.platters[0].durable_up_to();
    assert!(
        durable >= begin + records * RECORD_WORDS,
        "answered, and not on the disk"
    );
}

fn claim_blocking(store: &Store, level: Level) -> Outcome {
    let claimed = store.engine.claim_blocking(&store.request(level));
    claimed.expect("nothing fails")
}

fn complete_blocking(store: &Store, grant: &Grant, level: Level) {
    let finished = store
        .engine
        .finish_blocking(grant, completion(b"a"), level)
        .map_err(|refusal| refusal.error);
    let stored = finished.expect("still held").expect("completed");
    assert_eq!(response_of(&stored), b"a");
}

#[test]
fn a_blocking_and_an_async_claim_have_one_owner() {
    explore(3, || {
        let store = Store::new(2);
        let other = spawn(&store, Store::claim);
        let outcomes = [
            claim_blocking(&store, BUFFERED),
            other.join().expect("answered"),
        ];
        let granted = outcomes.iter().filter(|outcome| is_granted(outcome));
        assert_eq!(granted.count(), 1, "{outcomes:?}");
        store.check_quiet(1);
    });
}

#[test]
fn a_blocking_completion_meets_both_kinds_of_claim() {
    explore(2, || {
        let store = Store::new(2);
        let grant = store.start();
        let claims = [
            spawn(&store, Store::claim),
            spawn(&store, |store| claim_blocking(store, BUFFERED)),
        ];
        complete_blocking(&store, &grant, BUFFERED);
        for claim in claims {
            match claim.join().expect("answered") {
                Outcome::InProgress(progress) => assert_eq!(progress.attempt, 1),
                Outcome::Completed(stored) => assert_eq!(response_of(&stored), b"a"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(store.replay(&store.key), b"a");
        store.check_quiet(0);
    });
}

/// What a blocking call answers is on the disk, also what somebody else wrote a moment ago.
#[test]
fn blocking_answers_are_durable() {
    explore(2, || {
        let store = Store::new(3);
        let other = spawn(&store, |store| {
            let Outcome::Started(grant) = claim_blocking(store, SYNC) else {
                return false;
            };
            check_durable(store, 1);
            complete_blocking(store, &grant, SYNC);
            check_durable(store, 2);
            true
        });
        let own = claim_blocking(&store, SYNC);
        check_durable(
            &store,
            if matches!(own, Outcome::Completed(_)) {
                2
            } else {
                1
            },
        );
        assert_ne!(other.join().expect("answered"), is_granted(&own));
    });
}

/// The same for one that waits with a future, whom the flusher serves.
#[test]
fn a_future_is_answered_with_what_is_durable() {
    explore(2, || {
        let store = Store::new(3);
        let grant = store.start();
        let flusher = spawn(&store, |store| store.engine.log.flush());
        let level = Level {
            lead: Lead::Never,
            ..SYNC
        };
        let claimant = spawn(&store, move |store| {
            let claimed = block_on(store.engine.claim(&store.request(level)));
            let answer = claimed.expect("nothing fails");
            check_durable(
                store,
                if matches!(answer, Outcome::Completed(_)) {
                    2
                } else {
                    1
                },
            );
        });
        complete_blocking(&store, &grant, BUFFERED);
        claimant.join().expect("answered");
        store.engine.log.stop();
        flusher.join().expect("stopped");
    });
}

/// A blocking wait ends with the operation, through the public calls.
#[test]
fn a_blocking_wait_ends_with_a_blocking_completion() {
    explore(3, || {
        let store = Store::new(2);
        let grant = store.start();
        let request = store.request(BUFFERED).into_owned();
        let Outcome::InProgress(progress) = store.claim() else {
            panic!("it is held")
        };
        let progress = Outcome::InProgress(progress);
        let Claim::InProgress(waiting) = Claim::new(&store.engine, request, progress) else {
            panic!("it stays what it is")
        };
        let waiter = sync::spawn(move || {
            let waited = waiting.wait(Duration::MAX).expect("nothing fails");
            let Claim::Completed(saved) = waited else {
                panic!("{waited:?}")
            };
            let replay = saved.by_scope().expect("no principal");
            assert_eq!(replay.response().expect("kept")[..], *b"a");
        });
        complete_blocking(&store, &grant, BUFFERED);
        waiter.join().expect("woken");
        store.check_quiet(0);
    });
}

/// An async claim is dropped after it was granted, while a blocking one comes: the key is free for
/// it sooner or later, and nobody else has it.
#[test]
fn a_dropped_async_claim_makes_way_for_a_blocking_one() {
    explore(3, || {
        let store = Store::new(4);
        let dropped = spawn(&store, |store| {
            let level = Level {
                lead: Lead::Never,
                ..SYNC
            };
            let request = store.request(level);
            let mut claim = std::pin::pin!(store.engine.claim(&request));
            let polled = claim.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(!matches!(polled, Poll::Ready(Ok(Outcome::Started(_)))));
        });
        let own = claim_blocking(&store, BUFFERED);
        dropped.join().expect("dropped");
        match own {
            Outcome::Started(_) => store.check_quiet(1),
            Outcome::InProgress(_) => store.check_quiet(0),
            other => panic!("{other:?}"),
        }
    });
}
