//! The calls of a script, each with its place in the oracle's books.

use std::time::Duration;

use oncekey::{
    AdminError, ClaimOptions, Durability, Fingerprint, FinishError, Forget, KeyState,
    MaintenanceError, Operation, Store,
};

use crate::model::{Body, PRINCIPAL, State, name};
use crate::script::Step;
use crate::world::{Failure, Hold, Holder, World, lease};

pub fn fingerprint(key: u8) -> Fingerprint {
    Fingerprint::of([key])
}

pub fn response(key: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8) ^ key.wrapping_mul(37))
        .collect()
}

pub type Terms = (Durability, Option<u64>, u64);

pub fn claim_options((level, lease_ms, retention_s): Terms) -> ClaimOptions {
    ClaimOptions::new()
        .durability(level)
        .lease(lease(lease_ms))
        .retention(Duration::from_secs(retention_s))
}

impl World {
    pub fn call(&mut self, store: &Store, step: &Step) {
        match *step {
            Step::Claim {
                key,
                level,
                lease_ms,
                retention_s,
            } => self.claim(store, key, (level, lease_ms, retention_s)),
            Step::Complete {
                key,
                len,
                level,
                principal,
            } => self.complete(key, Some(len), level, principal),
            Step::CompleteWithoutResponse { key } => self.complete(key, None, None, false),
            Step::Checkpoint { key, len } => self.checkpoint(key, len),
            Step::Release { key } => self.release(key),
            Step::Drop { key } => drop(self.guard(key)),
            Step::Renew { key } => self.renew(key),
            Step::Forget { key, force } => self.forget(store, key, force),
            Step::Interrupt { key } => self.interrupt(store, key),
            Step::Ticket { key } => self.ticket(key),
            Step::Resume { key } => self.resume(store, key),
            Step::Batch { from, count, level } => self.batch(store, from, count, level),
            Step::CancelClaim { key } => self.cancel_claim(store, key),
            Step::CancelComplete { key, len } => self.cancel_complete(key, len),
            Step::Look { key } => self.look(store, key),
            Step::Maintain => self.maintain(store),
            _ => unreachable!("no call: {step:?}"),
        }
    }

    fn claim(&mut self, store: &Store, key: u8, terms: Terms) {
        let grant = self.grant_of(key);
        let begun = grant.is_some();
        if let Some(state) = grant {
            self.may(key, state);
        }
        match store.claim_with(&name(key), fingerprint(key), claim_options(terms)) {
            Ok(claim) => self.claimed(key, claim, terms),
            Err(error) => {
                let failure = self.claim_failed(&error);
                self.failed(key, begun, failure);
            }
        }
    }

    fn batch(&mut self, store: &Store, from: u8, count: u8, level: Durability) {
        let terms = (level, None, 60);
        let keys: Vec<_> = (from..from + count).map(|key| (key, name(key))).collect();
        let grants: Vec<_> = keys.iter().map(|(key, _)| self.grant_of(*key)).collect();
        for ((key, _), grant) in keys.iter().zip(&grants) {
            if let Some(state) = grant {
                self.may(*key, state.clone());
            }
        }
        let pairs = keys.iter().map(|(key, name)| (name, fingerprint(*key)));
        let claims = store.claim_many(pairs, claim_options(terms));
        for (((key, _), grant), claim) in keys.iter().zip(grants).zip(claims) {
            match claim {
                Ok(claim) => self.claimed(*key, claim, terms),
                Err(error) => {
                    let failure = self.claim_failed(&error);
                    self.failed(*key, grant.is_some(), failure);
                }
            }
        }
    }

    /// Takes the key's guard, if somebody has one.
    pub fn guard(&mut self, key: u8) -> Option<(Operation, Terms)> {
        match self.holders.remove(&key)? {
            Holder {
                by: Hold::Guard(operation),
                level,
                lease_ms,
                retention_s,
                ..
            } => Some((operation, (level, lease_ms, retention_s))),
            ticket => {
                self.holders.insert(key, ticket);
                None
            }
        }
    }

    /// What a completion of the key now leaves.
    pub fn completed_state(
        &self,
        operation: &Operation,
        response: Option<&[u8]>,
        principal: bool,
        retention_s: u64,
    ) -> State {
        State::Completed {
            attempt: operation.attempt(),
            token: Some(operation.token().as_u64()),
            response: response.map(Body::from),
            principal,
            expires_ms: self.now_ms() + retention_s * 1_000,
        }
    }

    /// The guard of a key, with when its lease is over, for an end that may give it back.
    pub fn guard_and_lease_end(&mut self, key: u8) -> Option<(Operation, Terms, Option<u64>)> {
        let lease_end_ms = self.holders.get(&key)?.lease_end_ms;
        let (operation, terms) = self.guard(key)?;
        Some((operation, terms, lease_end_ms))
    }

    fn complete(&mut self, key: u8, len: Option<usize>, at: Option<Durability>, principal: bool) {
        let Some((operation, terms, lease_end_ms)) = self.guard_and_lease_end(key) else {
            return;
        };
        let response = len.map(|len| response(key, len));
        let state = self.completed_state(&operation, response.as_deref(), principal, terms.2);
        self.may(key, state.clone());
        let level = at.unwrap_or(terms.0);
        let result = match &response {
            None => operation.complete_without_response(),
            Some(response) => {
                let mut completion = operation.complete_with(response).durability(level);
                if principal {
                    completion = completion.principal(PRINCIPAL);
                }
                completion.commit()
            }
        };
        match result {
            Ok(saved) => {
                assert_eq!(State::completed(&saved, principal), Ok(state));
                self.model.told(key);
                self.reached(level);
            }
            Err(error) => self.kept(key, error, terms, lease_end_ms),
        }
    }

    /// An end of a guard that failed: whether it is still held, and what was written.
    pub fn kept(&mut self, key: u8, error: FinishError, terms: Terms, lease_end_ms: Option<u64>) {
        let failure = self.write_failed(error.error());
        self.failed(key, true, failure);
        let held = error.into_operation();
        assert_eq!(held.is_some(), failure == Failure::Nothing, "key {key}");
        if let Some(operation) = held {
            let (level, lease_ms, retention_s) = terms;
            let holder = Holder {
                by: Hold::Guard(operation),
                level,
                retention_s,
                lease_ms,
                lease_end_ms,
            };
            self.holders.insert(key, holder);
        }
    }

    fn release(&mut self, key: u8) {
        let Some((operation, terms, lease_end_ms)) = self.guard_and_lease_end(key) else {
            return;
        };
        self.may(key, State::Absent);
        match operation.release() {
            Ok(()) => {
                self.model.told(key);
                self.reached(terms.0);
            }
            Err(error) => self.kept(key, error, terms, lease_end_ms),
        }
    }

    fn checkpoint(&mut self, key: u8, len: usize) {
        let Some(Holder {
            by: Hold::Guard(_),
            level,
            ..
        }) = self.holders.get(&key)
        else {
            return;
        };
        let level = *level;
        let note = response(key, len);
        let State::Pending {
            attempt,
            token,
            ticket,
            ..
        } = self.model.now(key, self.now_ms())
        else {
            return;
        };
        let state = State::Pending {
            attempt,
            token,
            // An empty one can't be told from none.
            notes: vec![(len > 0).then(|| Body::from(&note[..]))],
            ticket,
        };
        self.may(key, state);
        let Some(Holder {
            by: Hold::Guard(operation),
            ..
        }) = self.holders.get_mut(&key)
        else {
            return;
        };
        match operation.checkpoint(&note) {
            Ok(()) => {
                self.model.told(key);
                self.reached(level);
            }
            Err(error) => {
                let failure = self.write_failed(&error);
                self.failed(key, true, failure);
            }
        }
    }

    fn renew(&mut self, key: u8) {
        let now_ms = oncekey::Clock::monotonic_ms(&self.clock);
        if let Some(holder) = self.holders.get_mut(&key)
            && let Hold::Guard(operation) = &mut holder.by
        {
            // Of a guard whose last write is of unknown outcome nothing is promised.
            match operation.renew() {
                Ok(()) => holder.lease_end_ms = holder.lease_ms.map(|lease_ms| now_ms + lease_ms),
                Err(error) => assert!(self.faulty, "{error}"),
            }
        }
    }

    fn forget(&mut self, store: &Store, key: u8, force: bool) {
        let how = if force {
            Forget::Force
        } else {
            Forget::IfCompleted
        };
        let known = self.model.now(key, self.now_ms());
        let writes = match known {
            State::Absent => false,
            State::Completed { .. } => true,
            State::Pending { .. } => force,
        };
        // A result whose time is over may be removed for good as well.
        self.may(key, State::Absent);
        match store.forget(&name(key), how) {
            Ok(removed) => {
                assert!(removed || !writes, "key {key}: {known:?}");
                self.model.told(key);
                self.is_fenced(key);
                self.holders.remove(&key);
                self.reached(self.level);
            }
            Err(AdminError::Pending { .. }) if !force && matches!(known, State::Pending { .. }) => {
                self.model.withdraw(key);
            }
            Err(AdminError::Claim(error)) => {
                let failure = self.claim_failed(&error);
                self.failed(key, true, failure);
            }
            Err(other) => panic!("key {key}: {other:?} for {known:?}"),
        }
    }

    fn interrupt(&mut self, store: &Store, key: u8) {
        let (held, known) = (
            self.holders.contains_key(&key),
            self.model.now(key, self.now_ms()),
        );
        let State::Pending {
            token: Some(token), ..
        } = known
        else {
            return;
        };
        let listed = store.pending().expect("a list");
        let Some(pending) = listed.into_iter().find(|pending| pending.key == name(key)) else {
            return;
        };
        assert_eq!((pending.token.as_u64(), held), (token, true));
        store
            .interrupt(&name(key), pending.token)
            .expect("somebody holds it");
        self.is_fenced(key);
        self.holders.remove(&key);
    }

    /// What was begun by nobody changes nothing: there is nothing to be noted but what was done.
    fn maintain(&mut self, store: &Store) {
        match store.maintain() {
            Ok(report) => self.maintained.push(report),
            Err(MaintenanceError::Unavailable(error)) => self.refused(&error),
            Err(MaintenanceError::Io { .. } | MaintenanceError::NoRoom { .. }) if self.faulty => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn look(&mut self, store: &Store, key: u8) {
        let known = self.model.now(key, self.now_ms());
        match (store.get(&name(key)), known) {
            (Ok(KeyState::Absent), State::Absent) => self.reached(self.level),
            (Ok(KeyState::Completed(saved)), known @ State::Completed { principal, .. }) => {
                assert_eq!(State::completed(&saved, principal), Ok(known));
            }
            (Ok(KeyState::InProgress { attempt: found, .. }), State::Pending { attempt, .. })
                if self.is_held(key) =>
            {
                assert_eq!(found, attempt)
            }
            (Ok(KeyState::Interrupted { attempt: found, .. }), State::Pending { attempt, .. })
                if !self.is_held(key) =>
            {
                assert_eq!(found, attempt)
            }
            (Err(error), _) => {
                self.claim_failed(&error);
                return;
            }
            (other, known) => panic!("key {key}: {other:?} for {known:?}"),
        }
        if self.level == Durability::Sync {
            self.model.durable(key);
        }
    }
}
