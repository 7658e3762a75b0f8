//! What a worker asks without a guard: looks, removals, interrupts, flushes.

use oncekey::{AdminError, ClaimError, Forget, KeyState, MaintenanceError, Unavailable};

use super::{Closed, Recorder, Worker, poll_times};
use crate::history::{Answer, What};
use crate::support::block_on;

impl<R: Recorder> Worker<'_, R> {
    pub(super) fn get(&mut self) -> Result<(), Closed> {
        let key = self.key();
        let id = self.invoke(key, self.sync, What::Get);
        let state = self.store.get(&self.keys[usize::from(key)]);
        self.looked(id, state)
    }

    pub(super) fn get_async(&mut self) -> Result<(), Closed> {
        let key = self.key();
        let id = self.invoke(key, self.sync, What::Get);
        let state = block_on(self.store.get_async(&self.keys[usize::from(key)]));
        self.looked(id, state)
    }

    pub(super) fn looked(
        &mut self,
        id: u64,
        state: Result<KeyState, ClaimError>,
    ) -> Result<(), Closed> {
        let answer = match state {
            Ok(KeyState::Absent) => Answer::Absent,
            Ok(KeyState::InProgress { attempt, token, .. }) => Answer::Held {
                attempt,
                token: token.as_u64(),
            },
            Ok(KeyState::Interrupted { attempt, token, .. }) => Answer::Waiting {
                attempt,
                token: token.as_u64(),
            },
            Ok(KeyState::Completed(saved)) => self.seen(&saved),
            Err(ClaimError::Unavailable(Unavailable::Closed)) => {
                self.answer(id, Answer::Refused);
                return Err(Closed);
            }
            other => panic!("{other:?}"),
        };
        self.answer(id, answer);
        Ok(())
    }

    pub(super) fn forget(&mut self) -> Result<(), Closed> {
        let key = self.key();
        let force = self.random.below(3) == 0;
        let how = if force {
            Forget::Force
        } else {
            Forget::IfCompleted
        };
        let id = self.invoke(key, self.sync, What::Forget { force });
        let (store, name) = (self.store, &self.keys[usize::from(key)]);
        let removed = match self.random.below(3) {
            0 => match poll_times(2, store.forget_async(name, how)) {
                Some(removed) => removed,
                None => {
                    self.answer(id, Answer::Cut);
                    return Ok(());
                }
            },
            _ => store.forget(name, how),
        };
        let answer = match removed {
            Ok(removed) => Answer::Removed(removed),
            Err(AdminError::Pending { attempt }) => Answer::Pending { attempt },
            Err(error) => self.refused(id, error)?,
        };
        self.answer(id, answer);
        Ok(())
    }

    pub(super) fn interrupt(&mut self) -> Result<(), Closed> {
        let Ok(pending) = self.store.pending() else {
            return Err(Closed);
        };
        if pending.is_empty() {
            return Ok(());
        }
        let chosen = &pending[self.random.below(pending.len())];
        let key = self.keys.iter().position(|key| *key == chosen.key);
        let key = key.expect("one of ours") as u8;
        let token = chosen.token.as_u64();
        let id = self.invoke(key, self.sync, What::Interrupt { token });
        let answer = match self.store.interrupt(&chosen.key, chosen.token) {
            Ok(()) => Answer::Done,
            Err(AdminError::NotHeld { .. }) => Answer::NotHeld,
            Err(error) => self.refused(id, error)?,
        };
        self.answer(id, answer);
        Ok(())
    }

    pub(super) fn refused(&mut self, id: u64, error: AdminError) -> Result<Answer, Closed> {
        match error {
            AdminError::Claim(ClaimError::OutcomeUnknown(_)) => Ok(Answer::Cut),
            AdminError::Claim(ClaimError::Unavailable(Unavailable::Closed)) => {
                self.answer(id, Answer::Refused);
                Err(Closed)
            }
            error => panic!("{error:?}"),
        }
    }

    /// A pass of maintenance, which changes no key and so is not written down.
    pub(super) fn maintain(&mut self) -> Result<(), Closed> {
        match self.store.maintain() {
            Ok(_) => Ok(()),
            Err(MaintenanceError::Unavailable(Unavailable::Closed)) => Err(Closed),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        let id = self.invoke(0, true, What::Flush);
        let flushed = match self.random.below(2) {
            0 => block_on(self.store.flush_async()),
            _ => self.store.flush(),
        };
        match flushed {
            Ok(()) => {
                self.answer(id, Answer::Done);
                Ok(())
            }
            Err(Unavailable::Closed) => {
                self.answer(id, Answer::Refused);
                Err(Closed)
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}
