//! The comparison that is published: oncekey against the bare floor, a `DashMap` and bare syncs, in
//! turns within one run on one machine, with the targets of `docs/design.md`.
//!
//! ```text
//! cargo bench --bench ratios
//! cargo bench --bench ratios -- --quick
//! cargo bench --bench ratios -- --only replay
//! ```
//!
//! Every round lets each contestant run once, beginning with another one each time, and a ratio is
//! the median of the rounds' ratios: what else goes on on the machine meets all of them alike.
//! Processor time stands beside wall time for the same reason. Nothing here passes or fails by
//! time; a shortfall is a word in the table. Without `--bench` (as `cargo test --benches` runs it)
//! everything runs once, in miniature.

mod contest;
mod floor;
mod report;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncekey::{Claim, Durability, Fingerprint, Key};
use parking_lot::Mutex;

use contest::contestants::{Contestant, Oncekey, Volatile};
use contest::crew::{Crew, Lap};
use contest::keys::{KEY_BYTES, Keys, RESPONSE_BYTES, response, shuffled};
use contest::place::directory;
use floor::{BareSync, Floor, lifecycle_bytes};
use report::{Report, Series, Target};

type Section = fn(&Settings, &mut Report);

const SECTIONS: [(&str, Section); 6] = [
    // First, while no other section has left freed memory behind.
    ("memory", memory),
    ("lifecycle-buffered", lifecycle_buffered),
    ("replay", replay),
    ("latency", latency),
    ("pauses", pauses),
    ("lifecycle-sync", lifecycle_sync),
];

/// How much of everything.
struct Settings {
    rounds: usize,
    /// Divides the number of operations.
    divisor: usize,
    only: Option<String>,
}

impl Settings {
    fn from_arguments() -> Self {
        let mut settings = Self {
            rounds: 7,
            divisor: 1,
            only: None,
        };
        let mut is_bench = false;
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => is_bench = true,
                "--quick" => (settings.rounds, settings.divisor) = (5, 10),
                "--rounds" => {
                    let count = arguments.next().and_then(|count| count.parse().ok());
                    settings.rounds = count.filter(|count| *count > 0).unwrap_or_else(|| usage());
                }
                "--only" => {
                    let name = arguments.next().unwrap_or_else(|| usage());
                    if !SECTIONS.iter().any(|(known, _)| *known == name) {
                        usage()
                    }
                    settings.only = Some(name);
                }
                _ => usage(),
            }
        }
        if !is_bench {
            (settings.rounds, settings.divisor) = (1, 200);
        }
        settings
    }

    fn count(&self, full: usize) -> usize {
        (full / self.divisor).max(64)
    }
}

fn usage() -> ! {
    let names: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: ratios [--quick] [--rounds N] [--only NAME]");
    eprintln!("names: {}", names.join(", "));
    std::process::exit(2);
}

fn main() {
    let settings = Settings::from_arguments();
    let mut report = Report::begin(directory().path(), settings.rounds, "--bench ratios");
    for (name, section) in SECTIONS {
        if settings.only.as_ref().is_none_or(|only| only == name) {
            eprintln!("{name} …");
            section(&settings, &mut report);
        }
    }
    print!("{report}");
}

/// One contestant at one kind of work: a lap a round.
struct Entrant {
    series: Series,
    run: Box<dyn FnMut() -> Lap>,
}

impl Entrant {
    fn new(
        name: &'static str,
        threads: usize,
        operations: usize,
        run: impl FnMut() -> Lap + 'static,
    ) -> Self {
        Self {
            series: Series::new(name, threads, operations),
            run: Box::new(run),
        }
    }
}

/// Lets everybody run once a round, each round beginning with another one.
fn race(rounds: usize, mut entrants: Vec<Entrant>) -> Vec<Series> {
    let count = entrants.len();
    for round in 0..rounds {
        for turn in 0..count {
            let entrant = &mut entrants[(round + turn) % count];
            let lap = (entrant.run)();
            entrant.series.laps.push(lap);
        }
    }
    entrants.into_iter().map(|entrant| entrant.series).collect()
}

fn find<'a>(series: &'a [Series], name: &str, threads: usize) -> &'a Series {
    series
        .iter()
        .find(|series| series.name == name && series.threads == threads)
        .expect("it took part")
}

/// Lifecycles on `threads` threads, each round in a fresh store with all its room prepared.
fn lifecycle_entrant<C: Contestant>(
    keys: &Arc<Keys>,
    durability: Durability,
    threads: usize,
    each: usize,
) -> Entrant {
    let (keys, response) = (Arc::clone(keys), Arc::new(response()));
    let crew = Crew::start(threads);
    Entrant::new(C::NAME, threads, threads * each, move || {
        let directory = directory();
        let opened = C::open(directory.path(), durability, threads * each);
        let store = Arc::new(opened.expect("a store"));
        let (keys, response, running) =
            (Arc::clone(&keys), Arc::clone(&response), Arc::clone(&store));
        crew.run(move |thread| {
            for key in &C::keys(&keys)[thread * each..(thread + 1) * each] {
                running.lifecycle(key, &response);
            }
        })
    })
}

fn lifecycle_buffered(settings: &Settings, report: &mut Report) {
    let each = settings.count(150_000);
    let keys = Arc::new(Keys::new(2 * each));
    let mut entrants = Vec::new();
    for threads in [1, 2] {
        let level = Durability::Buffered;
        entrants.push(lifecycle_entrant::<Floor>(&keys, level, threads, each));
        entrants.push(lifecycle_entrant::<Volatile>(&keys, level, threads, each));
        entrants.push(lifecycle_entrant::<Oncekey>(&keys, level, threads, each));
    }
    let series = race(settings.rounds, entrants);
    let one = find(&series, "oncekey", 1);
    let two = find(&series, "oncekey", 2);
    let work = "claim+complete, `Buffered`, 1 thread";
    report.ratio(work, Target::AtLeast(0.85), one, find(&series, "floor", 1));
    report.ratio(work, Target::AtLeast(1.2), one, find(&series, "DashMap", 1));
    let work = "claim+complete, `Buffered`, 2 threads";
    report.ratio(work, Target::AtLeast(1.7), two, one);
    report.ratio(work, Target::Reported, two, find(&series, "floor", 2));
    report.ratio(work, Target::Reported, two, find(&series, "DashMap", 2));
    report.rates("claim+complete, `Buffered`", &series);
}

fn replay_entrant<C: Contestant>(keys: &Arc<Keys>, threads: usize, each: usize) -> Entrant {
    let keys = Arc::clone(keys);
    let crew = Crew::start(threads);
    let mut filled = None;
    let mut first = 0;
    Entrant::new(C::NAME, threads, threads * each, move || {
        let (store, _) = filled.get_or_insert_with(|| {
            let directory = directory();
            let opened = C::open(directory.path(), Durability::Buffered, keys.len());
            let store = opened.expect("a store");
            store.fill(C::keys(&keys), &response());
            (Arc::new(store), directory)
        });
        let (store, keys) = (Arc::clone(store), Arc::clone(&keys));
        let begin = first;
        first += threads * each;
        crew.run(move |thread| {
            let keys = C::keys(&keys);
            let mut read = 0;
            for step in (begin + thread..begin + threads * each).step_by(threads) {
                read ^= store.replay(&keys[shuffled(step, keys.len())]);
            }
            std::hint::black_box(read);
        })
    })
}

fn replay(settings: &Settings, report: &mut Report) {
    let each = settings.count(400_000);
    let keys = Arc::new(Keys::new(settings.count(100_000)));
    let mut entrants = Vec::new();
    for threads in [1, 2] {
        entrants.push(replay_entrant::<Floor>(&keys, threads, each));
        entrants.push(replay_entrant::<Volatile>(&keys, threads, each));
        entrants.push(replay_entrant::<Oncekey>(&keys, threads, each));
    }
    let series = race(settings.rounds, entrants);
    for (threads, floor) in [(1, Target::AtLeast(0.85)), (2, Target::Reported)] {
        let work = ["replay, 1 thread", "replay, 2 threads"][threads - 1];
        let own = find(&series, "oncekey", threads);
        report.ratio(work, floor, own, find(&series, "floor", threads));
        report.ratio(
            work,
            Target::Reported,
            own,
            find(&series, "DashMap", threads),
        );
    }
    report.rates("replay", &series);
}

/// Durable lifecycles; one store for all rounds, since a fresh one costs the disk its whole size.
fn durable_entrant<C: Contestant>(
    keys: &Arc<Keys>,
    threads: usize,
    each: usize,
    rounds: usize,
) -> Entrant {
    let (keys, response) = (Arc::clone(keys), Arc::new(response()));
    let crew = Crew::start(threads);
    let mut opened = None;
    let mut first = 0;
    Entrant::new(C::NAME, threads, threads * each, move || {
        let (store, _) = opened.get_or_insert_with(|| {
            let directory = directory();
            let count = threads * each * rounds;
            let store = C::open(directory.path(), Durability::Sync, count).expect("a store");
            (Arc::new(store), directory)
        });
        let (store, keys, response) = (Arc::clone(store), Arc::clone(&keys), Arc::clone(&response));
        let begin = first;
        first += threads * each;
        crew.run(move |thread| {
            let begin = begin + thread * each;
            for key in &C::keys(&keys)[begin..begin + each] {
                store.lifecycle(key, &response);
            }
        })
    })
}

fn bare_entrant(each: usize, rounds: usize) -> Entrant {
    let crew = Crew::start(1);
    let mut opened = None;
    Entrant::new("two fdatasync", 1, each, move || {
        let (bare, _) = opened.get_or_insert_with(|| {
            let directory = directory();
            let path = directory.path().join("bare.log");
            let bytes = each * rounds * lifecycle_bytes(KEY_BYTES, RESPONSE_BYTES);
            let bare = BareSync::create(&path, bytes as u64, KEY_BYTES, RESPONSE_BYTES);
            (Arc::new(Mutex::new(bare.expect("a file"))), directory)
        });
        let bare = Arc::clone(bare);
        crew.run(move |_| {
            let mut bare = bare.lock();
            for _ in 0..each {
                bare.lifecycle();
            }
        })
    })
}

fn lifecycle_sync(settings: &Settings, report: &mut Report) {
    const MANY: usize = 32;
    let rounds = settings.rounds;
    let (alone, each) = (settings.count(3_000), settings.count(16_000) / MANY);
    let count = (alone * rounds).max(MANY * each * rounds);
    let keys = Arc::new(Keys::new(count));
    let entrants = vec![
        bare_entrant(alone, rounds),
        durable_entrant::<Floor>(&keys, 1, alone, rounds),
        durable_entrant::<Oncekey>(&keys, 1, alone, rounds),
        durable_entrant::<Floor>(&keys, MANY, each, rounds),
        durable_entrant::<Oncekey>(&keys, MANY, each, rounds),
    ];
    let series = race(rounds, entrants);
    let work = "claim+complete, `Sync`, 1 thread";
    let own = find(&series, "oncekey", 1);
    let bare = find(&series, "two fdatasync", 1);
    report.ratio(work, Target::AtLeast(0.95), own, bare);
    report.ratio(work, Target::Reported, own, find(&series, "floor", 1));
    let work = "claim+complete, `Sync`, 32 threads";
    let own = find(&series, "oncekey", MANY);
    report.ratio(
        work,
        Target::AtLeast(0.85),
        own,
        find(&series, "floor", MANY),
    );
    report.rates("claim+complete, `Sync`", &series);
}

/// What each of `count` lifecycles took on one thread, in nanoseconds. With `every`, they are begun
/// at that pace, and late ones count from when they should have begun.
fn timed<C: Contestant>(
    crew: &Crew,
    store: Arc<C>,
    keys: &Arc<Keys>,
    count: usize,
    every: Option<Duration>,
) -> Vec<u64> {
    let taken = Arc::new(Mutex::new(vec![0_u64; count]));
    let (keys, response, filled) = (Arc::clone(keys), response(), Arc::clone(&taken));
    crew.run(move |_| {
        let mut taken = filled.lock();
        let begun = Instant::now();
        for (index, (key, taken)) in C::keys(&keys).iter().zip(taken.iter_mut()).enumerate() {
            let from = match every {
                Some(every) => {
                    let due = begun + every * u32::try_from(index).expect("few operations");
                    while Instant::now() < due {
                        std::hint::spin_loop();
                    }
                    due
                }
                None => Instant::now(),
            };
            store.lifecycle(key, &response);
            *taken = u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    });
    Arc::into_inner(taken)
        .map(Mutex::into_inner)
        .expect("the job is over")
}

fn latency(settings: &Settings, report: &mut Report) {
    fn round<C: Contestant>(crew: &Crew, keys: &Arc<Keys>, count: usize) -> Vec<u64> {
        let directory = directory();
        let store = C::open(directory.path(), Durability::Buffered, count).expect("a store");
        timed(crew, Arc::new(store), keys, count, None)
    }
    let count = settings.count(100_000);
    let keys = Arc::new(Keys::new(count));
    let crew = Crew::start(1);
    type Round = fn(&Crew, &Arc<Keys>, usize) -> Vec<u64>;
    let contestants: [(&str, Round); 3] = [
        (Floor::NAME, round::<Floor>),
        (Volatile::NAME, round::<Volatile>),
        (Oncekey::NAME, round::<Oncekey>),
    ];
    let mut rounds = contestants.map(|_| Vec::new());
    for turn in 0..settings.rounds * contestants.len() {
        // One further at the beginning of each round, so that everybody is first in turn.
        let index = (turn + turn / contestants.len()) % contestants.len();
        let (_, run) = contestants[index];
        rounds[index].push(run(&crew, &keys, count));
    }
    for ((name, _), rounds) in contestants.into_iter().zip(rounds) {
        let target = (name == Oncekey::NAME).then_some(Duration::from_micros(40));
        report.latency(
            "claim+complete, `Buffered`, in a burst",
            name,
            rounds,
            target,
        );
    }
}

/// Paced lifecycles over small segments: what a roll-over every quarter of a second does to them.
fn pauses(settings: &Settings, report: &mut Report) {
    const SEGMENT_BYTES: usize = 4 << 20;
    let every = Duration::from_micros(50);
    let count = settings.count(80_000);
    let keys = Arc::new(Keys::new(count));
    let crew = Crew::start(1);
    let work = "claim+complete, `Buffered`, 20 k/s, segments of 4 MiB";
    let (mut floor, mut own) = (Vec::new(), Vec::new());
    for _ in 0..settings.rounds.min(5) {
        let below = directory();
        let store = Floor::open(below.path(), Durability::Buffered, count).expect("a floor");
        floor.push(timed(&crew, Arc::new(store), &keys, count, Some(every)));
        let below = directory();
        let store = Oncekey::with_segments(below.path(), Durability::Buffered, SEGMENT_BYTES, 2);
        let store = Arc::new(store.expect("a store"));
        own.push(timed(&crew, store, &keys, count, Some(every)));
    }
    report.latency(work, Floor::NAME, floor, None);
    report.pauses(work, Oncekey::NAME, own, Duration::from_millis(5));
}

/// RAM a key, over a range in which every table grows several times.
fn memory(settings: &Settings, report: &mut Report) {
    let below = directory();
    let most = settings.count(1_000_000);
    let before = anonymous_bytes();
    // The response makes no difference, so there is none: the log stays small.
    let per_key = lifecycle_bytes(KEY_BYTES, 0);
    let prepared = (most * per_key).div_ceil(64 << 20).clamp(1, 8);
    let store = Oncekey::with_segments(below.path(), Durability::Buffered, 64 << 20, prepared);
    let store = store.expect("a store").store;
    // With fewer keys the fixed part of the tables is most of it.
    let least = (most / 32).max(most.min(32_768));
    let mut next = least;
    let mut worst = (0.0, 0);
    let mut last = 0.0;
    for index in 0..most {
        let id = format!("{index:020}");
        let key = Key::new("acct_00000000000000", "POST /v1/payments", id).expect("a key");
        match store.claim(&key, Fingerprint::none()) {
            Ok(Claim::Started(operation)) => {
                operation.complete_without_response().expect("it is held");
            }
            other => panic!("{other:?}"),
        }
        if index + 1 == next || index + 1 == most {
            let stats = store.stats();
            assert_eq!(stats.completed_keys, index as u64 + 1);
            last = stats.index_bytes as f64 / stats.completed_keys as f64;
            if last > worst.0 {
                worst = (last, index + 1);
            }
            next += next / 40;
        }
    }
    let held = anonymous_bytes().saturating_sub(before);
    report.memory(worst, (last, most), (least, most));
    report.line(format!(
        "Memory of the whole process that no file stands behind grew by {:.1} bytes a key at {} \
         keys (tables as above, stripes, segment table, what the allocator keeps).",
        held as f64 / most as f64,
        most
    ));
    drop(store);
    volatile_memory(settings.count(200_000), below.path(), report);
}

fn volatile_memory(count: usize, directory: &Path, report: &mut Report) {
    let before = anonymous_bytes();
    let store = Volatile::open(directory, Durability::Buffered, count).expect("a map");
    let keys = Keys::new(1_024);
    for begin in (0..count).step_by(keys.len()) {
        for (offset, key) in keys.bytes.iter().enumerate().take(count - begin) {
            let mut own = key.to_vec();
            own[..8].copy_from_slice(&((begin + offset) as u64).to_le_bytes());
            store.lifecycle(&own.into(), &[7; RESPONSE_BYTES]);
        }
    }
    let held = anonymous_bytes().saturating_sub(before);
    report.line(format!(
        "A DashMap with the same keys and responses of {RESPONSE_BYTES} bytes grew it by {:.0} \
         bytes a key at {count} keys.",
        held as f64 / count as f64,
    ));
}

/// Memory of this process that no file stands behind; 0 where the system does not tell.
fn anonymous_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    told.lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes * 1_024)
}
