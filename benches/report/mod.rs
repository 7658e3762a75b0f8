//! What the comparison prints: markdown tables, with the machine and the command.

#[path = "../../src/bin/oncekey/bench/measure/machine.rs"]
mod machine;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::contest::crew::Lap;

use self::machine::{load, machine, median, rate};

/// What a ratio should be.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    /// No target: for the reader.
    Reported,
}

/// The laps of one contestant, a round each.
pub struct Series {
    pub name: &'static str,
    pub threads: usize,
    pub operations: usize,
    pub laps: Vec<Lap>,
}

impl Series {
    pub fn new(name: &'static str, threads: usize, operations: usize) -> Self {
        Self {
            name,
            threads,
            operations,
            laps: Vec::new(),
        }
    }

    /// Operations a second, round by round.
    fn rates(&self) -> Vec<f64> {
        self.laps
            .iter()
            .map(|lap| self.operations as f64 / lap.wall.as_secs_f64())
            .collect()
    }

    /// Processor time of one operation, round by round, in seconds.
    fn costs(&self) -> Vec<f64> {
        self.laps
            .iter()
            .map(|lap| lap.cpu.as_secs_f64() / self.operations as f64)
            .collect()
    }
}

/// Collects lines and prints them at the end.
pub struct Report {
    machine: String,
    command: &'static str,
    rounds: usize,
    load: String,
    targets: Vec<String>,
    rates: Vec<String>,
    latencies: Vec<String>,
    notes: Vec<String>,
}

impl Report {
    /// `command` is what `cargo bench` was told.
    pub fn begin(directory: &Path, rounds: usize, command: &'static str) -> Self {
        Self {
            machine: machine(directory),
            command,
            rounds,
            load: load(),
            targets: Vec::new(),
            rates: Vec::new(),
            latencies: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A sentence under the tables.
    pub fn line(&mut self, line: String) {
        self.notes.push(line);
    }

    /// How much faster `own` is than `other`, by wall time and by processor time.
    pub fn ratio(&mut self, work: &str, target: Target, own: &Series, other: &Series) {
        let quotients = |left: Vec<f64>, right: Vec<f64>| {
            median(
                left.iter()
                    .zip(&right)
                    .map(|(left, right)| left / right)
                    .collect(),
            )
        };
        let by_wall = quotients(own.rates(), other.rates());
        let by_cpu = quotients(other.costs(), own.costs());
        let against = if own.name == other.name {
            format!("its own {} thread", other.threads)
        } else {
            String::from(other.name)
        };
        let (wanted, verdict) = match target {
            Target::AtLeast(least) => (format!("≥ {least} × {against}"), word(by_wall >= least)),
            Target::Reported => (format!("× {against}, reported"), ""),
        };
        self.targets.push(format!(
            "| {work} | {wanted} | {by_wall:.2} | {} | {verdict} |",
            if by_cpu.is_finite() && own.threads == other.threads {
                format!("{by_cpu:.2}")
            } else {
                String::from("–")
            }
        ));
    }

    /// What everybody did.
    pub fn rates(&mut self, work: &str, series: &[Series]) {
        for one in series {
            let rates = one.rates();
            let (least, most) = (smallest(&rates), largest(&rates));
            let plural = if one.threads == 1 { "" } else { "s" };
            self.rates.push(format!(
                "| {work} | {} thread{plural} | {} | {} | {}–{} | {:.2} µs |",
                one.threads,
                one.name,
                rate(median(rates)),
                rate(least),
                rate(most),
                median(one.costs()) * 1e6,
            ));
        }
    }

    /// Percentiles of the rounds, each the median over the rounds.
    pub fn latency(
        &mut self,
        work: &str,
        name: &str,
        rounds: Vec<Vec<u64>>,
        target: Option<Duration>,
    ) {
        let [_, _, thousandth, _] = self.percentiles(work, name, rounds);
        if let Some(target) = target {
            self.targets.push(format!(
                "| p99.9 of a {work} | ≤ {target:?} | {:.1} µs | – | {} |",
                thousandth / 1e3,
                word(thousandth <= target.as_nanos() as f64),
            ));
        }
    }

    /// The longest of each round, the median over the rounds.
    pub fn pauses(&mut self, work: &str, name: &str, rounds: Vec<Vec<u64>>, target: Duration) {
        let [_, _, _, longest] = self.percentiles(work, name, rounds);
        self.targets.push(format!(
            "| longest pause of a {work} | ≤ {target:?} | {:.2} ms | – | {} |",
            longest / 1e6,
            word(longest <= target.as_nanos() as f64),
        ));
    }

    fn percentiles(&mut self, work: &str, name: &str, mut rounds: Vec<Vec<u64>>) -> [f64; 4] {
        rounds.iter_mut().for_each(|round| round.sort_unstable());
        let at = |share: f64| {
            let of_round = |round: &Vec<u64>| {
                let index = ((round.len() as f64 * share) as usize).min(round.len() - 1);
                round[index] as f64
            };
            median(rounds.iter().map(of_round).collect())
        };
        let found = [at(0.5), at(0.99), at(0.999), at(1.0)];
        let [half, hundredth, thousandth, longest] = found.map(|nanos| nanos / 1e3);
        let best = rounds.iter().filter_map(|round| round.last()).min();
        self.latencies.push(format!(
            "| {work} | {name} | {half:.2} | {hundredth:.2} | {thousandth:.1} | {longest:.0} | \
             {:.0} |",
            best.map_or(0.0, |nanos| *nanos as f64 / 1e3),
        ));
        found
    }

    /// Bytes of the index a completed key.
    pub fn memory(&mut self, worst: (f64, usize), last: (f64, usize), range: (usize, usize)) {
        self.targets.push(format!(
            "| RAM a completed key, index tables, most between {} and {} keys | ≤ 24 B | {:.1} B at \
             {} keys ({:.1} B at {}) | – | {} |",
            range.0,
            range.1,
            worst.0,
            worst.1,
            last.0,
            last.1,
            word(worst.0 <= 24.0),
        ));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let shown: Vec<_> = arguments
            .iter()
            .filter(|argument| *argument != "--bench")
            .map(String::as_str)
            .collect();
        let separator = if shown.is_empty() { "" } else { " -- " };
        writeln!(f, "Machine: {}", self.machine)?;
        writeln!(
            f,
            "Load average of the last minute: {} at the beginning, {} at the end.",
            self.load,
            load()
        )?;
        writeln!(
            f,
            "Command: `cargo bench {}{separator}{}`, {} rounds; ratios and rates are medians of the \
             rounds.",
            self.command,
            shown.join(" "),
            self.rounds
        )?;
        if cfg!(feature = "testing") {
            writeln!(
                f,
                "**Built with the feature `testing`, in which copying is slow on purpose: these \
                 are not oncekey's figures.**"
            )?;
        }
        let table = |f: &mut fmt::Formatter<'_>, head: &str, lines: &[String]| {
            if lines.is_empty() {
                return Ok(());
            }
            let columns = head.matches('|').count() - 1;
            writeln!(f, "\n{head}\n|{}", "---|".repeat(columns))?;
            lines.iter().try_for_each(|line| writeln!(f, "{line}"))
        };
        table(
            f,
            "| work | target | measured | by processor time | |",
            &self.targets,
        )?;
        table(
            f,
            "| work | threads | | rate | least–most | processor time each |",
            &self.rates,
        )?;
        table(
            f,
            "| latency in µs | | p50 | p99 | p99.9 | max | best round's max |",
            &self.latencies,
        )?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "\n{note}"))
    }
}

fn word(is_met: bool) -> &'static str {
    if is_met { "ok" } else { "short" }
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
