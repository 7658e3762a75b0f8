//! Several threads write at once when the power goes: between their records are some that nobody
//! finished, and one sync covers many.

use std::sync::{Barrier, Mutex};
use std::thread;

use oncekey::testing::SimulatedDisk;
use oncekey::{KeyState, ManualClock, Replay, Store};

use crate::calls::fingerprint;
use crate::model::name;
use crate::script::Sync;
use crate::support::{Random, START_MS, owned};
use crate::workloads::seeds;
use crate::world::options;

const THREADS: u8 = 4;
const KEYS: u8 = 6;

/// When a caller was told: how many operations the disk had seen by then.
#[derive(Clone, Copy, Debug)]
struct Told {
    key: u8,
    claimed: u64,
    completed: u64,
}

fn response(key: u8) -> Vec<u8> {
    vec![key; usize::from(key) * 40]
}

/// Claims and completes some keys of its own.
fn work(store: &Store, disk: &SimulatedDisk, thread: u8, told: &Mutex<Vec<Told>>) {
    for key in (0..KEYS).map(|number| thread * KEYS + number) {
        let claim = store.claim(&name(key), fingerprint(key));
        let operation = owned(claim.expect("a claim"));
        let claimed = disk.operations();
        operation.complete(response(key)).expect("a completion");
        let completed = disk.operations();
        let told_now = Told {
            key,
            claimed,
            completed,
        };
        told.lock().expect("no panic").push(told_now);
    }
}

/// What the disk must show that was at this operation when the power went.
fn check(store: &Store, told: &[Told], number: u64, context: &str) {
    for &Told {
        key,
        claimed,
        completed,
    } in told
    {
        match store.get(&name(key)) {
            Ok(KeyState::Completed(saved)) => {
                let replay = saved.by_scope().expect("no principal");
                let Replay::Response(found) = replay else {
                    panic!("{context}: key {key} without its response")
                };
                assert_eq!(found[..], response(key)[..], "{context}: key {key}");
            }
            Ok(KeyState::Interrupted { attempt: 1, .. }) if completed > number => {}
            Ok(KeyState::Absent) if claimed > number => {}
            other => panic!(
                "{context}: key {key} is {other:?}, claimed at {claimed}, completed at {completed}"
            ),
        }
    }
}

#[test]
fn what_any_of_many_threads_was_told_survives_a_loss_of_power_at_every_operation() {
    let mut images = 0;
    for seed in 0..seeds().unwrap_or(8) {
        let disk = SimulatedDisk::with_granule(512);
        disk.restless(seed);
        let clock = ManualClock::new(START_MS);
        let store = options(Sync, 1, &clock)
            .open_simulated(&disk)
            .expect("opens");
        let told = Mutex::new(Vec::new());
        let barrier = Barrier::new(usize::from(THREADS));
        disk.keep_states();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, disk, told, barrier) = (&store, &disk, &told, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    work(store, disk, thread, told);
                });
            }
        });
        let told = told.into_inner().expect("no panic");
        assert_eq!(told.len(), usize::from(THREADS * KEYS));
        let mut random = Random::new(seed);
        for (number, state) in disk.take_states() {
            for image in [
                state.crash_all_lost(),
                state.crash_none_lost(),
                state.crash_random(random.below(1 << 30) as u64),
                state.crash_random(random.below(1 << 30) as u64),
            ] {
                let context = format!("seed {seed}, before operation {number}");
                let store = options(Sync, 1, &clock)
                    .open_simulated(&image)
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                check(&store, &told, number, &context);
                images += 1;
            }
        }
    }
    println!("{images} crash images of {THREADS} threads");
}
