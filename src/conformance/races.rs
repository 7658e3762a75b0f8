//! Many callers at once, waiting, and callers who stop waiting.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::backend::{Answer, Backend, Guard, Outcome};
use crate::conformance::{
    Factory, Fault, LONG, Verdict, check, claim, claim_when_free, expected, new_key, request,
};
use crate::key::Key;
use crate::options::ClaimOptions;

const CALLERS: usize = 24;
const ROUNDS: usize = 4;

/// The guard of the one who got it, of many who claim at once on several handles.
async fn winner<B: Backend>(handles: &[B], key: &Key) -> Result<Outcome<B::Guard>, Fault> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let Some(backend) = handles.get(caller % handles.len()).cloned() else {
            continue;
        };
        let key = key.clone();
        callers.spawn(async move { claim(&backend, &key).await });
    }
    let mut won = Vec::new();
    for outcome in callers.join_all().await {
        match outcome? {
            Outcome::InProgress(_) => {}
            outcome if outcome.is_owned() => won.push(outcome),
            other => return Err(Fault::Broken(format!("a caller got {other:?}"))),
        }
    }
    check!(
        won.len() == 1,
        "{} of {CALLERS} callers own the key",
        won.len()
    );
    won.pop().ok_or(Fault::Broken("nobody".to_owned()))
}

pub(super) async fn one_of_many_starts<F: Factory>(factory: &F) -> Verdict {
    let handles = [factory.open().await, factory.open().await];
    for _ in 0..ROUNDS {
        let key = new_key("race");
        let outcome = winner(&handles, &key).await?;
        let guard = expected!(outcome, Outcome::Started(guard) => guard, "the winner");
        guard.complete(Answer::response(b"once")).await?;
        for backend in &handles {
            expected!(claim(backend, &key).await?, Outcome::Completed(_) => (), "a loser");
        }
    }
    Ok(())
}

pub(super) async fn one_of_many_takes_over<F: Factory>(factory: &F) -> Verdict {
    let handles = [factory.open().await, factory.open().await];
    let [backend, _] = &handles;
    let key = new_key("takeover-race");
    let outcome = claim(backend, &key).await?;
    let mut guard = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    for attempt in 2..2 + ROUNDS as u32 {
        backend.interrupt(&key, guard.token()).await?;
        let outcome = winner(&handles, &key).await?;
        let next = expected!(outcome, Outcome::Interrupted(guard) => guard, "the winner");
        check!(
            next.attempt() == attempt,
            "attempt {} and not {attempt}",
            next.attempt()
        );
        check!(next.token() > guard.token(), "tokens went back");
        guard = next;
    }
    guard.complete(Answer::without_response()).await?;
    Ok(())
}

pub(super) async fn a_waiter_gets_the_result<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (
        factory.open().await,
        factory.open().await,
        new_key("waiter"),
    );
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let waiting = {
        let key = key.clone();
        tokio::spawn(async move { other.wait(&key, request(), ClaimOptions::new()).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    check!(!waiting.is_finished(), "a waiter did not wait");
    guard.complete(Answer::response(b"worth it")).await?;
    let outcome = tokio::time::timeout(LONG, waiting).await???;
    let saved = expected!(outcome, Outcome::Completed(saved) => saved, "the waiter");
    check!(
        saved
            .by_scope()?
            .response()
            .is_some_and(|it| it[..] == *b"worth it"),
        "another result"
    );
    Ok(())
}

pub(super) async fn one_waiter_goes_on_after_a_release<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("waiters"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let mut waiters = JoinSet::new();
    for _ in 0..4 {
        let (backend, key) = (backend.clone(), key.clone());
        waiters.spawn(async move {
            match backend.wait(&key, request(), ClaimOptions::new()).await? {
                Outcome::Started(guard) => {
                    guard.complete(Answer::response(b"by a waiter")).await?;
                    Ok::<_, Fault>(true)
                }
                Outcome::Completed(_) => Ok(false),
                other => Err(Fault::Broken(format!("a waiter got {other:?}"))),
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    guard.release().await?;
    let results = tokio::time::timeout(LONG, waiters.join_all()).await?;
    let mut ran = 0;
    for result in results {
        ran += usize::from(result?);
    }
    check!(ran == 1, "{ran} waiters went on");
    Ok(())
}

pub(super) async fn a_dropped_claim_leaves_no_owner<F: Factory>(factory: &F) -> Verdict {
    let backend = factory.open().await;
    for polls in 1..6 {
        let key = new_key("cancelled");
        {
            let mut claiming = pin!(claim(&backend, &key));
            for _ in 0..polls {
                let poll = poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context))).await;
                if poll.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let outcome = claim_when_free(&backend, &key, ClaimOptions::new()).await?;
        let guard =
            expected!(outcome.into_guard(), Some(guard) => guard, "after a cancelled claim");
        guard.complete(Answer::without_response()).await?;
    }
    Ok(())
}
