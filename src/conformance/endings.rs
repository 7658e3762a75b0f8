//! How an operation ends other than by its result.

use crate::backend::{Answer, Backend, Guard, Outcome};
use crate::conformance::{
    Factory, Fault, Verdict, check, claim, claim_when_free, expected, new_key, request,
};
use crate::error::{AdminError, WriteError};
use crate::listing::KeyState;
use crate::options::ClaimOptions;
use crate::store::Forget;
use crate::token::Token;

pub(super) async fn a_release_frees_the_key<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("release"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let token = guard.token();
    guard.release().await?;
    expected!(backend.look(&key).await?, KeyState::Absent => (), "released");
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "the next claim");
    check!(
        guard.attempt() == 1,
        "attempt {} after a release",
        guard.attempt()
    );
    check!(guard.token() > token, "tokens went back");
    Ok(())
}

pub(super) async fn a_dropped_guard_interrupts<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (
        factory.open().await,
        factory.open().await,
        new_key("dropped"),
    );
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let (token, created_at, started_at) = (guard.token(), guard.created_at(), guard.started_at());
    drop(guard);
    let outcome = claim_when_free(&other, &key, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "after a drop");
    check!(guard.attempt() == 2, "attempt {}", guard.attempt());
    check!(guard.token() > token, "tokens went back");
    check!(
        guard.created_at() == created_at,
        "the operation has another beginning"
    );
    let previous = expected!(guard.previous(), Some(previous) => previous, "the attempt before");
    check!(
        previous.attempt == 1,
        "attempt {} was before",
        previous.attempt
    );
    check!(
        previous.started_at == started_at,
        "the attempt before began another time"
    );
    check!(previous.checkpoint.is_none(), "a note that nobody left");
    guard.complete(Answer::response(b"second")).await?;
    let saved =
        expected!(claim(&backend, &key).await?, Outcome::Completed(saved) => saved, "completed");
    check!(
        saved.attempt() == 2,
        "attempt {} completed it",
        saved.attempt()
    );
    Ok(())
}

pub(super) async fn checkpoints_reach_the_next_attempt<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("checkpoints"));
    let mut guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    guard.checkpoint(b"one").await?;
    guard.checkpoint(b"two").await?;
    check!(
        guard.last_checkpoint().as_deref() == Some(b"two"),
        "the owner sees another note"
    );
    drop(guard);
    let outcome = claim_when_free(&backend, &key, ClaimOptions::new()).await?;
    let mut guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "the second attempt");
    let note = guard.previous().and_then(|previous| previous.checkpoint);
    check!(note.as_deref() == Some(b"two"), "the note is {note:?}");
    check!(guard.last_checkpoint() == note, "two notes");
    guard.checkpoint(b"").await?;
    drop(guard);
    let outcome = claim_when_free(&backend, &key, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "the third attempt");
    check!(guard.attempt() == 3, "attempt {}", guard.attempt());
    check!(
        guard.last_checkpoint().is_none(),
        "an empty note did not take the old one away"
    );
    Ok(())
}

pub(super) async fn a_forgotten_key_is_absent<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("forget"));
    for forget in [Forget::IfCompleted, Forget::Force] {
        check!(
            !backend.forget(&key, forget).await?,
            "an absent key was there"
        );
    }
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let token = guard.token();
    let refused = backend.forget(&key, Forget::IfCompleted).await;
    expected!(refused, Err(AdminError::Pending { attempt: 1 }) => (), "a pending key");
    check!(
        backend.forget(&key, Forget::Force).await?,
        "a pending key was not there"
    );
    expected!(backend.look(&key).await?, KeyState::Absent => (), "by force");
    let error = expected!(guard.complete(Answer::response(b"late")).await, Err(error) => error, "its owner");
    expected!(error.error(), WriteError::LeaseLost { .. } => (), "its owner");
    let guard = expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "anew");
    check!(guard.token() > token, "tokens went back");
    guard.complete(Answer::response(b"new")).await?;
    check!(
        backend.forget(&key, Forget::IfCompleted).await?,
        "a completed key was not there"
    );
    let guard = expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "again");
    check!(guard.attempt() == 1, "attempt {}", guard.attempt());
    Ok(())
}

pub(super) async fn an_operator_interrupts_a_hung_owner<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("hung"));
    let mut guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let wrong = Token::from_u64(guard.token().as_u64() + 1);
    let refused = backend.interrupt(&key, wrong).await;
    expected!(refused, Err(AdminError::NotHeld { .. }) => (), "another token");
    expected!(claim(&backend, &key).await?, Outcome::InProgress(_) => (), "another token");
    backend.interrupt(&key, guard.token()).await?;
    let refused = guard.checkpoint(b"late").await;
    expected!(refused, Err(WriteError::LeaseLost { .. }) => (), "its owner");
    let next = claim(&backend, &key).await?;
    let next = expected!(next, Outcome::Interrupted(guard) => guard, "the next claim");
    check!(next.last_checkpoint().is_none(), "a late note was kept");
    next.complete(Answer::without_response()).await?;
    Ok(())
}

pub(super) async fn interrupted_keys_are_listed<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("listed"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let find = async || {
        let listed = backend.interrupted(100_000).await?;
        Ok::<_, Fault>(listed.into_iter().find(|pending| pending.key == key))
    };
    check!(
        find().await?.is_none(),
        "a held key is listed as interrupted"
    );
    let token = guard.token();
    backend.interrupt(&key, token).await?;
    let listed = expected!(find().await?, Some(listed) => listed, "an interrupted key");
    check!(listed.attempt == 1 && listed.token == token, "{listed:?}");
    check!(
        listed.fingerprint == request() && listed.lease_left.is_none(),
        "{listed:?}"
    );
    check!(
        backend.interrupted(0).await?.is_empty(),
        "none were asked for"
    );
    let outcome = claim(&backend, &key).await?;
    let next = expected!(outcome, Outcome::Interrupted(guard) => guard, "the next attempt");
    next.complete(Answer::without_response()).await?;
    check!(
        find().await?.is_none(),
        "a completed key is listed as interrupted"
    );
    Ok(())
}

pub(super) async fn results_survive_a_restart<F: Factory>(factory: &F) -> Verdict {
    let backend = factory.open().await;
    let (done, open) = (new_key("restart"), new_key("restart"));
    let guard =
        expected!(claim(&backend, &done).await?, Outcome::Started(guard) => guard, "a claim");
    guard.complete(Answer::response(b"kept")).await?;
    let mut held =
        expected!(claim(&backend, &open).await?, Outcome::Started(guard) => guard, "a claim");
    held.checkpoint(b"half-way").await?;
    let (token, downstream_key) = (held.token(), held.downstream_key("charge"));
    let Some(backend) = factory.restart().await else {
        return Err(Fault::Skipped);
    };
    let saved =
        expected!(claim(&backend, &done).await?, Outcome::Completed(saved) => saved, "a result");
    check!(
        saved
            .by_scope()?
            .response()
            .is_some_and(|it| it[..] == *b"kept"),
        "another result"
    );
    drop(held);
    let outcome = claim_when_free(&backend, &open, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "a pending key");
    check!(guard.token() > token, "tokens went back");
    check!(
        guard.last_checkpoint().as_deref() == Some(b"half-way"),
        "the note is lost"
    );
    check!(
        guard.downstream_key("charge") == downstream_key,
        "another downstream key"
    );
    Ok(())
}
