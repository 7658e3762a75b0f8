//! `segment_recovery` of `tests/fuzz_inputs`, driven by libFuzzer.

#![no_main]

#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_inputs::segment_recovery(bytes));
