//! `run` of `tests/fuzz_corpus/meta.rs`, driven by libFuzzer.

#![no_main]
#![allow(dead_code, reason = "only a part of it is used here")]

#[path = "../../tests/damaged_bytes/answers.rs"]
mod answers;
#[path = "../../tests/damaged_bytes/layout.rs"]
mod layout;
#[path = "../../tests/fuzz_corpus/meta.rs"]
mod meta;
#[path = "../../tests/damaged_bytes/stores.rs"]
mod stores;
#[path = "../../tests/fuzz_corpus/subjects.rs"]
mod subjects;
#[path = "../../tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    meta::run(bytes);
});
