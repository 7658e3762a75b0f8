//! Runs a scenario in many schedules, counts them, and replays one that failed.

use std::cell::Cell;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Schedule, Scheduler, Task, TaskId,
};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Schedules of each kind for each scenario, unless `ONCEKEY_SHUTTLE_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 1_000;
/// Far more steps than any schedule takes that ends.
const STEPS_MAX: usize = 3_000_000;
/// Recovery keeps pages on its stack.
const STACK_BYTES: usize = 1 << 20;
/// How often the priorities change in a schedule of the second kind.
const PRIORITY_CHANGES: usize = 4;

/// For how many steps a thread is held back at most: some of those that go on meanwhile only look
/// whether it is done.
const HELD_MAX: usize = 20_000;

thread_local! {
    /// All threads of a schedule run on one of the system.
    static HELD: Cell<Held> = const { Cell::new(Held::Nobody) };
}

/// Which thread of the schedule is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nobody,
    /// The one that runs, after so many steps of its own.
    Asked {
        steps: usize,
    },
    Soon {
        task: TaskId,
        steps: usize,
    },
    Now {
        task: TaskId,
        steps: usize,
    },
}

/// Holds the running thread back in the middle of what it does next, `steps` of its own steps from
/// here, until [`let_go`] or until nobody else can go on. Of one thread at a time: chance alone
/// hardly ever holds one back at a certain step for as long as others need to do something large.
pub fn hold_back(steps: usize) {
    if HELD.get() == Held::Nobody {
        HELD.set(Held::Asked { steps });
    }
}

/// Lets a thread that is held back go on.
pub fn let_go() {
    HELD.set(Held::Nobody);
}

/// Explores a scenario: once with threads chosen at random at each step, once with priorities that
/// change a few times, which finds what needs one thread to be held back for long. Gives the number
/// of schedules.
pub fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) -> usize {
    let scenario = Arc::new(scenario);
    if let Some(file) = env::var_os("ONCEKEY_SHUTTLE_REPLAY") {
        let replay = ReplayScheduler::new_from_file(file).expect("a persisted schedule");
        return Runner::new(replay, config()).run(move || scenario());
    }
    let schedules = number("ONCEKEY_SHUTTLE_SCHEDULES", SCHEDULES) as usize;
    let seed = number("ONCEKEY_SHUTTLE_SEED", 1);
    let random = RandomScheduler::new_from_seed(seed, schedules);
    let random = run(name, "random", random, Arc::clone(&scenario));
    let priorities = PctScheduler::new_from_seed(seed, PRIORITY_CHANGES, schedules);
    random + run(name, "priorities", priorities, scenario)
}

fn run(
    name: &str,
    kind: &str,
    scheduler: impl Scheduler + 'static,
    scenario: Arc<impl Fn() + Send + Sync + 'static>,
) -> usize {
    let steps = Arc::new(AtomicU64::new(0));
    let counting = Counting {
        inner: Holding(scheduler),
        steps: Arc::clone(&steps),
    };
    let begun = Instant::now();
    let runner = Runner::new(counting, config());
    match catch_unwind(AssertUnwindSafe(|| runner.run(move || scenario()))) {
        Ok(schedules) => {
            println!(
                "{schedules:>7} schedules, {:>10} steps, {:>6.1} s: {name} ({kind})",
                steps.load(Ordering::Relaxed),
                begun.elapsed().as_secs_f64(),
            );
            schedules
        }
        Err(panic) => {
            eprintln!(
                "{name} ({kind}) failed; to replay, run it alone with ONCEKEY_SHUTTLE_REPLAY set to \
                 the file that is named above"
            );
            resume_unwind(panic);
        }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::File(Some(env!("CARGO_TARGET_TMPDIR").into()));
    config.silence_warnings = true;
    config
        .ungraceful_shutdown_config
        .immediately_return_on_panic = true;
    config
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {value}"))
    })
}

/// Counts the steps that a scheduler is asked for.
struct Counting<S> {
    inner: S,
    steps: Arc<AtomicU64>,
}

impl<S: Scheduler> Scheduler for Counting<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.inner.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.inner.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.inner.next_u64()
    }
}

/// Leaves a thread that is held back out of those that may go on.
struct Holding<S>(S);

impl<S: Scheduler> Scheduler for Holding<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        let_go();
        self.0.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let next = match (HELD.get(), current) {
            (Held::Asked { steps }, Some(task)) => Held::Soon { task, steps },
            (Held::Soon { task, steps: 0 }, _) => Held::Now {
                task,
                steps: HELD_MAX,
            },
            (Held::Soon { task, steps }, Some(current)) if current == task => Held::Soon {
                task,
                steps: steps - 1,
            },
            (Held::Now { steps: 0, .. }, _) => Held::Nobody,
            (Held::Now { task, steps }, _) => Held::Now {
                task,
                steps: steps - 1,
            },
            (held, _) => held,
        };
        HELD.set(next);
        if let Held::Now { task, .. } = next {
            let others: Vec<_> = runnable
                .iter()
                .copied()
                .filter(|each| each.id() != task)
                .collect();
            if !others.is_empty() {
                return self.0.next_task(&others, current, is_yielding);
            }
            let_go();
        }
        self.0.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
