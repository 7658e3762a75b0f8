//! How long an open takes and what a key costs in memory, by the number of completed keys: with
//! side-car index files and without, when every record is read.
//!
//! ```text
//! cargo bench --bench opening                      # 10 thousand to 10 million keys: 8 GB of disk
//! cargo bench --bench opening -- 10000 1000000     # these numbers of keys
//! cargo bench --bench opening -- --quick           # a first look
//! ```
//!
//! Stores lie under the target directory and go when they were measured. Every open is made by a
//! process of its own, so that its memory is the store's and nobody else's, after the pages of the
//! store's files were dropped from the system's cache. `cold` is how long such an open took, `warm`
//! one right after it. Memory is `RssAnon` after the open less that before it: the mapped log is the
//! system's to take back.

#[path = "contest/keys.rs"]
#[allow(dead_code, reason = "each bench uses its part")]
mod keys;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oncekey::{Claim, Durability, Fingerprint, Key, Options, Store};
use rustix::fs::Advice;

use keys::{RESPONSE_BYTES, parts, response};

const COUNTS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
const QUICK: [u64; 2] = [10_000, 100_000];
/// Cold opens of each kind; the median counts.
const ROUNDS: usize = 3;
/// Says that this process is to open a store and print what that cost.
const CHILD: &str = "ONCEKEY_OPENING_BENCH";

fn main() {
    if let Ok(path) = std::env::var(CHILD) {
        return open_and_print(Path::new(&path));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chosen = arguments.iter().filter_map(|word| word.parse().ok());
    let mut counts: Vec<u64> = chosen.collect();
    if counts.is_empty() {
        let quick = arguments.iter().any(|word| word == "--quick");
        counts.extend(if quick { &QUICK[..] } else { &COUNTS });
    }
    println!("{RESPONSE_BYTES} bytes of response; median of {ROUNDS} cold opens, and the slowest");
    println!();
    println!("| keys | log | index files | opened by | cold | slowest | warm | memory a key |");
    println!("|---:|---:|---:|---|---:|---:|---:|---:|");
    for count in counts {
        measure(count);
    }
}

fn measure(count: u64) {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(parent).expect("the target directory can be written");
    let directory = tempfile::tempdir_in(parent).expect("a directory");
    let path = directory.path();
    fill(path, count);
    let sizes = [".log", ".idx"].map(|ending| {
        let bytes: u64 = files(path, ending).map(|(_, bytes)| bytes).sum();
        format!("{:.1} MB", bytes as f64 / 1e6)
    });
    for by in ["side-cars", "records"] {
        let mut rounds: Vec<Opened> = (0..ROUNDS)
            .map(|_| {
                if by == "records" {
                    files(path, ".idx").for_each(|(name, _)| fs::remove_file(name).expect("goes"));
                }
                drop_from_cache(path);
                open_in_child(path, count)
            })
            .collect();
        if by == "records" {
            files(path, ".idx").for_each(|(name, _)| fs::remove_file(name).expect("goes"));
        }
        let warm = open_in_child(path, count);
        rounds.sort_by_key(|opened| opened.took);
        let median = &rounds[ROUNDS / 2];
        let is_by_side_cars = rounds.iter().all(|opened| opened.records_read == 0);
        assert_eq!(is_by_side_cars, by == "side-cars");
        println!(
            "| {count} | {} | {} | {by} | {:.1} ms | {:.1} ms | {:.1} ms | {:.1} B |",
            sizes[0],
            sizes[1],
            millis(median.took),
            millis(rounds[ROUNDS - 1].took),
            millis(warm.took),
            median.memory as f64 / count as f64,
        );
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn options() -> Options {
    Options::new().durability(Durability::Buffered)
}

/// Completes so many keys, and closes the store, so that every segment has its side-car.
fn fill(path: &Path, count: u64) {
    let store = options().open(path).expect("a store");
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let response = response();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, response) = (&store, &response);
            scope.spawn(move || {
                for number in (thread..count).step_by(threads as usize) {
                    let [scope, operation, id] = parts(number);
                    let key = Key::new(&scope, &operation, &id).expect("a key");
                    complete(store, &key, response);
                }
            });
        }
    });
    store.close().expect("closes");
}

fn complete(store: &Store, key: &Key, response: &[u8]) {
    match store.claim(key, Fingerprint::of(b"a request")) {
        Ok(Claim::Started(operation)) => operation.complete(response).expect("completes"),
        other => panic!("{other:?}"),
    };
}

fn files(path: &Path, ending: &'static str) -> impl Iterator<Item = (std::path::PathBuf, u64)> {
    let entries = fs::read_dir(path).expect("a directory");
    entries.filter_map(move |entry| {
        let entry = entry.expect("an entry");
        let is_one = entry.file_name().to_str()?.ends_with(ending);
        is_one.then(|| (entry.path(), entry.metadata().expect("a file").len()))
    })
}

/// What was written must be on the disk before it can be dropped.
fn drop_from_cache(path: &Path) {
    for (name, _) in files(path, "") {
        let file = File::open(name).expect("a file");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
    }
}

/// What an open cost.
struct Opened {
    took: Duration,
    memory: u64,
    /// Bytes of records that were read, side-cars not counted.
    records_read: u64,
}

fn open_in_child(path: &Path, count: u64) -> Opened {
    let this = std::env::current_exe().expect("this program");
    let output = Command::new(this).env(CHILD, path).output();
    let output = output.expect("a process");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    let [nanos, memory, records_read, keys] = numbers[..] else {
        panic!("{text}");
    };
    assert_eq!(keys, count);
    Opened {
        took: Duration::from_nanos(nanos),
        memory,
        records_read,
    }
}

/// Closes the store, so that the next open finds it in order.
fn open_and_print(path: &Path) {
    let before = anonymous_bytes();
    let begun = Instant::now();
    let store = options().open(path).expect("a store");
    let took = begun.elapsed();
    let memory = anonymous_bytes().saturating_sub(before);
    let records_read = store.recovery_report().bytes_scanned;
    let keys = store.stats().completed_keys;
    println!("{} {memory} {records_read} {keys}", took.as_nanos());
    store.close().expect("closes");
}

fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    kilobytes
        .and_then(|word| word.parse::<u64>().ok())
        .expect("a number of kB")
        << 10
}
