//! The table at the end.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::checks::{Evidence, Findings};
use crate::clients::Tally;
use crate::messages::Decision;

const VIOLATIONS_SHOWN: usize = 20;

pub struct Report {
    rows: Vec<(&'static str, u64)>,
    pub kills: usize,
    pub kills_while_starting: usize,
    pub elapsed: Duration,
    pub violations: Vec<String>,
}

impl Report {
    pub fn new(evidence: &Evidence, tally: &Tally, findings: Findings) -> Self {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let answers = || evidence.answers.iter().flatten();
        let calls = |decision| {
            evidence
                .calls
                .iter()
                .filter(move |c| c.decision == Some(decision))
        };
        let interrupted = evidence
            .answers
            .iter()
            .filter(|a| a.iter().any(|a| a.attempt > 1));
        let rows = vec![
            ("operations (keys)", evidence.operations.len() as u64),
            ("requests sent", count(&tally.requests)),
            (
                "first answers",
                answers().filter(|answer| !answer.replayed).count() as u64,
            ),
            (
                "replays",
                answers().filter(|answer| answer.replayed).count() as u64,
            ),
            ("409 in progress", count(&tally.conflicts)),
            ("5xx", count(&tally.unavailable)),
            ("connections lost", count(&tally.connections_lost)),
            ("abandoned by the client", count(&tally.abandoned)),
            ("keys that were interrupted", interrupted.count() as u64),
            ("calls to the provider", evidence.calls.len() as u64),
            (
                "  from attempt 2 or later",
                evidence
                    .calls
                    .iter()
                    .filter(|call| call.request.attempt > 1)
                    .count() as u64,
            ),
            (
                "  deduplicated there",
                calls(Decision::Deduplicated).count() as u64,
            ),
            ("  refused", calls(Decision::Refused).count() as u64),
            ("  too late", calls(Decision::TooLate).count() as u64),
            ("  arrived out of order", findings.stragglers as u64),
            ("charges", evidence.charges.len() as u64),
        ];
        Self {
            rows,
            kills: 0,
            kills_while_starting: 0,
            elapsed: Duration::ZERO,
            violations: findings.violations,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.rows {
            writeln!(formatter, "{name:<28}{value:>8}")?;
        }
        writeln!(formatter, "{:<28}{:>8}", "kills", self.kills)?;
        let starting = self.kills_while_starting;
        writeln!(formatter, "{:<28}{starting:>8}", "kills while starting")?;
        writeln!(
            formatter,
            "{:<28}{:>8.1}",
            "seconds",
            self.elapsed.as_secs_f64()
        )?;
        writeln!(
            formatter,
            "{:<28}{:>8}",
            "violations",
            self.violations.len()
        )?;
        for violation in self.violations.iter().take(VIOLATIONS_SHOWN) {
            writeln!(formatter, "  {violation}")?;
        }
        if let Some(more) = self.violations.len().checked_sub(VIOLATIONS_SHOWN + 1) {
            writeln!(formatter, "  and {} more", more + 1)?;
        }
        Ok(())
    }
}
