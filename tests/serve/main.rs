//! Real clients and hostile ones, against the server as a process of its own.

mod bounds;
mod differential;
mod migration;
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// The server, killed when dropped.
struct Served {
    process: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Served {
    fn start(directory: &Path, more: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_oncekey"))
            .arg("serve")
            .arg(directory)
            .args(["--tcp", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut served = Self {
            process,
            output,
            address: String::new(),
        };
        served.address = served.next_address();
        served
    }

    /// The next address that it says it listens at.
    fn next_address(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening at ");
        address.unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }

    fn client(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{}", self.address)).unwrap();
        client.get_connection().unwrap()
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        let limit = Some(Duration::from_secs(60));
        socket.set_read_timeout(limit).unwrap();
        socket.set_write_timeout(limit).unwrap();
        socket
    }

    /// Everything that the server answers to these bytes until it hangs up or we do.
    fn answers_to(&self, bytes: &[u8]) -> String {
        let mut socket = self.socket();
        socket.write_all(bytes).unwrap();
        // The server may have hung up by now.
        drop(socket.shutdown(std::net::Shutdown::Write));
        let mut answers = Vec::new();
        // A connection that is cut off hard has answered before.
        drop(socket.read_to_end(&mut answers));
        String::from_utf8_lossy(&answers).into_owned()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn run<T: redis::FromRedisValue>(
    client: &mut redis::Connection,
    words: &str,
) -> redis::RedisResult<T> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client)
}

#[test]
fn commands_answer_as_those_of_redis() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &[]);
    let mut client = served.client();
    let mut text = |words: &str| {
        let value: redis::Value = run(&mut client, words).unwrap_or_else(|error| {
            redis::Value::SimpleString(format!(
                "{} {}",
                error.code().unwrap_or("?"),
                error.detail().unwrap_or("")
            ))
        });
        match value {
            redis::Value::Nil => "nil".to_owned(),
            redis::Value::Okay => "OK".to_owned(),
            redis::Value::Int(number) => number.to_string(),
            redis::Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            redis::Value::SimpleString(text) => text,
            other => format!("{other:?}"),
        }
    };
    for (words, expected) in [
        ("SET k v NX EX 100", "OK"),
        ("SET k w NX EX 100", "nil"),
        ("SET k w NX GET", "v"),
        ("SET none w XX", "nil"),
        ("GET k", "v"),
        ("TTL k", "100"),
        ("SET k w KEEPTTL GET", "v"),
        ("TTL k", "100"),
        ("EXPIRE k 50 GT", "0"),
        ("EXPIRE k 50 LT", "1"),
        ("TTL k", "50"),
        ("EXPIRE k 60 NX", "0"),
        ("EXPIRE k 60 XX", "1"),
        ("PERSIST k", "1"),
        ("PERSIST k", "0"),
        ("TTL k", "-1"),
        ("EXPIRETIME k", "-1"),
        ("EXPIRE k 10 GT", "0"),
        ("EXPIREAT k 4102444800", "1"),
        ("EXPIRETIME k", "4102444800"),
        ("PEXPIRETIME k", "4102444800000"),
        ("STRLEN k", "1"),
        ("TYPE k", "string"),
        ("TYPE none", "none"),
        ("GETEX k PERSIST", "w"),
        ("GETDEL k", "w"),
        ("GETDEL k", "nil"),
        ("TTL k", "-2"),
        ("SETNX k a", "1"),
        ("SETNX k b", "0"),
        ("SETEX k 10 c", "OK"),
        ("PSETEX k 10000 d", "OK"),
        ("TTL k", "10"),
        ("SET k x EXAT 1", "OK"),
        ("EXISTS k", "0"),
        ("SET k x PXAT 4102444800000", "OK"),
        ("EXPIRE k -1", "1"),
        ("EXISTS k k", "0"),
        ("SET a 1", "OK"),
        ("SET b 2", "OK"),
        ("EXISTS a a b c", "3"),
        ("DEL a b c", "2"),
        ("SET k v EX 0", "ERR invalid expire time in 'set' command"),
        ("SET k v NX XX", "ERR syntax error"),
        ("SET k v EX", "ERR syntax error"),
        (
            "SET k v EX x",
            "ERR value is not an integer or out of range",
        ),
        ("SELECT 0", "OK"),
        ("SELECT 1", "ERR DB index is out of range"),
        (
            "INCR k",
            "ERR unknown command 'INCR', with args beginning with: 'k' ",
        ),
        ("GET", "ERR wrong number of arguments for 'get' command"),
    ] {
        let found = text(words);
        assert!(found.contains(expected), "{words}: {found}");
    }
}

#[test]
fn of_ten_who_set_a_new_key_one_does() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let barrier = Barrier::new(10);
    let won: Vec<u32> = thread::scope(|scope| {
        let one = || {
            let mut client = served.client();
            let mut won = 0;
            for round in 0..300 {
                barrier.wait();
                let set: Option<String> =
                    run(&mut client, &format!("SET key:{round} v NX")).unwrap();
                won += u32::from(set.is_some());
            }
            won
        };
        let threads: Vec<_> = (0..10).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(won.iter().sum::<u32>(), 300);
}

/// Each value is taken out by one, and what was set is never lost.
#[test]
fn setting_and_taking_out_at_once_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let barrier = Barrier::new(4);
    let taken: Vec<Vec<String>> = thread::scope(|scope| {
        let one = |name: usize| {
            let (served, barrier) = (&served, &barrier);
            move || {
                let mut client = served.client();
                barrier.wait();
                let mut taken = Vec::new();
                for round in 0..500 {
                    let words = format!("SET hot {name}-{round} GET");
                    taken.extend(run::<Option<String>>(&mut client, &words).unwrap());
                    taken.extend(run::<Option<String>>(&mut client, "GETDEL hot").unwrap());
                }
                taken
            }
        };
        let threads: Vec<_> = (0..4).map(|name| scope.spawn(one(name))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut all: Vec<_> = taken.into_iter().flatten().collect();
    all.extend(run::<Option<String>>(&mut served.client(), "GET hot").unwrap());
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!((count, all.len()), (2_000, 2_000));
}

#[test]
fn what_was_answered_outlives_the_server() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let served = Served::start(directory.path(), &[]);
        let answered = thread::scope(|scope| {
            let one = |name: usize| {
                let served = &served;
                move || {
                    let mut client = served.client();
                    let mut answered = Vec::new();
                    for number in 0.. {
                        let key = format!("{round}:{name}:{number}");
                        match run::<Option<String>>(&mut client, &format!("SET {key} v NX EX 1000"))
                        {
                            Ok(set) => {
                                assert!(set.is_some());
                                answered.push(key);
                            }
                            Err(_) => break,
                        }
                    }
                    answered
                }
            };
            let threads: Vec<_> = (0..4).map(|name| scope.spawn(one(name))).collect();
            thread::sleep(Duration::from_millis(300));
            let id = served.process.id().to_string();
            let killed = Command::new("kill").args(["-9", &id]).status();
            assert!(killed.unwrap().success());
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        served.kill();
        assert!(!answered.is_empty());
        let served = Served::start(directory.path(), &[]);
        let mut client = served.client();
        for key in answered {
            let set: Option<String> = run(&mut client, &format!("SET {key} w NX")).unwrap();
            assert_eq!(set, None, "{key} was answered and is gone");
        }
        served.kill();
    }
}

#[test]
fn hostile_bytes_end_their_connection_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    for (bytes, expected) in [
        (
            &b"*1000000000\r\n"[..],
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*1\r\n$99999999999\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*1\r\n$-5\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*1\r\n*1\r\n*1\r\n",
            "-ERR Protocol error: expected '$', got '*'\r\n",
        ),
        (b"*2\r\n$3\r\nGET\r\n$1\r\n", ""),
        (
            b"PING\r\n*x\r\n",
            "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
            "-ERR this is no HTTP server\r\n",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00", ""),
    ] {
        assert_eq!(
            served.answers_to(bytes),
            expected,
            "{}",
            bytes.escape_ascii()
        );
    }
    let nested = b"*1\r\n".repeat(100_000);
    assert!(served.answers_to(&nested).contains("expected '$'"));
    // Many who begin and say nothing more.
    let silent: Vec<_> = (0..500).map(|_| served.socket()).collect();
    for mut socket in &silent {
        socket.write_all(b"*1\r\n$4\r\nPI").unwrap();
    }
    assert_eq!(served.answers_to(b"PING\r\n"), "+PONG\r\n");
    drop(silent);
}

/// A million requests before the first answer is read: they are slowed down, then all answered in order.
#[test]
fn a_client_that_reads_late_gets_every_answer_in_order() {
    const REQUESTS: usize = 1_000_000;
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let mut socket = served.socket();
    let mut writer = socket.try_clone().unwrap();
    let sender = thread::spawn(move || {
        for first in (0..REQUESTS).step_by(1_000) {
            let lines: String = (first..first + 1_000)
                .map(|at| format!("ECHO {at:08}\r\n"))
                .collect();
            writer.write_all(lines.as_bytes()).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(500));
    let mut reader = BufReader::new(&mut socket);
    let mut answer = [0; 14];
    for at in 0..REQUESTS {
        reader.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *format!("$8\r\n{at:08}\r\n").as_bytes());
    }
    sender.join().unwrap();
}

/// A short request for much is refused before it is all in memory.
#[test]
fn an_answer_of_many_values_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let mut client = served.client();
    let value = vec![b'v'; 1_000_000];
    redis::cmd("SET")
        .arg("large")
        .arg(&value)
        .exec(&mut client)
        .unwrap();
    let many = |count: usize| {
        let mut command = redis::cmd("MGET");
        command.arg(vec!["large"; count]);
        command
    };
    let found: Vec<Vec<u8>> = many(8).query(&mut client).unwrap();
    assert!(found.len() == 8 && found.iter().all(|found| *found == value));
    let error = many(60_000).exec(&mut client).unwrap_err();
    assert!(error.to_string().contains("fewer keys"), "{error}");
    assert_eq!(run::<String>(&mut client, "PING").unwrap(), "PONG");
}

#[test]
fn names_of_clients_are_short_words() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &[]);
    let mut client = served.client();
    let long = "x".repeat(256);
    for name in ["two words".to_owned(), "line\n".to_owned(), long] {
        for words in [["CLIENT", "SETNAME"].as_slice(), &["HELLO", "3", "SETNAME"]] {
            let error = redis::cmd(words[0])
                .arg(&words[1..])
                .arg(&name)
                .exec(&mut client);
            assert!(error.unwrap_err().code() == Some("ERR"));
        }
    }
    run::<String>(&mut client, "CLIENT SETNAME worker-7").unwrap();
    assert_eq!(
        run::<String>(&mut client, "CLIENT GETNAME").unwrap(),
        "worker-7"
    );
}

#[test]
fn a_password_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret\n").unwrap();
    let store = directory.path().join("store");
    let served = Served::start(&store, &["--password-file", password.to_str().unwrap()]);
    let answers =
        served.answers_to(b"GET k\r\nAUTH wrong\r\nAUTH secret\r\nGET k\r\nRESET\r\nGET k\r\n");
    assert_eq!(
        answers,
        "-NOAUTH Authentication required.\r\n\
         -WRONGPASS invalid username-password pair or user is disabled.\r\n\
         +OK\r\n$-1\r\n+RESET\r\n-NOAUTH Authentication required.\r\n"
    );
    let client = redis::Client::open(format!(
        "redis://:secret@{}/?protocol=resp3",
        served.address
    ));
    let mut connection = client.unwrap().get_connection().unwrap();
    assert_eq!(run::<String>(&mut connection, "PING").unwrap(), "PONG");
}

#[test]
fn a_public_address_without_a_password_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_oncekey"))
        .arg("serve")
        .arg(directory.path())
        .args(["--tcp", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("there is no password"), "{message}");
}

#[test]
fn a_server_that_is_told_to_stop_answers_what_was_begun() {
    let directory = tempfile::tempdir().unwrap();
    let mut served = Served::start(directory.path(), &[]);
    let mut client = served.client();
    assert_eq!(run::<String>(&mut client, "SET k v").unwrap(), "OK");
    let id = served.process.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert!(served.process.wait().unwrap().success());
    let served = Served::start(directory.path(), &[]);
    assert_eq!(run::<String>(&mut served.client(), "GET k").unwrap(), "v");
}

#[test]
fn the_tools_of_redis_work() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &["--durability", "buffered"]);
    let port = served.address.rsplit(':').next().unwrap();
    let tools = [
        ("redis-cli", &["SET", "k", "v", "NX"][..], "OK"),
        ("redis-cli", &["-3", "GET", "k"], "v"),
        (
            "redis-benchmark",
            &["-t", "set,get", "-n", "2000", "-P", "16", "-q"],
            "GET",
        ),
    ];
    for (tool, arguments, expected) in tools {
        let run = Command::new(tool)
            .args(["-p", port])
            .args(arguments)
            .output();
        let Ok(output) = run else {
            let message = format!("SKIPPED {tool}: apt-get install redis-tools");
            assert!(
                std::env::var_os("ONCEKEY_REQUIRE_SERVERS").is_none(),
                "{message}"
            );
            eprintln!("{message}");
            continue;
        };
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && shown.contains(expected),
            "{tool}: {shown}"
        );
    }
}

#[test]
fn the_whole_life_of_a_key_outlives_connections_and_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), &[]);
    let claim = "IDEM.CLAIM acct pay k1 LEASE 60000";
    let fields =
        |served: &Served, words: &str| -> std::collections::HashMap<String, Option<String>> {
            run(&mut served.client(), words).unwrap()
        };
    let first = fields(&served, claim);
    assert_eq!(first["outcome"].as_deref(), Some("started"));
    let token = first["token"].clone().unwrap();
    assert_eq!(
        fields(&served, claim)["outcome"].as_deref(),
        Some("in_progress")
    );
    let run_one = |served: &Served, words: &str| run::<String>(&mut served.client(), words);
    assert_eq!(
        run_one(
            &served,
            &format!("IDEM.CHECKPOINT acct pay k1 {token} half")
        )
        .unwrap(),
        "OK"
    );
    assert_eq!(
        run_one(&served, &format!("IDEM.RENEW acct pay k1 {token}")).unwrap(),
        "OK"
    );
    assert!(
        run_one(&served, "IDEM.RENEW acct pay k1 1")
            .unwrap_err()
            .to_string()
            .contains("LEASELOST")
    );
    // A server that is killed interrupts the key; its token still completes it.
    served.kill();
    let served = Served::start(directory.path(), &[]);
    assert_eq!(
        fields(&served, "IDEM.GET acct pay k1")["state"].as_deref(),
        Some("interrupted")
    );
    let complete = format!("IDEM.COMPLETE acct pay k1 {token} paid");
    assert_eq!(run_one(&served, &complete).unwrap(), "OK");
    let done = fields(&served, claim);
    assert_eq!(done["outcome"].as_deref(), Some("completed"));
    assert_eq!(done["response"].as_deref(), Some("paid"));

    // A lease that is over: the next one takes over, with the note, and the first is shut out.
    let first = fields(&served, "IDEM.CLAIM acct pay k2 LEASE 1");
    thread::sleep(Duration::from_millis(20));
    let second = fields(&served, "IDEM.CLAIM acct pay k2 LEASE 60000");
    assert_eq!(second["outcome"].as_deref(), Some("interrupted"));
    let stale = format!(
        "IDEM.COMPLETE acct pay k2 {} x",
        first["token"].clone().unwrap()
    );
    assert!(
        run_one(&served, &stale)
            .unwrap_err()
            .to_string()
            .contains("LEASELOST")
    );
    let release = format!(
        "IDEM.RELEASE acct pay k2 {}",
        second["token"].clone().unwrap()
    );
    assert_eq!(run_one(&served, &release).unwrap(), "OK");
    assert_eq!(
        fields(&served, "IDEM.WAIT acct pay k2 50")["state"].as_deref(),
        Some("absent")
    );
    assert!(
        run_one(&served, "IDEM.GET redis x k")
            .unwrap_err()
            .to_string()
            .contains("plain values")
    );
}
