//! What the integration tests share: stores on small segments, keys, the outcomes one expects, and a
//! way to poll futures by hand.
//!
//! Nothing here sleeps to make something happen: [`eventually`] waits for a state that must come.

#![allow(dead_code, reason = "every test file uses its own part")]

pub mod attached;
pub mod journal;
pub mod killed;
pub mod kinds;
pub mod needs;

use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use oncekey::{
    Claim, ClaimError, ClaimOptions, Durability, Fingerprint, FinishError, InProgress, Key, Lease,
    ManualClock, Mismatch, Operation, Options, Replay, Saved, Store,
};
use tempfile::TempDir;

/// More than any wait in these tests takes: a test that gets there hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// Where the tests' clocks begin, in ms since the Unix epoch.
pub const START_MS: u64 = 1_700_000_000_000;

/// A way to use a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub durability: Durability,
    pub style: Style,
}

/// Whether calls block or are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Blocking,
    Async,
}

pub const DURABILITIES: [Durability; 2] = [Durability::Buffered, Durability::Sync];
pub const STYLES: [Style; 2] = [Style::Blocking, Style::Async];

/// All four ways.
pub fn modes() -> impl Iterator<Item = Mode> {
    DURABILITIES.into_iter().flat_map(|durability| {
        STYLES
            .into_iter()
            .map(move |style| Mode { durability, style })
    })
}

impl Mode {
    /// A store of its own in a new directory.
    pub fn store(self) -> (TempDir, Store) {
        let directory = directory();
        let store = self.options().open(directory.path()).expect("a new store");
        (directory, prepared(store))
    }

    /// A store of its own, with a clock that is set by hand.
    pub fn store_and_clock(self) -> (TempDir, Store, ManualClock) {
        let (directory, clock) = (directory(), ManualClock::new(START_MS));
        let store = self
            .options()
            .clock(Arc::new(clock.clone()))
            .open(directory.path())
            .expect("a new store");
        (directory, prepared(store), clock)
    }

    pub fn options(self) -> Options {
        small(self.durability)
    }

    /// The store in `directory`, as a new process with the same clock opens it.
    pub fn reopen(self, directory: &TempDir, clock: &ManualClock) -> Store {
        self.options()
            .clock(Arc::new(clock.clone()))
            .open(directory.path())
            .expect("reopens")
    }

    pub fn claim(self, store: &Store, key: &Key, fingerprint: Fingerprint) -> Claim {
        self.try_claim(store, key, fingerprint).expect("a claim")
    }

    pub fn try_claim(
        self,
        store: &Store,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> Result<Claim, ClaimError> {
        self.claim_with(store, key, fingerprint, ClaimOptions::new())
    }

    pub fn claim_with(
        self,
        store: &Store,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Claim, ClaimError> {
        match self.style {
            Style::Blocking => store.claim_with(key, fingerprint, options),
            Style::Async => block_on(store.claim_with_async(key, fingerprint, options)),
        }
    }

    pub fn wait(self, progress: InProgress) -> Result<Claim, ClaimError> {
        match self.style {
            Style::Blocking => progress.wait(LONG),
            Style::Async => block_on(progress.wait_async()),
        }
    }

    pub fn complete(
        self,
        operation: Operation,
        response: impl AsRef<[u8]>,
    ) -> Result<Saved, FinishError> {
        match self.style {
            Style::Blocking => operation.complete(response),
            Style::Async => block_on(operation.complete_async(response)),
        }
    }

    pub fn release(self, operation: Operation) -> Result<(), FinishError> {
        match self.style {
            Style::Blocking => operation.release(),
            Style::Async => block_on(operation.release_async()),
        }
    }

    pub fn checkpoint(
        self,
        operation: &mut Operation,
        note: impl AsRef<[u8]>,
    ) -> Result<(), oncekey::WriteError> {
        match self.style {
            Style::Blocking => operation.checkpoint(note),
            Style::Async => block_on(operation.checkpoint_async(note)),
        }
    }
}

/// Options that are light on the disk.
pub fn small(durability: Durability) -> Options {
    Options::new()
        .durability(durability)
        .segment_size(64 << 10)
        .stripes(4)
}

pub fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A buffered store in a new directory, for tests to which durability makes no difference.
pub fn buffered() -> (TempDir, Store) {
    let directory = directory();
    let store = small(Durability::Buffered)
        .open(directory.path())
        .expect("a new store");
    (directory, prepared(store))
}

/// The store once its next segment is ready, so that the room it counts stays the same.
pub fn prepared(store: Store) -> Store {
    eventually("the prepared segment", || {
        store.stats().segments_prepared >= 1
    });
    store
}

/// [`buffered`], with a clock that is set by hand.
pub fn buffered_and_clock() -> (TempDir, Store, ManualClock) {
    Mode {
        durability: Durability::Buffered,
        style: Style::Blocking,
    }
    .store_and_clock()
}

/// A store in `directory` as a new process would open it.
pub fn reopen(directory: &TempDir, durability: Durability) -> Store {
    small(durability).open(directory.path()).expect("reopens")
}

/// The directory as a process that is killed now leaves it: what lies in the maps is in the files.
pub fn killed(store: &Store) -> TempDir {
    // A segment that is being prepared changes its name; wait for it.
    eventually("the prepared segment", || {
        store.stats().segments_prepared >= 1
    });
    let copy = directory();
    copy_directory(store.path(), copy.path());
    copy
}

pub fn copy_directory(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a list") {
        let entry = entry.expect("an entry");
        match fs::copy(entry.path(), to.join(entry.file_name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            copied => drop(copied.expect("a copy")),
        }
    }
}

/// Every file of a directory, in order, with length and checksum, but for the lock's note.
pub fn contents(directory: &Path) -> Vec<(String, usize, u32)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("a list")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            let bytes = fs::read(entry.path()).unwrap_or_default();
            (name, bytes.len(), crc32fast::hash(&bytes))
        })
        .filter(|(name, ..)| name != "LOCK")
        .collect();
    files.sort();
    files
}

pub fn key(id: &str) -> Key {
    Key::new("acct_1", "POST /v1/payments", id).expect("a key")
}

/// The request that the tests' keys are used for.
pub fn request() -> Fingerprint {
    Fingerprint::of(br#"{"amount":1200}"#)
}

/// Another one.
pub fn other_request() -> Fingerprint {
    Fingerprint::of(br#"{"amount":9900}"#)
}

pub fn lease(ms: u64) -> ClaimOptions {
    ClaimOptions::new().lease(Lease::For(Duration::from_millis(ms)))
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[track_caller]
pub fn started(claim: Claim) -> Operation {
    match claim {
        Claim::Started(operation) => operation,
        other => panic!("expected Started, got {other:?}"),
    }
}

#[track_caller]
pub fn interrupted(claim: Claim) -> Operation {
    match claim {
        Claim::Interrupted(operation) => operation,
        other => panic!("expected Interrupted, got {other:?}"),
    }
}

#[track_caller]
pub fn owned(claim: Claim) -> Operation {
    match claim {
        Claim::Started(operation) | Claim::Interrupted(operation) => operation,
        other => panic!("expected Started or Interrupted, got {other:?}"),
    }
}

#[track_caller]
pub fn in_progress(claim: Claim) -> InProgress {
    match claim {
        Claim::InProgress(progress) => progress,
        other => panic!("expected InProgress, got {other:?}"),
    }
}

#[track_caller]
pub fn completed(claim: Claim) -> Saved {
    match claim {
        Claim::Completed(saved) => saved,
        other => panic!("expected Completed, got {other:?}"),
    }
}

#[track_caller]
pub fn mismatch(claim: Claim) -> Mismatch {
    match claim {
        Claim::Mismatch(mismatch) => mismatch,
        other => panic!("expected Mismatch, got {other:?}"),
    }
}

/// The stored response.
#[track_caller]
pub fn bytes(saved: &Saved) -> Vec<u8> {
    match saved.by_scope().expect("stored for no principal") {
        Replay::Response(response) => response.to_vec(),
        Replay::NotStored => panic!("the response was not stored"),
    }
}

/// Claims and completes a key that is free.
#[track_caller]
pub fn finish(store: &Store, key: &Key, response: impl AsRef<[u8]>) -> Saved {
    started(store.claim(key, request()).expect("a claim"))
        .complete(response)
        .expect("a completion")
}

/// Waits for a state that other threads bring about.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what} did not come");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Threads of this process.
pub fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("a list").count()
}

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls a future to its end: all the runtime these tests have.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            thread::park_timeout(LONG);
            assert!(begun.elapsed() < LONG, "the future was not woken");
        }
    }
}

/// A future that is polled by hand, with a count of its wakes.
pub struct Polled<F: Future> {
    future: Option<Pin<Box<F>>>,
    wakes: Arc<Wakes>,
    /// How often it had been woken when it was last polled.
    seen: usize,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Future> Polled<F> {
    pub fn new(future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
            wakes: Arc::default(),
            seen: 0,
        }
    }

    /// Polls once.
    pub fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.seen = self.wakes();
        let future = self.future.as_mut().expect("not done yet");
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }

    /// Polls once and expects to wait.
    #[track_caller]
    pub fn pending(mut self) -> Self
    where
        F::Output: Debug,
    {
        match self.poll() {
            Poll::Pending => self,
            Poll::Ready(output) => panic!("ready at once: {output:?}"),
        }
    }

    /// Whether it was woken since it was last polled.
    pub fn is_woken(&self) -> bool {
        self.wakes() > self.seen
    }

    pub fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }

    /// Polls whenever it was woken, to the end. It fails where nobody wakes it.
    #[track_caller]
    pub fn finish(mut self) -> F::Output {
        loop {
            eventually("a wake", || self.wakes() > self.seen);
            if let Poll::Ready(output) = self.poll() {
                return output;
            }
        }
    }
}

/// Random numbers that are the same at every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}
