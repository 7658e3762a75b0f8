//! What a worker does with a guard: it ends it, goes on with it, or hands it on.

use oncekey::{FinishError, Ticket, Unavailable, WriteError};

use super::{Carried, Closed, Guard, Recorder, Worker, poll_times, response_bytes};
use crate::history::{Answer, What};
use crate::support::block_on;

impl<R: Recorder> Worker<'_, R> {
    pub(super) fn act(&mut self, held: &mut Vec<Guard>, mut guard: Guard) -> Result<(), Closed> {
        let (key, sync, token) = (guard.key, guard.sync, guard.token());
        match self.random.below(12) {
            0 => self.drop_guard(guard),
            1 => {
                let id = self.invoke(key, sync, What::Release { token });
                let ended = match self.random.below(3) {
                    0 => poll_times(1, guard.operation.release_async()),
                    1 => Some(block_on(guard.operation.release_async())),
                    _ => Some(guard.operation.release()),
                };
                self.ended(
                    id,
                    key,
                    token,
                    ended.map(|ended| ended.map(|()| Answer::Done)),
                )?;
            }
            2 | 3 => {
                self.next_id += 1;
                let note = self.next_id;
                let id = self.invoke_as(note, key, sync, What::Checkpoint { token, note });
                let bytes = note.to_le_bytes();
                let written = match self.random.below(3) {
                    0 => poll_times(2, guard.operation.checkpoint_async(bytes)),
                    _ => Some(guard.operation.checkpoint(bytes)),
                };
                let goes_on = self.written(id, written)?;
                self.go_on(held, guard, goes_on);
            }
            4 => {
                let lease_ms = guard.lease_ms;
                let id = self.invoke(key, sync, What::Renew { token, lease_ms });
                let renewed = guard.operation.renew();
                let goes_on = self.written(id, Some(renewed))?;
                self.go_on(held, guard, goes_on);
            }
            5 | 6 if guard.lease_ms != 0 => {
                let id = self.invoke(key, sync, What::Detach { token });
                let carried = (key, guard.request, guard.lease_ms, guard.retention_ms);
                match guard.operation.into_ticket() {
                    Ok(ticket) => {
                        self.answer(id, Answer::Done);
                        let (key, request, lease_ms, retention_ms) = carried;
                        let ticket = Ticket::decode(&ticket.encode()).expect("reads back");
                        self.queue.lock().expect("not poisoned").push(Carried {
                            key,
                            request,
                            lease_ms,
                            retention_ms,
                            token,
                            ticket,
                        });
                    }
                    Err(error) => self.ended(id, key, token, Some(Err(error)))?,
                }
            }
            7 => {
                let what = What::Complete {
                    token,
                    response: 0,
                    retention_ms: guard.retention_ms,
                };
                let id = self.invoke(key, sync, what);
                let ended = guard.operation.complete_without_response();
                let ended = ended.map(|saved| self.seen(&saved));
                self.ended(id, key, token, Some(ended))?;
            }
            8 => held.push(guard),
            _ => {
                self.next_id += 1;
                let response = self.next_id;
                let what = What::Complete {
                    token,
                    response,
                    retention_ms: guard.retention_ms,
                };
                let id = self.invoke_as(response, key, sync, what);
                let bytes = response_bytes(response);
                let ended = match self.random.below(4) {
                    0 => poll_times(1, guard.operation.complete_async(&bytes)),
                    1 => Some(block_on(guard.operation.complete_async(&bytes))),
                    _ => Some(guard.operation.complete(&bytes)),
                };
                let ended = ended.map(|ended| ended.map(|saved| self.seen(&saved)));
                self.ended(id, key, token, ended)?;
            }
        }
        Ok(())
    }

    /// Writes down how a call ended that was to end a guard.
    pub(super) fn ended(
        &mut self,
        id: u64,
        key: u8,
        token: u64,
        ended: Option<Result<Answer, FinishError>>,
    ) -> Result<(), Closed> {
        let error = match ended {
            None => {
                self.answer(id, Answer::Cut);
                return Ok(());
            }
            Some(Ok(answer)) => {
                self.answer(id, answer);
                return Ok(());
            }
            Some(Err(error)) => error,
        };
        let written = self.written(id, Some(Err(error.error().clone())));
        // A guard that the error gives back is dropped, as a call of its own.
        if let Some(operation) = error.into_operation() {
            let id = self.invoke(key, false, What::Drop { token });
            drop(operation);
            self.answer(id, Answer::Done);
        }
        written.map(drop)
    }

    /// Writes down how a write ended; whether the guard may go on.
    pub(super) fn written(
        &mut self,
        id: u64,
        written: Option<Result<(), WriteError>>,
    ) -> Result<bool, Closed> {
        let (answer, goes_on) = match written {
            None => (Answer::Cut, true),
            Some(Ok(())) => (Answer::Done, true),
            Some(Err(WriteError::LeaseLost { new_attempt })) => {
                (Answer::LeaseLost { new_attempt }, false)
            }
            Some(Err(WriteError::OutcomeUnknown(_))) => (Answer::Cut, false),
            Some(Err(WriteError::Unavailable(Unavailable::Closed))) => {
                self.answer(id, Answer::Refused);
                return Err(Closed);
            }
            Some(Err(error)) => panic!("{error:?}"),
        };
        self.answer(id, answer);
        Ok(goes_on)
    }

    pub(super) fn go_on(&mut self, held: &mut Vec<Guard>, guard: Guard, goes_on: bool) {
        if goes_on {
            held.push(guard);
        } else {
            self.drop_guard(guard);
        }
    }

    pub(super) fn drop_guard(&mut self, guard: Guard) {
        let token = guard.token();
        let id = self.invoke(guard.key, false, What::Drop { token });
        drop(guard);
        self.answer(id, Answer::Done);
    }
}
