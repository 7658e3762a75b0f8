//! Calls, crashes and faults as the input says, on a simulated disk; the oracle of `lost_power` keeps
//! the books and compares every answer.
//!
//! Four bytes say how the store is opened and whether the disk fails; then every step has 4 bytes.

use std::sync::LazyLock;

use oncekey::Durability;
use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk, internals};

use crate::model::Crash;
use crate::script::{Script, Step};
use crate::support::START_MS;
use crate::world::World;

pub const HEAD_BYTES: usize = 4;
pub const STEP_BYTES: usize = 4;
const STEPS_MAX: usize = 48;
const KEYS: u8 = 5;

/// Bits of the first byte.
pub const BUFFERED: u8 = 1;
pub const SMALL_PAGES: u8 = 2;
pub const RESTLESS: u8 = 4;
pub const FAULTY: u8 = 8;

/// A store that was made and has never been opened.
static FRESH: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let disk = SimulatedDisk::new();
    internals::identify(&disk, START_MS);
    disk.contents("META").expect("META")
});

/// Whether at least one step was taken on an open store to the end.
pub fn run(input: &[u8]) -> bool {
    let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else {
        return false;
    };
    let steps: Vec<Step> = rest
        .chunks_exact(STEP_BYTES)
        .take(STEPS_MAX)
        .map(|bytes| step(bytes[0], bytes[1], bytes[2], bytes[3]))
        .collect();
    let faulty = head[0] & FAULTY != 0;
    let stays = |step: &Step| !faulty || !matches!(step, Step::Kill | Step::LosePower { .. });
    let script = Script {
        name: "fuzzed",
        level: level(head[0] & BUFFERED),
        prepared: 1,
        steps: steps.into_iter().filter(stays).collect(),
    };
    let disk = SimulatedDisk::with_granule(if head[0] & SMALL_PAGES != 0 {
        512
    } else {
        4_096
    });
    disk.put("META", &FRESH);
    let mut world = World::new(&script, disk.clone());
    if head[0] & RESTLESS != 0 {
        world.restless(u64::from(head[3]));
    }
    if faulty {
        world.faulty = true;
        disk.fail(plan(head[1]).after(u64::from(head[2])));
    }
    world.run(&script);
    let worked = world.store.is_some() && !script.steps.is_empty();

    // Whatever survives, chosen by the bits of the input; then the whole disk as it is.
    let disk = world.disk.clone();
    let mut bit = 0;
    let survivors = disk.crash(&mut |_| {
        bit += 1;
        let byte = input[bit / 8 % input.len()];
        byte >> (bit % 8) & 1 == 1
    });
    disk.heal();
    let model = world.model.clone();
    opens(&script, survivors, model.clone(), Crash::Power, &world);
    opens(
        &script,
        disk.crash_all_lost(),
        model.clone(),
        Crash::Power,
        &world,
    );
    world.close();
    let model = world.model.clone();
    opens(&script, disk.crash_none_lost(), model, Crash::Kill, &world);
    worked
}

fn opens(
    script: &Script,
    disk: SimulatedDisk,
    model: crate::model::Model,
    crash: Crash,
    world: &World,
) {
    let mut next = World::later(script, disk, model, oncekey::Clock::wall_ms(&world.clock));
    next.open(crash);
    assert!(next.store.is_some());
}

fn level(buffered: u8) -> Durability {
    if buffered == 0 {
        Durability::Sync
    } else {
        Durability::Buffered
    }
}

fn plan(way: u8) -> FaultPlan {
    let write = |bytes| FaultPlan::new(OperationKind::Write, Fault::InputOutput).short(bytes);
    let sync = || FaultPlan::new(OperationKind::Sync, Fault::InputOutput);
    match way % 8 {
        0 => FaultPlan::any(Fault::InputOutput),
        1 => FaultPlan::any(Fault::NoSpace),
        2 => FaultPlan::any(Fault::InputOutput).happens_anyway(),
        3 => write(2_048),
        4 => write(100),
        5 => sync().drops_pages(),
        6 => sync().drops_pages().sticky(),
        _ => FaultPlan::any(Fault::NoSpace).sticky(),
    }
}

/// Lengths around those that matter, so that several segments are filled now and then.
fn len(raw: u8) -> usize {
    match raw {
        0..=200 => usize::from(raw) * 5,
        _ => usize::from(raw - 200) * 280,
    }
}

fn step(kind: u8, key: u8, first: u8, second: u8) -> Step {
    let key = key % KEYS;
    let level = level(second & 1);
    match kind % 32 {
        0..8 => Step::Claim {
            key,
            level,
            lease_ms: (first & 1 == 1).then(|| 1 + u64::from(first) * 16),
            retention_s: 1 + u64::from(second >> 2),
        },
        8..12 => Step::Complete {
            key,
            len: len(first),
            level: (second & 2 != 0).then_some(level),
            principal: second & 4 != 0,
        },
        12 => Step::CompleteWithoutResponse { key },
        13 | 14 => Step::Checkpoint {
            key,
            len: len(first).min(4_000),
        },
        15 => Step::Release { key },
        16 => Step::Drop { key },
        17 => Step::Renew { key },
        18 | 19 => Step::Forget {
            key,
            force: first & 1 == 1,
        },
        20 => Step::Interrupt { key },
        21 => Step::Ticket { key },
        22 => Step::Resume { key },
        23 => Step::Batch {
            from: key,
            count: 1 + first % 3,
            level,
        },
        24 => Step::CancelClaim { key },
        25 => Step::CancelComplete {
            key,
            len: len(first),
        },
        26 => Step::Look { key },
        27 => Step::Advance {
            ms: u64::from(first) * 16 + u64::from(second),
        },
        28 if first & 2 != 0 => Step::Maintain,
        28 if first & 1 == 0 => Step::Flush,
        28 => Step::WriteBack {
            seed: u64::from(second),
        },
        29 => Step::Reopen,
        30 => Step::Kill,
        _ => Step::LosePower {
            seed: u64::from(u16::from_le_bytes([first, second])),
        },
    }
}
