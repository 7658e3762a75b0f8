//! The ends and beginnings of a store's lives: closed, dropped, killed, without power, copied.

use std::sync::Arc;
use std::time::Duration;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{
    ClaimError, Clock, Durability, Forget, ManualClock, OpenError, Options, Unavailable, WriteError,
};

use crate::claims::{PENDING_MAX, RETENTION_MS, WAITERS_MAX, WAITERS_PER_KEY_MAX, fingerprint};
use crate::model::{Live, State, Track, name};
use crate::side::{Counts, LateGuard, Shared, Side, ms};
use crate::steps::{CopyOf, End, KEYS, OpenFault, RESERVED, RESPONSE_MAX};
use crate::support::START_MS;

const JUMP_MAX_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

/// What the next life may find.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Only the last state of each key.
    exact: bool,
    /// Closed properly; `None` where nobody saw whether the close succeeded.
    clean: Option<bool>,
    /// The newest time on disk is from here to there.
    time_ms: (u64, u64),
}

impl Side {
    pub fn new(shared: &mut Shared, durability: Durability) -> Self {
        shared.lineages += 1;
        let mut side = Self {
            disk: SimulatedDisk::new(),
            clock: ManualClock::new(START_MS),
            durability,
            store: None,
            lineage: shared.lineages,
            keys: vec![Track::new(); usize::from(KEYS)],
            guards: Default::default(),
            leaked: Vec::new(),
            late: Vec::new(),
            waits: Vec::new(),
            counts: Counts::default(),
            greatest_token: 0,
            restored_ms: 0,
            written_ms: 0,
            durable_ms: 0,
            in_step: true,
            full: false,
            failing: false,
        };
        let left = Left {
            exact: true,
            clean: Some(false),
            time_ms: (0, 0),
        };
        side.begin(left, false, None);
        assert!(side.store().recovery_report().created);
        side
    }

    pub fn restart(&mut self, end: End, fault: Option<OpenFault>) {
        let left = self.finish_life(end);
        self.begin(left, false, fault);
    }

    /// Ends this store and opens a copy of the other in its place.
    pub fn become_copy_of(&mut self, other: &mut Self, how: CopyOf) {
        let exact = |side: &Self| Left {
            exact: true,
            clean: Some(false),
            time_ms: (side.written_ms, side.now_ms()),
        };
        let (left, image) = match how {
            CopyOf::Closed => {
                let left = other.finish_life(End::Close);
                (left, other.disk.crash_none_lost())
            }
            CopyOf::Running => (exact(other), other.disk.crash_none_lost()),
            CopyOf::PowerLoss { seed } => {
                let left = Left {
                    exact: false,
                    time_ms: (other.durable_ms, other.now_ms()),
                    ..exact(other)
                };
                (left, other.disk.crash_random(seed))
            }
        };
        let keys = other.keys.clone();
        if matches!(how, CopyOf::Closed) {
            other.begin(left, false, None);
        }
        self.finish_life(End::Kill);
        self.disk = image;
        self.keys = keys;
        self.lineage = other.lineage;
        self.greatest_token = other.greatest_token;
        self.restored_ms = other.restored_ms;
        self.full = other.full;
        self.begin(left, true, None);
        self.restored_ms = self.now_ms();
    }

    /// Ends this life; what it leaves is on `disk`.
    fn finish_life(&mut self, end: End) -> Left {
        let now_ms = self.now_ms();
        let mut left = Left {
            exact: true,
            clean: Some(false),
            time_ms: (self.written_ms, now_ms),
        };
        match end {
            End::Close => {
                left.clean = Some(self.close());
            }
            End::Drop => {
                // What was leaked keeps the store open until it is closed.
                left.clean = if self.leaked.is_empty() {
                    let failing = self.failing;
                    self.let_go();
                    self.store = None;
                    (!failing).then_some(true)
                } else {
                    Some(self.close())
                };
            }
            End::Kill => self.crash(self.disk.crash_none_lost()),
            End::LosePower { seed } => {
                left.exact = false;
                left.time_ms.0 = self.durable_ms;
                self.crash(self.disk.crash_random(seed));
            }
            End::LoseAllUnsynced => {
                left.exact = false;
                left.time_ms.0 = self.durable_ms;
                self.crash(self.disk.crash_all_lost());
            }
        }
        if left.clean == Some(true) {
            left.time_ms.0 = now_ms;
        }
        self.disk.heal();
        self.failing = false;
        left
    }

    /// A proper close, after which every handle and guard says so; whether it succeeded.
    fn close(&mut self) -> bool {
        let store = self.store.take().expect("open");
        let closed = store.close();
        assert!(closed.is_ok() || self.failing, "{closed:?}");
        store.close().expect("closing twice is fine");
        let is_closed =
            |error: &ClaimError| matches!(error, ClaimError::Unavailable(Unavailable::Closed));
        let error = store.claim(&name(0), fingerprint(0)).expect_err("closed");
        assert!(is_closed(&error), "{error}");
        assert!(is_closed(&store.get(&name(0)).expect_err("closed")));
        store.forget(&name(0), Forget::Force).expect_err("closed");
        assert!(matches!(store.flush(), Err(Unavailable::Closed)));
        assert!(matches!(store.pending(), Err(Unavailable::Closed)));
        assert!(matches!(store.interrupted(), Err(Unavailable::Closed)));
        for mut wait in self.waits.drain(..) {
            match wait.future.poll() {
                std::task::Poll::Ready(Err(error)) => assert!(is_closed(&error)),
                other => panic!("{other:?}"),
            }
        }
        for (key, mut guard) in self.guards.drain() {
            let error = guard.operation.renew().expect_err("closed");
            assert!(matches!(
                error,
                WriteError::Unavailable(Unavailable::Closed)
            ));
            self.late.push(LateGuard {
                operation: guard.operation,
                key,
                lease_ms: guard.terms.lease_ms,
                closed: true,
            });
        }
        self.late.iter_mut().for_each(|guard| guard.closed = true);
        // Enough of them to try something late with.
        self.late.truncate(4);
        self.leaked.drain(..).for_each(|leaked| {
            drop(std::mem::ManuallyDrop::into_inner(leaked));
        });
        closed.is_ok()
    }

    /// The old process ends without a chance to write to what the new one reads. The machine may
    /// have started anew, and its monotonic clock with it.
    fn crash(&mut self, image: SimulatedDisk) {
        drop(self.store().close());
        self.let_go();
        self.store = None;
        self.disk = image;
        self.clock = ManualClock::new(self.clock.wall_ms());
    }

    /// Opens what was left, and finds out what it is.
    fn begin(&mut self, left: Left, restored: bool, fault: Option<OpenFault>) {
        if let Some(fault) = fault {
            let what = if fault.no_space {
                Fault::NoSpace
            } else {
                Fault::InputOutput
            };
            self.disk
                .fail(FaultPlan::new(fault.kind, what).after(fault.after));
        }
        let wall_ms = self.clock.wall_ms();
        let (newest_min_ms, mut newest_max_ms) = left.time_ms;
        let mut options = Options::new()
            .durability(self.durability)
            .retention(Duration::from_millis(RETENTION_MS))
            .segment_size(64 << 10)
            .max_response(RESPONSE_MAX)
            .reserved_response(RESERVED)
            .max_pending(PENDING_MAX)
            .max_waiters_per_key(WAITERS_PER_KEY_MAX)
            .max_waiters(WAITERS_MAX)
            .max_clock_jump(Duration::from_millis(JUMP_MAX_MS))
            .restored(restored)
            .stripes(2)
            // By steps of their own.
            .maintenance(false)
            .clock(Arc::new(self.clock.clone()));
        let (mut failures, mut jumped_from_ms) = (0, None);
        let store = loop {
            match options.open_simulated(&self.disk) {
                Ok(store) => break store,
                Err(OpenError::ClockJumped { high_water_ms, .. }) => {
                    assert!(jumped_from_ms.is_none());
                    assert!((newest_min_ms..=newest_max_ms).contains(&high_water_ms));
                    assert!(wall_ms > high_water_ms + JUMP_MAX_MS);
                    jumped_from_ms = Some(high_water_ms);
                    options = options.allow_clock_jump(true);
                }
                Err(OpenError::Io { source, .. }) => {
                    assert!(fault.is_some(), "{source}");
                    failures += 1;
                    assert!(failures < 3, "{source}");
                    // It may have got as far as to write the time down.
                    newest_max_ms = newest_max_ms.max(wall_ms);
                    if failures == 2 || fault.is_some_and(|fault| fault.kind != OperationKind::Read)
                    {
                        self.disk.heal();
                    }
                }
                Err(other) => panic!("{other:?} after {left:?}"),
            }
        };
        self.disk.heal();
        if jumped_from_ms.is_none() && newest_max_ms > 0 {
            assert!(wall_ms <= newest_max_ms + JUMP_MAX_MS, "no jump was seen");
        }
        self.store = Some(store);
        let now_ms = self.now_ms();
        let (from_ms, to_ms) = match jumped_from_ms {
            Some(high_water_ms) if failures == 0 => (high_water_ms, high_water_ms),
            _ => (newest_min_ms, newest_max_ms),
        };
        assert!(
            (wall_ms.max(from_ms)..=wall_ms.max(to_ms)).contains(&now_ms),
            "opened at {now_ms}, wall clock {wall_ms}, {left:?}"
        );
        self.in_step = now_ms == wall_ms;
        (self.written_ms, self.durable_ms) = (now_ms, now_ms);
        self.counts = Counts::default();
        self.find_out(left.exact);
        let report = self.store().recovery_report();
        // An open that failed may have got as far as to mark the store as open.
        let clean_is_told =
            left.clean.is_none_or(|clean| clean == report.clean) || failures > 0 && !report.clean;
        assert!(clean_is_told, "{report}");
        assert!(report.losses.is_empty() && !report.meta_rebuilt, "{report}");
    }

    /// Decides which of the states that may be found each key is in. All of it is durable now.
    fn find_out(&mut self, exact: bool) {
        let interrupted = self.store().recovery_report().interrupted;
        for key in 0..KEYS {
            let states = std::mem::take(&mut self.track(key).states);
            let mut states: Vec<_> = states.into_iter().map(State::orphaned).collect();
            if exact {
                states.drain(..states.len() - 1);
            }
            let found = self.recognise(key, states);
            self.track(key).states = vec![found];
        }
        assert_eq!(interrupted, self.live_count() as u64);
    }

    fn recognise(&mut self, key: u8, states: Vec<State>) -> State {
        if let [only] = &states[..] {
            // The comparison after the step holds it to that.
            return only.clone();
        }
        if let Some(found) = self.listed(key) {
            let fits = |live: &Live| {
                fingerprint(live.request) == found.fingerprint
                    && live.attempt == found.attempt
                    // Tells two first attempts apart that nobody was told the token of.
                    && live.started_ms == ms(found.started_at)
                    && (live.token == 0 || live.token == found.token.as_u64())
            };
            let fitting: Vec<Live> = states
                .iter()
                .filter_map(|state| match state {
                    State::Live(live) if fits(live) => Some(live.clone()),
                    _ => None,
                })
                .collect();
            let notes = fitting.iter().flat_map(|live| live.notes.clone()).collect();
            let newest = fitting.into_iter().last();
            let newest = newest.unwrap_or_else(|| panic!("key {key}: {found:?} of {states:?}"));
            return State::Live(Live { notes, ..newest });
        }
        if let Some(saved) = self.seen_completed(key) {
            let state = states.iter().find(|state| {
                matches!(state, State::Done(done)
                    if done.token == saved.token().as_u64())
            });
            return state
                .unwrap_or_else(|| panic!("key {key}: {saved:?} of {states:?}"))
                .clone();
        }
        let now_ms = self.now_ms();
        let is_gone = |state: &State| match state {
            State::Absent => true,
            State::Done(done) => done.expires_ms <= now_ms,
            State::Live(_) => false,
        };
        assert!(states.iter().any(is_gone), "key {key} is lost: {states:?}");
        // Expired or not there at all: nothing tells, so make sure.
        self.disk.capacity(None);
        self.full = false;
        let forgotten = self.store().forget(&name(key), Forget::IfCompleted);
        assert!(!forgotten.expect("removed"));
        self.store().flush().expect("synced");
        State::Absent
    }
}
