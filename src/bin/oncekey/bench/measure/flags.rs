//! What is measured, as flags of a command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedI64ValueParser;

use super::Class;
use super::keys::{KEY_BYTES_MAX, KEY_BYTES_MIN};

/// Bytes that a turn may write at most, so that a burst stays a burst.
const BYTES_QUICK: usize = 48 << 20;
const BYTES_FULL: usize = 384 << 20;

#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Directory below which the throw-away stores lie while they are measured.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Threads that call at once: a list.
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,32",
        value_parser = RangedI64ValueParser::<usize>::new().range(1..=1_024))]
    pub(crate) threads: Vec<usize>,
    /// Bytes of a key: scope, operation and id.
    #[arg(long, value_name = "BYTES", default_value_t = 56,
        value_parser = RangedI64ValueParser::<usize>::new().range(KEY_BYTES_MIN..=KEY_BYTES_MAX))]
    pub(crate) key_bytes: usize,
    /// Bytes of a response.
    #[arg(long, value_name = "BYTES", default_value_t = 512,
        value_parser = RangedI64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub(crate) value_bytes: usize,
    /// Share of claims in the mixed work that repeat an earlier key; 0 leaves that work out.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    pub(crate) duplicates: f64,
    /// Levels of durability that take part: a list. All by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) durability: Vec<Class>,
    /// Long laps, and a million keys too: some minutes, and up to two gigabytes of disk at once.
    #[arg(long)]
    pub(crate) full: bool,
    /// Rounds; their median counts.
    #[arg(long, default_value_t = 5,
        value_parser = RangedI64ValueParser::<usize>::new().range(1..=101))]
    pub(crate) rounds: usize,
    /// Milliseconds that each work has in each round. 100 by default, 1,000 with --full.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) lap_ms: Option<u64>,
    /// Numbers of keys at which disk, memory and opening are measured: a list; 0 leaves that out.
    /// 10000 and 100000 by default, a million too with --full.
    #[arg(long, value_delimiter = ',',
        value_parser = RangedI64ValueParser::<usize>::new().range(0..=100_000_000))]
    pub(crate) keys: Vec<usize>,
    /// Write the report with plots to this file too, as one page of HTML.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// What a process of its own does for another.
    #[arg(long, hide = true)]
    pub(crate) step: Option<String>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=0.95).contains(&share) => Ok(share),
        _ => Err("not a share from 0 to 0.95".to_owned()),
    }
}

impl Flags {
    /// Whether this process does a step for another.
    pub(crate) fn is_step(&self) -> bool {
        self.step.is_some()
    }

    pub(crate) fn wants(&self, class: Class) -> bool {
        self.durability.is_empty() || self.durability.contains(&class)
    }

    pub(super) fn lap(&self) -> Duration {
        let default = if self.full { 1_000 } else { 100 };
        Duration::from_millis(self.lap_ms.unwrap_or(default))
    }

    /// New keys of one lap at most.
    pub(super) fn keys_of_lap(&self) -> usize {
        let bytes = if self.full { BYTES_FULL } else { BYTES_QUICK };
        let each = 2 * self.key_bytes + self.value_bytes + 256;
        // As many as the threads, at least: each has to do something.
        (bytes / each).max(1_024)
    }

    pub(super) fn counts(&self) -> Vec<usize> {
        let mut counts = match (self.keys.is_empty(), self.full) {
            (false, _) => self.keys.clone(),
            (true, false) => vec![10_000, 100_000],
            (true, true) => vec![10_000, 100_000, 1_000_000],
        };
        counts.retain(|count| *count > 0);
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}
