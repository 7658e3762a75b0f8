//! Every command that meets a store or a server, and every bad input: one clear line, the right code,
//! and the store is whole.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::world::{Place, complete, good, interrupt, run, tool};

/// A server with keys and a password, killed when dropped.
struct Source {
    process: Child,
    address: String,
}

impl Source {
    fn start(place: &Place, keys: usize) -> Self {
        let password = place.path("password");
        fs::write(&password, "secret\n").expect("written");
        let mut process = tool()
            .args(["serve", &place.text("source"), "--tcp", "127.0.0.1:0"])
            .args(["--durability", "buffered", "--password-file"])
            .arg(&password)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let address = line
            .trim()
            .strip_prefix("listening at ")
            .expect("an address");
        let source = Self {
            process,
            address: address.to_owned(),
        };
        let mut socket = TcpStream::connect(&source.address).expect("connected");
        let mut requests = b"AUTH secret\r\n".to_vec();
        for number in 0..keys {
            requests.extend_from_slice(format!("SET k{number} v{number}\r\n").as_bytes());
        }
        requests.extend_from_slice(b"QUIT\r\n");
        let mut reading = socket.try_clone().expect("a socket");
        let answers = std::thread::spawn(move || {
            let mut answers = String::new();
            reading.read_to_string(&mut answers).expect("answers");
            answers.matches("+OK").count()
        });
        socket.write_all(&requests).expect("sent");
        assert_eq!(answers.join().expect("no panic"), keys + 2);
        source
    }

    fn url(&self, password: &str) -> String {
        format!("redis://:{password}@{}", self.address)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A store with one result, closed.
fn filled(place: &Place) -> String {
    let store = place.store();
    complete(&store, "k1", "done");
    store.close().expect("closed");
    place.text("store")
}

/// An address that nobody listens at.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    format!("redis://{address}")
}

#[test]
fn a_server_that_is_not_there_or_does_not_let_us_in_is_told() {
    let place = Place::new();
    let path = filled(&place);
    let before = good(&["export", &path]).out;
    let source = Source::start(&place, 3);
    let (away, wrong) = (nowhere(), source.url("secre"));
    for (url, code, says) in [
        (away.as_str(), 1, "refused"),
        (wrong.as_str(), 1, "authentication failed"),
        ("http://127.0.0.1", 2, "a URL is redis://"),
        ("redis://127.0.0.1:x", 2, "a URL is redis://"),
        ("", 2, "a URL is redis://"),
    ] {
        run(&["import", "redis", url, "--store", &path]).fails(code, says);
        run(&["export", "redis", url, "--store", &path]).fails(code, says);
    }
    // One that hangs up in the middle of its first answer.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let broken = format!("redis://{}", listener.local_addr().expect("bound"));
    let hanging_up = std::thread::spawn(move || {
        for socket in listener.incoming().take(2).flatten() {
            let mut socket = socket;
            drop(socket.read(&mut [0; 64]));
            drop(socket.write_all(b"$10\r\nabc"));
        }
    });
    for command in ["import", "export"] {
        run(&[command, "redis", &broken, "--store", &path]).fails(1, "Redis: ");
    }
    hanging_up.join().expect("no panic");
    good(&["verify", &path]);
    assert_eq!(good(&["export", &path]).out, before, "nothing was changed");
    good(&["import", "redis", &source.url("secret"), "--store", &path]);
    good(&["verify", &path]);
}

#[test]
fn a_directory_that_is_no_store_or_is_in_use_is_told_by_what_speaks_to_servers() {
    let place = Place::new();
    let source = Source::start(&place, 3);
    let url = source.url("secret");
    let (photos, file) = (place.path("photos"), place.path("file"));
    fs::create_dir(&photos).expect("made");
    fs::write(photos.join("photo.jpg"), "").expect("written");
    fs::write(&file, "").expect("written");
    let photos = place.text("photos");
    for arguments in [
        &["import", "redis", &url, "--store", &photos][..],
        &["export", "redis", &url, "--store", &photos],
        &["serve", &photos, "--tcp", "127.0.0.1:0"],
        &["serve", &place.text("file"), "--tcp", "127.0.0.1:0"],
    ] {
        run(arguments).fails(6, "");
    }
    run(&["export", "redis", &url, "--store", &place.text("missing")]).fails(6, "does not exist");
    assert!(!place.path("missing").exists());
    assert_eq!(fs::read_dir(&photos).expect("there").count(), 1);

    let path = filled(&place);
    let store = place.store();
    for arguments in [
        &["import", "redis", &url, "--store", &path][..],
        &["export", "redis", &url, "--store", &path],
        &["serve", &path, "--tcp", "127.0.0.1:0"],
    ] {
        run(arguments).fails(4, "is in use");
    }
    store.close().expect("closed");

    // Damage in the middle of what was written.
    let store = place.store();
    for number in 0..3_000 {
        complete(&store, format!("n{number}"), "x".repeat(50));
    }
    store.close().expect("closed");
    let segments = fs::read_dir(&path).expect("there").flatten();
    let mut segments: Vec<_> = segments
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    let mut bytes = fs::read(&segments[0]).expect("read");
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte ^= 0x55;
    }
    fs::write(&segments[0], &bytes).expect("written");
    let whole = |path: &std::path::Path| fs::read(path).expect("read");
    // It is met by whoever reads that far, and at the open where everything has to be read.
    run(&["export", "redis", &url, "--store", &path]).fails(5, "oncekey verify");
    for entry in fs::read_dir(&path).expect("there").flatten() {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "idx")
        {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
    for arguments in [
        &["export", "redis", &url, "--store", &path][..],
        &["import", "redis", &url, "--store", &path],
        &["serve", &path, "--tcp", "127.0.0.1:0"],
        &["compact", &path],
        &["forget", &path, "n1"],
    ] {
        run(arguments).fails(5, "oncekey verify");
    }
    assert_eq!(
        whole(&segments[0]),
        bytes,
        "what is damaged is left as it is"
    );
}

#[test]
fn a_signal_in_the_middle_of_an_import_from_redis_leaves_a_store_that_goes_on() {
    let place = Place::new();
    let source = Source::start(&place, 30_000);
    let path = place.text("copy");
    let url = source.url("secret");
    good(&["init", &path]);
    let child = tool()
        .args(["import", "redis", &url, "--store", &path])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    place.until_opened("copy");
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let cursor = err
        .split("--cursor ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let cursor = cursor.unwrap_or_else(|| panic!("{err}")).to_owned();
    good(&["verify", &path]);
    let went_on = good(&[
        "import", "redis", &url, "--store", &path, "--cursor", &cursor,
    ]);
    assert!(
        went_on.text().contains("30000 compared: 0 missing"),
        "{}",
        went_on.text()
    );
}

#[test]
fn a_reader_of_the_report_that_went_away_is_told() {
    let place = Place::new();
    let source = Source::start(&place, 3);
    let path = filled(&place);
    let url = source.url("secret");
    for arguments in [
        &["import", "redis", &url, "--store", &path][..],
        &[
            "export", "redis", &url, "--store", &path, "--prefix", "back:",
        ],
        &["compact", &path],
        &["snapshot", &path, &place.text("snapshot")],
        &["salvage", &path],
        &["stats", &path],
        &["get", &path, "k1", "--scope", "acct", "--operation", "pay"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = tool()
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let output = child.wait_with_output().expect("it ends");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{arguments:?}: {err}");
    }
    good(&["verify", &path]);
}

#[test]
fn long_work_shows_that_it_goes_on_at_a_terminal_and_nowhere_else() {
    let place = Place::new();
    let path = filled(&place);
    let snapshot = place.text("snapshot");
    for (arguments, word) in [
        (vec!["compact", &path], "compacting"),
        (vec!["salvage", &path], "salvaging"),
        (vec!["snapshot", &path, &snapshot], "copying"),
    ] {
        let command = format!("{} {}", env!("CARGO_BIN_EXE_oncekey"), arguments.join(" "));
        let terminal = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output();
        let Ok(terminal) = terminal else {
            eprintln!("SKIPPED: apt-get install bsdutils");
            return;
        };
        let shown = String::from_utf8_lossy(&terminal.stdout).into_owned();
        assert!(terminal.status.success() && shown.contains(word), "{shown}");
    }
    // Which `good` checks too: nothing stands on standard error.
    good(&["compact", &path]);
}
