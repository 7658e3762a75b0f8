//! `side_car` of `tests/fuzz_corpus/records.rs`, driven by libFuzzer.

#![no_main]
#![allow(dead_code, reason = "only a part of it is used here")]

#[path = "../../tests/fuzz_corpus/records.rs"]
mod records;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    records::side_car(bytes);
});
