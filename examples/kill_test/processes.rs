//! The processes of the test: started, watched for, killed, and gone when the test is.
//!
//! Dropping a [`Process`] kills it, so none is left behind by an error, a panic or ctrl-c.

use std::fs::OpenOptions;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::plan::Random;

const START_MAX: Duration = Duration::from_secs(30);
const STOP_MAX: Duration = Duration::from_secs(30);

/// How to start a process, again and again.
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<String>,
    /// Where its standard error is collected.
    pub log: PathBuf,
}

pub struct Process {
    child: Child,
    /// The pipe stays open for as long as the process runs.
    _stdout: BufReader<ChildStdout>,
    pub url: String,
}

impl Program {
    /// Starts it and returns once it listens.
    pub async fn start(&self) -> io::Result<Process> {
        let mut child = self.spawn()?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no standard output"))?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        timeout(START_MAX, stdout.read_line(&mut line)).await??;
        match line.trim().strip_prefix("listening on ") {
            Some(url) => Ok(Process {
                child,
                _stdout: stdout,
                url: url.to_owned(),
            }),
            None => {
                let (path, log) = (self.path.display(), self.log.display());
                Err(io::Error::other(format!(
                    "{path} did not start: see the end of {log}"
                )))
            }
        }
    }

    /// Starts it and kills it `after` a moment, whatever it is doing by then.
    pub async fn kill_while_starting(&self, after: Duration) -> io::Result<()> {
        let mut child = self.spawn()?;
        tokio::time::sleep(after).await;
        timeout(STOP_MAX, child.kill()).await?
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        Command::new(&self.path)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
    }
}

impl Process {
    /// SIGKILL: nothing in the process gets to run any more.
    pub async fn kill(mut self) -> io::Result<()> {
        timeout(STOP_MAX, self.child.kill()).await?
    }

    /// SIGTERM, and what it ended with.
    pub async fn terminate(mut self) -> io::Result<ExitStatus> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::other("the process has ended before"))?;
        kill_process(pid, Signal::TERM)?;
        timeout(STOP_MAX, self.child.wait()).await?
    }

    /// An error if it has ended by itself.
    pub fn check_running(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!(
                "a process ended by itself: {status}"
            ))),
        }
    }
}

/// Another example, built beside this one.
pub fn sibling(name: &str) -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let path = this.parent().unwrap_or(Path::new(".")).join(name);
    if path.is_file() {
        return Ok(path);
    }
    let message = format!(
        "{} is missing: build all examples first, with `cargo build --release --examples`",
        path.display(),
    );
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// A free port below the range from which the kernel takes ports for outgoing connections.
///
/// Clients keep connecting while nobody listens. On a port in that range one of them would sooner
/// or later be given the very same port as its own, connect to itself and block the restart.
pub fn free_port(random: &mut Random) -> io::Result<u16> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let port = 20_000 + u16::try_from(random.below(10_000)).unwrap_or(0);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "no free port from 20000 to 29999",
    ))
}
