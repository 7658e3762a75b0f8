//! `run` of `tests/fuzz_corpus/requests.rs`, driven by libFuzzer.

#![no_main]
#![allow(dead_code, reason = "only a part of it is used here")]

#[path = "../../tests/fuzz_corpus/requests.rs"]
mod requests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    requests::run(bytes);
});
