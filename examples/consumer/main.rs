//! Consumers of a queue that handle each event once, whatever the broker delivers and whenever they die.
//!
//! ```text
//! cargo run --release --example consumer                            # tries itself out
//! cargo run --release --example consumer -- --kills 40 --events 2000
//! ```
//!
//! It starts a broker that redelivers and reorders, a provider that is often busy and hangs up after
//! acting, and a process of consumers that it kills again and again, and counts in the end what the
//! provider really did. Start with `worker.rs`, which is what a service has; `broker.rs` and
//! `provider.rs` are the world, `self_test.rs` is what is done to it.

mod broker;
mod provider;
mod self_test;
mod wire;
mod worker;

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

use crate::self_test::Plan;

#[derive(Parser)]
#[command(about = "Consumers over oncekey, a broker that delivers at least once, and an audit")]
struct Arguments {
    /// How often the consumers are killed.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// How many events each consumer has.
    #[arg(long, default_value_t = 600)]
    events: usize,
    /// Repeats the plan of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Subcommand)]
enum Mode {
    /// The consumers: what the self-test starts and kills.
    Work {
        /// The directory of the store.
        #[arg(long)]
        data: PathBuf,
        #[arg(long)]
        broker: SocketAddr,
        #[arg(long)]
        provider: SocketAddr,
    },
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    if let Some(Mode::Work {
        data,
        broker,
        provider,
    }) = arguments.mode
    {
        worker::run(&data, broker, provider)?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe()?;
    let start = move |data: &Path, broker: SocketAddr, provider: SocketAddr| {
        let mut command = Command::new(&program);
        command
            .args(["work", "--broker", &broker.to_string()])
            .args(["--provider", &provider.to_string(), "--data"])
            .arg(data);
        command
    };
    let plan = Plan {
        seed: arguments.seed.unwrap_or_else(self_test::seed_from_clock),
        events: arguments.events,
        kills: arguments.kills,
    };
    let outcome = self_test::run(plan, &start)?;
    print!("{outcome}");
    Ok(match outcome.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
