//! `oncekey bench`: how fast a store is on this machine, beside a Redis and a PostgreSQL if wanted.

mod measure;

use clap::Args;

use crate::output::{COUNT, Exit, Failure, Output, bar};

use self::measure::{Entrant, Fault, Flags, Page, Postgres, Redis, Run, entrants, run_step};

#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Bench {
    #[command(flatten)]
    flags: Flags,
    /// A Redis to measure beside the store, or what speaks as one: redis://user:password@host:port
    ///
    /// Its keys are under a prefix of their own, and are removed in the end. Without TLS.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// A PostgreSQL to measure beside the store: postgres://user:password@host:port/database
    ///
    /// Its keys are in a table of their own, which is removed in the end. Without TLS.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

pub(crate) fn bench(arguments: &Bench, output: &mut Output) -> Result<(), Failure> {
    let flags = &arguments.flags;
    let mark = output.stop_mark();
    let stop = || mark().is_err();
    let failed = |fault: Fault| match stop() {
        true => Failure::new(Exit::Stopped, "stopped; nothing is left behind"),
        false => Failure::new(Exit::Failed, fault),
    };
    if flags.is_step() {
        let told = run_step(flags, &entrants(), &stop).map_err(failed)?;
        return output.line(told);
    }
    let page = flags.html.as_deref().map(Page::begin);
    let page = page.transpose().map_err(failed)?;
    let mut entrants = entrants();
    entrants.retain(|one| flags.wants(one.class));
    entrants.extend(servers(arguments)?);
    let run = Run {
        flags,
        entrants: &entrants,
        child: &["bench"],
        stop: &stop,
        bar: bar("measuring", 0, COUNT),
    };
    let report = run.run().map_err(failed)?;
    if let Some(page) = page {
        page.end(&report).map_err(failed)?;
    }
    output.show(&report.json(), &report)
}

fn servers(arguments: &Bench) -> Result<Vec<Entrant>, Failure> {
    let usage = |fault: Fault| Failure::new(Exit::Usage, fault);
    let redis = arguments.redis.as_deref().map(Redis::at);
    let postgres = arguments.postgres.as_deref().map(Postgres::at);
    let (redis, postgres) = (
        redis.transpose().map_err(usage)?,
        postgres.transpose().map_err(usage)?,
    );
    let asked = [redis.map(Redis::entrant), postgres.map(Postgres::entrant)];
    let mut servers = Vec::new();
    for entrant in asked.into_iter().flatten() {
        let entrant = entrant.map_err(|fault| Failure::new(Exit::Failed, fault))?;
        if !arguments.flags.wants(entrant.class) {
            let message = format!(
                "--durability leaves out {}, which is set up as {}",
                entrant.name,
                entrant.class.name()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        servers.push(entrant);
    }
    Ok(servers)
}
