//! `oncekey import redis` and `oncekey export redis`.

use std::fmt::Display;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, TlsCertificates};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use oncekey::redis_migration::{Import, KeyMap, MigrationError, MigrationReport, export};
use oncekey::{ClaimError, Durability, Options, Store};
use serde_json::json;
use tokio_rustls::rustls::crypto::ring;

use crate::change;
use crate::output::{Exit, Failure, Output, bar};

/// Keys of which one is compared by value after an import.
const SAMPLE_EVERY: u64 = 10;
/// How long a server may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(10);
const SO_MANY: &str = "{msg} {pos} {per_sec}";

#[derive(Debug, Subcommand)]
pub(crate) enum ImportFrom {
    /// Take keys, values and the time they have left over from Redis. Safe to run again.
    Redis(ImportRedis),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExportTo {
    /// Write the values of a scope to Redis, with the time they have left.
    Redis(ExportRedis),
}

/// Where a Redis is.
#[derive(Args, Debug)]
struct Server {
    /// Where Redis is: redis://user:password@host:port, or rediss:// for TLS
    url: String,
    /// File of authorities in PEM whose certificates a server at rediss:// may have, instead of those that
    /// this system knows.
    #[arg(long)]
    tls_ca: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ImportRedis {
    #[command(flatten)]
    server: Server,
    /// Directory of the store; made if it does not exist.
    #[arg(long)]
    store: PathBuf,
    /// Which keys, as SCAN takes it.
    #[arg(long = "match", default_value = "*")]
    pattern: String,
    /// Scope of the keys.
    #[arg(long, default_value = "redis")]
    scope: String,
    /// How names are taken apart, such as 'idem:{operation}:{id}'. What `serve` reads is the default.
    #[arg(long, default_value = "{id}")]
    map: String,
    /// Field of a hash that is its value.
    #[arg(long)]
    hash_field: Option<String>,
    /// Go on from the cursor that an interrupted run told.
    #[arg(long, default_value_t = 0)]
    cursor: u64,
}

#[derive(Args, Debug)]
pub(crate) struct ExportRedis {
    #[command(flatten)]
    server: Server,
    /// Directory of the store.
    #[arg(long)]
    store: PathBuf,
    /// Scope of the keys.
    #[arg(long, default_value = "redis")]
    scope: String,
    /// What stands before each id in Redis.
    #[arg(long, default_value = "")]
    prefix: String,
}

pub(crate) fn import(arguments: &ImportRedis, output: &mut Output) -> Result<(), Failure> {
    let usage = |error: &dyn Display| Failure::new(Exit::Usage, error);
    let map = KeyMap::pattern(arguments.scope.as_bytes(), &arguments.map);
    let map = map.map_err(|error| usage(&error))?;
    let mut connection = arguments.server.connect()?;
    let store = open(&arguments.store)?;
    let mut job = Import::new(arguments.pattern.as_str(), map).from_cursor(arguments.cursor);
    if let Some(field) = &arguments.hash_field {
        job = job.hash_field(field.as_str());
    }
    let bar = bar("keys", 0, SO_MANY);
    let run = job.run(&store, &mut connection, |report| {
        go_on(report, &bar, output)
    });
    let report = run.map_err(failed)?;
    bar.finish_and_clear();
    for (name, reason) in &report.failures {
        writeln!(io::stderr(), "{}: {reason}", name.escape_ascii()).unwrap_or_default();
    }
    if report.cursor != 0 {
        change::close(&store)?;
        let message = format!(
            "stopped; the store is whole, {} keys were written; --cursor {} goes on",
            report.written, report.cursor
        );
        return Err(Failure::new(Exit::Stopped, message));
    }
    let verified = job.verify(&store, &mut connection, SAMPLE_EVERY);
    let verified = verified.map_err(failed)?;
    change::close(&store)?;
    let said = json!({
        "found": report.found,
        "written": report.written,
        "expired": report.expired,
        "failed": report.failed,
        "compared": verified.keys,
        "missing": verified.missing,
        "sampled": verified.sampled,
        "different": verified.different,
    });
    let text = format!(
        "{} written, {} failed; {} compared: {} missing, {} of {} sampled differ",
        report.written,
        report.failed,
        verified.keys,
        verified.missing,
        verified.different,
        verified.sampled
    );
    output.show(&said, text)?;
    if report.failed + verified.missing + verified.different > 0 {
        let message = "not all keys are the same on both sides";
        return Err(Failure::new(Exit::Failed, message));
    }
    Ok(())
}

pub(crate) fn export_all(arguments: &ExportRedis, output: &mut Output) -> Result<(), Failure> {
    let mut connection = arguments.server.connect()?;
    let store = change::open(&arguments.store, &options())?;
    let bar = bar("keys", 0, SO_MANY);
    let (scope, prefix) = (&arguments.scope, &arguments.prefix);
    let exported = export(&store, scope, prefix, &mut connection, |report| {
        go_on(report, &bar, output)
    });
    let report = exported.map_err(failed)?;
    bar.finish_and_clear();
    change::close(&store)?;
    let said = json!({
        "found": report.found,
        "written": report.written,
        "expired": report.expired,
        "failed": report.failed,
    });
    output.show(
        &said,
        format!("{} written, {} failed", report.written, report.failed),
    )?;
    if report.cursor != 0 {
        let message = "stopped; not all keys were written: run it again";
        return Err(Failure::new(Exit::Stopped, message));
    }
    match report.failed {
        0 => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not all keys could be written")),
    }
}

fn options() -> Options {
    change::options().durability(Durability::Sync)
}

/// Opens a store, or makes one.
fn open(directory: &Path) -> Result<Store, Failure> {
    Ok(options().open(directory)?)
}

impl Server {
    fn connect(&self) -> Result<Connection, Failure> {
        let root_cert = self
            .tls_ca
            .as_ref()
            .map(|path| std::fs::read(path).map_err(|error| Failure::io(path.display(), &error)));
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: root_cert.transpose()?,
        };
        let wrong = |error: &dyn Display| {
            let message = format!("{error}; a URL is redis://user:password@host:port");
            Failure::new(Exit::Usage, message)
        };
        let url = self.url.as_str().into_connection_info();
        let url = url.map_err(|error| wrong(&error))?;
        let is_tls = matches!(url.addr(), ConnectionAddr::TcpTls { .. });
        let client = if is_tls {
            // Whoever was first has set it, to the same.
            drop(ring::default_provider().install_default());
            Client::build_with_tls(url, certificates)
        } else if self.tls_ca.is_some() {
            return Err(wrong(&"--tls-ca is for rediss:// alone"));
        } else {
            Client::open(url)
        };
        client
            .and_then(|client| client.get_connection_with_timeout(PATIENCE))
            .map_err(|error| Failure::new(Exit::Failed, format!("Redis: {error}")))
    }
}

fn failed(error: MigrationError) -> Failure {
    match error {
        MigrationError::Store(ClaimError::Damaged(damaged)) => {
            let message = format!("{damaged}; `oncekey verify` tells all that is");
            Failure::new(Exit::Damaged, message)
        }
        error => Failure::new(Exit::Failed, error),
    }
}

fn go_on(report: &MigrationReport, bar: &ProgressBar, output: &Output) -> ControlFlow<()> {
    bar.set_position(report.found);
    match output.check() {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}
