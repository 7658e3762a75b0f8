//! A payments API that charges a card once, however often it is asked, killed and restarted.
//!
//! ```text
//! cargo run --release --example payments
//! curl -i http://127.0.0.1:3000/v1/payments -H 'Authorization: Bearer acct_1' \
//!      -H 'Idempotency-Key: order-17' -d '{"amount":1200,"currency":"eur","card":"tok_visa"}'
//! ```
//!
//! Run the second command again: the same answer comes back, marked `Idempotent-Replayed: true`,
//! and the provider's ledger still has one charge. Other cards to try: `tok_refused`, `tok_slow`,
//! and `tok_lost`, which is charged but whose answer never arrives.
//!
//! Keys, replays and duplicates are the idempotency layer's. Start with `api.rs` (where the layer
//! stands), then `owner.rs` (what the owner of a key does, and what after an interruption). The card provider is another system: give its address with
//! `--provider`, or one runs in this process with a ledger file of its own.

mod api;
#[path = "../card_provider/ledger.rs"]
mod ledger;
#[path = "../card_provider/messages.rs"]
mod messages;
mod owner;
mod payment;
mod problem;
mod provider_client;
#[path = "../card_provider/server.rs"]
mod server;

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use clap::{Parser, ValueEnum};
use oncekey::{Durability, Lease, Options};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{Level, error, info, warn};

use crate::api::App;
use crate::ledger::Ledger;
use crate::owner::Reconcile;
use crate::provider_client::ProviderClient;
use crate::server::Provider;

/// How long requests that are being worked on may take to end after a signal.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

#[derive(Parser)]
#[command(about = "A payments API over oncekey: every payment is charged once")]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    addr: SocketAddr,
    /// The directory of the store.
    #[arg(long, default_value = "payments-data")]
    data: PathBuf,
    /// What an acknowledged payment survives: `sync` power loss, `buffered` the death of the process.
    #[arg(long, value_enum, default_value_t = DurabilityArgument::Sync)]
    durability: DurabilityArgument,
    /// Lease of a key in ms; without it a key is owned as long as the process lives.
    #[arg(long, default_value_t = 0)]
    lease_ms: u64,
    /// How long a final answer is kept, in seconds.
    #[arg(long, default_value_t = 24 * 60 * 60)]
    retention_s: u64,
    /// Size of the store's segments, the files its log is made of, in KiB.
    #[arg(long, default_value_t = 64 * 1024)]
    segment_kib: u64,
    /// How long a duplicate waits for the first request before it gets 409, in ms.
    #[arg(long, default_value_t = 2_000)]
    wait_ms: u64,
    /// What is done about a payment that was interrupted.
    #[arg(long, value_enum, default_value_t = Reconcile::Rerun)]
    reconcile: Reconcile,
    /// The card provider's URL; without it one runs in this process.
    #[arg(long)]
    provider: Option<String>,
    /// How long the provider's answer is waited for, in ms.
    #[arg(long, default_value_t = 2_000)]
    provider_timeout_ms: u64,
    /// The provider's promise: a call older than this, in ms, is decided.
    #[arg(long, default_value_t = 1_000)]
    provider_max_delay_ms: u64,
    /// Least important events that are logged to the standard error.
    #[arg(long, default_value_t = Level::INFO)]
    log_level: Level,
}

#[derive(Clone, Copy, ValueEnum)]
enum DurabilityArgument {
    Sync,
    Buffered,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let stop = Stop::listen()?;

    let lease = (arguments.lease_ms > 0).then(|| Duration::from_millis(arguments.lease_ms));
    let store = Options::new()
        .durability(match arguments.durability {
            DurabilityArgument::Sync => Durability::Sync,
            DurabilityArgument::Buffered => Durability::Buffered,
        })
        .lease(lease.map_or(Lease::WhileAlive, Lease::For))
        .retention(Duration::from_secs(arguments.retention_s))
        .segment_size(arguments.segment_kib.saturating_mul(1024))
        .open(&arguments.data)?;

    let provider_delay_max = Duration::from_millis(arguments.provider_max_delay_ms);
    let provider_url = match arguments.provider {
        Some(url) => url,
        None => start_provider(&arguments.data, provider_delay_max).await?,
    };
    let provider_timeout = Duration::from_millis(arguments.provider_timeout_ms);
    let app = Arc::new(App {
        store: store.clone(),
        provider: ProviderClient::new(&provider_url, provider_timeout, provider_delay_max)?,
        reconcile: arguments.reconcile,
        lease,
    });
    let wait = Duration::from_millis(arguments.wait_ms);
    let idempotency = api::idempotency(store.clone(), wait)?;

    let listener = TcpListener::bind(arguments.addr).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Small answers must not wait for more bytes to send along.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            warn!(%error, "cannot set TCP_NODELAY");
        }
    });
    let (stopping, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, api::routes(app, idempotency.clone()))
        .with_graceful_shutdown(async move {
            stop.requested().await;
            info!("stopping");
            drop(stopping);
        });

    // Requests end, then the tasks that outlived their request, then the store closes. What does
    // not end in time is interrupted, as after a kill.
    tokio::select! {
        result = server.into_future() => result?,
        _ = async { stopped.await.ok(); tokio::time::sleep(SHUTDOWN_MAX).await } => {
            warn!("connections were cut off");
        }
    }
    if timeout(SHUTDOWN_MAX, idempotency.idle()).await.is_err() {
        error!("payments were cut off while being worked on");
    }
    tokio::task::spawn_blocking(move || store.close()).await??;
    Ok(())
}

/// A provider of its own in this process, for a first look: reached over HTTP like any other, its
/// ledger beside the store's directory.
async fn start_provider(data: &Path, delay_max: Duration) -> Result<String, Box<dyn Error>> {
    let mut directory = data.as_os_str().to_owned();
    directory.push("-provider");
    let path = PathBuf::from(directory).join("ledger.jsonl");
    let provider = Provider::new(Ledger::open(&path, true)?, Duration::ZERO, delay_max);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    info!(%url, ledger = %path.display(), "no --provider given: running one in this process");
    tokio::spawn(async move {
        if let Err(error) = provider.serve(listener).await {
            error!(%error, "the card provider ended");
        }
    });
    Ok(url)
}

/// SIGTERM or ctrl-c, noticed from the moment this exists.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn requested(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
