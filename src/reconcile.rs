//! Reconciliation: finding out what became of operations whose outcome is unknown.
//!
//! A walk over the keys that nobody holds and that are not completed, [abandoned] ones included. Each
//! is looked at without claiming it, the caller says what became of it, and only then is it taken up
//! and its outcome written: under the token it was seen with, so that a key that was claimed in
//! between is left to its new owner. A key that is kept costs no write and no attempt.
//!
//! [abandoned]: crate::Options::abandon_after

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::backend::{AnyBackend, Backend, Downstream, Guard};
use crate::block::block_on;
use crate::clock::time;
use crate::engine::{Level, Opened, Request, Unsettled};
use crate::error::{ClaimError, FinishError, Unavailable, WriteError};
use crate::inbox::note::Note;
use crate::key::Key;
use crate::log::commit::Lead;
use crate::operation::Operation;
use crate::options::ResolvedClaim;
use crate::store::Store;

/// Failures that a [`ReconcileReport`] names; more are only counted.
pub const FAILURES_NAMED_MAX: usize = 100;

/// An operation whose outcome is unknown: what its last attempt left behind.
#[derive(Clone)]
pub struct Interrupted {
    downstream: Downstream,
    attempt: u32,
    started_at: SystemTime,
    created_at: SystemTime,
    age: Duration,
    is_abandoned: bool,
    checkpoint: Option<Bytes>,
}

/// What became of an interrupted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was carried out, and this is its response: every later claim is answered with it.
    Completed(Bytes),
    /// It was carried out, and no response is kept, as by
    /// [`Operation::complete_without_response`].
    Done,
    /// Nothing happened: the key is free again, and the next claim starts afresh.
    Release,
    /// Nobody knows yet: the key stays as it is.
    Keep,
}

impl Verdict {
    /// [`Verdict::Completed`] with this response.
    pub fn completed(response: impl Into<Bytes>) -> Self {
        Self::Completed(response.into())
    }
}

/// What a walk has done.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReconcileReport {
    /// Keys that are completed now, with a response or without.
    pub completed: u64,
    /// Keys that are free now.
    pub released: u64,
    /// Keys that stay interrupted.
    pub kept: u64,
    /// Keys that somebody claimed, settled or removed while they were asked about: they were left
    /// alone.
    pub overtaken: u64,
    /// Keys whose outcome could not be read or written; they are as they were, unless the error says
    /// that this is unknown.
    pub failed: u64,
    /// The first of these, up to [`FAILURES_NAMED_MAX`].
    pub failures: Vec<ReconcileFailure>,
}

/// A key that a walk could not settle.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReconcileFailure {
    /// The key.
    pub key: Key,
    /// What went wrong.
    pub error: ReconcileError,
}

/// Why a key could not be settled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReconcileError {
    /// It could not be read or taken up.
    Claim(ClaimError),
    /// Its outcome could not be written.
    Write(WriteError),
}

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReconcileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            Self::Claim(error) => error,
            Self::Write(error) => error,
        })
    }
}

impl Interrupted {
    /// What the attempt before the one that this guard holds left behind.
    pub(crate) fn before(
        backend: &AnyBackend,
        guard: &impl Guard,
        checkpoint: Option<Bytes>,
    ) -> Option<Self> {
        let previous = guard.previous()?;
        let (key, fingerprint) = (guard.key().clone(), guard.fingerprint());
        let (created_at, now) = (guard.created_at(), backend.now());
        Some(Self {
            downstream: Downstream::new(backend.clone(), key, fingerprint),
            attempt: previous.attempt,
            started_at: previous.started_at,
            created_at,
            age: now.duration_since(created_at).unwrap_or_default(),
            is_abandoned: false,
            checkpoint,
        })
    }

    fn unsettled(engine: &Arc<Opened>, key: Key, found: &Unsettled) -> Self {
        let now_ms = engine.time().now_ms();
        let checkpoint = found.checkpoint.clone().map(Note::of_handler);
        let backend = AnyBackend::new(Store::of(Arc::clone(engine)));
        Self {
            downstream: Downstream::new(backend, key, found.fingerprint),
            attempt: found.attempt,
            started_at: time(found.started_ms),
            created_at: time(found.created_ms),
            age: Duration::from_millis(now_ms.saturating_sub(found.created_ms)),
            is_abandoned: found.is_abandoned,
            checkpoint: checkpoint.flatten(),
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        self.downstream.key()
    }

    /// The attempt that was interrupted.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When it began.
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// When the operation was first claimed.
    pub fn created_at(&self) -> SystemTime {
        self.created_at
    }

    /// How long the operation has been without an outcome.
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Whether it is too old to be taken up again by a claim: see
    /// [`Options::abandon_after`](crate::Options::abandon_after).
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// The newest checkpoint of any attempt.
    pub fn checkpoint(&self) -> Option<&Bytes> {
        self.checkpoint.as_ref()
    }

    /// The key under which the operation called another system: what
    /// [`Operation::downstream_key`] gave every attempt.
    pub fn downstream_key(&self, label: &str) -> String {
        self.downstream.derive(label)
    }
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupted")
            .field("key", self.key())
            .field("attempt", &self.attempt)
            .field("age", &self.age)
            .field("is_abandoned", &self.is_abandoned)
            .finish_non_exhaustive()
    }
}

/// [`reconcile`] on this thread.
pub(crate) fn reconcile_blocking(
    engine: &Arc<Opened>,
    mut ask: impl FnMut(&Interrupted) -> Verdict,
) -> Result<ReconcileReport, Unavailable> {
    let ask = async |interrupted: &Interrupted| ask(interrupted);
    block_on(reconcile(engine, Lead::Allowed, ask))
}

/// Walks all keys, stripe by stripe: what is in memory is the keys of one stripe.
pub(crate) async fn reconcile(
    engine: &Arc<Opened>,
    lead: Lead,
    mut ask: impl AsyncFnMut(&Interrupted) -> Verdict,
) -> Result<ReconcileReport, Unavailable> {
    let mut report = ReconcileReport::default();
    let durability = engine.settings().durability;
    let level = Level { durability, lead };
    for keys in engine.unsettled_keys() {
        for key in keys? {
            let settled = match engine.unsettled(&key, level).await {
                Ok(None) => Ok(Settled::Overtaken),
                Ok(Some(found)) => {
                    let interrupted = Interrupted::unsettled(engine, key.clone(), &found);
                    let verdict = ask(&interrupted).await;
                    settle(engine, level, &key, &found, verdict).await
                }
                Err(error) => Err(ReconcileError::Claim(error)),
            };
            report.count(key, settled)?;
        }
    }
    Ok(report)
}

/// Settles one key as `decide` says of its checkpoint as it is stored. Whether it is settled now.
pub(crate) fn settle_key(
    engine: &Arc<Opened>,
    key: &Key,
    decide: impl FnOnce(Option<&Bytes>) -> Verdict,
) -> Result<bool, ReconcileError> {
    let level = Level {
        durability: engine.settings().durability,
        lead: Lead::Allowed,
    };
    block_on(async {
        let found = engine.unsettled(key, level).await;
        let Some(found) = found.map_err(ReconcileError::Claim)? else {
            return Ok(false);
        };
        let verdict = decide(found.checkpoint.as_ref());
        let settled = settle(engine, level, key, &found, verdict).await?;
        Ok(matches!(settled, Settled::Completed | Settled::Released))
    })
}

/// What was done about one key.
enum Settled {
    Completed,
    Released,
    Kept,
    Overtaken,
}

async fn settle(
    engine: &Arc<Opened>,
    level: Level,
    key: &Key,
    found: &Unsettled,
    verdict: Verdict,
) -> Result<Settled, ReconcileError> {
    if verdict == Verdict::Keep {
        return Ok(Settled::Kept);
    }
    let request = Request {
        key: Cow::Borrowed(key),
        fingerprint: found.fingerprint,
        options: ResolvedClaim {
            durability: level.durability,
            lease_ms: crate::index::live::WHILE_ALIVE,
            retention_ms: engine.settings().retention_ms,
            first_sent_ms: None,
        },
        level,
    };
    let taken = engine.take_up(&request, found.token).await;
    let Some(grant) = taken.map_err(ReconcileError::Claim)? else {
        return Ok(Settled::Overtaken);
    };
    let operation = Operation::new(Arc::clone(engine), grant);
    let written = match verdict {
        Verdict::Completed(response) => operation.complete_at(level, Some(&response)).await,
        Verdict::Done => operation.complete_at(level, None).await,
        Verdict::Release | Verdict::Keep => {
            return match operation.release_at(level).await {
                Ok(()) => Ok(Settled::Released),
                Err(error) => not_written(error),
            };
        }
    };
    match written {
        Ok(_) => Ok(Settled::Completed),
        Err(error) => not_written(error),
    }
}

fn not_written(error: FinishError) -> Result<Settled, ReconcileError> {
    match error.error() {
        WriteError::LeaseLost { .. } => Ok(Settled::Overtaken),
        error => Err(ReconcileError::Write(error.clone())),
    }
}

impl ReconcileReport {
    /// Counts what was done about a key. Where the store refuses everything, the walk is over.
    fn count(
        &mut self,
        key: Key,
        settled: Result<Settled, ReconcileError>,
    ) -> Result<(), Unavailable> {
        match settled {
            Ok(Settled::Completed) => self.completed += 1,
            Ok(Settled::Released) => self.released += 1,
            Ok(Settled::Kept) => self.kept += 1,
            Ok(Settled::Overtaken) => self.overtaken += 1,
            Err(
                ReconcileError::Claim(
                    ClaimError::Unavailable(error) | ClaimError::OutcomeUnknown(error),
                )
                | ReconcileError::Write(
                    WriteError::Unavailable(error) | WriteError::OutcomeUnknown(error),
                ),
            ) => return Err(error),
            Err(error) => {
                self.failed += 1;
                if self.failures.len() < FAILURES_NAMED_MAX {
                    self.failures.push(ReconcileFailure { key, error });
                }
            }
        }
        Ok(())
    }
}
