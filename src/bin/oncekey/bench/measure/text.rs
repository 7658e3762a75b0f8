//! The report as tables of text.

use std::fmt;

use super::lap::Work;
use super::machine::rate;
use super::own::NAME as OWN;
use super::report::{RATIO, Report, Series, Setting};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, response] = self.sizes;
        writeln!(f, "Machine: {}", self.machine)?;
        let [before, after] = &self.load;
        writeln!(f, "Load average: {before} before, {after} after.")?;
        let rounds = self.rounds;
        writeln!(
            f,
            "Keys of {key} bytes, responses of {response}; medians of {rounds} rounds."
        )?;
        for one in &self.settings {
            let (name, class, settings) = (&one.name, one.class.name(), &one.settings);
            writeln!(f, "* {name}, {class}: {settings}.")?;
        }
        if self.settings.iter().any(|one| one.name != OWN) {
            writeln!(f, "\n{RATIO}")?;
        }
        let (works, threads) = self.axes();
        for work in works {
            self.rates(f, work, &threads)?;
            self.latencies(f, work, &threads)?;
        }
        self.sizes(f)
    }
}

impl Report {
    /// Those of one level together, the least first.
    fn sorted(&self) -> Vec<&Setting> {
        let mut sorted: Vec<&Setting> = self.settings.iter().collect();
        sorted.sort_by_key(|one| one.class);
        sorted
    }

    fn find(&self, who: &Setting, work: Work, threads: usize) -> Option<&Series> {
        self.series.iter().find(|one| {
            (&one.name, one.class) == (&who.name, who.class)
                && (one.work, one.threads) == (work, threads)
        })
    }

    fn rates(&self, f: &mut fmt::Formatter<'_>, work: Work, threads: &[usize]) -> fmt::Result {
        write!(f, "\n| {} a second, threads: | |", work.name())?;
        for count in threads {
            write!(f, " {count} |")?;
        }
        write!(f, "\n|---|---|{}", "---:|".repeat(threads.len()))?;
        for who in self.sorted() {
            write!(f, "\n| {} | {} |", who.name, who.class.name())?;
            for count in threads {
                match self.find(who, work, *count) {
                    Some(one) => {
                        let ratio = self.ratio(one).map(times);
                        let ratio = ratio.map_or(String::new(), |ratio| format!(" ({ratio})"));
                        write!(f, " {}{ratio} |", rate(one.rate()))?;
                    }
                    None => write!(f, " – |")?,
                }
            }
        }
        writeln!(f)
    }

    /// With the fewest and the most threads.
    fn latencies(&self, f: &mut fmt::Formatter<'_>, work: Work, threads: &[usize]) -> fmt::Result {
        let mut ends: Vec<usize> = threads.first().into_iter().copied().collect();
        ends.extend(threads.last());
        ends.dedup();
        write!(f, "\n| {} in µs, threads: | |", work.name())?;
        for count in &ends {
            write!(f, " {count}: 50 % | 99 % | 99.9 % | all |")?;
        }
        write!(f, "\n|---|---|{}", "---:|".repeat(4 * ends.len()))?;
        for who in self.sorted() {
            write!(f, "\n| {} | {} |", who.name, who.class.name())?;
            for count in &ends {
                match self.find(who, work, *count).map(Series::percentiles) {
                    Some([half, hundredth, thousandth, longest]) => write!(
                        f,
                        " {half:.2} | {hundredth:.2} | {thousandth:.1} | {longest:.0} |"
                    )?,
                    None => write!(f, "{}", " – |".repeat(4))?,
                }
            }
        }
        writeln!(f)
    }

    fn sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.growth.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "\n| | keys | disk a key | memory a key, filled | opened | cold open | warm open |\n\
             |---|---:|---:|---:|---:|---:|---:|"
        )?;
        for one in &self.growth {
            write!(
                f,
                "\n| {} | {} | {} | {} | {} | {} | {} |",
                one.name,
                one.keys,
                each(one.disk_bytes, one.keys),
                each(one.memory_bytes, one.keys),
                each(one.opened_memory_bytes, one.keys),
                millis(one.cold_open_ms),
                millis(one.warm_open_ms),
            )?;
        }
        Ok(())
    }
}

/// A ratio with as many digits as it is worth.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 10.0 => format!("{ratio:.0} ×"),
        ratio => format!("{ratio:.2} ×"),
    }
}

/// Of bytes, what one key takes.
pub(super) fn each(bytes: Option<u64>, keys: usize) -> String {
    match bytes {
        Some(bytes) => format!("{:.1} B", bytes as f64 / keys as f64),
        None => "–".to_owned(),
    }
}

pub(super) fn millis(time: Option<f64>) -> String {
    time.map_or("–".to_owned(), |time| format!("{time:.1} ms"))
}
