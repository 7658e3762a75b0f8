//! Maintenance under all of it: the power goes at each operation of a pass that retires segments,
//! compacts them or writes keys again, and once more at each operation of the recovery, of the pass
//! that follows, and of the close. Nothing that was removed, released or has expired comes back by
//! a copy, whatever the order was in which it happened.

use oncekey::testing::SimulatedDisk;

use crate::explore::{Counts, Effort, Explorer};
use crate::script::{
    Buffered, Script, Step, Sync, claim, complete, complete_at, random_step, script, short_lived,
};
use crate::support::Random;
use crate::workloads::seeds;

use Step::*;

/// Results that fill a segment and expire after a second, under these keys.
const FILLERS: std::ops::Range<u8> = 10..15;

/// Fills a segment, and lets the time of that pass.
fn fill() -> Vec<Step> {
    let one = |key| [short_lived(key, 1), complete(key, 15_000)];
    let filled = FILLERS.flat_map(one);
    filled.chain([Advance { ms: 1_500 }]).collect()
}

fn forget(key: u8) -> Step {
    let force = false;
    Forget { key, force }
}

fn look_at_all() -> impl Iterator<Item = Step> {
    (0..7).map(|key| Look { key })
}

/// Removals of every kind, between passes, crashes and opens.
fn scripts() -> Vec<Script> {
    let begin = [
        short_lived(0, 100),
        complete(0, 300),
        claim(1, Sync),
        Checkpoint { key: 1, len: 40 },
        claim(2, Sync),
        complete(2, 200),
        claim(3, Sync),
        Drop { key: 3 },
        short_lived(4, 3),
        complete(4, 100),
        short_lived(5, 4),
        complete_at(5, 100, Buffered),
        claim(6, Buffered),
    ];
    let pass = || fill().into_iter().chain([Maintain]).chain(look_at_all());
    let removed = [
        forget(2),
        complete(1, 20),
        claim(3, Sync),
        Release { key: 3 },
        Release { key: 6 },
        claim(5, Buffered),
    ];
    let used_again = [
        claim(2, Sync),
        Release { key: 2 },
        claim(3, Sync),
        complete(3, 10),
        forget(3),
        claim(4, Buffered),
        complete(4, 30),
        forget(1),
    ];
    let crashed = |how| [how, Maintain].into_iter().chain(look_at_all());
    let power = || LosePower { seed: 7 };
    vec![
        script(
            "removed between two passes",
            Sync,
            begin
                .into_iter()
                .chain(pass())
                .chain(removed)
                .chain(pass())
                .chain(used_again)
                .chain(pass())
                .collect(),
        ),
        script(
            "removed, and crashed before the pass",
            Sync,
            begin
                .into_iter()
                .chain(pass())
                .chain(removed)
                .chain(crashed(power()))
                .chain(fill())
                .chain(crashed(Kill))
                .chain(used_again)
                .chain(fill())
                .chain(crashed(Reopen))
                .collect(),
        ),
        script(
            "buffered, with keys that change hands",
            Buffered,
            begin
                .into_iter()
                .chain([claim(0, Buffered), Drop { key: 6 }, claim(6, Buffered)])
                .chain(pass())
                .chain(removed)
                .chain([WriteBack { seed: 5 }])
                .chain(pass())
                .chain(crashed(power()))
                .chain(used_again)
                .chain(pass())
                .collect(),
        ),
    ]
}

fn effort(restless: Option<u64>) -> Effort {
    let all = seeds().is_some();
    Effort {
        all_up_to: if all { 6 } else { 3 },
        randoms: if all { 8 } else { 2 },
        again_every: if all { 4 } else { 40 },
        work_every: if all { 10 } else { 40 },
        salvage: false,
        restless,
        maintain: true,
    }
}

/// Else the run has shown nothing.
#[track_caller]
fn assert_maintained(counts: &Counts) {
    assert!(counts.segments_given_up > 0, "{counts:?}");
    assert!(counts.records_copied > 0, "{counts:?}");
    assert!(counts.keys_refreshed > 0, "{counts:?}");
    assert!(counts.during_recovery > 0, "{counts:?}");
}

#[test]
fn a_pass_is_cut_off_at_each_operation_and_so_is_what_follows() {
    let mut counts = Counts::default();
    for granule in [512, 4_096] {
        for (number, script) in scripts().into_iter().enumerate() {
            let mut explorer = Explorer::new(effort(None), number as u64);
            let disk = SimulatedDisk::with_granule(granule);
            explorer.run_and_crash_in(&script, disk, |step| matches!(step, Maintain));
            println!("{granule}, {}: {:?}", script.name, explorer.counts);
            assert_maintained(&explorer.counts);
            counts += explorer.counts;
        }
    }
    println!("maintenance: {counts:?}");
}

/// A long workload over a few keys that fills segments, and passes between its steps.
fn random(seed: u64, count: usize) -> Script {
    let mut random = Random::new(seed);
    let level = if random.below(3) == 0 { Buffered } else { Sync };
    let step = |_| match random.below(20) {
        0 | 1 => Maintain,
        2..6 => complete(random.below(6) as u8, 9_000 + random.below(6_000)),
        6 | 7 => Advance {
            ms: random.below(6_000) as u64,
        },
        _ => random_step(&mut random),
    };
    let steps = (0..count).map(step).collect();
    script("random, maintained", level, steps)
}

#[test]
fn random_workloads_with_passes_between_are_never_complained_about() {
    let mut counts = Counts::default();
    for seed in 0..seeds().unwrap_or(6) {
        let disk = SimulatedDisk::with_granule(if seed % 2 == 0 { 512 } else { 4_096 });
        let effort = Effort {
            all_up_to: 1,
            randoms: 1,
            again_every: 100,
            work_every: 60,
            ..effort(Some(seed))
        };
        let mut explorer = Explorer::new(effort, seed);
        println!("seed {seed}");
        explorer.run(&random(seed, 160), disk);
        println!("{:?}", explorer.counts);
        counts += explorer.counts;
    }
    assert_maintained(&counts);
    println!("random, maintained: {counts:?}");
}
