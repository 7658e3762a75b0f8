//! The committed corpus of every fuzz target, replayed without a fuzzer.
//!
//! What an input does is in the modules here, which the targets under `fuzz/` use as they are. Each
//! target has inputs that its decoder takes and some that it refuses, and the numbers are kept: a
//! corpus that bounces off the first check tests nothing.

#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../damaged_bytes/answers.rs"]
mod answers;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../lost_power/calls.rs"]
mod calls;
#[path = "../lost_power/handover.rs"]
mod handover;
#[cfg(feature = "http")]
mod http;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../damaged_bytes/layout.rs"]
mod layout;
mod meta;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../lost_power/model.rs"]
mod model;
mod operations;
mod records;
#[cfg(feature = "serve")]
mod requests;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../lost_power/script.rs"]
mod script;
mod seeds;
mod segments;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../damaged_bytes/stores.rs"]
mod stores;
mod subjects;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../lost_power/world.rs"]
mod world;

use std::fs;
use std::path::{Path, PathBuf};

use self::seeds::Seeds;

fn directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

/// Writes the seeds if that was asked for. Those that are committed must be the ones that are made:
/// a change of the format or of the inputs' meaning would leave them behind.
fn keep(target: &str, seeds: Seeds) {
    let directory = directory(target);
    if std::env::var_os("ONCEKEY_WRITE_CORPUS").is_some() {
        fs::create_dir_all(&directory).expect("a directory");
        for entry in fs::read_dir(&directory).expect("a corpus") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with("seed-")) {
                fs::remove_file(path).expect("removed");
            }
        }
        for (name, bytes) in &seeds {
            fs::write(directory.join(name), bytes).expect("written");
        }
    }
    for (name, bytes) in seeds {
        let committed = fs::read(directory.join(&name)).unwrap_or_default();
        assert_eq!(committed, bytes, "{target}/{name} is not what is made now");
    }
}

/// Runs every input; how many were taken and how many refused.
fn replay(target: &str, run: fn(&[u8]) -> bool) -> (usize, usize) {
    let mut inputs: Vec<_> = fs::read_dir(directory(target))
        .expect("a corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    inputs.sort();
    let (mut taken, mut refused, mut bytes) = (0, 0, 0);
    for path in inputs {
        // Shown where the test fails.
        println!("{}", path.display());
        let input = fs::read(&path).expect("an input");
        bytes += input.len();
        match run(&input) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    println!("{target}: {taken} taken, {refused} refused, {bytes} bytes");
    (taken, refused)
}

#[track_caller]
fn at_least((taken, refused): (usize, usize), taken_min: usize, refused_min: usize) {
    assert!(taken >= taken_min, "only {taken} inputs are taken");
    assert!(refused >= refused_min, "only {refused} inputs are refused");
}

#[test]
fn the_corpus_of_records_holds() {
    keep("record_decode", seeds::records());
    at_least(replay("record_decode", records::record), 12, 80);
}

#[test]
fn the_corpus_of_side_cars_holds() {
    keep("index_file", seeds::side_cars());
    at_least(replay("index_file", records::side_car), 10, 10);
}

#[test]
fn the_corpus_of_tickets_holds() {
    keep("ticket_decode", seeds::tickets());
    at_least(replay("ticket_decode", records::ticket), 5, 80);
}

#[test]
fn the_corpus_of_meta_holds() {
    keep("meta", seeds::meta());
    at_least(replay("meta", meta::run), 60, 35);
}

#[test]
fn the_corpus_of_damaged_segments_holds() {
    keep("segment_recovery", seeds::segments());
    at_least(replay("segment_recovery", segments::run), 45, 150);
}

#[test]
fn the_corpus_of_operations_holds() {
    keep("operations", seeds::operations());
    at_least(replay("operations", operations::run), 140, 10);
}

#[cfg(feature = "http")]
#[test]
fn the_corpus_of_key_headers_holds() {
    keep("http_key_header", seeds::key_headers());
    at_least(replay("http_key_header", http::key_header), 12, 12);
}

#[cfg(feature = "http")]
#[test]
fn the_corpus_of_stored_responses_holds() {
    keep("http_response", seeds::responses());
    at_least(replay("http_response", http::response), 4, 8);
}

#[cfg(feature = "serve")]
#[test]
fn the_corpus_of_requests_holds() {
    keep("serve_request", seeds::requests());
    at_least(replay("serve_request", requests::run), 6, 14);
}
