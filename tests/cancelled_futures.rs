//! Futures that are dropped half way: a claim that nobody saw frees its key, a completion that was
//! begun is done.

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use oncekey::{
    ClaimOptions, Durability, Forget, KeyState, OnInterrupted, Operation, RunOptions, Store,
};

use support::*;

/// Durable answers wait for a sync, so a future is pending after its first poll.
fn synced() -> (tempfile::TempDir, Store) {
    let directory = directory();
    let options = small(Durability::Sync).segment_size(1 << 20);
    let store = options.open(directory.path()).expect("a store");
    (directory, store)
}

#[track_caller]
fn is_absent(store: &Store) {
    match store.get(&key("k-1")).expect("a look") {
        KeyState::Absent => {}
        other => panic!("{other:?}"),
    }
    let stats = store.stats();
    assert_eq!((stats.pending_keys, stats.waiters), (0, 0));
}

#[track_caller]
fn is_interrupted(store: &Store) {
    match store.get(&key("k-1")).expect("a look") {
        KeyState::Interrupted { .. } => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(store.stats().waiters, 0);
}

#[test]
fn a_claim_future_dropped_before_its_first_poll_claims_nothing() {
    let (_directory, store) = synced();
    drop(store.claim_async(&key("k-1"), request()));
    is_absent(&store);
    assert_eq!(store.stats().synced_records, 0);
}

#[test]
fn a_claim_future_dropped_before_it_hands_out_its_guard_frees_the_key() {
    let (directory, store) = synced();
    eventually("a prepared segment", || store.stats().segments_prepared > 0);
    let room = store.stats().available_bytes + store.stats().unsynced_bytes;
    for _ in 0..20 {
        let future = Polled::new(store.claim_async(&key("k-1"), request())).pending();
        assert_eq!(store.stats().pending_keys, 1);
        drop(future);
        is_absent(&store);
    }
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    assert_eq!(operation.attempt(), 1, "nothing ran before");
    operation.release().expect("a release");
    assert!(store.stats().available_bytes < room);
    drop(store);
    is_absent(&reopen(&directory, Durability::Sync));
}

#[test]
fn a_claim_future_dropped_after_it_was_synced_but_before_it_was_polled_frees_the_key() {
    let (_directory, store) = synced();
    let future = Polled::new(store.claim_async(&key("k-1"), request())).pending();
    eventually("its wake", || future.wakes() > 0);
    drop(future);
    is_absent(&store);
}

#[test]
fn a_claim_future_on_an_interrupted_key_dropped_half_way_leaves_it_interrupted() {
    let (directory, store) = synced();
    let mut operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    operation.checkpoint(b"half way").expect("a checkpoint");
    drop(operation);
    for _ in 0..3 {
        drop(Polled::new(store.claim_async(&key("k-1"), request())).pending());
        is_interrupted(&store);
    }
    let check = |store: &Store| {
        let operation = interrupted(store.claim(&key("k-1"), request()).expect("a claim"));
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
    };
    check(&store);
    drop(store);
    check(&reopen(&directory, Durability::Sync));
}

#[test]
fn a_claim_dropped_half_way_wakes_those_who_wait() {
    let (_directory, store) = synced();
    let future = Polled::new(store.claim_async(&key("k-1"), request())).pending();
    let buffered = ClaimOptions::new().durability(Durability::Buffered);
    let claim = store.claim_with(&key("k-1"), request(), buffered);
    let waiting = in_progress(claim.expect("a claim"));
    let waiting = Polled::new(waiting.wait_async()).pending();
    drop(future);
    let operation = started(waiting.finish().expect("an answer"));
    assert_eq!(operation.attempt(), 1);
}

#[test]
fn a_complete_future_dropped_after_its_first_poll_has_completed() {
    let (directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(Polled::new(operation.complete_async(b"paid")).pending());
    let check = |store: &Store| {
        let saved = completed(store.claim(&key("k-1"), request()).expect("a claim"));
        assert_eq!(bytes(&saved), b"paid");
    };
    check(&store);
    assert_eq!(store.stats().interruptions, 0);
    drop(store);
    check(&reopen(&directory, Durability::Sync));
}

#[test]
fn a_completion_without_a_response_dropped_after_its_first_poll_has_completed() {
    let (_directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(Polled::new(operation.complete_without_response_async()).pending());
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}

#[test]
fn a_complete_future_that_is_never_polled_interrupts() {
    let (_directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(operation.complete_async(b"paid"));
    is_interrupted(&store);
}

#[test]
fn a_release_future_dropped_after_its_first_poll_has_released() {
    let (_directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(Polled::new(operation.release_async()).pending());
    is_absent(&store);
}

#[test]
fn a_checkpoint_future_dropped_half_way_leaves_the_guard_held_and_its_note_written() {
    let (_directory, store) = synced();
    let mut operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(Polled::new(operation.checkpoint_async(b"half way")).pending());
    operation.renew().expect("still ours");
    assert_eq!(
        operation.last_checkpoint().map(|note| &note[..]),
        Some(&b"half way"[..])
    );
    drop(operation);
    let operation = interrupted(store.claim(&key("k-1"), request()).expect("a claim"));
    let previous = operation.previous().expect("an attempt before");
    assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
}

#[test]
fn a_forget_future_dropped_after_its_first_poll_has_forgotten() {
    let (_directory, store) = synced();
    finish(&store, &key("k-1"), b"paid");
    drop(Polled::new(store.forget_async(&key("k-1"), Forget::IfCompleted)).pending());
    is_absent(&store);
}

#[test]
fn a_look_dropped_half_way_changes_nothing() {
    let (_directory, store) = synced();
    let buffered = ClaimOptions::new().durability(Durability::Buffered);
    let claim = store.claim_with(&key("k-1"), request(), buffered);
    let operation = started(claim.expect("a claim"));
    let key = key("k-1");
    drop(Polled::new(store.get_async(&key)).pending());
    // The sync that the look asked for is over, so that the next one has to be waited for.
    store.flush().expect("synced");
    operation.complete(b"paid").expect("a completion");
    drop(Polled::new(store.flush_async()).pending());
    assert!(matches!(store.get(&key), Ok(KeyState::Completed(_))));
}

#[test]
fn a_wait_dropped_half_way_gives_its_place_up() {
    let (_directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let progress = in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    let future = Polled::new(progress.wait_async()).pending();
    assert_eq!(store.stats().waiters, 1);
    drop(future);
    assert_eq!(store.stats().waiters, 0);
    operation.complete(b"paid").expect("a completion");
}

#[test]
fn a_wait_that_was_just_granted_the_key_frees_it_when_it_is_dropped() {
    let (_directory, store) = synced();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let progress = in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    let mut future = Polled::new(progress.wait_async()).pending();
    operation.release().expect("a release");
    assert!(future.poll().is_pending(), "its own claim is being synced");
    assert_eq!(store.stats().pending_keys, 1);
    drop(future);
    is_absent(&store);
}

#[test]
fn run_dropped_while_the_work_runs_interrupts() {
    let (_directory, store) = buffered();
    let key = key("k-1");
    let work = async |operation: &mut Operation| {
        operation
            .checkpoint_async(b"half way")
            .await
            .expect("a checkpoint");
        std::future::pending::<Result<&[u8], std::io::Error>>().await
    };
    let future = Polled::new(store.run_async(&key, request(), RunOptions::new(), work));
    drop(future.pending());
    is_interrupted(&store);
    let rerun = RunOptions::new().on_interrupted(OnInterrupted::Rerun);
    let saved = store.run(&key, request(), rerun, |operation| {
        assert_eq!(operation.attempt(), 2);
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
        Ok::<_, std::io::Error>("paid")
    });
    assert_eq!(bytes(&saved.expect("a result")), b"paid");
}

#[test]
fn futures_dropped_at_random_leave_nobody_stuck() {
    for durability in DURABILITIES {
        let directory = directory();
        let options = small(durability).segment_size(1 << 20);
        let store = options.open(directory.path()).expect("a store");
        let keys: Vec<_> = (0..5).map(|number| key(&number.to_string())).collect();
        let mut random = Random::new(7);
        type Claiming = Pin<Box<dyn Future<Output = Option<Operation>>>>;
        let mut futures: Vec<Polled<Claiming>> = Vec::new();
        let mut held: Vec<Operation> = Vec::new();
        let rounds = match durability {
            Durability::Buffered => 5_000,
            Durability::Sync => 1_000,
        };
        for _ in 0..rounds {
            match random.below(6) {
                0 | 1 => {
                    let claim = store.claim_async(&keys[random.below(keys.len())], request());
                    futures.push(Polled::new(Box::pin(async move {
                        match claim.await.expect("a claim") {
                            oncekey::Claim::InProgress(progress) => {
                                match progress.wait_async().await.expect("an answer") {
                                    claim if claim.is_owned() => Some(owned(claim)),
                                    _ => None,
                                }
                            }
                            claim if claim.is_owned() => Some(owned(claim)),
                            _ => None,
                        }
                    })));
                }
                2 if !futures.is_empty() => {
                    let chosen = random.below(futures.len());
                    if let Poll::Ready(granted) = futures[chosen].poll() {
                        drop(futures.swap_remove(chosen));
                        held.extend(granted);
                    }
                }
                3 if !futures.is_empty() => {
                    drop(futures.swap_remove(random.below(futures.len())));
                }
                4 if !held.is_empty() => drop(held.swap_remove(random.below(held.len()))),
                5 if !held.is_empty() => {
                    let operation = held.swap_remove(random.below(held.len()));
                    operation.release().expect("a release");
                }
                _ => {}
            }
            assert!(held.len() <= keys.len(), "a key with two owners");
        }
        drop((futures, held));
        let stats = store.stats();
        assert_eq!(
            (stats.waiters, store.pending().expect("a list").len()),
            (0, 0)
        );
        assert_eq!(stats.pending_keys, stats.interrupted_keys);
        for key in &keys {
            let claim = block_on(store.claim_async(key, request()));
            owned(claim.expect("a claim"))
                .complete(b"paid")
                .expect("done");
        }
        assert_eq!(store.stats().pending_keys, 0);
    }
}

/// A task that owns its future, as a small executor has it: whoever drops the last waker drops the
/// future, and with it perhaps the last handle of the store.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    dropped: Arc<AtomicBool>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Task {
    fn drop(&mut self) {
        let future = self.future.get_mut().expect("no panic").take();
        drop(future);
        self.dropped.store(true, Ordering::SeqCst);
    }
}

/// Polls once and forgets the task: from then on only its waker holds it.
fn poll_and_forget(future: impl Future<Output = ()> + Send + 'static) -> Arc<AtomicBool> {
    let dropped = Arc::new(AtomicBool::new(false));
    let task = Arc::new(Task {
        future: Mutex::new(Some(Box::pin(future))),
        dropped: Arc::clone(&dropped),
    });
    let waker = Waker::from(Arc::clone(&task));
    let polled = {
        let mut future = task.future.lock().expect("no panic");
        let future = future.as_mut().expect("not polled before");
        future.as_mut().poll(&mut Context::from_waker(&waker))
    };
    assert!(polled.is_pending());
    dropped
}

#[test]
fn the_last_handle_dropped_by_the_stores_own_flusher_closes_the_store() {
    let (directory, store) = synced();
    let claim = store.claim_async(&key("k-1"), request());
    let task = async move {
        let _store = store;
        drop(claim.await);
    };
    let dropped = poll_and_forget(task);
    eventually("the task's end", || dropped.load(Ordering::SeqCst));
    eventually("the lock's release", || {
        let opened = small(Durability::Sync).open(directory.path());
        opened.is_ok_and(|store| {
            is_absent(&store);
            store.recovery_report().clean
        })
    });
}
