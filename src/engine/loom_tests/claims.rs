//! Claims of one key, against each other and against its owner: there is never more than one owner.

use super::*;

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
        let grant = store.start_leased();
        store.let_the_lease_end();
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

/// A thread that panics in the middle of a transition takes nobody with it: the key is interrupted.
#[test]
fn a_transition_that_panics_leaves_the_key_interrupted() {
    explore(3, || {
        let store = Store::new(3);
        let grant = store.start();
        let panicking = spawn(&store, move |store| {
            let marked = store
                .engine
                .mark_changing(&grant, |_| Ok::<_, std::convert::Infallible>(()));
            marked
                .expect("still held")
                .unwrap_or_else(|never| match never {});
            drop(store.engine.change(grant.hash, &grant.key));
        });
        assert_eq!(store.run(b"b"), Ran::Reconciled(2));
        panicking.join().expect("dropped");
        store.check_quiet(0);
    });
}

/// A result whose time is over is replaced by one of two who come for it, and the other one learns
/// of the new one, however late it looks.
#[test]
fn an_expired_result_is_replaced_once() {
    explore(3, || {
        let store = Store::new(4);
        store.store(&store.key, b"0");
        store.clock.0.store(2_000_000, Ordering::Relaxed);
        one_executes_the_other_gets_its_answer(&store);
        store.check_quiet(0);
    });
}

/// The limit on pending keys holds over all stripes.
#[test]
fn no_more_keys_are_pending_than_allowed() {
    explore(3, || {
        let store = Store::with(&[4], Options::new().stripes(2).max_pending(1));
        let keys = keys_of_two_stripes(&store);
        let claim = |store: &Store, key: &Key| {
            block_on(store.engine.claim(&store.request_for(key, BUFFERED)))
        };
        let [first, second] = keys;
        let other = spawn(&store, move |store| claim(store, &first));
        let answers = [claim(&store, &second), other.join().expect("answered")];
        let started = answers.iter().filter(|answer| answer.is_ok()).count();
        // Both may be counted for a moment, and neither be let in.
        assert!(started <= 1, "{answers:?}");
        for answer in &answers {
            assert!(matches!(
                answer,
                Ok(Outcome::Started(_)) | Err(ClaimError::TooManyPending { limit: 1 })
            ));
        }
        store.check_quiet(started);
    });
}

/// So do the limits on keys that exist, completed ones included, of the store and of one scope.
#[test]
fn no_more_keys_exist_than_allowed() {
    explore(3, || {
        let options = Options::new().stripes(2).max_keys(2);
        one_of_two_gets_the_last_place(Store::with(&[6], options));
    });
}

#[test]
fn no_more_keys_of_a_scope_exist_than_allowed() {
    explore(3, || {
        let options = Options::new().stripes(2).max_keys_per_scope(2);
        one_of_two_gets_the_last_place(Store::with(&[6], options));
    });
}

/// A place that is given back is there for one of those who come for it, however the release and
/// their claims fall together.
#[test]
fn a_place_that_is_given_back_is_taken_once() {
    explore(3, || {
        let options = Options::new().stripes(2).max_keys(1);
        let store = Store::with(&[6], options);
        let keys = keys_of_two_stripes(&store);
        let grant = store.start();
        let [first, second] = keys;
        let other = spawn(&store, move |store| try_claim(store, &first).is_ok());
        let released = block_on(store.engine.finish(&grant, Finish::Release, BUFFERED));
        assert!(released.is_ok());
        let own = try_claim(&store, &second).is_ok();
        assert!(own != other.join().expect("answered"), "one of two");
        store.check_quiet(1);
    });
}

fn one_of_two_gets_the_last_place(store: Arc<Store>) {
    store.store(&store.key, b"0");
    let [first, second] = keys_of_two_stripes(&store);
    let other = spawn(&store, move |store| try_claim(store, &first));
    let answers = [try_claim(&store, &second), other.join().expect("answered")];
    let started = |answer: &&Result<Outcome, _>| matches!(answer, Ok(Outcome::Started(_)));
    assert_eq!(answers.iter().filter(started).count(), 1, "{answers:?}");
    let refused = |answer: &&Result<Outcome, ClaimError>| match answer {
        Err(ClaimError::LimitReached(reached)) => (reached.value, reached.used) == (2, 2),
        _ => false,
    };
    assert_eq!(answers.iter().filter(refused).count(), 1, "{answers:?}");
    store.check_quiet(1);
}

fn try_claim(store: &Store, key: &Key) -> Result<Outcome, ClaimError> {
    block_on(store.engine.claim(&store.request_for(key, BUFFERED)))
}
