//! What was seen, as tables and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::growth::Growth;
use super::lap::Work;
use super::machine::{load, machine, median, rate};
use super::{Entrant, Flags};

/// One work of one contestant with so many threads.
pub(crate) struct Series {
    pub(super) work: Work,
    name: String,
    level: &'static str,
    threads: usize,
    /// Operations a second, round by round.
    pub(super) rates: Vec<f64>,
    /// Half, 99 and 99.9 of a hundred operations take at most so long, and all, round by round.
    pub(super) micros: Vec<[f64; 4]>,
}

impl Series {
    pub(super) fn new(work: Work, entrant: &Entrant, threads: usize) -> Self {
        Self {
            work,
            name: entrant.name.clone(),
            level: entrant.class.name(),
            threads,
            rates: Vec::new(),
            micros: Vec::new(),
        }
    }

    fn percentiles(&self) -> [f64; 4] {
        std::array::from_fn(|at| median(self.micros.iter().map(|round| round[at]).collect()))
    }

    fn work(&self) -> String {
        match self.work {
            Work::Lifecycle => "claim+complete".to_owned(),
            Work::Replay => "replay".to_owned(),
            Work::Mixed(share) => format!("mixed, {:.0} % repeated", share * 100.0),
        }
    }

    fn spread(&self) -> [f64; 2] {
        let rates = self.rates.iter().copied();
        [
            rates.clone().fold(f64::INFINITY, f64::min),
            rates.fold(0.0, f64::max),
        ]
    }
}

/// All of a measurement.
pub(crate) struct Report {
    machine: String,
    load: [String; 2],
    sizes: [usize; 2],
    rounds: usize,
    settings: Vec<[String; 3]>,
    series: Vec<Series>,
    growth: Vec<Growth>,
}

impl Report {
    pub(super) fn new(
        flags: &Flags,
        entrants: &[&Entrant],
        load_before: String,
        series: Vec<Series>,
        growth: Vec<Growth>,
    ) -> Self {
        let directory = flags
            .dir
            .canonicalize()
            .unwrap_or_else(|_| flags.dir.clone());
        let setting = |one: &&Entrant| {
            let level = one.class.name().to_owned();
            [one.name.clone(), level, one.settings.clone()]
        };
        Self {
            machine: machine(&directory),
            load: [load_before, load()],
            sizes: [flags.key_bytes, flags.value_bytes],
            rounds: flags.rounds,
            settings: entrants.iter().map(setting).collect(),
            series,
            growth,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let of_series = |one: &Series| {
            let [p50, p99, p999, max] = one.percentiles();
            json!({
                "work": one.work(), "name": one.name, "durability": one.level,
                "threads": one.threads, "per_second": median(one.rates.clone()),
                "per_second_of_rounds": one.rates,
                "micros": { "p50": p50, "p99": p99, "p99.9": p999, "max": max },
            })
        };
        let of_growth = |one: &Growth| {
            json!({
                "name": one.name, "keys": one.keys, "disk_bytes": one.disk_bytes,
                "memory_bytes": one.memory_bytes, "opened_memory_bytes": one.opened_memory_bytes,
                "cold_open_ms": one.cold_open_ms, "warm_open_ms": one.warm_open_ms,
            })
        };
        json!({
            "machine": self.machine, "load": self.load, "rounds": self.rounds,
            "key_bytes": self.sizes[0], "response_bytes": self.sizes[1],
            "settings": self.settings.iter().map(|[name, level, settings]| json!({
                "name": name, "durability": level, "settings": settings,
            })).collect::<Vec<_>>(),
            "rates": self.series.iter().map(of_series).collect::<Vec<_>>(),
            "growth": self.growth.iter().map(of_growth).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, response] = self.sizes;
        writeln!(f, "Machine: {}", self.machine)?;
        writeln!(
            f,
            "Load average: {} before, {} after.",
            self.load[0], self.load[1]
        )?;
        writeln!(
            f,
            "Keys of {key} bytes, responses of {response}; medians of {} rounds.",
            self.rounds
        )?;
        for [name, level, settings] in &self.settings {
            writeln!(f, "{name}, {level}: {settings}.")?;
        }
        writeln!(
            f,
            "\n| work | | durability | threads | rate | least–most | p50 µs | p99 | p99.9 | max |"
        )?;
        write!(f, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|")?;
        for one in &self.series {
            let [half, hundredth, thousandth, longest] = one.percentiles();
            let [least, most] = one.spread();
            write!(
                f,
                "\n| {} | {} | {} | {} | {} | {}–{} | {half:.2} \
                 | {hundredth:.2} | {thousandth:.1} | {longest:.0} |",
                one.work(),
                one.name,
                one.level,
                one.threads,
                rate(median(one.rates.clone())),
                rate(least),
                rate(most),
            )?;
        }
        if self.growth.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n\n| | keys | disk a key | memory a key, filled | opened | cold open \
             | warm open |"
        )?;
        write!(f, "|---|---:|---:|---:|---:|---:|---:|")?;
        for one in &self.growth {
            let each = |bytes: Option<u64>| match bytes {
                Some(bytes) => format!("{:.1} B", bytes as f64 / one.keys as f64),
                None => "–".to_owned(),
            };
            let time = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.1} ms"));
            write!(
                f,
                "\n| {} | {} | {} | {} | {} | {} | {} |",
                one.name,
                one.keys,
                each(one.disk_bytes),
                each(one.memory_bytes),
                each(one.opened_memory_bytes),
                time(one.cold_open_ms),
                time(one.warm_open_ms),
            )?;
        }
        Ok(())
    }
}
