//! Every call of a workload to the disk fails once, in every way it can; then the power goes.
//!
//! The store may refuse, and says so with the right error; it never panics, hangs, or answers what
//! is not so. A full disk is over when it is over; a failed sync of the log poisons the store until
//! it is opened again. Whatever was acknowledged is there on the healed disk, with and without a
//! loss of power. An open that fails leaves everything to the next one.

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Claim, ClaimError, ClaimOptions, OpenError, Unavailable};

use crate::calls::fingerprint;
use crate::model::{Crash, Model, name};
use crate::script::{self, Script, Step};
use crate::workloads::seeds;
use crate::world::{World, options};

/// The ways to fail. Each is tried with every call that it can hit.
fn plans() -> Vec<(&'static str, FaultPlan)> {
    let write = |bytes| FaultPlan::new(OperationKind::Write, Fault::InputOutput).short(bytes);
    let sync = || FaultPlan::new(OperationKind::Sync, Fault::InputOutput);
    vec![
        ("EIO", FaultPlan::any(Fault::InputOutput)),
        ("ENOSPC", FaultPlan::any(Fault::NoSpace)),
        (
            "EIO, and done",
            FaultPlan::any(Fault::InputOutput).happens_anyway(),
        ),
        ("short by half a page", write(2_048)),
        ("short by all but a few bytes", write(100)),
        ("sync that drops pages", sync().drops_pages()),
        (
            "syncs that drop pages from now on",
            sync().drops_pages().sticky(),
        ),
        ("full from now on", FaultPlan::any(Fault::NoSpace).sticky()),
    ]
}

/// Workloads in one process after another on one disk.
fn scripts() -> Vec<Script> {
    let stays = |step: &Step| !matches!(step, Step::Kill | Step::LosePower { .. });
    script::short()
        .into_iter()
        .map(|mut script| {
            script.steps.retain(stays);
            script
        })
        .collect()
}

/// Whether a case is in this run: all in a long one, in a short one every few.
fn is_chosen(number: u64, of: u64) -> bool {
    seeds().is_some() || number.is_multiple_of(of)
}

#[test]
fn whatever_call_fails_in_whatever_way_the_store_stays_in_a_state_that_it_names() {
    let mut faults = 0;
    for (at, script) in scripts().iter().enumerate() {
        for (way, (name, plan)) in plans().into_iter().enumerate() {
            for number in 0.. {
                if !is_chosen(number + 3 * way as u64 + at as u64, 4) {
                    continue;
                }
                let disk = SimulatedDisk::with_granule(if number % 2 == 0 { 512 } else { 4_096 });
                disk.restless(number);
                disk.fail(plan.clone().after(number));
                let _case = Case(format!("{}, {name} at call {number}", script.name), &disk);
                if !one_fault(script, &disk, number) {
                    break;
                }
                faults += 1;
            }
        }
    }
    println!("{faults} faults");
}

/// Says which case it was that failed.
struct Case<'a>(String, &'a SimulatedDisk);

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}, which hit {:?}", self.0, self.1.struck());
        }
    }
}

/// Runs the script on a disk that fails once; false if the fault was not met.
fn one_fault(script: &Script, disk: &SimulatedDisk, seed: u64) -> bool {
    let mut world = World::new(script, disk.clone());
    world.faulty = true;
    world.run(script);
    let struck = disk.struck();
    let Some(first) = struck.first() else {
        return false;
    };
    let is_poisoned = world.store.as_ref().map(|store| store.stats().poisoned);
    assert!(
        is_poisoned != Some(true)
            || struck
                .iter()
                .any(|each| each.kind == OperationKind::Sync && each.file.starts_with("segment-")),
        "{}: poisoned by {first:?}",
        script.name
    );
    // What a loss of power leaves now, and once the store is closed.
    let mut images = vec![disk.crash_all_lost(), disk.crash_random(seed)];
    let mut models = vec![world.model.clone(); 2];
    disk.heal();
    is_defined(&mut world, is_poisoned);
    models.push(world.model.clone());
    images.push(disk.crash_random(seed + 1));
    world.close();
    models.push(world.model.clone());
    images.push(disk.crash_random(seed + 2));
    for (when, (image, model)) in images.into_iter().zip(models).enumerate() {
        let _case = Case(format!("image {when} after the fault"), disk);
        opens(script, image, model, Crash::Power, &world);
    }
    // The same process opens it again on the disk as it is, and what that answers stays.
    let model = opens(
        script,
        disk.clone(),
        world.model.clone(),
        Crash::Kill,
        &world,
    );
    opens(script, disk.crash_all_lost(), model, Crash::Power, &world);
    true
}

/// On a healed disk a store goes on, unless a sync has failed.
fn is_defined(world: &mut World, is_poisoned: Option<bool>) {
    let Some(store) = world.store.clone() else {
        return;
    };
    let claim = store.claim_with(&name(99), fingerprint(99), ClaimOptions::new());
    match (claim, is_poisoned) {
        (Ok(Claim::Started(operation)), Some(false)) => {
            operation
                .complete(b"as if nothing had happened")
                .expect("completes");
        }
        (Err(ClaimError::Unavailable(Unavailable::Poisoned { .. })), Some(true)) => {}
        (claim, _) => panic!("{claim:?}, poisoned: {is_poisoned:?}"),
    }
}

/// Opens a disk that works, and asks the oracle; what is known after that.
fn opens(script: &Script, disk: SimulatedDisk, model: Model, crash: Crash, world: &World) -> Model {
    let mut next = World::later(script, disk, model, world.now_ms());
    next.open(crash);
    assert!(next.store.is_some());
    next.model
}

#[test]
fn whatever_call_fails_in_an_open_it_says_so_and_the_next_one_has_everything() {
    let mut faults = 0;
    for (at, script) in scripts().iter().enumerate() {
        let disk = SimulatedDisk::with_granule(512);
        let mut world = World::new(script, disk.clone());
        world.run(script);
        let model = world.model.clone();
        let left = [
            (Crash::Kill, disk.crash_none_lost()),
            (Crash::Power, disk.crash_random(at as u64)),
        ];
        for (crash, image) in left {
            for (way, (name, plan)) in plans().into_iter().enumerate() {
                for number in 0.. {
                    if !is_chosen(number + way as u64, 5) {
                        continue;
                    }
                    let disk = image.crash_none_lost();
                    disk.fail(plan.clone().after(number));
                    let context = format!("{}, {crash:?}, {name} {number}", script.name);
                    let opened = options(world.level, 1, &world.clock).open_simulated(&disk);
                    match opened {
                        Ok(store) => {
                            // Only the first look: a sync may fail behind it.
                            let seen = model.look(&store).expect("answers");
                            let now_ms = world.now_ms();
                            if let Err(complaint) = model.check(&seen, crash, now_ms) {
                                panic!("{context}: {complaint}");
                            }
                        }
                        Err(OpenError::Io { .. }) => {}
                        Err(error) => panic!("{context}: {error}"),
                    }
                    if disk.struck().is_empty() {
                        break;
                    }
                    faults += 1;
                    let lost = disk.crash_random(number);
                    disk.heal();
                    opens(script, lost, model.clone(), Crash::Power, &world);
                    let model = opens(script, disk.clone(), model.clone(), crash, &world);
                    opens(script, disk.crash_all_lost(), model, Crash::Power, &world);
                }
            }
        }
    }
    println!("{faults} faults in an open");
}

#[test]
fn a_page_that_can_not_be_read_is_an_error_of_the_open_and_never_fewer_keys() {
    let (mut pages, mut unread) = (0, 0);
    for script in scripts() {
        let disk = SimulatedDisk::new();
        let mut world = World::new(&script, disk.clone());
        world.run(&script);
        for closed in [false, true] {
            let crash = if closed {
                assert!(world.close());
                Crash::Kill
            } else {
                Crash::Power
            };
            let image = disk.crash_all_lost();
            for file in image.names() {
                let len = image.contents(&file).map_or(0, |contents| contents.len());
                for byte in (0..len as u64).step_by(4_096) {
                    let disk = image.crash_none_lost();
                    let plan = FaultPlan::new(OperationKind::Read, Fault::InputOutput);
                    disk.fail(plan.on(&file).at_byte(byte).sticky());
                    let opened = options(world.level, 1, &world.clock).open_simulated(&disk);
                    let context = format!("{}, byte {byte} of {file}", script.name);
                    let side_car = file.strip_suffix(".log").map(|stem| format!("{stem}.idx"));
                    let side_car = side_car.and_then(|name| image.contents(&name));
                    let is_side_car = file.ends_with(".idx");
                    if is_side_car || (byte > 0 && side_car.is_some()) {
                        // A side-car is no reason to refuse, and stands for records that are not read.
                        let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                        let bad = store.recovery_report().side_cars_bad.len();
                        assert_eq!(bad, usize::from(is_side_car), "{context}");
                        let seen = world.model.look(&store).expect("answers");
                        let checked = world.model.check(&seen, crash, world.now_ms());
                        checked.unwrap_or_else(|complaint| panic!("{context}: {complaint}"));
                        unread += 1;
                    } else {
                        let failed = matches!(opened, Err(OpenError::Io { .. }));
                        assert!(failed, "{context}: {opened:?}");
                    }
                    disk.heal();
                    opens(&script, disk, world.model.clone(), crash, &world);
                    pages += 1;
                }
            }
        }
    }
    assert!(unread > 0 && unread < pages);
    println!("{pages} pages that could not be read, {unread} of them side-cars or behind one");
}

/// The same by an error at every call from one point on, as a machine that stops sees it: whoever
/// still runs is told, nothing hangs, and what is on the disk at that point is what counts.
#[test]
fn a_disk_that_stops_at_any_operation_is_told_of_and_keeps_what_was_acknowledged() {
    let mut points = 0;
    for (at, script) in scripts().iter().enumerate() {
        for point in 0.. {
            if !is_chosen(point + at as u64, 3) {
                continue;
            }
            let disk = SimulatedDisk::with_granule(512);
            disk.crash_at(point);
            let mut world = World::new(script, disk.clone());
            world.faulty = true;
            world.run(script);
            world.close();
            if !disk.has_lost_power() {
                break;
            }
            for image in [
                disk.crash_all_lost(),
                disk.crash_none_lost(),
                disk.crash_random(point),
            ] {
                opens(script, image, world.model.clone(), Crash::Power, &world);
            }
            points += 1;
        }
    }
    println!("stopped at {points} operations");
}
