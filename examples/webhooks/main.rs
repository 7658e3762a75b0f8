//! Receives signed webhooks and handles each event once, however often and in whatever order it is
//! delivered.
//!
//! ```text
//! cargo run --release --example webhooks                  # listens
//! cargo run --release --example webhooks -- self-test     # tries itself out
//!
//! BODY='{"id":"evt_1","created":1700000000,"data":{"object":{"id":"sub_1","status":"active"}}}'
//! T=$(date +%s)
//! V1=$(printf '%s' "$T.$BODY" | openssl dgst -sha256 -hmac whsec_new -hex | sed 's/.*= //')
//! curl -i http://127.0.0.1:3001/hooks/shop -H "Stripe-Signature: t=$T,v1=$V1" -d "$BODY"
//! ```
//!
//! The last command again gives the same answer with `Idempotent-Replayed: true`, and the book
//! (`webhooks-data/book.jsonl`) has one line. Start with `receiver.rs`; `signatures.rs` has the two
//! forms of signatures, `book.rs` what the events do, `self_test.rs` what can go wrong with them.

mod book;
mod host;
mod receiver;
mod self_test;
mod signatures;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;

use crate::host::Host;
use crate::self_test::Plan;

#[derive(Parser)]
#[command(about = "A receiver of signed webhooks over oncekey: every event is handled once")]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:3001")]
    addr: SocketAddr,
    /// The directory of the store and the book.
    #[arg(long, default_value = "webhooks-data")]
    data: PathBuf,
    /// How long the work on an event takes, in ms.
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
    /// Least important events that are logged to the standard error.
    #[arg(long, default_value_t = Level::INFO)]
    log_level: Level,
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Subcommand)]
enum Mode {
    /// Starts a receiver, delivers events to it repeatedly and out of order, kills it meanwhile, and
    /// judges what became of them.
    SelfTest {
        /// How often the receiver is killed.
        #[arg(long, default_value_t = 10)]
        kills: usize,
        /// How many events each of the two senders has.
        #[arg(long, default_value_t = 150)]
        events: usize,
        /// Repeats the plan of an earlier run.
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    if let Some(Mode::SelfTest {
        kills,
        events,
        seed,
    }) = arguments.mode
    {
        let seed = seed.unwrap_or_else(self_test::seed_from_clock);
        let program = std::env::current_exe()?;
        let start = move |data: &std::path::Path| {
            let mut command = Command::new(&program);
            command
                .args([
                    "--addr",
                    "127.0.0.1:0",
                    "--work-ms",
                    "3",
                    "--log-level",
                    "error",
                ])
                .arg("--data")
                .arg(data);
            command
        };
        let verdict = self_test::run(
            Plan {
                seed,
                events,
                kills,
            },
            start,
        )
        .await?;
        print!("{verdict}");
        return Ok(match verdict.is_good() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        });
    }

    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let work = Duration::from_millis(arguments.work_ms);
    let host = Host::open(&arguments.data, host::demonstration(), work)?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    host.serve(arguments.addr, stop).await?;
    Ok(ExitCode::SUCCESS)
}
