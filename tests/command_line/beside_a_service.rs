//! What only reads, while a store is at work in the directory.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use oncekey::{ClaimOptions, Durability, Fingerprint, Options, Reader, Recorded};
use serde_json::json;

use crate::world::{Place, complete, good, key, start};

#[test]
fn a_running_store_is_seen_as_it_is() {
    let place = Place::new();
    let store = place.store();
    drop(start(&store, &key("earlier")));
    store.close().expect("closed");
    let store = place.store();
    complete(&store, "done", "paid");
    let held = start(&store, &key("held"));
    let path = place.text("store");
    let ids = |command: &str| -> Vec<String> {
        let lines = good(&["--json", command, &path]).json();
        let id = |line: &serde_json::Value| line["id"].as_str().expect("text").to_owned();
        lines.iter().map(id).collect()
    };
    assert_eq!(ids("pending"), ["held"]);
    assert_eq!(ids("interrupted"), ["earlier"]);
    let before = good(&["--json", "stats", &path]).json()[0]["seen"].clone();
    assert_eq!(before["is_closed"], json!(false));
    held.complete("paid").expect("completed");
    let after = good(&["--json", "stats", &path]).json()[0]["seen"].clone();
    let sequence = |seen: &serde_json::Value| -> u64 {
        seen["sequence"]
            .as_str()
            .expect("text")
            .parse()
            .expect("a number")
    };
    assert!(sequence(&after) > sequence(&before));
    assert!(ids("pending").is_empty());
    assert_eq!(good(&["export", &path]).text().lines().count(), 3);
    good(&["verify", &path]);
    complete(&store, "later", "paid");
    store.close().expect("closed");
}

/// Completed keys stay, others come and expire, segments roll over, are compacted and unlinked.
#[test]
fn no_key_is_missed_and_nothing_looks_damaged_while_segments_come_and_go() {
    const STAYING: usize = 200;
    let place = Place::new();
    let store = Options::new()
        .segment_size(64 << 10)
        .maintenance(false)
        .open(place.path("store"))
        .expect("opened");
    for number in 0..STAYING {
        complete(&store, format!("stays {number}"), vec![b's'; 100]);
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let options = ClaimOptions::new()
                .durability(Durability::Buffered)
                .retention(Duration::from_secs(1));
            let mut number = 0_u64;
            while !done.load(Ordering::Relaxed) {
                for _ in 0..200 {
                    number += 1;
                    let key = key(format!("goes {number}"));
                    let claim = store.claim_with(&key, Fingerprint::none(), options.clone());
                    if let oncekey::Claim::Started(operation) = claim.expect("claimed") {
                        operation.complete(vec![b'g'; 300]).expect("completed");
                    }
                }
                // A second's records at a few megabytes a second.
                thread::sleep(Duration::from_millis(20));
            }
        });
        let compactor = scope.spawn(|| {
            let mut removed = 0;
            while !done.load(Ordering::Relaxed) {
                removed += store.maintain().expect("maintained").segments_removed;
                thread::sleep(Duration::from_millis(10));
            }
            removed
        });
        let path = place.path("store");
        for look in 0..60 {
            let reader = Reader::open_with(&path, true, |_, _| Ok(())).expect("a look");
            let health = reader.health();
            assert_eq!(health.corruptions, [], "look {look}");
            let mut staying = 0;
            reader
                .keys(
                    |key| key.id().starts_with(b"stays"),
                    |record| {
                        assert_eq!(record.state, Recorded::Completed);
                        assert_eq!(record.response.as_deref(), Some(&[b's'; 100][..]));
                        staying += 1;
                        ControlFlow::Continue(())
                    },
                )
                .expect("read");
            assert_eq!(staying, STAYING, "look {look}");
            thread::sleep(Duration::from_millis(30));
        }
        good(&["verify", &place.text("store")]);
        done.store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
        assert!(
            compactor.join().expect("no panic") > 10,
            "segments came and went"
        );
    });
    store.close().expect("closed");
    good(&["verify", &place.text("store")]);
}
