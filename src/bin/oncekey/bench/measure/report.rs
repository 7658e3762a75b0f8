//! What was seen, and as JSON.

use serde_json::{Value, json};

use super::growth::Growth;
use super::lap::Work;
use super::machine::{load, machine, median};
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

    /// Works and numbers of threads, each once.
    pub(super) fn axes(&self) -> (Vec<Work>, Vec<usize>) {
        let (mut works, mut threads) = (Vec::new(), Vec::new());
        for one in &self.series {
            works.extend(Some(one.work).filter(|work| !works.contains(work)));
            threads.extend(Some(one.threads).filter(|count| !threads.contains(count)));
        }
        (works, threads)
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
                "work": one.work.name(), "name": one.name, "durability": one.class.name(),
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
