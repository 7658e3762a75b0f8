//! A process that is killed at any moment loses nothing that it had acknowledged, the next open needs
//! no help, and nobody's work is done twice without being told.
//!
//! The test starts itself again as a child (`child`), which works on a real directory with several
//! threads and writes each step to a journal before and after; a second file takes its effects on
//! the world. The parent kills it with SIGKILL while it starts, opens, recovers, works, rolls over
//! or closes, opens the store and compares with its own book (`oracle`). `ONCEKEY_KILLS` sets how
//! often, `ONCEKEY_KILL_SEED` the plan. A run that fails prints its seed and keeps its directory.

#[path = "../support/mod.rs"]
mod support;

mod child;
mod oracle;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use oncekey::{Durability, Options};

use crate::oracle::Oracle;
use crate::support::Random;
use crate::support::journal::Journal;
use crate::support::killed::{Kept, Orders, When, any_moment};

/// What a record of the journal says, in its first word.
pub(crate) mod verb {
    pub(crate) const OPENING: u64 = 1;
    pub(crate) const OPENED: u64 = 2;
    pub(crate) const CLOSING: u64 = 3;
    pub(crate) const CLOSED: u64 = 4;
    pub(crate) const CLAIMING: u64 = 5;
    pub(crate) const CLAIMED: u64 = 6;
    /// The claim led to somebody else's operation.
    pub(crate) const BUSY: u64 = 7;
    pub(crate) const REPLAYED: u64 = 8;
    pub(crate) const NOTING: u64 = 9;
    pub(crate) const NOTED: u64 = 10;
    pub(crate) const COMPLETING: u64 = 11;
    pub(crate) const COMPLETED: u64 = 12;
    pub(crate) const RELEASING: u64 = 13;
    pub(crate) const RELEASED: u64 = 14;
    pub(crate) const FORGETTING: u64 = 15;
    pub(crate) const FORGOTTEN: u64 = 16;
    /// A pass of maintenance ended; what it did follows.
    pub(crate) const MAINTAINED: u64 = 17;
}

/// Kills of one directory; then a new one is begun, since the log only grows.
const KILLS_OF_A_DIRECTORY: u64 = 12;

fn options(durability: Durability) -> Options {
    Options::new()
        .durability(durability)
        .segment_size(64 << 10)
        .stripes(8)
        .lock_wait(Duration::from_secs(10))
}

fn set_or(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(default, |set| set.parse().expect("a number"))
}

/// A moment to kill at.
fn moment(random: &mut Random) -> When {
    let delay = |micros: usize, random: &mut Random| {
        let micros = random.below(micros) as u64;
        Duration::from_micros(micros)
    };
    match random.below(8) {
        0 | 1 => When::AfterMark(verb::OPENING, delay(4_000, random)),
        2 | 3 => When::AfterMark(verb::CLOSING, delay(3_000, random)),
        _ => any_moment(random, 1_500),
    }
}

/// Where the kills fell, by what the child had said last of opening and closing.
#[derive(Debug, Default)]
struct Fell {
    starting: u64,
    opening: u64,
    working: u64,
    closing: u64,
}

impl Fell {
    fn count(&mut self, records: &[[u64; 8]]) {
        let last = records
            .iter()
            .rev()
            .find(|words| words[0] <= verb::CLOSED)
            .map(|words| words[0]);
        *match last {
            Some(verb::OPENING) => &mut self.opening,
            Some(verb::OPENED) => &mut self.working,
            Some(verb::CLOSING) => &mut self.closing,
            _ => &mut self.starting,
        } += 1;
    }
}

/// What came of the kills.
#[derive(Debug, Default)]
struct Totals {
    kills: u64,
    fell: Fell,
    keys: usize,
    grants: usize,
    effects: usize,
    compared: u64,
    /// Segments given up, records copied, keys written again by passes that ended.
    maintained: [u64; 3],
}

/// So many kills of children that work on one directory, with a book of its own.
fn kill_children(seed: u64, kills: u64) -> Totals {
    let mut totals = Totals::default();
    let kept = Kept::new(format!("ONCEKEY_KILL_SEED={seed}"));
    let mut random = Random::new(seed);
    let mut oracle = Oracle::default();
    let mut known = 0;
    for round in 0..kills {
        let orders = Orders {
            directory: kept.path().to_path_buf(),
            seed,
            round,
        };
        orders.kill_child("child::child", moment(&mut random));
        totals.kills += 1;
        let journal = Journal::read(&orders.journal());
        totals.fell.count(&journal[known..]);
        for [what, done @ ..] in &journal[known..] {
            if *what == verb::MAINTAINED {
                let sums = totals.maintained.iter_mut().zip(done);
                sums.for_each(|(sum, more)| *sum += more);
            }
        }
        oracle.told(&journal[known..]);
        oracle.killed();
        known = journal.len();
        oracle.effects(&Journal::read(&child::effects(&orders)));
        // Every third recovery is left to the next child, and killed there as often as not.
        if round % 3 != 2 {
            let store = options(Durability::Buffered)
                .open(orders.store())
                .expect("opens without help");
            totals.compared += oracle.compare(&store);
            // A pass over what the child left, and the answers stay.
            let done = store.maintain().expect("a pass");
            totals.maintained[0] += done.segments_removed;
            totals.maintained[1] += done.records_copied;
            totals.maintained[2] += done.keys_refreshed;
            totals.compared += oracle.compare(&store);
            store.close().expect("closes");
        }
    }
    (totals.keys, totals.grants, totals.effects) = oracle.figures();
    totals
}

impl Totals {
    fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.fell.starting += other.fell.starting;
        self.fell.opening += other.fell.opening;
        self.fell.working += other.fell.working;
        self.fell.closing += other.fell.closing;
        self.keys += other.keys;
        self.grants += other.grants;
        self.effects += other.effects;
        self.compared += other.compared;
        let sums = self.maintained.iter_mut().zip(other.maintained);
        sums.for_each(|(sum, more)| *sum += more);
    }
}

#[test]
fn every_acknowledged_write_survives_kill_9_and_no_effect_happens_twice_unseen() {
    let kills = set_or("ONCEKEY_KILLS", 200);
    let first_seed = set_or("ONCEKEY_KILL_SEED", 1);
    let of_directory = |number: u64| {
        let left = kills.saturating_sub(number * KILLS_OF_A_DIRECTORY);
        left.min(KILLS_OF_A_DIRECTORY)
    };
    // Children mostly wait for the disk, so two directories are worked on at once.
    let next = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if of_directory(number) == 0 {
                        return;
                    }
                    let more = kill_children(first_seed + number, of_directory(number));
                    totals.lock().expect("not poisoned").add(more);
                }
            });
        }
    });
    let totals = totals.into_inner().expect("not poisoned");
    assert_eq!(totals.kills, kills);
    println!("{totals:?}");
    let [given_up, copied, refreshed] = totals.maintained;
    let is_enough = given_up > 0 && copied + refreshed > 0;
    assert!(kills < 50 || is_enough, "{totals:?}");
}
