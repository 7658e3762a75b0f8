//! Kills a payments service at random moments under load, and looks for one card charged twice.
//!
//! ```text
//! cargo build --release --examples
//! cargo run --release --example kill_test
//! cargo run --release --example kill_test -- --kills 100 --requests 20000 --no-dedupe
//! ```
//!
//! Starts the card provider and `payments`, lets many clients send thousands of requests with
//! duplicates and lost answers, kills `payments` with SIGKILL over and over and restarts it on the
//! same data. In the end it checks the provider's charges, its log of calls and the answers of all
//! clients (see `checks.rs`), prints a table and exits with 1 if anything is wrong.
//!
//! With `--no-dedupe` the provider charges as often as it is asked, so `payments` has to look
//! charges up after an interruption. Add `--reconcile rerun` to see the test fail.

mod checks;
mod clients;
#[path = "../card_provider/messages.rs"]
mod messages;
mod plan;
mod processes;
mod report;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use reqwest::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::checks::{Evidence, check};
use crate::clients::Shared;
use crate::messages::{Call, Charge};
use crate::plan::{Plan, Random};
use crate::processes::{Process, Program, free_port, sibling};
use crate::report::Report;

#[derive(Parser)]
#[command(about = "Kills payments under load and checks that every key was charged once")]
struct Arguments {
    /// How often payments is killed.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// How many clients send at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// How many deliveries the clients make in all; each is repeated until it has an answer.
    #[arg(long, default_value_t = 6_000)]
    requests: usize,
    /// Durability of the store.
    #[arg(long, default_value = "sync", value_parser = ["sync", "buffered"])]
    durability: String,
    /// Let the provider charge again when a key comes again.
    #[arg(long)]
    no_dedupe: bool,
    /// What payments does after an interruption; `lookup` with --no-dedupe unless given.
    #[arg(long, value_parser = ["rerun", "lookup"])]
    reconcile: Option<String>,
    /// Lease of a key in ms; 0 is as long as the process lives.
    #[arg(long, default_value_t = 0)]
    lease_ms: u64,
    /// Size of the store's segments in KiB: small ones roll over often.
    #[arg(long, default_value_t = 1024)]
    segment_kib: u64,
    /// Repeats the plan of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Gives up after this many seconds.
    #[arg(long, default_value_t = 600)]
    timeout_s: u64,
}

/// How often in a row payments is killed while it starts.
const KILLS_WHILE_STARTING_MAX: usize = 3;
/// The provider's maximum delay: a call older than this is decided.
const PROVIDER_DELAY_MS_MAX: u64 = 1_000;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let directory = tempfile::Builder::new()
        .prefix("oncekey-kill-test-")
        .tempdir()?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Whichever branch ends first drops the test, and with it the processes and the clients.
    let result = tokio::select! {
        result = run(&arguments, directory.path()) => result,
        _ = tokio::time::sleep(Duration::from_secs(arguments.timeout_s)) => {
            Err(format!("not done after {} s", arguments.timeout_s).into())
        }
        _ = terminate.recv() => Err("stopped".into()),
        _ = tokio::signal::ctrl_c() => Err("stopped".into()),
    };
    let failure = match result {
        Ok(report) => {
            print!("{report}");
            (!report.violations.is_empty()).then(|| "there are violations".to_owned())
        }
        Err(error) => Some(error.to_string()),
    };
    let Some(failure) = failure else {
        return Ok(ExitCode::SUCCESS);
    };
    println!(
        "FAILED: {failure}; ledger, store and logs are in {}",
        directory.keep().display()
    );
    Ok(ExitCode::FAILURE)
}

async fn run(arguments: &Arguments, directory: &Path) -> Result<Report, Box<dyn Error>> {
    let started = Instant::now();
    let seed = arguments.seed.unwrap_or_else(seed_from_clock);
    println!("seed {seed}");
    let mut random = Random::new(seed);

    let provider = provider_program(arguments, directory)?.start().await?;
    let port = free_port(&mut random)?;
    let program = payments_program(arguments, directory, port, &provider.url)?;
    let mut payments = program.start().await?;

    let plan = Plan::new(seed, arguments.requests);
    let shared = Arc::new(Shared::new(plan, payments.url.clone()));
    let mut clients = clients::start(&shared, usize::from(arguments.clients), &mut random);
    let mut kills_while_starting = 0;
    for kill in 0..arguments.kills {
        wait_for_share(kill, arguments.kills, &shared, &mut payments, &mut random).await?;
        payments.kill().await?;
        tokio::time::sleep(Duration::from_millis(random.below(30))).await;
        // A store has to survive a kill in the middle of its recovery as well.
        for _ in 0..KILLS_WHILE_STARTING_MAX {
            if !random.one_in(4) {
                break;
            }
            program
                .kill_while_starting(Duration::from_micros(random.below(20_000)))
                .await?;
            kills_while_starting += 1;
        }
        payments = program.start().await?;
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }

    // A stop in good order has to lose nothing either.
    let status = payments.terminate().await?;
    let _payments = program.start().await?;
    let answers = shared.answers();
    let mut audit = clients::audit(&shared, &answers).await?;
    if !status.success() {
        audit.push(format!("payments ended with {status} after SIGTERM"));
    }

    let (charges, calls) = read_ledger(&provider.url).await?;
    let evidence = Evidence {
        operations: &shared.plan.operations,
        answers: &answers,
        charges: &charges,
        calls: &calls,
    };
    let findings = check(&evidence);
    let mut report = Report::new(&evidence, &shared.tally, findings);
    report.violations.extend(audit);
    report.kills = arguments.kills;
    report.kills_while_starting = kills_while_starting;
    report.elapsed = started.elapsed();
    Ok(report)
}

/// Waits for a random moment while the clients do this kill's share of the work.
async fn wait_for_share(
    kill: usize,
    kills: usize,
    shared: &Shared,
    payments: &mut Process,
    random: &mut Random,
) -> Result<(), Box<dyn Error>> {
    let deliveries = shared.plan.deliveries.len();
    let offset = usize::try_from(random.below((deliveries / kills) as u64))?;
    let due = deliveries * kill / kills + offset;
    while shared.finished() < due {
        payments.check_running()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_micros(random.below(10_000))).await;
    Ok(payments.check_running()?)
}

fn provider_program(arguments: &Arguments, directory: &Path) -> Result<Program, Box<dyn Error>> {
    let ledger = directory.join("provider").join("ledger.jsonl");
    let mut list = vec!["--addr".to_owned(), "127.0.0.1:0".to_owned()];
    list.extend(["--ledger".to_owned(), ledger.display().to_string()]);
    list.extend([
        "--max-delay-ms".to_owned(),
        PROVIDER_DELAY_MS_MAX.to_string(),
    ]);
    if arguments.no_dedupe {
        list.push("--no-dedupe".to_owned());
    }
    let log = directory.join("card_provider.log");
    Ok(Program {
        path: sibling("card_provider")?,
        arguments: list,
        log,
    })
}

fn payments_program(
    arguments: &Arguments,
    directory: &Path,
    port: u16,
    provider_url: &str,
) -> Result<Program, Box<dyn Error>> {
    let default = if arguments.no_dedupe {
        "lookup"
    } else {
        "rerun"
    };
    let reconcile = arguments.reconcile.as_deref().unwrap_or(default);
    let options = [
        ("--addr", format!("127.0.0.1:{port}")),
        ("--data", directory.join("payments").display().to_string()),
        ("--durability", arguments.durability.clone()),
        ("--lease-ms", arguments.lease_ms.to_string()),
        ("--segment-kib", arguments.segment_kib.to_string()),
        ("--reconcile", reconcile.to_owned()),
        ("--provider", provider_url.to_owned()),
        ("--provider-max-delay-ms", PROVIDER_DELAY_MS_MAX.to_string()),
        // Shorter than the defaults: a lost answer and a duplicate should not hold up the test.
        ("--provider-timeout-ms", "800".to_owned()),
        ("--wait-ms", "500".to_owned()),
    ];
    let arguments = options
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
    let log = directory.join("payments.log");
    Ok(Program {
        path: sibling("payments")?,
        arguments,
        log,
    })
}

async fn read_ledger(url: &str) -> Result<(Vec<Charge>, Vec<Call>), Box<dyn Error>> {
    #[derive(Deserialize)]
    struct Charges {
        charges: Vec<Charge>,
    }
    #[derive(Deserialize)]
    struct Calls {
        calls: Vec<Call>,
    }
    async fn read<T: DeserializeOwned>(http: &Client, url: String) -> reqwest::Result<T> {
        http.get(url).send().await?.error_for_status()?.json().await
    }
    let http = clients::http_client()?;
    let charges = read::<Charges>(&http, format!("{url}/charges"))
        .await?
        .charges;
    let calls = read::<Calls>(&http, format!("{url}/calls")).await?.calls;
    Ok((charges, calls))
}

fn seed_from_clock() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::from(since_epoch.subsec_nanos())
}
