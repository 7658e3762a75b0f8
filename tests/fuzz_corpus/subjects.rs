//! Small stores that are the same in every run, and what their keys answer when the bytes below
//! them may be anything that somebody gave a true checksum.

#![allow(dead_code, reason = "every fuzz target uses its own part")]

use std::sync::LazyLock;

use oncekey::testing::{SimulatedDisk, internals};
use oncekey::{AccessDenied, Key, KeyState, ManualClock, Replay, Store};

use crate::layout::Record;
use crate::stores::{Making, Subject, closed_on, killed_on};
use crate::support::START_MS;
use crate::support::kinds::PRINCIPAL;

/// Closed: every byte of it is below a watermark.
pub static CLOSED: LazyLock<Subject> = LazyLock::new(|| closed_on(making()));
/// Killed: its last records may be a torn tail.
pub static KILLED: LazyLock<Subject> = LazyLock::new(|| killed_on(making()));

fn making() -> Making {
    let disk = SimulatedDisk::new();
    internals::identify(&disk, START_MS);
    Making {
        disk,
        clock: ManualClock::new(START_MS),
    }
}

/// A key as anybody sees it who does not know what it was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Absent,
    Interrupted { attempt: u32, token: u64 },
    Completed { token: u64, response: Response },
    Refused,
}

/// What is handed out of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Bytes(Vec<u8>),
    NotStored,
    /// For somebody else.
    Denied,
}

impl Seen {
    pub fn of(store: &Store, key: &Key) -> Self {
        match store.get(key) {
            Ok(KeyState::Absent) => Self::Absent,
            Ok(KeyState::Interrupted { attempt, token, .. }) => Self::Interrupted {
                attempt,
                token: token.as_u64(),
            },
            Ok(KeyState::Completed(saved)) => {
                let times = (saved.created_at(), saved.completed_at(), saved.expires_at());
                assert!(!format!("{times:?}").is_empty());
                let replay = match saved.by_scope() {
                    Err(AccessDenied::PrincipalRequired) => saved.for_principal(PRINCIPAL),
                    replay => replay,
                };
                Self::Completed {
                    token: saved.token().as_u64(),
                    response: match replay {
                        Ok(Replay::Response(response)) => Response::Bytes(response.to_vec()),
                        Ok(Replay::NotStored) => Response::NotStored,
                        Err(_) => Response::Denied,
                    },
                }
            }
            Ok(other) => panic!("{key:?}: {other:?} right after an open"),
            Err(_) => Self::Refused,
        }
    }

    /// What one record makes of its key.
    pub fn by(record: &Record) -> Self {
        match record.kind {
            1 | 2 => Self::Interrupted {
                attempt: record.attempt,
                token: record.token,
            },
            3 => Self::Completed {
                token: record.token,
                response: match &record.response {
                    Some(response) => Response::Bytes(response.clone()),
                    None => Response::NotStored,
                },
            },
            _ => Self::Absent,
        }
    }
}

/// The records of a key, the newest first.
pub fn records_of<'a>(subject: &'a Subject, key: &Key) -> Vec<&'a Record> {
    let parts = (key.scope(), key.operation(), key.id());
    let is_its = |record: &&Record| (&*record.scope, &*record.operation, &*record.id) == parts;
    let mut records: Vec<_> = subject.layout.records().filter(is_its).collect();
    records.sort_by_key(|record| std::cmp::Reverse((record.token, record.sequence)));
    records
}
