//! `response` of `tests/fuzz_corpus/http.rs`, driven by libFuzzer.

#![no_main]
#![allow(dead_code, reason = "only a part of it is used here")]

#[path = "../../tests/fuzz_corpus/http.rs"]
mod http;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    http::response(bytes);
});
