//! What only reads, beside a running service too.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncekey::{KeyRecord, Reader, Recorded};
use serde_json::{Value, json};

use crate::output::{BYTES, Exit, Failure, Output, bar};
use crate::{KeyArguments, json, keys};

/// Which store.
#[derive(Args)]
pub(crate) struct Store {
    /// The store's directory.
    pub(crate) directory: PathBuf,
}

#[derive(Args)]
pub(crate) struct List {
    /// The store's directory.
    directory: PathBuf,
    /// Only keys in this state; can be repeated. Without it, all that are not free.
    #[arg(long)]
    state: Vec<State>,
    /// Only keys of this scope.
    #[arg(long)]
    scope: Option<String>,
    /// Only keys first claimed at least so many seconds ago.
    #[arg(long, value_name = "SECONDS")]
    older_than: Option<u64>,
    /// Only keys first claimed less than so many seconds ago.
    #[arg(long, value_name = "SECONDS")]
    newer_than: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Pending,
    Interrupted,
    Completed,
    Expired,
    Released,
    Forgotten,
}

#[derive(Args)]
pub(crate) struct Get {
    /// The store's directory.
    directory: PathBuf,
    #[command(flatten)]
    key: KeyArguments,
    /// With the bytes of responses. Without --json, only the newest one, as it is.
    #[arg(long)]
    body: bool,
}

/// Reads the store, with a bar.
pub(crate) fn open(directory: &Path, all: bool, output: &Output) -> Result<Reader, Failure> {
    let stop = output.stop_mark();
    let bar = bar("reading", 0, BYTES);
    let opened = Reader::open_with(directory, all, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        stop()
    });
    bar.finish_and_clear();
    output.check()?;
    Ok(opened?)
}

/// Ends an answer that may be wrong, because records cannot be read, as a failure.
fn is_whole(reader: &Reader, directory: &Path, output: &mut Output) -> Result<(), Failure> {
    output.flush()?;
    match reader.health().corruptions.len() {
        0 => Ok(()),
        damaged => {
            let shown = directory.display();
            let message = format!(
                "{shown} is damaged in {damaged} places, so keys may be missing or shown in an old \
                 state: run `oncekey verify {shown}`"
            );
            Err(Failure::new(Exit::Damaged, message))
        }
    }
}

/// Shows keys until the output ends.
pub(crate) fn each(
    reader: &Reader,
    wants: impl Fn(&oncekey::Key) -> bool,
    mut show: impl FnMut(KeyRecord) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut shown = Ok(());
    reader.keys(wants, |record| {
        shown = show(record);
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    shown
}

pub(crate) fn stats(arguments: &Store, output: &mut Output) -> Result<(), Failure> {
    let reader = open(&arguments.directory, false, output)?;
    let mut states = BTreeMap::from_iter(
        [
            "pending",
            "interrupted",
            "completed",
            "expired",
            "released",
            "forgotten",
        ]
        .map(|state| (state, 0_u64)),
    );
    let mut response_bytes = 0;
    let mut oldest: Option<KeyRecord> = None;
    each(
        &reader,
        |_| true,
        |mut record| {
            *states.entry(json::state(record.state)).or_default() += 1;
            if record.state == Recorded::Completed {
                response_bytes += record.response.take().map_or(0, |body| body.len());
            }
            let is_older = |known: &KeyRecord| known.created_at > record.created_at;
            if record.state == Recorded::Interrupted && oldest.as_ref().is_none_or(is_older) {
                oldest = Some(record);
            }
            output.check()
        },
    )?;
    let (health, seen) = (reader.health(), reader.seen());
    let age = |record: &KeyRecord| {
        reader
            .now()
            .duration_since(record.created_at)
            .unwrap_or_default()
    };
    let oldest = oldest.as_ref().map(age);
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let object = json!({
        "keys": states,
        "response_bytes": response_bytes,
        "oldest_interrupted_ms": oldest.map(millis),
        "segments": health.segments,
        "segments_compacted": health.segments_compacted,
        "file_bytes": health.bytes,
        "records": health.records,
        "corruptions": health.corruptions.len(),
        "seen": freshness(&reader),
    });
    if output.is_json() {
        output.line(&object)?;
        return is_whole(&reader, &arguments.directory, output);
    }
    for (state, count) in &states {
        output.line(format_args!("{state:<22} {count:>12}"))?;
    }
    output.line(format_args!(
        "{:<22} {response_bytes:>12}",
        "response bytes"
    ))?;
    if let Some(oldest) = oldest {
        output.line(format_args!(
            "{:<22} {:>12}",
            "oldest interrupted",
            keys::span(oldest)
        ))?;
    }
    output.line(format_args!("{:<22} {:>12}", "records", health.records))?;
    output.line(format_args!(
        "{:<22} {:>12}",
        "files of records", health.segments
    ))?;
    output.line(format_args!(
        "{:<22} {:>12}",
        "bytes of files", health.bytes
    ))?;
    let newest = seen.age.map_or(String::from("none"), |age| {
        format!("{} ago", keys::span(age))
    });
    output.line(format_args!("{:<22} {newest:>12}", "newest record"))?;
    output.line(format_args!(
        "{:<22} {:>12}",
        "closed properly", seen.is_closed
    ))?;
    is_whole(&reader, &arguments.directory, output)
}

pub(crate) fn freshness(reader: &Reader) -> Value {
    let seen = reader.seen();
    json!({
        "sequence": seen.sequence.to_string(),
        "durable": seen.durable.to_string(),
        "latest_ms": seen.latest.map(json::ms),
        "age_ms": seen.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        "is_closed": seen.is_closed,
    })
}

pub(crate) fn list(arguments: &List, output: &mut Output) -> Result<(), Failure> {
    let reader = open(&arguments.directory, false, output)?;
    let now = reader.now();
    let in_scope = |key: &oncekey::Key| {
        let scope = arguments.scope.as_ref();
        scope.is_none_or(|scope| key.scope() == scope.as_bytes())
    };
    each(&reader, in_scope, |record| {
        let age = now
            .duration_since(record.created_at)
            .unwrap_or_default()
            .as_secs();
        let is_asked = arguments.asks_for(record.state)
            && arguments.older_than.is_none_or(|limit| age >= limit)
            && arguments.newer_than.is_none_or(|limit| age < limit);
        match is_asked {
            true => show(&record, now, output),
            false => output.check(),
        }
    })?;
    is_whole(&reader, &arguments.directory, output)
}

impl List {
    fn asks_for(&self, found: Recorded) -> bool {
        let is = |state: State| match state {
            State::Pending => found == Recorded::Pending,
            State::Interrupted => found == Recorded::Interrupted,
            State::Completed => found == Recorded::Completed,
            State::Expired => found == Recorded::Expired,
            State::Released => found == Recorded::Released,
            State::Forgotten => found == Recorded::Forgotten,
        };
        match self.state.is_empty() {
            true => !is_free(found),
            false => self.state.iter().copied().any(is),
        }
    }
}

/// Whether the next claim on such a key starts afresh.
pub(crate) fn is_free(state: Recorded) -> bool {
    matches!(
        state,
        Recorded::Expired | Recorded::Released | Recorded::Forgotten
    )
}

pub(crate) fn waiting(
    arguments: &Store,
    interrupted: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let wanted = match interrupted {
        true => Recorded::Interrupted,
        false => Recorded::Pending,
    };
    let reader = open(&arguments.directory, false, output)?;
    let now = reader.now();
    each(
        &reader,
        |_| true,
        |record| match record.state == wanted {
            true => show(&record, now, output),
            false => output.check(),
        },
    )?;
    is_whole(&reader, &arguments.directory, output)
}

fn show(
    record: &KeyRecord,
    now: std::time::SystemTime,
    output: &mut Output,
) -> Result<(), Failure> {
    match output.is_json() {
        true => output.line(Value::Object(json::record(record))),
        false => {
            let line = keys::line(record, now, output);
            output.line(line)
        }
    }
}

pub(crate) fn get(arguments: &Get, output: &mut Output) -> Result<(), Failure> {
    let key = arguments.key.key()?;
    let reader = open(&arguments.directory, false, output)?;
    let history = reader.history(&key)?;
    let Some(newest) = history.last() else {
        is_whole(&reader, &arguments.directory, output)?;
        let message = format!("the log knows nothing of {}", key.display_raw());
        return Err(Failure::new(Exit::Key, message));
    };
    if output.is_json() {
        history.iter().try_for_each(|record| {
            let mut object = match arguments.body {
                true => json::with_response(record),
                false => json::record(record),
            };
            object.insert("event".to_owned(), json::event(record).into());
            // What an earlier record made of the key is over.
            if record.sequence != newest.sequence {
                object.remove("state");
            }
            output.line(Value::Object(object))
        })?;
        return is_whole(&reader, &arguments.directory, output);
    }
    if arguments.body {
        return match &newest.response {
            Some(response) => {
                output.bytes(response)?;
                is_whole(&reader, &arguments.directory, output)
            }
            None => {
                let message = format!("{} has no stored response", key.display_raw());
                Err(Failure::new(Exit::Key, message))
            }
        };
    }
    let summary = keys::line(newest, reader.now(), output);
    output.line(summary)?;
    for record in &history {
        let ended = record.ended_at.unwrap_or(record.started_at);
        let detail = format!(
            "  {:<10} at {} ms: attempt {}, token {}, sequence {:#x}, fingerprint {}",
            json::event(record),
            json::ms(ended),
            record.attempt,
            record.token,
            record.sequence,
            record.fingerprint,
        );
        output.line(detail)?;
        if !record.checkpoint.is_empty() {
            let note = record.checkpoint.escape_ascii();
            output.line(format_args!("             checkpoint \"{note}\""))?;
        }
    }
    is_whole(&reader, &arguments.directory, output)
}
