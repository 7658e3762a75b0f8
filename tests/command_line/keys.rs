//! Each command on a store that nobody has open.

use oncekey::{KeyState, Replay};
use serde_json::json;

use crate::world::{Place, complete, good, key, open, run, start};

const KEY: [&str; 4] = ["--scope", "acct", "--operation", "pay"];

/// A store with a completed key, an interrupted one with a note, and a released one.
fn small() -> (Place, String) {
    let place = Place::new();
    let store = place.store();
    complete(&store, "done", "paid");
    let mut cut_off = start(&store, &key("cut"));
    cut_off.checkpoint("asked").expect("noted");
    drop(cut_off);
    start(&store, &key("free")).release().expect("released");
    store.close().expect("closed");
    let path = place.text("store");
    (place, path)
}

#[test]
fn stats_and_lists_tell_the_states() {
    let (_place, path) = small();
    let stats = &good(&["--json", "stats", &path]).json()[0];
    assert_eq!(
        stats["keys"],
        json!({"completed": 1, "interrupted": 1, "pending": 0, "expired": 0, "released": 1,
            "forgotten": 0})
    );
    assert_eq!(stats["response_bytes"], 4);
    assert_eq!(stats["seen"]["is_closed"], true);
    assert!(good(&["stats", &path]).text().contains("interrupted"));

    let listed = |arguments: &[&str]| {
        let all = [&["--json", "list", &path], arguments].concat();
        let mut ids: Vec<_> = good(&all)
            .json()
            .iter()
            .map(|line| line["id"].as_str().expect("text").to_owned())
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(&[]), ["cut", "done"]);
    assert_eq!(
        listed(&["--state", "released", "--state", "completed"]),
        ["done", "free"]
    );
    assert_eq!(listed(&["--scope", "other"]), [""; 0]);
    assert_eq!(listed(&["--older-than", "3600"]), [""; 0]);
    assert_eq!(listed(&["--newer-than", "3600"]), ["cut", "done"]);
    let interrupted = good(&["--json", "interrupted", &path]).json();
    assert_eq!(
        (interrupted.len(), &interrupted[0]["checkpoint"]),
        (1, &json!("asked"))
    );
    assert!(good(&["pending", &path]).out.is_empty());
    let text = good(&["interrupted", &path]).text();
    assert!(
        text.starts_with("interrupted acct/pay/cut (attempt 1"),
        "{text}"
    );
}

#[test]
fn get_tells_a_whole_life_and_the_body() {
    let (_place, path) = small();
    let get = |id: &str, more: &[&str]| run(&[&["get", &path, id], &KEY[..], more].concat());
    let life = get("done", &["--json", "--body"]).json();
    let events: Vec<_> = life.iter().map(|line| &line["event"]).collect();
    assert_eq!(events, ["claimed", "completed"]);
    assert_eq!(
        (&life[1]["response"], &life[1]["state"]),
        (&json!("paid"), &json!("completed"))
    );
    assert_eq!(life[0].get("state"), None);
    assert_eq!(get("done", &["--body"]).out, b"paid");
    let events: Vec<_> = get("cut", &["--json"])
        .json()
        .iter()
        .map(|line| line["event"].clone())
        .collect();
    assert_eq!(events, ["claimed", "checkpoint"]);
    assert!(get("cut", &[]).text().contains("checkpoint \"asked\""));
    get("cut", &["--body"]).fails(3, "no stored response");
    get("nobody", &[]).fails(3, "knows nothing");
    get("0g", &["--hex"]).fails(2, "not hexadecimal");
}

#[test]
fn forget_and_release_change_one_key() {
    let (place, path) = small();
    let on = |command: &str, id: &str, more: &[&str]| {
        run(&[&[command, &path, id], &KEY[..], more].concat())
    };
    on("forget", "cut", &[]).fails(3, "--force");
    on("forget", "nobody", &[]).fails(3, "there is no");
    on("release", "done", &[]).fails(3, "not interrupted");
    assert_eq!(on("release", "cut", &[]).text(), "released: acct/pay/cut\n");
    assert_eq!(
        on("forget", "done", &[]).text(),
        "forgotten: acct/pay/done\n"
    );
    let store = place.store();
    for id in ["cut", "done"] {
        assert!(matches!(store.get(&key(id)), Ok(KeyState::Absent)), "{id}");
    }
}

#[test]
fn a_round_trip_keeps_bytes_and_retention_and_can_be_repeated() {
    let place = Place::new();
    let store = place.store();
    let odd = b"\x00\xff\xfe id";
    let every_byte: Vec<u8> = (0..=255).collect();
    complete(&store, odd, &every_byte);
    complete(&store, "empty", "");
    start(&store, &key("unkept"))
        .complete_without_response()
        .expect("completed");
    start(&store, &key("mine"))
        .complete_with("secret")
        .principal(*b"who\xff")
        .commit()
        .expect("completed");
    let mut cut_off = start(&store, &key("cut"));
    cut_off.checkpoint(b"note \xff").expect("noted");
    drop(cut_off);
    store.close().expect("closed");
    let exported = good(&["export", &place.text("store")]);
    assert_eq!(exported.json().len(), 5);
    let file = place.text("export.jsonl");
    std::fs::write(&file, &exported.out).expect("written");

    let copy = place.text("copy");
    good(&["init", &copy]);
    let tally = |run: crate::world::Run| {
        let line = &run.json()[0];
        ["completed", "interrupted", "present"].map(|name| line[name].as_u64())
    };
    let import = ["--json", "import", &copy, &file];
    assert_eq!(tally(good(&import)), [Some(4), Some(1), Some(0)]);
    assert_eq!(tally(good(&import)), [Some(0), Some(0), Some(5)]);

    let again = good(&["export", &copy]).json();
    let of = |lines: &[serde_json::Value]| {
        let mut lines: Vec<_> = lines
            .iter()
            .map(|line| {
                let mut line = line.clone();
                let fields = line.as_object_mut().expect("an object");
                // These are the new store's own.
                for own in [
                    "token",
                    "sequence",
                    "created_ms",
                    "started_ms",
                    "ended_ms",
                    "expires_ms",
                ] {
                    fields.remove(own);
                }
                line.to_string()
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(of(&again), of(&exported.json()));
    let ends = |lines: &[serde_json::Value]| {
        lines
            .iter()
            .filter_map(|line| line["expires_ms"].as_u64())
            .max()
            .expect("an end")
    };
    // What is left is measured a moment before it is written.
    assert!(ends(&again).abs_diff(ends(&exported.json())) < 60_000);
    let store = open(&place.path("copy"));
    let Ok(KeyState::Completed(saved)) = store.get(&key(odd)) else {
        panic!("it was imported");
    };
    let Replay::Response(response) = saved.by_scope().expect("anybody's") else {
        panic!("it was kept");
    };
    assert_eq!(&response[..], every_byte);
}

#[test]
fn a_store_of_many_keys_is_made_listed_compacted_and_copied() {
    let place = Place::new();
    let (path, copy) = (place.text("many"), place.text("copy"));
    good(&["fill", &path, "--keys", "30000", "--interrupted", "7"]);
    assert_eq!(good(&["list", &path]).text().lines().count(), 30_000);
    let one = good(&["list", &path, "--scope", "tenant-3"]);
    assert_eq!(one.text().lines().count(), 300);
    good(&["compact", &path]);
    good(&["snapshot", &path, &copy]);
    for each in [&path, &copy] {
        let stats = &good(&["--json", "stats", each]).json()[0];
        assert_eq!(
            (&stats["keys"]["completed"], &stats["keys"]["interrupted"]),
            (&json!(29_993), &json!(7))
        );
        good(&["verify", each]);
    }
    run(&["fill", &path, "--keys", "1"]).fails(1, "a store already");
    run(&["snapshot", &path, &copy]).fails(1, "not empty");
}

#[test]
fn completions_and_the_manual_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&["completions", shell]).text().contains("interrupted"));
    }
    let page = good(&["manual"]).text();
    assert!(
        page.contains(".TH oncekey") && page.contains("Exit codes"),
        "{page}"
    );
}
