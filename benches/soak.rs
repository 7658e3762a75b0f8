//! A store under steady load for as long as it is told to: does what it takes stay in proportion to
//! what it holds?
//!
//! ```text
//! cargo bench --bench soak -- --minutes 20 --plot docs/soak.svg
//! ```
//!
//! Time runs faster for the store than for us: by default a minute is 36 hours. New keys come at a
//! steady pace, responses are of 0 to 64 KiB, retention is of 1 minute to 7 days (both spread evenly
//! over their orders of magnitude), and three of ten claims repeat an earlier one. What is alive is
//! counted here, not asked of the store. Every two seconds a line says how much of the disk and of
//! memory the store takes. Nothing passes or fails. Without `--bench` (as `cargo test --benches` runs
//! it) it runs for two seconds.

#[path = "contest/place.rs"]
mod place;
mod plot;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncekey::{Claim, ClaimOptions, Clock, Durability, Fingerprint, Key, Options, Store};

use plot::Sample;

const START_MS: u64 = 1_800_000_000_000;
const MINUTE_MS: u64 = 60_000;
const RETENTION_MS_MAX: u64 = 7 * 24 * 60 * MINUTE_MS;
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// Fixed part of a record, in bytes (`docs/format.md`).
const HEAD_BYTES: usize = 120;
const SEGMENT_BYTES: u64 = 64 << 20;
/// Completed keys that a repetition chooses from.
const RECENT: usize = 4096;

struct Settings {
    duration: Duration,
    /// New keys a second of ours.
    rate: u64,
    /// Seconds of the store's in one of ours.
    factor: u64,
    plot: Option<PathBuf>,
}

impl Settings {
    fn from_arguments() -> Self {
        let mut settings = Self {
            duration: Duration::from_secs(20 * 60),
            rate: 3_000,
            factor: 36 * 60,
            plot: None,
        };
        let mut is_bench = false;
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let text = arguments.next().unwrap_or_else(|| usage());
                text.parse::<u64>().unwrap_or_else(|_| usage())
            };
            match argument.as_str() {
                "--bench" => is_bench = true,
                "--minutes" => settings.duration = Duration::from_secs(60 * number()),
                "--seconds" => settings.duration = Duration::from_secs(number()),
                "--rate" => settings.rate = number().max(1),
                "--factor" => settings.factor = number().max(1),
                "--plot" => {
                    settings.plot = Some(arguments.next().unwrap_or_else(|| usage()).into());
                }
                _ => usage(),
            }
        }
        if !is_bench {
            settings.duration = Duration::from_secs(2);
        }
        settings
    }
}

fn usage() -> ! {
    eprintln!("usage: soak [--minutes N | --seconds N] [--rate N] [--factor N] [--plot FILE]");
    std::process::exit(2);
}

/// A clock that runs `factor` times as fast as the system's.
#[derive(Debug)]
struct Fast {
    start: Instant,
    factor: u64,
}

impl Clock for Fast {
    fn wall_ms(&self) -> u64 {
        START_MS + self.monotonic_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        self.start.elapsed().as_micros() as u64 * self.factor / 1_000
    }

    fn real_time_until(&self, monotonic_ms: u64) -> Duration {
        let left_ms = monotonic_ms.saturating_sub(self.monotonic_ms());
        Duration::from_micros(left_ms * 1_000 / self.factor)
    }
}

/// What is alive, by the minute in which it ends. Takes all its memory at once.
struct Ledger {
    /// Keys and bytes, a place a minute.
    ends: Vec<(u64, u64)>,
    /// The minute up to which all is over.
    over: u64,
    keys: u64,
    bytes: u64,
}

impl Ledger {
    fn new() -> Self {
        let minutes = (RETENTION_MS_MAX / MINUTE_MS) as usize + 2;
        Self {
            ends: vec![(0, 0); minutes],
            over: START_MS / MINUTE_MS,
            keys: 0,
            bytes: 0,
        }
    }

    fn add(&mut self, expires_ms: u64, bytes: u64) {
        let place = (expires_ms / MINUTE_MS) as usize % self.ends.len();
        let (keys_then, bytes_then) = &mut self.ends[place];
        *keys_then += 1;
        *bytes_then += bytes;
        self.keys += 1;
        self.bytes += bytes;
    }

    fn advance(&mut self, now_ms: u64) {
        while self.over < now_ms / MINUTE_MS {
            let place = self.over as usize % self.ends.len();
            let (keys, bytes) = std::mem::take(&mut self.ends[place]);
            self.keys -= keys;
            self.bytes -= bytes;
            self.over += 1;
        }
    }
}

/// A generator that needs no state but a word (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// Between 1 and `max`, every order of magnitude as often as any other.
    fn spread(&mut self, max: u64) -> u64 {
        let share = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((max as f64).powf(share) as u64).clamp(1, max)
    }
}

fn numbered(number: u64) -> Key {
    let scope = format!("acct_{:08x}", number % 10_000);
    Key::new(&scope, "POST /v1/payments", format!("pay_{number:016x}")).expect("a key")
}

/// Bytes of the files in a directory that have blocks behind them.
fn disk_bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).expect("a list");
    // A file may go while it is counted.
    let blocks = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * 512
}

/// Bytes of this process's memory that no file stands behind.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The load, one thread of it, and what came of it.
struct Load {
    store: Store,
    clock: Arc<Fast>,
    random: Random,
    ledger: Ledger,
    response: Vec<u8>,
    /// Keys that came so far.
    keys: u64,
    replays: u64,
}

impl Load {
    /// One new key, and now and then an old one.
    fn step(&mut self) {
        let number = self.keys;
        self.keys += 1;
        let response_bytes = self.random.spread(RESPONSE_BYTES_MAX as u64 + 1) as usize - 1;
        let retention_ms = self.random.spread(RETENTION_MS_MAX / MINUTE_MS) * MINUTE_MS;
        let options = ClaimOptions::new().retention(Duration::from_millis(retention_ms));
        let (key, request) = (numbered(number), Fingerprint::of(number.to_le_bytes()));
        let Claim::Started(operation) =
            self.store.claim_with(&key, request, options).expect("room")
        else {
            panic!("key {number} came once");
        };
        let saved = operation
            .complete(&self.response[..response_bytes])
            .expect("room");
        drop(saved);
        let key_bytes = key.scope().len() + key.operation().len() + key.id().len();
        let bytes = (HEAD_BYTES + key_bytes + response_bytes).next_multiple_of(8) as u64;
        self.ledger.add(self.clock.wall_ms() + retention_ms, bytes);
        // 3 of 10 claims in all are repetitions.
        if self.random.next() % 7 < 3 {
            self.repeat(number);
        }
    }

    /// Claims a key again that was completed a while ago. Whether it still is, its retention says.
    fn repeat(&mut self, newest: u64) {
        let number = newest.saturating_sub(self.random.next() % RECENT as u64);
        let request = Fingerprint::of(number.to_le_bytes());
        match self.store.claim(&numbered(number), request).expect("room") {
            Claim::Completed(_) => self.replays += 1,
            Claim::Started(operation) => operation.release().expect("released"),
            other => panic!("{other:?}"),
        }
    }

    fn sample(&mut self, begun: Instant, idle_bytes: u64) -> Sample {
        self.ledger.advance(self.clock.wall_ms());
        Sample {
            seconds: begun.elapsed().as_secs_f64(),
            keys: self.ledger.keys,
            live_bytes: self.ledger.bytes,
            disk_bytes: disk_bytes(self.store.path()),
            index_bytes: self.store.stats().index_bytes,
            memory_bytes: anonymous_bytes().saturating_sub(idle_bytes),
        }
    }
}

fn main() {
    let settings = Settings::from_arguments();
    let directory = place::directory();
    let clock = Arc::new(Fast {
        start: Instant::now(),
        factor: settings.factor,
    });
    let ledger = Ledger::new();
    let response = vec![b'x'; RESPONSE_BYTES_MAX];
    let idle_bytes = anonymous_bytes();
    let store = Options::new()
        .durability(Durability::Buffered)
        .segment_size(SEGMENT_BYTES)
        .clock(Arc::<Fast>::clone(&clock))
        .open(directory.path())
        .expect("a store");
    let mut load = Load {
        store,
        clock,
        random: Random(1),
        ledger,
        response,
        keys: 0,
        replays: 0,
    };
    let begun = Instant::now();
    let mut samples = Vec::new();
    println!("    s        keys   live MiB   disk MiB  disk/live  index B/key  memory B/key");
    while begun.elapsed() < settings.duration {
        let due = begun.elapsed().as_micros() as u64 * settings.rate / 1_000_000;
        while load.keys < due {
            load.step();
        }
        if begun.elapsed().as_secs_f64() >= 2.0 * samples.len() as f64 {
            let sample = load.sample(begun, idle_bytes);
            println!("{sample}");
            samples.push(sample);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!(
        "{} keys, {} replays; disk at most {:.2} x live + 3 segments of {} MiB in the second half",
        load.keys,
        load.replays,
        plot::worst(&samples, SEGMENT_BYTES),
        SEGMENT_BYTES >> 20,
    );
    if let Some(path) = &settings.plot {
        plot::draw(path, &samples, SEGMENT_BYTES);
        println!("drawn: {}", path.display());
    }
}
