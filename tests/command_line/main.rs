//! The tool, run as a user runs it.

mod bench;
mod beside_a_service;
mod errors;
mod keys;
mod shadow;
mod walk;
mod world;
