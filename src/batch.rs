//! Claiming many keys with one sync.

use std::collections::HashSet;
use std::sync::Arc;

use crate::claim::Claim;
use crate::engine::{Opened, Request, Unconfirmed};
use crate::error::ClaimError;
use crate::key::Key;

/// Claims every request, then waits for durability once for all of them.
///
/// What can be claimed is; each key has a result of its own. Until the wait is over nobody has seen
/// a guard, so dropping the future releases what it had claimed.
pub(crate) async fn claim_many(
    engine: &Arc<Opened>,
    requests: Vec<Request<'_>>,
) -> Vec<Result<Claim, ClaimError>> {
    let mut claimed: HashSet<Key> = HashSet::new();
    let mut written = Vec::with_capacity(requests.len());
    for request in requests {
        let is_repeated = claimed.contains(&*request.key);
        let result = engine.claim_written(&request).await;
        if let Ok((unconfirmed, _)) = &result
            && unconfirmed.is_grant()
        {
            claimed.insert(Key::clone(&request.key));
        }
        written.push((request, result, is_repeated));
    }
    // The newest record first: once it is durable the others are, and are confirmed without waiting.
    let newest = written
        .iter()
        .filter_map(|(request, result, _)| Some((result.as_ref().ok()?.1, request.level)))
        .max_by_key(|(end, _)| *end);
    if let Some((end, level)) = newest {
        // Its error is every entry's own, met again below.
        drop(engine.reach(end, level).await);
    }
    let mut claims = Vec::with_capacity(written.len());
    for (request, result, is_repeated) in written {
        claims.push(confirm(engine, request, result, is_repeated).await);
    }
    claims
}

async fn confirm(
    engine: &Arc<Opened>,
    request: Request<'_>,
    result: Result<(Unconfirmed<'_>, u64), ClaimError>,
    is_repeated: bool,
) -> Result<Claim, ClaimError> {
    let (unconfirmed, end) = result?;
    let outcome = match engine.confirm(unconfirmed, end, request.level).await? {
        Some(outcome) => outcome,
        None => engine.claim(&request).await?,
    };
    let mut claim = Claim::new(engine, request, outcome);
    if is_repeated && let Claim::InProgress(progress) = &mut claim {
        progress.mark_same_batch();
    }
    Ok(claim)
}
