//! The workloads, short ones at every moment and long ones at random.

use oncekey::testing::SimulatedDisk;

use crate::explore::{Counts, Effort, Explorer};
use crate::script::{self, Script};

/// How many random workloads to run, if that was said.
pub fn seeds() -> Option<u64> {
    let seeds = std::env::var("ONCEKEY_CRASH_SEEDS").ok()?;
    Some(seeds.parse().expect("ONCEKEY_CRASH_SEEDS is a number"))
}

fn effort() -> Effort {
    let all = seeds().is_some();
    Effort {
        all_up_to: if all { 8 } else { 4 },
        randoms: if all { 12 } else { 3 },
        again_every: if all { 20 } else { 90 },
        work_every: if all { 10 } else { 30 },
        salvage: false,
        restless: None,
        maintain: false,
    }
}

fn at_every_moment(granule: usize, scripts: impl IntoIterator<Item = Script>) {
    let mut counts = Counts::default();
    for (number, script) in scripts.into_iter().enumerate() {
        let mut explorer = Explorer::new(effort(), number as u64);
        let begun = std::time::Instant::now();
        explorer.run(&script, SimulatedDisk::with_granule(granule));
        println!(
            "{:?} {}: {:?}",
            begun.elapsed(),
            script.name,
            explorer.counts
        );
        counts += explorer.counts;
    }
    println!("granule {granule}: {counts:?}");
}

#[test]
fn whatever_survives_of_whole_pages_at_any_moment_the_oracle_has_no_complaint() {
    at_every_moment(4_096, script::short());
}

#[test]
fn whatever_survives_of_torn_pages_at_any_moment_the_oracle_has_no_complaint() {
    at_every_moment(512, script::short());
}

#[test]
fn random_workloads_on_a_restless_disk_are_never_complained_about() {
    let (seeds, steps) = (seeds().unwrap_or(6), 120);
    let mut counts = Counts::default();
    for seed in 0..seeds {
        let disk = SimulatedDisk::with_granule(if seed % 2 == 0 { 512 } else { 4_096 });
        let effort = Effort {
            all_up_to: 1,
            randoms: 1,
            again_every: 200,
            work_every: 60,
            salvage: false,
            restless: Some(seed),
            maintain: false,
        };
        let mut explorer = Explorer::new(effort, seed);
        println!("seed {seed}");
        explorer.run(&script::random(seed, steps), disk);
        counts += explorer.counts;
    }
    println!("{seeds} random workloads: {counts:?}");
}

#[test]
fn a_salvage_of_what_lost_power_alone_has_nothing_to_salvage() {
    let effort = Effort {
        all_up_to: 2,
        randoms: 1,
        again_every: 40,
        work_every: u64::MAX,
        salvage: true,
        restless: None,
        maintain: false,
    };
    let mut counts = Counts::default();
    for script in script::short().into_iter().take(4) {
        let mut explorer = Explorer::new(effort, 7);
        explorer.run(&script, SimulatedDisk::with_granule(512));
        counts += explorer.counts;
    }
    println!("with salvage: {counts:?}");
}
