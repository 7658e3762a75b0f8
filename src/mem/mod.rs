//! Words of memory that are shared between threads and, through a map, with a file.
//!
//! [`Memory`] is all that the log sees of a mapped segment: atomic words, a raw copy into a range
//! that one writer owns, and a view of a range that no one writes any more. This module holds the
//! only unsafe code of the crate. Invariants:
//! * the memory is 8-byte aligned, and neither moves nor shrinks while its `Memory` lives;
//! * no reference other than `&AtomicU64` is ever made to a word that may still be written.
//!
//! A mapped file is safe to reach only while nobody outside the store truncates or writes it: the
//! directory lock and its 0700 mode stand for that, nothing in here can.
//!
//! Under `oncekey_loom` the words are loom's atomics, so that the code above runs unchanged in a
//! model. `fs` makes memories; `log` uses them.

#[cfg(not(target_endian = "little"))]
compile_error!("oncekey's files hold little-endian words, and are mapped: no other target works");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("oncekey maps whole segments: a 32-bit address space is too small for that");

mod fork;
#[cfg(not(oncekey_loom))]
#[expect(
    unsafe_code,
    reason = "mapped memory is reached through raw pointers, here only"
)]
mod mapped;
#[cfg(oncekey_loom)]
mod modelled;

pub(crate) use self::fork::ForkMark;
#[cfg(not(oncekey_loom))]
pub(crate) use self::mapped::Memory;
#[cfg(oncekey_loom)]
pub(crate) use self::modelled::Memory;

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// Cuts `bytes`, to be written at `byte_offset`, into words: calls `store` with the index of each
/// word it touches, the mask of the bits to replace, and their value.
#[cfg(any(test, miri, feature = "testing", oncekey_loom))]
fn for_each_word(byte_offset: usize, bytes: &[u8], mut store: impl FnMut(usize, u64, u64)) {
    let mut offset = byte_offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let skip = offset % WORD;
        let (part, later) = rest.split_at(rest.len().min(WORD - skip));
        let mut value = [0; WORD];
        let mut mask = [0; WORD];
        value[skip..skip + part.len()].copy_from_slice(part);
        mask[skip..skip + part.len()].fill(0xFF);
        store(
            offset / WORD,
            u64::from_le_bytes(mask),
            u64::from_le_bytes(value),
        );
        offset += part.len();
        rest = later;
    }
}
