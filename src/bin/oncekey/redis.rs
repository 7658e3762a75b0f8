//! `oncekey import redis` and `oncekey export redis`.

use std::error::Error;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use oncekey::limits::KEY_PART_BYTES_MAX;
use oncekey::redis_migration::{Import, KeyMap, MigrationReport, export};
use oncekey::{Options, Store};

/// Keys of which one is compared by value after an import.
const SAMPLE_EVERY: u64 = 10;

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

#[derive(Args, Debug)]
pub(crate) struct ImportRedis {
    /// Where Redis is: redis://user:password@host:port
    url: String,
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
    /// Where Redis is: redis://user:password@host:port
    url: String,
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

impl ImportFrom {
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let Self::Redis(import) = self;
        let map = KeyMap::pattern(import.scope, &import.map)?;
        let mut connection = ::redis::Client::open(import.url)?.get_connection()?;
        let store = open(&import.store)?;
        let mut job = Import::new(import.pattern, map).from_cursor(import.cursor);
        if let Some(field) = import.hash_field {
            job = job.hash_field(field);
        }
        let report = job.run(&store, &mut connection, show)?;
        for (name, reason) in &report.failures {
            eprintln!("{}: {reason}", name.escape_ascii());
        }
        let verified = job.verify(&store, &mut connection, SAMPLE_EVERY)?;
        store.close()?;
        println!(
            "{} written, {} failed; {} compared: {} missing, {} of {} sampled differ",
            report.written,
            report.failed,
            verified.keys,
            verified.missing,
            verified.different,
            verified.sampled
        );
        if report.failed + verified.missing + verified.different > 0 {
            return Err("not all keys are the same on both sides".into());
        }
        Ok(())
    }
}

impl ExportTo {
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let Self::Redis(to) = self;
        let mut connection = ::redis::Client::open(to.url)?.get_connection()?;
        let store = open(&to.store)?;
        let report = export(&store, to.scope, to.prefix, &mut connection, show)?;
        store.close()?;
        println!("{} written, {} failed", report.written, report.failed);
        Ok(())
    }
}

fn open(directory: &PathBuf) -> Result<Store, Box<dyn Error>> {
    let options = Options::new().max_key_part(KEY_PART_BYTES_MAX);
    Ok(options.open(directory)?)
}

fn show(report: &MigrationReport) {
    eprintln!(
        "{} found, {} written, {} failed; cursor {}",
        report.found, report.written, report.failed, report.cursor
    );
}
