//! The oracle is known to bite: wrong images, wrong answers and a disk that lies are complained of.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oncekey::ManualClock;
use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};

use crate::explore::{Effort, Explorer};
use crate::model::{Crash, Model, State};
use crate::script::{self, Buffered, Script, Step, Sync};
use crate::support::START_MS;
use crate::world::{World, options};

fn script(steps: Vec<Step>) -> Script {
    Script {
        name: "bites",
        level: Sync,
        prepared: 1,
        steps,
    }
}

fn claim(key: u8) -> Step {
    Step::Claim {
        key,
        level: Sync,
        lease_ms: None,
        retention_s: 10,
    }
}

fn complete(key: u8, level: oncekey::Durability) -> Step {
    Step::Complete {
        key,
        len: 30,
        level: Some(level),
        principal: false,
    }
}

/// Runs some steps, and then some more: the world, and the disk as it was in between.
fn ran(before: Vec<Step>, after: Vec<Step>) -> (World, SimulatedDisk) {
    let script = script(before);
    let mut world = World::new(&script, SimulatedDisk::new());
    world.run(&script);
    let old = world.disk.crash_all_lost();
    after.iter().for_each(|step| world.step(step));
    (world, old)
}

fn look(model: &Model, disk: &SimulatedDisk) -> BTreeMap<u8, State> {
    let store = options(Sync, 1, &ManualClock::new(START_MS))
        .open_simulated(disk)
        .expect("opens");
    model.look(&store).expect("answers")
}

#[track_caller]
fn complains(world: &World, image: &SimulatedDisk, crash: Crash, of: &str) {
    let seen = look(&world.model, image);
    let complaint = world
        .model
        .check(&seen, crash, world.now_ms())
        .expect_err("something is wrong");
    assert!(complaint.starts_with(of), "{complaint}");
}

#[test]
fn an_older_copy_of_the_disk_or_of_a_segment_is_complained_of() {
    let begun = || vec![claim(0), claim(1), claim(2)];
    let ends: [(&str, Vec<Step>); 5] = [
        ("key 0 is Pending", vec![complete(0, Sync)]),
        ("key 1 is Pending", vec![Step::Release { key: 1 }]),
        ("key 2 is Pending", vec![Step::Drop { key: 2 }, claim(2)]),
        (
            "key 2 is Pending",
            vec![Step::CompleteWithoutResponse { key: 2 }],
        ),
        ("key 3 is Absent", vec![claim(3)]),
    ];
    for (complaint, end) in ends {
        let (world, old) = ran(begun(), end);
        let new = world.disk.crash_all_lost();
        complains(&world, &old, Crash::Power, complaint);
        // META as it is, and the log as it was.
        let (world, new) = (&world, new);
        for name in old.names().iter().filter(|name| name.ends_with(".log")) {
            new.put(name, &old.contents(name).expect("a segment"));
        }
        complains(world, &new, Crash::Power, complaint);
    }
}

#[test]
fn a_removed_key_that_comes_back_is_complained_of() {
    let forget = Step::Forget {
        key: 0,
        force: false,
    };
    let (world, old) = ran(vec![claim(0), complete(0, Sync)], vec![forget]);
    complains(&world, &old, Crash::Power, "key 0 is Completed");
    let (world, old) = ran(
        vec![claim(0), complete(0, Sync)],
        vec![Step::Advance { ms: 10_000 }],
    );
    // The clock of `look` was not moved.
    complains(&world, &old, Crash::Power, "key 0 is Completed");
}

#[test]
fn what_a_kill_lost_is_complained_of_and_what_the_power_may_take_is_not() {
    let (world, _) = ran(vec![claim(0)], vec![complete(0, Buffered)]);
    let image = world.disk.crash_all_lost();
    let seen = look(&world.model, &image.crash_none_lost());
    assert_eq!(world.model.check(&seen, Crash::Power, START_MS), Ok(()));
    complains(&world, &image, Crash::Kill, "key 0 is Pending");
}

#[test]
fn every_wrong_answer_is_complained_of() {
    let steps = vec![
        claim(0),
        complete(0, Sync),
        claim(1),
        Step::Checkpoint { key: 1, len: 5 },
        claim(2),
        Step::Release { key: 2 },
    ];
    let (world, _) = ran(steps, Vec::new());
    let right = look(&world.model, &world.disk.crash_all_lost());
    let check = |seen: &BTreeMap<u8, State>| world.model.check(seen, Crash::Power, START_MS);
    assert_eq!(check(&right), Ok(()));
    let (State::Completed { token: done, .. }, State::Pending { token: held, .. }) =
        (&right[&0], &right[&1])
    else {
        panic!("{right:?}")
    };
    let pending = |attempt, token| State::Pending {
        attempt,
        token,
        notes: Vec::new(),
        ticket: None,
    };
    let completed = |attempt, token, response: Option<&[u8]>, expires_ms| State::Completed {
        attempt,
        token,
        response: response.map(Into::into),
        principal: false,
        expires_ms,
    };
    let expires_ms = START_MS + 10_000;
    let wrong = [
        (0, State::Absent),
        (0, pending(1, *done)),
        (0, completed(1, *done, Some(b"other"), expires_ms)),
        (0, completed(1, *done, None, expires_ms)),
        (1, State::Absent),
        (1, pending(2, *held)),
        (1, pending(1, *done)),
        (1, completed(1, *held, None, expires_ms)),
        (2, pending(1, Some(u64::MAX))),
        (2, completed(1, Some(u64::MAX), None, expires_ms)),
    ];
    for (key, state) in wrong {
        let mut seen = right.clone();
        seen.insert(key, state.clone());
        assert!(check(&seen).is_err(), "key {key}: {state:?}");
    }
    // As it is, but for one field of the completion.
    for change in 0..3 {
        let mut seen = right.clone();
        if let Some(State::Completed {
            attempt,
            token,
            expires_ms,
            ..
        }) = seen.get_mut(&0)
        {
            match change {
                0 => *attempt += 1,
                1 => *token = token.map(|token| token + 1),
                _ => *expires_ms += 1,
            }
        }
        assert!(check(&seen).is_err(), "change {change}");
    }
    let mut short = right.clone();
    short.remove(&2);
    assert!(check(&short).is_err());
}

/// An owner that nobody acknowledged may be found, but not under a token that somebody else has.
#[test]
fn a_token_of_two_owners_is_complained_of() {
    let (mut world, _) = ran(vec![claim(0)], Vec::new());
    for key in [1, 2] {
        let state = world.grant_of(key).expect("free");
        world.may(key, state);
    }
    let seen = look(&world.model, &world.disk.crash_all_lost());
    let check = |seen: &_| world.model.check(seen, Crash::Power, START_MS);
    assert_eq!(check(&seen), Ok(()));
    let granted = |token| State::Pending {
        attempt: 1,
        token: Some(token),
        notes: Vec::new(),
        ticket: None,
    };
    let next = world.model.greatest_token() + 1;
    let with = |one, other| {
        let mut seen = seen.clone();
        seen.insert(1, granted(one));
        seen.insert(2, granted(other));
        seen
    };
    assert_eq!(check(&with(next, next + 1)), Ok(()));
    assert!(check(&with(next, next)).is_err());
    assert!(check(&with(next - 1, next)).is_err());
}

/// On a disk that only says it synced, the exploration must end in a complaint: of a missing answer
/// where that is all that is wrong, or of a directory that does not open.
#[test]
fn a_disk_that_lies_is_found_out() {
    let lie = |kind| FaultPlan::new(kind, Fault::InputOutput).lies().sticky();
    let cases = [
        (lie(OperationKind::Sync).on("segment-").after(2), "may be"),
        (lie(OperationKind::Sync).on("segment-"), "truncated"),
        (lie(OperationKind::Sync).on("META"), "META"),
        (lie(OperationKind::SyncDirectory), "META"),
    ];
    for (plan, expected) in cases {
        let disk = SimulatedDisk::new();
        disk.fail(plan.clone());
        let effort = Effort {
            all_up_to: 2,
            randoms: 2,
            again_every: u64::MAX,
            work_every: u64::MAX,
            salvage: false,
            restless: None,
            maintain: false,
        };
        let mut explorer = Explorer::new(effort, 1);
        let script = script::short().remove(0);
        let explored = catch_unwind(AssertUnwindSafe(|| explorer.run(&script, disk)));
        let complaint = explored.expect_err("the lie is found out");
        let complaint = complaint.downcast_ref::<String>().expect("a text");
        assert!(complaint.contains(expected), "{plan:?}: {complaint}");
    }
}
