//! A thread at work on few keys: everything that can be asked of a store, at random, each call
//! written down before and after.

mod guards;
mod looks;

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oncekey::{
    Claim, ClaimError, ClaimOptions, Clock, Durability, Fingerprint, Key, Lease, MaintenanceReport,
    ManualClock, Operation, Replay, ResumeError, Saved, Store, Ticket, Unavailable,
};

use crate::history::{Answer, Call, Record, Seen, What};
use crate::support::{Random, START_MS, block_on};

/// Where records go; one for each thread.
pub trait Recorder {
    fn record(&mut self, record: Record);
}

/// The time that windows are made of.
#[derive(Clone)]
pub enum Time {
    Manual(ManualClock),
    /// Only differences count, and a store rounds on its own: windows are wider by its rounding.
    System(Instant),
}

impl Time {
    /// Moves a clock that does not move by itself.
    pub fn tick(&self) {
        if let Self::Manual(clock) = self {
            clock.advance(Duration::from_millis(1));
        }
    }

    fn before_ms(&self) -> u64 {
        match self {
            Self::Manual(clock) => clock.monotonic_ms(),
            Self::System(start) => start.elapsed().as_millis() as u64,
        }
    }

    fn after_ms(&self) -> u64 {
        match self {
            Self::Manual(clock) => clock.monotonic_ms(),
            Self::System(start) => start.elapsed().as_millis() as u64 + 3,
        }
    }

    fn expires_ms(&self, saved: &Saved) -> u64 {
        match self {
            Self::Manual(_) => since_epoch_ms(saved.expires_at()) - START_MS,
            Self::System(_) => 0,
        }
    }
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_millis() as u64
}

/// A ticket on its way, with what the automaton must know of it.
#[derive(Clone)]
pub struct Carried {
    key: u8,
    request: u8,
    lease_ms: u64,
    retention_ms: u64,
    token: u64,
    ticket: Ticket,
}

/// What threads hand each other; it outlives the store.
pub type Queue = Mutex<Vec<Carried>>;

/// A guard, with what the automaton must know of it.
struct Guard {
    key: u8,
    request: u8,
    lease_ms: u64,
    retention_ms: u64,
    sync: bool,
    operation: Operation,
}

impl Guard {
    fn token(&self) -> u64 {
        self.operation.token().as_u64()
    }
}

pub struct Worker<'a, R> {
    pub store: &'a Store,
    pub keys: &'a [Key],
    pub queue: &'a Queue,
    pub time: Time,
    /// Whether the store's own level is `Sync`.
    pub sync: bool,
    pub random: Random,
    pub recorder: R,
    /// Greater than every id that this thread gave before.
    pub next_id: u64,
}

/// How a claim is made.
#[derive(Clone, Copy)]
struct Wish {
    key: u8,
    request: u8,
    lease_ms: u64,
    retention_ms: u64,
    sync: bool,
}

/// The store is closed: the work is over.
struct Closed;

/// Polls a future some times and gives it up then.
fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        thread::yield_now();
    }
    None
}

/// The bytes that stand for a response: from none to more than is set aside for it.
fn response_bytes(id: u64) -> Vec<u8> {
    let words = match id % 16 {
        15 => 1_200,
        14 => 520,
        other => 1 + other as usize,
    };
    id.to_le_bytes().repeat(words)
}

fn response_of(replay: &Replay) -> u64 {
    let Replay::Response(bytes) = replay else {
        return 0;
    };
    let Some((first, _)) = bytes.split_first_chunk::<8>() else {
        return u64::MAX;
    };
    let id = u64::from_le_bytes(*first);
    if bytes[..] == response_bytes(id)[..] {
        id
    } else {
        u64::MAX
    }
}

fn note_of(bytes: &[u8]) -> u64 {
    <[u8; 8]>::try_from(bytes).map_or(u64::MAX, u64::from_le_bytes)
}

fn fingerprint(request: u8) -> Fingerprint {
    Fingerprint::of([request])
}

/// Makes work for maintenance and has it done, until `done` or the store is closed, and `told`: results of keys
/// that no history has fill segments and expire.
pub fn maintain_more(
    store: &Store,
    time: &Time,
    round: u64,
    done: &AtomicBool,
    told: impl Fn(&MaintenanceReport),
) {
    for number in 0.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let key = Key::new("filler", "filler", format!("{round}-{number}")).expect("a key");
        let options = ClaimOptions::new()
            .durability(Durability::Buffered)
            .retention(Duration::from_millis(1));
        let Ok(Claim::Started(operation)) = store.claim_with(&key, fingerprint(0), options) else {
            return;
        };
        if operation.complete(vec![7; 14_000]).is_err() {
            return;
        }
        time.tick();
        if number % 6 == 5 {
            match store.maintain() {
                Ok(report) => told(&report),
                Err(_) => return,
            }
        }
        thread::yield_now();
    }
}

impl<R: Recorder> Worker<'_, R> {
    /// Works for so many steps, or until the store is closed or `stop` says so. No guard is left;
    /// those that are held then are dropped after `before_drop`.
    pub fn run(
        &mut self,
        steps: usize,
        mut stop: impl FnMut() -> bool,
        before_drop: impl FnOnce(),
    ) {
        let mut held = Vec::new();
        for _ in 0..steps {
            if stop() || self.step(&mut held).is_err() {
                break;
            }
        }
        before_drop();
        for guard in held {
            self.drop_guard(guard);
        }
    }

    fn invoke(&mut self, key: u8, sync: bool, what: What) -> u64 {
        self.next_id += 1;
        self.invoke_as(self.next_id, key, sync, what)
    }

    fn invoke_as(&mut self, id: u64, key: u8, sync: bool, what: What) -> u64 {
        let record = Record::Invoked {
            id,
            at_ms: self.time.before_ms(),
            call: Call { key, sync, what },
        };
        self.recorder.record(record);
        id
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        let record = Record::Answered {
            id,
            at_ms: self.time.after_ms(),
            answer,
        };
        self.recorder.record(record);
    }

    fn step(&mut self, held: &mut Vec<Guard>) -> Result<(), Closed> {
        // The time moves with the work, so that every lease and every retention ends some time.
        if let Time::Manual(clock) = &self.time
            && self.random.below(6) == 0
        {
            let ms = [1, 1, 2, 7, 40, 900][self.random.below(6)];
            clock.advance(Duration::from_millis(ms));
        }
        let is_full = held.len() == 2;
        match self.random.below(21) {
            20 => self.maintain()?,
            0 => self.get()?,
            1 => self.get_async()?,
            2 => self.forget()?,
            3 => self.interrupt()?,
            4 | 5 => self.resume(held)?,
            6 => self.flush()?,
            7 if !is_full => self.claim_many(held)?,
            8 if !is_full => self.claim_cut()?,
            9..=13 if !is_full => self.claim(held)?,
            _ if held.is_empty() => self.claim(held)?,
            _ => {
                let guard = held.swap_remove(self.random.below(held.len()));
                self.act(held, guard)?;
            }
        }
        Ok(())
    }

    fn key(&mut self) -> u8 {
        self.random.below(self.keys.len()) as u8
    }

    fn wish(&mut self) -> Wish {
        let lease_ms = match (self.random.below(4), &self.time) {
            (0, _) => 0,
            (1, Time::Manual(_)) => 1,
            (_, Time::Manual(_)) => 1 + self.random.below(60) as u64,
            (1, Time::System(_)) => 3_600_000,
            (_, Time::System(_)) => 1 + self.random.below(12) as u64,
        };
        let retention_ms = match self.time {
            Time::Manual(_) => 1_000 + 250 * self.random.below(8) as u64,
            Time::System(_) => 86_400_000,
        };
        Wish {
            key: self.key(),
            request: u8::from(self.random.below(16) == 0),
            lease_ms,
            retention_ms,
            sync: match self.random.below(8) {
                0 => true,
                1 => false,
                _ => self.sync,
            },
        }
    }

    fn options(wish: Wish) -> ClaimOptions {
        let lease = match wish.lease_ms {
            0 => Lease::WhileAlive,
            ms => Lease::For(Duration::from_millis(ms)),
        };
        ClaimOptions::new()
            .lease(lease)
            .retention(Duration::from_millis(wish.retention_ms))
            .durability(if wish.sync {
                Durability::Sync
            } else {
                Durability::Buffered
            })
    }

    fn ask_claim(&mut self, wish: Wish) -> u64 {
        let what = What::Claim {
            request: wish.request,
            lease_ms: wish.lease_ms,
        };
        self.invoke(wish.key, wish.sync, what)
    }

    fn claim(&mut self, held: &mut Vec<Guard>) -> Result<(), Closed> {
        let wish = self.wish();
        let options = Self::options(wish);
        let (store, key) = (self.store, &self.keys[usize::from(wish.key)]);
        let id = self.ask_claim(wish);
        let claim = match self.random.below(3) {
            0 => block_on(store.claim_with_async(key, fingerprint(wish.request), options)),
            _ => store.claim_with(key, fingerprint(wish.request), options),
        };
        let Some(progress) = self.claimed(held, id, wish, claim)? else {
            return Ok(());
        };
        match self.random.below(6) {
            0 | 1 => {
                let id = self.ask_claim(wish);
                let timeout = Duration::from_millis(self.random.below(3) as u64);
                let claim = progress.wait(timeout);
                drop(self.claimed(held, id, wish, claim)?);
            }
            2 => {
                let id = self.ask_claim(wish);
                match poll_times(20, progress.wait_async()) {
                    Some(claim) => drop(self.claimed(held, id, wish, claim)?),
                    None => self.answer(id, Answer::Cut),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn claim_cut(&mut self) -> Result<(), Closed> {
        let wish = self.wish();
        let (store, key) = (self.store, &self.keys[usize::from(wish.key)]);
        let times = self.random.below(3);
        let id = self.ask_claim(wish);
        let future = store.claim_with_async(key, fingerprint(wish.request), Self::options(wish));
        let mut held = Vec::new();
        match poll_times(times, future) {
            Some(claim) => drop(self.claimed(&mut held, id, wish, claim)?),
            None => self.answer(id, Answer::Cut),
        }
        for guard in held {
            self.drop_guard(guard);
        }
        Ok(())
    }

    fn claim_many(&mut self, held: &mut Vec<Guard>) -> Result<(), Closed> {
        let wish = self.wish();
        // Each key once, as a rule: repeated ones are under way at once, which costs the check most.
        let count = self.keys.len() as u8;
        let mut keys: Vec<u8> = (0..2).map(|next| (wish.key + next) % count).collect();
        if self.random.below(6) == 0 {
            keys.push(wish.key);
        }
        let wishes: Vec<Wish> = keys.into_iter().map(|key| Wish { key, ..wish }).collect();
        let (store, keys) = (self.store, self.keys);
        let asked = wishes
            .iter()
            .map(|wish| (&keys[usize::from(wish.key)], fingerprint(wish.request)));
        let ids: Vec<u64> = wishes.iter().map(|wish| self.ask_claim(*wish)).collect();
        let claims = match self.random.below(3) {
            0 => match poll_times(2, store.claim_many_async(asked, Self::options(wish))) {
                Some(claims) => claims,
                None => {
                    ids.into_iter().for_each(|id| self.answer(id, Answer::Cut));
                    return Ok(());
                }
            },
            _ => store.claim_many(asked, Self::options(wish)),
        };
        let mut is_closed = Ok(());
        for ((id, wish), claim) in ids.into_iter().zip(wishes).zip(claims) {
            match self.claimed(held, id, wish, claim) {
                Ok(progress) => drop(progress),
                Err(closed) => is_closed = Err(closed),
            }
        }
        is_closed
    }

    /// Writes down what a claim led to, and keeps the guard.
    fn claimed(
        &mut self,
        held: &mut Vec<Guard>,
        id: u64,
        wish: Wish,
        claim: Result<Claim, ClaimError>,
    ) -> Result<Option<oncekey::InProgress>, Closed> {
        let mut guard = None;
        let mut progress = None;
        let answer = match claim {
            Ok(Claim::Started(operation)) => {
                let answer = Answer::Started {
                    attempt: operation.attempt(),
                    token: operation.token().as_u64(),
                };
                guard = Some(operation);
                answer
            }
            Ok(Claim::Interrupted(operation)) => {
                let previous = operation.previous().expect("an attempt before");
                assert_eq!(previous.attempt + 1, operation.attempt());
                let answer = Answer::Interrupted {
                    attempt: operation.attempt(),
                    token: operation.token().as_u64(),
                    note: previous.checkpoint.map_or(0, |note| note_of(&note)),
                };
                guard = Some(operation);
                answer
            }
            Ok(Claim::InProgress(found)) => {
                let attempt = found.attempt();
                progress = Some(found);
                Answer::InProgress { attempt }
            }
            Ok(Claim::Completed(saved)) => self.seen(&saved),
            Ok(Claim::Mismatch(mismatch)) => Answer::Mismatch {
                attempt: mismatch.attempt,
                completed: mismatch.completed,
            },
            Ok(other) => panic!("{other:?}"),
            Err(ClaimError::OutcomeUnknown(_)) => Answer::Cut,
            Err(ClaimError::Unavailable(Unavailable::Closed)) => {
                self.answer(id, Answer::Refused);
                return Err(Closed);
            }
            Err(error) => panic!("{error:?}"),
        };
        self.answer(id, answer);
        held.extend(guard.map(|operation| Guard {
            key: wish.key,
            request: wish.request,
            lease_ms: wish.lease_ms,
            retention_ms: wish.retention_ms,
            sync: wish.sync,
            operation,
        }));
        Ok(progress)
    }

    fn seen(&self, saved: &Saved) -> Answer {
        Answer::Completed(Seen {
            attempt: saved.attempt(),
            token: saved.token().as_u64(),
            response: response_of(&saved.by_scope().expect("no principal")),
            expires_ms: self.time.expires_ms(saved),
        })
    }

    fn resume(&mut self, held: &mut Vec<Guard>) -> Result<(), Closed> {
        let carried = {
            let queue = self.queue.lock().expect("not poisoned");
            if queue.is_empty() {
                return Ok(());
            }
            // The newest, as a rule; a ticket stays in the queue, so it is delivered again.
            let back = self.random.below(queue.len().min(6));
            queue[queue.len() - 1 - back].clone()
        };
        let wish = Wish {
            key: carried.key,
            request: carried.request,
            lease_ms: carried.lease_ms,
            retention_ms: carried.retention_ms,
            sync: self.sync,
        };
        let what = What::Resume {
            ticket: carried.token,
            request: carried.request,
            lease_ms: carried.lease_ms,
        };
        let id = self.invoke(wish.key, wish.sync, what);
        let claim = match self.random.below(4) {
            0 => match poll_times(2, self.store.resume_async(&carried.ticket)) {
                Some(claim) => claim,
                None => {
                    self.answer(id, Answer::Cut);
                    return Ok(());
                }
            },
            _ => self.store.resume(&carried.ticket),
        };
        match claim {
            Err(ResumeError::LeaseLost { new_attempt }) => {
                self.answer(id, Answer::LeaseLost { new_attempt });
                Ok(())
            }
            Err(ResumeError::Claim(error)) => self.claimed(held, id, wish, Err(error)).map(drop),
            Err(error) => panic!("{error:?}"),
            Ok(claim) => self.claimed(held, id, wish, Ok(claim)).map(drop),
        }
    }
}
