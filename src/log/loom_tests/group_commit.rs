//! Group commit: who is told that a record is durable can rely on it, and nobody sleeps for ever
//! (loom notices when all threads of a model do).

use super::*;
use crate::block::block_on;
use crate::log::append::Appender;
use crate::log::commit::{Commit, Lead, Poison};
use crate::sync::explore;
use loom::thread;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// A log of which every record is one word.
pub(super) struct Log {
    pub(super) appender: Appender,
    pub(super) commit: Commit,
    pub(super) platters: Vec<Arc<Platter>>,
}

impl Log {
    pub(super) fn new(rooms: &[u64]) -> Arc<Self> {
        let (mut segments, platters) = segments(rooms);
        let appender = Appender::new(segments.remove(0), 1, BASE);
        for segment in segments {
            appender.offer(segment);
        }
        Arc::new(Self {
            appender,
            commit: Commit::new(BASE),
            platters,
        })
    }

    pub(super) fn append(&self) -> Appended {
        let reservation = self.appender.reserve(1).expect("there is room");
        // A record says how far the log was durable: never beyond itself.
        assert!(self.commit.watermark() <= reservation.sequence());
        reservation.commit()
    }

    pub(super) fn append_all<const N: usize>(&self) -> [Appended; N] {
        [(); N].map(|()| self.append())
    }

    pub(super) fn wait(&self, appended: Appended, lead: Lead) -> Result<(), Poison> {
        block_on(self.commit.durable(&self.appender, appended.end, lead))
    }

    /// Appends a record, waits for it, and has it checked.
    fn write(&self, lead: Lead) {
        self.wait_well(self.append(), lead);
    }

    /// Waits for a record where no sync fails, and has it checked.
    fn wait_well(&self, appended: Appended, lead: Lead) {
        self.wait(appended, lead).expect("no sync fails");
        self.check(appended);
    }

    /// What must hold once the record was acknowledged.
    pub(super) fn check(&self, appended: Appended) {
        assert!(self.commit.watermark() >= appended.end);
        let platter = &self.platters[usize::from(appended.segment)];
        assert!(
            platter.holds(&appended),
            "acknowledged, and not on the disk"
        );
        self.check_watermark();
    }

    /// What must hold at any moment: everything below the watermark is finished and on the disk.
    pub(super) fn check_watermark(&self) {
        let watermark = self.commit.watermark();
        for platter in &self.platters {
            let begin = platter.base + FIRST_RECORD;
            let end = platter.base + platter.live.words() as u64;
            if watermark > begin {
                let durable = platter.durable_up_to();
                assert!(
                    durable >= watermark.min(end),
                    "watermark {watermark} beyond {durable}"
                );
            }
        }
    }

    /// Polls a wait once and drops it, wherever it had got to by then.
    fn begin_to_wait(&self, appended: Appended, lead: Lead) {
        let durable = self.commit.durable(&self.appender, appended.end, lead);
        let mut durable = pin!(durable);
        block_on(poll_fn(|context| {
            if let Poll::Ready(outcome) = durable.as_mut().poll(context) {
                outcome.expect("no sync fails");
                self.check(appended);
            }
            Poll::Ready(())
        }));
    }

    /// Waits until it is woken, being served by then or told to lead, and goes without a look.
    fn wait_to_be_told(&self, appended: Appended) {
        let durable = self
            .commit
            .durable(&self.appender, appended.end, Lead::Allowed);
        let mut durable = pin!(durable);
        let mut is_woken = false;
        block_on(poll_fn(|context| {
            if std::mem::replace(&mut is_woken, true) {
                return Poll::Ready(());
            }
            let polled = durable.as_mut().poll(context);
            polled.map(|outcome| outcome.expect("no sync fails"))
        }));
    }
}

/// Runs the flusher while `body` runs.
pub(super) fn with_flusher(log: &Arc<Log>, body: impl FnOnce()) {
    let flusher = {
        let log = Arc::clone(log);
        thread::spawn(move || log.commit.flush_until_stopped(&log.appender))
    };
    body();
    log.commit.stop_flusher();
    flusher.join().expect("stopped");
}

fn spawn(log: &Arc<Log>, body: impl FnOnce(&Log) + Send + 'static) -> thread::JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || body(&log))
}

#[test]
fn two_threads_share_syncs() {
    explore(3, || {
        let log = Log::new(&[2]);
        let other = spawn(&log, |log| log.write(Lead::Allowed));
        log.write(Lead::Allowed);
        other.join().expect("acknowledged");
        assert!(log.platters[0].syncs() <= 2);
    });
}

/// Two come while a third syncs for itself: one of them leads next, for both.
#[test]
fn three_threads_share_syncs() {
    explore(2, || {
        let log = Log::new(&[3]);
        let [first] = log.append_all();
        let first = spawn(&log, move |log| log.wait_well(first, Lead::Allowed));
        let [second, third] = log.append_all();
        let second = spawn(&log, move |log| log.wait_well(second, Lead::Allowed));
        log.wait_well(third, Lead::Allowed);
        first.join().expect("acknowledged");
        second.join().expect("acknowledged");
        assert!(log.platters[0].syncs() <= 3);
    });
}

/// Who only looks sees a watermark that is true, and a chain that it is true for.
#[test]
fn the_watermark_is_true_at_every_moment() {
    explore(2, || {
        let log = Log::new(&[3]);
        let writers = [(); 2].map(|()| spawn(&log, |log| log.write(Lead::Allowed)));
        log.check_watermark();
        log.check_watermark();
        for writer in writers {
            writer.join().expect("acknowledged");
        }
    });
}

/// The next segment begins while the first is synced: both are.
#[test]
fn records_on_both_sides_of_a_roll_over() {
    explore(2, || {
        let log = Log::new(&[1, 2]);
        let other = spawn(&log, |log| log.write(Lead::Allowed));
        log.write(Lead::Allowed);
        other.join().expect("acknowledged");
        log.write(Lead::Allowed);
        assert_eq!(
            log.appender.chain().len(),
            1,
            "the first segment is done with"
        );
    });
}

#[test]
fn a_lone_future_is_served_by_the_flusher() {
    explore(3, || {
        let log = Log::new(&[1]);
        with_flusher(&log, || log.write(Lead::Never));
    });
}

#[test]
fn two_futures_are_served_by_the_flusher() {
    explore(2, || {
        let log = Log::new(&[2]);
        with_flusher(&log, || {
            let [first] = log.append_all();
            let first = spawn(&log, move |log| log.wait_well(first, Lead::Never));
            log.write(Lead::Never);
            first.join().expect("acknowledged");
        });
    });
}

#[test]
fn a_thread_a_future_and_the_flusher() {
    explore(2, || {
        let log = Log::new(&[2]);
        with_flusher(&log, || {
            let thread = spawn(&log, |log| log.write(Lead::Allowed));
            log.write(Lead::Never);
            thread.join().expect("acknowledged");
        });
    });
}

/// A future is dropped while it waits, or when the flusher is about to serve it.
#[test]
fn a_dropped_future_leaves_nobody_behind() {
    explore(2, || {
        let log = Log::new(&[2]);
        with_flusher(&log, || {
            let thread = spawn(&log, |log| log.write(Lead::Never));
            let appended = log.append();
            log.begin_to_wait(appended, Lead::Never);
            thread.join().expect("acknowledged");
        });
    });
}

/// A leader may tell a waiter to lead next that is dropped instead: whoever waits behind it, and may
/// not lead, is served all the same.
#[test]
fn a_wait_dropped_when_told_to_lead_hands_on() {
    explore(2, || {
        let log = Log::new(&[3]);
        with_flusher(&log, || {
            let [first, second, third] = log.append_all();
            log.commit.request(first.end);
            let told = spawn(&log, move |log| log.wait_to_be_told(second));
            log.wait_well(third, Lead::Never);
            told.join().expect("dropped");
        });
    });
}
