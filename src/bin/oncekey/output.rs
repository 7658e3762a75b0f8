//! Where all commands meet the outside: output, exit codes, errors, progress and signals.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use oncekey::{OpenError, ReadError};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

pub(crate) const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed: the system refused (permission, full disk, ...), or bad input
  2    the command line is wrong
  3    no such key, or its state does not allow it
  4    the store is in use by another process
  5    damaged: run `oncekey verify`
  6    not a store, or of another format version
  130  stopped by Ctrl-C or SIGTERM
  141  the reader of the output went away";

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Key = 3,
    InUse = 4,
    Damaged = 5,
    NoStore = 6,
    Stopped = 130,
    Closed = 141,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
        }
    }

    /// What the system said about a file.
    pub(crate) fn io(path: impl Display, error: &io::Error) -> Self {
        Self::new(Exit::Failed, format!("{path}: {error}"))
    }

    /// One line on standard error. That it cannot be written changes nothing.
    pub(crate) fn report(&self) -> ExitCode {
        let line = self.message.replace('\n', " ");
        writeln!(io::stderr(), "oncekey: {line}").unwrap_or_default();
        ExitCode::from(self.exit as u8)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match &error {
            OpenError::InUse { path, pid } => {
                let holder = pid.map_or(String::new(), |pid| format!(" by process {pid}"));
                let message = format!(
                    "{} is in use{holder}: stop that process first; stats, list, get, \
                     interrupted, pending, verify and export work beside it",
                    path.display()
                );
                Self::new(Exit::InUse, message)
            }
            OpenError::Corrupt { path, corruption } => {
                let path = path.display();
                let message = format!(
                    "{path} is damaged: {}, byte {}: {}; run `oncekey verify {path}`",
                    corruption.file, corruption.offset, corruption.damage
                );
                Self::new(Exit::Damaged, message)
            }
            OpenError::MetaDamaged { path, .. } | OpenError::MetaMissing { path, .. } => {
                let message = format!(
                    "META of {0} is missing or damaged: restore it from a copy, or run \
                     `oncekey salvage {0}`",
                    path.display()
                );
                Self::new(Exit::Damaged, message)
            }
            OpenError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                Self::new(Exit::NoStore, format!("{} does not exist", path.display()))
            }
            OpenError::ForeignFile { .. }
            | OpenError::NotADirectory { .. }
            | OpenError::FormatVersion { .. } => Self::new(Exit::NoStore, &error),
            _ => Self::new(Exit::Failed, &error),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Open(error) => error.into(),
            error => Self::new(Exit::NoStore, error),
        }
    }
}

/// Standard output, and whether to go on.
pub(crate) struct Output {
    out: BufWriter<Stdout>,
    json: bool,
    colours: bool,
    stop: Arc<AtomicBool>,
}

impl Output {
    pub(crate) fn new(json: bool) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The first one ends the command in order, the second at once.
            let code = Exit::Stopped as i32;
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&stop))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
                .map_err(|error| Failure::new(Exit::Failed, error))?;
        }
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Ok(Self {
            out: BufWriter::new(io::stdout()),
            json,
            colours: !json && !wants_none && io::stdout().is_terminal(),
            stop,
        })
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// The object as a line, or the text.
    pub(crate) fn show(&mut self, object: &Value, text: impl Display) -> Result<(), Failure> {
        match self.json {
            true => self.line(object),
            false => self.line(text),
        }
    }

    pub(crate) fn line(&mut self, text: impl Display) -> Result<(), Failure> {
        self.check()?;
        writeln!(self.out, "{text}").map_err(|error| closed(&error))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|error| closed(&error))
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| closed(&error))
    }

    /// The text in a colour of the terminal's, by its number.
    pub(crate) fn paint(&self, colour: u8, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    /// Whether somebody asked to stop.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(stopped()),
            false => Ok(()),
        }
    }

    /// The same, for who is told of progress.
    pub(crate) fn stop_mark(&self) -> impl Fn() -> io::Result<()> + use<> {
        let stop = Arc::clone(&self.stop);
        move || match stop.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Stopped, "stopped; the store is whole")
}

fn closed(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Failure::new(Exit::Closed, "the reader of the output went away")
        }
        _ => Failure::io("standard output", error),
    }
}

/// A bar on standard error, if that is a terminal.
pub(crate) fn bar(doing: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(doing);
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Runs work that tells nothing until it is done. On a terminal standard error shows how long it has been
/// at it, and how many bytes `measure` finds.
pub(crate) fn watched<T>(
    doing: &'static str,
    measure: impl Fn() -> u64 + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let bar = bar(doing, 0, WORKING);
    if bar.is_hidden() {
        return work();
    }
    bar.tick();
    let is_done = AtomicBool::new(false);
    let watch = || {
        while !is_done.load(Ordering::Relaxed) {
            bar.set_position(measure());
            bar.tick();
            thread::sleep(BETWEEN_LOOKS);
        }
        bar.finish_and_clear();
    };
    thread::scope(|scope| {
        let _done = Done(&is_done);
        scope.spawn(watch);
        work()
    })
}

/// Says so when it is dropped, by a panic too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bytes of the files in a directory; 0 where there is none yet.
pub(crate) fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.sum()
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
const WORKING: &str = "{spinner} {msg} {bytes} {elapsed}";
pub(crate) const BYTES: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {eta}";
pub(crate) const COUNT: &str = "{msg} {wide_bar} {pos}/{len} {per_sec} {eta}";
