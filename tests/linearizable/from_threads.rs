//! Histories of threads of this process on real files, with a clock that they move on themselves,
//! and a store that is closed under them and opened again.

use std::sync::Arc;

use oncekey::{Durability, ManualClock, Options};

use crate::history::{End, KeyHistory};
use crate::recorded::{Order, Round, Totals, durability, ended, first_seed, histories};
use crate::support::{START_MS, directory};
use crate::worker::{Queue, Time};

/// The smallest stores, which roll over all the time, and one as it is by default.
fn options(sync: bool, seed: u64) -> Options {
    let options = Options::new().durability(durability(sync));
    match seed % 4 {
        0 => options,
        _ => options.segment_size(64 << 10).stripes(1),
    }
}

/// One history: some rounds on one directory.
pub fn recorded(sync: bool, seed: u64, totals: &mut Totals) -> Vec<KeyHistory> {
    let clock = ManualClock::new(START_MS);
    let options = options(sync, seed).clock(Arc::new(clock.clone()));
    let time = Time::Manual(clock);
    let (directory, order, queue) = (directory(), Order::default(), Queue::default());
    let mut records = Vec::new();
    for number in 0..4 {
        let store = options.open(directory.path()).expect("opens");
        let round = Round {
            store: &store,
            order: &order,
            queue: &queue,
            time: &time,
            sync,
            seed,
            number,
            threads: 2 + (seed + number) % 4,
            steps: if sync { 60 } else { 160 },
        };
        records.extend(round.run(|progress| {
            // Half of the rounds are closed amid the work.
            if number % 2 == 1 {
                progress.wait_for(20 + seed % 64);
                store.close().expect("closes");
            }
        }));
        totals.maintained(&store);
        store.close().expect("closes");
        records.push(ended(&order, End::Process));
    }
    totals.check(&format!("sync {sync}, seed {seed}"), records)
}

fn all(sync: bool) {
    let mut totals = Totals::default();
    for seed in first_seed()..first_seed() + histories() {
        drop(recorded(sync, seed, &mut totals));
    }
    totals.assert_maintained();
    println!("{:?}: {totals}", durability(sync));
}

#[test]
fn threads_on_a_buffered_store_see_one_order_across_closes() {
    assert_eq!(durability(false), Durability::Buffered);
    all(false);
}

#[test]
fn threads_on_a_synced_store_see_one_order_across_closes() {
    all(true);
}
