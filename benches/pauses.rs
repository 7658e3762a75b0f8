//! How long a claim+complete can take while the store rolls over, gives space back or grows, beside
//! the same while it does nothing else but for one roll-over at most.
//!
//! ```text
//! cargo bench --bench pauses
//! cargo bench --bench pauses -- --quick
//! ```
//!
//! One thread comes 20,000 times a second, and what is taken is the time from when it was due: a
//! pause counts for everybody who would have come during it. The store holds a million completed keys,
//! but for the situation in which it grows to so many. The situations take turns within a run. Nothing here passes or fails by time. Without `--bench` (as
//! `cargo test --benches` runs it) everything runs once, in miniature.

mod contest;
mod floor;
#[allow(dead_code, reason = "each bench uses its part")]
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oncekey::{
    Claim, ClaimOptions, Durability, Fingerprint, Key, MaintenanceReport, ManualClock, Options,
    Store,
};
use tempfile::TempDir;

use contest::keys::{parts, response};
use contest::place::directory;
use report::Report;

const WORK: &str = "claim+complete, `Buffered`";
const EVERY: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);
const SMALL_SEGMENT: u64 = 4 << 20;
const LARGE_SEGMENT: u64 = 64 << 20;
const HOUR: Duration = Duration::from_secs(3_600);
const START_MS: u64 = 1_800_000_000_000;

struct Settings {
    rounds: usize,
    /// Completed keys that the store holds.
    held: u64,
    /// Paced operations of a round.
    paced: u64,
}

impl Settings {
    fn from_arguments() -> Self {
        let mut settings = Self {
            rounds: 5,
            held: 1_000_000,
            paced: 50_000,
        };
        let mut is_bench = false;
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--bench" => is_bench = true,
                "--quick" => (settings.held, settings.paced) = (200_000, 20_000),
                _ => {
                    eprintln!("usage: pauses [--quick]");
                    std::process::exit(2);
                }
            }
        }
        if !is_bench {
            (settings.rounds, settings.held, settings.paced) = (1, 2_000, 200);
        }
        settings
    }
}

/// A store, and the number of the next key.
struct Subject {
    // Dropped in this order: the store before its directory.
    store: Store,
    clock: Arc<ManualClock>,
    _directory: TempDir,
    response: Vec<u8>,
    next: u64,
}

impl Subject {
    fn new(segment_bytes: u64) -> Self {
        let directory = directory();
        let clock = Arc::new(ManualClock::new(START_MS));
        let store = Options::new()
            .durability(Durability::Buffered)
            .clock(clock.clone())
            .maintenance(false)
            .segment_size(segment_bytes)
            .prepared_segments(2)
            .max_response(1_024)
            .reserved_response(1_024)
            .open(directory.path())
            .expect("a store");
        Self {
            store,
            clock,
            _directory: directory,
            response: response(),
            next: 0,
        }
    }

    fn key(&mut self) -> Key {
        let [scope, operation, id] = parts(self.next);
        self.next += 1;
        Key::new(&scope, &operation, &id).expect("a key")
    }

    fn lifecycle(&self, key: &Key, retention: Duration) {
        let options = ClaimOptions::new().retention(retention);
        let claim = self
            .store
            .claim_with(key, Fingerprint::of(b"a request"), options);
        let Ok(Claim::Started(operation)) = claim else {
            panic!("{claim:?}");
        };
        operation.complete(&self.response).expect("there is room");
    }

    fn fill(&mut self, count: u64) {
        for number in 0..count {
            let key = self.key();
            self.lifecycle(&key, if number % 2 == 0 { HOUR } else { 48 * HOUR });
        }
    }

    /// Waits for whatever the filling left to do in the background.
    fn settle(&self) {
        let patience = Instant::now();
        self.store.flush().expect("durable");
        let files = |ending: &str| {
            let entries = std::fs::read_dir(self.store.path()).expect("a list");
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.ends_with(ending)).count()
        };
        // The one being written and two prepared ones have no side-car.
        while self.store.stats().segments_prepared < 2 || files(".idx") + 3 < files(".log") {
            assert!(patience.elapsed() < Duration::from_secs(120), "never done");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Nanoseconds of each lifecycle, from when it was due.
    fn timed(&mut self, count: u64, every: Duration) -> Vec<u64> {
        let keys: Vec<_> = (0..count).map(|_| self.key()).collect();
        let mut taken = vec![0_u64; keys.len()];
        let begun = Instant::now();
        for (index, (key, taken)) in keys.iter().zip(&mut taken).enumerate() {
            let due = begun + every * u32::try_from(index).expect("few operations");
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            self.lifecycle(key, 48 * HOUR);
            *taken = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        taken
    }
}

fn quiet(settings: &Settings) -> Vec<u64> {
    let mut subject = Subject::new(LARGE_SEGMENT);
    subject.fill(settings.held);
    subject.settle();
    subject.timed(settings.paced, EVERY)
}

fn rolling(settings: &Settings) -> Vec<u64> {
    let mut subject = Subject::new(SMALL_SEGMENT);
    subject.fill(settings.held);
    subject.settle();
    subject.timed(settings.paced, EVERY)
}

/// Over segments of the default size: four times as many operations fill three of them.
fn rolling_large(settings: &Settings) -> Vec<u64> {
    let mut subject = Subject::new(LARGE_SEGMENT);
    subject.fill(settings.held);
    subject.settle();
    subject.timed(4 * settings.paced, EVERY)
}

/// Half of what the store holds has expired; what is left is copied while claims go on.
fn compacting(settings: &Settings, done: &mut MaintenanceReport) -> Vec<u64> {
    let mut subject = Subject::new(SMALL_SEGMENT);
    subject.fill(settings.held);
    subject.settle();
    subject.clock.advance(2 * HOUR);
    let store = subject.store.clone();
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let maintenance = thread::spawn(move || {
        let mut done = MaintenanceReport::default();
        while !told.load(Ordering::Relaxed) {
            let pass = store.maintain().expect("a pass");
            done.bytes_copied += pass.bytes_copied;
            done.bytes_removed += pass.bytes_removed;
            done.results_expired += pass.results_expired;
        }
        done
    });
    let taken = subject.timed(settings.paced, EVERY);
    is_over.store(true, Ordering::Relaxed);
    *done = maintenance.join().expect("maintenance ends well");
    taken
}

fn growing(settings: &Settings) -> Vec<u64> {
    let mut subject = Subject::new(SMALL_SEGMENT);
    subject.settle();
    subject.timed(settings.held, EVERY)
}

fn main() {
    let settings = Settings::from_arguments();
    let mut report = Report::begin(directory().path(), settings.rounds, "--bench pauses");
    let mut done = MaintenanceReport::default();
    let mut rounds: [Vec<Vec<u64>>; 5] = Default::default();
    for turn in 0..settings.rounds {
        for step in 0..rounds.len() {
            // One further at the beginning of each round, so that everybody is first in turn.
            let index = (turn + step) % rounds.len();
            rounds[index].push(match index {
                0 => quiet(&settings),
                1 => rolling(&settings),
                2 => rolling_large(&settings),
                3 => compacting(&settings, &mut done),
                _ => growing(&settings),
            });
        }
    }
    let [quiet, rolling, rolling_large, compacting, growing] = rounds;
    report.latency(WORK, "one roll-over at most", quiet, None);
    let others = [
        ("rolling over, 4 MiB", rolling),
        ("rolling over, 64 MiB", rolling_large),
        ("giving space back", compacting),
        ("growing", growing),
    ];
    for (name, rounds) in others {
        report.pauses(&format!("{WORK}, {name}"), name, rounds, LONGEST);
    }
    report.line(format!(
        "While it gave space back in the last round, {:.0} MiB were copied, {:.0} MiB of files were \
         removed and {} results expired.",
        done.bytes_copied as f64 / (1 << 20) as f64,
        done.bytes_removed as f64 / (1 << 20) as f64,
        done.results_expired,
    ));
    report.line(format!(
        "The store held {} keys, or grew to so many.",
        settings.held
    ));
    print!("{report}");
}
