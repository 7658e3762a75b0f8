//! The tool.

mod redis;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "oncekey", version, about = "An embedded idempotency-key store")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a store to Redis clients.
    Serve(serve::Serve),
    /// Take keys over from elsewhere.
    #[command(subcommand)]
    Import(redis::ImportFrom),
    /// Write keys elsewhere.
    #[command(subcommand)]
    Export(redis::ExportTo),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Import(import) => import.run(),
        Command::Export(export) => export.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("oncekey: {error}");
            ExitCode::FAILURE
        }
    }
}
