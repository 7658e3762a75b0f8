//! `oncekey bench`: how fast a store is on this machine.

mod measure;

use clap::Args;

use crate::output::{COUNT, Exit, Failure, Output, bar};

use self::measure::{Fault, Flags, Run, entrants, run_step};

#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Bench {
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn bench(arguments: &Bench, output: &mut Output) -> Result<(), Failure> {
    let flags = &arguments.flags;
    let mark = output.stop_mark();
    let stop = || mark().is_err();
    let failed = |fault: Fault| match stop() {
        true => Failure::new(Exit::Stopped, "stopped; nothing is left behind"),
        false => Failure::new(Exit::Failed, fault),
    };
    let entrants = entrants();
    if flags.is_step() {
        let told = run_step(flags, &entrants, &stop).map_err(failed)?;
        return output.line(told);
    }
    let bar = bar("measuring", 0, COUNT);
    let run = Run {
        flags,
        entrants: &entrants,
        child: &["bench"],
        stop: &stop,
        progress: &|done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        },
    };
    let report = run.run();
    bar.finish_and_clear();
    let report = report.map_err(failed)?;
    output.show(&report.json(), &report)
}
