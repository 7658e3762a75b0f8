//! Trying a store beside what deduplicates today, before switching: every verdict compared.
//!
//! The service goes on acting on what its Redis table says, claims in the store as well, and hands both
//! verdicts to a [`Shadow`]. It counts what agrees, keeps the newest of what does not, and tells.
//!
//! ```
//! use oncekey::shadow::{Shadow, Verdict};
//! # use oncekey::{Fingerprint, Key, Store};
//! # let directory = tempfile::tempdir()?;
//! # let store = Store::open(directory.path())?;
//! let shadow = Shadow::new(100);
//! let key = Key::new("acct_1", "POST /v1/payments", "k-1")?;
//! # let set_in_redis = true;
//! let theirs = if set_in_redis { Verdict::Started } else { Verdict::Duplicate };
//! let claim = store.claim(&key, Fingerprint::none())?;
//! shadow.compare(&key, &theirs, &Verdict::of(&claim));
//! // Act on theirs; complete or release the claim as the work ends.
//! # drop(claim);
//! assert_eq!(shadow.report().both_started, 1);
//! println!("{}", shadow.report());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;

use crate::claim::Claim;
use crate::key::Key;

/// What one side says about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is new: do the work.
    Started,
    /// It is known, and there is no response to compare.
    Duplicate,
    /// It is known, and this is its response.
    Replayed(Vec<u8>),
}

impl Verdict {
    /// What the store says. An interrupted operation is known; a table that only marks keys says so too.
    pub fn of(claim: &Claim) -> Self {
        match claim {
            Claim::Started(_) => Self::Started,
            Claim::Completed(saved) => match saved.by_scope() {
                Ok(replay) => replay.response().map_or(Self::Duplicate, |response| {
                    Self::Replayed(response.to_vec())
                }),
                Err(_) => Self::Duplicate,
            },
            _ => Self::Duplicate,
        }
    }
}

/// How two verdicts go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Agreement {
    /// Both say that it is new.
    BothStarted,
    /// Both say that it is known, with the same response where both have one.
    BothDuplicate,
    /// Only the other side knows the key: it was claimed before the store was there, or is kept longer.
    OnlyTheirs,
    /// Only the store knows the key: the other side has forgotten it, and would run it twice.
    OnlyOurs,
    /// Both know it, with different responses.
    DifferentResponse,
}

impl Agreement {
    fn of(theirs: &Verdict, ours: &Verdict) -> Self {
        match (theirs, ours) {
            (Verdict::Started, Verdict::Started) => Self::BothStarted,
            (Verdict::Started, _) => Self::OnlyOurs,
            (_, Verdict::Started) => Self::OnlyTheirs,
            (Verdict::Replayed(theirs), Verdict::Replayed(ours)) if theirs != ours => {
                Self::DifferentResponse
            }
            _ => Self::BothDuplicate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::BothStarted => "both_started",
            Self::BothDuplicate => "both_duplicate",
            Self::OnlyTheirs => "only_theirs",
            Self::OnlyOurs => "only_ours",
            Self::DifferentResponse => "different_response",
        }
    }
}

/// Compares verdicts, from any number of threads.
#[derive(Debug)]
pub struct Shadow {
    kept_max: usize,
    report: Mutex<ShadowReport>,
}

/// What was found. Shown as text; [`to_json`](Self::to_json) for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowReport {
    /// Pairs of verdicts that say "new".
    pub both_started: u64,
    /// Pairs of verdicts that say "known".
    pub both_duplicate: u64,
    /// Keys that only the other side knew.
    pub only_theirs: u64,
    /// Keys that only the store knew.
    pub only_ours: u64,
    /// Keys with different responses.
    pub different_response: u64,
    /// The newest differences, the oldest of them first. Of the key's id only a digest is shown.
    pub differences: VecDeque<(Agreement, Key)>,
}

impl Shadow {
    /// Keeps so many of the newest differences.
    pub fn new(kept_max: usize) -> Self {
        Self {
            kept_max,
            report: Mutex::default(),
        }
    }

    /// Compares two verdicts about a key.
    pub fn compare(&self, key: &Key, theirs: &Verdict, ours: &Verdict) -> Agreement {
        let agreement = Agreement::of(theirs, ours);
        let mut report = self.report.lock();
        let count = match agreement {
            Agreement::BothStarted => &mut report.both_started,
            Agreement::BothDuplicate => &mut report.both_duplicate,
            Agreement::OnlyTheirs => &mut report.only_theirs,
            Agreement::OnlyOurs => &mut report.only_ours,
            Agreement::DifferentResponse => &mut report.different_response,
        };
        *count += 1;
        let is_same = matches!(agreement, Agreement::BothStarted | Agreement::BothDuplicate);
        if !is_same && self.kept_max > 0 {
            if report.differences.len() == self.kept_max {
                report.differences.pop_front();
            }
            report.differences.push_back((agreement, key.clone()));
        }
        agreement
    }

    /// What was found so far.
    pub fn report(&self) -> ShadowReport {
        self.report.lock().clone()
    }
}

impl ShadowReport {
    /// Verdicts that differ.
    pub fn differing(&self) -> u64 {
        self.only_theirs + self.only_ours + self.different_response
    }

    fn counts(&self) -> [(Agreement, u64); 5] {
        [
            (Agreement::BothStarted, self.both_started),
            (Agreement::BothDuplicate, self.both_duplicate),
            (Agreement::OnlyTheirs, self.only_theirs),
            (Agreement::OnlyOurs, self.only_ours),
            (Agreement::DifferentResponse, self.different_response),
        ]
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> String {
        let counts = self.counts();
        let counts = counts
            .iter()
            .map(|(kind, count)| format!("\"{}\":{count}", kind.name()));
        // A key that is shown has nothing but printable ASCII in it.
        let escaped = |key: &Key| key.to_string().replace('\\', "\\\\").replace('"', "\\\"");
        let differences = self.differences.iter();
        let differences: Vec<_> = differences
            .map(|(kind, key)| {
                format!(
                    "{{\"kind\":\"{}\",\"key\":\"{}\"}}",
                    kind.name(),
                    escaped(key)
                )
            })
            .collect();
        let counts: Vec<_> = counts.collect();
        format!(
            "{{{},\"differences\":[{}]}}",
            counts.join(","),
            differences.join(",")
        )
    }
}

impl fmt::Display for ShadowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in self.counts() {
            writeln!(f, "{:<20}{count:>12}", kind.name())?;
        }
        for (kind, key) in &self.differences {
            writeln!(f, "{:<20}{key}", kind.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_verdicts_has_its_kind_and_memory_is_bounded() {
        let shadow = Shadow::new(2);
        let key = Key::new("a\"b", "pay", "1").unwrap();
        let replayed = |bytes: &[u8]| Verdict::Replayed(bytes.to_vec());
        for (theirs, ours, expected) in [
            (Verdict::Started, Verdict::Started, Agreement::BothStarted),
            (Verdict::Duplicate, replayed(b"x"), Agreement::BothDuplicate),
            (replayed(b"x"), replayed(b"x"), Agreement::BothDuplicate),
            (Verdict::Duplicate, Verdict::Started, Agreement::OnlyTheirs),
            (Verdict::Started, Verdict::Duplicate, Agreement::OnlyOurs),
            (replayed(b"x"), replayed(b"y"), Agreement::DifferentResponse),
        ] {
            assert_eq!(shadow.compare(&key, &theirs, &ours), expected);
        }
        let report = shadow.report();
        assert_eq!((report.differing(), report.differences.len()), (3, 2));
        let json = report.to_json();
        assert!(json.starts_with("{\"both_started\":1,\"both_duplicate\":2,\"only_theirs\":1"));
        assert!(json.contains("\\\"b/pay/#"), "{json}");
        assert!(!json.contains("pay/1"));
    }
}
