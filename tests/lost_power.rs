//! Power is lost at every point of a workload, and again during the recovery from that.
//!
//! The simulated disk stops at the n-th changing operation; from there any subset of what was not
//! synced survives, pages and directory entries each on their own. Whatever that is, the store opens
//! without help, and of what was acknowledged in `Sync` nothing is lost, nothing comes back, and
//! nobody is told of a completion that never happened.

use std::collections::HashMap;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{
    Claim, ClaimError, Durability, Fingerprint, Forget, Key, KeyState, OpenError, Options, Replay,
    Store,
};

const SEGMENT_BYTES: u64 = 64 << 10;

fn options(durability: Durability) -> Options {
    Options::new()
        .durability(durability)
        .segment_size(SEGMENT_BYTES)
        .stripes(4)
}

fn key(number: u32) -> Key {
    Key::new("scope", "operation", number.to_be_bytes()).expect("a key")
}

/// What the caller was told of a key. Every variant but the last is acknowledged.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Started,
    Completed(Vec<u8>),
    Absent,
    /// A call failed or never returned: before and after are both right.
    Unsure(Box<Told>, Box<Told>),
}

/// Runs operations until the disk stops, noting what each caller was told.
fn work(store: &Store, told: &mut HashMap<u32, Told>, round: u32) {
    for number in 0..24 {
        let number = round * 1_000 + number;
        let before = told.get(&number).cloned().unwrap_or(Told::Absent);
        let unsure = |after: Told| Told::Unsure(Box::new(before.clone()), Box::new(after));
        told.insert(number, unsure(Told::Started));
        let Ok(Claim::Started(mut operation)) = store.claim(&key(number), Fingerprint::none())
        else {
            return;
        };
        told.insert(number, Told::Started);
        let response = vec![number as u8; (number as usize * 977) % 5_000];
        let next = match number % 6 {
            0 => continue,
            1 => {
                told.insert(
                    number,
                    Told::Unsure(Box::new(Told::Started), Box::new(Told::Absent)),
                );
                operation.release().map(|()| Told::Absent)
            }
            2 => {
                if operation.checkpoint(b"note").is_err() {
                    return;
                }
                continue;
            }
            _ => {
                told.insert(
                    number,
                    Told::Unsure(
                        Box::new(Told::Started),
                        Box::new(Told::Completed(response.clone())),
                    ),
                );
                operation
                    .complete(&response)
                    .map(|_| Told::Completed(response))
            }
        };
        match next {
            Ok(next) => told.insert(number, next),
            Err(_) => return,
        };
        if number % 6 == 5 {
            let completed = told.get(&number).cloned().unwrap_or(Told::Absent);
            told.insert(
                number,
                Told::Unsure(Box::new(completed), Box::new(Told::Absent)),
            );
            if store.forget(&key(number), Forget::IfCompleted).is_err() {
                return;
            }
            told.insert(number, Told::Absent);
        }
    }
}

/// Whether what the store says now agrees with what its callers were told.
fn agrees(told: &Told, state: &KeyState) -> bool {
    match (told, state) {
        (Told::Started, KeyState::Interrupted { attempt: 1, .. }) => true,
        (Told::Absent, KeyState::Absent) => true,
        (Told::Completed(response), KeyState::Completed(saved)) => {
            matches!(saved.by_scope(), Ok(Replay::Response(found)) if found[..] == response[..])
        }
        (Told::Unsure(before, after), _) => agrees(before, state) || agrees(after, state),
        _ => false,
    }
}

fn check(disk: &SimulatedDisk, told: &HashMap<u32, Told>, context: &str) -> Store {
    let store = options(Durability::Sync)
        .open_simulated(disk)
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    for (number, told) in told {
        let state = store
            .get(&key(*number))
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(
            agrees(told, &state),
            "{context}: key {number} was {told:?}, is {state:?}"
        );
    }
    store
}

/// Every image worth telling apart: nothing unsynced survives, all of it, and random subsets.
fn images(disk: &SimulatedDisk, seed: u64) -> Vec<(String, SimulatedDisk)> {
    let mut images = vec![
        (String::from("all lost"), disk.crash_all_lost()),
        (String::from("none lost"), disk.crash_none_lost()),
    ];
    for number in 0..3 {
        let seed = seed * 31 + number;
        images.push((format!("seed {seed}"), disk.crash_random(seed)));
    }
    images
}

#[test]
fn an_acknowledged_write_survives_power_loss_at_every_point() {
    let mut crashes = 0;
    for granule in [4_096, 512] {
        let mut point = 0;
        loop {
            let disk = SimulatedDisk::with_granule(granule);
            disk.crash_at(point);
            let mut told = HashMap::new();
            let opened = options(Durability::Sync).open_simulated(&disk);
            let finished = match &opened {
                Ok(store) => {
                    work(store, &mut told, 1);
                    disk.operations() < point
                }
                Err(_) => false,
            };
            for (name, image) in images(&disk, point) {
                let context = format!("granule {granule}, point {point}, {name}");
                let store = check(&image, &told, &context);
                // And it goes on working.
                work(&store, &mut told.clone(), 2);
                crashes += 1;
            }
            if finished {
                break;
            }
            point += 1;
        }
    }
    println!("{crashes} crash images opened");
}

#[test]
fn power_lost_again_during_the_recovery_loses_nothing() {
    let mut crashes = 0;
    // Points spread over the first run; each recovery is then interrupted at every point.
    for first in (3..120).step_by(13) {
        let disk = SimulatedDisk::new();
        disk.crash_at(first);
        let mut told = HashMap::new();
        if let Ok(store) = options(Durability::Sync).open_simulated(&disk) {
            work(&store, &mut told, 1);
        }
        let image = disk.crash_random(first);
        let mut second = 0;
        loop {
            let again = image.crash_none_lost();
            again.crash_at(second);
            let opened = options(Durability::Sync).open_simulated(&again);
            let finished = opened.is_ok();
            for (name, image) in images(&again, first + second) {
                check(
                    &image,
                    &told,
                    &format!("points {first} and {second}, {name}"),
                );
                crashes += 1;
            }
            drop(opened);
            if finished {
                break;
            }
            second += 1;
        }
    }
    println!("{crashes} crash images of a recovery opened");
}

#[test]
fn a_kill_of_a_buffered_store_loses_nothing() {
    for point in 0..40 {
        let disk = SimulatedDisk::new();
        let store = options(Durability::Buffered)
            .open_simulated(&disk)
            .expect("opens");
        let mut told = HashMap::new();
        for round in 1..=1 + point / 8 {
            work(&store, &mut told, round);
        }
        let image = disk.crash_none_lost();
        check(&image, &told, &format!("round {point}"));
    }
}

#[test]
fn the_first_failed_sync_poisons_the_store_until_it_is_opened_again() {
    let disk = SimulatedDisk::new();
    let store = options(Durability::Sync)
        .open_simulated(&disk)
        .expect("opens");
    let Ok(Claim::Started(done)) = store.claim(&key(1), Fingerprint::none()) else {
        panic!()
    };
    done.complete(b"durable").expect("completes");
    let Ok(Claim::Started(held)) = store.claim(&key(2), Fingerprint::none()) else {
        panic!()
    };

    // Fails once, would succeed from then on, and the kernel has dropped the pages.
    disk.fail(
        FaultPlan::new(OperationKind::Sync, Fault::InputOutput)
            .on("segment-")
            .drops_pages(),
    );
    let lost = held.complete(b"in flight").expect_err("the sync failed");
    assert!(
        matches!(lost.error(), oncekey::WriteError::OutcomeUnknown(_)),
        "{lost}"
    );
    assert!(lost.into_operation().is_none());
    assert!(store.stats().poisoned);

    for number in [3, 4] {
        let refused = store.claim(&key(number), Fingerprint::none());
        assert!(
            matches!(refused, Err(ClaimError::Unavailable(_))),
            "{refused:?}"
        );
    }
    let replay = store.claim(&key(1), Fingerprint::none());
    assert!(
        matches!(replay, Ok(Claim::Completed(_))),
        "what is known durable is replayed"
    );
    let unknown = store.claim(&key(2), Fingerprint::none());
    assert!(
        matches!(unknown, Err(ClaimError::Unavailable(_))),
        "what may be lost is not"
    );
    drop(store);
    disk.heal();

    // What the page cache shows is written again before anybody may rely on it.
    let store = options(Durability::Sync)
        .open_simulated(&disk.crash_none_lost())
        .expect("opens");
    let state = store.get(&key(2)).expect("an answer");
    drop(store);
    assert!(
        matches!(state, KeyState::Completed(_) | KeyState::Interrupted { .. }),
        "{state:?}"
    );
}

#[test]
fn a_read_error_is_never_taken_for_the_end_of_the_log() {
    for kind in [OperationKind::Open, OperationKind::Read, OperationKind::Map] {
        for number in 0..6 {
            let disk = SimulatedDisk::new();
            let store = options(Durability::Sync)
                .open_simulated(&disk)
                .expect("opens");
            let mut told = HashMap::new();
            work(&store, &mut told, 1);
            drop(store);
            disk.fail(FaultPlan::new(kind, Fault::InputOutput).after(number));
            match options(Durability::Sync).open_simulated(&disk) {
                Err(OpenError::Io { .. }) => {}
                Err(error) => panic!("{kind:?} {number}: {error}"),
                Ok(store) => drop(store),
            }
            disk.heal();
            check(&disk, &told, &format!("{kind:?} {number}"));
        }
    }
}

#[test]
fn a_full_disk_is_an_error_at_the_claim_and_completions_still_succeed() {
    let disk = SimulatedDisk::new();
    disk.capacity(4 * SEGMENT_BYTES);
    let store = options(Durability::Sync)
        .open_simulated(&disk)
        .expect("opens");
    let mut guards = Vec::new();
    let full = loop {
        match store.claim(&key(guards.len() as u32), Fingerprint::none()) {
            Ok(Claim::Started(operation)) => guards.push(operation),
            Ok(claim) => panic!("{claim:?}"),
            Err(error) => break error,
        }
        assert!(guards.len() < 10_000, "the disk never fills");
    };
    assert!(matches!(full, ClaimError::OutOfSpace(_)), "{full}");
    assert!(!store.stats().poisoned);
    // Each has room for a completion of the reserved size.
    let reserved = vec![7; 4_096];
    for (number, operation) in guards.drain(..).enumerate() {
        match number % 3 {
            0 => operation.release().expect("a release has room"),
            _ => drop(
                operation
                    .complete(&reserved)
                    .expect("a completion has room"),
            ),
        }
    }
    let still = store.claim(&key(1), Fingerprint::none());
    assert!(matches!(still, Ok(Claim::Completed(_))), "{still:?}");

    // A full disk can be opened, answers, and says what is wrong.
    drop(store);
    let store = options(Durability::Sync)
        .open_simulated(&disk)
        .expect("opens when full");
    assert!(matches!(store.get(&key(1)), Ok(KeyState::Completed(_))));
    disk.capacity(None);
    let claim = store.claim(&key(100_000), Fingerprint::none());
    assert!(
        matches!(claim, Ok(Claim::Started(_))),
        "works again when there is space: {claim:?}"
    );
}
