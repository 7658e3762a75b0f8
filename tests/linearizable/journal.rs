//! Records as words of a journal, so that they survive the kill of the process that they are of.

use crate::history::{Answer, Call, Record, Seen, What};
use crate::support::journal::{Journal, WORDS};
use crate::worker::Recorder;

/// Records of one thread of a child.
pub struct InFile<'a>(pub &'a Journal);

impl Recorder for InFile<'_> {
    fn record(&mut self, record: Record) {
        self.0.append(encoded(&record));
    }
}

const INVOKED: u64 = 1;
const ANSWERED: u64 = 2;

fn encoded(record: &Record) -> [u64; WORDS] {
    match *record {
        Record::Invoked { id, at_ms, call } => {
            let [what, a, b, c] = encoded_what(call.what);
            let head = INVOKED | what << 8 | u64::from(call.key) << 16 | u64::from(call.sync) << 24;
            [head, id, at_ms, a, b, c, 0, 0]
        }
        Record::Answered { id, at_ms, answer } => {
            let [answer, a, b, c, d] = encoded_answer(answer);
            [ANSWERED | answer << 8, id, at_ms, a, b, c, d, 0]
        }
        Record::Ended(_) => unreachable!("the parent knows of the end"),
    }
}

pub fn decoded(words: &[u64; WORDS]) -> Record {
    let [head, id, at_ms, a, b, c, d, _] = *words;
    let kind = head >> 8 & 0xFF;
    match head & 0xFF {
        INVOKED => Record::Invoked {
            id,
            at_ms,
            call: Call {
                key: (head >> 16) as u8,
                sync: head >> 24 & 1 == 1,
                what: decoded_what([kind, a, b, c]),
            },
        },
        ANSWERED => Record::Answered {
            id,
            at_ms,
            answer: decoded_answer([kind, a, b, c, d]),
        },
        other => panic!("a record of kind {other}"),
    }
}

fn encoded_what(what: What) -> [u64; 4] {
    match what {
        What::Claim { request, lease_ms } => [0, u64::from(request), lease_ms, 0],
        What::Resume {
            ticket,
            request,
            lease_ms,
        } => [1, u64::from(request), lease_ms, ticket],
        What::Complete {
            token,
            response,
            retention_ms,
        } => [2, token, response, retention_ms],
        What::Release { token } => [3, token, 0, 0],
        What::Checkpoint { token, note } => [4, token, note, 0],
        What::Renew { token, lease_ms } => [5, token, lease_ms, 0],
        What::Drop { token } => [6, token, 0, 0],
        What::Detach { token } => [7, token, 0, 0],
        What::Interrupt { token } => [8, token, 0, 0],
        What::Forget { force } => [9, u64::from(force), 0, 0],
        What::Get => [10, 0, 0, 0],
        What::Flush => [11, 0, 0, 0],
        What::Undo { .. } | What::HandOut { .. } => unreachable!("never recorded"),
    }
}

fn decoded_what(words: [u64; 4]) -> What {
    match words {
        [0, request, lease_ms, _] => What::Claim {
            request: request as u8,
            lease_ms,
        },
        [1, request, lease_ms, ticket] => What::Resume {
            ticket,
            request: request as u8,
            lease_ms,
        },
        [2, token, response, retention_ms] => What::Complete {
            token,
            response,
            retention_ms,
        },
        [3, token, ..] => What::Release { token },
        [4, token, note, _] => What::Checkpoint { token, note },
        [5, token, lease_ms, _] => What::Renew { token, lease_ms },
        [6, token, ..] => What::Drop { token },
        [7, token, ..] => What::Detach { token },
        [8, token, ..] => What::Interrupt { token },
        [9, force, ..] => What::Forget { force: force == 1 },
        [10, ..] => What::Get,
        [11, ..] => What::Flush,
        other => panic!("a call {other:?}"),
    }
}

fn encoded_answer(answer: Answer) -> [u64; 5] {
    match answer {
        Answer::Started { attempt, token } => [0, u64::from(attempt), token, 0, 0],
        Answer::Interrupted {
            attempt,
            token,
            note,
        } => [1, u64::from(attempt), token, note, 0],
        Answer::InProgress { attempt } => [2, u64::from(attempt), 0, 0, 0],
        Answer::Completed(seen) => [
            3,
            u64::from(seen.attempt),
            seen.token,
            seen.response,
            seen.expires_ms,
        ],
        Answer::Mismatch { attempt, completed } => {
            [4, u64::from(attempt), u64::from(completed), 0, 0]
        }
        Answer::Done => [5, 0, 0, 0, 0],
        Answer::LeaseLost { new_attempt } => [6, u64::from(new_attempt.unwrap_or(0)), 0, 0, 0],
        Answer::NotHeld => [7, 0, 0, 0, 0],
        Answer::Absent => [8, 0, 0, 0, 0],
        Answer::Held { attempt, token } => [9, u64::from(attempt), token, 0, 0],
        Answer::Waiting { attempt, token } => [10, u64::from(attempt), token, 0, 0],
        Answer::Removed(removed) => [11, u64::from(removed), 0, 0, 0],
        Answer::Pending { attempt } => [12, u64::from(attempt), 0, 0, 0],
        Answer::Refused => [13, 0, 0, 0, 0],
        Answer::Cut => [14, 0, 0, 0, 0],
    }
}

fn decoded_answer([kind, a, b, c, d]: [u64; 5]) -> Answer {
    let attempt = a as u32;
    match kind {
        0 => Answer::Started { attempt, token: b },
        1 => Answer::Interrupted {
            attempt,
            token: b,
            note: c,
        },
        2 => Answer::InProgress { attempt },
        3 => Answer::Completed(Seen {
            attempt,
            token: b,
            response: c,
            expires_ms: d,
        }),
        4 => Answer::Mismatch {
            attempt,
            completed: b == 1,
        },
        5 => Answer::Done,
        6 => Answer::LeaseLost {
            new_attempt: (attempt != 0).then_some(attempt),
        },
        7 => Answer::NotHeld,
        8 => Answer::Absent,
        9 => Answer::Held { attempt, token: b },
        10 => Answer::Waiting { attempt, token: b },
        11 => Answer::Removed(a == 1),
        12 => Answer::Pending { attempt },
        13 => Answer::Refused,
        14 => Answer::Cut,
        other => panic!("an answer of kind {other}"),
    }
}
