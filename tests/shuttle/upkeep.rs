//! Maintenance with something to do: somebody who fills segments with results that soon expire, lets
//! their time pass, and has the store give them up, while the clients go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::{
    Claim, ClaimError, ClaimOptions, Fingerprint, Key, MaintenanceError, ManualClock, Store,
    Unavailable, WriteError,
};
use shuttle::thread;

use crate::clients::{Trouble, chance, pause, refused};
use crate::driver::let_go;

/// How long such results are kept.
const RETENTION: Duration = Duration::from_secs(1);
/// So many, so long, leave of a segment what a few records take.
const FILL_SEGMENT: usize = 4;
const ROUNDS: usize = 2;
/// What maintenance sleeps for, when it has to.
const TICK: Duration = Duration::from_millis(5);

/// What passes of maintenance did, over all schedules.
pub static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);
pub static COPIED: AtomicUsize = AtomicUsize::new(0);
pub static REFRESHED: AtomicUsize = AtomicUsize::new(0);

/// Whoever makes work for maintenance and has it done.
#[derive(Clone)]
pub struct Upkeep {
    pub clock: ManualClock,
    pub trouble: Trouble,
    /// How many results there were that are nobody's.
    pub fillers: Arc<AtomicU64>,
}

/// The store is closed.
struct Closed;

impl Upkeep {
    /// Leaves hardly any room in the segment, and nothing live in it but what is the clients'.
    fn fill(&self, store: &Store) -> Result<(), Closed> {
        for _ in 0..FILL_SEGMENT {
            self.fill_some(store)?;
        }
        self.clock.advance(RETENTION);
        Ok(())
    }

    fn fill_some(&self, store: &Store) -> Result<(), Closed> {
        let number = self.fillers.fetch_add(1, Ordering::Relaxed);
        let key = Key::new("acct_1", "filler", number.to_string()).expect("a key");
        let options = ClaimOptions::new().retention(RETENTION);
        match store.claim_with(&key, Fingerprint::of("filler"), options) {
            Ok(Claim::Started(operation)) => {
                let response = vec![b'f'; (14 << 10) + chance(1 << 10)];
                match operation.complete(response) {
                    Ok(_) => Ok(()),
                    Err(error) => self.ended(error.error()),
                }
            }
            Err(ClaimError::Unavailable(Unavailable::Closed)) => self.ended(&closed()),
            other => panic!("{other:?}"),
        }
    }

    fn ended(&self, error: &WriteError) -> Result<(), Closed> {
        let is_closed = matches!(error, WriteError::Unavailable(Unavailable::Closed));
        assert!(is_closed && self.trouble.closes, "{error}");
        Err(Closed)
    }

    /// Before anybody else comes.
    pub fn begin(&self, store: &Store) {
        assert!(self.fill(store).is_ok(), "closed before it was used");
    }

    /// Until there was enough, or the store is closed.
    pub fn run(&self, store: &Store) {
        for _ in 0..ROUNDS {
            if self.fill(store).is_err() {
                break;
            }
            maintain(store, self.trouble);
            let_go();
        }
    }

    /// Lets time pass for a pass that sleeps, as long as anybody is at work.
    pub fn tick(&self, at_work: &AtomicUsize) {
        while at_work.load(Ordering::Relaxed) > 0 {
            pause(100);
            self.clock.advance(TICK);
            // However urgent this thread is, the others come first.
            thread::yield_now();
        }
    }
}

fn closed() -> WriteError {
    WriteError::Unavailable(Unavailable::Closed)
}

/// One pass. It may fail only for what happens to the store.
pub fn maintain(store: &Store, trouble: Trouble) {
    match store.maintain() {
        Ok(_) => {}
        Err(MaintenanceError::Unavailable(error)) => refused(trouble, &error),
        Err(MaintenanceError::Io { .. } | MaintenanceError::NoRoom { .. }) if trouble.fills => {}
        Err(other) => panic!("{other}"),
    }
}

/// Adds up what was done for a store that nobody uses any more.
pub fn count(store: &Store) {
    let done = store.stats().maintenance.done;
    GIVEN_UP.fetch_add(done.segments_removed as usize, Ordering::Relaxed);
    COPIED.fetch_add(done.records_copied as usize, Ordering::Relaxed);
    REFRESHED.fetch_add(done.keys_refreshed as usize, Ordering::Relaxed);
}
