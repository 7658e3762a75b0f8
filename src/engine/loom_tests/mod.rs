//! Models of whole transitions: the engine as it ships over its real index and log, on one stripe
//! and a segment of a few records. Only opening, the two threads of the log and the files are left
//! out.

mod blocking;
mod claims;
mod closing;
mod growth;
mod moves;
mod readers;
mod removals;
mod tickets;
mod waits;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;

use super::finish::Refusal;
use super::{Engine, Finish, Grant, Level, Opened, Outcome, Request, Stored, Wait};
use crate::block::block_on;
use crate::clock::{Clock, StoreTime};
use crate::engine::outbox::Queue;
use crate::engine::places::Places;
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
use crate::secret::{DOWNSTREAM, HashSecret, INDEX};
use crate::stats::Counters;
use crate::sync::{self, explore};
use crate::timer::Timer;

/// A record of a key of one byte, with a response of one or none.
const RECORD_WORDS: u64 = 16;
const NOW_MS: u64 = 1_000;

/// An engine with one key that everybody wants.
struct Store {
    engine: Arc<Opened>,
    clock: Arc<Stopped>,
    /// Of the segments, in order.
    platters: Vec<Arc<Platter>>,
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
        Self::with(&[records], Options::new().stripes(1))
    }

    /// With room for so many records in each segment.
    fn with(records: &[u64], options: Options) -> Arc<Self> {
        let clock = Arc::new(Stopped::default());
        let settings = options
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .validate()
            .expect("good options");
        let time = Arc::new(StoreTime::start(Arc::clone(&settings.clock), 0));
        let rooms: Vec<u64> = records.iter().map(|room| room * RECORD_WORDS).collect();
        let (segments, platters) = segments(&rooms);
        let secret = [2; 32];
        let queue = Queue::new(settings.outbox_max, []);
        let places = Places::new(&settings, &secret);
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
            versions: sync::AtomicUsize::new(0),
            queue,
            places,
            waiters: sync::AtomicUsize::new(0),
            next_waiter: sync::AtomicU64::new(0),
            timer: Timer::default(),
            counters: Counters::default(),
            report: RecoveryReport::default(),
            path: "modelled".into(),
            lock: sync::Mutex::new(super::open::Held::modelled()),
            closed: sync::Condvar::new(),
            maintenance: super::maintenance::Maintenance::default(),
        };
        Arc::new(Self {
            engine: Arc::new(Opened::new(Arc::new(engine))),
            clock,
            platters,
            key: key("k"),
        })
    }

    fn request(&self, level: Level) -> Request<'_> {
        self.request_for(&self.key, level)
    }

    fn request_for<'a>(&self, key: &'a Key, level: Level) -> Request<'a> {
        Request {
            key: Cow::Borrowed(key),
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
        self.claim_key(&self.key)
    }

    fn claim_key(&self, key: &Key) -> Outcome {
        let claimed = block_on(self.engine.claim(&self.request_for(key, BUFFERED)));
        claimed.expect("nothing fails")
    }

    /// Claims what nobody has, with a lease of 5 ms.
    fn start_leased(&self) -> Grant {
        let mut request = self.request(BUFFERED);
        request.options.lease_ms = 5;
        match block_on(self.engine.claim(&request)).expect("nothing fails") {
            Outcome::Started(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// Lets those 5 ms pass.
    fn let_the_lease_end(&self) {
        self.clock.0.fetch_add(5, Ordering::Relaxed);
    }

    /// Claims and completes a key that nobody has.
    fn store(&self, key: &Key, response: &[u8]) {
        match self.claim_key(key) {
            Outcome::Started(grant) => self.complete(&grant, response).expect("still held"),
            other => panic!("{other:?}"),
        }
    }

    /// The response of a key that is completed.
    fn replay(&self, key: &Key) -> Vec<u8> {
        match self.claim_key(key) {
            Outcome::Completed(stored) => response_of(&stored),
            other => panic!("{other:?}"),
        }
    }

    /// Claims what nobody has.
    fn start(&self) -> Grant {
        match self.claim() {
            Outcome::Started(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn complete(&self, grant: &Grant, response: &[u8]) -> Result<(), WriteError> {
        let finished = block_on(self.engine.finish(grant, completion(response), BUFFERED));
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
                Outcome::Completed(stored) => return Ran::Replayed(response_of(&stored)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Position behind the last word of a segment.
    fn segment_end(&self, number: u16) -> u64 {
        let segment = self.engine.log.segments().load(number);
        segment.as_ref().expect("it exists").end()
    }

    /// What must hold when nobody is in the middle of anything.
    fn check_quiet(&self, pending: usize) {
        assert_eq!(self.engine.waiting_count(), 0);
        assert_eq!(self.engine.pending_count(), pending);
        let mut entries = 0;
        for stripe in self.engine.index.stripes() {
            let stripe = stripe.lock();
            entries += stripe.live_entries().count();
            for live in stripe.live_entries() {
                assert_eq!(live.waiting(), 0, "a waiter was left behind");
                assert_ne!(live.phase, Phase::Changing);
            }
        }
        assert_eq!(entries, pending);
    }
}

/// A key of one byte.
fn key(id: &str) -> Key {
    Key::new("", "", id).expect("a good key")
}

fn completion(response: &[u8]) -> Finish<'_> {
    Finish::Complete {
        response: Some(response),
        principal: None,
        retention_ms: 1_000_000,
        attachments: None,
    }
}

fn response_of(stored: &Stored) -> Vec<u8> {
    stored.replay.response().expect("kept").to_vec()
}

/// One key in each of the two stripes.
fn keys_of_two_stripes(store: &Store) -> [Key; 2] {
    let in_stripe = |stripe| {
        let mut keys = (b'a'..=b'z').map(|id| key(&char::from(id).to_string()));
        let found = keys.find(|key| store.engine.hash(key) % 2 == stripe);
        found.expect("one of many")
    };
    [in_stripe(0), in_stripe(1)]
}

fn is_granted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Started(_) | Outcome::Interrupted(_))
}

/// Two run the same operation at once.
fn one_executes_the_other_gets_its_answer(store: &Arc<Store>) {
    let other = spawn(store, |store| store.run(b"a"));
    let own = store.run(b"b");
    match (own, other.join().expect("answered")) {
        (Ran::Executed, Ran::Replayed(answer)) => assert_eq!(answer, b"b"),
        (Ran::Replayed(answer), Ran::Executed) => assert_eq!(answer, b"a"),
        both => panic!("{both:?}"),
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

const SYNC: Level = Level {
    durability: Durability::Sync,
    lead: Lead::Allowed,
};

fn spawn<T: Send + 'static>(
    store: &Arc<Store>,
    body: impl FnOnce(&Store) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let store = Arc::clone(store);
    sync::spawn(move || body(&store))
}
