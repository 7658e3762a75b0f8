//! Two stores against a model of them: random calls of the whole public interface, clock moves,
//! full disks, failing syncs, restarts, crashes and restored copies, and after every step only
//! answers that the model allows.
//!
//! `steps` says what can be asked, `model` what a key can be, `side` is one store with its model.
//! `claims`, `waits`, `owners` and `operators` judge the answers, `lives` ends and begins lives of a
//! store, `checks` compares what can be seen without changing anything.
//!
//! Where there is one right answer the model is exact. Where there are several (a power loss on
//! what was only buffered, a disk that is full or fails) it knows all of them, looks which one it
//! was, and is exact from there on.
//!
//! `ONCEKEY_CASES` sets how many cases each of the two tests runs.

#[path = "../support/mod.rs"]
mod support;

mod checks;
mod claims;
mod lives;
mod model;
mod operators;
mod owners;
mod regressions;
mod side;
mod steps;
mod waits;

use proptest::prelude::*;

use crate::side::{Shared, Side};
use crate::steps::{Case, Step, faults, peace};

fn run(case: Case) {
    let mut shared = Shared::default();
    let mut sides = case
        .durabilities
        .map(|durability| Side::new(&mut shared, durability));
    for (at, step) in case.steps {
        if let Step::Copy { how } = step {
            let [first, second] = &mut sides;
            let (from, to) = if at == 0 {
                (first, second)
            } else {
                (second, first)
            };
            to.become_copy_of(from, how);
        } else {
            sides[at].step(&mut shared, &step);
        }
        for side in &mut sides {
            side.compare(&shared);
        }
    }
    for side in &mut sides {
        side.end(&mut shared);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("ONCEKEY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000),
        // A failure is made a test in `regressions.rs`, not a file of seeds.
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn stores_on_good_disks_answer_as_the_model_does(case in peace()) {
        run(case);
    }

    #[test]
    fn stores_on_disks_that_fill_and_fail_answer_as_the_model_does(case in faults()) {
        run(case);
    }
}
