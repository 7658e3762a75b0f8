//! Counts of what came of each case, printed for the document.

use std::collections::BTreeMap;

/// What came of a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Opened, and every key answers as before.
    Identical,
    /// Opened without what stood above the last recorded watermark.
    Torn,
    /// Refused; not salvaged, to save time.
    Refused,
    /// Refused; salvaged with every key answering as before.
    SalvagedWhole,
    /// Refused; salvaged with what is lost named.
    SalvagedWithLoss,
    /// Refused, also by a salvage: nothing tells whose files these are.
    NotSalvageable,
}

/// The outcomes of one kind of damage.
pub struct Table {
    title: String,
    counts: BTreeMap<Outcome, u64>,
    failures: Vec<String>,
    /// The most memory of an open: bytes of files, bytes of memory.
    peak: (usize, usize),
}

impl Table {
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            counts: BTreeMap::new(),
            failures: Vec::new(),
            peak: (1, 0),
        }
    }

    pub fn count(&mut self, outcome: Outcome) {
        *self.counts.entry(outcome).or_default() += 1;
    }

    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    pub fn note_peak(&mut self, bytes: usize, peak: usize) {
        if peak > self.peak.1 {
            self.peak = (bytes, peak);
        }
    }

    pub fn of(&self, outcome: Outcome) -> u64 {
        self.counts.get(&outcome).copied().unwrap_or(0)
    }

    pub fn cases(&self) -> u64 {
        self.counts.values().sum::<u64>() + self.failures.len() as u64
    }

    /// Prints a line of the table, and fails if any case did.
    #[track_caller]
    pub fn finish(&self) {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} of {} KiB |",
            self.title,
            self.cases(),
            self.of(Outcome::Identical),
            self.of(Outcome::Torn),
            self.of(Outcome::Refused),
            self.of(Outcome::SalvagedWhole),
            self.of(Outcome::SalvagedWithLoss),
            self.of(Outcome::NotSalvageable),
            self.peak.1 >> 10,
            self.peak.0 >> 10,
        );
        assert!(self.cases() > 0, "{}: no cases", self.title);
        let some: Vec<_> = self.failures.iter().take(20).collect();
        assert!(
            self.failures.is_empty(),
            "{} of {} cases failed: {some:#?}",
            self.failures.len(),
            self.cases()
        );
    }
}
