//! What keys take on the disk and in memory, and how long an open takes, by how many there are.
//!
//! Each store is filled and opened by processes of its own, so that their memory is the store's and
//! nobody else's. A cold open is one after its files' pages were dropped from the system's cache. What
//! has no files is not opened, and what keys take of a server is what the server says.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::files::{anonymous_bytes, directory, disk_bytes, drop_from_cache};
use super::lap::{Fill, Subject};
use super::machine::median;
use super::{Entrant, Fault, Flags, Place, Room, keys};

/// Cold opens; the median counts.
const OPENS: usize = 3;
/// Connections that fill a server.
const CONNECTIONS: usize = 16;

/// What so many keys take.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    pub(crate) name: String,
    pub(crate) keys: usize,
    pub(crate) disk_bytes: Option<u64>,
    /// Right after the last key was completed.
    pub(crate) memory_bytes: Option<u64>,
    /// Right after an open.
    pub(crate) opened_memory_bytes: Option<u64>,
    pub(crate) cold_open_ms: Option<f64>,
    pub(crate) warm_open_ms: Option<f64>,
}

/// What a process of its own does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Fill,
    Open,
}

/// How processes are made for steps.
pub(super) struct Children<'a> {
    /// What stands before the flags.
    pub(super) arguments: &'a [&'a str],
    pub(super) flags: &'a Flags,
    pub(super) stop: &'a (dyn Fn() -> bool + Sync),
}

impl Children<'_> {
    pub(super) fn measure(&self, entrant: &Entrant, count: usize) -> Result<Growth, Fault> {
        let measured = match entrant.place {
            Place::Server => self.on_server(entrant, count),
            Place::Memory | Place::Files => self.in_process(entrant, count),
        };
        measured.map_err(|fault| entrant.blamed(fault))
    }

    fn on_server(&self, entrant: &Entrant, count: usize) -> Result<Growth, Fault> {
        let subject = entrant.open(&self.flags.dir, room(self.flags, count))?;
        let before = subject.used()?;
        subject.fill(&Fill {
            count,
            threads: CONNECTIONS,
            key_bytes: self.flags.key_bytes,
            response: &keys::response(self.flags.value_bytes),
            stop: self.stop,
        })?;
        let after = subject.used()?;
        subject.close()?;
        // Less than before says that the server tidied up meanwhile, and nothing of the keys.
        let grown = |before: Option<u64>, after: Option<u64>| after?.checked_sub(before?);
        Ok(Growth {
            name: entrant.name.clone(),
            keys: count,
            disk_bytes: grown(before.disk_bytes, after.disk_bytes),
            memory_bytes: grown(before.memory_bytes, after.memory_bytes),
            ..Growth::default()
        })
    }

    fn in_process(&self, entrant: &Entrant, count: usize) -> Result<Growth, Fault> {
        let below = directory(&self.flags.dir)?;
        let path = below.path();
        let filled = self.run(Step::Fill, entrant, count, path)?;
        let mut growth = Growth {
            name: entrant.name.clone(),
            keys: count,
            memory_bytes: filled["memory_bytes"].as_u64(),
            ..Growth::default()
        };
        if entrant.place == Place::Memory {
            return Ok(growth);
        }
        growth.disk_bytes = Some(disk_bytes(path)?);
        let mut colds = Vec::new();
        for _ in 0..OPENS {
            drop_from_cache(path)?;
            colds.push(millis(&self.run(Step::Open, entrant, count, path)?)?);
        }
        let warm = self.run(Step::Open, entrant, count, path)?;
        growth.cold_open_ms = Some(median(colds));
        growth.warm_open_ms = Some(millis(&warm)?);
        growth.opened_memory_bytes = warm["memory_bytes"].as_u64();
        Ok(growth)
    }

    fn run(
        &self,
        step: Step,
        entrant: &Entrant,
        count: usize,
        path: &Path,
    ) -> Result<Value, Fault> {
        let word = match step {
            Step::Fill => "fill",
            Step::Open => "open",
        };
        let step = format!("{word}:{count}:{}:{}", entrant.class.name(), entrant.name);
        let mut child = Command::new(std::env::current_exe()?)
            .args(self.arguments)
            .args(["--step", &step])
            .args(["--key-bytes", &self.flags.key_bytes.to_string()])
            .args(["--value-bytes", &self.flags.value_bytes.to_string()])
            .arg("--dir")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let ended = self.wait(&mut child);
        if ended.is_err() {
            // It may have ended by itself meanwhile.
            child.kill().unwrap_or_default();
            child.wait()?;
        }
        let is_success = ended?;
        let text = |pipe: Option<&mut dyn Read>| {
            let mut text = String::new();
            pipe.map_or(Ok(0), |pipe| pipe.read_to_string(&mut text))
                .map(|_| text)
        };
        let out = text(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        let err = text(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read))?;
        match is_success {
            true => Ok(serde_json::from_str(&out)?),
            false => Err(err.trim().trim_start_matches("oncekey: ").into()),
        }
    }

    /// A line in each pipe is all it says, so that it never waits for a reader.
    fn wait(&self, child: &mut Child) -> Result<bool, Fault> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if (self.stop)() {
                return Err("stopped".into());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn millis(told: &Value) -> Result<f64, Fault> {
    let nanos = told["nanos"].as_u64().ok_or("no time was told")?;
    Ok(nanos as f64 / 1e6)
}

fn room(flags: &Flags, keys: usize) -> Room {
    Room {
        keys,
        key_bytes: flags.key_bytes,
        response_bytes: flags.value_bytes,
    }
}

/// Does what another process asked for, and tells it what came of it.
pub(crate) fn run_step(
    flags: &Flags,
    entrants: &[Entrant],
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Value, Fault> {
    let text = flags.step.as_deref().unwrap_or_default();
    let parts: Vec<&str> = text.splitn(4, ':').collect();
    let [word, count, class, name] = parts[..] else {
        return Err(format!("not a step: {text:?}").into());
    };
    let count: usize = count.parse()?;
    let is_meant = |one: &&Entrant| one.class.name() == class && one.name == name;
    let entrant = entrants
        .iter()
        .find(is_meant)
        .ok_or("nobody has that name")?;
    let before = anonymous_bytes();
    let grown = || Some(anonymous_bytes()?.saturating_sub(before?));
    let response = keys::response(flags.value_bytes);
    match word {
        "fill" => {
            // As little as there can be is prepared: what is measured is the keys.
            let subject = entrant.open(&flags.dir, room(flags, 1))?;
            subject.fill(&Fill {
                count,
                threads: 1,
                key_bytes: flags.key_bytes,
                response: &response,
                stop,
            })?;
            let memory_bytes = grown();
            subject.close()?;
            Ok(json!({ "memory_bytes": memory_bytes }))
        }
        "open" => {
            let begun = Instant::now();
            let subject = entrant.open(&flags.dir, room(flags, 1))?;
            first_replay(&*subject, flags, count, &response)?;
            let nanos = begun.elapsed().as_nanos() as u64;
            let memory_bytes = grown();
            subject.close()?;
            Ok(json!({ "nanos": nanos, "memory_bytes": memory_bytes }))
        }
        _ => Err(format!("not a step: {text:?}").into()),
    }
}

/// Some stores put off what others do when they are opened: what counts is the first answer.
fn first_replay(
    subject: &dyn Subject,
    flags: &Flags,
    count: usize,
    response: &[u8],
) -> Result<(), Fault> {
    let key = keys::sample(count as u64 / 2, flags.key_bytes)?;
    subject.replay_one(&key, response)
}
