//! What no workload reaches by itself: the clock of an idle store, salvage of real damage, a close
//! that fails, a disk that is full for good, a restored copy.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{
    Claim, ClaimError, ClaimOptions, KeyState, ManualClock, OpenError, Options, Recovery, Store,
};

use crate::calls::fingerprint;
use crate::model::{Crash, Model, State, name};
use crate::script::{self, Script, Sync};
use crate::support::{START_MS, bytes, completed, eventually, ms};
use crate::world::{World, options};

/// Every crash worth telling apart, of each state that the disk kept and of the last.
fn images(disk: &SimulatedDisk, seed: u64) -> Vec<(String, SimulatedDisk)> {
    let mut states = disk.take_states();
    states.push((disk.operations(), disk.crash_none_lost()));
    states
        .into_iter()
        .flat_map(|(number, state)| {
            let random = state.crash_random(seed * 1_000 + number);
            [
                (format!("before {number}, all lost"), state.crash_all_lost()),
                (format!("before {number}, some lost"), random),
                (format!("before {number}, none lost"), state),
            ]
        })
        .collect()
}

/// The store after a workload, closed or not.
fn used(script: &Script, close: bool) -> World {
    let mut world = World::new(script, SimulatedDisk::with_granule(512));
    world.run(script);
    if close {
        assert!(world.close());
    }
    world
}

fn open(disk: &SimulatedDisk, more: impl FnOnce(Options) -> Options) -> Result<Store, OpenError> {
    more(options(Sync, 1, &ManualClock::new(START_MS))).open_simulated(disk)
}

#[test]
fn an_idle_store_writes_its_clock_down_so_that_what_expired_stays_expired() {
    let disk = SimulatedDisk::new();
    let clock = ManualClock::new(START_MS);
    let store = options(Sync, 1, &clock)
        .open_simulated(&disk)
        .expect("opens");
    for (key, retention_s) in [(0, 30), (1, 100)] {
        let options = ClaimOptions::new().retention(Duration::from_secs(retention_s));
        let claim = store.claim_with(&name(key), fingerprint(key), options);
        let Ok(Claim::Started(operation)) = claim else {
            panic!("the key was free")
        };
        operation.complete(b"paid").expect("completes");
    }
    // Whether it is found after a loss of power, by a machine whose wall clock was set back.
    let answers = |image: SimulatedDisk, key| {
        let store = open(&image, |options| options).expect("opens");
        matches!(store.get(&name(key)), Ok(KeyState::Completed(_)))
    };
    clock.advance(ms(61_000));
    eventually("the clock in META", || !answers(disk.crash_all_lost(), 0));
    assert!(answers(disk.crash_all_lost(), 1), "not expired yet");
    // With it went the watermark, so that from now on only the clock makes the store write.
    disk.keep_states();
    clock.advance(ms(40_000));
    assert!(matches!(store.get(&name(1)), Ok(KeyState::Absent)));
    assert!(answers(disk.crash_all_lost(), 1), "within the last minute");
    clock.advance(ms(20_000));
    eventually("the clock in META, again", || {
        !answers(disk.crash_all_lost(), 1)
    });
    assert!(!answers(disk.crash_none_lost(), 1));
    let moments = disk.take_states();
    assert!(moments.len() >= 2, "a write and a sync");
    for (number, state) in moments {
        // Half written it is what it was before, or what it is now, and never an error.
        for image in one_by_one(&state) {
            assert!(!answers(image, 0), "it came back before {number}");
        }
    }
}

/// Damage to what was durable, with what it hits.
fn damaged(world: &World) -> Vec<(&'static str, SimulatedDisk)> {
    let whole = world.disk.crash_all_lost();
    let names = whole.names();
    let segments: Vec<_> = names.iter().filter(|name| name.ends_with(".log")).collect();
    let with = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let disk = whole.crash_none_lost();
        let mut contents = disk.contents(name).expect("a file");
        change(&mut contents);
        disk.put(name, &contents);
        disk
    };
    let first = segments.first().expect("a segment").as_str();
    let mut damaged = vec![
        ("a record", with(first, &|bytes| bytes[4_096 + 40] ^= 1)),
        ("a header", with(first, &|bytes| bytes[30] ^= 1)),
        (
            "a page of zeros",
            with(first, &|bytes| bytes[4_096..8_192].fill(0)),
        ),
        ("META", with("META", &|bytes| bytes.fill(7))),
        (
            "META and a record",
            with("META", &|bytes| bytes[200..].fill(9)),
        ),
    ];
    if let Some((_, disk)) = damaged.last() {
        let mut contents = disk.contents(first).expect("a segment");
        contents[4_096 + 8] ^= 4;
        disk.put(first, &contents);
    }
    if segments.len() > 1 {
        damaged.push(("all of a segment", with(first, &|bytes| bytes.fill(0))));
    }
    damaged
}

#[test]
fn a_salvage_that_is_cut_off_anywhere_ends_in_the_same_answers() {
    let mut counts = (0, 0, 0);
    let scripts = script::short();
    for script in [&scripts[0], &scripts[1], &scripts[9]] {
        for close in [false, true] {
            let world = used(script, close);
            for (what, image) in damaged(&world) {
                let context = format!("{}, {what}, closed {close}", script.name);
                counts.0 += 1;
                let (images, faults) = salvage_of(&world.model, &image, &context);
                counts.1 += images;
                counts.2 += faults;
            }
        }
    }
    let (damages, images, faults) = counts;
    println!("{damages} damages, {images} crash images and {faults} faults of their salvage");
}

/// What every key answers is expected, or is damaged where the store opened by a side-car.
fn assert_agrees(model: &Model, store: &Store, expected: &BTreeMap<u8, State>, context: &str) {
    let is_by_side_car = store.recovery_report().side_cars > 0;
    for (key, expected) in expected {
        match store.get(&name(*key)) {
            Err(ClaimError::Damaged(_)) if is_by_side_car => {}
            _ => assert_eq!(
                model.look_at(store, *key).as_ref(),
                Ok(expected),
                "{context}"
            ),
        }
    }
}

/// Salvages one damaged disk, whole and cut off at each operation.
fn salvage_of(model: &Model, image: &SimulatedDisk, context: &str) -> (u64, u64) {
    let salvage = |options: Options| options.recovery(Recovery::Salvage);
    let look = |disk: &SimulatedDisk, context: &str| -> BTreeMap<u8, State> {
        let store = open(disk, salvage).unwrap_or_else(|error| panic!("{context}: {error}"));
        let seen = model.look(&store);
        seen.unwrap_or_else(|error| panic!("{context}: {error}"))
    };
    let disk = image.crash_none_lost();
    disk.keep_states();
    let expected = look(&disk, context);
    let (mut count, mut faults) = (0, 0);
    for (kept, crashed) in images(&disk, 5) {
        let context = format!("{context}, {kept}");
        // Without salvage it is refused, or has those answers, or says which key is damaged where a
        // side-car stood for records that were not read: never others.
        let next = crashed.crash_none_lost();
        let opened = open(&next, |options| options);
        match opened {
            Ok(store) => {
                assert_agrees(model, &store, &expected, &context);
                // An open store relies on nothing that a power loss can take back.
                let lost = next.crash_all_lost();
                let store = open(&lost, |options| options)
                    .unwrap_or_else(|error| panic!("{context}, opened, all lost: {error}"));
                assert_agrees(model, &store, &expected, &context);
            }
            Err(
                OpenError::Corrupt { .. }
                | OpenError::MetaDamaged { .. }
                | OpenError::MetaMissing { .. },
            ) => {}
            Err(error) => panic!("{context}: {error}"),
        }
        assert_eq!(look(&crashed, &context), expected, "{context}");
        count += 1;
    }
    for number in 0.. {
        let disk = image.crash_none_lost();
        disk.fail(FaultPlan::any(Fault::InputOutput).after(number));
        let opened = open(&disk, salvage);
        if disk.struck().is_empty() {
            break;
        }
        if let Err(error) = opened {
            assert!(matches!(error, OpenError::Io { .. }), "{context}: {error}");
        }
        disk.heal();
        let context = format!("{context}, EIO at call {number}");
        assert_eq!(look(&disk, &context), expected, "{context}");
        faults += 1;
    }
    (count, faults)
}

#[test]
fn a_close_that_fails_at_any_call_leaves_everything_to_the_next_open() {
    let mut faults = 0;
    for script in script::short() {
        for plan in [
            FaultPlan::any(Fault::InputOutput),
            FaultPlan::any(Fault::NoSpace).happens_anyway(),
            FaultPlan::new(OperationKind::Sync, Fault::InputOutput).drops_pages(),
            FaultPlan::new(OperationKind::Write, Fault::InputOutput).short(300),
        ] {
            for number in 0.. {
                let mut world = used(&script, false);
                world.faulty = true;
                let disk = world.disk.clone();
                disk.fail(plan.clone().after(number));
                world.close();
                let struck = disk.struck();
                disk.heal();
                if struck.is_empty() {
                    break;
                }
                faults += 1;
                let lost = disk.crash_random(number);
                let model = world.model.clone();
                World::later(&script, lost, model, world.now_ms()).open(Crash::Power);
                // The same process, on the disk as it is.
                world.faulty = false;
                world.open(Crash::Kill);
                let (model, now_ms) = (world.model.clone(), world.now_ms());
                let lost = world.disk.crash_all_lost();
                World::later(&script, lost, model, now_ms).open(Crash::Power);
            }
        }
    }
    println!("{faults} faults in a close");
}

#[test]
fn on_a_disk_that_stays_full_nothing_acknowledged_is_lost_whenever_the_power_goes() {
    let mut images = 0;
    for seed in 0..12 {
        let script = script::random(1_000 + seed, 150);
        let disk = SimulatedDisk::with_granule(512);
        disk.capacity(3 * (64 << 10) + 16_384);
        let mut world = World::new(&script, disk);
        world.faulty = true;
        world.open(Crash::Kill);
        for (number, step) in script.steps.iter().enumerate() {
            world.step(step);
            if number % 10 != 0 {
                continue;
            }
            let random = world.disk.crash_random(number as u64);
            for image in [world.disk.crash_all_lost(), random] {
                // Opened while it is full, and later when it is not.
                for capacity in [Some(3 * (64 << 10) + 16_384), None] {
                    let image = image.crash_none_lost();
                    image.capacity(capacity);
                    let model = world.model.clone();
                    World::later(&script, image, model, world.now_ms()).open(Crash::Power);
                    images += 1;
                }
            }
        }
    }
    println!("{images} crash images of full disks");
}

#[test]
fn a_restored_copy_that_loses_power_in_its_first_open_gives_no_token_twice() {
    let mut count = 0;
    let scripts = script::short();
    let now_ms = START_MS + 10_000_000;
    let clock = ManualClock::new(now_ms);
    let sent = UNIX_EPOCH + ms(now_ms - 1);
    let restored = |disk: &SimulatedDisk, restored: bool| {
        let options = options(Sync, 1, &clock).restored(restored);
        options.open_simulated(disk).expect("opens")
    };
    for script in &scripts[..6] {
        for close in [false, true] {
            let world = used(script, close);
            let disk = world.disk.crash_all_lost();
            disk.keep_states();
            let store = restored(&disk, true);
            let seen = world.model.look(&store).expect("answers");
            let far = token_of_new_key(&store);
            assert!(far >> 36 >= (world.model.greatest_token() >> 36) + (1 << 20));
            drop(store);
            for (kept, image) in images(&disk, 3) {
                let context = format!("{}, {kept}", script.name);
                // Whoever was to restore it tries again, as the failed open told him nothing.
                let store = restored(&image, true);
                assert_eq!(world.model.look(&store).as_ref(), Ok(&seen), "{context}");
                let first_sent = ClaimOptions::new().first_sent(sent);
                let claim = store.claim_with(&name(250), fingerprint(250), first_sent.clone());
                assert!(
                    matches!(claim, Ok(Claim::TooLate(_))),
                    "{context}: {claim:?}"
                );
                let token = token_of_new_key(&store);
                assert!(token > world.model.greatest_token(), "{context}");
                // That it was restored is not forgotten, nor the answers.
                let store = restored(&image.crash_all_lost(), false);
                assert_eq!(world.model.look(&store).as_ref(), Ok(&seen), "{context}");
                let claim = store.claim_with(&name(250), fingerprint(250), first_sent);
                assert!(
                    matches!(claim, Ok(Claim::TooLate(_))),
                    "{context}: {claim:?}"
                );
                assert!(token_of_new_key(&store) > token, "{context}");
                count += 1;
            }
        }
    }
    println!("{count} crash images of a restored copy");
}

/// Claims a key that is in no model, at the next attempt.
fn token_of_new_key(store: &Store) -> u64 {
    match store.claim(&name(251), fingerprint(251)) {
        Ok(Claim::Started(operation) | Claim::Interrupted(operation)) => operation.token().as_u64(),
        other => panic!("{other:?}"),
    }
}

/// What a kill leaves, and of all that is in doubt each alone kept or lost.
fn one_by_one(state: &SimulatedDisk) -> Vec<SimulatedDisk> {
    let mut images = vec![state.crash_none_lost()];
    for one in 0..state.differences().len() {
        for alone in [false, true] {
            let mut question = 0;
            images.push(state.crash(&mut |_| {
                question += 1;
                (question - 1 == one) == alone
            }));
        }
    }
    images
}

/// A store with one result, opened with so many segments ready.
fn with_prepared(disk: &SimulatedDisk, prepared: usize) -> Store {
    let clock = ManualClock::new(START_MS);
    let open = || options(Sync, prepared, &clock).open_simulated(disk);
    crate::support::finish(&open().expect("opens"), &name(0), b"paid");
    let store = open().expect("opens");
    eventually("the prepared segments", || {
        store.stats().segments_prepared == prepared as u64
    });
    store
}

#[track_caller]
fn is_paid(image: &SimulatedDisk, context: &str) {
    let store = open(image, |options| options).unwrap_or_else(|error| panic!("{context}: {error}"));
    let claim = store.claim(&name(0), crate::support::request());
    assert_eq!(
        bytes(&completed(claim.expect("a claim"))),
        b"paid",
        "{context}"
    );
}

/// A close removes segments that were prepared and never used. Each names the one before, so that
/// one that is left without it would be refused as corrupt.
#[test]
fn a_close_that_is_cut_off_between_two_removals_leaves_a_chain() {
    for prepared in [1, 4] {
        let disk = SimulatedDisk::new();
        let store = with_prepared(&disk, prepared);
        disk.keep_states();
        store.close().expect("closes");
        for (number, state) in disk.take_states() {
            for image in one_by_one(&state) {
                is_paid(&image, &format!("{prepared} prepared, before {number}"));
            }
        }
    }
}

/// So does a recovery. The next one goes on where it was killed, and what the dead process had not
/// synced can still be lost when the next one has removed more.
#[test]
fn a_recovery_that_is_killed_in_its_removals_and_then_loses_power_leaves_a_chain() {
    let disk = SimulatedDisk::new();
    let store = with_prepared(&disk, 3);
    let first = disk.crash_none_lost();
    drop(store);
    first.keep_states();
    is_paid(&first, "without a crash");
    for (killed_at, killed) in first.take_states() {
        let second = killed.crash_none_lost();
        second.keep_states();
        is_paid(&second, "after a kill");
        for (lost_at, state) in second.take_states() {
            for image in one_by_one(&state) {
                is_paid(
                    &image,
                    &format!("killed before {killed_at}, lost before {lost_at}"),
                );
            }
        }
    }
}
