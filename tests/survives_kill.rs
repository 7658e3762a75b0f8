//! A process that is killed at any moment loses nothing that it had acknowledged, and the next open
//! needs no help.
//!
//! The test starts itself again as a child. The child works on a real directory with several threads
//! and writes a line to its standard output before each call (an intent) and after it (an
//! acknowledgement); the parent reads them, kills it with SIGKILL at a random moment, opens the
//! store and compares. `ONCEKEY_KILLS` sets how often.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncekey::{Claim, Durability, Fingerprint, Key, KeyState, Options, Replay, Store};

const DIRECTORY: &str = "ONCEKEY_KILL_DIRECTORY";
const ROUND: &str = "ONCEKEY_KILL_ROUND";
const THREADS: u32 = 3;

fn open(directory: &Path, round: u32) -> Store {
    let durability = if round.is_multiple_of(4) {
        Durability::Sync
    } else {
        Durability::Buffered
    };
    Options::new()
        .durability(durability)
        .segment_size(128 << 10)
        .lock_wait(Duration::from_secs(10))
        .open(directory)
        .expect("opens without help")
}

fn key(name: &str) -> Key {
    Key::new("scope", "operation", name).expect("a key")
}

fn response(name: &str) -> Vec<u8> {
    let len = name.bytes().map(usize::from).sum::<usize>() * 37 % 3_000;
    name.bytes().cycle().take(len).collect()
}

/// The child: works until it is killed.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let round: u32 = std::env::var(ROUND)
        .expect("set")
        .parse()
        .expect("a number");
    let store = open(Path::new(&directory), round);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    work(store, &format!("{round}-{thread}-{number}"), number);
                }
            });
        }
    });
}

fn say(verb: &str, name: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{verb} {name}")
        .and_then(|()| out.flush())
        .expect("the parent reads");
}

fn work(store: &Store, name: &str, number: u32) {
    say("claiming", name);
    let Ok(Claim::Started(operation)) = store.claim(&key(name), Fingerprint::of(name)) else {
        panic!("{name} was never claimed before");
    };
    say("claimed", name);
    match number % 5 {
        0 => drop(operation),
        1 => {
            say("releasing", name);
            operation.release().expect("held");
            say("released", name);
        }
        _ => {
            say("completing", name);
            operation.complete(response(name)).expect("held");
            say("completed", name);
        }
    }
}

/// Whether the store's answer is right for a key of which this was the last line.
fn is_right(verb: &str, name: &str, state: &KeyState) -> bool {
    let completed = match state {
        KeyState::Completed(saved) => match saved.by_scope() {
            Ok(Replay::Response(found)) => found[..] == response(name)[..],
            _ => false,
        },
        _ => false,
    };
    let interrupted = matches!(state, KeyState::Interrupted { attempt: 1, .. });
    let absent = matches!(state, KeyState::Absent);
    match verb {
        "claiming" => interrupted || absent,
        "claimed" => interrupted,
        "completing" => interrupted || completed,
        "completed" => completed,
        "releasing" => interrupted || absent,
        "released" => absent,
        _ => false,
    }
}

#[test]
fn every_acknowledged_write_survives_kill_9() {
    let kills: u32 = std::env::var("ONCEKEY_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(60);
    let directory = tempfile::tempdir().expect("a directory");
    let mut told: HashMap<String, String> = HashMap::new();
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..kills {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let out = child.stdout.take().expect("piped");
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // After a number of lines, not after a time: every round gets somewhere on any machine.
        let lines_before_kill = 1 + (seed >> 33) % 4_000;
        let mut killed = false;
        for (number, line) in BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .enumerate()
        {
            if let Some((verb, name)) = line.strip_prefix('@').and_then(|line| line.split_once(' '))
            {
                told.insert(name.to_owned(), verb.to_owned());
            }
            if !killed && number as u64 >= lines_before_kill {
                child.kill().expect("killed");
                killed = true;
            }
        }
        assert!(killed, "the child ended by itself");
        child.wait().expect("gone");

        let store = open(directory.path(), 1);
        for (name, verb) in &told {
            let state = store.get(&key(name)).expect("an answer");
            assert!(
                is_right(verb, name, &state),
                "round {round}: {verb} {name}, is {state:?}"
            );
        }
        drop(store);
    }
    println!("{kills} kills, {} keys checked after each", told.len());
}
