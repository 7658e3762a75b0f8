//! Histories across kills: a child works with several threads, is killed at any moment, and the next
//! child goes on with the same store. One history spans several kills, and opens that were killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oncekey::Options;

use crate::history::{End, Record};
use crate::journal::{InFile, decoded};
use crate::recorded::{Totals, durability, first_seed, histories, keys};
use crate::support::Random;
use crate::support::journal::Journal;
use crate::support::killed::{Kept, Orders, any_moment};
use crate::worker::{Queue, Time, Worker, maintain_more};

const THREADS: u64 = 3;
const KILLS: u64 = 5;
/// First word of a record that is not of a history: what maintenance did in a life.
const MAINTAINED: u64 = 3;

/// The child: opens, works, closes, and begins anew until it is killed.
#[test]
fn child() {
    let Some(orders) = Orders::received() else {
        return;
    };
    let (keys, sync) = (keys(), is_sync(orders.seed));
    let journal = Journal::open(&orders.journal());
    for life in 0.. {
        let store = Options::new()
            .durability(durability(sync))
            .segment_size(64 << 10)
            .lock_wait(Duration::from_secs(10))
            .open(orders.store())
            .expect("opens without help");
        let (time, queue) = (Time::System(Instant::now()), Queue::default());
        let (done, ended) = (AtomicBool::new(false), orders.round * 100 + life);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            scope.spawn(|| {
                maintain_more(&store, &time, ended, &done, |report| {
                    // At once: a life that is killed tells nothing in the end.
                    journal.append([
                        MAINTAINED,
                        report.segments_removed,
                        report.records_copied,
                        report.keys_refreshed,
                        0,
                        0,
                        0,
                        0,
                    ]);
                });
            });
            for thread in 0..THREADS {
                let (store, keys, queue, journal) = (&store, &keys, &queue, &journal);
                let time = time.clone();
                workers.push(scope.spawn(move || {
                    let number = (orders.round * 100 + life) * 8 + thread;
                    let mut worker = Worker {
                        store,
                        keys,
                        queue,
                        time,
                        sync,
                        random: Random::new(orders.seed * 7_919 + number),
                        recorder: InFile(journal),
                        next_id: (number + 1) << 32,
                    };
                    worker.run(120, || false, || ());
                }));
            }
            // A close amid the work, now and then.
            if (orders.round + life) % 3 == 1 {
                thread::sleep(Duration::from_millis(1));
                store.close().expect("closes");
            }
            for worker in workers {
                worker.join().expect("a worker");
            }
            done.store(true, Ordering::Relaxed);
        });
        store.close().expect("closes");
        drop(store);
        journal.append([0; 8]);
    }
}

fn is_sync(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

#[test]
fn children_that_are_killed_leave_one_order() {
    let mut totals = Totals::default();
    let mut kills = 0;
    for seed in first_seed()..first_seed() + histories() {
        let kept = Kept::new(format!("seed {seed}"));
        let mut random = Random::new(seed);
        let mut records = Vec::new();
        let mut known = 0;
        for round in 0..KILLS {
            let orders = Orders {
                directory: kept.path().to_path_buf(),
                seed,
                round,
            };
            orders.kill_child("from_killed_child::child", any_moment(&mut random, 500));
            kills += 1;
            let written = Journal::read(&orders.journal());
            for words in &written[known..] {
                match words {
                    // Closed properly: the child says so itself.
                    [0, ..] => records.push(Record::Ended(End::Process)),
                    [MAINTAINED, given_up, copied, refreshed, ..] => {
                        totals.add_maintained([*given_up, *copied, *refreshed]);
                    }
                    words => records.push(decoded(words)),
                }
            }
            known = written.len();
            records.push(Record::Ended(End::Process));
        }
        let placed = (0..).zip(records).collect();
        drop(totals.check(&format!("seed {seed}"), placed));
    }
    // How far maintenance gets before a kill is up to the machine: told, and asserted elsewhere.
    println!("{kills} kills: {totals}");
}
