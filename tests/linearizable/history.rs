//! What was asked and what was answered, in one order: the raw material of the check.
//!
//! A record is written before a call begins and another after it has returned, both with a place in
//! one total order that agrees with real time. So the interval between the two holds the moment at
//! which the call took effect, if it did. Beside its place each record has a time, read before the
//! call and after it: leases and retention are judged by that window and never by a guess.

use std::collections::HashMap;

/// One call on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub key: u8,
    /// Whether its acknowledgement survives a loss of power.
    pub sync: bool,
    pub what: What,
}

/// What is asked for. Requests stand for fingerprints, responses and notes for their bytes; 0 is
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `claim` in all its forms, and `wait`; a lease of 0 is `WhileAlive`.
    Claim {
        request: u8,
        lease_ms: u64,
    },
    Resume {
        ticket: u64,
        request: u8,
        lease_ms: u64,
    },
    Complete {
        token: u64,
        response: u64,
        retention_ms: u64,
    },
    Release {
        token: u64,
    },
    Checkpoint {
        token: u64,
        note: u64,
    },
    Renew {
        token: u64,
        lease_ms: u64,
    },
    /// The guard is dropped.
    Drop {
        token: u64,
    },
    /// The guard becomes a ticket.
    Detach {
        token: u64,
    },
    Interrupt {
        token: u64,
    },
    Forget {
        force: bool,
    },
    Get,
    Flush,
    /// What a cut claim leaves behind is cleared away. Never recorded: it is made of [`Answer::Cut`].
    Undo {
        claim: u64,
    },
    /// The guard is handed out, and with that its lease begins. Never recorded: it belongs to every
    /// claim that waits for the disk. The token is 0 where there is no answer.
    HandOut {
        claim: u64,
        token: u64,
        lease_ms: u64,
    },
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Started {
        attempt: u32,
        token: u64,
    },
    Interrupted {
        attempt: u32,
        token: u64,
        note: u64,
    },
    InProgress {
        attempt: u32,
    },
    Completed(Seen),
    Mismatch {
        attempt: u32,
        completed: bool,
    },
    Done,
    LeaseLost {
        new_attempt: Option<u32>,
    },
    NotHeld,
    Absent,
    /// `get` on a key with an owner.
    Held {
        attempt: u32,
        token: u64,
    },
    /// `get` on a key without one.
    Waiting {
        attempt: u32,
        token: u64,
    },
    Removed(bool),
    /// `forget` without force on a key that waits for an outcome.
    Pending {
        attempt: u32,
    },
    /// An error that promises to have changed nothing, but for grants in vain before it.
    Refused,
    /// A future that was dropped, or an outcome that is unknown: it took effect or not.
    Cut,
}

/// A stored result as a caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    pub attempt: u32,
    pub token: u64,
    pub response: u64,
    /// 0 where it was not looked at.
    pub expires_ms: u64,
}

/// What ends the life of an open store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Closed or killed: nothing acknowledged is lost, and nobody owns anything any more.
    Process,
    /// Lost power: what was acknowledged under `Buffered` may be lost, the newest first.
    Power,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    Invoked { id: u64, at_ms: u64, call: Call },
    Answered { id: u64, at_ms: u64, answer: Answer },
    Ended(End),
}

impl Call {
    /// Whether it waits for the disk, once it has the key and before it hands out the guard. It may
    /// lose the key there, to an operator; it asks anew then.
    pub fn may_lose_its_grant(&self) -> bool {
        let is_claim = matches!(self.what, What::Claim { .. } | What::Resume { .. });
        is_claim && self.sync
    }
}

/// A call with its answer; `None` where the end came first.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub id: u64,
    pub call: Call,
    pub answer: Option<Answer>,
    /// Time before the call and after it.
    pub window: Window,
    /// The operation of the same history that must come before, whatever the order of the rest.
    pub after: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from_ms: u64,
    pub to_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Invoke(usize),
    Return(usize),
    End(End),
}

/// All that happened to one key. Linearizability is local: a history is linearizable if and only if
/// that of each object is, so keys are checked one by one.
#[derive(Clone, Debug, Default)]
pub struct KeyHistory {
    pub operations: Vec<Operation>,
    pub events: Vec<Event>,
}

impl KeyHistory {
    pub fn has_power_loss(&self) -> bool {
        self.events.contains(&Event::End(End::Power))
    }
}

/// Splits records by key.
pub fn by_key(records: &[Record], keys: u8) -> Vec<KeyHistory> {
    (0..keys).map(|key| of_key(records, key)).collect()
}

fn of_key(records: &[Record], key: u8) -> KeyHistory {
    let answers: HashMap<u64, (Answer, u64)> = records
        .iter()
        .filter_map(|record| match *record {
            Record::Answered { id, at_ms, answer } => Some((id, (answer, at_ms))),
            _ => None,
        })
        .collect();
    let mut history = KeyHistory::default();
    // Call to its operation, and to what clears up after it.
    let mut known: HashMap<u64, (Vec<usize>, Option<usize>)> = HashMap::new();
    for record in records {
        match *record {
            Record::Invoked { id, at_ms, call } => {
                let answered = answers.get(&id);
                let is_of_all = call.what == What::Flush;
                let is_refused =
                    matches!(answered, Some((Answer::Refused, _))) && !call.may_lose_its_grant();
                if is_refused || !(is_of_all || call.key == key) {
                    continue;
                }
                let window = Window {
                    from_ms: at_ms,
                    to_ms: answered.map_or(u64::MAX / 2, |(_, at_ms)| *at_ms),
                };
                let answer = answered.map(|(answer, _)| *answer);
                let operation = Operation {
                    id,
                    call,
                    answer,
                    window,
                    after: None,
                };
                let index = history.push(operation);
                let handed_out = handed_out(&operation).map(|what| {
                    history.push(Operation {
                        call: Call { what, ..call },
                        answer: Some(Answer::Done),
                        after: Some(index),
                        ..operation
                    })
                });
                // A call without an answer may have been given up before the end came.
                let follows = matches!(answer, None | Some(Answer::Cut))
                    .then(|| cleared(call.what, id))
                    .flatten();
                let clearing = follows.map(|what| {
                    history.push(Operation {
                        call: Call { what, ..call },
                        answer: Some(Answer::Done),
                        after: Some(index),
                        ..operation
                    })
                });
                let indexes = [Some(index), handed_out].into_iter().flatten().collect();
                known.insert(id, (indexes, clearing));
            }
            Record::Answered { id, .. } => {
                if let Some((indexes, clearing)) = known.remove(&id) {
                    history
                        .events
                        .extend(indexes.into_iter().map(Event::Return));
                    history.events.extend(clearing.map(Event::Return));
                }
            }
            Record::Ended(end) => {
                known.clear();
                history.events.push(Event::End(end));
            }
        }
    }
    history
}

impl KeyHistory {
    fn push(&mut self, operation: Operation) -> usize {
        self.operations.push(operation);
        let index = self.operations.len() - 1;
        self.events.push(Event::Invoke(index));
        index
    }
}

/// The last step of a claim that waited for the disk.
fn handed_out(operation: &Operation) -> Option<What> {
    let token = match operation.answer {
        None => 0,
        Some(Answer::Started { token, .. } | Answer::Interrupted { token, .. }) => token,
        Some(_) => return None,
    };
    match operation.call.what {
        What::Claim { lease_ms, .. } | What::Resume { lease_ms, .. }
            if operation.call.sync && lease_ms > 0 =>
        {
            Some(What::HandOut {
                claim: operation.id,
                token,
                lease_ms,
            })
        }
        _ => None,
    }
}

/// What follows, before the caller goes on, when a call is given up that may have taken effect.
fn cleared(what: What, id: u64) -> Option<What> {
    match what {
        What::Claim { .. } | What::Resume { .. } => Some(What::Undo { claim: id }),
        What::Complete { token, .. } | What::Release { token } => Some(What::Drop { token }),
        _ => None,
    }
}

/// The records as a loss of power leaves them whose image was taken after `from` of them were made
/// and before record `to` was: what was answered before is acknowledged, what was asked before may
/// have happened, and the rest never was.
pub fn cut_by_power_loss(records: &mut Vec<(u64, Record)>, from: u64, to: u64) {
    records.retain(|(place, record)| match record {
        Record::Invoked { .. } => *place < to,
        Record::Answered { .. } => *place < from,
        Record::Ended(_) => true,
    });
    records.push((to, Record::Ended(End::Power)));
}
