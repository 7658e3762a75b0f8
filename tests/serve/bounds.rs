//! What a server bounds, and what becomes of its clients when it stops or is killed.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oncekey::serve::{ServeOptions, Server};
use oncekey::{Key, KeyState, Options, Store};

use super::{Served, run};

/// More than anything here takes.
const LONG: Duration = Duration::from_secs(120);

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

fn claim(id: &str) -> Vec<u8> {
    request(&["IDEM.CLAIM", "s", "o", id, "LEASE", "60000"])
}

/// Serves a store of this process, and gives `test` the address.
fn serving<T>(store: &Store, options: ServeOptions, test: impl FnOnce(String) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let options = options.tcp("127.0.0.1:0".parse().unwrap());
    let server = runtime
        .block_on(Server::start(store.clone(), options))
        .unwrap();
    let done = test(server.addresses()[0].to_string());
    runtime.block_on(server.shutdown(LONG));
    done
}

/// What is answered to these bytes, until the server has nothing more to say.
fn answers(address: &str, bytes: &[u8]) -> String {
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.write_all(bytes).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    socket.read_to_end(&mut answers).unwrap();
    String::from_utf8_lossy(&answers).into_owned()
}

#[test]
fn claims_that_are_sent_ahead_share_the_disk_and_keep_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new().open(directory.path()).unwrap();
    serving(&store, ServeOptions::new(), |address| {
        let before = store.stats().syncs;
        let mut bytes = Vec::new();
        for number in 0..200 {
            bytes.extend(claim(&format!("k{number}")));
        }
        // On the same key: the second finds the first, and what comes behind stays behind.
        bytes.extend(claim("k7"));
        bytes.extend(request(&["ECHO", "plain"]));
        bytes.extend(request(&["IDEM.GET", "s", "o", "k7"]));
        bytes.extend(request(&["IDEM.FORGET", "s", "o", "k7", "FORCE"]));
        bytes.extend(request(&["IDEM.GET", "s", "o", "k7"]));
        bytes.extend(claim("k7"));
        bytes.extend(request(&["HELLO", "3"]));
        bytes.extend(claim("k7"));
        let answers = answers(&address, &bytes);
        let outcomes = answers.split("\r\n").filter(|line| {
            matches!(
                *line,
                "started" | "in_progress" | "plain" | "absent" | "server" | "interrupted"
            )
        });
        let outcomes: Vec<_> = outcomes.skip(200).collect();
        assert!(answers.matches("started").count() == 201, "{answers}");
        assert_eq!(
            outcomes,
            [
                "in_progress",
                "plain",
                "in_progress",
                "absent",
                "started",
                "server",
                "in_progress"
            ]
        );
        // The last answer is a map: the protocol changed where it was asked to.
        assert!(
            answers.ends_with("\r\n") && answers.contains("\r\n%"),
            "{answers}"
        );
        let syncs = store.stats().syncs - before;
        assert!(syncs < 60, "{syncs} syncs for 203 claims");
    });
    store.close().unwrap();
}

#[test]
fn answers_of_many_results_at_once_are_whole_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new().open(directory.path()).unwrap();
    let options = ServeOptions::new().max_output_bytes(64 << 10);
    serving(&store, options, |address| {
        for number in 0..40 {
            let key = Key::new("s", "o", format!("k{number}")).unwrap();
            let claimed = store.claim(&key, oncekey::Fingerprint::none()).unwrap();
            let oncekey::Claim::Started(operation) = claimed else {
                panic!("{claimed:?}")
            };
            let response = format!("[{number}]").repeat(10_000);
            operation.complete(response.as_bytes()).unwrap();
        }
        let bytes: Vec<u8> = (0..40)
            .flat_map(|number| request(&["IDEM.GET", "s", "o", &format!("k{number}")]))
            .collect();
        let answers = answers(&address, &bytes);
        let mut rest = &answers[..];
        for number in 0..40 {
            let response = format!("[{number}]").repeat(10_000);
            let at = rest
                .find(&response)
                .unwrap_or_else(|| panic!("{number} is missing"));
            rest = &rest[at + response.len()..];
        }
    });
    store.close().unwrap();
}

#[test]
fn a_unix_socket_is_never_open_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new().open(directory.path().join("store")).unwrap();
    let path = directory.path().join("socket");
    let is_over = AtomicBool::new(false);
    let (seen, widest) = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let (mut seen, mut widest) = (0_u64, 0);
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(metadata) = std::fs::symlink_metadata(&path) {
                    seen += 1;
                    widest |= metadata.permissions().mode() & 0o777;
                }
            }
            (seen, widest)
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            for _ in 0..2_000 {
                let options = ServeOptions::new().unix(&path);
                let server = Server::start(store.clone(), options).await.unwrap();
                drop(server);
            }
        });
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    });
    assert!(seen > 0, "nobody looked");
    assert_eq!(widest, 0o600, "{widest:o}");
    store.close().unwrap();
}

#[test]
fn a_silent_client_is_hung_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--idle-seconds", "1"]);
    let mut socket = served.socket();
    socket.write_all(b"PING\r\n").unwrap();
    let begun = Instant::now();
    let mut answers = String::new();
    socket.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "+PONG\r\n");
    assert!(begun.elapsed() >= Duration::from_millis(900), "too early");
    assert_eq!(run::<String>(&mut served.client(), "PING").unwrap(), "PONG");
}

#[test]
fn one_client_too_many_is_told_so_and_the_others_stay() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--max-clients", "2"]);
    let (mut one, mut two) = (served.client(), served.client());
    for client in [&mut one, &mut two] {
        assert_eq!(run::<String>(client, "PING").unwrap(), "PONG");
    }
    let answers = served.answers_to(b"");
    assert_eq!(answers, "-ERR max number of clients reached\r\n");
    assert_eq!(run::<String>(&mut one, "PING").unwrap(), "PONG");
    drop(two);
    // Its place is free once the server has noticed.
    let begun = Instant::now();
    while !served.answers_to(b"PING\r\n").contains("PONG") {
        assert!(begun.elapsed() < LONG, "no place is free");
    }
}

#[test]
fn a_key_that_is_there_the_whole_time_is_scanned() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let mut client = served.client();
    for number in 0..3_000 {
        run::<String>(&mut client, &format!("SET stays:{number} v")).unwrap();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut other = served.client();
        let is_over = &is_over;
        scope.spawn(move || {
            // Keys come and go, tables grow, and those that stay are written again.
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                run::<String>(&mut other, &format!("SET new:{number} v")).unwrap();
                run::<String>(&mut other, &format!("SET stays:{} w", number % 3_000)).unwrap();
                if number % 2 == 0 {
                    run::<i64>(&mut other, &format!("DEL new:{}", number / 2)).unwrap();
                }
            }
        });
        for round in 0..5 {
            let (mut cursor, mut seen) = ("0".to_owned(), HashSet::new());
            loop {
                let words = format!("SCAN {cursor} MATCH stays:* COUNT 50");
                let (next, names): (String, Vec<String>) = run(&mut client, &words).unwrap();
                seen.extend(names);
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
            assert_eq!(seen.len(), 3_000, "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn guessing_passwords_is_slow_for_all_who_do_together() {
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret\n").unwrap();
    let store = directory.path().join("store");
    let served = Served::start(&store, &["--password-file", password.to_str().unwrap()]);
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    // After three the right one is not heard either.
    let three = b"AUTH a\r\nAUTH b\r\nHELLO 3 AUTH default c\r\nAUTH secret\r\nPING\r\n";
    assert_eq!(served.answers_to(three), wrong.repeat(3));
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                assert_eq!(
                    served.answers_to(b"AUTH a\r\nAUTH secre\r\n"),
                    wrong.repeat(2)
                )
            });
        }
    });
    assert!(
        begun.elapsed() >= 20 * Duration::from_millis(50),
        "20 guesses took {:?}",
        begun.elapsed()
    );
    let answers = served.answers_to(b"AUTH secret\r\nPING\r\n");
    assert_eq!(answers, "+OK\r\n+PONG\r\n");
}

#[test]
fn what_was_acknowledged_before_a_stop_is_there_after_it() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let path = directory.path().join(round.to_string());
        let mut served = Served::start(&path, &[]);
        let mut writing = served.socket();
        let mut reading = BufReader::new(writing.try_clone().unwrap());
        let writer = thread::spawn(move || {
            for number in 0..20_000 {
                let id = format!("k{number}");
                let bytes = match number % 2 {
                    0 => request(&["SET", &id, "v"]),
                    _ => request(&["IDEM.CLAIM", "s", "o", &id, "LEASE", "600000"]),
                };
                // The server stops reading at some time.
                if writing.write_all(&bytes).is_err() {
                    break;
                }
            }
        });
        let (mut acknowledged, mut line) = (0, String::new());
        let mut is_stopping = false;
        while reading.read_line(&mut line).is_ok_and(|len| len > 0) {
            // The answer of a claim has one line that says so.
            if line == "+OK\r\n" || line == "started\r\n" {
                acknowledged += 1;
            }
            assert!(!line.starts_with('-'), "{line}");
            line.clear();
            if acknowledged > 200 * round && !is_stopping {
                is_stopping = true;
                let id = served.process.id().to_string();
                assert!(
                    Command::new("kill")
                        .args(["-TERM", &id])
                        .status()
                        .unwrap()
                        .success()
                );
            }
        }
        assert!(is_stopping && acknowledged > 0);
        drop(reading);
        assert!(served.process.wait().unwrap().success());
        writer.join().unwrap();
        let store = Options::new().max_key_part(1_024).open(&path).unwrap();
        for number in 0..acknowledged {
            let id = format!("k{number}");
            let key = match number % 2 {
                0 => Key::new("redis", "", id),
                _ => Key::new("s", "o", id),
            };
            let state = store.get(&key.unwrap()).unwrap();
            match number % 2 {
                0 => assert!(
                    matches!(state, KeyState::Completed(_)),
                    "{number}: {state:?}"
                ),
                _ => assert!(
                    matches!(state, KeyState::Interrupted { .. }),
                    "{number}: {state:?}"
                ),
            }
        }
    }
}

#[test]
fn an_import_that_is_killed_goes_on_where_it_is_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let source = Served::start(
        &directory.path().join("source"),
        &["--durability", "buffered"],
    );
    let keys = 20_000;
    let mut pipe = Vec::new();
    for number in 0..keys {
        pipe.extend(request(&[
            "SET",
            &format!("idem:{number}"),
            &format!("v{number}"),
        ]));
    }
    assert_eq!(source.answers_to(&pipe).matches("+OK").count(), keys);
    let path = directory.path().join("store");
    let mut import = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    import
        .args(["import", "redis", &format!("redis://{}", source.address)])
        .arg("--store")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut kills = 0;
    for wait_ms in [5, 20, 60, 120, 250] {
        let mut process = import.spawn().unwrap();
        thread::sleep(Duration::from_millis(wait_ms));
        kills += usize::from(process.try_wait().unwrap().is_none());
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert!(kills > 0, "each was done before it was killed");
    let output = import.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("0 missing") && said.contains("0 failed"),
        "{said}"
    );
    let store = Options::new().max_key_part(1_024).open(&path).unwrap();
    assert_eq!(store.stats().completed_keys, keys as u64);
    let key = Key::new("redis", "", "idem:17").unwrap();
    let KeyState::Completed(saved) = store.get(&key).unwrap() else {
        panic!("it is missing")
    };
    let replay = saved.by_scope().unwrap();
    assert_eq!(&replay.response().unwrap()[..], b"v17");
}

#[cfg(feature = "testing")]
mod failing {
    use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};

    use super::*;

    fn small() -> Options {
        Options::new().segment_size(64 << 10).max_response(8 << 10)
    }

    #[test]
    fn a_full_disk_refuses_new_keys_and_answers_for_the_old_ones() {
        let disk = SimulatedDisk::new();
        disk.capacity(5_u64 * (64 << 10));
        let store = small().open_simulated(&disk).unwrap();
        serving(&store, ServeOptions::new(), |address| {
            let client = redis::Client::open(format!("redis://{address}")).unwrap();
            let mut client = client.get_connection().unwrap();
            let value = "v".repeat(1_000);
            let mut kept = 0;
            let refused = loop {
                match run::<String>(&mut client, &format!("SET k{kept} {value}")) {
                    Ok(_) => kept += 1,
                    Err(error) => break error,
                }
                assert!(kept < 10_000, "the disk never fills");
            };
            let said = format!("{} {}", refused.code().unwrap(), refused.detail().unwrap());
            assert!(
                said.starts_with("OOM") && said.contains("free disk space"),
                "{said}"
            );
            assert!(kept > 0);
            for number in [0, kept - 1] {
                assert_eq!(
                    run::<String>(&mut client, &format!("GET k{number}")).unwrap(),
                    value
                );
            }
            let claimed = run::<redis::Value>(&mut client, "IDEM.CLAIM s o k LEASE 1000");
            assert_eq!(claimed.unwrap_err().code(), Some("OOM"));
            assert_eq!(run::<String>(&mut client, "PING").unwrap(), "PONG");
            disk.capacity(None);
            let begun = Instant::now();
            while let Err(error) = run::<String>(&mut client, "SET more v") {
                assert!(begun.elapsed() < LONG, "{error}");
            }
        });
    }

    #[test]
    fn after_a_failed_sync_nothing_is_written_and_what_is_known_is_answered() {
        let disk = SimulatedDisk::new();
        let store = small().open_simulated(&disk).unwrap();
        serving(&store, ServeOptions::new(), |address| {
            let client = redis::Client::open(format!("redis://{address}")).unwrap();
            let mut client = client.get_connection().unwrap();
            assert_eq!(run::<String>(&mut client, "SET known v").unwrap(), "OK");
            disk.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).sticky());
            let answers = answers(
                &address,
                b"SET a v\r\nIDEM.CLAIM s o k LEASE 1000\r\nGET known\r\nSET b v\r\n",
            );
            assert_eq!(answers.matches("-MISCONF").count(), 3, "{answers}");
            assert!(answers.contains("$1\r\nv\r\n"), "{answers}");
            let refused = run::<String>(&mut client, "SET later v").unwrap_err();
            assert_eq!(refused.code(), Some("MISCONF"));
            assert_eq!(run::<String>(&mut client, "GET known").unwrap(), "v");
        });
    }
}
