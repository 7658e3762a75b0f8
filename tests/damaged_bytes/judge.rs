//! Opens a damaged store in both ways and says what came of it.
//!
//! Whatever the damage is, this must hold:
//!
//! * With `Refuse` every key answers as before; or the open is a typed error and has changed
//!   nothing; or what is missing stood behind a cut that no recorded watermark vouches for.
//! * With `Salvage` the store opens, and every key answers as before, or from an older record where
//!   all newer ones are named as lost. It works afterwards, and opens clean.
//! * No panic in any thread, and no more memory than a multiple of the files.
//!
//! A case can say exactly what it expects; then it is held to that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use oncekey::{Claim, ClaimError, OpenError, Recovery, Store};

use crate::answers::{Answer, answers, is_named};
use crate::layout::{Files, Record};
use crate::medium::{Medium, Opened};
use crate::meters::{panics, peak_of};
use crate::stores::{Subject, new_key};
use crate::support::{bytes, completed, owned, request, started};
use crate::table::{Outcome, Table};

/// An open of `n` bytes of files may take this much memory: the simulated disk keeps every file
/// twice, a copy of a damaged file may be made, and a segment is prepared.
pub const PEAK_FACTOR: usize = 4;
pub const PEAK_CONSTANT: usize = 1 << 20;

/// What must come of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Every key answers as before, and nothing is refused.
    Same,
    /// The open is refused.
    Refused,
    /// The log ends at this position, which no watermark vouches for.
    Torn(u64),
    /// The records that were hit stand in a segment whose side-car was read instead: a key whose
    /// newest record is one of them answers with an error that names file and offset, all others as
    /// before; or the open is refused, where a hit record had to be read.
    Told,
    /// Any of these, as long as nothing is answered wrongly.
    Honest,
}

/// One damage to one store.
pub struct Case<'a> {
    pub subject: &'a Subject,
    pub files: Files,
    pub what: String,
    pub expected: Expected,
    /// Whether a record must be lost when salvaging. All others must not, where this is `Some`.
    pub lost: Option<&'a dyn Fn(&Record) -> bool>,
    pub effort: Effort,
    pub medium: Medium,
}

/// How much is done with a store, since the last steps take far longer than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Opened; not salvaged where that was refused.
    Open,
    /// Salvaged where the open was refused.
    Salvage,
    /// And then written to, closed and opened again.
    GoOn,
}

impl Case<'_> {
    /// Judges it and counts what came of it.
    pub fn judge(self, table: &mut Table) {
        let before = panics();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(table)));
        let panicked = panics() - before;
        match outcome {
            Ok(outcome) if panicked == 0 => table.count(outcome),
            Ok(_) => table.fail(format!("{}: a thread panicked", self.label())),
            Err(_) => table.fail(self.label()),
        }
    }

    fn label(&self) -> String {
        format!("{}: {}", self.subject.name, self.what)
    }

    fn run(&self, table: &mut Table) -> Outcome {
        match self.refuse(table) {
            Some(outcome) => outcome,
            None if self.effort == Effort::Open => Outcome::Refused,
            None => self.salvage(table),
        }
    }

    /// Opens with `Refuse`; what came of it, unless it was refused.
    fn refuse(&self, table: &mut Table) -> Option<Outcome> {
        let disk = self.medium.put(&self.files);
        let (opened, peak) = peak_of(|| disk.open(Recovery::Refuse));
        self.check_peak(peak, table);
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                assert!(disk.holds(&self.files), "refused and changed");
                self.check_error(&error);
                assert!(
                    matches!(
                        self.expected,
                        Expected::Refused | Expected::Told | Expected::Honest
                    ),
                    "{:?}, but {error}",
                    self.expected
                );
                return None;
            }
        };
        let report = store.recovery_report().clone();
        assert!(report.losses.is_empty() && !report.meta_rebuilt);
        let found = answers(&store, &self.subject.keys);
        let whole = self.subject.keys.answers_without(|_| false);
        let outcome = match self.expected {
            Expected::Same => {
                assert_eq!(found, whole);
                Outcome::Identical
            }
            Expected::Torn(cut) => {
                let lost = |record: &Record| record.sequence >= cut;
                assert!(cut >= self.subject.layout.watermark_without(lost));
                assert_eq!(found, self.subject.keys.answers_without(lost));
                if found == whole {
                    Outcome::Identical
                } else {
                    Outcome::Torn
                }
            }
            Expected::Told => {
                self.check_told(&store, &found, &whole);
                return None;
            }
            Expected::Refused => panic!("not refused: {report}"),
            Expected::Honest => {
                assert_eq!(found, whole, "neither refused nor the same: {report}");
                Outcome::Identical
            }
        };
        if self.effort == Effort::GoOn {
            self.go_on(store, &found, &disk);
        }
        Some(outcome)
    }

    /// Who asks for a key whose record was hit is told, and nobody runs its operation again.
    fn check_told(&self, store: &Store, found: &[Answer], whole: &[Answer]) {
        let hit = self.lost.expect("which records were hit");
        let hit = self.subject.keys.newest_are(hit);
        for (((key, found), whole), hit) in self.subject.keys.iter().zip(found).zip(whole).zip(hit)
        {
            match found {
                Answer::Damaged => {
                    assert!(hit, "{key:?} was not hit");
                    assert!(matches!(
                        store.claim(key, request()),
                        Err(ClaimError::Damaged(_))
                    ));
                }
                // A removal that was hit is not read: its key is absent all the same.
                found => assert_eq!(found, whole, "{key:?}, hit: {hit}"),
            }
        }
    }

    fn check_error(&self, error: &OpenError) {
        let message = error.to_string();
        match error {
            OpenError::Corrupt { corruption, .. } => {
                assert!(corruption.first_sequence <= corruption.last_sequence);
                assert!(message.contains(&corruption.file), "{message}");
                assert!(message.contains(&format!("byte {}", corruption.offset)));
            }
            OpenError::MetaDamaged { .. } | OpenError::MetaMissing { .. } => {
                assert!(message.contains("META"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn salvage(&self, table: &mut Table) -> Outcome {
        let disk = self.medium.put(&self.files);
        let (opened, peak) = peak_of(|| disk.open(Recovery::Salvage));
        self.check_peak(peak, table);
        let store = match opened {
            Ok(store) => store,
            // No header is left to make META anew from.
            Err(OpenError::MetaDamaged { .. } | OpenError::MetaMissing { .. })
                if self.expected == Expected::Honest =>
            {
                return Outcome::NotSalvageable;
            }
            Err(other) => panic!("not salvaged: {other}"),
        };
        let report = store.recovery_report().clone();
        let found = answers(&store, &self.subject.keys);
        let named = |record: &Record| is_named(&report, record);
        let unexplained = self.subject.keys.unexplained(&found, named);
        assert_eq!(unexplained, None, "lost in silence; {report}");
        assert!(!report.losses.is_empty() || report.meta_rebuilt, "{report}");
        if let Some(lost) = self.lost {
            let expected = self.subject.keys.answers_without(lost);
            assert_eq!(found, expected, "lost more than was hit: {report}");
        }
        let whole = found == self.subject.keys.answers_without(|_| false);
        if self.effort == Effort::GoOn {
            self.go_on(store, &found, &disk);
        }
        if whole {
            Outcome::SalvagedWhole
        } else {
            Outcome::SalvagedWithLoss
        }
    }

    fn check_peak(&self, peak: usize, table: &mut Table) {
        let bytes: usize = self.files.values().map(Vec::len).sum();
        table.note_peak(bytes, peak);
        let limit = bytes * PEAK_FACTOR + PEAK_CONSTANT;
        assert!(peak <= limit, "{peak} bytes of memory for {bytes} of files");
    }

    /// The store works: it takes new keys, gives the interrupted ones to a new owner with their
    /// notes, and opens clean after a close.
    fn go_on(&self, store: Store, found: &[Answer], disk: &Opened) {
        let report = store.recovery_report();
        let nothing_is_lost = report.losses.is_empty() && report.torn_tail.is_none();
        let operation = started(store.claim(&new_key(), request()).expect("a claim"));
        operation.complete(b"after").expect("completes");
        for (key, before) in self.subject.keys.iter().zip(found) {
            if let Answer::Interrupted { attempt, token, .. } = before {
                let operation = owned(store.claim(key, request()).expect("a claim"));
                assert_eq!(operation.attempt(), attempt + 1);
                assert!(operation.token().as_u64() > *token);
                let note = operation.last_checkpoint().map(|note| note.to_vec());
                let records = self.subject.layout.records();
                let of_owner = records.filter(|record| record.token == *token);
                let mut notes: Vec<_> = of_owner.map(|record| &record.checkpoint).collect();
                if nothing_is_lost {
                    // In the order of the log, and each holds the whole state.
                    notes.drain(..notes.len().saturating_sub(1));
                }
                let note = note.unwrap_or_default();
                assert!(
                    notes.into_iter().any(|left| *left == note),
                    "the note of another moment"
                );
            }
        }
        store.close().expect("closes");
        drop(store);
        let store = disk.open(Recovery::Refuse).expect("opens again");
        assert!(store.recovery_report().clean);
        let saved = completed(store.claim(&new_key(), request()).expect("a claim"));
        assert_eq!(bytes(&saved), b"after");
        let again = answers(&store, &self.subject.keys);
        for (before, after) in found.iter().zip(&again) {
            match (before, after) {
                (
                    Answer::Interrupted { attempt, .. },
                    Answer::Interrupted { attempt: next, .. },
                ) => {
                    assert_eq!(*next, attempt + 1);
                }
                (before, after) => assert_eq!(before, after),
            }
        }
        let absent = self.subject.keys.iter().zip(&again);
        for (key, _) in absent.filter(|(_, answer)| **answer == Answer::Absent) {
            assert!(matches!(
                store.claim(key, request()),
                Ok(Claim::Started(operation)) if operation.attempt() == 1
            ));
        }
    }
}
