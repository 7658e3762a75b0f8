//! A forked child shares its parent's maps and locks, and must neither write nor unlock.

#![expect(
    unsafe_code,
    reason = "the standard library forks only to run a program"
)]

mod support;

use std::future::Future;
use std::io::Read;
use std::pin::pin;
use std::process;
use std::task::{Context, Poll, Waker};

use oncekey::{
    AdminError, ClaimError, ClaimOptions, Durability, FinishError, Forget, Key, OpenError, Store,
    Unavailable, WriteError,
};

use support::*;

/// What the standard library links anyway.
mod c {
    pub const SIGKILL: i32 = 9;
    pub const WNOHANG: i32 = 1;

    unsafe extern "C" {
        pub fn fork() -> i32;
        pub fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        pub fn kill(pid: i32, signal: i32) -> i32;
        pub fn _exit(status: i32) -> !;
    }
}

/// A child that was not waited for yet: killed when the test fails.
struct Forked(i32);

impl Forked {
    /// Runs `body` in a child, which then exits with the status it gives.
    fn run(body: impl FnOnce() -> i32) -> Self {
        // SAFETY: no arguments. The child runs `body`, which calls the store (it refuses before it
        // takes any lock) and the allocator (which the C library keeps usable over a fork), and
        // leaves by `_exit`, without running anybody's destructors or exit handlers.
        let pid = unsafe { c::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: it does not return.
            unsafe { c::_exit(status.unwrap_or(99)) }
        }
        Self(pid)
    }

    /// Its exit status; `None` while it runs.
    fn status(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { c::waitpid(self.0, &mut status, c::WNOHANG) };
        assert!(waited >= 0, "it is our child");
        if waited == 0 {
            return None;
        }
        self.0 = 0;
        assert_eq!(status & 0x7f, 0, "killed by a signal");
        Some(status >> 8 & 0xff)
    }

    fn wait(mut self) -> i32 {
        let mut status = None;
        eventually("the child's end", || {
            status = self.status();
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.0 > 0 {
            let mut status = 0;
            // SAFETY: a child of ours that was not waited for, so the number is still its.
            unsafe {
                c::kill(self.0, c::SIGKILL);
                c::waitpid(self.0, &mut status, 0);
            }
        }
    }
}

/// The number of the first call that did not say `Forked`, or 0.
fn first_wrong(answers: &[bool]) -> i32 {
    let wrong = answers.iter().position(|answer| !answer);
    wrong.map_or(0, |number| number as i32 + 1)
}

fn forked<T>(result: Result<T, ClaimError>) -> bool {
    matches!(result, Err(ClaimError::Unavailable(Unavailable::Forked)))
}

fn forked_admin<T>(result: Result<T, AdminError>) -> bool {
    matches!(
        result,
        Err(AdminError::Claim(ClaimError::Unavailable(
            Unavailable::Forked
        )))
    )
}

fn forked_write(error: &WriteError) -> bool {
    matches!(error, WriteError::Unavailable(Unavailable::Forked))
}

fn forked_finish<T>(result: Result<T, FinishError>) -> bool {
    result.is_err_and(|error| forked_write(error.error()))
}

/// Polls once: nothing here has a reason to wait.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The log as it stands. META is the parent's own threads' to write.
fn segments(directory: &tempfile::TempDir) -> Vec<(String, usize, u32)> {
    let mut files = contents(directory.path());
    files.retain(|(name, ..)| name.ends_with(".log"));
    files
}

#[test]
fn every_call_in_a_child_says_forked_and_the_parent_goes_on() {
    for durability in DURABILITIES {
        let directory = directory();
        let store = small(durability).open(directory.path()).expect("a store");
        let (done, held, free) = (key("done"), key("held"), key("free"));
        finish(&store, &done, b"paid");
        let claim = |key: &Key| store.claim_with(key, request(), lease(60_000));
        let mut guards: Vec<_> = (0..5)
            .map(|number| started(claim(&key(&number.to_string())).expect("a claim")))
            .collect();
        let ticket = guards.pop().unwrap().into_ticket().expect("a ticket");
        let mut operation = started(claim(&held).expect("a claim"));
        let (one, two) = (
            in_progress(claim(&held).expect("a claim")),
            in_progress(claim(&held).expect("a claim")),
        );
        let waiting = Polled::new(in_progress(claim(&held).expect("a claim")).wait_async());
        let waiting = waiting.pending();
        let token = operation.token();
        store.flush().expect("synced");
        eventually("the prepared segment", || {
            store.stats().segments_prepared >= 1
        });
        let before = segments(&directory);

        let child = Forked::run(|| {
            let answers = [
                forked(store.claim(&free, request())),
                forked(store.claim(&done, request())),
                now(store.claim_async(&free, request())).is_some_and(forked),
                forked(store.get(&done)),
                now(store.get_async(&done)).is_some_and(forked),
                forked_admin(store.forget(&done, Forget::Force)),
                forked_admin(store.interrupt(&held, token)),
                store
                    .claim_many([(&free, request())], ClaimOptions::new())
                    .into_iter()
                    .all(forked),
                store.resume(&ticket).is_err(),
                matches!(store.pending(), Err(Unavailable::Forked)),
                matches!(store.interrupted(), Err(Unavailable::Forked)),
                matches!(store.flush(), Err(Unavailable::Forked)),
                forked(store.close()),
                forked(one.wait(LONG)),
                now(two.wait_async()).is_some_and(forked),
                operation
                    .checkpoint(b"note")
                    .is_err_and(|error| forked_write(&error)),
                operation.renew().is_err_and(|error| forked_write(&error)),
                forked_finish(guards.pop().unwrap().complete(b"stolen")),
                forked_finish(guards.pop().unwrap().release()),
                forked_finish(guards.pop().unwrap().into_ticket()),
                now(guards.pop().unwrap().complete_async(b"stolen")).is_some_and(forked_finish),
                store.stats().completed == 0,
            ];
            first_wrong(&answers)
        });
        assert_eq!(
            child.wait(),
            0,
            "{durability:?}: the number of the wrong call"
        );
        assert_eq!(segments(&directory), before, "{durability:?}");

        // The child's drops and errors have interrupted nobody here.
        completed(store.claim(&done, request()).expect("a claim"));
        operation.renew().expect("still ours");
        operation.complete(b"paid").expect("still ours");
        completed(waiting.finish().expect("an answer"));
        assert_eq!(store.pending().expect("a list").len(), 5);
        let _resumed = started(store.resume(&ticket).expect("a guard"));
        assert_eq!(store.stats().interruptions, 0);
    }
}

/// Everything that can be dropped in a child, dropped there.
#[test]
fn handles_and_guards_dropped_in_a_child_unlock_and_interrupt_nothing() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .open(directory.path())
        .expect("a store");
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let progress = in_progress(store.claim(&key("k-1"), request()).expect("a claim"));
    let waiting = Polled::new(progress.wait_async()).pending();
    eventually("the prepared segment", || {
        store.stats().segments_prepared >= 1
    });
    let held = (store, operation, waiting);
    let mut given = Some(held);
    let child = Forked::run(|| {
        drop(given.take());
        0
    });
    assert_eq!(child.wait(), 0);
    let (store, operation, waiting) = given.expect("the parent's are still here");
    // Still locked, still pending, still woken.
    let refused = small(Durability::Buffered).open(directory.path());
    assert!(matches!(refused, Err(OpenError::InUse { .. })));
    operation.complete(b"paid").expect("still ours");
    completed(waiting.finish().expect("an answer"));
    drop(store);
    let store = reopen(&directory, Durability::Buffered);
    assert!(store.recovery_report().clean);
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}

#[test]
fn a_child_can_open_a_store_of_its_own_but_not_its_parents() {
    let (directory, own) = (directory(), support::directory());
    let store = small(Durability::Buffered)
        .open(directory.path())
        .expect("a store");
    let parent = process::id();
    let child = Forked::run(|| {
        let parents = small(Durability::Buffered).open(directory.path());
        let refused = match parents {
            Err(OpenError::InUse { pid, .. }) => pid == Some(parent),
            _ => false,
        };
        let works = |store: &Store| {
            let claim = store.claim(&key("k-1"), request());
            claim.is_ok_and(|claim| started(claim).complete(b"paid").is_ok())
        };
        let opened = small(Durability::Buffered)
            .open(own.path())
            .is_ok_and(|store| works(&store) && store.close().is_ok());
        first_wrong(&[refused, opened])
    });
    assert_eq!(child.wait(), 0, "the number of what went wrong");
    finish(&store, &key("k-1"), b"the parent's");
    let childs = reopen(&own, Durability::Buffered);
    completed(childs.claim(&key("k-1"), request()).expect("a claim"));
}

#[test]
fn a_child_that_lives_on_does_not_keep_the_directory_locked() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .open(directory.path())
        .expect("a store");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut writer = Some(writer);
    let child = Forked::run(|| {
        drop(writer.take());
        // Until the parent lets go of its end.
        let mut nothing = [0; 1];
        i32::from(!matches!(reader.read(&mut nothing), Ok(0)))
    });
    finish(&store, &key("k-1"), b"paid");
    drop(store);
    let store = reopen(&directory, Durability::Buffered);
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
    drop(writer);
    assert_eq!(child.wait(), 0);
}
