//! One store with its model, and what both share.

use std::collections::HashMap;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Claim, ClaimError, Clock, Durability, ManualClock, Operation, Store, Unavailable};

use crate::model::{Handed, State, Terms, Times, Track};
use crate::steps::{Asked, KEYS, Step};
use crate::support::{Mode, Polled, Style, block_on};

/// What the two stores of a case share.
#[derive(Default)]
pub struct Shared {
    pub tickets: Vec<Handed>,
    /// By lineage, key and request.
    pub downstream: HashMap<(u64, u8, u8), String>,
    pub lineages: u64,
}

/// A guard that holds its key, or did until its lease ran out.
pub struct Guard {
    pub operation: Operation,
    pub terms: Terms,
}

/// A guard that lost its key.
pub struct LateGuard {
    pub operation: Operation,
    pub key: u8,
    pub lease_ms: Option<u64>,
    /// Its store is closed.
    pub closed: bool,
}

pub type Wait = Pin<Box<dyn Future<Output = Result<Claim, ClaimError>> + Send>>;

/// A future that waits for a key.
pub struct Waiting {
    pub asked: Asked,
    /// When it says that it was first sent.
    pub sent_ms: Option<u64>,
    pub future: Polled<Wait>,
    /// It is on the key's list: from its poll until the key's entry ends.
    pub listed: bool,
}

/// What `Store::stats` should count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub started: u64,
    pub taken_over: u64,
    pub in_progress: u64,
    pub replayed: u64,
    pub mismatched: u64,
    pub too_late: u64,
    pub completed: u64,
    pub released: u64,
    pub abandoned: u64,
}

/// A store and its model.
pub struct Side {
    pub disk: SimulatedDisk,
    pub clock: ManualClock,
    pub durability: Durability,
    pub store: Option<Store>,
    /// Stores that are copies of one another have the same.
    pub lineage: u64,
    pub keys: Vec<Track>,
    pub guards: HashMap<u8, Guard>,
    pub leaked: Vec<ManuallyDrop<Operation>>,
    pub late: Vec<LateGuard>,
    pub waits: Vec<Waiting>,
    pub counts: Counts,
    pub greatest_token: u64,
    pub restored_ms: u64,
    /// Store time of the newest record, and of the newest that is known to be durable.
    pub written_ms: u64,
    pub durable_ms: u64,
    /// Both clocks have moved together since the open, from the wall clock's time on.
    pub in_step: bool,
    /// The disk may be full.
    pub full: bool,
    /// Syncs may fail, or one has.
    pub failing: bool,
}

impl Side {
    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("open between steps")
    }

    pub fn mode(&self, style: Style) -> Mode {
        Mode {
            durability: self.durability,
            style,
        }
    }

    pub fn times(&self) -> Times {
        Times {
            now_ms: self.now_ms(),
            monotonic_ms: self.clock.monotonic_ms(),
        }
    }

    pub fn now_ms(&self) -> u64 {
        ms(self.store().now())
    }

    pub fn track(&mut self, key: u8) -> &mut Track {
        &mut self.keys[usize::from(key)]
    }

    pub fn state(&self, key: u8) -> &State {
        self.keys[usize::from(key)].now()
    }

    pub fn is_settled(&self, key: u8) -> bool {
        self.keys[usize::from(key)].is_settled()
    }

    /// Everything appended so far is durable: the log is, up to a place.
    pub fn settle_all(&mut self) {
        self.keys.iter_mut().for_each(Track::settle);
        self.durable_ms = self.written_ms;
    }

    /// A record was appended, and acknowledged at this level.
    pub fn wrote(&mut self, key: u8, state: State, level: Option<Durability>) {
        self.track(key).write(state);
        if level == Some(Durability::Sync) {
            self.settle_all();
        }
    }

    /// A record holds the time of this moment.
    pub fn wrote_time(&mut self) {
        self.written_ms = self.now_ms();
    }

    /// The key's entry has ended: its waiters look again, as new ones.
    pub fn retire(&mut self, key: u8) {
        for wait in &mut self.waits {
            wait.listed &= wait.asked.key != key;
        }
    }

    /// Whoever held the key does not any more.
    pub fn overtaken(&mut self, key: u8) {
        if let Some(guard) = self.guards.remove(&key) {
            self.late.push(LateGuard {
                operation: guard.operation,
                key,
                lease_ms: guard.terms.lease_ms,
                closed: false,
            });
        }
    }

    pub fn live_count(&self) -> usize {
        let is_live = |track: &&Track| matches!(track.now(), State::Live(_));
        self.keys.iter().filter(is_live).count()
    }

    pub fn excuses_space(&self) -> bool {
        self.full || self.failing
    }

    /// Whether this is a failed sync, and one was to be expected.
    #[track_caller]
    pub fn excuses(&self, error: &Unavailable) -> bool {
        let excused = self.failing && matches!(error, Unavailable::Poisoned { .. });
        assert!(!excused || self.store().stats().poisoned);
        excused
    }

    pub fn step(&mut self, shared: &mut Shared, step: &Step) {
        match step {
            Step::Claim { asked, style } => self.claim(shared, asked, *style),
            Step::ClaimDropped { asked, polled } => self.claim_dropped(shared, asked, *polled),
            Step::ClaimMany {
                keys,
                asked,
                keep,
                style,
            } => self.claim_many(shared, keys, asked, *keep, *style),
            Step::BadClaim { key, fault } => self.bad_claim(*key, *fault),
            Step::WaitNoTime { asked } => self.wait_no_time(shared, asked),
            Step::WaitBegin { asked } => self.wait_begin(shared, asked),
            Step::WaitPoll { at } => self.wait_poll(shared, *at),
            Step::WaitDrop { at } => {
                if !self.waits.is_empty() {
                    let at = at % self.waits.len();
                    drop(self.waits.remove(at));
                }
            }
            Step::Run {
                asked,
                len,
                fails,
                style,
            } => self.run(shared, asked, *len, *fails, *style),
            Step::Complete { key, ending, style } => self.complete(*key, *ending, *style),
            Step::Release { key, style } => self.release(*key, *style),
            Step::Checkpoint { key, len, style } => self.checkpoint(*key, *len, *style),
            Step::Renew { key } => self.renew(*key),
            Step::Drop { key } => self.drop_guard(*key),
            Step::Leak { key } => {
                if let Some(guard) = self.guards.remove(key) {
                    // As good as `mem::forget` for as long as the store lives.
                    self.leaked.push(ManuallyDrop::new(guard.operation));
                }
            }
            Step::IntoTicket { key } => self.hand_on(shared, *key),
            Step::Resume { ticket, style } => self.resume(shared, *ticket, *style),
            Step::Late { at, late } => self.late(*at, *late),
            Step::Forget { key, force, style } => self.forget(*key, *force, *style),
            Step::Interrupt { key, other_token } => self.interrupt(*key, *other_token),
            Step::Get { key, style } => self.get(*key, *style),
            Step::Flush { style } => self.flush(*style),
            Step::Maintain => self.maintain(),
            Step::Advance { ms } => {
                self.time_passes(*ms, |clock, by| clock.advance(by));
            }
            Step::AdvanceMonotonic { ms } => {
                self.time_passes(*ms, |clock, by| clock.advance_monotonic(by));
                self.in_step = false;
            }
            Step::SetWall { by_ms } => {
                let before_ms = self.now_ms();
                let wall_ms = self.clock.wall_ms().saturating_add_signed(*by_ms);
                self.clock.set_wall_ms(wall_ms);
                self.in_step = false;
                assert_eq!(self.now_ms(), before_ms, "no time has passed");
            }
            Step::Fill { left } => {
                let names = self.disk.names();
                let contents = names.iter().filter_map(|name| self.disk.contents(name));
                let used: u64 = contents.map(|bytes| bytes.len() as u64).sum();
                self.disk.capacity(used + left);
                self.full = true;
            }
            Step::Empty => {
                self.disk.capacity(None);
                self.full = false;
            }
            Step::FailSyncs {
                after,
                drops_pages,
                sticky,
            } => {
                let plan = FaultPlan::new(OperationKind::Sync, Fault::InputOutput);
                let mut plan = plan.on("segment-").after(*after);
                if *drops_pages {
                    plan = plan.drops_pages();
                }
                if *sticky {
                    plan = plan.sticky();
                }
                self.disk.fail(plan);
                self.failing = true;
            }
            Step::Restart { end, fault } => self.restart(*end, *fault),
            Step::Copy { .. } => unreachable!("between two stores"),
        }
    }

    /// Store time goes on with the monotonic clock, at most a twentieth faster or slower.
    fn time_passes(&mut self, passed_ms: u64, pass: impl Fn(&ManualClock, Duration)) {
        let before_ms = self.now_ms();
        pass(&self.clock, Duration::from_millis(passed_ms));
        let went_ms = self.now_ms().checked_sub(before_ms).expect("never back");
        assert!(
            went_ms.abs_diff(passed_ms) <= passed_ms / 20 + 1,
            "{went_ms} ms in {passed_ms}"
        );
    }

    fn flush(&mut self, style: Style) {
        let store = self.store().clone();
        let flushed = match style {
            Style::Blocking => store.flush(),
            Style::Async => block_on(store.flush_async()),
        };
        match flushed {
            Ok(()) => self.settle_all(),
            Err(error) => assert!(self.excuses(&error), "{error}"),
        }
    }

    /// Every key is asked for, and the store closed.
    pub fn end(&mut self, _shared: &mut Shared) {
        for key in 0..KEYS {
            self.get(key, Style::Blocking);
        }
        let closed = self.store().close();
        assert!(closed.is_ok() || self.failing, "{closed:?}");
        self.let_go();
        self.store = None;
    }

    /// Drops all that belongs to a life that is over.
    pub fn let_go(&mut self) {
        self.guards.clear();
        self.late.clear();
        self.waits.clear();
        for leaked in self.leaked.drain(..) {
            drop(ManuallyDrop::into_inner(leaked));
        }
    }
}

pub fn ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("in range")
}
