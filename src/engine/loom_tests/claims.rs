//! Claims of one key, against each other and against its owner: there is never more than one owner.

use super::*;

fn is_granted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Started(_) | Outcome::Interrupted(_))
}

#[test]
fn two_claims_have_one_owner() {
    explore(3, || {
        let store = Store::new(2);
        let other = spawn(&store, Store::claim);
        let outcomes = [store.claim(), other.join().expect("answered")];
        let started = |outcome: &&Outcome| matches!(outcome, Outcome::Started(_));
        assert_eq!(outcomes.iter().filter(started).count(), 1, "{outcomes:?}");
        let told = |outcome: &&Outcome| matches!(outcome, Outcome::InProgress(_));
        assert_eq!(outcomes.iter().filter(told).count(), 1, "{outcomes:?}");
        store.check_quiet(1);
    });
}

#[test]
fn three_claims_have_one_owner() {
    explore(2, || {
        let store = Store::new(3);
        let others = [(); 2].map(|()| spawn(&store, Store::claim));
        let mut outcomes = vec![store.claim()];
        outcomes.extend(others.map(|other| other.join().expect("answered")));
        let granted = outcomes.iter().filter(|outcome| is_granted(outcome));
        assert_eq!(granted.count(), 1, "{outcomes:?}");
        store.check_quiet(1);
    });
}

/// An interrupted key goes to one of those who claim it.
#[test]
fn two_takeovers_have_one_owner() {
    explore(3, || {
        let store = Store::new(3);
        store.engine.abandon(&store.start());
        let other = spawn(&store, Store::claim);
        let outcomes = [store.claim(), other.join().expect("answered")];
        let granted: Vec<_> = outcomes
            .iter()
            .filter(|outcome| is_granted(outcome))
            .collect();
        assert!(
            matches!(granted[..], [Outcome::Interrupted(grant)] if grant.attempt == 2),
            "{outcomes:?}"
        );
        store.check_quiet(1);
    });
}

/// The lease is over: either the late owner completes or somebody takes over, never both.
#[test]
fn a_late_owner_completes_or_is_overtaken() {
    explore(3, || {
        let store = Store::new(3);
        let mut request = store.request(BUFFERED);
        request.options.lease_ms = 5;
        let claimed = block_on(store.engine.claim(&request)).expect("nothing fails");
        let Outcome::Started(grant) = claimed else {
            panic!("{claimed:?}")
        };
        store.clock.0.store(5, Ordering::Relaxed);
        let late = spawn(&store, move |store| store.complete(&grant, b"a"));
        let outcome = store.claim();
        match (late.join().expect("answered"), outcome) {
            (Ok(()), Outcome::Completed(stored)) => {
                assert_eq!(stored.replay.response().expect("kept")[..], *b"a");
                store.check_quiet(0);
            }
            (Err(WriteError::LeaseLost { .. }), Outcome::Interrupted(grant)) => {
                assert_eq!(grant.attempt, 2);
                store.check_quiet(1);
            }
            both => panic!("{both:?}"),
        }
    });
}

/// An operator takes the key from its owner while that completes.
#[test]
fn an_owner_completes_or_is_interrupted() {
    explore(3, || {
        let store = Store::new(3);
        let grant = store.start();
        let token = grant.token;
        let owner = spawn(&store, move |store| store.complete(&grant, b"a"));
        let interrupted = block_on(store.engine.interrupt(&store.key, token));
        let completed = owner.join().expect("answered");
        assert_ne!(completed.is_ok(), interrupted.is_ok());
        store.check_quiet(usize::from(interrupted.is_ok()));
    });
}

/// A claim whose future is dropped before it was durable: nothing ran, so the key is free again.
#[test]
fn a_claim_that_was_dropped_is_released() {
    explore(2, || {
        let store = Store::new(4);
        let dropped = spawn(&store, |store| {
            let level = Level {
                durability: Durability::Sync,
                lead: Lead::Never,
            };
            let request = store.request(level);
            let mut claim = std::pin::pin!(store.engine.claim(&request));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(!matches!(
                claim.as_mut().poll(&mut context),
                std::task::Poll::Ready(Ok(Outcome::Started(_)))
            ));
        });
        let ran = store.run(b"b");
        dropped.join().expect("dropped");
        assert_eq!(ran, Ran::Executed);
        store.check_quiet(0);
    });
}

/// Closing lets transitions under way end, makes them durable, and refuses all others.
#[test]
fn a_close_waits_for_transitions_under_way() {
    explore(2, || {
        let store = Store::new(2);
        let claimant = spawn(&store, |store| {
            block_on(store.engine.claim(&store.request(BUFFERED)))
        });
        store.engine.close().expect("nothing fails");
        let durable = store.platter.durable_up_to();
        match claimant.join().expect("answered") {
            Ok(Outcome::Started(grant)) => {
                assert_eq!(durable, grant.token + RECORD_WORDS);
                assert!(matches!(
                    store.complete(&grant, b"a"),
                    Err(WriteError::Unavailable(Unavailable::Closed))
                ));
            }
            Err(ClaimError::Unavailable(Unavailable::Closed)) => {}
            other => panic!("{other:?}"),
        }
    });
}
