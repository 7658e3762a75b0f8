//! Files that earlier versions wrote open for ever, and say what they said then.
//!
//! Under `tests/fixtures/format-N/` lie small stores of every released version of the format, each
//! with a text that tells what its keys answer. A fixture is added and never changed or removed. To
//! add one, run this test with `ONCEKEY_WRITE_FIXTURES=1` and `--ignored`: it writes those that are
//! missing and touches none that is there. Then read the text: it is the promise.

mod support;

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oncekey::{
    AccessDenied, Claim, ClaimOptions, Durability, Fingerprint, Key, KeyState, ManualClock,
    OpenError, Options, Replay, Saved, Store, Ticket,
};
use tempfile::TempDir;

use support::kinds::{PRINCIPAL, every_kind};
use support::*;

/// When the fixtures are opened, in ms.
const OPENED_MS: u64 = START_MS + 3_600_000;
const EXPECTED: &str = "expected.txt";

fn options(clock: &ManualClock) -> Options {
    small(Durability::Sync).clock(Arc::new(clock.clone()))
}

fn open(directory: &Path) -> Result<Store, OpenError> {
    options(&ManualClock::new(OPENED_MS)).open(directory)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// All fixtures: folders that hold a text.
fn all() -> Vec<PathBuf> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        let list = fs::read_dir(path).expect("a list");
        let mut paths: Vec<_> = list.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths
    };
    let versions = folders(&fixtures());
    versions.iter().flat_map(|path| folders(path)).collect()
}

/// A copy to work with, without the text.
fn copy(fixture: &Path) -> TempDir {
    let directory = directory();
    copy_directory(fixture, directory.path());
    fs::remove_file(directory.path().join(EXPECTED)).expect("a text");
    directory
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.is_ascii() && text.len().is_multiple_of(2), "{text:?}");
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn ms_of(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_millis()
}

/// The requests that keys of fixtures stand for.
fn fingerprint(name: &str) -> Fingerprint {
    match name {
        "of" => request(),
        "builder" => Fingerprint::builder()
            .part("POST")
            .part("/v1/payments")
            .part("")
            .finish(),
        "custom" => Fingerprint::custom(200, *b"sixteen bytes ok").expect("an algorithm"),
        "none" => Fingerprint::none(),
        other => panic!("no request is called {other:?}"),
    }
}

/// Another request, of the same algorithm.
fn another(name: &str) -> Fingerprint {
    match name {
        "of" => other_request(),
        "builder" => Fingerprint::builder()
            .part("POST")
            .part("/v1/payments")
            .finish(),
        "custom" => Fingerprint::custom(200, *b"sixteen bytes no").expect("an algorithm"),
        other => panic!("no other request than {other:?}"),
    }
}

/// What a fixture is asked: the lines of its text that begin like this.
struct Asked<'a> {
    keys: Vec<(Key, &'a str, &'a str)>,
    tickets: Vec<&'a str>,
}

/// Reads lines such as `key of acct_1|POST /v1/payments|a-paid` and `ticket 6f63…`.
fn asked(text: &str) -> Asked<'_> {
    let keys = text.lines().filter_map(|line| line.strip_prefix("key "));
    let keys = keys.map(|line| {
        let (request, parts) = line.split_once(' ').expect("a request and a key");
        let parts: Vec<_> = parts.split('|').collect();
        let [scope, operation, id] = parts[..] else {
            panic!("three parts: {line}");
        };
        let key = Key::new(scope, operation, id).expect("a key");
        (key, request, line)
    });
    Asked {
        keys: keys.collect(),
        tickets: text
            .lines()
            .filter_map(|line| line.strip_prefix("ticket "))
            .collect(),
    }
}

fn describe_replay(saved: &Saved, text: &mut String) {
    let (whose, replay) = match saved.by_scope() {
        Ok(replay) => (String::from("the scope"), replay),
        Err(AccessDenied::PrincipalRequired) => (
            String::from(PRINCIPAL),
            saved.for_principal(PRINCIPAL).expect("the principal's"),
        ),
        Err(other) => panic!("{other:?}"),
    };
    let response = match &replay {
        Replay::NotStored => String::from("response not stored"),
        Replay::Response(response) if response.len() <= 64 => {
            format!("response of {} bytes: {}", response.len(), hex(response))
        }
        Replay::Response(response) => format!(
            "response of {} bytes, CRC-32 {:08x}",
            response.len(),
            crc32fast::hash(response)
        ),
    };
    writeln!(
        text,
        "    completed: attempt {}, token {:#x}, sequence {:#x}\n    created {}, completed {}, \
         expires {}\n    for {whose}: {response}",
        saved.attempt(),
        saved.token().as_u64(),
        saved.sequence(),
        ms_of(saved.created_at()),
        ms_of(saved.completed_at()),
        ms_of(saved.expires_at()),
    )
    .expect("a text");
}

/// What a store says of the keys and tickets asked for. Takes interrupted keys over to see their
/// notes, and drops them again.
fn describe(store: &Store, asked: &Asked<'_>) -> String {
    let report = store.recovery_report();
    let mut text = format!(
        "format 1\nopened at {OPENED_MS}: {}, {} records in {} segments, {} interrupted, {} holes, \
         torn tail: {}\n",
        if report.clean { "clean" } else { "recovered" },
        report.records,
        report.segments,
        report.interrupted,
        report.holes,
        report.torn_tail.is_some(),
    );
    assert!(report.losses.is_empty() && report.meta_slot.is_none() && !report.meta_rebuilt);
    for (key, request, line) in &asked.keys {
        writeln!(text, "key {line}").expect("a text");
        match store.get(key).expect("an answer") {
            KeyState::Absent => text.push_str("    absent\n"),
            KeyState::Completed(saved) => {
                describe_replay(&saved, &mut text);
                let claim = store.claim(key, fingerprint(request)).expect("a claim");
                assert_eq!(completed(claim).sequence(), saved.sequence());
            }
            KeyState::Interrupted {
                attempt,
                token,
                since,
                ..
            } => {
                let claim = store.claim(key, fingerprint(request)).expect("a claim");
                let operation = interrupted(claim);
                let previous = operation.previous().expect("an attempt before");
                assert_eq!(previous.attempt, attempt);
                writeln!(
                    text,
                    "    interrupted: attempt {attempt}, token {:#x}, since {}\n    created {}, \
                     note: {}\n    downstream \"charge\": {}\n    downstream \"\": {}",
                    token.as_u64(),
                    ms_of(since),
                    ms_of(operation.created_at()),
                    operation
                        .last_checkpoint()
                        .map_or(String::from("none"), hex),
                    operation.downstream_key("charge"),
                    operation.downstream_key(""),
                )
                .expect("a text");
            }
            other => panic!("{key:?}: {other:?}"),
        }
        if *request != "none" && !matches!(store.get(key), Ok(KeyState::Absent)) {
            mismatch(store.claim(key, another(request)).expect("a claim"));
        }
    }
    for encoded in &asked.tickets {
        let ticket = Ticket::decode(&unhex(encoded)).expect("a ticket");
        assert_eq!(hex(ticket.encode()), *encoded);
        writeln!(
            text,
            "ticket {encoded}\n    of {}, attempt {}",
            ticket.key().display_raw(),
            ticket.attempt()
        )
        .expect("a text");
    }
    text
}

#[test]
fn stores_of_every_released_format_say_what_they_said() {
    let fixtures = all();
    assert!(fixtures.len() >= 5, "{fixtures:?}");
    for fixture in fixtures {
        let expected = fs::read_to_string(fixture.join(EXPECTED)).expect("a text");
        let asked = asked(&expected);
        let directory = copy(&fixture);
        let store = open(directory.path()).expect("opens");
        assert_eq!(describe(&store, &asked), expected, "{fixture:?}");
        store.close().expect("closes");
    }
}

#[test]
fn tickets_of_every_released_format_are_resumed() {
    let mut resumed = 0;
    for fixture in all() {
        let expected = fs::read_to_string(fixture.join(EXPECTED)).expect("a text");
        let directory = copy(&fixture);
        let store = open(directory.path()).expect("opens");
        for encoded in asked(&expected).tickets {
            let ticket = Ticket::decode(&unhex(encoded)).expect("a ticket");
            let operation = interrupted(store.resume(&ticket).expect("resumed"));
            assert_eq!(operation.key(), ticket.key());
            assert_eq!(operation.attempt(), ticket.attempt() + 1);
            operation.complete(b"resumed").expect("completes");
            resumed += 1;
        }
    }
    assert!(resumed >= 2, "{resumed}");
}

#[test]
fn stores_of_every_released_format_can_be_written_to() {
    for fixture in all() {
        let expected = fs::read_to_string(fixture.join(EXPECTED)).expect("a text");
        let asked = asked(&expected);
        let directory = copy(&fixture);
        let store = open(directory.path()).expect("opens");
        finish(&store, &key("new"), b"new");
        let mut ended = Vec::new();
        for (key, request, _) in &asked.keys {
            let before = store.get(key).expect("an answer");
            let claim = store.claim(key, fingerprint(request)).expect("a claim");
            let attempt = match (&before, claim) {
                (KeyState::Completed(saved), Claim::Completed(_)) => saved.attempt(),
                (KeyState::Absent, Claim::Started(operation)) => {
                    operation.complete(b"more").expect("completes").attempt()
                }
                (KeyState::Interrupted { .. }, Claim::Interrupted(operation)) => {
                    operation.complete(b"more").expect("completes").attempt()
                }
                other => panic!("{fixture:?}: {other:?}"),
            };
            ended.push(attempt);
        }
        // Enough for a segment of its own.
        for number in 0..20 {
            finish(&store, &key(&format!("more-{number}")), vec![7; 5_000]);
        }
        store.close().expect("closes");
        drop(store);
        let store = open(directory.path()).expect("opens again");
        assert!(store.recovery_report().clean, "{fixture:?}");
        for ((key, request, _), attempt) in asked.keys.iter().zip(ended) {
            let claim = store.claim(key, fingerprint(request)).expect("a claim");
            assert_eq!(completed(claim).attempt(), attempt, "{fixture:?}");
        }
        completed(store.claim(&key("new"), request()).expect("a claim"));
        completed(store.claim(&key("more-19"), request()).expect("a claim"));
    }
}

/// What a later version writes is refused by name, and stays as it is.
#[test]
fn a_page_of_a_later_format_is_refused_and_nothing_is_changed() {
    const PAGE: usize = 4_096;
    for fixture in all() {
        let mut names = contents(copy(&fixture).path());
        // A side-car that cannot be read is one that is made again.
        names.retain(|(name, ..)| !name.ends_with(".idx"));
        let pages = names.iter().flat_map(|(name, ..)| {
            let count = if name == "META" { 2 } else { 1 };
            (0..count).map(move |page| (name, page * PAGE))
        });
        for (name, at) in pages {
            let directory = copy(&fixture);
            let file = directory.path().join(name);
            let mut bytes = fs::read(&file).expect("read");
            let page = &mut bytes[at..at + PAGE];
            page[8..12].copy_from_slice(&2_u32.to_le_bytes());
            // Something that this version knows nothing of.
            page[400..408].copy_from_slice(&u64::MAX.to_le_bytes());
            page[12..16].fill(0);
            let crc = crc32fast::hash(&page[..512]);
            page[12..16].copy_from_slice(&crc.to_le_bytes());
            fs::write(&file, &bytes).expect("written");
            let before = contents(directory.path());
            match open(directory.path()) {
                Err(OpenError::FormatVersion {
                    file: named,
                    found: 2,
                    supported: 1,
                }) => assert_eq!(named, file),
                other => panic!("{name}, byte {at}: {other:?}"),
            }
            assert_eq!(contents(directory.path()), before);
        }
    }
}

/// A ticket holds algorithm and digest: what they were for these requests they are for ever.
#[test]
fn fingerprints_never_change_under_their_number() {
    let golden = [
        ("of", "017cbb460b7519786fe7d7c7f135334b5e"),
        ("builder", "0222535dde9a161e086c06f27d629822b8"),
        ("custom", "c86b6f207365747962206e656574786973"),
        ("none", "0000000000000000000000000000000000"),
    ];
    let (_directory, store) = buffered();
    for (name, digest) in golden {
        let claim = store
            .claim_with(&key(name), fingerprint(name), lease(60_000))
            .expect("a claim");
        let ticket = started(claim).into_ticket().expect("a ticket").encode();
        assert_eq!(hex(&ticket[..4]), hex("oct1"));
        assert_eq!(hex(&ticket[20..37]), digest, "{name}");
    }
}

/// Keys of all fingerprints, and long and odd ones.
fn odd_keys(store: &Store) -> Vec<(&'static str, Key)> {
    let mut keys = Vec::new();
    for (number, request) in ["builder", "custom", "none"].into_iter().enumerate() {
        let done = key(&format!("{request}-done"));
        let claim = store.claim(&done, fingerprint(request)).expect("a claim");
        started(claim)
            .complete(vec![number as u8; number])
            .expect("completes");
        let open = Key::new("", "", format!("{request}-open")).expect("a key");
        drop(started(
            store.claim(&open, fingerprint(request)).expect("a claim"),
        ));
        keys.extend([(request, done), (request, open)]);
    }
    let long = Key::new("s".repeat(255), "ö".repeat(100), "i".repeat(255)).expect("a key");
    finish(store, &long, b"long");
    keys.push(("of", long));
    keys
}

/// Writes one fixture unless it is there.
fn write_fixture(name: &str, make: impl FnOnce(&Path, &ManualClock) -> (TempDir, String)) {
    let target = fixtures().join("format-1").join(name);
    if target.exists() {
        println!("{name} is there and stays as it is");
        return;
    }
    let (directory, asked_for) = make(directory().path(), &ManualClock::new(START_MS));
    fs::create_dir_all(&target).expect("made");
    copy_directory(directory.path(), &target);
    // The process that holds the lock of a killed store is gone.
    fs::remove_file(target.join("LOCK")).expect("a lock");
    let store = open(directory.path()).expect("opens");
    fs::write(target.join(EXPECTED), describe(&store, &asked(&asked_for))).expect("written");
    println!("{name} was written");
}

fn lines(keys: impl IntoIterator<Item = (&'static str, Key)>, tickets: &[Ticket]) -> String {
    let mut text = String::new();
    for (request, key) in keys {
        let part = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a text");
        let (scope, operation, id) = (part(key.scope()), part(key.operation()), part(key.id()));
        writeln!(text, "key {request} {scope}|{operation}|{id}").expect("a text");
    }
    for ticket in tickets {
        writeln!(text, "ticket {}", hex(ticket.encode())).expect("a text");
    }
    text
}

/// The keys of [`every_kind`], and one that was never used.
fn kinds(prefix: &str) -> Vec<(&'static str, Key)> {
    let names = [
        "paid",
        "empty",
        "large",
        "silent",
        "principal",
        "expired",
        "pending",
        "released",
        "forgotten",
        "overtaken",
        "ticket-done",
        "ticket-out",
        "never",
    ];
    names
        .iter()
        .map(|name| ("of", key(&format!("{prefix}-{name}"))))
        .collect()
}

/// Not a test: makes the fixtures of this version.
#[test]
#[ignore = "writes fixtures, with ONCEKEY_WRITE_FIXTURES=1"]
fn write_the_fixtures_that_are_missing() {
    if env::var_os("ONCEKEY_WRITE_FIXTURES").is_none_or(|value| value != "1") {
        return;
    }
    write_fixture("closed", |path, clock| {
        let store = prepared(options(clock).open(path).expect("a store"));
        let ticket = every_kind(&store, clock, "a");
        let keys: Vec<_> = kinds("a").into_iter().chain(odd_keys(&store)).collect();
        store.close().expect("closes");
        drop(store);
        clock.advance(ms(1_000));
        let store = prepared(options(clock).open(path).expect("a store"));
        finish(&store, &key("second-life"), b"second");
        store.close().expect("closes");
        let files = directory();
        copy_directory(path, files.path());
        let second = ("of", key("second-life"));
        (files, lines(keys.into_iter().chain([second]), &[ticket]))
    });
    write_fixture("killed", |path, clock| {
        let store = prepared(options(clock).open(path).expect("a store"));
        let mut keys = odd_keys(&store);
        store.close().expect("closes");
        drop(store);
        clock.advance(ms(1_000));
        let store = prepared(options(clock).open(path).expect("a store"));
        let ticket = every_kind(&store, clock, "b");
        keys.extend(kinds("b"));
        let buffered = ClaimOptions::new().durability(Durability::Buffered);
        let held = store.claim_with(&key("held"), request(), buffered);
        let _held = started(held.expect("a claim"));
        keys.push(("of", key("held")));
        (killed(&store), lines(keys, &[ticket]))
    });
    write_fixture("segments", |path, clock| {
        let store = prepared(options(clock).open(path).expect("a store"));
        let mut keys = Vec::new();
        for number in 0..11_u8 {
            let key = key(&format!("segment-{number}"));
            finish(&store, &key, vec![number; 12_000 + usize::from(number)]);
            clock.advance(ms(7));
            keys.push(("of", key));
        }
        store.close().expect("closes");
        let files = directory();
        copy_directory(path, files.path());
        (files, lines(keys, &[]))
    });
    write_fixture("compacted", |path, clock| {
        let options = || options(clock).maintenance(false);
        let store = prepared(options().open(path).expect("a store"));
        let mut keys = kinds("d");
        let ticket = every_kind(&store, clock, "d");
        keys.extend(odd_keys(&store));
        let removed = key("removed");
        finish(&store, &removed, b"a copy of it is left");
        keys.push(("of", removed.clone()));
        // Passes that copy results, write pending keys again, and keep a removal.
        for round in 0..3 {
            for number in 0..10 {
                let filler = key(&format!("filler-{round}-{number}"));
                let short = ClaimOptions::new().retention(ms(1_000));
                let claim = store.claim_with(&filler, request(), short);
                let operation = started(claim.expect("a claim"));
                operation.complete(vec![7; 12_000]).expect("completes");
            }
            clock.advance(ms(2_000));
            store.maintain().expect("a pass");
            if round == 0 {
                assert!(
                    store
                        .forget(&removed, oncekey::Forget::IfCompleted)
                        .expect("removed")
                );
            }
        }
        let stats = store.stats();
        assert!(stats.segments_compacted >= 2, "{stats:?}");
        store.close().expect("closes");
        drop(store);
        let files = directory();
        copy_directory(path, files.path());
        // What it holds means nothing.
        fs::remove_file(files.path().join("SPARE")).expect("room that was set aside");
        (files, lines(keys, &[ticket]))
    });
    write_fixture("restored", |path, clock| {
        let store = prepared(options(clock).open(path).expect("a store"));
        let ticket = every_kind(&store, clock, "c");
        let copy = killed(&store);
        drop(store);
        clock.advance(ms(1_000));
        let restored = options(clock).restored(true).open(copy.path());
        let store = prepared(restored.expect("a store"));
        finish(&store, &key("after-restore"), b"restored");
        store.close().expect("closes");
        drop(store);
        let after = ("of", key("after-restore"));
        (
            copy,
            lines(kinds("c").into_iter().chain([after]), &[ticket]),
        )
    });
}
