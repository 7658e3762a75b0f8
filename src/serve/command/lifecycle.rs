//! The whole life of a key, for clients in any language: `IDEM.CLAIM` and what follows it.
//!
//! A claim has a lease, and belongs to whoever has its token, not to a connection. Its guard is kept
//! here until it ends, one for each key; one that was taken over makes place for the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;

use super::Failure;
use crate::claim::{Claim, Saved};
use crate::engine::{Level, Request, Wait};
use crate::error::{AdminError, FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::KeyState;
use crate::log::commit::Lead;
use crate::operation::Operation;
use crate::options::{ClaimOptions, Lease};
use crate::serve::reply::{OK, Reply};
use crate::serve::request::integer;
use crate::serve::session::Shared;
use crate::store::Forget;

/// Longest wait, in ms.
const WAIT_MS_MAX: u64 = 60_000;

/// The guards of those who claimed.
#[derive(Debug, Default)]
pub(in crate::serve) struct Guards(Mutex<HashMap<Key, Operation>>);

impl Guards {
    fn take(&self, key: &Key, token: u64) -> Option<Operation> {
        let mut guards = self.0.lock();
        let is_it = guards
            .get(key)
            .is_some_and(|guard| guard.token().as_u64() == token);
        is_it.then(|| guards.remove(key)).flatten()
    }

    /// Keeps a guard, unless the key has gone to a later one.
    fn keep(&self, guard: Operation) {
        let key = guard.key().clone();
        let mut guards = self.0.lock();
        let is_later = guards
            .get(&key)
            .is_none_or(|kept| kept.token() < guard.token());
        let stale = match is_later {
            true => guards.insert(key, guard),
            false => Some(guard),
        };
        drop(guards);
        drop(stale);
    }
}

pub(super) async fn run(
    shared: &Shared,
    name: &'static str,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    let [scope, operation, id, rest @ ..] = arguments else {
        return Err(Failure::syntax());
    };
    if **scope == *shared.options.scope {
        return Err(Failure::new(
            "ERR this scope is that of the plain values; choose another",
        ));
    }
    let key =
        Key::new(scope, operation, id).map_err(|error| Failure::new(format!("ERR {error}")))?;
    match (name, rest) {
        ("idem.claim", options) => claim(shared, &key, options).await,
        ("idem.get", []) => state(shared, &key).await,
        ("idem.wait", [timeout]) => wait(shared, &key, milliseconds(timeout)?).await,
        ("idem.forget", options @ ([] | [_])) => {
            let forget = match options {
                [] => Forget::IfCompleted,
                [force] if force.eq_ignore_ascii_case(b"FORCE") => Forget::Force,
                _ => return Err(Failure::syntax()),
            };
            let was_there = shared.store.forget_async(&key, forget).await?;
            Ok(Reply::Integer(was_there.into()))
        }
        ("idem.complete", [token, response @ ..]) if response.len() < 2 => {
            complete(shared, &key, number(token)?, response.first()).await
        }
        ("idem.release", [token]) => release(shared, &key, number(token)?).await,
        ("idem.renew", [token]) => {
            let mut guard = held(shared, &key, number(token)?)?;
            let renewed = guard.renew();
            give_back(shared, guard, renewed)
        }
        ("idem.checkpoint", [token, note]) => {
            let mut guard = held(shared, &key, number(token)?)?;
            let noted = guard.checkpoint_async(note).await;
            give_back(shared, guard, noted)
        }
        _ => Err(Failure::syntax()),
    }
}

async fn claim(shared: &Shared, key: &Key, options: &[Bytes]) -> Result<Reply, Failure> {
    let (mut fingerprint, mut lease, mut claim) = (Fingerprint::none(), None, ClaimOptions::new());
    let (pairs, odd) = options.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Failure::syntax());
    }
    for [option, value] in pairs {
        match &option.to_ascii_uppercase()[..] {
            b"LEASE" => lease = Some(milliseconds(value)?),
            b"RETENTION" => claim = claim.retention(milliseconds(value)?),
            b"FINGERPRINT" => fingerprint = Fingerprint::of(value),
            _ => return Err(Failure::syntax()),
        }
    }
    let lease = lease.ok_or_else(|| Failure::new("ERR a claim needs LEASE and milliseconds"))?;
    let claim = claim.lease(Lease::For(lease));
    let claimed = shared
        .store
        .claim_with_async(key, fingerprint, claim)
        .await?;
    Ok(match claimed {
        Claim::Started(guard) => owned(shared, "started", guard),
        Claim::Interrupted(guard) => owned(shared, "interrupted", guard),
        Claim::InProgress(progress) => Reply::Map(vec![
            ("outcome", Reply::text("in_progress")),
            ("attempt", Reply::Integer(progress.attempt().into())),
            ("lease_left_ms", left(progress.lease_left())),
        ]),
        Claim::Completed(saved) => completed("outcome", &saved)?,
        Claim::Mismatch(mismatch) => Reply::Map(vec![
            ("outcome", Reply::text("mismatch")),
            ("attempt", Reply::Integer(mismatch.attempt.into())),
            ("completed", Reply::Integer(mismatch.completed.into())),
        ]),
        Claim::TooLate(_) => Reply::Map(vec![("outcome", Reply::text("too_late"))]),
    })
}

/// What the new owner of a key is told. The token is text, since few languages have numbers that large.
fn owned(shared: &Shared, outcome: &str, guard: Operation) -> Reply {
    let checkpoint = guard.last_checkpoint().cloned();
    let reply = Reply::Map(vec![
        ("outcome", Reply::text(outcome)),
        ("token", Reply::text(guard.token().as_u64().to_string())),
        ("attempt", Reply::Integer(guard.attempt().into())),
        ("checkpoint", Reply::bulk_or_null(checkpoint)),
    ]);
    shared.guards.keep(guard);
    reply
}

fn completed(label: &'static str, saved: &Saved) -> Result<Reply, Failure> {
    let denied = |_| Failure::new("NOPERM the result belongs to a principal");
    let replay = saved.by_scope().map_err(denied)?;
    Ok(Reply::Map(vec![
        (label, Reply::text("completed")),
        ("attempt", Reply::Integer(saved.attempt().into())),
        ("completed_at_ms", unix_ms(saved.completed_at())),
        ("expires_at_ms", unix_ms(saved.expires_at())),
        (
            "response",
            Reply::bulk_or_null(replay.response().cloned().map(Bytes::from)),
        ),
    ]))
}

async fn state(shared: &Shared, key: &Key) -> Result<Reply, Failure> {
    let of = |state: &str, attempt: u32| {
        vec![
            ("state", Reply::text(state)),
            ("attempt", Reply::Integer(attempt.into())),
        ]
    };
    Ok(Reply::Map(match shared.store.get_async(key).await? {
        KeyState::Absent => vec![("state", Reply::text("absent"))],
        KeyState::InProgress {
            attempt,
            lease_left,
            ..
        } => {
            let mut pairs = of("in_progress", attempt);
            pairs.push(("lease_left_ms", left(lease_left)));
            pairs
        }
        KeyState::Interrupted { attempt, .. } => of("interrupted", attempt),
        KeyState::Completed(saved) => return completed("state", &saved),
    }))
}

async fn wait(shared: &Shared, key: &Key, timeout: Duration) -> Result<Reply, Failure> {
    let timeout = timeout.min(Duration::from_millis(WAIT_MS_MAX));
    let request = request(shared, key)?;
    let wait = Wait::new(Arc::clone(shared.store.engine()), &request);
    // Where time is up the answer says so: it is still in progress.
    if let Ok(waited) = tokio::time::timeout(timeout, wait).await {
        waited?;
    }
    state(shared, key).await
}

async fn complete(
    shared: &Shared,
    key: &Key,
    token: u64,
    response: Option<&Bytes>,
) -> Result<Reply, Failure> {
    let Some(guard) = ending(shared, key, token).await? else {
        // The same completion once more, since its answer was lost.
        return match shared.store.get_async(key).await? {
            KeyState::Completed(saved) if saved.token().as_u64() == token => Ok(OK),
            _ => Err(lost(None)),
        };
    };
    let finished = match response {
        Some(response) => guard.complete_async(response).await,
        None => guard.complete_without_response_async().await,
    };
    ended(shared, finished.map(drop))
}

async fn release(shared: &Shared, key: &Key, token: u64) -> Result<Reply, Failure> {
    let guard = ending(shared, key, token)
        .await?
        .ok_or_else(|| lost(None))?;
    let finished = guard.release_async().await;
    ended(shared, finished)
}

/// The guard to be ended. After a restart of the server there is none, and the key, interrupted, can still
/// be ended under its token if nobody has taken it over.
async fn ending(shared: &Shared, key: &Key, token: u64) -> Result<Option<Operation>, Failure> {
    if let Some(guard) = shared.guards.take(key, token) {
        return Ok(Some(guard));
    }
    let engine = shared.store.engine();
    let grant = engine.take_up(&request(shared, key)?, token).await?;
    Ok(grant.map(|grant| Operation::new(Arc::clone(engine), grant)))
}

fn request<'a>(shared: &Shared, key: &'a Key) -> Result<Request<'a>, Failure> {
    let settings = shared.store.settings();
    let options = ClaimOptions::new().resolve(settings);
    Ok(Request {
        key: std::borrow::Cow::Borrowed(key),
        fingerprint: Fingerprint::none(),
        options: options.map_err(|error| Failure::new(format!("ERR {error}")))?,
        level: Level {
            durability: settings.durability,
            lead: Lead::Never,
        },
    })
}

fn held(shared: &Shared, key: &Key, token: u64) -> Result<Operation, Failure> {
    shared.guards.take(key, token).ok_or_else(|| lost(None))
}

/// Keeps a guard that was used, unless it is lost.
fn give_back(
    shared: &Shared,
    guard: Operation,
    result: Result<(), WriteError>,
) -> Result<Reply, Failure> {
    if !matches!(result, Err(WriteError::LeaseLost { .. })) {
        shared.guards.keep(guard);
    }
    result.map(|()| OK).map_err(|error| failed(&error))
}

fn ended(shared: &Shared, result: Result<(), FinishError>) -> Result<Reply, Failure> {
    let Err(error) = result else {
        return Ok(OK);
    };
    let failure = failed(error.error());
    if let Some(guard) = error.into_operation() {
        shared.guards.keep(guard);
    }
    Err(failure)
}

fn failed(error: &WriteError) -> Failure {
    match error {
        WriteError::LeaseLost { new_attempt } => lost(*new_attempt),
        WriteError::OutOfSpace(_) | WriteError::LimitReached(_) => {
            Failure::new(format!("OOM {error}"))
        }
        WriteError::OutcomeUnknown(_) | WriteError::Unavailable(_) => {
            Failure::new(format!("MISCONF {error}"))
        }
        _ => Failure::new(format!("ERR {error}")),
    }
}

fn lost(new_attempt: Option<u32>) -> Failure {
    match new_attempt {
        Some(attempt) => Failure::new(format!("LEASELOST the key went on as attempt {attempt}")),
        None => Failure::new("LEASELOST the key is not held under this token"),
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Claim(error) => error.into(),
            other => Self::new(format!("ERR {other}")),
        }
    }
}

fn number(bytes: &[u8]) -> Result<u64, Failure> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(Failure::not_integer)
}

fn milliseconds(bytes: &[u8]) -> Result<Duration, Failure> {
    let ms = integer(bytes).and_then(|ms| u64::try_from(ms).ok());
    ms.map(Duration::from_millis)
        .ok_or_else(Failure::not_integer)
}

fn left(lease: Option<Duration>) -> Reply {
    lease.map_or(
        Reply::Null,
        |lease| Reply::Integer(lease.as_millis() as i64),
    )
}

fn unix_ms(time: SystemTime) -> Reply {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Reply::Integer(since.as_millis() as i64)
}
