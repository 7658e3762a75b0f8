//! What writes, and needs the store for itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use oncekey::reconcile::Verdict;
use oncekey::{AdminError, Forget as How, Options, Recovery, Store, limits};
use serde_json::{Value, json};

use crate::output::{Exit, Failure, Output, bytes_in, watched};
use crate::{KeyArguments, json, look};

#[derive(Args)]
pub(crate) struct Forget {
    /// The store's directory.
    directory: PathBuf,
    #[command(flatten)]
    key: KeyArguments,
    /// Also a key whose outcome is unknown: its operation may then run again.
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub(crate) struct Release {
    /// The store's directory.
    directory: PathBuf,
    #[command(flatten)]
    key: KeyArguments,
}

#[derive(Args)]
pub(crate) struct Snapshot {
    /// The store's directory.
    directory: PathBuf,
    /// The copy's directory, which is made, or is empty.
    copy: PathBuf,
}

/// As the tool opens stores: whatever they hold, and with nothing going on behind its back.
pub(crate) fn options() -> Options {
    Options::new()
        .maintenance(false)
        .max_key_part(limits::KEY_PART_BYTES_MAX)
        .max_response(limits::RESPONSE_BYTES_MAX)
}

/// Opens a store that is there: opening would make one where there is none.
pub(crate) fn open(directory: &Path, options: &Options) -> Result<Store, Failure> {
    let is_ours = |name: &str| {
        name == "META" || name.starts_with("segment-") || name.starts_with("compacted-")
    };
    let shown = directory.display();
    let entries = fs::read_dir(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Exit::NoStore, format!("{shown} does not exist")),
        io::ErrorKind::NotADirectory => Failure::new(Exit::NoStore, format!("{shown} is a file")),
        _ => Failure::io(shown.to_string(), &error),
    })?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    if !names.any(|name| name.to_str().is_some_and(is_ours)) {
        let message = format!("{shown} holds no store; `oncekey init {shown}` makes one");
        return Err(Failure::new(Exit::NoStore, message));
    }
    Ok(options.open(directory)?)
}

pub(crate) fn close(store: &Store) -> Result<(), Failure> {
    store
        .close()
        .map_err(|error| Failure::new(Exit::Failed, error))
}

pub(crate) fn forget(arguments: &Forget, output: &mut Output) -> Result<(), Failure> {
    let key = arguments.key.key()?;
    let store = open(&arguments.directory, &options())?;
    let how = match arguments.force {
        true => How::Force,
        false => How::IfCompleted,
    };
    let forgotten = store.forget(&key, how);
    close(&store)?;
    let shown = key.display_raw();
    match forgotten {
        Ok(true) => say("forgotten", &key, output),
        Ok(false) => Err(Failure::new(Exit::Key, format!("there is no {shown}"))),
        Err(AdminError::Pending { .. }) => Err(Failure::new(
            Exit::Key,
            format!("the outcome of {shown} is unknown: --force removes it all the same"),
        )),
        Err(error) => Err(Failure::new(Exit::Failed, error)),
    }
}

pub(crate) fn release(arguments: &Release, output: &mut Output) -> Result<(), Failure> {
    let key = arguments.key.key()?;
    let store = open(&arguments.directory, &options())?;
    let released = store.reconcile(|interrupted| match *interrupted.key() == key {
        true => Verdict::Release,
        false => Verdict::Keep,
    });
    close(&store)?;
    let report = released.map_err(|error| Failure::new(Exit::Failed, error))?;
    match report.released {
        0 => {
            let message = format!("{} is not interrupted", key.display_raw());
            Err(Failure::new(Exit::Key, message))
        }
        _ => say("released", &key, output),
    }
}

fn say(done: &str, key: &oncekey::Key, output: &mut Output) -> Result<(), Failure> {
    let mut object = json::key(key);
    object.insert("done".to_owned(), done.into());
    output.show(
        &Value::Object(object),
        format_args!("{done}: {}", key.display_raw()),
    )
}

pub(crate) fn salvage(arguments: &look::Store, output: &mut Output) -> Result<(), Failure> {
    let directory = &arguments.directory;
    let opened = watched(
        "salvaging",
        || bytes_in(directory),
        || open(directory, &options().recovery(Recovery::Salvage)),
    );
    let store = opened?;
    let report = store.recovery_report().clone();
    close(&store)?;
    for lost in &report.losses {
        let object = json!({
            "kind": "lost",
            "file": lost.file,
            "offset": lost.offset,
            "bytes": lost.bytes,
            "damage": lost.damage.to_string(),
            "first_sequence": lost.first_sequence.to_string(),
            "last_sequence": lost.last_sequence.to_string(),
        });
        let text = format!("lost: {}, byte {}: {}", lost.file, lost.offset, lost.damage);
        output.show(&object, text)?;
    }
    let object = json!({
        "kind": "summary",
        "lost": report.losses.len(),
        "kept_copies": report.kept_copies,
        "meta_rebuilt": report.meta_rebuilt,
        "records": report.records,
    });
    let text = format!(
        "{} places given up, {} copies of damaged files kept, {} records are good",
        report.losses.len(),
        report.kept_copies.len(),
        report.records
    );
    output.show(&object, text)
}

pub(crate) fn compact(arguments: &look::Store, output: &mut Output) -> Result<(), Failure> {
    let store = open(&arguments.directory, &options())?;
    let maintained = watched(
        "compacting",
        || bytes_in(&arguments.directory),
        || store.maintain(),
    );
    close(&store)?;
    let report = maintained.map_err(|error| Failure::new(Exit::Failed, error))?;
    let object = json!({
        "segments_removed": report.segments_removed,
        "bytes_removed": report.bytes_removed,
        "segments_written": report.segments_written,
        "records_copied": report.records_copied,
        "bytes_copied": report.bytes_copied,
        "results_expired": report.results_expired,
    });
    let text = format!(
        "{} files ({} bytes) given up, {} written with {} records ({} bytes)",
        report.segments_removed,
        report.bytes_removed,
        report.segments_written,
        report.records_copied,
        report.bytes_copied
    );
    output.show(&object, text)
}

pub(crate) fn snapshot(arguments: &Snapshot, output: &mut Output) -> Result<(), Failure> {
    let store = open(&arguments.directory, &options())?;
    let taken = watched(
        "copying",
        || bytes_in(&arguments.copy),
        || store.snapshot(&arguments.copy),
    );
    close(&store)?;
    let taken = taken.map_err(|error| Failure::new(Exit::Failed, error))?;
    let object = json!({
        "files_linked": taken.files_linked,
        "files_copied": taken.files_copied,
        "bytes_copied": taken.bytes_copied,
    });
    let text = format!(
        "{} files linked, {} copied ({} bytes)",
        taken.files_linked, taken.files_copied, taken.bytes_copied
    );
    output.show(&object, text)
}

/// Makes a store where there is nothing yet.
pub(crate) fn create(directory: &Path) -> Result<Store, Failure> {
    let store = options().open(directory)?;
    if store.recovery_report().created {
        return Ok(store);
    }
    close(&store)?;
    let message = format!("{} holds a store already", directory.display());
    Err(Failure::new(Exit::Failed, message))
}

pub(crate) fn init(arguments: &look::Store, output: &mut Output) -> Result<(), Failure> {
    let store = create(&arguments.directory)?;
    close(&store)?;
    let directory = arguments.directory.display().to_string();
    let object = json!({"created": directory});
    output.show(&object, format_args!("created {directory}"))
}
