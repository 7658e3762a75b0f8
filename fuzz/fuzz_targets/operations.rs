//! `run` of `tests/fuzz_corpus/operations.rs`, driven by libFuzzer.

#![no_main]
#![allow(dead_code, reason = "only a part of it is used here")]

#[path = "../../tests/lost_power/calls.rs"]
mod calls;
#[path = "../../tests/lost_power/handover.rs"]
mod handover;
#[path = "../../tests/lost_power/model.rs"]
mod model;
#[path = "../../tests/fuzz_corpus/operations.rs"]
mod operations;
#[path = "../../tests/lost_power/script.rs"]
mod script;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/lost_power/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    operations::run(bytes);
});
