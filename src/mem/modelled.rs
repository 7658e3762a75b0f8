//! [`Memory`] for loom models: a handful of loom's atomics.
//!
//! Same surface as the shipping one, except that there is no `bytes`: a model has no plain memory
//! to point into. Files cannot be mapped either.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::{WORD, for_each_word};
use crate::sync::{AtomicU64, Ordering};

/// A range of words, shared between the threads of a model.
#[derive(Debug)]
pub(crate) struct Memory {
    heap: Arc<[AtomicU64]>,
    words: usize,
}

impl Memory {
    /// Zeroed memory. Must be called inside a model.
    pub(crate) fn heap(words: usize) -> Self {
        Self {
            heap: (0..words).map(|_| AtomicU64::new(0)).collect(),
            words,
        }
    }

    /// Always an error: a model works on the heap.
    pub(crate) fn map(_file: &File, _len: u64, _populate: bool) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A model does not fork.
    pub(super) fn wiped_on_fork() -> Option<Self> {
        None
    }

    /// How many words there are.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// One word.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        &self.heap[index]
    }

    /// Copies `bytes` to `byte_offset`, with one relaxed store a word.
    pub(crate) fn copy_in(&self, byte_offset: usize, bytes: &[u8]) {
        for_each_word(byte_offset, bytes, |index, mask, value| {
            let word = self.word(index);
            let kept = if mask == u64::MAX {
                0
            } else {
                word.load(Ordering::Relaxed) & !mask
            };
            word.store(kept | value, Ordering::Relaxed);
        });
    }

    /// The bytes of a range, read with relaxed loads.
    pub(crate) fn copy_out(&self, byte_offset: usize, len: usize) -> Vec<u8> {
        assert!(
            byte_offset + len <= self.words * WORD,
            "{len} bytes at {byte_offset}"
        );
        (byte_offset..byte_offset + len)
            .map(|at| self.word(at / WORD).load(Ordering::Relaxed).to_le_bytes()[at % WORD])
            .collect()
    }

    /// Another handle to the first `words` words of the same memory.
    pub(crate) fn share(&self, words: usize) -> Self {
        assert!(
            words <= self.heap.len(),
            "{words} words of a heap of {}",
            self.heap.len()
        );
        Self {
            heap: Arc::clone(&self.heap),
            words,
        }
    }

    /// Whether other handles to the same memory live.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.heap) > 1
    }
}

#[cfg(test)]
mod tests {
    use loom::thread;

    use super::*;

    /// What `copy_in` and `copy_out` rest on: a releasing store publishes the range before it.
    #[test]
    fn a_published_range_is_seen_whole() {
        loom::model(|| {
            let memory = Memory::heap(3);
            let shared = memory.share(3);
            let writer = thread::spawn(move || {
                shared.copy_in(8, b"twelve bytes");
                shared.word(0).store(1, Ordering::Release);
            });
            if memory.word(0).load(Ordering::Acquire) == 1 {
                assert_eq!(memory.copy_out(8, 12), b"twelve bytes");
            }
            writer.join().expect("written");
        });
    }
}
