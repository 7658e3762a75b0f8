//! A card provider to test against: another system, with its own process and its own books.
//!
//! ```text
//! cargo run --release --example card_provider
//! curl -d '{"key":"k1","amount":1200,"currency":"eur","card":"tok_visa","payment":"p1"}' \
//!      -H 'content-type: application/json' http://127.0.0.1:4000/charges
//! ```
//!
//! Its charges and the log of every call it received are durable and outlive a kill. A charge is
//! idempotent by its `key`, unless the provider is started with `--no-dedupe`, as some in the real
//! world behave. Cards with a meaning: `tok_visa` is charged, `tok_refused` is refused (402),
//! `tok_slow` takes 300 ms, and with `tok_lost` the first call of a key is charged, but its answer
//! never arrives.

mod ledger;
mod messages;
mod server;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::ledger::Ledger;
use crate::server::Provider;

#[derive(Parser)]
#[command(about = "A card provider with a durable ledger, to try payments against")]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:4000")]
    addr: SocketAddr,
    /// The file that keeps charges and calls.
    #[arg(long, default_value = "card-provider-data/ledger.jsonl")]
    ledger: PathBuf,
    /// Charge again when a key comes again.
    #[arg(long)]
    no_dedupe: bool,
    /// Time that every charge takes, in ms.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
    /// A call not decided this long after it arrived is never charged, in ms.
    #[arg(long, default_value_t = 1_000)]
    max_delay_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let ledger = Ledger::open(&arguments.ledger, !arguments.no_dedupe)?;
    let provider = Provider::new(
        ledger,
        Duration::from_millis(arguments.delay_ms),
        Duration::from_millis(arguments.max_delay_ms),
    );

    let listener = TcpListener::bind(arguments.addr).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = provider.serve(listener) => result?,
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
