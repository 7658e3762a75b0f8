//! The engine: every transition of a key, over the index and the log.
//!
//! Each transition goes the same way: lock the stripe, check the owner's token, mark the key
//! *changing*, unlock; append; lock, publish the new place, unlock; wake. To others a changing key
//! is in progress, so they wait for the moment it takes; a stale owner can't append after a
//! takeover because the mark is taken under the lock. No append, page fault, sync, user code or
//! wake-up happens under a stripe lock.
//!
//! `claim` starts an operation or tells what became of it, `finish` ends one, `progress` serves its
//! owner in between, `settle` writes down what became of one that has none, `replace` changes a
//! result in one step, `scan` visits results, `lookup` reads records
//! back, `wait` waits, `open` and `close` frame it all.

mod attached;
mod change;
mod claim;
mod finish;
mod identity;
mod lookup;
mod maintenance;
mod open;
mod outbox;
mod places;
mod progress;
mod rebuild;
#[cfg(any(test, feature = "redis", feature = "serve"))]
mod replace;
#[cfg(any(test, feature = "redis", feature = "serve"))]
mod scan;
mod settle;
mod wait;

#[cfg(all(test, oncekey_loom))]
mod loom_tests;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::StoreTime;
use crate::error::{OutOfSpace, Unavailable};
use crate::index::Index;
use crate::key::Key;
use crate::limit_reached::LimitReached;
use crate::log::Log;
use crate::log::commit::Lead;
use crate::log::prepare::NoRoom;
use crate::log::record::words_for;
use crate::mem::ForkMark;
use crate::options::{Durability, Settings};
use crate::report::RecoveryReport;
use crate::secret::HashSecret;
use crate::stats::Counters;
use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, mutation};
use crate::timer::Timer;

pub(crate) use self::attached::{Attachments, Outgoing, VersionChange, version_in};
pub(crate) use self::claim::{Grant, Outcome, Progress, Request, Unconfirmed};
pub(crate) use self::finish::{Finish, Forgotten, Refusal};
pub(crate) use self::lookup::{Look, Message, Stored};
pub(crate) use self::open::start;
pub(crate) use self::outbox::{NextMessage, Taken};
pub(crate) use self::progress::TicketParts;
#[cfg(any(feature = "redis", feature = "serve"))]
pub(crate) use self::replace::{Next, ReplaceError};
pub(crate) use self::settle::Unsettled;
pub(crate) use self::wait::Wait;

/// An open store.
#[derive(Debug)]
pub(crate) struct Engine {
    index: Index,
    log: Arc<Log>,
    time: Arc<StoreTime>,
    settings: Settings,
    secret: HashSecret,
    downstream_secret: HashSecret,
    store_id: u128,
    restored_at_ms: u64,
    fork_mark: Arc<ForkMark>,
    pending: AtomicUsize,
    /// Entities with a version, expired ones whose slot is still there included.
    versions: AtomicUsize,
    queue: outbox::Queue,
    places: places::Places,
    waiters: AtomicUsize,
    next_waiter: AtomicU64,
    timer: Timer,
    pub(crate) counters: Counters,
    report: RecoveryReport,
    path: PathBuf,
    lock: Mutex<open::Held>,
    closed: Condvar,
    maintenance: maintenance::Maintenance,
}

/// Keeps a store open. Dropped, it closes the store, whichever of its threads is still at work.
#[derive(Debug)]
pub(crate) struct Opened(Arc<Engine>);

impl Opened {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self(engine)
    }
}

impl Deref for Opened {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.0
    }
}

/// How a call treats durability and waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) durability: Durability,
    pub(crate) lead: Lead,
}

impl Engine {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn time(&self) -> &StoreTime {
        &self.time
    }

    pub(crate) fn report(&self) -> &RecoveryReport {
        &self.report
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        key.hash_with(self.secret.bytes())
    }

    /// Whether this process is a fork of the one that opened the store.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_mark.is_child()
    }

    /// How many keys are pending or interrupted.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// How many entities have a version.
    pub(crate) fn version_count(&self) -> usize {
        self.versions.load(Ordering::Relaxed)
    }

    /// How many wait for a key.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    fn check_process(&self) -> Result<(), Unavailable> {
        if self.is_forked() {
            Err(Unavailable::Forked)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn check_writable(&self) -> Result<(), Unavailable> {
        if self.log.is_poisoned() {
            return self.check_poison();
        }
        Ok(())
    }

    #[cold]
    fn check_poison(&self) -> Result<(), Unavailable> {
        match self.log.poison() {
            None => Ok(()),
            Some(poison) => Err(Unavailable::Poisoned {
                file: poison.file,
                source: poison.source,
            }),
        }
    }

    /// Whether [`reach`](Self::reach) would have nothing to wait for.
    pub(crate) fn is_reached(&self, end: u64, level: Level) -> bool {
        if mutation("taken_for_durable") {
            return true;
        }
        match level.durability {
            Durability::Buffered => !self.log.is_poisoned(),
            Durability::Sync => self.log.watermark() >= end,
        }
    }

    /// Waits until `end` is as durable as the level asks. A poisoned store answers nobody with what
    /// may not be on the disk.
    pub(crate) async fn reach(&self, end: u64, level: Level) -> Result<(), Unavailable> {
        let is_waived =
            level.durability == Durability::Buffered || mutation("future_not_made_durable");
        if is_waived && !self.log.is_poisoned() {
            return Ok(());
        }
        self.log
            .durable(end, level.lead)
            .await
            .map_err(|poison| Unavailable::Poisoned {
                file: poison.file,
                source: poison.source,
            })
    }

    /// Makes all that was appended so far durable; the position behind it.
    pub(crate) async fn flush(&self, lead: Lead) -> Result<u64, Unavailable> {
        self.check_process()?;
        if self.is_closed() {
            return Err(Unavailable::Closed);
        }
        let level = Level {
            durability: Durability::Sync,
            lead,
        };
        let end = self.log.tail();
        self.reach(end, level).await?;
        Ok(end)
    }

    /// Promises `words`, waiting for the preparer if need be.
    async fn promise(&self, words: u64) -> Result<Promise<'_>, RoomError> {
        self.log
            .room(words)
            .await
            .map_err(|refused| match refused {
                NoRoom::Failed(source) => match LimitReached::within(&source) {
                    Some(reached) => {
                        self.counters.count_limit(reached.limit);
                        RoomError::LimitReached(reached)
                    }
                    None => {
                        self.counters.out_of_space.add();
                        RoomError::OutOfSpace(OutOfSpace {
                            needed_bytes: words * 8,
                            source: Some(source),
                        })
                    }
                },
                NoRoom::Stopped => RoomError::Closed,
            })?;
        Ok(Promise {
            log: &self.log,
            words,
        })
    }

    /// Room set aside for what ends an operation on this key, in words.
    fn completion_words(&self, key: &Key) -> u64 {
        words_for(
            key.as_bytes().len(),
            crate::limits::PRINCIPAL_BYTES_MAX,
            0,
            self.settings.reserved_response_bytes,
        )
    }
}

/// Why no room was promised.
enum RoomError {
    OutOfSpace(OutOfSpace),
    LimitReached(LimitReached),
    Closed,
}

impl RoomError {
    fn into<E: From<OutOfSpace> + From<LimitReached> + From<Unavailable>>(self) -> E {
        match self {
            Self::OutOfSpace(error) => E::from(error),
            Self::LimitReached(error) => E::from(error),
            Self::Closed => E::from(Unavailable::Closed),
        }
    }
}

/// Room promised to a call; what it does not use goes back.
#[derive(Debug)]
struct Promise<'a> {
    log: &'a Log,
    words: u64,
}

impl Promise<'_> {
    /// Hands `words` of the promise to whoever uses them up.
    fn spend(&mut self, words: u64) {
        assert!(
            words <= self.words,
            "{words} words spent of {} promised",
            self.words
        );
        self.words -= words;
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.log.give_back(self.words);
    }
}
