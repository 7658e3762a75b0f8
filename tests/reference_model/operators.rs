//! Guards that come too late, and operators who remove keys or take them from their owners.

use oncekey::{AdminError, ClaimError, Durability, Forget, MaintenanceError, Token, WriteError};

use crate::model::{Hold, State, name};
use crate::side::{LateGuard, Side};
use crate::steps::Late;
use crate::support::{Style, block_on};

impl Side {
    /// A guard that lost its key, or whose store is closed, changes nothing.
    pub fn late(&mut self, at: usize, late: Late) {
        if self.late.is_empty() {
            return;
        }
        let at = at % self.late.len();
        let guard = self.late.remove(at);
        let (key, lease_ms, closed) = (guard.key, guard.lease_ms, guard.closed);
        let token = guard.operation.token().as_u64();
        let mut operation = guard.operation;
        let (error, held) = match late {
            Late::Drop => return,
            Late::Renew => (operation.renew().expect_err("lost"), Some(operation)),
            Late::Checkpoint => {
                let error = operation.checkpoint(b"late").expect_err("lost");
                (error, Some(operation))
            }
            Late::Complete | Late::Release | Late::IntoTicket => {
                let error = match late {
                    Late::Complete => operation.complete(b"late").map(drop),
                    Late::Release => operation.release(),
                    _ => operation.into_ticket().map(drop),
                };
                let error = error.expect_err("lost");
                (error.error().clone(), error.into_operation())
            }
        };
        match &error {
            WriteError::LeaseLost { new_attempt } => {
                assert!(!closed);
                let expected = match self.state(key) {
                    State::Live(live) if live.token != token => Some(live.attempt),
                    _ => None,
                };
                assert_eq!(*new_attempt, expected);
                let by_value = !matches!(late, Late::Renew | Late::Checkpoint);
                assert!(!by_value || held.is_none());
            }
            WriteError::TicketNeedsLease => assert_eq!(lease_ms, None),
            WriteError::Unavailable(oncekey::Unavailable::Closed) => assert!(closed),
            WriteError::Unavailable(error) => {
                assert!(closed || self.excuses(error), "{error}");
            }
            WriteError::OutOfSpace(error) => {
                let is_checkpoint = matches!(late, Late::Checkpoint);
                assert!(is_checkpoint && (closed || self.excuses_space()), "{error}");
            }
            other => panic!("{other:?}"),
        }
        if let Some(operation) = held {
            self.late.push(LateGuard {
                operation,
                key,
                lease_ms,
                closed,
            });
        }
    }

    /// Changes no answer, whatever it does.
    pub fn maintain(&mut self) {
        match self.store().maintain() {
            Ok(_) => {}
            Err(MaintenanceError::Unavailable(error)) => assert!(self.excuses(&error), "{error}"),
            Err(error) => assert!(self.excuses_space(), "{error}"),
        }
    }

    pub fn forget(&mut self, key: u8, force: bool, style: Style) {
        let how = if force {
            Forget::Force
        } else {
            Forget::IfCompleted
        };
        let result = match style {
            Style::Blocking => self.store().forget(&name(key), how),
            Style::Async => block_on(self.store().forget_async(&name(key), how)),
        };
        let state = self.state(key).clone();
        let now_ms = self.now_ms();
        let (was_there, is_removed) = match &state {
            State::Absent => (false, false),
            State::Live(_) => (true, force),
            // Expired, it is absent to everybody; what is left of it goes all the same.
            State::Done(done) => (now_ms < done.expires_ms, true),
        };
        let acknowledged = match result {
            Ok(removed) => {
                assert!(!matches!(state, State::Live(_)) || force);
                assert_eq!(removed, was_there, "{state:?}");
                true
            }
            Err(AdminError::Pending { attempt }) => match state {
                State::Live(live) if !force => {
                    assert_eq!(attempt, live.attempt);
                    return;
                }
                other => panic!("{other:?}"),
            },
            Err(AdminError::Claim(ClaimError::OutOfSpace(error))) => {
                assert!(self.excuses_space(), "{error}");
                return;
            }
            Err(AdminError::Claim(ClaimError::Unavailable(error))) => {
                assert!(self.excuses(&error), "{error}");
                return;
            }
            Err(AdminError::Claim(ClaimError::OutcomeUnknown(error))) => {
                assert!(is_removed && self.excuses(&error), "{error}");
                false
            }
            Err(other) => panic!("{other:?}"),
        };
        if is_removed {
            self.overtaken(key);
            self.wrote_time();
            self.wrote(key, State::Absent, None);
            self.retire(key);
        }
        if acknowledged && self.durability == Durability::Sync {
            self.settle_all();
        }
    }

    pub fn interrupt(&mut self, key: u8, other_token: bool) {
        let (token, is_held) = match self.state(key) {
            State::Live(live) => (live.token, live.hold != Hold::Nobody),
            State::Done(done) => (done.token, false),
            State::Absent => (self.greatest_token, false),
        };
        let named = Token::from_u64(token + u64::from(other_token));
        match self.store().interrupt(&name(key), named) {
            Ok(()) => {
                assert!(is_held && !other_token);
                self.counts.abandoned += 1;
                self.interrupted(key);
                self.overtaken(key);
            }
            Err(AdminError::NotHeld { token }) => {
                assert_eq!(token, named);
                assert!(!is_held || other_token);
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}
