//! The whole store in random schedules: public calls on several threads, the store's own threads,
//! roll-over, time, a failing disk, crashes and opens, all under shuttle's scheduler.
//!
//! `.ci/shuttle` runs it. Whatever a schedule brings, every call ends (else shuttle reports a
//! deadlock), every answer agrees with what others were told before (`ledger.rs`), what a store
//! counts is right, and a store that is opened on what a crash left knows all it had answered.

#![cfg(oncekey_shuttle)]

mod clients;
mod driver;
mod ledger;
mod upkeep;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Durability, Key, Lease, ManualClock, Options, Store};
use shuttle::thread;

use crate::clients::{Client, Trouble, chance, check_counts, pause};
use crate::driver::explore;
use crate::ledger::{Ledger, Owners, Snapshot};
use crate::upkeep::Upkeep;

const START_MS: u64 = 1_700_000_000_000;
const LEASE: Duration = Duration::from_secs(30);
const CLIENTS: usize = 3;
const STEPS: usize = 4;
/// So few that everybody meets everybody.
const KEYS: usize = 2;
/// So many that their responses fill more than a segment.
const KEYS_TO_ROLL_OVER: usize = 6;

/// In how many schedules a second segment was written to, over all scenarios.
static ROLLED_OVER: AtomicUsize = AtomicUsize::new(0);

/// How a store is used, and what happens to it.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// Either, where it makes no difference.
    durability: Option<Durability>,
    trouble: Trouble,
}

/// A store and all that was noted about it.
struct World {
    scenario: Scenario,
    durability: Durability,
    options: Options,
    clock: ManualClock,
    disk: SimulatedDisk,
    keys: Arc<Vec<Key>>,
    ledger: Arc<Ledger>,
    flushed: Arc<Mutex<Snapshot>>,
    upkeep: Upkeep,
}

/// What a crash left, and what everybody knew before it that must be there.
struct Crashed {
    disk: SimulatedDisk,
    known: Snapshot,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let durability = scenario.durability.unwrap_or_else(|| match chance(2) {
            0 => Durability::Buffered,
            _ => Durability::Sync,
        });
        let clock = ManualClock::new(START_MS);
        let lease = if scenario.trouble.leases {
            Lease::For(LEASE)
        } else {
            Lease::WhileAlive
        };
        let is_robbed = scenario.trouble.leases || scenario.trouble.operators;
        let keys = if scenario.trouble.rolls_over || scenario.trouble.maintains {
            KEYS_TO_ROLL_OVER
        } else {
            KEYS
        };
        let key = |number| Key::new("acct_1", "charge", format!("k-{number}")).expect("a key");
        Self {
            scenario,
            durability,
            options: Options::new()
                .durability(durability)
                .lease(lease)
                .segment_size(64 << 10)
                .reserved_response(1 << 10)
                .stripes(2)
                .clock(Arc::new(clock.clone())),
            upkeep: Upkeep {
                clock: clock.clone(),
                trouble: scenario.trouble,
                fillers: Arc::new(AtomicU64::new(0)),
            },
            clock,
            disk: SimulatedDisk::new(),
            keys: Arc::new((0..keys).map(key).collect()),
            ledger: Arc::new(Ledger::new(if is_robbed {
                Owners::Robbed
            } else {
                Owners::Exclusive
            })),
            flushed: Arc::default(),
        }
    }

    /// All of it, once.
    fn run(self) {
        let store = self
            .options
            .open_simulated(&self.disk)
            .expect("a new store");
        self.arrange_faults();
        let world = Arc::new(self);
        let crashed = world.use_store(&store);
        let trouble = world.scenario.trouble;
        let segments = world.disk.names().into_iter();
        if segments.filter(|name| name.ends_with(".log")).count() > 2 {
            ROLLED_OVER.fetch_add(1, Ordering::Relaxed);
        }
        if !trouble.closes && !trouble.poisons {
            let fillers = world.upkeep.fillers.load(Ordering::Relaxed);
            check_counts(&store, &world.keys, &world.ledger, fillers);
        }
        upkeep::count(&store);
        let at_the_end = match chance(3) {
            0 => world.crash(),
            1 => {
                let closed = store.close();
                assert!(closed.is_ok() || trouble.poisons, "{closed:?}");
                let known = match closed {
                    Ok(()) => world.ledger.snapshot(),
                    Err(_) => world.known_for_sure(),
                };
                let disk = world.disk.crash_all_lost();
                Crashed { disk, known }
            }
            _ => {
                let known = world.ledger.snapshot();
                let disk = world.disk.crash_none_lost();
                Crashed { disk, known }
            }
        };
        drop(store);
        world.check(crashed);
        world.check(at_the_end);
    }

    fn arrange_faults(&self) {
        if self.scenario.trouble.poisons {
            let plan = FaultPlan::new(OperationKind::Sync, Fault::InputOutput)
                .on("segment-")
                .after(chance(6) as u64)
                .drops_pages();
            self.disk.fail(plan);
        }
        if self.scenario.trouble.fills {
            let kib = 64 * (1 + chance(2)) as u64 + 16;
            self.disk.capacity(kib << 10);
        }
    }

    /// Runs the clients and whoever disturbs them; gives what a crash in between left.
    fn use_store(self: &Arc<Self>, store: &Store) -> Crashed {
        let trouble = self.scenario.trouble;
        let at_work = Arc::new(AtomicUsize::new(CLIENTS + usize::from(trouble.maintains)));
        let crashed: Arc<Mutex<Option<Crashed>>> = Arc::default();
        let after_an_answer = {
            let (world, crashed) = (Arc::clone(self), Arc::clone(&crashed));
            move || {
                if chance(4) == 0 {
                    let crash = world.crash();
                    *crashed.lock().unwrap_or_else(PoisonError::into_inner) = Some(crash);
                }
            }
        };
        let client = Client {
            store: store.clone(),
            ledger: Arc::clone(&self.ledger),
            keys: Arc::clone(&self.keys),
            trouble,
            steps: STEPS,
            flushed: Arc::clone(&self.flushed),
            fillers: Arc::clone(&self.upkeep.fillers),
            after_an_answer: Arc::new(after_an_answer),
        };
        let mut threads = Vec::new();
        if trouble.maintains {
            let (upkeep, at_work) = (self.upkeep.clone(), Arc::clone(&at_work));
            threads.push(thread::spawn(move || upkeep.tick(&at_work)));
            // Some of it is in the segments that will go.
            client.run();
            self.upkeep.begin(store);
        }
        threads.extend((0..CLIENTS).map(|_| {
            let (client, at_work) = (client.clone(), Arc::clone(&at_work));
            thread::spawn(move || {
                client.run();
                at_work.fetch_sub(1, Ordering::Relaxed);
            })
        }));
        drop(client);
        if trouble.maintains {
            let (upkeep, store) = (self.upkeep.clone(), store.clone());
            let at_work = Arc::clone(&at_work);
            threads.push(thread::spawn(move || {
                upkeep.run(&store);
                at_work.fetch_sub(1, Ordering::Relaxed);
            }));
        }
        if trouble.closes {
            let store = store.clone();
            threads.push(thread::spawn(move || {
                pause(200);
                store.close().expect("closed");
            }));
        }
        if trouble.fills {
            let disk = self.disk.clone();
            threads.push(thread::spawn(move || {
                pause(500);
                disk.capacity(None);
            }));
        }
        if trouble.leases {
            let (clock, at_work) = (self.clock.clone(), Arc::clone(&at_work));
            threads.push(thread::spawn(move || {
                while at_work.load(Ordering::Relaxed) > 0 {
                    pause(100);
                    clock.advance(LEASE / (1 + chance(4) as u32));
                    // However urgent this thread is, the clients come first.
                    thread::yield_now();
                }
            }));
        }
        for thread in threads {
            thread.join().expect("every call ends");
        }
        let last = crashed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        last.unwrap_or_else(|| self.crash())
    }

    /// The power goes, or the process alone.
    fn crash(&self) -> Crashed {
        if chance(2) == 0 {
            let known = self.ledger.snapshot();
            let disk = self.disk.crash_none_lost();
            return Crashed { disk, known };
        }
        let known = self.known_for_sure();
        let disk = match chance(2) {
            0 => self.disk.crash_all_lost(),
            _ => self.disk.crash_random(chance(1 << 20) as u64),
        };
        Crashed { disk, known }
    }

    /// What no loss of power may take back.
    fn known_for_sure(&self) -> Snapshot {
        match self.durability {
            Durability::Sync => self.ledger.snapshot(),
            _ => {
                let flushed = self.flushed.lock();
                flushed.unwrap_or_else(PoisonError::into_inner).clone()
            }
        }
    }

    /// A pass, and time for it.
    fn maintain(&self, store: &Store) {
        let at_work = Arc::new(AtomicUsize::new(1));
        let ticking = {
            let (upkeep, at_work) = (self.upkeep.clone(), Arc::clone(&at_work));
            thread::spawn(move || upkeep.tick(&at_work))
        };
        store.maintain().expect("a pass over what a crash left");
        at_work.store(0, Ordering::Relaxed);
        ticking.join().expect("it ends");
    }

    /// Opens what a crash left, as the next process does.
    fn check(&self, crashed: Crashed) {
        crashed.disk.capacity(None);
        let store = self
            .options
            .open_simulated(&crashed.disk)
            .expect("what a crash leaves can be opened");
        for pass in 0..2 {
            for key in self.keys.iter() {
                let state = store.get(key).expect("a new store answers");
                self.ledger.check_reopened(&crashed.known, key, &state);
            }
            if pass == 0 && self.scenario.trouble.maintains {
                self.maintain(&store);
            }
        }
    }
}

/// Explores a scenario; how many schedules that were.
fn check(name: &str, durability: Option<Durability>, trouble: Trouble) -> usize {
    let scenario = Scenario {
        durability,
        trouble,
    };
    explore(name, move || World::new(scenario).run())
}

#[test]
fn every_call_is_answered_and_every_answer_is_durable() {
    let trouble = Trouble::default();
    check("claims, synced", Some(Durability::Sync), trouble);
}

#[test]
fn buffered_answers_survive_the_process_and_flushed_ones_the_machine() {
    let trouble = Trouble::default();
    check("claims, buffered", Some(Durability::Buffered), trouble);
}

#[test]
fn segments_roll_over_under_everybodys_feet() {
    let trouble = Trouble {
        rolls_over: true,
        ..Trouble::default()
    };
    let schedules = check("roll-over", None, trouble);
    let rolled_over = ROLLED_OVER.load(Ordering::Relaxed);
    println!("{rolled_over:>7} schedules rolled over so far");
    assert!(schedules == 1 || rolled_over > 0, "none rolled over");
}

#[test]
fn leases_run_out_and_tickets_travel() {
    let trouble = Trouble {
        leases: true,
        ..Trouble::default()
    };
    check("leases and tickets", None, trouble);
}

#[test]
fn operators_take_keys_away() {
    let trouble = Trouble {
        operators: true,
        ..Trouble::default()
    };
    check("operators", None, trouble);
}

#[test]
fn a_close_in_the_middle_refuses_the_rest_and_loses_nothing() {
    let trouble = Trouble {
        closes: true,
        rolls_over: true,
        ..Trouble::default()
    };
    check("close", None, trouble);
}

#[test]
fn a_failed_sync_is_told_to_everybody_it_concerns() {
    let trouble = Trouble {
        poisons: true,
        // Preparing a segment fails with the sync, too.
        fills: true,
        rolls_over: true,
        ..Trouble::default()
    };
    check("failed sync", None, trouble);
}

#[test]
fn a_full_disk_refuses_claims_until_there_is_room() {
    let trouble = Trouble {
        fills: true,
        rolls_over: true,
        ..Trouble::default()
    };
    check("full disk", None, trouble);
}

#[test]
fn maintenance_meets_every_call_at_any_of_its_steps() {
    let trouble = Trouble {
        maintains: true,
        ..Trouble::default()
    };
    let schedules = check("maintenance", None, trouble);
    maintained(schedules);
}

#[test]
fn maintenance_meets_removals_and_takeovers() {
    let trouble = Trouble {
        maintains: true,
        leases: true,
        operators: true,
        ..Trouble::default()
    };
    let schedules = check("maintenance, operators", None, trouble);
    maintained(schedules);
}

#[test]
fn maintenance_meets_a_close() {
    let trouble = Trouble {
        maintains: true,
        closes: true,
        ..Trouble::default()
    };
    let schedules = check("maintenance, close", None, trouble);
    maintained(schedules);
}

fn maintained(schedules: usize) {
    let counts = [&upkeep::GIVEN_UP, &upkeep::COPIED, &upkeep::REFRESHED];
    let [given_up, copied, refreshed] = counts.map(|count| count.load(Ordering::Relaxed));
    println!(
        "{given_up} segments were given up so far, {copied} records copied, {refreshed} keys \
         written again"
    );
    let are_some = given_up > 0 && copied > 0 && refreshed > 0;
    assert!(schedules == 1 || are_some, "maintenance had nothing to do");
}
