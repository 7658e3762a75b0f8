//! Runs a script on a store and keeps the oracle's books: before each call what it may write, and
//! after it what its caller was told. Each answer is compared with the only right one.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncekey::testing::SimulatedDisk;
use oncekey::{
    Claim, ClaimError, Clock, Durability, Lease, MaintenanceReport, ManualClock, OpenError,
    Operation, Options, Store, Ticket, Unavailable, WriteError,
};

use crate::model::{Crash, Model, State};
use crate::script::{Script, Step};
use crate::support::{START_MS, ms};

/// Who has a key.
pub struct Holder {
    pub by: Hold,
    pub level: Durability,
    pub retention_s: u64,
    pub lease_ms: Option<u64>,
    pub lease_end_ms: Option<u64>,
}

pub enum Hold {
    Guard(Operation),
    Ticket,
}

/// A process with a store, and what is known of it.
pub struct World {
    pub disk: SimulatedDisk,
    pub clock: ManualClock,
    pub model: Model,
    /// The model while the newest call was under way.
    pub in_flight: Model,
    pub level: Durability,
    prepared: usize,
    pub store: Option<Store>,
    pub holders: BTreeMap<u8, Holder>,
    pub tickets: BTreeMap<u8, Ticket>,
    /// What each pass of maintenance did.
    pub maintained: Vec<MaintenanceReport>,
    /// Whether the disk may fail; else every error is a fault of the store.
    pub faulty: bool,
    /// Whether each disk is to keep its states.
    watched: bool,
    /// Decides which pages are written back early.
    restless: Option<u64>,
}

/// What an error means for what was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not.
    Nothing,
    /// It may have been.
    Unknown,
}

/// Options of every store here. Maintenance is a step like others.
pub fn options(level: Durability, prepared: usize, clock: &ManualClock) -> Options {
    Options::new()
        .durability(level)
        .segment_size(64 << 10)
        .prepared_segments(prepared)
        .stripes(2)
        .maintenance(false)
        .clock(Arc::new(clock.clone()))
}

impl World {
    /// A process that has not opened its store yet.
    pub fn new(script: &Script, disk: SimulatedDisk) -> Self {
        Self::later(script, disk, Model::default(), START_MS)
    }

    /// A process on a disk that others used before.
    pub fn later(script: &Script, disk: SimulatedDisk, model: Model, now_ms: u64) -> Self {
        Self {
            disk,
            clock: ManualClock::new(now_ms),
            in_flight: model.clone(),
            model,
            level: script.level,
            prepared: script.prepared,
            store: None,
            holders: BTreeMap::new(),
            tickets: BTreeMap::new(),
            maintained: Vec::new(),
            faulty: false,
            watched: false,
            restless: None,
        }
    }

    /// Has this disk and those that follow it keep their states.
    pub fn watch(&mut self) {
        self.watched = true;
        self.disk.keep_states();
    }

    /// Has this disk and those that follow it write pages back at any time.
    pub fn restless(&mut self, seed: u64) {
        self.restless = Some(seed);
        self.disk.restless(seed);
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Opens the store and compares all it says with what may be said. Where the disk may fail an
    /// open may, too.
    pub fn open(&mut self, crash: Crash) {
        match options(self.level, self.prepared, &self.clock).open_simulated(&self.disk) {
            Ok(store) => {
                let now_ms = self.now_ms();
                let seen = match self.model.look(&store) {
                    Ok(seen) => seen,
                    // A sync of the log may have failed meanwhile.
                    Err(_) if self.faulty && store.stats().poisoned => return,
                    Err(error) => panic!("{error}"),
                };
                if let Err(complaint) = self.model.check(&seen, crash, now_ms) {
                    panic!("{complaint}\n{}", store.recovery_report());
                }
                self.model.settle(&seen, crash, now_ms);
                self.store = Some(store);
            }
            Err(OpenError::Io { .. }) if self.faulty => {}
            Err(error) => panic!("does not open: {error}"),
        }
    }

    /// Everybody who had a key is gone.
    fn end_process(&mut self) {
        self.holders.clear();
        self.store = None;
    }

    fn next_process(&mut self, disk: SimulatedDisk, crash: Crash) {
        self.end_process();
        self.disk = disk;
        if crash == Crash::Power {
            self.in_flight.lose_power();
        }
        if let Some(seed) = &mut self.restless {
            *seed += 1;
            self.disk.restless(*seed);
        }
        if self.watched {
            self.disk.keep_states();
        }
        self.open(crash);
    }

    /// Whether somebody has the key and nobody may take it over.
    pub fn is_held(&self, key: u8) -> bool {
        self.holders.get(&key).is_some_and(|holder| {
            holder
                .lease_end_ms
                .is_none_or(|end_ms| self.clock.monotonic_ms() < end_ms)
        })
    }

    /// Notes what the call under way may write.
    pub fn may(&mut self, key: u8, state: State) {
        self.model.may(key, state);
        self.in_flight = self.model.clone();
    }

    /// Who is answered at this level knows that all that was written before is durable.
    pub fn reached(&mut self, level: Durability) {
        if level == Durability::Sync {
            self.model.all_durable();
        }
    }

    /// Does one step.
    pub fn step(&mut self, step: &Step) {
        self.in_flight = self.model.clone();
        match *step {
            Step::Advance { ms: by } => self.clock.advance(ms(by)),
            Step::WriteBack { seed } => {
                let mut random = crate::support::Random::new(seed);
                self.disk.write_back(&mut |_| random.below(2) == 0);
            }
            Step::Reopen => {
                self.close();
                self.open(Crash::Kill);
            }
            Step::Kill => self.next_process(self.disk.crash_none_lost(), Crash::Kill),
            Step::LosePower { seed } => {
                self.next_process(self.disk.crash_random(seed), Crash::Power);
            }
            Step::Flush => {
                let Some(store) = &self.store else { return };
                match store.flush() {
                    Ok(()) => self.model.all_durable(),
                    Err(error) => self.refused(&error),
                }
            }
            ref call => {
                if let Some(store) = self.store.clone() {
                    self.call(&store, call);
                }
            }
        }
    }

    pub fn run(&mut self, script: &Script) {
        self.open(Crash::Kill);
        for step in &script.steps {
            self.step(step);
        }
    }

    /// Closes the store; true if that was done properly.
    pub fn close(&mut self) -> bool {
        let closed = self.store.as_ref().is_some_and(|store| {
            let closed = store.close();
            assert!(closed.is_ok() || self.faulty, "{closed:?}");
            closed.is_ok()
        });
        self.end_process();
        if closed {
            self.model.all_durable();
        }
        closed
    }

    /// A guard of a key that was taken away from it.
    pub fn is_fenced(&mut self, key: u8) {
        let Some(Holder {
            by: Hold::Guard(stale),
            ..
        }) = self.holders.remove(&key)
        else {
            return;
        };
        let error = stale.complete(b"stale").expect_err("it was fenced");
        match error.error() {
            WriteError::LeaseLost { .. } => assert!(error.into_operation().is_none()),
            WriteError::Unavailable(Unavailable::Poisoned { .. }) if self.faulty => {}
            other => panic!("{other:?}"),
        }
    }

    /// Notes a grant, and takes the guard.
    pub fn hold(&mut self, key: u8, operation: Operation, terms: (Durability, Option<u64>, u64)) {
        let (level, lease_ms, retention_s) = terms;
        self.is_fenced(key);
        self.model.granted(key, operation.token().as_u64());
        self.reached(level);
        let holder = Holder {
            by: Hold::Guard(operation),
            level,
            retention_s,
            lease_ms,
            lease_end_ms: lease_ms.map(|lease_ms| self.clock.monotonic_ms() + lease_ms),
        };
        self.holders.insert(key, holder);
    }

    /// What an error of the store means. Not one that a healthy disk explains.
    pub fn refused(&self, error: &Unavailable) {
        assert!(self.faulty, "{error}");
        assert!(matches!(error, Unavailable::Poisoned { .. }), "{error}");
        let poisoned = self
            .store
            .as_ref()
            .is_some_and(|store| store.stats().poisoned);
        assert!(poisoned, "{error}");
    }

    pub fn claim_failed(&self, error: &ClaimError) -> Failure {
        match error {
            ClaimError::OutOfSpace(error) => {
                assert!(self.faulty, "{error}");
                Failure::Nothing
            }
            ClaimError::OutcomeUnknown(error) => {
                self.refused(error);
                Failure::Unknown
            }
            ClaimError::Unavailable(error) => {
                self.refused(error);
                Failure::Nothing
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn write_failed(&self, error: &WriteError) -> Failure {
        match error {
            WriteError::OutOfSpace(error) => {
                assert!(self.faulty, "{error}");
                Failure::Nothing
            }
            WriteError::OutcomeUnknown(error) => {
                self.refused(error);
                Failure::Unknown
            }
            WriteError::Unavailable(error) => {
                self.refused(error);
                Failure::Nothing
            }
            other => panic!("{other:?}"),
        }
    }

    /// Books for a call on `key` that failed.
    pub fn failed(&mut self, key: u8, begun: bool, failure: Failure) {
        if begun && failure == Failure::Nothing {
            self.model.withdraw(key);
        }
    }

    /// A claim that succeeds on a key that may be had, and what it writes.
    pub fn grant_of(&self, key: u8) -> Option<State> {
        let (attempt, notes) = match self.model.now(key, self.now_ms()) {
            State::Absent => (1, vec![None]),
            State::Pending { attempt, notes, .. } if !self.is_held(key) => (attempt + 1, notes),
            _ => return None,
        };
        Some(State::Pending {
            attempt,
            token: None,
            notes,
            ticket: None,
        })
    }

    /// Compares the outcome of a claim with the state that the key was in.
    pub fn claimed(&mut self, key: u8, claim: Claim, terms: (Durability, Option<u64>, u64)) {
        let held = self.is_held(key);
        match (claim, self.model.now(key, self.now_ms())) {
            (Claim::Started(operation), State::Absent) => {
                assert_eq!(operation.attempt(), 1);
                assert!(operation.previous().is_none());
                self.hold(key, operation, terms);
            }
            (Claim::Interrupted(operation), State::Pending { attempt, .. }) if !held => {
                self.is_next_attempt(key, &operation, attempt);
                self.hold(key, operation, terms);
            }
            (Claim::InProgress(progress), State::Pending { attempt, .. }) if held => {
                assert_eq!(progress.attempt(), attempt);
            }
            (Claim::Completed(saved), known @ State::Completed { principal, .. }) => {
                assert_eq!(State::completed(&saved, principal), Ok(known));
                if terms.0 == Durability::Sync {
                    self.model.durable(key);
                }
            }
            (claim, known) => panic!("key {key}: {claim:?} for {known:?}, held: {held}"),
        }
    }

    /// What the guard of a key that was taken over says of the attempt before.
    pub fn is_next_attempt(&mut self, key: u8, operation: &Operation, attempt: u32) {
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(
            (previous.attempt, operation.attempt()),
            (attempt, attempt + 1)
        );
        let note = previous.checkpoint.as_deref().map(crate::model::Body::from);
        self.model.noted(key, note).expect("a checkpoint of ours");
    }
}

pub fn lease(lease_ms: Option<u64>) -> Lease {
    lease_ms.map_or(Lease::WhileAlive, |lease_ms| Lease::For(ms(lease_ms)))
}
