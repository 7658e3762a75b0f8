//! Threads that are started once and run one job after another, all at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

type Job = Arc<dyn Fn(usize) + Send + Sync>;

/// How long a job took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lap {
    /// From the first thread's start to the last one's end.
    pub wall: Duration,
    /// Processor time of all its threads, where the system tells.
    pub cpu: Duration,
}

impl std::ops::AddAssign for Lap {
    fn add_assign(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// The threads.
pub struct Crew {
    jobs: Vec<Sender<Job>>,
    ended: Receiver<Option<(Instant, Instant, Duration)>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts `count` threads.
    pub fn start(count: usize) -> Self {
        let barrier = Arc::new(Barrier::new(count));
        let (report, ended) = channel();
        let mut jobs = Vec::new();
        let mut threads = Vec::new();
        for index in 0..count {
            let (send, receive) = channel::<Job>();
            jobs.push(send);
            let (barrier, report) = (Arc::clone(&barrier), report.clone());
            threads.push(thread::spawn(move || {
                for job in receive {
                    let cpu = cpu_time();
                    barrier.wait();
                    let begun = Instant::now();
                    let done = catch_unwind(AssertUnwindSafe(|| job(index)));
                    let ended = Instant::now();
                    let cpu = cpu_time().saturating_sub(cpu);
                    drop(job);
                    let lap = done.is_ok().then_some((begun, ended, cpu));
                    if report.send(lap).is_err() {
                        return;
                    }
                }
            }));
        }
        Self {
            jobs,
            ended,
            threads,
        }
    }

    /// How many threads.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Runs `job` once on every thread, with the thread's index.
    pub fn run(&self, job: impl Fn(usize) + Send + Sync + 'static) -> Lap {
        let job: Job = Arc::new(job);
        for thread in &self.jobs {
            thread.send(Arc::clone(&job)).expect("the thread lives");
        }
        drop(job);
        let mut cpu = Duration::ZERO;
        let mut span: Option<(Instant, Instant)> = None;
        for _ in &self.jobs {
            let lap = self.ended.recv().expect("the thread lives");
            let (begun, ended, spent) = lap.expect("a job panicked");
            cpu += spent;
            span = Some(match span {
                Some((first, last)) => (first.min(begun), last.max(ended)),
                None => (begun, ended),
            });
        }
        let wall = span.map_or(Duration::ZERO, |(first, last)| last - first);
        Lap { wall, cpu }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Processor time of the calling thread; zero where the system does not tell.
pub fn cpu_time() -> Duration {
    // The scheduler adds up what a thread used when it looks at it, which this makes it do.
    thread::yield_now();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
