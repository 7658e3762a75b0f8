//! What the histories from this process share: a recorder in memory, threads at work on one store,
//! and the check of all keys with its figures.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use oncekey::{Durability, Key, Store};

use crate::checker::check;
use crate::history::{End, KeyHistory, Record, by_key};
use crate::support::{Random, key};
use crate::worker::{Queue, Recorder, Time, Worker, maintain_more};

/// Keys of one history: few, so that threads meet.
pub const KEYS: u8 = 3;

pub fn keys() -> Vec<Key> {
    (0..KEYS)
        .map(|number| key(&format!("key-{number}")))
        .collect()
}

/// How many histories of each kind are made.
pub fn histories() -> u64 {
    let set = std::env::var("ONCEKEY_HISTORIES").ok();
    set.map_or(24, |set| set.parse().expect("a number of histories"))
}

/// The seed of the first history.
pub fn first_seed() -> u64 {
    let set = std::env::var("ONCEKEY_HISTORY_SEED").ok();
    set.map_or(1, |set| set.parse().expect("a seed"))
}

pub fn durability(sync: bool) -> Durability {
    if sync {
        Durability::Sync
    } else {
        Durability::Buffered
    }
}

/// The total order of all records of one history.
#[derive(Default)]
pub struct Order(AtomicU64);

impl Order {
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    /// The place that comes next.
    pub fn reached(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Records of one thread, each with its place.
pub struct InMemory<'a> {
    pub order: &'a Order,
    pub records: Vec<(u64, Record)>,
}

impl Recorder for InMemory<'_> {
    fn record(&mut self, record: Record) {
        self.records.push((self.order.next(), record));
    }
}

/// One store from its open to its end, under so many threads.
pub struct Round<'a> {
    pub store: &'a Store,
    pub order: &'a Order,
    pub queue: &'a Queue,
    pub time: &'a Time,
    pub sync: bool,
    pub seed: u64,
    /// Unique in the history.
    pub number: u64,
    pub threads: u64,
    pub steps: usize,
}

/// How far the threads of a round are.
pub struct Progress<'a> {
    order: &'a Order,
    working: AtomicU64,
    stop: AtomicBool,
    /// What was to be done meanwhile is done.
    over: AtomicBool,
}

impl Progress<'_> {
    /// Waits until this many more records were made, or no thread is at work any more.
    pub fn wait_for(&self, records: u64) {
        let until = self.order.reached() + records;
        while self.order.reached() < until && self.working.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// No more calls are begun.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A thread makes no call until the meanwhile is over: an image sees what was under way then.
    fn idle(&self) {
        self.working.fetch_sub(1, Ordering::SeqCst);
        while !self.over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Round<'_> {
    /// Lets the threads work while `meanwhile` runs; what they wrote down, in no order.
    pub fn run(&self, meanwhile: impl FnOnce(&Progress<'_>)) -> Vec<(u64, Record)> {
        let keys = keys();
        let progress = Progress {
            order: self.order,
            working: AtomicU64::new(self.threads),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| maintain_more(self.store, self.time, self.number, &done, |_| ()));
            // Who waits for a lease or a timeout moves no clock, so somebody else must.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    self.time.tick();
                    thread::sleep(Duration::from_micros(300));
                }
            });
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (keys, progress) = (&keys, &progress);
                    scope.spawn(move || {
                        let mut worker = Worker {
                            store: self.store,
                            keys,
                            queue: self.queue,
                            time: self.time.clone(),
                            sync: self.sync,
                            random: Random::new(self.seed * 64 + self.number * 8 + thread + 1),
                            recorder: InMemory {
                                order: self.order,
                                records: Vec::new(),
                            },
                            next_id: (self.number << 40) + (thread << 32),
                        };
                        worker.run(self.steps, || progress.is_stopped(), || progress.idle());
                        worker.recorder.records
                    })
                })
                .collect();
            meanwhile(&progress);
            progress.over.store(true, Ordering::SeqCst);
            let joined = threads.into_iter().map(|thread| thread.join());
            let joined: Vec<_> = joined.collect();
            done.store(true, Ordering::Relaxed);
            let records = joined.into_iter();
            records
                .flat_map(|records| records.expect("a worker"))
                .collect()
        })
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub histories: u64,
    pub operations: usize,
    /// Calls that were under way when the process or the power went.
    pub in_flight: usize,
    pub ends: usize,
    pub configurations: usize,
    pub segments_given_up: u64,
    pub records_copied: u64,
    pub keys_refreshed: u64,
}

impl Totals {
    /// Counts what maintenance did for a store that nobody uses any more.
    pub fn maintained(&mut self, store: &Store) {
        let done = store.stats().maintenance.done;
        self.add_maintained([
            done.segments_removed,
            done.records_copied,
            done.keys_refreshed,
        ]);
    }

    /// The same as numbers.
    pub fn add_maintained(&mut self, [given_up, copied, refreshed]: [u64; 3]) {
        self.segments_given_up += given_up;
        self.records_copied += copied;
        self.keys_refreshed += refreshed;
    }

    /// Else nobody met maintenance.
    #[track_caller]
    pub fn assert_maintained(&self) {
        let moved = self.records_copied + self.keys_refreshed;
        assert!(self.segments_given_up > 0 && moved > 0, "{self:?}");
    }

    /// Checks every key of a history, and counts it.
    pub fn check(&mut self, what: &str, mut placed: Vec<(u64, Record)>) -> Vec<KeyHistory> {
        placed.sort_by_key(|(place, _)| *place);
        let records: Vec<Record> = placed.into_iter().map(|(_, record)| record).collect();
        self.histories += 1;
        let is_end = |record: &&Record| matches!(record, Record::Ended(_));
        self.ends += records.iter().filter(is_end).count();
        let split = by_key(&records, KEYS);
        for (key, history) in split.iter().enumerate() {
            match check(history) {
                Ok(effort) => {
                    self.operations += effort.operations;
                    self.configurations = self.configurations.max(effort.configurations);
                    let open = history.operations.iter().filter(|one| one.answer.is_none());
                    self.in_flight += open.count();
                }
                Err(violation) => panic!("{what}, key {key}: {violation}"),
            }
        }
        split
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} histories, {} operations, {} ends of a process or of power, {} calls in flight at \
             them, at most {} configurations; {} segments given up, {} records copied, {} keys written \
             again",
            self.histories,
            self.operations,
            self.ends,
            self.in_flight,
            self.configurations,
            self.segments_given_up,
            self.records_copied,
            self.keys_refreshed,
        )
    }
}

/// The end of a store as a record, at the next place.
pub fn ended(order: &Order, end: End) -> (u64, Record) {
    (order.next(), Record::Ended(end))
}
