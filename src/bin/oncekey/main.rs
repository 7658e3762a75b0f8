//! The tool `oncekey`: looks into stores, checks them, and carries keys from one to another.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::output::{Exit, Failure, Output};

mod bench;
mod change;
mod json;
mod keys;
mod look;
mod output;
mod redis;
mod serve;
mod shadow;
mod transfer;
mod verify;

/// Look into idempotency-key stores, check them, and carry keys from one to another.
///
/// What only reads works beside a running service: it takes no lock and writes nothing. What writes
/// needs the store for itself: stop the service first.
#[derive(Parser)]
#[command(name = "oncekey", version, after_help = output::EXIT_CODES)]
struct Cli {
    /// Print JSON; where there are many, one object a line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Count keys by state, and say how large and how fresh the store is.
    Stats(look::Store),
    /// List keys, one a line, in no particular order.
    List(look::List),
    /// Show all that the log still knows of one key, oldest first.
    Get(look::Get),
    /// List keys whose owner is gone and whose outcome is unknown.
    Interrupted(look::Store),
    /// List keys that were claimed since the store was opened last and are not finished.
    Pending(look::Store),
    /// Read everything, check every checksum, and say what damage means.
    Verify(look::Store),
    /// Write all keys that are not free to standard output, one JSON object a line; or values to Redis.
    Export(Export),
    /// Read what `export` wrote, or take keys over from Redis. Can be repeated without harm: keys that
    /// are there stay as they are.
    ///
    /// Needs the store for itself. Results keep the time until which they answer; attempts and
    /// tokens begin anew. Pending keys become interrupted.
    Import(Import),
    /// Remove a key. Needs the store for itself; a service forgets with `Store::forget`.
    Forget(change::Forget),
    /// Say that an interrupted operation did nothing: its key is free again. Needs the store for itself.
    Release(change::Release),
    /// Open a damaged store without what cannot be read, keeping copies of the damaged files.
    ///
    /// Needs the store for itself. Keys whose newest record is lost answer from an older one, or are
    /// absent: run `verify` first, and restore a backup where there is one.
    Salvage(look::Store),
    /// Give disk space back now. Needs the store for itself; a running service does it by itself.
    Compact(look::Store),
    /// Make a copy that can be opened. Needs the store for itself; a service calls `Store::snapshot`.
    Snapshot(change::Snapshot),
    /// Serve a store to Redis clients, until Ctrl-C or SIGTERM. Needs the store for itself.
    Serve(serve::Serve),
    /// Add up what services found while they compared a store with another table, and list differences.
    ///
    /// Exits with 1 where there are any.
    Shadow(shadow::Shadow),
    /// Make an empty store.
    Init(look::Store),
    /// Make a new store of many completed keys, to try the tool or a service with.
    Fill(transfer::Fill),
    /// Measure claims, completions and replays on this machine, on a throw-away store.
    Bench(bench::Bench),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Manual,
}

#[derive(Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true)]
struct Export {
    #[command(subcommand)]
    elsewhere: Option<redis::ExportTo>,
    #[command(flatten)]
    lines: Option<transfer::Export>,
}

#[derive(Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true)]
struct Import {
    #[command(subcommand)]
    elsewhere: Option<redis::ImportFrom>,
    #[command(flatten)]
    lines: Option<transfer::Import>,
}

/// A key on the command line.
#[derive(Args)]
struct KeyArguments {
    /// The key's id.
    id: String,
    /// The key's scope.
    #[arg(long, default_value = "")]
    scope: String,
    /// The key's operation.
    #[arg(long, default_value = "")]
    operation: String,
    /// Id, scope and operation are given in hexadecimal digits, for bytes that are not text.
    #[arg(long)]
    hex: bool,
}

impl KeyArguments {
    fn key(&self) -> Result<oncekey::Key, Failure> {
        let bytes = |text: &String| match self.hex {
            true => json::from_hex(text)
                .ok_or_else(|| Failure::new(Exit::Usage, format!("{text:?} is not hexadecimal"))),
            false => Ok(text.clone().into_bytes()),
        };
        oncekey::Key::new(
            bytes(&self.scope)?,
            bytes(&self.operation)?,
            bytes(&self.id)?,
        )
        .map_err(|error| Failure::new(Exit::Usage, error))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    raise_descriptor_limit();
    let output = Output::new(cli.json);
    let done = output.and_then(|mut output| {
        run(&cli.command, &mut output)?;
        output.flush()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// A look keeps every segment open. Where the limit stays, a store of more segments is an error.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap_or_default();
}

fn nothing_said(command: &str) -> Failure {
    let message = format!("what to {command}? See `oncekey {command} --help`");
    Failure::new(Exit::Usage, message)
}

fn run(command: &Command, output: &mut Output) -> Result<(), Failure> {
    match command {
        Command::Stats(arguments) => look::stats(arguments, output),
        Command::List(arguments) => look::list(arguments, output),
        Command::Get(arguments) => look::get(arguments, output),
        Command::Interrupted(arguments) => look::waiting(arguments, true, output),
        Command::Pending(arguments) => look::waiting(arguments, false, output),
        Command::Verify(arguments) => verify::verify(arguments, output),
        Command::Export(arguments) => match (&arguments.elsewhere, &arguments.lines) {
            (Some(redis::ExportTo::Redis(arguments)), _) => redis::export_all(arguments, output),
            (None, Some(arguments)) => transfer::export(arguments, output),
            (None, None) => Err(nothing_said("export")),
        },
        Command::Import(arguments) => match (&arguments.elsewhere, &arguments.lines) {
            (Some(redis::ImportFrom::Redis(arguments)), _) => redis::import(arguments, output),
            (None, Some(arguments)) => transfer::import(arguments, output),
            (None, None) => Err(nothing_said("import")),
        },
        Command::Serve(arguments) => serve::serve(arguments, output),
        Command::Shadow(arguments) => shadow::shadow(arguments, output),
        Command::Forget(arguments) => change::forget(arguments, output),
        Command::Release(arguments) => change::release(arguments, output),
        Command::Salvage(arguments) => change::salvage(arguments, output),
        Command::Compact(arguments) => change::compact(arguments, output),
        Command::Snapshot(arguments) => change::snapshot(arguments, output),
        Command::Init(arguments) => change::init(arguments, output),
        Command::Fill(arguments) => transfer::fill(arguments, output),
        Command::Bench(arguments) => bench::bench(arguments, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "oncekey", &mut script);
            output.bytes(&script)
        }
        Command::Manual => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .and_then(|()| page.flush())
                .map_err(|error| Failure::new(Exit::Failed, error))?;
            output.bytes(&page)
        }
    }
}
