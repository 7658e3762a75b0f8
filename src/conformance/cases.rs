//! Outcomes, replays, fingerprints, keys, limits.

use std::time::Duration;

use crate::backend::{Answer, Backend, Guard, Outcome};
use crate::claim::Saved;
use crate::conformance::{
    Factory, Verdict, check, claim, claim_when_free, expected, new_key, request,
};
use crate::error::{AccessDenied, ClaimError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::{CHECKPOINT_BYTES_MAX, PRINCIPAL_BYTES_MAX, RESPONSE_BYTES_MAX};
use crate::listing::KeyState;
use crate::options::ClaimOptions;
use crate::response::Replay;

pub(super) async fn an_absent_key_starts<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("starts"));
    expected!(backend.look(&key).await?, KeyState::Absent => (), "before");
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    check!(guard.key() == &key, "the guard is for another key");
    check!(
        guard.attempt() == 1,
        "the first attempt is {}",
        guard.attempt()
    );
    check!(
        guard.previous().is_none(),
        "the first attempt has one before it"
    );
    check!(guard.last_checkpoint().is_none(), "a note that nobody left");
    check!(guard.token().as_u64() > 0, "a token of 0");
    check!(
        guard.created_at() <= guard.started_at(),
        "started before it was claimed"
    );
    let token = expected!(
        backend.look(&key).await?, KeyState::InProgress { token, attempt: 1, .. } => token, "a look"
    );
    check!(token == guard.token(), "another token is shown");
    Ok(())
}

pub(super) async fn a_held_key_is_in_progress<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (factory.open().await, factory.open().await, new_key("held"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    for handle in [&backend, &other] {
        let progress = expected!(
            claim(handle, &key).await?, Outcome::InProgress(progress) => progress, "a duplicate"
        );
        check!(progress.attempt == 1, "attempt {}", progress.attempt);
        check!(
            progress.since == guard.started_at(),
            "another beginning is told"
        );
    }
    drop(guard);
    Ok(())
}

pub(super) async fn a_completed_key_replays<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (
        factory.open().await,
        factory.open().await,
        new_key("replays"),
    );
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let (token, created_at) = (guard.token(), guard.created_at());
    let options = Answer::response(b"paid").retention(Duration::from_secs(3_600));
    let first = guard.complete(options).await?;
    for handle in [&backend, &other] {
        let saved = expected!(
            claim(handle, &key).await?, Outcome::Completed(saved) => saved, "after completion"
        );
        let looked = expected!(
            handle.look(&key).await?, KeyState::Completed(saved) => saved, "a look"
        );
        for saved in [&first, &saved, &looked] {
            check!(
                bytes(saved)?.as_deref() == Some(b"paid"),
                "another response"
            );
            check!(
                saved.attempt() == 1 && saved.token() == token,
                "another attempt or token"
            );
            check!(saved.created_at() == created_at, "another beginning");
            check!(saved.completed_at() == first.completed_at(), "another end");
            let kept = saved.expires_at().duration_since(saved.completed_at());
            check!(
                kept.as_ref().ok() == Some(&Duration::from_secs(3_600)),
                "kept for {kept:?}"
            );
        }
    }
    Ok(())
}

fn bytes(saved: &Saved) -> Result<Option<Vec<u8>>, AccessDenied> {
    Ok(saved
        .by_scope()?
        .response()
        .map(|response| response.to_vec()))
}

pub(super) async fn a_response_may_be_empty_absent_large_or_binary<F: Factory>(
    factory: &F,
) -> Verdict {
    let backend = factory.open().await;
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 100_000];
    for response in [None, Some(&[][..]), Some(&all[..]), Some(&large[..])] {
        let key = new_key("responses");
        let guard =
            expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
        let answer = Answer {
            response,
            ..Answer::default()
        };
        guard.complete(answer).await?;
        let saved = expected!(
            claim(&backend, &key).await?, Outcome::Completed(saved) => saved, "after completion"
        );
        let len = response.map(<[u8]>::len);
        check!(
            bytes(&saved)?.as_deref() == response,
            "a response of {len:?} bytes is another"
        );
        let is_stored = saved.by_scope()? != Replay::NotStored;
        check!(
            is_stored == response.is_some(),
            "empty and not stored are taken for one another"
        );
    }
    Ok(())
}

pub(super) async fn a_result_is_for_its_principal<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("principal"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let first = guard
        .complete(Answer::response(b"hers").principal(b"alice"))
        .await?;
    let saved =
        expected!(claim(&backend, &key).await?, Outcome::Completed(saved) => saved, "a duplicate");
    for saved in [first, saved] {
        check!(
            saved.by_scope().is_err(),
            "given out without naming the principal"
        );
        check!(
            saved.for_principal(b"bob").is_err(),
            "given to another principal"
        );
        check!(
            saved.for_principal(b"alice").is_ok(),
            "refused to its principal"
        );
    }
    Ok(())
}

pub(super) async fn another_fingerprint_is_a_mismatch_on_every_path<F: Factory>(
    factory: &F,
) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("mismatch"));
    let other = Fingerprint::of(b"another request");
    let claim_other = async || backend.claim(&key, other, ClaimOptions::new()).await;
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let mismatch =
        expected!(claim_other().await?, Outcome::Mismatch(mismatch) => mismatch, "while pending");
    check!(!mismatch.completed && mismatch.attempt == 1, "{mismatch:?}");
    check!(mismatch.expires_at.is_none(), "a pending key has an end");
    drop(guard);
    expected!(claim_other().await?, Outcome::Mismatch(_) => (), "once the guard is dropped");
    let options = ClaimOptions::new();
    let guard = expected!(
        claim_when_free(&backend, &key, options).await?, Outcome::Interrupted(guard) => guard,
        "after an attempt with another fingerprint"
    );
    guard.complete(Answer::response(b"first")).await?;
    let mismatch =
        expected!(claim_other().await?, Outcome::Mismatch(mismatch) => mismatch, "once completed");
    check!(mismatch.completed && mismatch.attempt == 2, "{mismatch:?}");
    check!(mismatch.expires_at.is_some(), "a completed key has no end");
    let waited = backend.wait(&key, other, ClaimOptions::new()).await?;
    expected!(waited, Outcome::Mismatch(_) => (), "a waiter");
    let saved =
        expected!(claim(&backend, &key).await?, Outcome::Completed(saved) => saved, "the first");
    check!(
        bytes(&saved)?.as_deref() == Some(b"first"),
        "a mismatch changed the result"
    );
    Ok(())
}

pub(super) async fn fingerprints_that_cannot_be_compared_match<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("not-comparable"));
    let parts = Fingerprint::builder().part(b"the request").finish();
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    for other in [parts, Fingerprint::none()] {
        let outcome = backend.claim(&key, other, ClaimOptions::new()).await?;
        expected!(outcome, Outcome::InProgress(_) => (), "another algorithm while pending");
    }
    let downstream_key = guard.downstream_key("charge");
    drop(guard);
    let again = backend.wait(&key, parts, ClaimOptions::new()).await?;
    let guard = expected!(again, Outcome::Interrupted(guard) => guard, "another algorithm");
    check!(
        guard.downstream_key("charge") == downstream_key,
        "the operation became another"
    );
    guard.complete(Answer::without_response()).await?;
    for other in [request(), parts, Fingerprint::none()] {
        let outcome = backend.claim(&key, other, ClaimOptions::new()).await?;
        expected!(outcome, Outcome::Completed(_) => (), "another algorithm once completed");
    }
    Ok(())
}

pub(super) async fn no_two_keys_are_one<F: Factory>(factory: &F) -> Verdict {
    let backend = factory.open().await;
    let unique = new_key("apart").id().to_vec();
    let part = |end: &[u8]| [&unique[..], end].concat();
    let parts: [[Vec<u8>; 3]; 9] = [
        [part(b"ab"), b"c".to_vec(), b"d".to_vec()],
        [part(b"a"), b"bc".to_vec(), b"d".to_vec()],
        [part(b"a"), b"b".to_vec(), b"cd".to_vec()],
        [part(b""), Vec::new(), b"d".to_vec()],
        [Vec::new(), part(b""), b"d".to_vec()],
        [part(b"D"), Vec::new(), b"d".to_vec()],
        [part(b"\0"), b"{}:%".to_vec(), b"\xff\xfe".to_vec()],
        [part(b"\0"), b"{}".to_vec(), b":%\xff\xfe".to_vec()],
        [part(b" "), b"}{".to_vec(), vec![0xff; 200]],
    ];
    let mut guards = Vec::new();
    for [scope, operation, id] in &parts {
        let key = Key::new(scope, operation, id)?;
        let outcome = claim(&backend, &key).await?;
        guards.push(expected!(outcome, Outcome::Started(guard) => guard, format!("{key}")));
    }
    for (number, guard) in guards.into_iter().enumerate() {
        guard.complete(Answer::response(&[number as u8])).await?;
    }
    for (number, [scope, operation, id]) in parts.iter().enumerate() {
        let key = Key::new(scope, operation, id)?;
        let saved = expected!(
            claim(&backend, &key).await?, Outcome::Completed(saved) => saved, format!("{key}")
        );
        check!(
            bytes(&saved)? == Some(vec![number as u8]),
            "{key} has another key's result"
        );
    }
    Ok(())
}

pub(super) async fn downstream_keys_tell_operations_apart<F: Factory>(factory: &F) -> Verdict {
    let backend = factory.open().await;
    let (one, two) = (new_key("downstream"), new_key("downstream"));
    let first =
        expected!(claim(&backend, &one).await?, Outcome::Started(guard) => guard, "a claim");
    let second =
        expected!(claim(&backend, &two).await?, Outcome::Started(guard) => guard, "a claim");
    let key = first.downstream_key("charge");
    check!(
        key != second.downstream_key("charge"),
        "two operations share a key"
    );
    check!(
        key != first.downstream_key("refund"),
        "two labels share a key"
    );
    drop(first);
    let again = claim_when_free(&backend, &one, ClaimOptions::new()).await?;
    let again = expected!(again, Outcome::Interrupted(guard) => guard, "the next attempt");
    check!(
        key == again.downstream_key("charge"),
        "the next attempt has another key"
    );
    Ok(())
}

pub(super) async fn limits_are_errors_that_change_nothing<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("limits"));
    let long = Key::new("conformance", [b'o'; 1_024], "id")?;
    for result in [
        claim(&backend, &long).await.map(drop),
        backend.look(&long).await.map(drop),
    ] {
        expected!(result, Err(ClaimError::Key(_)) => (), "too long a part");
    }
    let options = ClaimOptions::new().retention(Duration::from_millis(1));
    let result = backend.claim(&key, request(), options).await;
    expected!(result, Err(ClaimError::Options(_)) => (), "too short a retention");
    let mut guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let note = vec![0; CHECKPOINT_BYTES_MAX + 1];
    let result = guard.checkpoint(&note).await;
    expected!(result, Err(WriteError::CheckpointTooLarge { .. }) => (), "too large a checkpoint");
    guard.checkpoint(&note[..CHECKPOINT_BYTES_MAX]).await?;
    let response = vec![0; RESPONSE_BYTES_MAX + 1];
    let principal = [0; PRINCIPAL_BYTES_MAX + 1];
    let refused = [
        Answer::response(&response),
        Answer::without_response().principal(&principal),
        Answer::without_response().retention(Duration::ZERO),
    ];
    for answer in refused {
        let error = expected!(guard.complete(answer).await, Err(error) => error, "over a limit");
        guard = expected!(error.into_operation(), Some(guard) => guard, "the guard is still held");
    }
    expected!(claim(&backend, &key).await?, Outcome::InProgress(_) => (), "after refusals");
    guard.complete(Answer::response(b"fits")).await?;
    Ok(())
}
