//! The committed corpus of every fuzz target, replayed without a fuzzer.

mod fuzz_inputs;

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut count = 0;
    for entry in fs::read_dir(&directory).expect("a corpus") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        run(&fs::read(&path).expect("an input"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", directory.display());
}

#[test]
fn the_corpus_of_records_holds() {
    replay("record_decode", fuzz_inputs::record_decode);
}

#[test]
fn the_corpus_of_tickets_holds() {
    replay("ticket_decode", fuzz_inputs::ticket_decode);
}

#[test]
fn the_corpus_of_meta_holds() {
    replay("meta", fuzz_inputs::meta);
}

#[test]
fn the_corpus_of_damaged_segments_holds() {
    replay("segment_recovery", fuzz_inputs::segment_recovery);
}
