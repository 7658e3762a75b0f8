//! One lap: threads that all begin at once, until the time is over or the keys are used up.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::keys::{Sample, sample, scramble, shuffled};
use super::{Claimed, Contestant, Fault, Session, Used};

/// What is done in a lap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    /// Claims of new keys, each completed at once.
    Lifecycle,
    /// Claims of keys that are done.
    Replay,
    /// So large a share of the second, the others of the first.
    Mixed(f64),
}

impl Work {
    pub(super) fn name(self) -> String {
        match self {
            Self::Lifecycle => "claim+complete".to_owned(),
            Self::Replay => "replay".to_owned(),
            Self::Mixed(share) => format!("mixed, {:.0} % repeated", share * 100.0),
        }
    }
}

/// A lap to be run.
pub(crate) struct Job<'a> {
    pub(crate) work: Work,
    pub(crate) threads: usize,
    /// The n-th thread of t has every t-th key, from the n-th.
    pub(crate) keys: &'a [Sample],
    /// How many of each thread's keys are done already.
    pub(crate) done: &'a [usize],
    pub(crate) response: &'a [u8],
    /// No limit where it is zero.
    pub(crate) time: Duration,
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
}

/// Keys to be completed, from the first.
pub(crate) struct Fill<'a> {
    pub(crate) count: usize,
    pub(crate) threads: usize,
    pub(crate) key_bytes: usize,
    pub(crate) response: &'a [u8],
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Lap {
    pub(crate) wall: Duration,
    /// Nanoseconds of each operation.
    pub(crate) nanos: Vec<u32>,
    /// How many of each thread's keys are done now.
    pub(crate) done: Vec<usize>,
}

/// A contestant of any kind.
pub(crate) trait Subject: Send + Sync {
    fn lap(&self, job: &Job<'_>) -> Result<Lap, Fault>;
    /// Completes keys, and keeps nothing of them.
    fn fill(&self, fill: &Fill<'_>) -> Result<(), Fault>;
    fn replay_one(&self, key: &Sample, response: &[u8]) -> Result<(), Fault>;
    /// Fails unless a key that is pending or done is told from a new one.
    fn try_out(&self, key: &Sample, response: &[u8]) -> Result<(), Fault>;
    fn used(&self) -> Result<Used, Fault>;
    fn settle(&self) -> Result<(), Fault>;
    fn close(self: Box<Self>) -> Result<(), Fault>;
}

struct ThreadLap {
    began: Instant,
    ended: Instant,
    nanos: Vec<u32>,
    done: usize,
}

impl<C: Contestant> Subject for C {
    fn lap(&self, job: &Job<'_>) -> Result<Lap, Fault> {
        let barrier = Barrier::new(job.threads);
        let laps: Vec<Result<ThreadLap, Fault>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..job.threads)
                .map(|thread| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        // Whoever cannot begin must not keep the others at the barrier.
                        let session = self.session();
                        let nanos = Vec::with_capacity(job.keys.len() / job.threads + 1);
                        barrier.wait();
                        of_thread(session?, job, thread, nanos)
                    })
                })
                .collect();
            threads.into_iter().map(joined).collect()
        });
        let laps: Vec<ThreadLap> = laps.into_iter().collect::<Result<_, _>>()?;
        let began = laps.iter().map(|lap| lap.began).min();
        let ended = laps.iter().map(|lap| lap.ended).max();
        Ok(Lap {
            wall: began
                .zip(ended)
                .map_or(Duration::ZERO, |(began, ended)| ended - began),
            done: laps.iter().map(|lap| lap.done).collect(),
            nanos: laps.into_iter().flat_map(|lap| lap.nanos).collect(),
        })
    }

    fn fill(&self, fill: &Fill<'_>) -> Result<(), Fault> {
        let of_thread = |thread: usize| -> Result<(), Fault> {
            let mut session = self.filling_session()?;
            for number in (thread..fill.count).step_by(fill.threads) {
                if (fill.stop)() {
                    return Err("stopped".into());
                }
                let key = sample(number as u64, fill.key_bytes)?;
                lifecycle(&mut session, &key, fill.response)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let of_thread = &of_thread;
            let threads: Vec<_> = (0..fill.threads)
                .map(|thread| scope.spawn(move || of_thread(thread)))
                .collect();
            threads.into_iter().try_for_each(joined)
        })
    }

    fn replay_one(&self, key: &Sample, response: &[u8]) -> Result<(), Fault> {
        replay(&mut self.session()?, key, response)
    }

    fn try_out(&self, key: &Sample, response: &[u8]) -> Result<(), Fault> {
        let [mut first, mut second] = [self.session()?, self.session()?];
        let Claimed::Started(guard) = first.claim(key)? else {
            return Err("a new key is not free".into());
        };
        let Claimed::Running = second.claim(key)? else {
            return Err("a key that is pending can be claimed again".into());
        };
        first.complete(guard, response)?;
        replay(&mut second, key, response)
    }

    fn used(&self) -> Result<Used, Fault> {
        Contestant::used(self)
    }

    fn settle(&self) -> Result<(), Fault> {
        Contestant::settle(self)
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        Contestant::close(*self)
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, Fault>>) -> Result<T, Fault> {
    thread
        .join()
        .unwrap_or_else(|_| Err("a thread panicked".into()))
}

fn of_thread(
    mut session: impl Session,
    job: &Job<'_>,
    thread: usize,
    mut nanos: Vec<u32>,
) -> Result<ThreadLap, Fault> {
    let own = job.keys.iter().skip(thread).step_by(job.threads).len();
    let key = |index: usize| &job.keys[thread + index * job.threads];
    let mut done = job.done.get(thread).copied().unwrap_or(0);
    let began = Instant::now();
    let mut now = began;
    for step in 0.. {
        let is_duplicate = match job.work {
            Work::Lifecycle => false,
            Work::Replay => true,
            Work::Mixed(share) => {
                done > 0 && (scramble(step as u64) as f64) < share * u64::MAX as f64
            }
        };
        let is_over = match (is_duplicate, job.work) {
            (_, Work::Replay) => step >= own.max(1),
            (false, _) => done >= own,
            (true, _) => false,
        };
        // A lap of no operation would say nothing.
        let is_late = step > 0 && !job.time.is_zero() && now - began >= job.time;
        if is_over || is_late || (job.stop)() {
            break;
        }
        match is_duplicate {
            true if done == 0 => break,
            true => replay(&mut session, key(shuffled(step, done)), job.response)?,
            false => {
                lifecycle(&mut session, key(done), job.response)?;
                done += 1;
            }
        }
        let after = Instant::now();
        nanos.push(u32::try_from((after - now).as_nanos()).unwrap_or(u32::MAX));
        now = after;
    }
    Ok(ThreadLap {
        began,
        ended: now,
        nanos,
        done,
    })
}

fn lifecycle(session: &mut impl Session, key: &Sample, response: &[u8]) -> Result<(), Fault> {
    match session.claim(key)? {
        Claimed::Started(guard) => session.complete(guard, response),
        Claimed::Running => Err("a new key was claimed already".into()),
        Claimed::Done(_) => Err("a new key was done already".into()),
    }
}

/// Reads the length and both ends: a store that hands out pages not yet read must have the first.
fn replay(session: &mut impl Session, key: &Sample, response: &[u8]) -> Result<(), Fault> {
    match session.claim(key)? {
        Claimed::Done(saved) => {
            let saved = saved.as_ref();
            let is_same = saved.len() == response.len()
                && saved.first() == response.first()
                && saved.last() == response.last();
            match is_same {
                true => Ok(()),
                false => Err("a result is not what was stored".into()),
            }
        }
        Claimed::Started(_) => Err("a result is lost: its key is free".into()),
        Claimed::Running => Err("a result is lost: its key is pending".into()),
    }
}
