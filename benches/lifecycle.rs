//! Every step of an operation, at every level and number of threads, beside what it is measured
//! against: the bare floor (see `floor/mod.rs`) and, where nothing has to survive, a `DashMap`.
//!
//! ```text
//! cargo bench --bench lifecycle                       # all of it
//! cargo bench --bench lifecycle -- replay/buffered    # one group
//! cargo bench --bench lifecycle -- --quick            # a first look
//! ```
//!
//! The time of an operation is that of the whole crew divided by all operations, so its inverse is
//! the throughput. Threads are started, keys made and segments prepared before the clock starts.
//! For ratios of one run, interleaved, see `ratios.rs`.

mod contest;
mod floor;

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use oncekey::Durability;
use parking_lot::Mutex;
use tempfile::TempDir;

use contest::contestants::{Contestant, Oncekey, Volatile};
use contest::crew::{Crew, Lap};
use contest::host::Host;
use contest::keys::{KEY_BYTES, Keys, RESPONSE_BYTES, response, shuffled};
use contest::place::directory;
use floor::{BareSync, Floor, lifecycle_bytes};

const THREADS: [usize; 3] = [1, 2, 32];
/// Lifecycles after which a store is replaced: 113 MB of log.
const CAPACITY: usize = 131_072;
/// Most lifecycles at one go.
const LAP: usize = 65_536;
/// Most guards held at once.
const HELD: usize = 16_384;
/// Completed keys to look up: 57 MB of log.
const COMPLETED: usize = 65_536;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Claim,
    Complete,
    Replay,
    Lifecycle,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Complete => "complete",
            Self::Replay => "replay",
            Self::Lifecycle => "lifecycle",
        }
    }
}

/// One contestant at one kind of work.
struct Entrant<C: Contestant> {
    work: Work,
    durability: Durability,
    crew: Crew,
    keys: Arc<Keys>,
    response: Arc<Vec<u8>>,
    host: Host<C>,
    filled: Option<(Arc<C>, TempDir)>,
    looked_up: usize,
}

impl<C: Contestant> Entrant<C> {
    fn new(work: Work, durability: Durability, threads: usize, keys: &Arc<Keys>) -> Self {
        Self {
            work,
            durability,
            crew: Crew::start(threads),
            keys: Arc::clone(keys),
            response: Arc::new(response()),
            host: Host::new(durability, CAPACITY),
            filled: None,
            looked_up: 0,
        }
    }

    fn run(&mut self, iterations: u64) -> Duration {
        let mut left = usize::try_from(iterations).expect("a number of iterations");
        if self.work == Work::Replay {
            return self.replay(left).wall;
        }
        let most = match self.work {
            Work::Claim | Work::Complete => HELD,
            Work::Replay | Work::Lifecycle => LAP,
        };
        let mut total = Lap::default();
        while left > 0 {
            let count = left.min(most);
            left -= count;
            total += match self.work {
                Work::Lifecycle => self.lifecycle(count),
                _ => self.steps(count),
            };
        }
        total.wall
    }

    fn lifecycle(&mut self, count: usize) -> Lap {
        let threads = self.crew.len();
        let (store, range) = self.host.room(count);
        let (keys, response) = (Arc::clone(&self.keys), Arc::clone(&self.response));
        self.crew.run(move |thread| {
            for key in share(&C::keys(&keys)[range.clone()], thread, threads) {
                store.lifecycle(key, &response);
            }
        })
    }

    /// Claims, then completes; the clock is that of one of the two.
    fn steps(&mut self, count: usize) -> Lap {
        let threads = self.crew.len();
        let (store, range) = self.host.room(count);
        let guards: Arc<Vec<_>> = Arc::new(
            (0..threads)
                .map(|_| Mutex::new(Vec::with_capacity(count.div_ceil(threads))))
                .collect(),
        );
        let claim = {
            let (store, keys, guards) = (
                Arc::clone(&store),
                Arc::clone(&self.keys),
                Arc::clone(&guards),
            );
            self.crew.run(move |thread| {
                let mut guards = guards[thread].lock();
                for key in share(&C::keys(&keys)[range.clone()], thread, threads) {
                    guards.push(store.claim(key));
                }
            })
        };
        let response = Arc::clone(&self.response);
        let complete = self.crew.run(move |thread| {
            for guard in guards[thread].lock().drain(..) {
                store.complete(guard, &response);
            }
        });
        match self.work {
            Work::Claim => claim,
            _ => complete,
        }
    }

    fn replay(&mut self, count: usize) -> Lap {
        let (store, _) = self.filled.get_or_insert_with(|| {
            let directory = directory();
            let store = C::open(directory.path(), self.durability, COMPLETED).expect("a store");
            store.fill(&C::keys(&self.keys)[..COMPLETED], &self.response);
            (Arc::new(store), directory)
        });
        let (store, keys) = (Arc::clone(store), Arc::clone(&self.keys));
        let threads = self.crew.len();
        let first = self.looked_up;
        self.looked_up += count;
        self.crew.run(move |thread| {
            let keys = C::keys(&keys);
            let mut read = 0;
            for step in (first + thread..first + count).step_by(threads) {
                read ^= store.replay(&keys[shuffled(step, COMPLETED)]);
            }
            std::hint::black_box(read);
        })
    }
}

/// The part of a slice that is one thread's.
fn share<T>(all: &[T], thread: usize, threads: usize) -> &[T] {
    let begin = all.len() * thread / threads;
    let end = all.len() * (thread + 1) / threads;
    &all[begin..end]
}

fn enter<C: Contestant>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    (work, durability, threads): (Work, Durability, usize),
    keys: &Arc<Keys>,
) {
    let mut entrant = None;
    group.bench_function(BenchmarkId::new(C::NAME, threads), |bencher| {
        // Made only where the filter on the command line lets it run.
        let entrant =
            entrant.get_or_insert_with(|| Entrant::<C>::new(work, durability, threads, keys));
        bencher.iter_custom(|iterations| entrant.run(iterations));
    });
}

/// The least that a durable lifecycle of one thread can cost.
fn enter_bare(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.bench_function(BenchmarkId::new("two fdatasync", 1), |bencher| {
        bencher.iter_custom(|iterations| {
            let directory = directory();
            let path = directory.path().join("bare.log");
            let bytes = iterations * lifecycle_bytes(KEY_BYTES, RESPONSE_BYTES) as u64;
            let mut bare =
                BareSync::create(&path, bytes, KEY_BYTES, RESPONSE_BYTES).expect("a file");
            let begun = Instant::now();
            for _ in 0..iterations {
                bare.lifecycle();
            }
            begun.elapsed()
        });
    });
}

fn contest(criterion: &mut Criterion) {
    let keys = Arc::new(Keys::new(CAPACITY));
    for work in [Work::Claim, Work::Complete, Work::Replay, Work::Lifecycle] {
        for durability in [Durability::Buffered, Durability::Sync] {
            let level = match durability {
                Durability::Buffered => "buffered",
                Durability::Sync => "sync",
            };
            let mut group = criterion.benchmark_group(format!("{}/{level}", work.name()));
            group.throughput(Throughput::Elements(1));
            group.sampling_mode(SamplingMode::Flat);
            for threads in THREADS {
                let round = (work, durability, threads);
                enter::<Floor>(&mut group, round, &keys);
                if durability == Durability::Buffered {
                    enter::<Volatile>(&mut group, round, &keys);
                }
                enter::<Oncekey>(&mut group, round, &keys);
            }
            if work == Work::Lifecycle && durability == Durability::Sync {
                enter_bare(&mut group);
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = contest
}
criterion_main!(benches);
