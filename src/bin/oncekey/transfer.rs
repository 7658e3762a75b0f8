//! Keys out of a store, into one, and a new store full of them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use oncekey::{
    Claim, ClaimOptions, Durability, Fingerprint, Key, KeyState, Operation, Store, limits,
};
use serde_json::{Map, Value, json};

use crate::output::{BYTES, COUNT, Exit, Failure, Output, bar};
use crate::{change, json, look};

/// The longest line: the largest response, each byte as two digits, and the rest.
const LINE_BYTES_MAX: u64 = limits::RESPONSE_BYTES_MAX as u64 * 6 + (1 << 20);

#[derive(Args)]
pub(crate) struct Export {
    /// The store's directory.
    directory: PathBuf,
    /// Only keys of this scope.
    #[arg(long)]
    scope: Option<String>,
}

#[derive(Args)]
pub(crate) struct Import {
    /// The store's directory; `oncekey init` makes one.
    directory: PathBuf,
    /// What `export` wrote, or - for standard input.
    file: PathBuf,
}

#[derive(Args)]
pub(crate) struct Fill {
    /// The directory of the new store.
    directory: PathBuf,
    /// How many keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of each response.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(..=16 << 20))]
    response_bytes: u32,
    /// Over how many scopes the keys are spread.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    scopes: u64,
    /// How many of the keys are left interrupted.
    #[arg(long, default_value_t = 0)]
    interrupted: u64,
}

pub(crate) fn export(arguments: &Export, output: &mut Output) -> Result<(), Failure> {
    let reader = look::open(&arguments.directory, false, output)?;
    let damaged = reader.health().corruptions.len();
    if damaged > 0 {
        let shown = arguments.directory.display();
        let message = format!(
            "{shown} is damaged in {damaged} places, so an export would miss keys or hold old \
             states of them: run `oncekey verify {shown}`"
        );
        return Err(Failure::new(Exit::Damaged, message));
    }
    let in_scope = |key: &Key| {
        let scope = arguments.scope.as_ref();
        scope.is_none_or(|scope| key.scope() == scope.as_bytes())
    };
    look::each(&reader, in_scope, |record| {
        match look::is_free(record.state) {
            true => output.check(),
            false => output.line(Value::Object(json::with_response(&record))),
        }
    })
}

/// What became of the lines of an import.
#[derive(Default)]
struct Tally {
    completed: u64,
    interrupted: u64,
    present: u64,
    expired: u64,
    conflicts: u64,
}

/// What was done with one line.
enum Done {
    Completed,
    Interrupted,
    Present,
    Expired,
    Conflict,
}

pub(crate) fn import(arguments: &Import, output: &mut Output) -> Result<(), Failure> {
    let shown = arguments.file.display();
    let (source, len): (Box<dyn Read>, u64) = if arguments.file.as_os_str() == "-" {
        (Box::new(io::stdin()), 0)
    } else {
        let file = File::open(&arguments.file).map_err(|error| Failure::io(&shown, &error))?;
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        (Box::new(file), len)
    };
    let store = change::open(&arguments.directory, &change::options())?;
    let bar = bar("importing", len, BYTES);
    let imported = import_lines(&store, source, &shown.to_string(), &bar, output);
    bar.finish_and_clear();
    // What was taken over so far is kept, whatever ended the import.
    change::close(&store)?;
    let tally = imported?;
    let object = json!({
        "completed": tally.completed,
        "interrupted": tally.interrupted,
        "present": tally.present,
        "expired": tally.expired,
        "conflicts": tally.conflicts,
    });
    let text = format!(
        "{} completed, {} interrupted; {} were there, {} are over, {} stand for other requests here",
        tally.completed, tally.interrupted, tally.present, tally.expired, tally.conflicts
    );
    output.show(&object, text)
}

fn import_lines(
    store: &Store,
    source: Box<dyn Read>,
    shown: &str,
    bar: &indicatif::ProgressBar,
    output: &Output,
) -> Result<Tally, Failure> {
    let mut source = BufReader::new(source);
    let mut tally = Tally::default();
    let mut line = Vec::new();
    for number in 1_u64.. {
        output.check()?;
        line.clear();
        let bytes = source
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .map_err(|error| Failure::io(shown, &error))?;
        if bytes == 0 {
            break;
        }
        bar.inc(bytes as u64);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let done = import_line(store, &line).map_err(|reason| {
            let message = format!(
                "{shown}, line {number}: {reason}; the lines before it are in the store, and the \
                 import can be repeated"
            );
            Failure::new(Exit::Failed, message)
        })?;
        match done {
            Done::Completed => tally.completed += 1,
            Done::Interrupted => tally.interrupted += 1,
            Done::Present => tally.present += 1,
            Done::Expired => tally.expired += 1,
            Done::Conflict => tally.conflicts += 1,
        }
    }
    Ok(tally)
}

fn import_line(store: &Store, line: &[u8]) -> Result<Done, String> {
    let object: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| format!("not a line of an export: {error}"))?;
    let part = |name| json::bytes(&object, name);
    let key = Key::new(
        part("scope")?.unwrap_or_default(),
        part("operation")?.unwrap_or_default(),
        part("id")?.unwrap_or_default(),
    )
    .map_err(|error| error.to_string())?;
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    let fingerprint: Fingerprint = text("fingerprint")
        .ok_or("there is no fingerprint")?
        .parse()
        .map_err(|error: oncekey::FingerprintError| error.to_string())?;
    let is_completed = match text("state") {
        Some("completed") => true,
        Some("pending" | "interrupted") => false,
        _ => return Err("the state is not completed, pending or interrupted".to_owned()),
    };
    let mut retention = None;
    if is_completed {
        let expires = object.get("expires_ms").and_then(Value::as_u64);
        let expires = UNIX_EPOCH
            .checked_add(Duration::from_millis(
                expires.ok_or("expires_ms is missing")?,
            ))
            .ok_or("expires_ms is out of range")?;
        let left = expires.duration_since(store.now()).unwrap_or_default();
        if left < limits::RETENTION_MIN {
            return Ok(Done::Expired);
        }
        if left > limits::RETENTION_MAX {
            return Err("expires_ms is further ahead than results can be kept".to_owned());
        }
        retention = Some(left);
    } else if !matches!(
        store.get(&key).map_err(|error| error.to_string())?,
        KeyState::Absent
    ) {
        return Ok(Done::Present);
    }
    let buffered = ClaimOptions::new().durability(Durability::Buffered);
    let claim = store
        .claim_with(&key, fingerprint, buffered)
        .map_err(|error| error.to_string())?;
    match claim {
        // Interrupted here and completed there: the outcome is known, or an import was cut off.
        Claim::Started(operation) | Claim::Interrupted(operation) => {
            finish(operation, retention, &object)
        }
        Claim::Mismatch(_) => Ok(Done::Conflict),
        _ => Ok(Done::Present),
    }
}

fn finish(
    mut operation: Operation,
    retention: Option<Duration>,
    object: &Map<String, Value>,
) -> Result<Done, String> {
    if let Some(note) = json::bytes(object, "checkpoint")? {
        operation
            .checkpoint(note)
            .map_err(|error| error.to_string())?;
    }
    let Some(retention) = retention else {
        // Nobody holds it any more: its outcome is unknown, as it was.
        return Ok(Done::Interrupted);
    };
    let response = json::bytes(object, "response")?;
    let is_kept = response.is_some();
    let mut completion = operation
        .complete_with(response.unwrap_or_default())
        .retention(retention)
        .durability(Durability::Buffered);
    if !is_kept {
        completion = completion.without_response();
    }
    if let Some(principal) = json::bytes(object, "principal")? {
        completion = completion.principal(principal);
    }
    let completed = completion.commit().map_err(|error| error.to_string());
    completed.map(|_| Done::Completed)
}

pub(crate) fn fill(arguments: &Fill, output: &mut Output) -> Result<(), Failure> {
    let store = change::create(&arguments.directory)?;
    let bar = bar("filling", arguments.keys, COUNT);
    let filled = fill_store(&store, arguments, &bar, output);
    bar.finish_and_clear();
    change::close(&store)?;
    filled?;
    let object = json!({"keys": arguments.keys, "interrupted": arguments.interrupted});
    let text = format!(
        "{} keys in {}",
        arguments.keys,
        arguments.directory.display()
    );
    output.show(&object, text)
}

fn fill_store(
    store: &Store,
    arguments: &Fill,
    bar: &indicatif::ProgressBar,
    output: &Output,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error);
    let response = vec![b'x'; arguments.response_bytes as usize];
    let options = ClaimOptions::new().durability(Durability::Buffered);
    for number in 0..arguments.keys {
        let scope = format!("tenant-{}", number % arguments.scopes);
        let id = format!("key-{number:010}");
        let key = Key::new(scope, "POST /v1/payments", &id).map_err(|error| failed(&error))?;
        let claim = store
            .claim_with(&key, Fingerprint::of(&id), options.clone())
            .map_err(|error| failed(&error))?;
        if let Claim::Started(operation) = claim
            && number >= arguments.interrupted
        {
            operation
                .complete(&response)
                .map_err(|error| failed(&error))?;
        }
        if number % 4_096 == 0 {
            output.check()?;
            bar.set_position(number);
        }
    }
    Ok(())
}
