//! The first failed sync: nobody is told that a record is durable which it may not be, everybody who
//! waits is told that it failed, and the watermark stays where it is.

use super::group_commit::{Log, with_flusher};
use super::*;
use crate::log::commit::Lead;
use crate::sync::explore;
use loom::thread;

/// Waits for a record; what it was told must be true.
fn wait(log: &Log, appended: Appended, lead: Lead) {
    match log.wait(appended, lead) {
        Ok(()) => log.check(appended),
        Err(poison) => {
            assert!(log.commit.is_poisoned());
            assert_eq!(poison.source.to_string(), "the disk failed");
            assert!(log.commit.watermark() < appended.end);
        }
    }
}

/// Nothing moves any more, whoever tries.
fn check_stopped(log: &Log) {
    if log.commit.is_poisoned() {
        assert!(log.commit.poison().is_some());
        let watermark = log.commit.watermark();
        let appended = log.append();
        assert!(log.wait(appended, Lead::Allowed).is_err());
        assert_eq!(log.commit.watermark(), watermark);
    }
    log.check_watermark();
}

fn spawn(log: &Arc<Log>, appended: Appended, lead: Lead) -> thread::JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || wait(&log, appended, lead))
}

#[test]
fn the_first_sync_fails_for_two_threads() {
    explore(3, || {
        let log = Log::new(&[3]);
        log.platters[0].fail(0);
        let other = spawn(&log, log.append(), Lead::Allowed);
        wait(&log, log.append(), Lead::Allowed);
        other.join().expect("answered");
        assert!(log.commit.is_poisoned());
        check_stopped(&log);
        assert_eq!(
            log.platters[0].syncs(),
            1,
            "no later success proves anything"
        );
    });
}

/// The first is served, the others are told.
#[test]
fn the_second_sync_fails_if_there_is_one() {
    explore(2, || {
        let log = Log::new(&[4]);
        log.platters[0].fail(1);
        let first = spawn(&log, log.append(), Lead::Allowed);
        let [second, third] = log.append_all();
        let second = spawn(&log, second, Lead::Allowed);
        wait(&log, third, Lead::Allowed);
        first.join().expect("answered");
        second.join().expect("answered");
        check_stopped(&log);
    });
}

#[test]
fn a_sync_fails_for_a_thread_a_future_and_the_flusher() {
    explore(2, || {
        let log = Log::new(&[3]);
        log.platters[0].fail(0);
        with_flusher(&log, || {
            let thread = spawn(&log, log.append(), Lead::Allowed);
            wait(&log, log.append(), Lead::Never);
            thread.join().expect("answered");
        });
        check_stopped(&log);
    });
}
