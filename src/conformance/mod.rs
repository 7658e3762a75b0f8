//! The contract of a claim as a suite of tests, for whoever implements
//! [`Backend`].
//!
//! ```
//! use oncekey::conformance::{self, Factory};
//! use oncekey::{Options, Store};
//!
//! #[derive(Clone)]
//! struct Embedded(Store);
//!
//! impl Factory for Embedded {
//!     type Backend = Store;
//!
//!     async fn open(&self) -> Store {
//!         self.0.clone()
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let report = conformance::run(&Embedded(Store::open(dir.path())?)).await;
//! assert!(report.failed.is_empty(), "{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The suite uses keys of its own, so it may run on a store in use, but not twice on one at the same
//! time for its listing of interrupted keys. It takes some seconds, most of it waiting for short leases
//! and retentions to end. Nothing in it fails because a machine is slow: what must not have happened yet
//! has a minute's lease, and what must happen may take a minute.

mod cases;
mod endings;
mod leases;
mod races;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Outcome};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::options::ClaimOptions;

/// How the suite gets at the backend under test.
pub trait Factory: Clone + Send + Sync + 'static {
    /// What is tested.
    type Backend: Backend;

    /// A handle on the one store under test, as far from the others as can be: a connection pool of
    /// its own where the backend is shared.
    fn open(&self) -> impl Future<Output = Self::Backend> + Send;

    /// Restarts what keeps the keys, losing nothing that was acknowledged, and gives a new handle;
    /// `None`, the default, where that can't be done. Earlier handles may stop working.
    fn restart(&self) -> impl Future<Output = Option<Self::Backend>> + Send {
        async { None }
    }

    /// Lets the backend's clock go on by `duration`. The default really waits.
    fn advance(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    /// How long after its death an owner with
    /// [`Lease::WhileAlive`](crate::Lease::WhileAlive) may still hold its key; `None`, the default,
    /// where the backend sees it die.
    fn lease(&self) -> Option<Duration> {
        None
    }
}

/// What came of the suite.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases that hold.
    pub passed: Vec<&'static str>,
    /// Cases that this backend can't be put through.
    pub skipped: Vec<&'static str>,
    /// Cases that don't hold, and what was seen.
    pub failed: Vec<(&'static str, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, skipped) = (self.passed.len(), self.skipped.len());
        writeln!(
            f,
            "{passed} passed, {skipped} skipped, {} failed",
            self.failed.len()
        )?;
        for (case, what) in &self.failed {
            writeln!(f, "{case}: {what}")?;
        }
        Ok(())
    }
}

/// What a case that does not hold says.
#[derive(Debug)]
enum Fault {
    /// The backend can't be put through it.
    Skipped,
    Broken(String),
}

type Verdict = Result<(), Fault>;

impl<E: fmt::Display> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Fails the case unless the condition holds.
macro_rules! check {
    ($condition:expr, $($said:tt)+) => {
        if !$condition {
            return Err(crate::conformance::Fault::Broken(format!($($said)+)));
        }
    };
}

/// Takes what a pattern holds, or fails the case.
macro_rules! expected {
    ($value:expr, $pattern:pat => $result:expr, $when:expr) => {
        match $value {
            $pattern => $result,
            other => {
                return Err(crate::conformance::Fault::Broken(format!(
                    "{}: expected {}, got {other:?}",
                    $when,
                    stringify!($pattern)
                )));
            }
        }
    };
}
use {check, expected};

/// Runs every case, and says which hold. Never panics where the backend does not.
pub async fn run<F: Factory>(factory: &F) -> Report {
    let mut report = Report::default();
    macro_rules! run {
        ($($module:ident::$case:ident),* $(,)?) => {
            $(
                // Its own task, so that guards are dropped where a runtime is.
                let case = factory.clone();
                let task = tokio::spawn(async move { $module::$case(&case).await });
                let name = stringify!($case);
                match task.await {
                    Ok(Ok(())) => report.passed.push(name),
                    Ok(Err(Fault::Skipped)) => report.skipped.push(name),
                    Ok(Err(Fault::Broken(what))) => report.failed.push((name, what)),
                    Err(error) => report.failed.push((name, error.to_string())),
                }
            )*
        };
    }
    run!(
        cases::an_absent_key_starts,
        cases::a_held_key_is_in_progress,
        cases::a_completed_key_replays,
        cases::a_response_may_be_empty_absent_large_or_binary,
        cases::a_result_is_for_its_principal,
        cases::another_fingerprint_is_a_mismatch_on_every_path,
        cases::fingerprints_that_cannot_be_compared_match,
        cases::no_two_keys_are_one,
        cases::downstream_keys_tell_operations_apart,
        cases::limits_are_errors_that_change_nothing,
        endings::a_release_frees_the_key,
        endings::a_dropped_guard_interrupts,
        endings::checkpoints_reach_the_next_attempt,
        endings::a_forgotten_key_is_absent,
        endings::an_operator_interrupts_a_hung_owner,
        endings::interrupted_keys_are_listed,
        endings::results_survive_a_restart,
        leases::a_lease_is_not_taken_over_early,
        leases::a_late_owner_is_fenced,
        leases::a_late_completion_counts_if_nobody_took_over,
        leases::a_renewed_lease_goes_on,
        leases::a_living_owner_is_not_run_over,
        leases::a_lease_of_zero_is_refused,
        leases::an_expired_result_frees_its_key,
        leases::a_request_older_than_results_is_too_late,
        races::one_of_many_starts,
        races::one_of_many_takes_over,
        races::a_waiter_gets_the_result,
        races::one_waiter_goes_on_after_a_release,
        races::a_dropped_claim_leaves_no_owner,
    );
    report
}

/// More than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A key that no other case and no other run has.
fn new_key(case: &str) -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = format!(
        "{}-{}-{number}",
        std::process::id(),
        now.unwrap_or_default().as_nanos()
    );
    Key::new("conformance", case, id).unwrap_or_else(|_| unreachable!("it is short"))
}

fn request() -> Fingerprint {
    Fingerprint::of(b"the request")
}

async fn claim<B: Backend>(
    backend: &B,
    key: &Key,
) -> Result<Outcome<B::Guard>, crate::error::ClaimError> {
    backend.claim(key, request(), ClaimOptions::new()).await
}

/// Claims until the outcome is no longer "in progress": what must become of a dropped guard.
async fn claim_when_free<B: Backend>(
    backend: &B,
    key: &Key,
    options: ClaimOptions,
) -> Result<Outcome<B::Guard>, Fault> {
    let begun = Instant::now();
    loop {
        let outcome = backend.claim(key, request(), options.clone()).await?;
        if !matches!(outcome, Outcome::InProgress(_)) {
            return Ok(outcome);
        }
        if begun.elapsed() > LONG {
            return Err(Fault::Broken("the key is held for ever".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
