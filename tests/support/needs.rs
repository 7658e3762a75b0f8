//! What a test needs and a machine may lack: it is skipped there and says so, or fails where
//! `ONCEKEY_REQUIRE_SERVERS` is set.

use std::io::{self, Write};
use std::process::Command;

/// Skips a test: `needs` says what it takes to run it, `why` what was missing.
#[track_caller]
pub fn skip(test: &str, needs: &str, why: &str) {
    assert!(
        std::env::var_os("ONCEKEY_REQUIRE_SERVERS").is_none(),
        "{test} needs {needs}; {why}"
    );
    say(&format!("SKIPPED {test}: needs {needs}; {why}"));
}

/// On the terminal, also where the output of tests that pass is kept back.
pub fn say(text: &str) {
    // Not by `eprintln`, which is kept back.
    drop(writeln!(io::stderr(), "{text}"));
}

/// Whether a program can be started.
pub fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}
