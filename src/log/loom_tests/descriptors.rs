//! A segment's file is closed as soon as the segment is durable to its end, while others may sync:
//! who finds it closed may rely on that, and nothing is acknowledged that is not on the disk.

use super::group_commit::Log;
use super::*;
use crate::log::commit::Lead;
use crate::sync::explore;
use loom::thread;

fn spawn(log: &Arc<Log>, body: impl FnOnce(&Log) + Send + 'static) -> thread::JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || body(&log))
}

fn wait_well(log: &Log, appended: Appended) {
    log.wait(appended, Lead::Allowed).expect("no sync fails");
    log.check(appended);
}

/// One leader is done with the first segment while the next begins, with a list that has it.
#[test]
fn a_file_is_closed_while_the_next_leader_syncs() {
    explore(3, || {
        let log = Log::new(&[1, 2]);
        let [first, second] = log.append_all();
        let other = spawn(&log, move |log| wait_well(log, first));
        wait_well(&log, second);
        other.join().expect("acknowledged");
        assert_eq!(log.appender.chain().len(), 1);
    });
}

/// Three segments, each of them full at once: none is closed before it is durable.
#[test]
fn files_are_closed_in_order_and_only_when_durable() {
    explore(2, || {
        let log = Log::new(&[1, 1, 2]);
        let other = spawn(&log, |log| {
            let [first, second] = log.append_all();
            wait_well(log, second);
            log.check(first);
        });
        let own = log.append();
        wait_well(&log, own);
        other.join().expect("acknowledged");
        for segment in log.appender.chain() {
            assert!(segment.open_file().is_some(), "closed in the chain");
        }
    });
}
