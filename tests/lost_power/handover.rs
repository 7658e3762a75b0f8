//! Calls of a script that hand an operation on, or that are dropped before they are done.

use std::task::Poll;

use oncekey::{Claim, Durability, FinishError, ResumeError, Saved, Store, Ticket};

use crate::calls::{Terms, claim_options, fingerprint, response};
use crate::model::{State, name};
use crate::support::Polled;
use crate::world::{Failure, Hold, Holder, World};

impl World {
    pub fn ticket(&mut self, key: u8) {
        let Some(holder) = self.holders.get(&key) else {
            return;
        };
        let (lease_ms, lease_end_ms) = (holder.lease_ms, holder.lease_end_ms);
        if lease_ms.is_none() {
            return;
        }
        let Some((operation, (level, _, retention_s))) = self.guard(key) else {
            return;
        };
        match operation.into_ticket() {
            Ok(ticket) => {
                // As it travels.
                let ticket = Ticket::decode(&ticket.encode()).expect("a ticket");
                self.tickets.insert(key, ticket);
                let holder = Holder {
                    by: Hold::Ticket,
                    level,
                    retention_s,
                    lease_ms,
                    lease_end_ms,
                };
                self.holders.insert(key, holder);
            }
            Err(error) => assert!(self.faulty, "{error}"),
        }
    }

    pub fn resume(&mut self, store: &Store, key: u8) {
        let Some(ticket) = self.tickets.get(&key).cloned() else {
            return;
        };
        let of_ticket = ticket_token(&ticket);
        let known = self.model.now(key, self.now_ms());
        let held = self.is_held(key);
        let detached =
            matches!(self.holders.get(&key), Some(holder) if matches!(holder.by, Hold::Ticket));
        let terms = match self.holders.get(&key) {
            Some(holder) => (self.level, holder.lease_ms, holder.retention_s),
            None => (self.level, None, 0),
        };
        let next = match &known {
            State::Pending {
                attempt,
                token,
                notes,
                ticket,
            } if *token == Some(of_ticket) || *ticket == Some(of_ticket) => {
                let attempt = match (held, detached) {
                    (true, true) => Some(*attempt),
                    (true, false) => None,
                    (false, _) => Some(attempt + 1),
                };
                attempt.map(|attempt| State::Pending {
                    attempt,
                    token: None,
                    notes: notes.clone(),
                    ticket: Some(of_ticket),
                })
            }
            _ => None,
        };
        let begun = next.is_some();
        if let Some(state) = next {
            self.may(key, state);
        }
        match (store.resume(&ticket), known) {
            (Ok(Claim::Started(operation)), State::Pending { attempt, .. }) if begun && held => {
                assert_eq!(operation.attempt(), attempt);
                self.hold(key, operation, self.resumed_terms(&ticket, terms));
            }
            (Ok(Claim::Interrupted(operation)), State::Pending { attempt, .. })
                if begun && !held =>
            {
                self.is_next_attempt(key, &operation, attempt);
                self.hold(key, operation, self.resumed_terms(&ticket, terms));
            }
            (Ok(Claim::InProgress(_)), State::Pending { .. }) if !begun && held => {}
            (Ok(Claim::Completed(saved)), known @ State::Completed { principal, .. }) => {
                assert_eq!(State::completed(&saved, principal), Ok(known));
            }
            (Err(ResumeError::LeaseLost { .. }), _) if !begun => {}
            // A takeover of unknown outcome fences as well: what was to be written was not.
            (Err(ResumeError::LeaseLost { .. }), _) if store.stats().poisoned => {
                self.failed(key, begun, Failure::Nothing);
            }
            (Err(ResumeError::Claim(error)), _) => {
                let failure = self.claim_failed(&error);
                self.failed(key, begun, failure);
            }
            (other, known) => panic!("key {key}: {other:?} for {known:?}"),
        }
    }

    /// Lease and retention travel in the ticket.
    fn resumed_terms(&self, ticket: &Ticket, terms: Terms) -> Terms {
        let bytes = ticket.encode();
        let number = |at: usize| {
            let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        (terms.0, Some(number(49)), number(57) / 1_000)
    }

    pub fn cancel_claim(&mut self, store: &Store, key: u8) {
        if self.model.now(key, self.now_ms()) != State::Absent {
            return;
        }
        let Some(state) = self.grant_of(key) else {
            return;
        };
        self.may(key, state);
        self.may(key, State::Absent);
        let terms = (Durability::Sync, None, 60);
        let call = store.claim_with_async(&name(key), fingerprint(key), claim_options(terms));
        let mut future = Polled::new(call);
        match future.poll() {
            Poll::Ready(Ok(claim)) => {
                self.model.withdraw(key);
                self.claimed(key, claim, terms);
            }
            Poll::Ready(Err(error)) => {
                self.model.withdraw(key);
                let failure = self.claim_failed(&error);
                self.failed(key, true, failure);
            }
            Poll::Pending => {
                drop(future);
                // Where its sync failed meanwhile, nothing can be written to take it back.
                if !store.stats().poisoned {
                    self.model.told(key);
                }
            }
        }
    }

    pub fn cancel_complete(&mut self, key: u8, len: usize) {
        let Some((operation, terms, lease_end_ms)) = self.guard_and_lease_end(key) else {
            return;
        };
        let response = response(key, len);
        let state = self.completed_state(&operation, Some(&response), false, terms.2);
        self.may(key, state.clone());
        let mut future = Polled::new(operation.complete_async(response));
        let done: Option<Result<Saved, FinishError>> = match future.poll() {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
        drop(future);
        match done {
            Some(Err(error)) => self.kept(key, error, terms, lease_end_ms),
            Some(Ok(saved)) => {
                assert_eq!(State::completed(&saved, false), Ok(state));
                self.model.told(key);
                self.reached(terms.0);
            }
            // It was written at the first poll, and is never undone.
            None => self.model.told(key),
        }
    }
}

fn ticket_token(ticket: &Ticket) -> u64 {
    let bytes = ticket.encode();
    u64::from_le_bytes(bytes[41..49].try_into().expect("eight bytes"))
}
