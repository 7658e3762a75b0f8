//! Eight threads on sixteen keys in the smallest segments, with leases of milliseconds: everything a
//! store can be asked to do, at random and at once.
//!
//! What is checked needs no model of the schedule, since tokens and sequences are positions in one
//! log: no completion stands behind a later grant of its key (a stale owner wrote), a key that is
//! never removed completes once and is never granted again, every replay is byte for byte what its
//! token's owner stored, and in the end all counts and the account of free room are what they were.
//! A watchdog ends the process where nothing moves for a minute.

mod support;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use oncekey::{
    Claim, ClaimOptions, Durability, Forget, Key, KeyState, Lease, Operation, Replay, Saved, Store,
    Ticket, WriteError,
};

use support::*;

const THREADS: usize = 8;
/// The first half is never removed, so it completes once.
const KEYS: usize = 16;
const SEGMENT_WORDS: u64 = (64 << 10) / 8;
const HEADER_WORDS: u64 = 512;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What the owner with this token stores.
fn response(token: u64) -> Vec<u8> {
    let mut random = Random(token | 1);
    for _ in 0..8 {
        random.below(2);
    }
    let len = match random.below(8) {
        0 => 0,
        1 => 15_000,
        2 => 5_000 + random.below(9_000),
        _ => random.below(600),
    };
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[derive(Default)]
struct Seen {
    grants: Mutex<Vec<(usize, u64)>>,
    /// Key, token, sequence.
    completions: Mutex<Vec<(usize, u64, u64)>>,
    tickets: Mutex<Vec<Ticket>>,
    /// Guards that are kept, so that they go stale.
    kept: Mutex<Vec<(usize, Operation)>>,
    steps: AtomicUsize,
    doing: [AtomicU64; THREADS],
    done: AtomicBool,
}

impl Seen {
    fn replayed(&self, index: usize, saved: &Saved) {
        let token = saved.token().as_u64();
        let completion = (index, token, saved.sequence());
        self.completions.lock().unwrap().push(completion);
        match saved.by_scope().unwrap() {
            Replay::Response(stored) => assert!(stored[..] == response(token)[..], "{token}"),
            Replay::NotStored => {}
        }
    }

    fn claimed(&self, index: usize, claim: Claim) -> Option<Operation> {
        match claim {
            Claim::Started(operation) | Claim::Interrupted(operation) => {
                let grant = (index, operation.token().as_u64());
                self.grants.lock().unwrap().push(grant);
                Some(operation)
            }
            Claim::Completed(saved) => {
                self.replayed(index, &saved);
                None
            }
            Claim::InProgress(_) => None,
            other => panic!("{other:?}"),
        }
    }
}

fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn is_lost(error: &WriteError) {
    assert!(matches!(error, WriteError::LeaseLost { .. }), "{error:?}");
}

/// Ends an operation one way or another.
fn act(seen: &Seen, random: &mut Random, index: usize, mut operation: Operation) {
    let token = operation.token().as_u64();
    match random.below(14) {
        0 => drop(operation),
        1 => {
            if let Err(error) = operation.release() {
                is_lost(error.error());
            }
        }
        2 => drop(poll_once(operation.release_async())),
        3 => {
            if let Ok(ticket) = operation.into_ticket() {
                let ticket = Ticket::decode(&ticket.encode()).unwrap();
                seen.tickets.lock().unwrap().push(ticket);
            }
        }
        4 | 5 => seen.kept.lock().unwrap().push((index, operation)),
        6 => {
            let note = vec![7; random.below(4_097) as usize];
            if let Err(error) = operation.checkpoint(&note) {
                is_lost(&error);
            }
            if random.below(2) == 0
                && let Err(error) = operation.renew()
            {
                is_lost(&error);
            }
            seen.kept.lock().unwrap().push((index, operation));
        }
        7 => drop(poll_once(operation.complete_async(response(token)))),
        8 => match operation.complete_without_response() {
            Ok(saved) => seen.replayed(index, &saved),
            Err(error) => is_lost(error.error()),
        },
        9 => {
            drop(poll_once(operation.checkpoint_async(b"cut short")));
            drop(operation);
        }
        _ => {
            if random.below(4) == 0 {
                thread::sleep(Duration::from_millis(random.below(4)));
            }
            match block_on(operation.complete_async(response(token))) {
                Ok(saved) => {
                    assert_eq!(saved.token().as_u64(), token);
                    seen.replayed(index, &saved);
                }
                Err(error) => is_lost(error.error()),
            }
        }
    }
}

fn step(store: &Store, keys: &[Key], seen: &Seen, random: &mut Random) -> u64 {
    let index = random.below(KEYS as u64) as usize;
    let key = &keys[index];
    let options = match random.below(4) {
        0 => ClaimOptions::new(),
        _ => lease(1 + random.below(5)),
    };
    let options = match random.below(4) {
        0 => options.durability(Durability::Sync),
        1 => options.durability(Durability::Buffered),
        _ => options,
    };
    let what = random.below(20);
    match what {
        0 => {
            if index >= KEYS / 2 {
                store.forget(key, Forget::Force).unwrap();
            }
        }
        1 => {
            if index >= KEYS / 2 {
                drop(poll_once(store.forget_async(key, Forget::Force)));
            }
        }
        2 => {
            let pending = store.pending().unwrap();
            if !pending.is_empty() {
                let chosen = &pending[random.below(pending.len() as u64) as usize];
                drop(store.interrupt(&chosen.key, chosen.token));
            }
        }
        3 | 4 => {
            let ticket = {
                let tickets = seen.tickets.lock().unwrap();
                (!tickets.is_empty())
                    .then(|| tickets[random.below(tickets.len() as u64) as usize].clone())
            };
            if let Some(ticket) = ticket {
                let index = keys.iter().position(|key| key == ticket.key()).unwrap();
                if random.below(4) == 0 {
                    if let Some(Ok(claim)) = poll_once(store.resume_async(&ticket))
                        && let Some(operation) = seen.claimed(index, claim)
                    {
                        act(seen, random, index, operation);
                    }
                } else if let Ok(claim) = store.resume(&ticket)
                    && let Some(operation) = seen.claimed(index, claim)
                {
                    act(seen, random, index, operation);
                }
            }
        }
        5..=7 => {
            let kept = {
                let mut kept = seen.kept.lock().unwrap();
                let len = kept.len() as u64;
                (len > 0).then(|| kept.swap_remove(random.below(len) as usize))
            };
            if let Some((index, operation)) = kept {
                act(seen, random, index, operation);
            }
        }
        8 => {
            let many: Vec<usize> = (0..6).map(|_| random.below(KEYS as u64) as usize).collect();
            let asked = many.iter().map(|index| (&keys[*index], request()));
            let claims = match random.below(3) {
                0 => poll_once(store.claim_many_async(asked, options)).unwrap_or_default(),
                _ => store.claim_many(asked, options),
            };
            for (index, claim) in many.into_iter().zip(claims) {
                if let Some(operation) = seen.claimed(index, claim.unwrap()) {
                    act(seen, random, index, operation);
                }
            }
        }
        9 => {
            if let KeyState::Completed(saved) = store.get(key).unwrap() {
                seen.replayed(index, &saved);
            }
        }
        10 => drop(poll_once(store.claim_with_async(key, request(), options))),
        11 => {
            if let Claim::InProgress(progress) = store.claim_with(key, request(), options).unwrap()
            {
                drop(poll_once(progress.wait_async()));
            }
        }
        _ => {
            let claim = match random.below(2) {
                0 => store.claim_with(key, request(), options).unwrap(),
                _ => block_on(store.claim_with_async(key, request(), options)).unwrap(),
            };
            let claim = match claim {
                Claim::InProgress(progress) if random.below(3) == 0 => progress
                    .wait(Duration::from_millis(random.below(8)))
                    .unwrap(),
                other => other,
            };
            let is_completed = matches!(claim, Claim::Completed(_));
            if let Some(operation) = seen.claimed(index, claim) {
                act(seen, random, index, operation);
            } else if is_completed && index >= KEYS / 2 {
                match store.forget(key, Forget::IfCompleted) {
                    Ok(_) | Err(oncekey::AdminError::Pending { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }
    what
}

fn stress(durability: Durability, rounds: usize, steps: usize, seed: u64) {
    let directory = directory();
    let options = small(durability).lease(Lease::For(Duration::from_millis(20)));
    let store = options.open(directory.path()).unwrap();
    eventually("a prepared segment", || {
        store.stats().segments_prepared == 1
    });
    // Each of the two segments counts for so much less.
    let slop = SEGMENT_WORDS - HEADER_WORDS - store.stats().available_bytes / 8 / 2;
    let keys: Vec<Vec<Key>> = (0..rounds)
        .map(|round| {
            (0..KEYS)
                .map(|index| key(&format!("{round}-{index}")))
                .collect()
        })
        .collect();
    for (round, keys) in keys.iter().enumerate() {
        run(&store, keys, steps, seed * 100 + round as u64);
        check_room(&store, slop);
    }

    // The same after a restart.
    let keys: Vec<&Key> = keys.iter().flatten().collect();
    let before: Vec<_> = keys.iter().map(|key| describe(&store, key)).collect();
    drop(store);
    let store = options.open(directory.path()).unwrap();
    let after: Vec<_> = keys.iter().map(|key| describe(&store, key)).collect();
    assert_eq!(before, after);
    for one in store.interrupted().unwrap() {
        assert!(store.forget(&one.key, Forget::Force).unwrap());
    }
    assert_eq!(store.stats().pending_keys, 0);
}

fn run(store: &Store, keys: &[Key], steps: usize, seed: u64) {
    let seen = Seen::default();
    thread::scope(|scope| {
        scope.spawn(|| watchdog(store, &seen));
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let seen = &seen;
                scope.spawn(move || {
                    let mut random = Random(seed * 1_000 + number as u64 + 1);
                    for _ in 0..steps / THREADS {
                        let what = step(store, keys, seen, &mut random);
                        seen.doing[number].store(what, Ordering::Relaxed);
                        seen.steps.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        seen.done.store(true, Ordering::Relaxed);
        for end in ends {
            if let Err(panic) = end {
                std::panic::resume_unwind(panic);
            }
        }
    });
    seen.kept.lock().unwrap().clear();
    store.flush().unwrap();

    let live = loop {
        // What tickets hold ends with their leases.
        let (pending, interrupted) = (store.pending().unwrap(), store.interrupted().unwrap());
        if pending.is_empty() {
            break interrupted;
        }
        assert!(pending.iter().all(|one| one.is_detached), "{pending:?}");
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(store.stats().pending_keys, live.len() as u64);
    assert_eq!(store.stats().waiters, 0);
    // A ticket's room stays set aside when its lease is over, until somebody takes the key.
    for one in &live {
        drop(store.interrupt(&one.key, one.token));
    }
    check_order(&seen);
}

fn describe(store: &Store, key: &Key) -> String {
    match store.get(key).unwrap() {
        KeyState::Absent => String::from("absent"),
        KeyState::Interrupted { attempt, token, .. } => format!("interrupted {attempt} {token}"),
        KeyState::Completed(saved) => format!("completed {} {}", saved.token(), saved.sequence()),
        other => panic!("{other:?}"),
    }
}

/// A 32nd of a segment is promised to maintenance.
const MAINTENANCE_WORDS: i64 = SEGMENT_WORDS as i64 / 32;

/// No promise is left: all the room that was not written is free, but for what maintenance holds once
/// it has something to give up. It may write in between, and comes to an end.
fn check_room(store: &Store, slop: u64) {
    let mut last = String::new();
    for number in 0.. {
        assert!(number < 200, "rolled over each time, or left: {last}");
        eventually("a prepared segment", || {
            store.stats().segments_prepared >= 1
        });
        let stats = store.stats();
        let probe = key(&format!("probe-{number}"));
        let operation = started(store.claim(&probe, request()).unwrap());
        let tail = operation.token().as_u64() % SEGMENT_WORDS;
        operation.release().unwrap();
        if tail == HEADER_WORDS || store.stats().segments_prepared != stats.segments_prepared {
            continue;
        }
        let ready = stats.segments_prepared * (SEGMENT_WORDS - HEADER_WORDS - slop);
        let free = (SEGMENT_WORDS - tail + ready) as i64 - slop as i64;
        let held = free - stats.available_bytes as i64 / 8;
        if held == 0 || held == MAINTENANCE_WORDS {
            return;
        }
        last = format!("{free} words are free of {stats:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn check_order(seen: &Seen) {
    let mut grants: HashMap<usize, Vec<u64>> = HashMap::new();
    for (index, token) in seen.grants.lock().unwrap().iter() {
        grants.entry(*index).or_default().push(*token);
    }
    for tokens in grants.values_mut() {
        tokens.sort_unstable();
        assert!(
            tokens.is_sorted_by(|left, right| left < right),
            "a token twice"
        );
    }
    let mut completions = seen.completions.lock().unwrap().clone();
    completions.sort_unstable();
    completions.dedup();
    for (index, token, sequence) in &completions {
        let tokens = grants.entry(*index).or_default();
        let stale = tokens
            .iter()
            .find(|later| (token + 1..*sequence).contains(later));
        assert_eq!(
            stale, None,
            "{token} of key {index} completed at {sequence}"
        );
        if *index < KEYS / 2 {
            let later = tokens.iter().find(|later| *later > sequence);
            assert_eq!(later, None, "key {index} was completed at {sequence}");
        }
    }
    let mut by_token: Vec<_> = completions.iter().map(|(_, token, _)| *token).collect();
    by_token.sort_unstable();
    assert!(
        by_token.is_sorted_by(|left, right| left < right),
        "two completions of one grant"
    );
    for index in 0..KEYS / 2 {
        let count = completions.iter().filter(|(of, ..)| *of == index).count();
        assert!(count <= 1, "key {index} completed {count} times");
    }
}

fn watchdog(store: &Store, seen: &Seen) {
    let mut known = 0;
    let mut idle = 0;
    while !seen.done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
        let steps = seen.steps.load(Ordering::Relaxed);
        idle = if steps == known { idle + 1 } else { 0 };
        known = steps;
        if idle == 6_000 {
            eprintln!("nothing moved for a minute after {steps} steps");
            eprintln!("doing (one before): {:?}", seen.doing);
            eprintln!("{:?}", store.stats());
            eprintln!("{:?}", store.pending());
            std::process::abort();
        }
    }
}

/// Another one for each run outside of the suite: `ONCEKEY_STRESS_SEED=7`.
fn seed() -> u64 {
    let set = std::env::var("ONCEKEY_STRESS_SEED").ok();
    set.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn buffered() {
    stress(Durability::Buffered, 40, 4_000, seed());
}

#[test]
fn sync() {
    stress(Durability::Sync, 10, 1_600, seed());
}

/// Threads that claim and complete, alone, by batch and by waiting for each other, until the store
/// refuses. Returns what was acknowledged.
fn until_refused(store: &Store, stop: impl FnOnce()) -> Vec<Key> {
    let shared = key("shared");
    let held = started(store.claim(&shared, request()).unwrap());
    let acknowledged = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (acknowledged, shared) = (&acknowledged, &shared);
            scope.spawn(move || {
                for n in 0.. {
                    let one = key(&format!("{number}-{n}"));
                    let ended = match number {
                        0 => store
                            .claim(shared, request())
                            .map(|claim| in_progress(claim).wait(LONG).map(drop).is_err()),
                        1 => store
                            .claim(shared, request())
                            .map(|claim| block_on(in_progress(claim).wait_async()).is_err()),
                        2 | 3 => {
                            let batch: Vec<Key> =
                                (0..9).map(|m| key(&format!("{number}-{n}-{m}"))).collect();
                            let batch = batch.iter().map(|key| (key, request()));
                            store
                                .claim_many(batch, ClaimOptions::new())
                                .into_iter()
                                .collect::<Result<Vec<_>, _>>()
                                .map(|claims| {
                                    claims.into_iter().any(|claim| {
                                        started(claim).complete(vec![1; 3_000]).is_err()
                                    })
                                })
                        }
                        4 => store.claim(&one, request()).map(|claim| {
                            let large = started(claim).complete(vec![2; 15_000]);
                            let is_acknowledged = large.is_ok();
                            acknowledged
                                .lock()
                                .unwrap()
                                .extend(is_acknowledged.then_some(one));
                            !is_acknowledged
                        }),
                        _ => block_on(store.claim_async(&one, request())).map(|claim| {
                            let small = block_on(started(claim).complete_async(b"paid"));
                            let is_acknowledged = small.is_ok();
                            acknowledged
                                .lock()
                                .unwrap()
                                .extend(is_acknowledged.then_some(one));
                            !is_acknowledged
                        }),
                    };
                    if ended.unwrap_or(true) {
                        return;
                    }
                }
            });
        }
        stop();
    });
    drop(held);
    acknowledged.into_inner().unwrap()
}

fn all_are_there(store: &Store, acknowledged: &[Key]) {
    for key in acknowledged {
        completed(store.claim(key, request()).unwrap());
    }
    assert!(store.pending().unwrap().is_empty());
}

#[test]
fn closing_while_everybody_is_at_work_loses_nothing_and_hangs_nobody() {
    for round in 0..24 {
        let directory = directory();
        let options = small(DURABILITIES[round % 2]);
        let store = options.open(directory.path()).unwrap();
        let acknowledged = until_refused(&store, || {
            thread::sleep(Duration::from_millis(round as u64 * 2));
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| store.close().unwrap());
                }
            });
        });
        all_are_there(&options.open(directory.path()).unwrap(), &acknowledged);
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};

    use super::*;

    #[test]
    fn a_failed_sync_amid_the_work_takes_nothing_back_and_hangs_nobody() {
        for round in 0..100 {
            let disk = SimulatedDisk::new();
            let options = small(Durability::Sync);
            let store = options.open_simulated(&disk).unwrap();
            let acknowledged = until_refused(&store, || {
                let plan = FaultPlan::new(OperationKind::Sync, Fault::InputOutput);
                disk.fail(plan.after(round * 3).sticky());
                // Who only waits for the one that is held learns of it by the close.
                eventually("the failure", || store.stats().poisoned);
                assert!(store.close().is_err());
            });
            let crashed = disk.crash_all_lost();
            crashed.heal();
            all_are_there(&options.open_simulated(&crashed).unwrap(), &acknowledged);
        }
    }

    #[test]
    fn who_got_a_key_can_complete_it_however_full_the_disk_is() {
        for seed in 1..=20 {
            let disk = SimulatedDisk::new();
            let store = small(Durability::Buffered).open_simulated(&disk).unwrap();
            eventually("a prepared segment", || {
                store.stats().segments_prepared == 1
            });
            disk.capacity(14 * (64 << 10));
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let store = &store;
                    scope.spawn(move || {
                        let mut random = Random(seed * 100 + number as u64);
                        fill(store, number, &mut random);
                    });
                }
            });
            assert_eq!(store.stats().pending_keys, 0);
        }
    }

    fn fill(store: &Store, number: usize, random: &mut Random) {
        let mut held = Vec::new();
        let mut refused = 0;
        for n in 0.. {
            if refused == 40 {
                break;
            }
            let scope = "s".repeat(random.below(256) as usize);
            let key = Key::new(scope, "", format!("{number}-{n}")).unwrap();
            match store.claim_with(&key, request(), lease(3_600_000)) {
                Ok(claim) => held.push(started(claim)),
                Err(oncekey::ClaimError::OutOfSpace(_)) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
            while held.len() as u64 > random.below(12) {
                let mut operation = held.swap_remove(random.below(held.len() as u64) as usize);
                let reserved = vec![3; 4_096 - random.below(2) as usize * 4_000];
                let full = |error: &WriteError| {
                    assert!(matches!(error, WriteError::OutOfSpace(_)), "{error:?}");
                };
                match random.below(6) {
                    0 => operation.release().unwrap(),
                    1 => {
                        // More than was set aside: it may be refused, with the guard still held.
                        if let Err(error) = operation.complete(vec![4; 15_000]) {
                            full(error.error());
                            let operation = error.into_operation().unwrap();
                            operation.complete(reserved).unwrap();
                        }
                    }
                    2 => {
                        if let Err(error) = operation.checkpoint(vec![5; 4_000]) {
                            full(&error);
                        }
                        operation.complete(reserved).unwrap();
                    }
                    3 => {
                        let ticket = operation.into_ticket().unwrap();
                        match store.resume(&ticket) {
                            Ok(claim) => drop(started(claim).complete(reserved).unwrap()),
                            Err(error) => {
                                assert!(format!("{error:?}").contains("OutOfSpace"), "{error:?}");
                                let pending = store.pending().unwrap();
                                let one = pending.iter().find(|one| one.key == *ticket.key());
                                store.interrupt(ticket.key(), one.unwrap().token).unwrap();
                                while store.forget(ticket.key(), Forget::Force).is_err() {
                                    thread::sleep(Duration::from_millis(1));
                                    drop(held.pop());
                                }
                            }
                        }
                    }
                    _ => {
                        let completion = operation.complete_with(reserved);
                        drop(completion.principal(vec![b'p'; 255]).commit().unwrap());
                    }
                }
                if held.is_empty() {
                    break;
                }
            }
        }
        for operation in held {
            operation.complete(vec![6; 4_096]).unwrap();
        }
    }
}
