//! A consumer that is killed: between effect and mark, in a batch, by the event itself.

use std::collections::HashMap;
use std::path::Path;

use oncekey::{Durability, Options};

use super::*;
use crate::support::journal::Journal;
use crate::support::killed::{Kept, Orders, any_moment};
use crate::support::{LONG, Random, small};

/// Words of a record: what, which event, which run, whether an earlier one may have acted.
mod verb {
    pub const BEGUN: u64 = 1;
    pub const EFFECT: u64 = 2;
    pub const ACKED: u64 = 3;
    pub const DEAD: u64 = 4;
}

/// Events of one plan; the last kills its consumer whenever it is handled.
const EVENTS: u64 = 40;
const KILLER: u64 = EVENTS - 1;
const ROUNDS: u64 = 14;

fn options(seed: u64) -> Options {
    let durability = match seed.is_multiple_of(2) {
        true => Durability::Sync,
        false => Durability::Buffered,
    };
    small(durability).lock_wait(LONG)
}

fn policy(seed: u64) -> OnInterrupted {
    match seed % 4 {
        0 | 1 => OnInterrupted::rerun(),
        _ => OnInterrupted::dead_letter(),
    }
}

/// Delivers everything again and again, alone and in batches, in any order.
#[test]
fn consumer_that_is_killed() {
    let Some(orders) = Orders::received() else {
        return;
    };
    let store = options(orders.seed).open(orders.store()).expect("a store");
    let mine = inbox(&store, policy(orders.seed));
    let journal = Journal::open(&orders.journal());
    let mut random = Random::new(orders.seed * 1_000 + orders.round);
    loop {
        let count = [1, 1, 8][random.below(3)];
        // The killer is there in the second half of the rounds.
        let events = if orders.round < ROUNDS / 2 {
            KILLER
        } else {
            EVENTS
        };
        let batch: Vec<u64> = (0..count)
            .map(|_| random.below(events as usize) as u64)
            .collect();
        deliver(&mine, &journal, &batch);
    }
}

fn deliver(inbox: &Inbox, journal: &Journal, batch: &[u64]) {
    let ids: Vec<_> = batch.iter().map(ToString::to_string).collect();
    let handle = |event_number: u64, event: &mut Event| {
        let (run, unknown) = (
            u64::from(event.run()),
            u64::from(event.previous().is_some()),
        );
        journal.append([verb::BEGUN, event_number, run, unknown, 0, 0, 0, 0]);
        if event_number == KILLER {
            std::process::abort();
        }
        if event_number.is_multiple_of(5) && run == 1 && unknown == 0 {
            return nothing_happened();
        }
        journal.append([verb::EFFECT, event_number, run, unknown, 0, 0, 0, 0]);
        Ok(())
    };
    let outcomes = match &ids[..] {
        [id] => vec![inbox.process(id, |event| handle(batch[0], event))],
        ids => inbox.process_batch(ids, |index, event| handle(batch[index], event)),
    };
    for (number, outcome) in batch.iter().zip(outcomes) {
        let verb = match outcome {
            Outcome::Ack(_) => verb::ACKED,
            Outcome::DeadLetter(_) => verb::DEAD,
            Outcome::RetryLater(_) => continue,
        };
        journal.append([verb, *number, 0, 0, 0, 0, 0, 0]);
    }
}

/// What the journal says of one event.
#[derive(Debug, Default)]
struct Told {
    runs: u64,
    effects: u64,
    acked: u64,
    dead: u64,
}

fn audit(path: &Path, seed: u64) -> HashMap<u64, Told> {
    let mut events = HashMap::<u64, Told>::new();
    let is_rerun = seed % 4 < 2;
    for [verb, number, run, unknown, ..] in Journal::read(path) {
        let told = events.entry(number).or_default();
        match verb {
            verb::BEGUN => {
                assert_eq!(
                    (told.acked, told.dead),
                    (0, 0),
                    "event {number} ran after its end"
                );
                told.runs += 1;
                assert_eq!(run, told.runs, "each start of event {number} is counted");
                assert!(run <= u64::from(ATTEMPTS));
                // Whoever may repeat an effect was told so.
                assert!(unknown == 1 || told.effects == 0, "event {number}");
                assert!(
                    is_rerun || unknown == 0,
                    "event {number} ran with an unknown outcome"
                );
            }
            verb::EFFECT => told.effects += 1,
            verb::ACKED => told.acked += 1,
            verb::DEAD => told.dead += 1,
            other => panic!("{other}"),
        }
        if verb == verb::ACKED {
            assert!(
                told.effects > 0,
                "event {number} was acknowledged and not carried out"
            );
            assert_eq!(told.dead, 0, "event {number} was a dead letter before");
        }
        assert!(is_rerun || told.effects <= 1, "event {number}");
    }
    events
}

#[test]
fn whoever_is_killed_between_effect_and_mark_is_told_and_every_start_is_counted() {
    let seed = std::env::var("ONCEKEY_KILL_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    for seed in seed..seed + 4 {
        let kept = Kept::new(format!("seed {seed}"));
        let mut random = Random::new(seed + 17);
        let mut orders = Orders {
            directory: kept.path().to_path_buf(),
            seed,
            round: 0,
        };
        // While the killer is not there, somebody else kills.
        for round in 0..ROUNDS / 2 {
            orders.round = round;
            orders.kill_child(
                "crashes::consumer_that_is_killed",
                any_moment(&mut random, 30),
            );
            audit(&orders.journal(), seed);
        }
        // The killer ends as a dead letter, by itself and after no more than its attempts.
        for round in ROUNDS / 2..ROUNDS {
            orders.round = round;
            let child = std::process::Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "crashes::consumer_that_is_killed", "--nocapture"])
                .envs(orders.environment())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn();
            let mut child = child.expect("starts");
            let begun = std::time::Instant::now();
            let is_over = loop {
                assert!(begun.elapsed() < LONG, "the killer was never handled");
                if child.try_wait().expect("a child").is_some() {
                    break false;
                }
                if audit(&orders.journal(), seed)
                    .get(&KILLER)
                    .is_some_and(|told| told.dead > 0)
                {
                    break true;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            };
            if is_over {
                child.kill().expect("killed");
                child.wait().expect("gone");
                break;
            }
        }
        let told = audit(&orders.journal(), seed);
        let killer = &told[&KILLER];
        assert_eq!((killer.effects, killer.acked), (0, 0));
        assert!(killer.dead > 0, "{killer:?}");
        let most = if seed % 4 < 2 { u64::from(ATTEMPTS) } else { 1 };
        assert!(killer.runs <= most, "{killer:?}");

        // A consumer that nobody kills brings the rest to its end.
        let store = options(seed).open(orders.store()).expect("opens by itself");
        let mine = inbox(&store, policy(seed));
        let journal = Journal::open(&orders.journal());
        for _ in 0..ATTEMPTS {
            for number in 0..KILLER {
                deliver(&mine, &journal, &[number]);
            }
        }
        let told = audit(&orders.journal(), seed);
        for number in 0..EVENTS {
            let told = &told[&number];
            assert!(
                told.acked + told.dead > 0,
                "event {number} is not settled: {told:?}"
            );
        }
    }
}
