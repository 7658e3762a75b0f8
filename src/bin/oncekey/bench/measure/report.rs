//! What was seen, as tables and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::growth::Growth;
use super::lap::Work;
use super::machine::{load, machine, median, rate};
use super::own::NAME as OWN;
use super::{Class, Entrant, Flags};

/// One work of one contestant with so many threads.
pub(crate) struct Series {
    pub(super) work: Work,
    pub(super) name: String,
    pub(super) class: Class,
    pub(super) threads: usize,
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
            class: entrant.class,
            threads,
            rates: Vec::new(),
            micros: Vec::new(),
        }
    }

    pub(super) fn percentiles(&self) -> [f64; 4] {
        std::array::from_fn(|at| median(self.micros.iter().map(|round| round[at]).collect()))
    }

    pub(super) fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    pub(super) fn work(&self) -> String {
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
    pub(super) machine: String,
    pub(super) load: [String; 2],
    pub(super) sizes: [usize; 2],
    pub(super) rounds: usize,
    pub(super) settings: Vec<Setting>,
    pub(super) series: Vec<Series>,
    pub(super) growth: Vec<Growth>,
}

/// Who took part, and how it was set up.
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) class: Class,
    pub(super) settings: String,
}

/// What a ratio is, for its reader.
pub(super) const RATIO: &str = "Ratio: so many times the contestant's rate oncekey had in the same \
    rounds, at the same level; a volatile one is set against buffered, which promises more.";

impl Report {
    pub(super) fn new(
        flags: &Flags,
        entrants: &[Entrant],
        load_before: String,
        series: Vec<Series>,
        growth: Vec<Growth>,
    ) -> Self {
        let directory = flags
            .dir
            .canonicalize()
            .unwrap_or_else(|_| flags.dir.clone());
        let setting = |one: &Entrant| Setting {
            name: one.name.clone(),
            class: one.class,
            settings: one.settings.clone(),
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

    /// How much faster the store was in the same work, round by round; nothing for itself.
    pub(super) fn ratio(&self, other: &Series) -> Option<f64> {
        let own = self.series.iter().find(|own| {
            own.name == OWN
                && own.class == other.class.max(Class::Buffered)
                && (own.work, own.threads) == (other.work, other.threads)
        })?;
        if other.name == OWN {
            return None;
        }
        let rounds = own.rates.iter().zip(&other.rates);
        Some(median(rounds.map(|(own, other)| own / other).collect()))
    }

    pub(crate) fn json(&self) -> Value {
        let of_series = |one: &Series| {
            let [p50, p99, p999, max] = one.percentiles();
            json!({
                "work": one.work(), "name": one.name, "durability": one.class.name(),
                "threads": one.threads, "per_second": one.rate(), "ratio": self.ratio(one),
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
            "settings": self.settings.iter().map(|one| json!({
                "name": one.name, "durability": one.class.name(), "settings": one.settings,
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
        for one in &self.settings {
            writeln!(f, "{}, {}: {}.", one.name, one.class.name(), one.settings)?;
        }
        if self.settings.iter().any(|one| one.name != OWN) {
            writeln!(f, "{RATIO}")?;
        }
        writeln!(
            f,
            "\n| work | | durability | threads | rate | least–most | ratio | p50 µs | p99 | p99.9 \
             | max |"
        )?;
        write!(f, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for one in &self.series {
            let [half, hundredth, thousandth, longest] = one.percentiles();
            let [least, most] = one.spread();
            write!(
                f,
                "\n| {} | {} | {} | {} | {} | {}–{} | {} | {half:.2} \
                 | {hundredth:.2} | {thousandth:.1} | {longest:.0} |",
                one.work(),
                one.name,
                one.class.name(),
                one.threads,
                rate(one.rate()),
                rate(least),
                rate(most),
                self.ratio(one).map_or("–".to_owned(), times),
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
