//! Histories across losses of power: threads work on a simulated disk, an image of it is taken in
//! the middle, and the store that is opened on the image goes on.
//!
//! Synced calls that had returned must be there. Of buffered ones the newest may be gone, and a key
//! may go back to any of its records since it was last synced, but to no other state.

use std::sync::Arc;

use oncekey::testing::SimulatedDisk;
use oncekey::{ManualClock, Options};

use crate::history::{End, Record, cut_by_power_loss};
use crate::recorded::{Order, Round, Totals, durability, ended, first_seed, histories};
use crate::support::{Random, START_MS};
use crate::worker::{Queue, Time};

fn recorded(sync: bool, seed: u64, totals: &mut Totals) {
    let clock = ManualClock::new(START_MS);
    let options = Options::new()
        .durability(durability(sync))
        .segment_size(64 << 10)
        .stripes(2)
        .clock(Arc::new(clock.clone()));
    let time = Time::Manual(clock);
    let (order, mut random) = (Order::default(), Random::new(seed));
    let mut disk = SimulatedDisk::with_granule([512, 4_096][random.below(2)]);
    let mut records = Vec::new();
    for number in 0..5 {
        // Tickets of a universe that is gone are of no use to anybody.
        let queue = Queue::default();
        let store = options.open_simulated(&disk).expect("opens without help");
        let round = Round {
            store: &store,
            order: &order,
            queue: &queue,
            time: &time,
            sync,
            seed,
            number,
            threads: 2 + (seed + number) % 3,
            steps: 70,
        };
        let records_before = random.below(240) as u64;
        let how = random.below(6);
        let mut image = None;
        let mut told = round.run(|progress| {
            progress.wait_for(records_before);
            // No new calls, so that few are under way, and the image is taken amid those.
            progress.stop();
            let from = order.next();
            let taken = match how {
                0 => (disk.crash_none_lost(), End::Process),
                1 => (disk.crash_all_lost(), End::Power),
                _ => (disk.crash_random(seed * 31 + number), End::Power),
            };
            let to = order.next();
            image = Some((taken, from, to));
        });
        totals.maintained(&store);
        drop(store);
        let ((taken, end), from, to) = image.expect("taken");
        cut_by_power_loss(&mut told, from, to);
        records.extend(told);
        if end == End::Process {
            // A kill loses nothing that was acknowledged, whatever its level.
            if let Some((_, last)) = records.last_mut() {
                *last = Record::Ended(End::Process);
            }
        }
        disk = taken;
    }
    records.push(ended(&order, End::Process));
    totals.check(&format!("sync {sync}, seed {seed}"), records);
}

fn all(sync: bool) {
    let mut totals = Totals::default();
    for seed in first_seed()..first_seed() + histories() {
        recorded(sync, seed, &mut totals);
    }
    totals.assert_maintained();
    println!("{:?}: {totals}", durability(sync));
}

#[test]
fn a_buffered_store_goes_back_to_nothing_but_its_own_past() {
    all(false);
}

#[test]
fn a_synced_store_loses_nothing_that_it_acknowledged() {
    all(true);
}
