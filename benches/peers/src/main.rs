//! The workloads of `oncekey bench`, beside what a user would pick instead.

#[path = "../../../src/bin/oncekey/bench/measure/mod.rs"]
mod measure;
#[path = "../../../tests/backends/servers.rs"]
#[allow(dead_code, reason = "each uses its part")]
mod servers;

mod embedded;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod rows;
mod sqlite;
mod volatile;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};

use self::measure::{Entrant, Fault, Flags, Page, Postgres, Redis, Run, run_step};
use self::servers::Server;

/// Measure claims, completions and replays of oncekey and of what is used instead, in turns.
///
/// Redis and PostgreSQL are started here, below the directory that is measured in; who is not installed
/// is left out.
#[derive(Parser)]
#[command(name = "oncekey-peers")]
struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// Who takes part beside oncekey: a list of names, such as redb,SQLite. All by default.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stopped));
        registered.expect("a signal that can be caught");
    }
    let stop = || stopped.load(Ordering::Relaxed);
    match run(&arguments, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if stop() => {
            eprintln!("oncekey-peers: stopped");
            ExitCode::from(130)
        }
        Err(fault) => {
            eprintln!("oncekey-peers: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, stop: &(dyn Fn() -> bool + Sync)) -> Result<(), Fault> {
    let flags = &arguments.flags;
    if flags.is_step() {
        println!("{}", run_step(flags, &in_process(), stop)?);
        return Ok(());
    }
    let page = flags.html.as_deref().map(Page::begin).transpose()?;
    // Servers are started below it, and they are to be on the same disk.
    let below = flags.dir.canonicalize()?;
    tempfile::env::override_temp_dir(&below).map_err(|_| "no place for servers")?;
    let wants = |name: &str| {
        let mut only = arguments.only.iter();
        arguments.only.is_empty() || name == "oncekey" || only.any(|one| one == name)
    };
    let mut entrants = in_process();
    let mut running = Vec::new();
    if wants("Redis") {
        start_redis(&mut running, &mut entrants)?;
    }
    if wants("PostgreSQL") {
        start_postgres(&mut running, &mut entrants)?;
    }
    if let Some(name) = arguments
        .only
        .iter()
        .find(|name| !entrants.iter().any(|one| one.name == **name))
    {
        return Err(format!("{name} is not here").into());
    }
    entrants.retain(|one| wants(&one.name) && flags.wants(one.class));
    let run = Run {
        flags,
        entrants: &entrants,
        child: &[],
        stop,
        bar: ProgressBar::new(0),
    };
    let report = run.run()?;
    if let Some(page) = page {
        page.end(&report)?;
    }
    match arguments.json {
        true => println!("{}", report.json()),
        false => println!("{report}"),
    }
    Ok(())
}

fn in_process() -> Vec<Entrant> {
    let mut entrants = measure::entrants();
    entrants.extend(volatile::entrants());
    entrants.extend(sqlite::entrants());
    entrants.extend(embedded::entrants());
    #[cfg(feature = "rocksdb")]
    entrants.extend(rocksdb::entrants());
    entrants
}

/// One server for each level that Redis can be set to.
fn start_redis(running: &mut Vec<Server>, entrants: &mut Vec<Entrant>) -> Result<(), Fault> {
    let levels: [&[[&str; 2]]; 3] = [
        &[["appendfsync", "everysec"]],
        &[["appendfsync", "always"]],
        &[["appendonly", "no"]],
    ];
    for settings in levels {
        let Some(server) = Server::redis() else {
            return Ok(());
        };
        let url = format!("redis://127.0.0.1:{}", server.port());
        let mut connection = redis::Client::open(url.as_str())?.get_connection()?;
        for setting in settings {
            redis::cmd("CONFIG")
                .arg("SET")
                .arg(setting)
                .exec(&mut connection)?;
        }
        entrants.push(Redis::at(&url)?.entrant()?);
        running.push(server);
    }
    Ok(())
}

/// As it comes, which syncs every commit.
fn start_postgres(running: &mut Vec<Server>, entrants: &mut Vec<Entrant>) -> Result<(), Fault> {
    let Some(server) = Server::durable_postgres() else {
        return Ok(());
    };
    let url = format!("postgres://oncekey@127.0.0.1:{}/postgres", server.port());
    // It takes connections before it takes commands.
    let mut patience = 100;
    let entrant = loop {
        match Postgres::at(&url)?.entrant() {
            Ok(entrant) => break entrant,
            Err(fault) if patience == 0 => return Err(fault),
            Err(_) => patience -= 1,
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    entrants.push(entrant);
    running.push(server);
    Ok(())
}
