//! [`Memory`] for loom models: a handful of loom's atomics.
//!
//! Same surface as the shipping one. There is no plain memory to point into, so [`Memory::bytes`]
//! reads the words one by one and shows a copy, made at that moment: whoever looks at a range before
//! it was published sees, in some schedule, words that were not yet written. Files cannot be mapped.

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use super::{WORD, for_each_word};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A range of words, shared between the threads of a model.
#[derive(Debug)]
pub(crate) struct Memory {
    heap: Arc<[AtomicU64]>,
    /// Words in front of the first that exists; a model that reaches one is wrong.
    left_out: usize,
    words: usize,
    copies: Copies,
    /// Given back: whoever reads it now dies of a segmentation fault.
    unmapped: AtomicBool,
    /// Length of the file in words: whoever reads behind it dies of a bus error.
    file_words: Arc<AtomicUsize>,
}

impl Memory {
    /// Zeroed memory. Must be called inside a model.
    pub(crate) fn heap(words: usize) -> Self {
        Self::heap_from(0, words)
    }

    /// The same without the first `left_out` words. Every word costs a model time.
    pub(crate) fn heap_from(left_out: usize, words: usize) -> Self {
        Self {
            heap: (left_out..words).map(|_| AtomicU64::new(0)).collect(),
            left_out,
            words,
            copies: Copies::default(),
            unmapped: AtomicBool::new(false),
            file_words: Arc::new(AtomicUsize::new(words)),
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
        assert!(
            (self.left_out..self.words).contains(&index),
            "word {index} of {}..{}",
            self.left_out,
            self.words
        );
        &self.heap[index - self.left_out]
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

    /// The bytes of a range, read now with relaxed loads.
    pub(crate) fn bytes(&self, byte_offset: usize, len: usize) -> &[u8] {
        assert!(
            byte_offset + len <= self.words * WORD,
            "{len} bytes at {byte_offset} of {}",
            self.words * WORD
        );
        self.check_mapped((byte_offset + len).div_ceil(WORD));
        let first = byte_offset / WORD;
        let mut copy: Vec<u8> = (first..(byte_offset + len).div_ceil(WORD))
            .flat_map(|index| self.word(index).load(Ordering::Relaxed).to_le_bytes())
            .collect();
        copy.drain(..byte_offset - first * WORD);
        copy.truncate(len);
        self.copies.keep(copy)
    }

    /// Another handle to the first `words` words of the same memory.
    pub(crate) fn share(&self, words: usize) -> Self {
        assert!(
            words <= self.words,
            "{words} words of a heap of {}",
            self.words
        );
        Self {
            heap: Arc::clone(&self.heap),
            left_out: self.left_out,
            words,
            copies: Copies::default(),
            unmapped: AtomicBool::new(false),
            file_words: Arc::clone(&self.file_words),
        }
    }

    /// Gives the memory back as far as this handle goes.
    pub(crate) fn unmap(&self) {
        self.unmapped.store(true, Ordering::Release);
    }

    /// Cuts the file that is mapped, for all handles.
    pub(crate) fn cut(&self, file_words: usize) {
        self.file_words.store(file_words, Ordering::Release);
    }

    fn check_mapped(&self, words: usize) {
        assert!(!self.unmapped.load(Ordering::Acquire), "segmentation fault");
        let file_words = self.file_words.load(Ordering::Acquire);
        assert!(
            words <= file_words,
            "bus error at {words} of {file_words} words"
        );
    }

    /// Whether other handles to the same memory live.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.heap) > 1
    }
}

/// Keeps what was handed out for as long as the memory lives: a list that only grows at its end.
#[derive(Debug, Default)]
struct Copies(OnceLock<Box<(Vec<u8>, Copies)>>);

impl Copies {
    fn keep(&self, copy: Vec<u8>) -> &[u8] {
        let mut list = self;
        let mut unplaced = Some(copy);
        loop {
            let node = list
                .0
                .get_or_init(|| Box::new((unplaced.take().unwrap_or_default(), Self::default())));
            if unplaced.is_none() {
                return &node.0;
            }
            list = &node.1;
        }
    }
}

#[cfg(test)]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::{explore, mutation};

    /// What `copy_in` and `bytes` rest on: a releasing store publishes the range before it.
    #[test]
    fn a_published_range_is_seen_whole() {
        explore(3, || {
            let memory = Memory::heap(3);
            let shared = memory.share(3);
            let writer = thread::spawn(move || {
                shared.copy_in(8, b"twelve bytes");
                let is_faulty = mutation("published_without_release");
                let ordering = if is_faulty {
                    Ordering::Relaxed
                } else {
                    Ordering::Release
                };
                shared.word(0).store(1, ordering);
            });
            if memory.word(0).load(Ordering::Acquire) == 1 {
                assert_eq!(memory.bytes(8, 12), b"twelve bytes");
            }
            writer.join().expect("written");
        });
    }
}
