//! Models of whole transitions: the engine as it ships over its real index and log, on one stripe
//! and a segment of a few records. Only opening, the two threads of the log and the files are left
//! out.

mod claims;
mod waits;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;

use super::finish::Refusal;
use super::{Engine, Finish, Grant, Level, Outcome, Request, Wait};
use crate::block::block_on;
use crate::clock::{Clock, StoreTime};
use crate::engine::identity::{DOWNSTREAM, HashSecret, INDEX};
use crate::error::{ClaimError, Unavailable, WriteError};
use crate::fingerprint::Fingerprint;
use crate::index::live::WHILE_ALIVE;
use crate::index::{Index, Phase};
use crate::key::Key;
use crate::log::Log;
use crate::log::commit::Lead;
use crate::log::loom_tests::{Platter, segments};
use crate::mem::ForkMark;
use crate::options::{Durability, Options, ResolvedClaim};
use crate::report::RecoveryReport;
use crate::stats::Counters;
use crate::sync::{self, explore};
use crate::timer::Timer;

/// A record of a key of one byte, with a response of one or none.
const RECORD_WORDS: u64 = 16;
const NOW_MS: u64 = 1_000;

/// An engine with one key that everybody wants.
struct Store {
    engine: Arc<Engine>,
    clock: Arc<Stopped>,
    platter: Arc<Platter>,
    key: Key,
}

/// A clock that stands still unless it is moved, which costs a model nothing.
#[derive(Debug, Default)]
struct Stopped(AtomicU64);

impl Clock for Stopped {
    fn wall_ms(&self) -> u64 {
        NOW_MS + self.monotonic_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Store {
    /// With room for so many records.
    fn new(records: u64) -> Arc<Self> {
        let clock = Arc::new(Stopped::default());
        let options = Options::new().stripes(1);
        let settings = options
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .validate()
            .expect("good options");
        let time = Arc::new(StoreTime::start(Arc::clone(&settings.clock), 0));
        let (segments, mut platters) = segments(&[records * RECORD_WORDS]);
        let secret = [2; 32];
        let engine = Engine {
            index: Index::new(settings.stripes),
            log: Arc::new(Log::modelled(segments, 1 << 20, &time)),
            time,
            settings,
            secret: HashSecret::derive(&secret, INDEX),
            downstream_secret: HashSecret::derive(&secret, DOWNSTREAM),
            store_id: 1,
            restored_at_ms: 0,
            fork_mark: Arc::new(ForkMark::new()),
            pending: sync::AtomicUsize::new(0),
            waiters: sync::AtomicUsize::new(0),
            next_waiter: sync::AtomicU64::new(0),
            timer: Timer::default(),
            counters: Counters::default(),
            report: RecoveryReport::default(),
            path: "modelled".into(),
            lock: parking_lot::Mutex::new(super::open::Held::modelled()),
            closed: parking_lot::Condvar::new(),
        };
        Arc::new(Self {
            engine: Arc::new(engine),
            clock,
            platter: platters.remove(0),
            key: Key::new("", "", "k").expect("a good key"),
        })
    }

    fn request(&self, level: Level) -> Request<'_> {
        Request {
            key: Cow::Borrowed(&self.key),
            fingerprint: Fingerprint::none(),
            options: ResolvedClaim {
                durability: level.durability,
                lease_ms: WHILE_ALIVE,
                retention_ms: 1_000_000,
                first_sent_ms: None,
            },
            level,
        }
    }

    fn claim(&self) -> Outcome {
        let claimed = block_on(self.engine.claim(&self.request(BUFFERED)));
        claimed.expect("nothing fails")
    }

    /// Claims what nobody has.
    fn start(&self) -> Grant {
        match self.claim() {
            Outcome::Started(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn complete(&self, grant: &Grant, response: &[u8]) -> Result<(), WriteError> {
        let finish = Finish::Complete {
            response: Some(response),
            principal: None,
            retention_ms: 1_000_000,
        };
        let finished = block_on(self.engine.finish(grant, finish, BUFFERED));
        finished.map(drop).map_err(|refusal| refusal.error)
    }

    fn release(&self, grant: &Grant) {
        let finished = block_on(self.engine.finish(grant, Finish::Release, BUFFERED));
        finished
            .map(drop)
            .map_err(|refusal: Refusal| refusal.error)
            .expect("still held");
    }

    /// Waits until whoever has the key is done, one way or another.
    fn wait(&self) {
        let wait = Wait::new(Arc::clone(&self.engine), &self.request(BUFFERED));
        block_on(wait).expect("not closed");
    }

    /// What becomes of the key for one who waits for it, and runs it if it must.
    fn run(&self, response: &[u8]) -> Ran {
        loop {
            match self.claim() {
                Outcome::Started(grant) => {
                    self.complete(&grant, response).expect("still held");
                    return Ran::Executed;
                }
                Outcome::Interrupted(grant) => {
                    self.complete(&grant, response).expect("still held");
                    return Ran::Reconciled(grant.attempt);
                }
                Outcome::InProgress(_) => self.wait(),
                Outcome::Completed(stored) => {
                    let response = stored.replay.response().expect("kept").to_vec();
                    return Ran::Replayed(response);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// What must hold when nobody is in the middle of anything.
    fn check_quiet(&self, pending: usize) {
        assert_eq!(self.engine.waiting_count(), 0);
        assert_eq!(self.engine.pending_count(), pending);
        for stripe in self.engine.index.stripes() {
            let stripe = stripe.lock();
            assert_eq!(stripe.live_entries().count(), pending);
            for live in stripe.live_entries() {
                assert_eq!(live.waiting(), 0, "a waiter was left behind");
                assert_ne!(live.phase, Phase::Changing);
            }
        }
    }
}

/// How one who ran an operation fared.
#[derive(Debug, PartialEq, Eq)]
enum Ran {
    Executed,
    /// In this attempt.
    Reconciled(u32),
    Replayed(Vec<u8>),
}

const BUFFERED: Level = Level {
    durability: Durability::Buffered,
    lead: Lead::Allowed,
};

fn spawn<T: Send + 'static>(
    store: &Arc<Store>,
    body: impl FnOnce(&Store) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let store = Arc::clone(store);
    thread::spawn(move || body(&store))
}
