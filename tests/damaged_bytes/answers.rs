//! What every key must answer, by the records that are left of it; and what a store does answer.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use oncekey::{
    AccessDenied, Claim, ClaimError, Key, KeyState, RecoveryReport, Replay, Saved, Store,
};

use crate::layout::{Layout, Record};
use crate::stores::JUDGED_MS;
use crate::support::kinds::PRINCIPAL;
use crate::support::request;

/// What a key answers. Everything that a caller can see of it, but for the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Absent,
    /// Only while the store that the owner belongs to is open.
    Held {
        attempt: u32,
        token: u64,
    },
    Interrupted {
        attempt: u32,
        token: u64,
        since_ms: u64,
    },
    Completed {
        attempt: u32,
        token: u64,
        sequence: u64,
        /// Created, completed, expires.
        times_ms: [u64; 3],
        for_principal: bool,
        response: Option<Vec<u8>>,
    },
    /// An error that names file and offset.
    Damaged,
}

impl Answer {
    /// That of a key whose newest record this is.
    fn of(record: &Record) -> Self {
        match record.kind {
            1 | 2 => Self::Interrupted {
                attempt: record.attempt,
                token: record.token,
                since_ms: record.started_ms,
            },
            3 if JUDGED_MS < record.deadline_ms => Self::Completed {
                attempt: record.attempt,
                token: record.token,
                sequence: record.sequence,
                times_ms: [record.created_ms, record.ended_ms, record.deadline_ms],
                for_principal: record.principal.is_some(),
                response: record.response.clone(),
            },
            3..=5 => Self::Absent,
            kind => panic!("a record of kind {kind}"),
        }
    }
}

/// All keys of a store, each with its records, the newest first.
#[derive(Debug)]
pub struct Keys {
    own: Vec<(Key, Vec<Record>)>,
    /// Keys that may come up although the store never had them.
    others: Vec<Key>,
}

impl Keys {
    pub fn read(layout: &Layout) -> Self {
        let mut keys = BTreeMap::<_, Vec<Record>>::new();
        for record in layout.records() {
            let parts = (&record.scope, &record.operation, &record.id);
            keys.entry(parts).or_default().push(record.clone());
        }
        let of = |((scope, operation, id), mut records): (_, Vec<Record>)| {
            let (scope, operation, id): (&Vec<u8>, &Vec<u8>, &Vec<u8>) = (scope, operation, id);
            records.sort_by_key(|record| std::cmp::Reverse((record.token, record.sequence)));
            (Key::new(scope, operation, id).expect("a key"), records)
        };
        Self {
            own: keys.into_iter().map(of).collect(),
            others: Vec::new(),
        }
    }

    /// These, and nothing is said of the keys of another store.
    pub fn beside(mut self, others: &Self) -> Self {
        let is_other = |key: &&Key| !self.iter().any(|own| own == *key);
        self.others = others.iter().filter(is_other).cloned().collect();
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.own.iter().map(|(key, _)| key)
    }

    /// What every key answers without the lost records.
    pub fn answers_without(&self, lost: impl Fn(&Record) -> bool) -> Vec<Answer> {
        self.own
            .iter()
            .map(|(_, records)| {
                let newest = records.iter().find(|record| !lost(record));
                newest.map_or(Answer::Absent, Answer::of)
            })
            .collect()
    }

    /// For each key, whether this holds for its newest record.
    pub fn newest_are(&self, holds: impl Fn(&Record) -> bool) -> Vec<bool> {
        let newest = |(_, records): &(Key, Vec<Record>)| records.first().is_some_and(&holds);
        self.own.iter().map(newest).collect()
    }

    /// The first key whose answer can't be explained: it is not that of its newest record, nor of an
    /// older one where all newer ones are named as lost.
    pub fn unexplained(
        &self,
        answers: &[Answer],
        named: impl Fn(&Record) -> bool,
    ) -> Option<String> {
        assert_eq!(self.own.len(), answers.len());
        for ((key, records), answer) in self.own.iter().zip(answers) {
            let mut possible = records.iter();
            let explained = loop {
                match possible.next() {
                    None => break *answer == Answer::Absent,
                    Some(record) if Answer::of(record) == *answer => break true,
                    Some(record) if named(record) => {}
                    Some(_) => break false,
                }
            };
            if !explained {
                return Some(format!("{key:?} answers {answer:?}"));
            }
        }
        None
    }
}

fn ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("a time")
}

/// The stored response and whether it is a principal's.
fn response(saved: &Saved) -> (bool, Option<Vec<u8>>) {
    let (for_principal, replay) = match saved.by_scope() {
        Ok(replay) => (false, replay),
        Err(AccessDenied::PrincipalRequired) => {
            let replay = saved.for_principal(PRINCIPAL).expect("the principal's");
            (true, replay)
        }
        Err(other) => panic!("{other:?}"),
    };
    match replay {
        Replay::Response(response) => (for_principal, Some(response.to_vec())),
        Replay::NotStored => (for_principal, None),
    }
}

fn completed(saved: &Saved) -> Answer {
    let (for_principal, response) = response(saved);
    Answer::Completed {
        attempt: saved.attempt(),
        token: saved.token().as_u64(),
        sequence: saved.sequence(),
        times_ms: [saved.created_at(), saved.completed_at(), saved.expires_at()].map(ms),
        for_principal,
        response,
    }
}

/// What the store answers for a key. A completed one is claimed too: the fingerprint has to match.
pub fn answer(store: &Store, key: &Key) -> Answer {
    match store.get(key) {
        Ok(KeyState::Absent) => Answer::Absent,
        Ok(KeyState::InProgress { attempt, token, .. }) => Answer::Held {
            attempt,
            token: token.as_u64(),
        },
        Ok(KeyState::Interrupted {
            attempt,
            token,
            since,
            ..
        }) => Answer::Interrupted {
            attempt,
            token: token.as_u64(),
            since_ms: ms(since),
        },
        Ok(KeyState::Completed(saved)) => {
            let looked = completed(&saved);
            match store.claim(key, request()) {
                Ok(Claim::Completed(saved)) => assert_eq!(completed(&saved), looked),
                other => panic!("{key:?}: {looked:?}, then {other:?}"),
            }
            looked
        }
        Err(ClaimError::Damaged(damaged)) => {
            assert!(damaged.file.ends_with(".log") && damaged.offset >= 4_096);
            Answer::Damaged
        }
        other => panic!("{key:?}: {other:?}"),
    }
}

/// What the store answers for all keys. Its list of interrupted keys has to say the same.
pub fn answers(store: &Store, keys: &Keys) -> Vec<Answer> {
    let found: Vec<_> = keys.iter().map(|key| answer(store, key)).collect();
    let listed: BTreeMap<_, _> = store
        .interrupted()
        .expect("a list")
        .into_iter()
        .filter(|each| !keys.others.contains(&each.key))
        .map(|each| (each.key, (each.attempt, each.token.as_u64())))
        .collect();
    let interrupted: BTreeMap<_, _> = keys
        .iter()
        .zip(&found)
        .filter_map(|(key, answer)| match answer {
            Answer::Interrupted { attempt, token, .. } => Some((key.clone(), (*attempt, *token))),
            _ => None,
        })
        .collect();
    assert_eq!(listed, interrupted);
    found
}

/// Whether the report names a record as lost.
pub fn is_named(report: &RecoveryReport, record: &Record) -> bool {
    let position = record.sequence;
    let lost = report
        .losses
        .iter()
        .any(|loss| (loss.first_sequence..=loss.last_sequence).contains(&position));
    let torn = report.torn_tail.as_ref().is_some_and(|torn| {
        let base = torn.file["segment-".len()..].trim_end_matches(".log");
        let base = u64::from_str_radix(base, 16).expect("a segment's name");
        position >= base + torn.offset / 8
    });
    lost || torn
}
