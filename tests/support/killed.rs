//! Children that are killed: the test starts itself again, and ends the child with SIGKILL at a
//! moment that nobody chose.
//!
//! A child works on a directory of the parent's and writes what it does to a journal there. Where a
//! test fails its directory is kept, and its path printed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::journal::Journal;
use super::{LONG, Random};

const DIRECTORY: &str = "ONCEKEY_CHILD_DIRECTORY";
const SEED: &str = "ONCEKEY_CHILD_SEED";
const ROUND: &str = "ONCEKEY_CHILD_ROUND";

/// What a child is told.
#[derive(Clone, Debug)]
pub struct Orders {
    pub directory: PathBuf,
    pub seed: u64,
    pub round: u64,
}

/// When a child is killed.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// So long after its start: while it starts, opens, recovers or begins to work.
    After(Duration),
    /// So long after it wrote its n-th record from now.
    AfterRecords(u64, Duration),
    /// So long after its first record that begins with this word.
    AfterMark(u64, Duration),
}

impl Orders {
    /// What this process was told, if it is a child.
    pub fn received() -> Option<Self> {
        let number = |name| {
            let set = std::env::var(name).expect("set with the directory");
            set.parse().expect("a number")
        };
        Some(Self {
            directory: PathBuf::from(std::env::var_os(DIRECTORY)?),
            seed: number(SEED),
            round: number(ROUND),
        })
    }

    pub fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    pub fn journal(&self) -> PathBuf {
        self.directory.join("journal")
    }

    /// What a child finds them in.
    pub fn environment(&self) -> [(&'static str, OsString); 3] {
        [
            (DIRECTORY, self.directory.clone().into()),
            (SEED, self.seed.to_string().into()),
            (ROUND, self.round.to_string().into()),
        ]
    }

    /// Starts the test of this name as a child and kills it.
    pub fn kill_child(&self, test: &str, when: When) {
        let before = Journal::len(&self.journal());
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test, "--nocapture", "--test-threads", "1"])
            .envs(self.environment())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("starts");
        let journal = self.journal();
        let has_come = || match when {
            When::After(_) => true,
            When::AfterRecords(records, _) => Journal::len(&journal) >= before + records,
            When::AfterMark(mark, _) => {
                let records = Journal::read(&journal);
                let new = &records[before as usize..];
                new.iter().any(|words| words[0] == mark)
            }
        };
        let begun = Instant::now();
        while !has_come() {
            self.assert_alive(&mut child);
            assert!(begun.elapsed() < LONG, "the child stands still");
            thread::sleep(Duration::from_micros(200));
        }
        let (When::After(delay) | When::AfterRecords(_, delay) | When::AfterMark(_, delay)) = when;
        thread::sleep(delay);
        self.assert_alive(&mut child);
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    fn assert_alive(&self, child: &mut Child) {
        if let Some(status) = child.try_wait().expect("a child") {
            let mut said = String::new();
            if let Some(mut errors) = child.stderr.take() {
                drop(std::io::Read::read_to_string(&mut errors, &mut said));
            }
            panic!("the child ended by itself ({status}): {said}");
        }
    }
}

/// A directory that stays where its test fails.
#[derive(Debug)]
pub struct Kept {
    directory: Option<TempDir>,
    what: String,
}

impl Kept {
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            directory: Some(super::directory()),
            what: what.into(),
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("until it is dropped").path()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("{} failed; kept {}", self.what, directory.keep().display());
        }
    }
}

/// Any moment of a child's life, the early ones more often than chance would.
pub fn any_moment(random: &mut Random, records: usize) -> When {
    let delay = Duration::from_micros(random.below(2_000) as u64);
    match random.below(4) {
        0 => When::After(Duration::from_micros(random.below(30_000) as u64)),
        _ => When::AfterRecords(1 + random.below(records) as u64, delay),
    }
}
