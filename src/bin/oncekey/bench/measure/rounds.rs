//! All that a measurement does, in turns, and what it saw.

use std::time::Duration;

use indicatif::ProgressBar;

use super::files::directory;
use super::growth::Children;
use super::keys::{response, samples};
use super::lap::{Job, Lap, Work};
use super::machine::load;
use super::report::{Report, Series};
use super::{Entrant, Fault, Flags, Room};

/// A measurement.
pub(crate) struct Run<'a> {
    pub(crate) flags: &'a Flags,
    pub(crate) entrants: &'a [Entrant],
    /// What stands before the flags when this program is run for a step.
    pub(crate) child: &'a [&'a str],
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    /// Shows how many of how many turns are over, and goes in the end.
    pub(crate) bar: ProgressBar,
}

impl Run<'_> {
    pub(crate) fn run(&self) -> Result<Report, Fault> {
        let report = self.turns();
        self.bar.finish_and_clear();
        report
    }

    fn show(&self, turns: usize, total: usize) {
        self.bar.set_length(total as u64);
        self.bar.set_position(turns as u64);
    }

    fn turns(&self) -> Result<Report, Fault> {
        let entrants = self.entrants;
        if entrants.is_empty() {
            return Err("nobody takes part at these levels".into());
        }
        let mut names = Vec::new();
        // What keys take is the same at each level, and they are written soonest at the first.
        let growing: Vec<&Entrant> = entrants
            .iter()
            .filter(|one| {
                let is_first = !names.contains(&&one.name);
                names.push(&one.name);
                is_first
            })
            .collect();
        let counts = self.flags.counts();
        let rounds = self.flags.rounds;
        let total =
            self.flags.threads.len() * rounds * entrants.len() + counts.len() * growing.len();
        let load_before = load();
        let mut series = Vec::new();
        let mut turns = 0;
        for &threads in &self.flags.threads {
            let works = self.works();
            let mut taken: Vec<Vec<Series>> = entrants
                .iter()
                .map(|one| {
                    works
                        .iter()
                        .map(|work| Series::new(*work, one, threads))
                        .collect()
                })
                .collect();
            for round in 0..rounds {
                for turn in 0..entrants.len() {
                    // Everybody is first in turn.
                    let place = (turn + round) % entrants.len();
                    let entrant = &entrants[place];
                    self.turn(entrant, threads, turns, &mut taken[place])
                        .map_err(|fault| entrant.blamed(fault))?;
                    turns += 1;
                    self.show(turns, total);
                }
            }
            series.extend(taken.into_iter().flatten());
        }
        let mut growth = Vec::new();
        let children = Children {
            arguments: self.child,
            flags: self.flags,
            stop: self.stop,
        };
        for &count in &counts {
            for entrant in &growing {
                growth.push(children.measure(entrant, count)?);
                turns += 1;
                self.show(turns, total);
            }
        }
        Ok(Report::new(
            self.flags,
            entrants,
            load_before,
            series,
            growth,
        ))
    }

    fn works(&self) -> Vec<Work> {
        let mut works = vec![Work::Lifecycle, Work::Replay];
        if self.flags.duplicates > 0.0 {
            works.push(Work::Mixed(self.flags.duplicates));
        }
        works
    }

    /// All works once, on a store of their own.
    fn turn(
        &self,
        entrant: &Entrant,
        threads: usize,
        turn: usize,
        series: &mut [Series],
    ) -> Result<(), Fault> {
        let flags = self.flags;
        let below = directory(&flags.dir)?;
        let each = flags.keys_of_lap();
        let keys = samples(turn as u64, 2 * each + 1, flags.key_bytes)?;
        let (tried, keys) = keys.split_first().ok_or("no keys")?;
        let (first, second) = keys.split_at(each);
        let response = response(flags.value_bytes);
        let room = Room {
            keys: keys.len(),
            key_bytes: flags.key_bytes,
            response_bytes: flags.value_bytes,
        };
        let subject = entrant.open(below.path(), room)?;
        subject.try_out(tried, &response)?;
        let mut done = Vec::new();
        for one in series {
            subject.settle()?;
            let job = Job {
                work: one.work,
                threads,
                keys: if matches!(one.work, Work::Mixed(_)) {
                    second
                } else {
                    first
                },
                done: if one.work == Work::Replay { &done } else { &[] },
                response: &response,
                time: flags.lap(),
                stop: self.stop,
            };
            let lap = subject.lap(&job)?;
            if (self.stop)() {
                return Err("stopped".into());
            }
            done.clone_from(&lap.done);
            record(one, lap);
        }
        subject.close()
    }
}

fn record(series: &mut Series, mut lap: Lap) {
    let wall = lap.wall.max(Duration::from_nanos(1));
    series
        .rates
        .push(lap.nanos.len() as f64 / wall.as_secs_f64());
    lap.nanos.sort_unstable();
    let at = |share: f64| {
        let place = (lap.nanos.len() as f64 * share) as usize;
        let found = lap.nanos.get(place.min(lap.nanos.len().saturating_sub(1)));
        f64::from(found.copied().unwrap_or(0)) / 1e3
    };
    series.micros.push([at(0.5), at(0.99), at(0.999), at(1.0)]);
}
