//! Whether there is an order of the calls that explains all answers.
//!
//! After J. M. Wing and C. Gong, "Testing and Verifying Concurrent Objects" (1993): try the calls
//! that were under way one after the other, each at a moment between its begin and its end. With two
//! refinements of G. Lowe, "Testing for Linearizability" (2017): configurations that were seen are
//! not tried again, and a call is placed no sooner than some answer needs it ("just in time"). A
//! configuration is a state of the key and the set of the open calls that have taken effect; the
//! events are gone through once, with all configurations side by side, so that a wrong answer is
//! found at the very event that nothing explains.
//!
//! Calls under way when a process ends may have taken effect at any moment up to there, or never.

use std::collections::HashSet;
use std::fmt;

use crate::history::{Event, KeyHistory, Operation, What};
use crate::state::Key;

/// More than any history here needs; beyond it the check gives up, which is a failure.
const CONFIGURATIONS_MAX: usize = 400_000;
/// Calls of one key that are under way at once.
const OPEN_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Configuration {
    key: Key,
    /// Bit by place: which of the open calls have taken effect.
    done: u64,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    pub operations: usize,
    /// The most configurations that were kept at once.
    pub configurations: usize,
}

/// An answer that no order of the calls explains.
pub struct Violation {
    event: usize,
    why: &'static str,
    before: Vec<Key>,
    around: Vec<String>,
}

struct Search<'a> {
    history: &'a KeyHistory,
    with_power: bool,
    /// Operations under way, by place.
    open: Vec<Option<usize>>,
    returned: Vec<bool>,
}

/// Checks the history of one key.
pub fn check(history: &KeyHistory) -> Result<Effort, Violation> {
    let mut search = Search {
        history,
        with_power: history.has_power_loss(),
        open: vec![None; OPEN_MAX],
        returned: vec![false; history.operations.len()],
    };
    let mut effort = Effort {
        operations: history.operations.len(),
        configurations: 1,
    };
    let mut configurations = HashSet::from([Configuration::default()]);
    for (number, event) in history.events.iter().enumerate() {
        let next = match *event {
            Event::Invoke(operation) => {
                let free = search.open.iter().position(Option::is_none);
                let place = free.expect("fewer calls under way at once");
                search.open[place] = Some(operation);
                continue;
            }
            Event::Return(operation) => {
                let place = search.open.iter().position(|open| *open == Some(operation));
                let place = place.expect("a call that returns is open");
                let next = search.until(&configurations, Some(place));
                search.open[place] = None;
                search.returned[operation] = true;
                next
            }
            Event::End(end) => search.until(&configurations, None).map(|reached| {
                search.open.fill(None);
                let keys = reached.iter().flat_map(|one| one.key.ended(end));
                keys.map(|key| Configuration { key, done: 0 }).collect()
            }),
        };
        let next = next.ok_or("too many configurations");
        match next {
            Ok(next) if next.is_empty() => {
                return Err(violation(
                    history,
                    number,
                    "nothing explains it",
                    &configurations,
                ));
            }
            Ok(next) => configurations = next,
            Err(why) => return Err(violation(history, number, why, &configurations)),
        }
        effort.configurations = effort.configurations.max(configurations.len());
    }
    Ok(effort)
}

impl Search<'_> {
    /// What can be reached by placing open calls, up to and with the one at `place`, whose bit is
    /// then free again. Without a place, all that can be reached.
    fn until(
        &self,
        from: &HashSet<Configuration>,
        place: Option<usize>,
    ) -> Option<HashSet<Configuration>> {
        let mut reached = HashSet::new();
        let mut seen: HashSet<Configuration> = from.clone();
        let mut left: Vec<Configuration> = from.iter().cloned().collect();
        while let Some(mut one) = left.pop() {
            match place {
                Some(place) if one.done & (1 << place) != 0 => {
                    one.done &= !(1 << place);
                    reached.insert(one);
                    continue;
                }
                Some(_) => {}
                None => drop(reached.insert(one.clone())),
            }
            for (at, open) in self.open.iter().enumerate() {
                let Some(operation) = open else { continue };
                let operation = &self.history.operations[*operation];
                // At an end only leases would be the longer for it, and they end with it.
                let is_idle =
                    place.is_none() && matches!(operation.call.what, What::HandOut { .. });
                if is_idle || one.done & (1 << at) != 0 || !self.may_come(operation, one.done) {
                    continue;
                }
                let done = one.done | 1 << at;
                let answered = one.key.step(operation, self.with_power);
                let in_vain = one.key.granted_in_vain(operation, self.with_power);
                let answered = answered.into_iter().map(|key| (key, done));
                let in_vain = in_vain.into_iter().map(|key| (key, one.done));
                for (key, done) in answered.chain(in_vain) {
                    let next = Configuration { key, done };
                    if seen.insert(next.clone()) {
                        left.push(next);
                    }
                }
            }
            if seen.len() > CONFIGURATIONS_MAX {
                return None;
            }
        }
        Some(reached)
    }

    fn may_come(&self, operation: &Operation, done: u64) -> bool {
        let Some(first) = operation.after else {
            return true;
        };
        let place = self.open.iter().position(|open| *open == Some(first));
        self.returned[first] || place.is_some_and(|place| done & (1 << place) != 0)
    }
}

fn violation(
    history: &KeyHistory,
    event: usize,
    why: &'static str,
    before: &HashSet<Configuration>,
) -> Violation {
    let mut before: Vec<Key> = before.iter().map(|one| one.key.clone()).collect();
    before.truncate(12);
    let from = event.saturating_sub(40);
    let around = history.events[from..=event]
        .iter()
        .map(|event| match event {
            Event::Invoke(at) => {
                let Operation { id, call, .. } = &history.operations[*at];
                format!("  {id:x} asks     {:?} sync {}", call.what, call.sync)
            }
            Event::Return(at) => {
                let Operation {
                    id, answer, window, ..
                } = &history.operations[*at];
                format!("  {id:x} answered {answer:?} within {window:?}")
            }
            Event::End(end) => format!("  {end:?} ended"),
        });
    Violation {
        event,
        why,
        before,
        around: around.collect(),
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "event {}: {}", self.event, self.why)?;
        for line in &self.around {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "before it the key may have been")?;
        for key in &self.before {
            writeln!(f, "  {key:?}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
