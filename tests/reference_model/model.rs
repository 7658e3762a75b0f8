//! What a key can be, and what a claim on it should give.

use oncekey::{Durability, Key};

use crate::steps::Asked;

/// What became of a key.
#[derive(Clone, Debug)]
pub enum State {
    Absent,
    Live(Live),
    /// Expired or not: that is decided when somebody looks.
    Done(Done),
}

/// Pending or interrupted.
#[derive(Clone, Debug)]
pub struct Live {
    pub request: u8,
    pub attempt: u32,
    /// 0 until it was seen: a claim that was dropped half way shows none.
    pub token: u64,
    /// Token of the ticket that it was resumed from.
    pub ticket: u64,
    pub created_ms: u64,
    pub started_ms: u64,
    /// The newest checkpoint: one of these.
    pub notes: Vec<Option<Vec<u8>>>,
    pub hold: Hold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A guard has it, until then by the monotonic clock.
    Guard {
        lease_end_ms: Option<u64>,
    },
    /// A ticket has it.
    Ticket {
        lease_end_ms: Option<u64>,
    },
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub request: u8,
    pub attempt: u32,
    pub token: u64,
    pub created_ms: u64,
    pub completed_ms: u64,
    pub expires_ms: u64,
    pub response: Option<Vec<u8>>,
    pub principal: Option<Vec<u8>>,
}

impl Live {
    pub fn is_held(&self, monotonic_ms: u64) -> bool {
        match self.hold {
            Hold::Guard { lease_end_ms } | Hold::Ticket { lease_end_ms } => {
                lease_end_ms.is_none_or(|end_ms| monotonic_ms < end_ms)
            }
            Hold::Nobody => false,
        }
    }

    pub fn lease_end_ms(&self) -> Option<u64> {
        match self.hold {
            Hold::Guard { lease_end_ms } | Hold::Ticket { lease_end_ms } => lease_end_ms,
            Hold::Nobody => None,
        }
    }

    pub fn is_detached(&self) -> bool {
        matches!(self.hold, Hold::Ticket { .. })
    }
}

impl State {
    /// As the next life finds it: whoever held it is gone.
    pub fn orphaned(mut self) -> Self {
        if let Self::Live(live) = &mut self {
            live.hold = Hold::Nobody;
        }
        self
    }
}

/// A key, with all that a loss of power may leave of it. Every record holds the whole state of its
/// key, and unsynced ones survive in any combination, so any of the states since the last one that
/// is known to be durable may be found.
#[derive(Clone, Debug)]
pub struct Track {
    /// Oldest first; the last one is what it is now.
    pub states: Vec<State>,
}

impl Track {
    pub fn new() -> Self {
        Self {
            states: vec![State::Absent],
        }
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    /// What changes in memory alone.
    pub fn now_mut(&mut self) -> &mut State {
        self.states.last_mut().expect("there is always one")
    }

    /// A record is appended.
    pub fn write(&mut self, state: State) {
        self.states.push(state);
    }

    /// What it is now is durable.
    pub fn settle(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    pub fn is_settled(&self) -> bool {
        self.states.len() == 1
    }
}

/// What a claim has to give.
#[derive(Clone, Debug)]
pub enum Expected {
    Started,
    TakenOver(Live),
    InProgress(Live),
    Completed(Done),
    Mismatch {
        completed: bool,
        attempt: u32,
        since_ms: u64,
    },
    TooLate {
        limit_ms: u64,
    },
    TooManyPending,
}

/// Times of a store at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub now_ms: u64,
    pub monotonic_ms: u64,
}

impl State {
    /// What a claim gives, if it is let in: `retention_ms` is its own, `restored_ms` the store's.
    pub fn claimed(
        &self,
        asked: &Asked,
        times: Times,
        retention_ms: u64,
        restored_ms: u64,
    ) -> Expected {
        match self {
            Self::Live(live) if live.request != asked.request => Expected::Mismatch {
                completed: false,
                attempt: live.attempt,
                since_ms: live.started_ms,
            },
            Self::Live(live) if live.is_held(times.monotonic_ms) => {
                Expected::InProgress(live.clone())
            }
            Self::Live(live) => Expected::TakenOver(live.clone()),
            Self::Done(done) if times.now_ms < done.expires_ms => {
                if done.request == asked.request {
                    Expected::Completed(done.clone())
                } else {
                    Expected::Mismatch {
                        completed: true,
                        attempt: done.attempt,
                        since_ms: done.completed_ms,
                    }
                }
            }
            Self::Done(_) | Self::Absent => {
                let limit_ms = (times.now_ms.saturating_sub(retention_ms) + 1).max(restored_ms);
                match asked.sent_ms_ago {
                    Some(ago_ms) if times.now_ms.saturating_sub(ago_ms) < limit_ms => {
                        Expected::TooLate { limit_ms }
                    }
                    _ => Expected::Started,
                }
            }
        }
    }
}

/// A ticket, and what the model knows of it.
#[derive(Clone, Debug)]
pub struct Handed {
    pub bytes: Vec<u8>,
    pub lineage: u64,
    pub key: u8,
    pub request: u8,
    pub token: u64,
    pub lease_ms: u64,
    pub retention_ms: u64,
}

/// What the owner of a guard was promised.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub lease_ms: Option<u64>,
    pub retention_ms: u64,
    pub durability: Durability,
}

pub fn name(key: u8) -> Key {
    Key::new("scope", "operation", [b'k', key]).expect("a key")
}
