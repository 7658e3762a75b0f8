//! Whatever is wrong ends in one line, its exit code and a whole store.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::world::{Place, complete, good, interrupt, open, run, tool};

fn filled(place: &Place) -> String {
    let store = place.store();
    for number in 0..50 {
        complete(&store, format!("k{number}"), vec![b'r'; 4_000]);
    }
    store.close().expect("closed");
    place.text("store")
}

fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("a list")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            (path.display().to_string(), fs::read(&path).expect("read"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn what_is_no_store_is_left_alone() {
    let place = Place::new();
    let (empty, photos, file) = (
        place.path("empty"),
        place.path("photos"),
        place.path("file"),
    );
    fs::create_dir(&empty).expect("made");
    fs::create_dir(&photos).expect("made");
    fs::write(photos.join("photo.jpg"), "").expect("written");
    fs::write(&file, "").expect("written");
    for command in [
        "stats",
        "list",
        "interrupted",
        "pending",
        "verify",
        "export",
        "salvage",
        "compact",
    ] {
        for (path, says) in [
            ("empty", "no store"),
            ("missing", "does not exist"),
            ("file", "file"),
        ] {
            run(&[command, &place.text(path)]).fails(6, says);
        }
        run(&[command, &place.text("photos")]).fails(6, "photos");
    }
    run(&["init", &place.text("photos")]).fails(6, "photo.jpg");
    assert!(contents(&empty).is_empty() && contents(&photos).len() == 1);
    assert!(!place.path("missing").exists());
}

/// The checksum of the page as `docs/format.md` has it.
fn page_checksum(page: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&page[..12]);
    hasher.update(&[0; 4]);
    hasher.update(&page[16..512]);
    hasher.finalize()
}

#[test]
fn a_newer_format_is_named() {
    let place = Place::new();
    let path = filled(&place);
    let meta = place.path("store").join("META");
    let mut bytes = fs::read(&meta).expect("META");
    for slot in bytes.chunks_exact_mut(4_096) {
        slot[8] = 9;
        let crc = page_checksum(slot);
        slot[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&meta, &bytes).expect("written");
    for command in ["stats", "verify", "salvage", "compact"] {
        run(&[command, &path]).fails(6, "format version 9");
    }
    assert_eq!(fs::read(&meta).expect("META"), bytes);
}

#[test]
fn damage_is_found_told_and_salvaged() {
    let place = Place::new();
    let path = filled(&place);
    let segment = fs::read_dir(&path)
        .expect("a list")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .min()
        .expect("a segment");
    let mut bytes = fs::read(&segment).expect("read");
    bytes[5_000] ^= 0x10;
    fs::write(&segment, &bytes).expect("written");
    let before = contents(Path::new(&path));

    let verified = run(&["--json", "verify", &path]);
    verified.fails(5, "oncekey salvage");
    let lines = verified.json();
    let name = segment
        .file_name()
        .and_then(|name| name.to_str())
        .expect("text");
    assert_eq!(
        (lines[0]["kind"].as_str(), lines[0]["file"].as_str()),
        (Some("corruption"), Some(name))
    );
    let offset = lines[0]["offset"].as_u64().expect("a number");
    assert!(offset <= 5_000 && offset + lines[0]["bytes"].as_u64().expect("a number") > 5_000);
    assert_eq!(lines[0]["probably"]["id"], "k0");
    assert_eq!(
        lines[0]["records_at_most"].as_u64(),
        Some(lines[0]["bytes"].as_u64().unwrap().div_ceil(128))
    );
    run(&["export", &path]).fails(5, "oncekey verify");
    for command in ["stats", "list", "interrupted", "pending"] {
        run(&[command, &path]).fails(5, "oncekey verify");
    }
    run(&["get", &path, "k7", "--scope", "acct", "--operation", "pay"]).fails(5, "may be missing");
    assert_eq!(
        contents(Path::new(&path)),
        before,
        "who reads changes nothing"
    );

    let salvaged = good(&["--json", "salvage", &path]).json();
    assert_eq!(
        (&salvaged[0]["kind"], &salvaged[0]["file"]),
        (&"lost".into(), &name.into())
    );
    good(&["verify", &path]);
    assert_eq!(good(&["list", &path]).text().lines().count(), 50);
}

#[test]
fn bad_side_cars_and_one_copy_of_meta_are_told_and_harmless() {
    let place = Place::new();
    let path = filled(&place);
    let side_car = contents(Path::new(&path))
        .into_iter()
        .find(|(name, _)| name.ends_with(".idx"))
        .expect("a side-car");
    let mut bytes = side_car.1;
    bytes[100] ^= 1;
    fs::write(&side_car.0, &bytes).expect("written");
    let meta = Path::new(&path).join("META");
    let mut bytes = fs::read(&meta).expect("META");
    bytes[20] ^= 1;
    fs::write(&meta, &bytes).expect("written");
    let verified = run(&["--json", "verify", &path]);
    verified.fails(5, "the store opens and repairs it");
    let kinds: Vec<_> = verified
        .json()
        .iter()
        .map(|line| line["kind"].clone())
        .collect();
    assert_eq!(kinds, ["meta_copy", "side_car", "summary"]);
    open(Path::new(&path)).close().expect("closed");
    good(&["verify", &path]);
}

#[test]
fn a_store_in_use_is_told_by_what_writes() {
    let place = Place::new();
    let path = filled(&place);
    let store = place.store();
    let copy = place.text("copy");
    let file = place.text("lines");
    fs::write(&file, "").expect("written");
    for arguments in [
        &["forget", &path, "k1"][..],
        &["release", &path, "k1"],
        &["salvage", &path],
        &["compact", &path],
        &["snapshot", &path, &copy],
        &["import", &path, &file],
        &["init", &path],
        &["fill", &path],
    ] {
        run(arguments).fails(4, "is in use");
    }
    assert!(!Path::new(&copy).exists());
    store.close().expect("closed");
}

#[test]
fn bad_lines_end_an_import_and_keep_what_came_before() {
    let place = Place::new();
    let path = filled(&place);
    let mut lines = good(&["export", &path]).text();
    let copy = place.text("copy");
    good(&["init", &copy]);
    let file = place.text("lines");
    for (bad, says) in [
        ("nonsense", "not a line of an export"),
        ("{}", "line 51"),
        (
            r#"{"id":"x","fingerprint":"7","state":"completed"}"#,
            "fingerprint",
        ),
        (
            r#"{"id_hex":"7","fingerprint":"none","state":"completed"}"#,
            "hexadecimal",
        ),
        (r#"{"id":"x","fingerprint":"none","state":"odd"}"#, "state"),
        (
            r#"{"id":"x","fingerprint":"none","state":"completed"}"#,
            "expires_ms",
        ),
        (
            r#"{"id":"x","fingerprint":"none","state":"completed","expires_ms":18446744073709551615}"#,
            "expires_ms",
        ),
    ] {
        fs::write(&file, format!("{lines}{bad}\n")).expect("written");
        run(&["import", &copy, &file]).fails(1, says);
    }
    assert_eq!(good(&["list", &copy]).text().lines().count(), 50);
    lines.truncate(lines.len() / 2);
    fs::write(&file, &lines).expect("written");
    run(&["import", &copy, &file]).fails(1, "can be repeated");
    run(&["import", &copy, &place.text("missing")]).fails(1, "missing");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let place = Place::new();
    let path = place.text("many");
    good(&["fill", &path, "--keys", "20000"]);
    for command in ["list", "export"] {
        let mut child = tool()
            .args([command, &path])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut first).expect("a line");
        drop(lines);
        let status = child.wait().expect("it ends");
        let mut err = String::new();
        child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut err)
            .expect("text");
        assert_eq!(
            (status.code(), err.lines().count()),
            (Some(141), 1),
            "{err}"
        );
        assert!(err.contains("went away"), "{err}");
    }
}

#[test]
fn a_signal_in_the_middle_leaves_a_whole_store() {
    let place = Place::new();
    let path = filled(&place);
    let lines = good(&["export", &path]).out;
    let copy = place.text("copy");
    good(&["init", &copy]);
    let mut child = tool()
        .args(["import", &copy, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(&lines).expect("written");
    input.flush().expect("written");
    place.until_opened("copy");
    interrupt(&child);
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), err.as_ref()),
        (Some(130), "oncekey: stopped; the store is whole\n")
    );
    good(&["verify", &copy]);
}

#[test]
fn without_the_right_to_write_a_store_can_be_looked_at() {
    let place = Place::new();
    let path = filled(&place);
    for (name, _) in contents(Path::new(&path)) {
        fs::set_permissions(name, fs::Permissions::from_mode(0o400)).expect("changed");
    }
    good(&["verify", &path]);
    assert_eq!(good(&["list", &path]).text().lines().count(), 50);
}

#[test]
fn a_full_device_is_told() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let place = Place::new();
    let path = filled(&place);
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("opened");
    let output = tool()
        .args(["export", &path])
        .stdout(full)
        .output()
        .expect("it runs");
    crate::world::Run::from(output).fails(1, "standard output");
}

#[test]
fn a_wrong_command_line_is_told() {
    assert_eq!(run(&["nonsense"]).code, Some(2));
    assert_eq!(run(&["list"]).code, Some(2));
}

#[test]
fn what_a_killed_process_left_is_no_damage() {
    let place = Place::new();
    let path = place.text("killed");
    let mut child = tool()
        .args(["fill", &path, "--keys", "100000000", "--interrupted", "3"])
        .spawn()
        .expect("it runs");
    let many = |path: &str| {
        let seen = run(&["list", path, "--scope", "tenant-0"]);
        seen.code == Some(0) && seen.out.len() > 10_000
    };
    while !many(&path) {
        assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    }
    child.kill().expect("killed");
    child.wait().expect("it ended");
    let before = contents(Path::new(&path));
    good(&["verify", &path]);
    // Nobody has opened it since, so nobody has said that the owners are gone.
    assert!(good(&["pending", &path]).text().lines().count() >= 3);
    assert_eq!(
        contents(Path::new(&path)),
        before,
        "who reads changes nothing"
    );
    good(&["compact", &path]);
    assert!(good(&["pending", &path]).out.is_empty());
    assert!(good(&["interrupted", &path]).text().lines().count() >= 3);
}
