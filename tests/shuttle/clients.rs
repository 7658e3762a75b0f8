//! Threads that use a store in every way it offers, and check each answer.
//!
//! No client keeps a guard while it waits for another key: two of them could wait for each other,
//! which would be their fault and not the store's.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use oncekey::{
    AdminError, Claim, ClaimError, ClaimOptions, Fingerprint, FinishError, Forget, InProgress, Key,
    KeyState, OnInterrupted, Operation, ResumeError, RunError, RunOptions, Saved, Stats, Store,
    Unavailable, WriteError,
};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::driver::hold_back;
use crate::ledger::{Ledger, Owners, Snapshot, Stored};
use crate::upkeep::maintain;

/// Longer than any schedule: a wait that gets there was forgotten.
const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How often a client that met somebody else's operation goes on with what it gets next.
const WAITS_MAX: usize = 3;
/// More steps than most calls have.
const STEPS_OF_A_CALL: usize = 100;

/// What may happen in a scenario besides claims.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// The store is closed in the middle.
    pub closes: bool,
    /// A sync fails.
    pub poisons: bool,
    /// The disk is full for a while.
    pub fills: bool,
    /// Leases run out, and work is handed on by ticket.
    pub leases: bool,
    /// Operators remove keys and interrupt owners.
    pub operators: bool,
    /// Responses are so long that segments roll over.
    pub rolls_over: bool,
    /// Segments are given up all the time.
    pub maintains: bool,
}

/// One of several threads on a store.
#[derive(Clone)]
pub struct Client {
    pub store: Store,
    pub ledger: Arc<Ledger>,
    pub keys: Arc<Vec<Key>>,
    pub trouble: Trouble,
    pub steps: usize,
    /// Results that are nobody's.
    pub fillers: Arc<AtomicU64>,
    /// What everybody knew before the newest flush that succeeded.
    pub flushed: Arc<Mutex<Snapshot>>,
    /// Called whenever the store has given its word: the best moments for a crash.
    pub after_an_answer: Arc<dyn Fn() + Send + Sync>,
}

/// A number below `limit`, from the schedule.
pub fn chance(limit: usize) -> usize {
    thread_rng().gen_range(0..limit)
}

/// Lets the others go on for some steps.
pub fn pause(steps_max: usize) {
    for _ in 0..chance(steps_max) {
        thread::sleep(Duration::ZERO);
    }
}

/// The request of a key: every client sends the same.
fn request(key: &Key) -> Fingerprint {
    Fingerprint::of(key.id())
}

/// Polls a few times at most, then drops the future.
fn poll_and_drop<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut polls = 1 + chance(2);
    let mut future = pin!(future);
    block_on(poll_fn(move |context| {
        polls -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }))
}

impl Client {
    pub fn run(&self) {
        for _ in 0..self.steps {
            self.step();
        }
    }

    fn step(&self) {
        let key = &self.keys[chance(self.keys.len())];
        if self.trouble.maintains && chance(2) == 0 {
            hold_back(chance(STEPS_OF_A_CALL));
        }
        match chance(17) {
            0..=7 => self.answered(key, self.claim(key), 0),
            8 => {
                let claim = self.store.claim_async(key, request(key));
                if let Some(claim) = poll_and_drop(claim) {
                    self.answered(key, claim, 0);
                }
            }
            9 => self.claim_all(),
            10 | 11 => self.run_once(key),
            12 => self.get(key),
            13 => self.flush(),
            14 => self.look_around(key),
            15 if self.trouble.maintains => maintain(&self.store, self.trouble),
            _ => self.operate(key),
        }
    }

    fn claim(&self, key: &Key) -> Result<Claim, ClaimError> {
        match chance(2) {
            0 => self.store.claim(key, request(key)),
            _ => block_on(self.store.claim_async(key, request(key))),
        }
    }

    fn answered(&self, key: &Key, claim: Result<Claim, ClaimError>, waits: usize) {
        match claim {
            Ok(Claim::Started(operation)) => self.own(key, operation, true),
            Ok(Claim::Interrupted(operation)) => self.own(key, operation, false),
            Ok(Claim::Completed(saved)) => self.told(key, &saved),
            Ok(Claim::InProgress(progress)) if waits < WAITS_MAX => {
                self.wait(key, progress, waits);
            }
            Ok(Claim::InProgress(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => self.claim_failed(&error),
        }
    }

    fn wait(&self, key: &Key, progress: InProgress, waits: usize) {
        let claim = match chance(6) {
            0 => return,
            1 => match poll_and_drop(progress.wait_async()) {
                Some(claim) => claim,
                None => return,
            },
            2 | 3 => block_on(progress.wait_async()),
            _ => progress.wait(LONG),
        };
        self.answered(key, claim, waits + 1);
    }

    /// A guard, from here to its end.
    fn own(&self, key: &Key, mut operation: Operation, afresh: bool) {
        self.ledger.granted(key, operation.token(), afresh);
        (self.after_an_answer)();
        for _ in 0..chance(3) {
            let written = match chance(3) {
                0 => operation.checkpoint(b"half-way"),
                1 => block_on(operation.checkpoint_async(b"nearly")),
                _ => operation.renew(),
            };
            if let Err(error) = written {
                self.write_failed(&error);
            }
        }
        match chance(10) {
            0 | 1 => self.release(key, operation),
            2 => {
                self.ledger.gives_up(key, operation.token());
                drop(operation);
            }
            3 | 4 if self.trouble.leases => self.hand_on(key, operation),
            _ => self.complete(key, operation),
        }
    }

    fn complete(&self, key: &Key, operation: Operation) {
        let token = operation.token();
        let response = self.response(&operation);
        let newest = self.ledger.completes(key, token, &response);
        let completed = match (&response, chance(5)) {
            (None, 0) => block_on(operation.complete_without_response_async()),
            (None, _) => operation.complete_without_response(),
            (Some(response), 0) => {
                match poll_and_drop(operation.complete_async(response.as_slice())) {
                    Some(completed) => completed,
                    None => return,
                }
            }
            (Some(response), 1) => block_on(operation.complete_async(response)),
            (Some(response), 2) => operation.complete_with(response).retention(LONG).commit(),
            (Some(response), _) => operation.complete(response),
        };
        match completed {
            Ok(saved) => {
                assert_eq!(saved.token(), token);
                assert!(newest <= token, "{token} completed what {newest} held");
                self.told(key, &saved);
            }
            Err(error) => self.finish_failed(key, error),
        }
    }

    fn response(&self, operation: &Operation) -> Stored {
        let mut response = format!("done under {}", operation.token()).into_bytes();
        if self.trouble.rolls_over && chance(4) > 0 {
            response.resize(15 << 10, b'.');
        }
        (chance(8) > 0).then_some(response)
    }

    fn release(&self, key: &Key, operation: Operation) {
        let token = operation.token();
        let newest = self.ledger.releases(key, token);
        let released = match chance(2) {
            0 => operation.release(),
            _ => block_on(operation.release_async()),
        };
        match released {
            Ok(()) => {
                assert!(newest <= token, "{token} released what {newest} held");
                self.ledger.released(key, token);
                (self.after_an_answer)();
            }
            Err(error) => self.finish_failed(key, error),
        }
    }

    /// The work goes on by ticket, which is delivered twice.
    fn hand_on(&self, key: &Key, operation: Operation) {
        let ticket = match operation.into_ticket() {
            Ok(ticket) => ticket,
            Err(error) => return self.finish_failed(key, error),
        };
        for _ in 0..2 {
            match self.store.resume(&ticket) {
                Ok(claim) => self.answered(key, Ok(claim), WAITS_MAX),
                Err(ResumeError::LeaseLost { .. }) => {}
                Err(ResumeError::Claim(error)) => self.claim_failed(&error),
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn claim_all(&self) {
        let twice = self.keys.iter().chain(self.keys.first());
        let keys = twice.map(|key| (key, request(key)));
        let claims = match chance(2) {
            0 => self.store.claim_many(keys, ClaimOptions::new()),
            _ => block_on(self.store.claim_many_async(keys, ClaimOptions::new())),
        };
        let mut claims: Vec<_> = self
            .keys
            .iter()
            .chain(self.keys.first())
            .zip(claims)
            .collect();
        // Guards first: they must not be kept while waiting, nor lie about unnoted.
        for (key, claim) in
            claims.extract_if(.., |(_, claim)| claim.as_ref().is_ok_and(Claim::is_owned))
        {
            self.answered(key, claim, WAITS_MAX);
        }
        for (key, claim) in claims {
            match claim {
                Ok(Claim::InProgress(progress)) if progress.is_same_batch() => {
                    let refused = progress.wait(LONG);
                    let is_refused = matches!(refused, Err(ClaimError::HeldBySameBatch));
                    assert!(is_refused, "{refused:?}");
                }
                claim => self.answered(key, claim, 0),
            }
        }
    }

    fn run_once(&self, key: &Key) {
        let options = RunOptions::new()
            .wait(LONG)
            .on_interrupted(OnInterrupted::Rerun);
        let work = |operation: &mut Operation| {
            let token = operation.token();
            self.ledger
                .granted(key, token, operation.previous().is_none());
            let response = self.response(operation).unwrap_or_default();
            self.ledger.completes(key, token, &Some(response.clone()));
            Ok::<_, ()>(response)
        };
        let outcome = match chance(2) {
            0 => self.store.run(key, request(key), options, work),
            _ => {
                let work = async |operation: &mut Operation| work(operation);
                block_on(self.store.run_async(key, request(key), options, work))
            }
        };
        match outcome {
            Ok(saved) => self.told(key, &saved),
            Err(RunError::Claim(error)) => self.claim_failed(&error),
            Err(RunError::Finish(error)) => self.finish_failed(key, error),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn get(&self, key: &Key) {
        let state = match chance(2) {
            0 => self.store.get(key),
            _ => block_on(self.store.get_async(key)),
        };
        match state {
            Ok(KeyState::Completed(saved)) => self.told(key, &saved),
            Ok(_) => {}
            Err(error) => self.claim_failed(&error),
        }
    }

    fn told(&self, key: &Key, saved: &Saved) {
        self.ledger.told(key, saved);
        (self.after_an_answer)();
    }

    fn flush(&self) {
        let known = self.ledger.snapshot();
        let flushed = match chance(2) {
            0 => self.store.flush(),
            _ => block_on(self.store.flush_async()),
        };
        match flushed {
            Ok(()) => {
                *self.flushed.lock().unwrap_or_else(PoisonError::into_inner) = known;
                (self.after_an_answer)();
            }
            Err(error) => refused(self.trouble, &error),
        }
    }

    fn look_around(&self, key: &Key) {
        let stats = self.store.stats();
        // A filler that begins counts itself first.
        let keys = self.keys.len() as u64 + self.fillers.load(Ordering::Relaxed);
        assert!(stats.pending_keys <= keys, "{stats:?}");
        assert!(stats.completed_keys <= keys, "{stats:?}");
        for list in [self.store.pending(), self.store.interrupted()] {
            if let Err(error) = list {
                refused(self.trouble, &error);
            }
        }
        // An operator could remove the key between the question and the claim.
        if !self.trouble.operators && self.ledger.is_settled(key) {
            match self.store.claim(key, Fingerprint::of("another request")) {
                Ok(Claim::Mismatch(mismatch)) => assert!(mismatch.completed),
                Ok(other) => panic!("{other:?} for another request"),
                Err(error) => self.claim_failed(&error),
            }
        }
    }

    fn operate(&self, key: &Key) {
        if !self.trouble.operators {
            return self.get(key);
        }
        let done = match chance(3) {
            0 => match self.store.pending() {
                Ok(pending) => match pending.iter().find(|held| self.keys.contains(&held.key)) {
                    Some(held) => self.store.interrupt(&held.key, held.token),
                    None => return,
                },
                Err(error) => return refused(self.trouble, &error),
            },
            1 => self.forget(key, Forget::IfCompleted),
            _ => self.forget(key, Forget::Force),
        };
        match done {
            Ok(()) | Err(AdminError::Pending { .. } | AdminError::NotHeld { .. }) => {}
            Err(AdminError::Claim(error)) => self.claim_failed(&error),
            Err(other) => panic!("{other}"),
        }
    }

    fn forget(&self, key: &Key, how: Forget) -> Result<(), AdminError> {
        let newest = self.ledger.forgets(key);
        self.store.forget(key, how)?;
        self.ledger.forgot(key, newest);
        (self.after_an_answer)();
        Ok(())
    }

    fn finish_failed(&self, key: &Key, error: FinishError) {
        self.write_failed(error.error());
        if let Some(operation) = error.into_operation() {
            self.ledger.gives_up(key, operation.token());
        }
    }

    fn write_failed(&self, error: &WriteError) {
        match error {
            WriteError::LeaseLost { .. } => {
                assert_eq!(self.ledger.owners(), Owners::Robbed, "{error}");
            }
            WriteError::OutOfSpace(_) => assert!(self.trouble.fills, "{error}"),
            WriteError::OutcomeUnknown(error) | WriteError::Unavailable(error) => {
                refused(self.trouble, error);
            }
            other => panic!("{other}"),
        }
    }

    fn claim_failed(&self, error: &ClaimError) {
        match error {
            ClaimError::OutOfSpace(_) => assert!(self.trouble.fills, "{error}"),
            ClaimError::OutcomeUnknown(error) | ClaimError::Unavailable(error) => {
                refused(self.trouble, error);
            }
            other => panic!("{other}"),
        }
    }
}

/// The store refuses everything, for what happened to it.
pub fn refused(trouble: Trouble, error: &Unavailable) {
    match error {
        Unavailable::Closed => assert!(trouble.closes, "{error}"),
        Unavailable::Poisoned { .. } => assert!(trouble.poisons, "{error}"),
        other => panic!("{other}"),
    }
}

/// What a store counts, once all clients are done. Of its results `fillers` are nobody's, and only
/// those ever expire.
pub fn check_counts(store: &Store, keys: &[Key], ledger: &Ledger, fillers: u64) {
    let stats = settled_stats(store);
    let (mut completed, mut live) = (0, 0);
    for key in keys {
        match store.get(key).expect("the store is open") {
            KeyState::Absent => {}
            KeyState::Completed(saved) => {
                ledger.told(key, &saved);
                ledger.check_removed(key, saved.token());
                completed += 1;
            }
            KeyState::Interrupted { token, .. } => {
                ledger.check_removed(key, token);
                live += 1;
            }
            other => panic!("nobody has {key:?} any more, and it is {other:?}"),
        }
    }
    let fillers_left = fillers - stats.expired;
    assert_eq!(stats.completed_keys, completed + fillers_left, "{stats:?}");
    assert_eq!(stats.pending_keys, live, "{stats:?}");
    assert_eq!(stats.interrupted_keys, live, "{stats:?}");
    assert_eq!(stats.waiters, 0, "{stats:?}");
    let began = stats.claims_started + stats.claims_taken_over;
    assert_eq!(began, ledger.guards() + fillers, "{stats:?}");
    if ledger.owners() == Owners::Exclusive {
        let ended = stats.completed + stats.released + stats.interruptions;
        assert_eq!(began, ended, "{stats:?}");
    }
    assert!(store.pending().expect("the store is open").is_empty());
}

/// What a store counts, where its own thread may be at maintenance still.
fn settled_stats(store: &Store) -> Stats {
    loop {
        let (stats, again) = (store.stats(), store.stats());
        if (stats.completed_keys, stats.expired) == (again.completed_keys, again.expired) {
            return stats;
        }
        thread::yield_now();
    }
}
