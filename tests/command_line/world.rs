//! Running the tool, and stores to run it on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use oncekey::{Claim, Fingerprint, Key, Operation, Options, Store};
use serde_json::Value;

pub(crate) fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.env_remove("NO_COLOR");
    command
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// The lines as objects.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// It failed with this code and one line.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("oncekey: "), "{}", self.err);
        assert!(self.err.contains(says), "{says:?} in {}", self.err);
    }
}

pub(crate) fn run(arguments: &[&str]) -> Run {
    tool().args(arguments).output().expect("it runs").into()
}

/// The same, which has to go well.
#[track_caller]
pub(crate) fn good(arguments: &[&str]) -> Run {
    let run = run(arguments);
    assert_eq!(
        (run.code, run.err.as_str()),
        (Some(0), ""),
        "{arguments:?}: {run:?}"
    );
    run
}

/// Presses Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    let signalled = Command::new("kill").args(["-INT", &pid]).status();
    assert!(signalled.expect("kill runs").success());
}

/// Measuring in so many rounds, all in miniature; the directory follows.
pub(crate) fn tiny_bench(rounds: &str) -> [&str; 9] {
    [
        "--json",
        "bench",
        "--threads",
        "1,2",
        "--rounds",
        rounds,
        "--lap-ms",
        "5",
        "--dir",
    ]
}

/// A directory for a store, whose path is text.
pub(crate) struct Place {
    base: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            base: tempfile::tempdir().expect("a directory"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// Waits until a process has the store of this name: its own stands in the lock then.
    pub(crate) fn until_opened(&self, name: &str) {
        let lock = self.path(name).join("LOCK");
        while std::fs::metadata(&lock).expect("there").len() == 0 {
            std::thread::yield_now();
        }
    }

    pub(crate) fn store(&self) -> Store {
        open(&self.path("store"))
    }
}

pub(crate) fn open(path: &Path) -> Store {
    Options::new()
        .segment_size(64 << 10)
        .open(path)
        .expect("opened")
}

pub(crate) fn key(id: impl AsRef<[u8]>) -> Key {
    Key::new("acct", "pay", id).expect("a key")
}

pub(crate) fn start(store: &Store, key: &Key) -> Operation {
    match store
        .claim(key, Fingerprint::of(key.id()))
        .expect("claimed")
    {
        Claim::Started(operation) | Claim::Interrupted(operation) => operation,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn complete(store: &Store, id: impl AsRef<[u8]>, response: impl AsRef<[u8]>) {
    start(store, &key(id))
        .complete(response)
        .expect("completed");
}
