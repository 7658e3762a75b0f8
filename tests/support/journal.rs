//! A file of records that survives the kill of its writers.
//!
//! A record is 64 bytes, appended by one `write` to a file that only grows, so it never crosses a
//! page and is there whole or not at all; and it is in the kernel's hands when `append` returns. The
//! order in the file is a total order that agrees with real time: what was appended before a call
//! begins stands before everything that is appended after it has returned.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Words of a record.
pub const WORDS: usize = 8;

#[derive(Debug)]
pub struct Journal {
    file: File,
}

impl Journal {
    pub fn open(path: &Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(path);
        Self {
            file: file.expect("a journal"),
        }
    }

    pub fn append(&self, words: [u64; WORDS]) {
        let mut bytes = [0; WORDS * 8];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let written = (&self.file).write(&bytes).expect("the journal takes it");
        assert_eq!(written, bytes.len(), "a record goes in one piece");
    }

    /// How many records there are in the file.
    pub fn len(path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |found| found.len()) / (WORDS as u64 * 8)
    }

    pub fn read(path: &Path) -> Vec<[u64; WORDS]> {
        let bytes = std::fs::read(path).unwrap_or_default();
        assert_eq!(bytes.len() % (WORDS * 8), 0, "whole records");
        let records = bytes.chunks_exact(WORDS * 8);
        records
            .map(|record| {
                let mut words = [0; WORDS];
                for (word, bytes) in words.iter_mut().zip(record.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                }
                words
            })
            .collect()
    }
}
