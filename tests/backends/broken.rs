//! The suite finds backends that break the contract: each fault here is one that real ones had.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncekey::backend::{Answer, Backend, Guard, Outcome};
use oncekey::conformance::{self, Factory};
use oncekey::{
    AdminError, ClaimError, ClaimOptions, Fingerprint, Forget, Key, KeyState, Operation,
    PendingKey, Store, Token,
};

use crate::world::{Embedded, block_on};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Results are replayed to whoever asks.
    FingerprintIgnored,
    /// A look and then a step: a second caller gets in between.
    ClaimedInTwoSteps,
    /// Whoever finds a held key takes it.
    TakenOverEarly,
    /// A forced removal does nothing, and says that it did.
    ForgetForgotten,
    /// The operator's word is not passed on.
    InterruptIgnored,
    /// A waiter is answered at once.
    WaitsForNobody,
    /// Interrupted keys are not shown.
    ListsNothing,
    /// Completed operations may run again.
    ResultsDropped,
    /// Retries that are too late run.
    FirstSentIgnored,
}

static NEXT_TURN: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
struct Broken {
    store: Store,
    fault: Fault,
}

impl Broken {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Backend for Broken {
    type Guard = Operation;

    async fn claim(
        &self,
        key: &Key,
        mut fingerprint: Fingerprint,
        mut options: ClaimOptions,
    ) -> Result<Outcome<Operation>, ClaimError> {
        if self.is(Fault::FingerprintIgnored)
            && matches!(
                Backend::look(&self.store, key).await?,
                KeyState::Completed(_)
            )
        {
            fingerprint = Fingerprint::none();
        }
        if self.is(Fault::FirstSentIgnored) {
            options = ClaimOptions::new();
        }
        if self.is(Fault::ClaimedInTwoSteps) {
            let state = Backend::look(&self.store, key).await?;
            // Each a while after the one before, who has its guard in hand by then.
            let turn = NEXT_TURN.fetch_add(1, Ordering::Relaxed) % 8;
            tokio::time::sleep(Duration::from_millis(20 * (1 + turn))).await;
            if matches!(state, KeyState::Absent) {
                Backend::forget(&self.store, key, Forget::Force)
                    .await
                    .expect("removed");
            }
        }
        let outcome = Backend::claim(&self.store, key, fingerprint, options.clone()).await?;
        if self.is(Fault::TakenOverEarly)
            && matches!(outcome, Outcome::InProgress(_))
            && let KeyState::InProgress { token, .. } = Backend::look(&self.store, key).await?
        {
            drop(self.store.interrupt(key, token));
            return Backend::claim(&self.store, key, fingerprint, options).await;
        }
        if self.is(Fault::ResultsDropped) && matches!(outcome, Outcome::Completed(_)) {
            Backend::forget(&self.store, key, Forget::Force)
                .await
                .expect("removed");
            return Backend::claim(&self.store, key, fingerprint, options).await;
        }
        Ok(outcome)
    }

    async fn wait(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<Operation>, ClaimError> {
        if self.is(Fault::WaitsForNobody) {
            return Backend::claim(&self.store, key, fingerprint, options).await;
        }
        Backend::wait(&self.store, key, fingerprint, options).await
    }

    async fn look(&self, key: &Key) -> Result<KeyState, ClaimError> {
        Backend::look(&self.store, key).await
    }

    async fn forget(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        if self.is(Fault::ForgetForgotten) {
            return Ok(!matches!(
                Backend::look(&self.store, key).await?,
                KeyState::Absent
            ));
        }
        Backend::forget(&self.store, key, forget).await
    }

    async fn interrupt(&self, key: &Key, token: Token) -> Result<(), AdminError> {
        if self.is(Fault::InterruptIgnored) {
            return Ok(());
        }
        Backend::interrupt(&self.store, key, token).await
    }

    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, ClaimError> {
        if self.is(Fault::ListsNothing) {
            return Ok(Vec::new());
        }
        Backend::interrupted(&self.store, max).await
    }
}

#[derive(Clone)]
struct BrokenFactory {
    embedded: Embedded,
    fault: Fault,
}

impl Factory for BrokenFactory {
    type Backend = Broken;

    async fn open(&self) -> Broken {
        Broken {
            store: self.embedded.store(),
            fault: self.fault,
        }
    }

    async fn advance(&self, duration: Duration) {
        self.embedded.advance(duration).await;
    }
}

#[test]
fn each_fault_is_found_and_where_it_is() {
    for (fault, case) in [
        (
            Fault::FingerprintIgnored,
            "another_fingerprint_is_a_mismatch_on_every_path",
        ),
        (Fault::ClaimedInTwoSteps, "one_of_many_starts"),
        (Fault::TakenOverEarly, "a_lease_is_not_taken_over_early"),
        (Fault::ForgetForgotten, "a_forgotten_key_is_absent"),
        (
            Fault::InterruptIgnored,
            "an_operator_interrupts_a_hung_owner",
        ),
        (Fault::WaitsForNobody, "a_waiter_gets_the_result"),
        (Fault::ListsNothing, "interrupted_keys_are_listed"),
        (Fault::ResultsDropped, "a_completed_key_replays"),
        (
            Fault::FirstSentIgnored,
            "a_request_older_than_results_is_too_late",
        ),
    ] {
        let factory = BrokenFactory {
            embedded: Embedded::new(),
            fault,
        };
        let report = block_on(conformance::run(&factory));
        let found = report.failed.iter().any(|(failed, _)| *failed == case);
        assert!(found, "{fault:?} is not found by {case}: {report}");
    }
}

#[test]
fn what_cannot_be_tried_is_said() {
    let store = Embedded::new();
    let factory = NoRestart(store);
    let report = block_on(conformance::run(&factory));
    assert!(report.failed.is_empty(), "{report}");
    assert_eq!(report.skipped, ["results_survive_a_restart"]);
}

#[derive(Clone)]
struct NoRestart(Embedded);

impl Factory for NoRestart {
    type Backend = Store;

    async fn open(&self) -> Store {
        self.0.store()
    }

    async fn advance(&self, duration: Duration) {
        self.0.advance(duration).await;
    }
}

#[test]
fn generic_code_runs_on_the_embedded_store() {
    async fn once<B: Backend>(backend: &B, key: &Key) -> Option<u32> {
        let claim = backend.wait(key, Fingerprint::none(), ClaimOptions::new());
        let guard = claim.await.expect("a claim").into_guard()?;
        let attempt = guard.attempt();
        guard
            .complete(Answer::without_response())
            .await
            .expect("completed");
        Some(attempt)
    }
    let store = Embedded::new().store();
    let key = Key::new("", "consumer", "event-1").expect("a key");
    block_on(async {
        assert_eq!(once(&store, &key).await, Some(1));
        assert_eq!(once(&store, &key).await, None);
    });
}
