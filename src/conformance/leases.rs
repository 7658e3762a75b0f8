//! Leases, fencing, retention.

use std::time::{Duration, SystemTime};

use crate::backend::{Answer, Backend, Guard, Outcome};
use crate::conformance::{
    Factory, LONG, Verdict, check, claim, claim_when_free, expected, new_key, request,
};
use crate::error::{ClaimError, WriteError};
use crate::listing::KeyState;
use crate::options::{ClaimOptions, ClaimOptionsError, Lease};

const SHORT: Duration = Duration::from_millis(200);

fn lease(duration: Duration) -> ClaimOptions {
    ClaimOptions::new().lease(Lease::For(duration))
}

pub(super) async fn a_lease_is_not_taken_over_early<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("early"));
    let outcome = backend.claim(&key, request(), lease(LONG)).await?;
    let guard = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    factory.advance(SHORT).await;
    // Whoever asks for a shorter lease does not shorten that of the owner.
    let outcome = backend.claim(&key, request(), lease(SHORT)).await?;
    let progress = expected!(outcome, Outcome::InProgress(progress) => progress, "a duplicate");
    let left = expected!(progress.lease_left, Some(left) => left, "the lease");
    check!(left <= LONG, "{left:?} are left of {LONG:?}");
    guard.complete(Answer::without_response()).await?;
    Ok(())
}

pub(super) async fn a_late_owner_is_fenced<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (factory.open().await, factory.open().await, new_key("late"));
    let outcome = backend.claim(&key, request(), lease(SHORT)).await?;
    let mut late = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    factory.advance(SHORT + Duration::from_millis(50)).await;
    let outcome = claim_when_free(&other, &key, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "after the lease");
    check!(
        guard.attempt() == 2 && guard.token() > late.token(),
        "the old token goes on"
    );
    let fenced = |result: Result<(), WriteError>| matches!(result, Err(WriteError::LeaseLost { new_attempt }) if new_attempt != Some(1));
    check!(
        fenced(late.checkpoint(b"late").await),
        "a late checkpoint was taken"
    );
    check!(fenced(late.renew().await), "a late renewal was taken");
    // A guard ends with its first refusal, so the other endings need owners of their own.
    let refused = late.complete(Answer::response(b"late")).await;
    let error = expected!(refused, Err(error) => error, "a late completion");
    expected!(error.error(), WriteError::LeaseLost { .. } => (), "a late completion");
    check!(
        error.into_operation().is_none(),
        "a lost guard is still held"
    );
    expected!(claim(&backend, &key).await?, Outcome::InProgress(_) => (), "the new owner's key");
    guard.complete(Answer::response(b"in time")).await?;
    let saved =
        expected!(claim(&backend, &key).await?, Outcome::Completed(saved) => saved, "completed");
    check!(
        saved
            .by_scope()?
            .response()
            .is_some_and(|it| it[..] == *b"in time"),
        "overwritten"
    );

    let key = new_key("late-release");
    let outcome = backend.claim(&key, request(), lease(SHORT)).await?;
    let late = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    factory.advance(SHORT + Duration::from_millis(50)).await;
    let outcome = claim_when_free(&other, &key, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Interrupted(guard) => guard, "after the lease");
    let error = expected!(late.release().await, Err(error) => error, "a late release");
    expected!(error.error(), WriteError::LeaseLost { .. } => (), "a late release");
    expected!(claim(&backend, &key).await?, Outcome::InProgress(_) => (), "the new owner's key");
    guard.release().await?;
    Ok(())
}

pub(super) async fn a_late_completion_counts_if_nobody_took_over<F: Factory>(
    factory: &F,
) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("over"));
    let outcome = backend.claim(&key, request(), lease(SHORT)).await?;
    let guard = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    factory.advance(SHORT + Duration::from_millis(50)).await;
    expected!(backend.look(&key).await?, KeyState::Interrupted { .. } => (), "after the lease");
    guard.complete(Answer::response(b"late but alone")).await?;
    expected!(claim(&backend, &key).await?, Outcome::Completed(_) => (), "a completion");
    Ok(())
}

pub(super) async fn a_renewed_lease_goes_on<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("renewed"));
    let outcome = backend.claim(&key, request(), lease(LONG)).await?;
    let mut guard = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    let pause = Duration::from_millis(500);
    factory.advance(pause).await;
    let left = async || match claim(&backend, &key).await {
        Ok(Outcome::InProgress(progress)) => progress.lease_left,
        _ => None,
    };
    let before = expected!(left().await, Some(left) => left, "before");
    guard.renew().await?;
    let after = expected!(left().await, Some(left) => left, "after");
    check!(
        after > before,
        "{before:?} were left, and {after:?} after a renewal"
    );
    guard.complete(Answer::without_response()).await?;
    Ok(())
}

pub(super) async fn a_living_owner_is_not_run_over<F: Factory>(factory: &F) -> Verdict {
    let (backend, other, key) = (factory.open().await, factory.open().await, new_key("alive"));
    let guard =
        expected!(claim(&backend, &key).await?, Outcome::Started(guard) => guard, "a claim");
    let length = factory.lease().unwrap_or(Duration::from_secs(1));
    for _ in 0..3 {
        factory.advance(length).await;
        expected!(claim(&other, &key).await?, Outcome::InProgress(_) => (), "a slow owner's key");
    }
    guard.complete(Answer::response(b"slow")).await?;
    expected!(claim(&other, &key).await?, Outcome::Completed(_) => (), "a slow owner");
    Ok(())
}

pub(super) async fn a_lease_of_zero_is_refused<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("zero"));
    let result = backend.claim(&key, request(), lease(Duration::ZERO)).await;
    expected!(result, Err(ClaimError::Options(ClaimOptionsError::LeaseZero)) => (), "a claim");
    expected!(backend.look(&key).await?, KeyState::Absent => (), "after that");
    Ok(())
}

pub(super) async fn an_expired_result_frees_its_key<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("expired"));
    let retention = Duration::from_secs(1);
    let options = ClaimOptions::new().retention(retention);
    let outcome = backend.claim(&key, request(), options).await?;
    let mut guard = expected!(outcome, Outcome::Started(guard) => guard, "a claim");
    guard.checkpoint(b"old").await?;
    let saved = guard.complete(Answer::response(b"old")).await?;
    let kept = saved.expires_at().duration_since(saved.completed_at());
    check!(kept.as_ref().ok() == Some(&retention), "kept for {kept:?}");
    factory.advance(retention + Duration::from_millis(50)).await;
    expected!(backend.look(&key).await?, KeyState::Absent => (), "after its retention");
    check!(
        !backend.forget(&key, crate::store::Forget::Force).await?,
        "an expired key was there"
    );
    let outcome = claim(&backend, &key).await?;
    let guard = expected!(outcome, Outcome::Started(guard) => guard, "after its retention");
    check!(guard.attempt() == 1, "attempt {}", guard.attempt());
    check!(guard.token() > saved.token(), "tokens went back");
    check!(guard.last_checkpoint().is_none(), "an old note");
    guard
        .complete(Answer::without_response().retention(retention))
        .await?;
    factory.advance(retention + Duration::from_millis(50)).await;
    // Whether or not what has expired was removed meanwhile, and whatever the request.
    let other = crate::fingerprint::Fingerprint::of(b"another request");
    let outcome = backend.claim(&key, other, ClaimOptions::new()).await?;
    let guard = expected!(outcome, Outcome::Started(guard) => guard, "another request");
    check!(guard.previous().is_none(), "an attempt before");
    Ok(())
}

pub(super) async fn a_request_older_than_results_is_too_late<F: Factory>(factory: &F) -> Verdict {
    let (backend, key) = (factory.open().await, new_key("too-late"));
    let retention = Duration::from_secs(3_600);
    let sent = |at| ClaimOptions::new().retention(retention).first_sent(at);
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let outcome = backend.claim(&key, request(), sent(old)).await?;
    let too_late = expected!(outcome, Outcome::TooLate(too_late) => too_late, "an old request");
    check!(
        too_late.first_sent == old && too_late.limit > old,
        "{too_late:?}"
    );
    expected!(backend.look(&key).await?, KeyState::Absent => (), "after that");
    // Later than any clock here: never too late.
    let new = SystemTime::now() + Duration::from_secs(365 * 24 * 3_600);
    let outcome = backend.claim(&key, request(), sent(new)).await?;
    let guard = expected!(outcome, Outcome::Started(guard) => guard, "a new request");
    let outcome = backend.claim(&key, request(), sent(old)).await?;
    expected!(outcome, Outcome::InProgress(_) => (), "a key that is there");
    guard.complete(Answer::without_response()).await?;
    let outcome = backend.claim(&key, request(), sent(old)).await?;
    expected!(outcome, Outcome::Completed(_) => (), "a key that is there");
    Ok(())
}
