//! What owners do with their guards, and operators with keys.

use std::time::Duration;

use oncekey::{Claim, ClaimError, Durability, Operation, ResumeError, Ticket, WriteError};

use crate::claims::assert_saved;
use crate::model::{Done, Handed, Hold, Live, State, Terms, name};
use crate::side::{Guard, Shared, Side};
use crate::steps::{Ending, RESERVED, RESPONSE_MAX};
use crate::support::{Style, block_on};

impl Side {
    fn live(&self, key: u8) -> Live {
        match self.state(key) {
            State::Live(live) => live.clone(),
            other => panic!("a guard without a pending key: {other:?}"),
        }
    }

    /// What the key is once it is completed now.
    pub fn done(
        &self,
        key: u8,
        retention_ms: u64,
        response: Option<Vec<u8>>,
        principal: Option<Vec<u8>>,
    ) -> Done {
        let (live, now_ms) = (self.live(key), self.now_ms());
        Done {
            request: live.request,
            attempt: live.attempt,
            token: live.token,
            created_ms: live.created_ms,
            completed_ms: now_ms,
            expires_ms: now_ms + retention_ms,
            response,
            principal,
        }
    }

    pub fn completed(&mut self, key: u8, done: Done, level: Option<Durability>) {
        self.counts.completed += 1;
        self.wrote_time();
        self.wrote(key, State::Done(done), level);
        self.retire(key);
    }

    pub fn complete(&mut self, key: u8, ending: Ending, style: Style) {
        let Some(Guard { operation, terms }) = self.guards.remove(&key) else {
            return;
        };
        let mode = self.mode(style);
        let (mut level, mut retention_ms) = (terms.durability, terms.retention_ms);
        let (mut principal, mut refused) = (None, false);
        let len = match ending {
            Ending::Plain { len } | Ending::With { len, .. } => len,
            Ending::WithoutResponse => 0,
        };
        refused |= len > RESPONSE_MAX;
        let response = vec![key ^ 0x5A; len];
        let result = match ending {
            Ending::Plain { .. } => mode.complete(operation, &response),
            Ending::WithoutResponse => match style {
                Style::Blocking => operation.complete_without_response(),
                Style::Async => block_on(operation.complete_without_response_async()),
            },
            Ending::With {
                retention_s,
                principal_len,
                durability,
                ..
            } => {
                let mut completion = operation.complete_with(&response);
                if let Some(seconds) = retention_s {
                    completion = completion.retention(Duration::from_secs(seconds));
                    retention_ms = seconds * 1_000;
                    refused |= seconds == 0;
                }
                if let Some(len) = principal_len {
                    completion = completion.principal(vec![b'p'; len]);
                    refused |= len > 255;
                    principal = Some(vec![b'p'; len]);
                }
                if let Some(durability) = durability {
                    completion = completion.durability(durability);
                    level = durability;
                }
                match style {
                    Style::Blocking => completion.commit(),
                    Style::Async => block_on(completion.commit_async()),
                }
            }
        };
        let kept = (!matches!(ending, Ending::WithoutResponse)).then_some(response);
        let done = self.done(key, retention_ms, kept, principal);
        let error = match result {
            Ok(saved) => {
                assert!(!refused);
                assert_saved(&saved, &done);
                self.completed(key, done, Some(level));
                return;
            }
            Err(error) => error,
        };
        let is_refusal = matches!(
            error.error(),
            WriteError::ResponseTooLarge { .. }
                | WriteError::PrincipalTooLong { .. }
                | WriteError::Options(_)
        );
        assert_eq!(is_refusal, refused, "{error}");
        if !is_refusal && self.excuses_finish(&error, false, len) {
            assert!(error.into_operation().is_none());
            self.completed(key, done, None);
            return;
        }
        let operation = error.into_operation().expect("still held");
        self.guards.insert(key, Guard { operation, terms });
    }

    pub fn release(&mut self, key: u8, style: Style) {
        let Some(Guard { operation, terms }) = self.guards.remove(&key) else {
            return;
        };
        let level = match self.mode(style).release(operation) {
            Ok(()) => Some(terms.durability),
            Err(error) if self.excuses_finish(&error, false, 0) => {
                assert!(error.into_operation().is_none());
                None
            }
            Err(error) => {
                let operation = error.into_operation().expect("still held");
                self.guards.insert(key, Guard { operation, terms });
                return;
            }
        };
        self.counts.released += 1;
        self.wrote_time();
        self.wrote(key, State::Absent, level);
        self.retire(key);
    }

    pub fn checkpoint(&mut self, key: u8, len: usize, style: Style) {
        let mode = self.mode(style);
        let Some(guard) = self.guards.get_mut(&key) else {
            return;
        };
        let note = vec![b'n'; len];
        let result = mode.checkpoint(&mut guard.operation, &note);
        let seen = guard.operation.last_checkpoint().map(|note| note.to_vec());
        let level = match result {
            Ok(()) => Some(guard.terms.durability),
            Err(WriteError::CheckpointTooLarge { len, max: 4_096 }) => {
                assert!(len > 4_096);
                return;
            }
            Err(WriteError::OutOfSpace(error)) => {
                assert!(self.excuses_space(), "{error}");
                return;
            }
            Err(WriteError::Unavailable(error)) => {
                assert!(self.excuses(&error), "{error}");
                return;
            }
            Err(WriteError::OutcomeUnknown(error)) => {
                assert!(self.excuses(&error), "{error}");
                None
            }
            Err(other) => panic!("{other:?}"),
        };
        let note = (len > 0).then_some(note);
        assert_eq!(seen, note);
        let mut live = self.live(key);
        live.notes = vec![note];
        self.wrote(key, State::Live(live), level);
    }

    pub fn renew(&mut self, key: u8) {
        let Some(guard) = self.guards.get_mut(&key) else {
            return;
        };
        guard.operation.renew().expect("held until taken over");
        let lease_ms = guard.terms.lease_ms;
        let lease_end_ms = self.lease_end_ms(lease_ms);
        self.hold(key, Hold::Guard { lease_end_ms });
    }

    pub fn hold(&mut self, key: u8, hold: Hold) {
        match self.track(key).now_mut() {
            State::Live(live) => live.hold = hold,
            other => panic!("{other:?}"),
        }
    }

    /// The owner is gone without a word. Nothing is written.
    pub fn interrupted(&mut self, key: u8) {
        self.hold(key, Hold::Nobody);
    }

    pub fn drop_guard(&mut self, key: u8) {
        if let Some(guard) = self.guards.remove(&key) {
            drop(guard.operation);
            self.counts.abandoned += 1;
            self.interrupted(key);
        }
    }

    pub fn hand_on(&mut self, shared: &mut Shared, key: u8) {
        let Some(Guard { operation, terms }) = self.guards.remove(&key) else {
            return;
        };
        let live = self.live(key);
        let ticket = match (operation.into_ticket(), terms.lease_ms) {
            (Ok(ticket), Some(_)) => ticket,
            (Err(error), None) => {
                assert!(matches!(error.error(), WriteError::TicketNeedsLease));
                let operation = error.into_operation().expect("still held");
                self.guards.insert(key, Guard { operation, terms });
                return;
            }
            (result, lease_ms) => panic!("{result:?} with {lease_ms:?}"),
        };
        assert_eq!((ticket.key(), ticket.attempt()), (&name(key), live.attempt));
        let bytes = ticket.encode();
        assert_eq!(Ticket::decode(&bytes).as_ref(), Ok(&ticket));
        let lease_end_ms = live.lease_end_ms();
        self.hold(key, Hold::Ticket { lease_end_ms });
        shared.tickets.push(Handed {
            bytes,
            lineage: self.lineage,
            key,
            request: live.request,
            token: live.token,
            lease_ms: terms.lease_ms.expect("checked"),
            retention_ms: terms.retention_ms,
        });
    }

    /// Any ticket: of this life or an earlier one, of this store, its original or another.
    pub fn resume(&mut self, shared: &mut Shared, at: usize, style: Style) {
        if shared.tickets.is_empty() {
            return;
        }
        let handed = shared.tickets[at % shared.tickets.len()].clone();
        let ticket = Ticket::decode(&handed.bytes).expect("as it was written");
        let result = match style {
            Style::Blocking => self.store().resume(&ticket),
            Style::Async => block_on(self.store().resume_async(&ticket)),
        };
        let key = handed.key;
        let (state, times) = (self.state(key).clone(), self.times());
        let terms = Terms {
            lease_ms: Some(handed.lease_ms),
            retention_ms: handed.retention_ms,
            durability: self.durability,
        };
        let at_sync = self.durability == Durability::Sync;
        match (result, state) {
            (Err(ResumeError::OtherStore), _) => assert_ne!(handed.lineage, self.lineage),
            (result, State::Live(live))
                if live.token != handed.token && live.ticket != handed.token =>
            {
                match result {
                    Err(ResumeError::LeaseLost { new_attempt }) => {
                        assert_eq!(new_attempt, Some(live.attempt));
                    }
                    other => panic!("{other:?} for {live:?}"),
                }
            }
            (Ok(Claim::InProgress(progress)), State::Live(live)) => {
                self.counts.in_progress += 1;
                assert!(live.is_held(times.monotonic_ms));
                assert!(!live.is_detached() || live.token != handed.token);
                assert_eq!(progress.attempt(), live.attempt);
                if at_sync {
                    self.track(key).settle();
                }
            }
            (Ok(claim @ (Claim::Started(_) | Claim::Interrupted(_))), State::Live(live)) => {
                let same = live.is_held(times.monotonic_ms);
                let operation = match claim {
                    Claim::Started(operation) => {
                        assert!(same && live.is_detached() && live.token == handed.token);
                        assert!(operation.previous().is_none());
                        self.counts.started += 1;
                        operation
                    }
                    Claim::Interrupted(operation) => {
                        assert!(!same);
                        self.counts.taken_over += 1;
                        operation
                    }
                    _ => unreachable!("matched above"),
                };
                self.resumed(shared, &handed, &operation, live, same, terms);
                self.guards.insert(key, Guard { operation, terms });
            }
            (Ok(Claim::Completed(saved)), State::Done(done)) => {
                self.counts.replayed += 1;
                assert_eq!(done.request, handed.request);
                assert!(times.now_ms < done.expires_ms);
                assert_saved(&saved, &done);
                if at_sync {
                    self.track(key).settle();
                }
            }
            (Err(ResumeError::LeaseLost { new_attempt: None }), State::Done(done)) => {
                assert!(done.request != handed.request || done.expires_ms <= times.now_ms);
            }
            (Err(ResumeError::LeaseLost { new_attempt: None }), State::Absent) => {}
            (Err(ResumeError::Claim(error)), state) => self.resume_failed(&handed, &error, state),
            (result, state) => panic!("{result:?} for {state:?}"),
        }
    }

    fn resumed(
        &mut self,
        shared: &mut Shared,
        handed: &Handed,
        operation: &Operation,
        before: Live,
        same: bool,
        terms: Terms,
    ) {
        let mut live = Live {
            token: operation.token().as_u64(),
            ticket: handed.token,
            hold: Hold::Guard {
                lease_end_ms: self.lease_end_ms(terms.lease_ms),
            },
            ..before.clone()
        };
        if same {
            let note = operation.last_checkpoint().map(|note| note.to_vec());
            assert!(live.notes.contains(&note));
            live.notes = vec![note];
        } else {
            live.attempt = before.attempt + 1;
            live.started_ms = self.now_ms();
            live.notes = self.previous(operation, &before);
            self.wrote_time();
        }
        self.accept(shared, handed.key, operation, live, terms);
    }

    fn resume_failed(&mut self, handed: &Handed, error: &ClaimError, state: State) {
        match error {
            ClaimError::OutOfSpace(_) => assert!(self.excuses_space(), "{error}"),
            ClaimError::Unavailable(unavailable) => {
                assert!(self.excuses(unavailable), "{error}");
            }
            ClaimError::OutcomeUnknown(unavailable) => {
                assert!(self.excuses(unavailable), "{error}");
                let State::Live(live) = state else {
                    panic!("written for {state:?}");
                };
                let same = live.is_held(self.clock_ms());
                let now_ms = self.now_ms();
                let after = Live {
                    attempt: live.attempt + u32::from(!same),
                    started_ms: if same { live.started_ms } else { now_ms },
                    token: 0,
                    ticket: handed.token,
                    hold: Hold::Nobody,
                    ..live
                };
                self.overtaken(handed.key);
                self.wrote(handed.key, State::Live(after), None);
            }
            other => panic!("{other:?}"),
        }
    }

    fn clock_ms(&self) -> u64 {
        self.times().monotonic_ms
    }
}

const _: () = assert!(RESERVED < RESPONSE_MAX);
