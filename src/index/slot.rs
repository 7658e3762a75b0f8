//! A slot: all that the index remembers of a completed key, in eight bytes.
//!
//! ```text
//!  bits  0..23   offset of the record in its segment, in words   (64 MiB)
//!  bits 23..39   number of the segment                           (65,536)
//!  bits 39..64   25 bits of the key's hash
//! ```
//!
//! The hash bits, with the ones that chose the stripe, are enough to grow a table and to turn away
//! almost every key that is not there without reading the log; the record decides in the end. With
//! hashbrown's control byte a key takes 10.3 bytes in a full table (7 of 8 places taken) and 20.6
//! just after it has grown.

use crate::log::word::mix;

const OFFSET_BITS: u32 = 23;
const NUMBER_BITS: u32 = 16;
const TAG_SHIFT: u32 = OFFSET_BITS + NUMBER_BITS;
/// How many bits of the key's hash a slot keeps.
#[cfg(any(test, feature = "redis", feature = "serve"))]
pub(crate) const TAG_BITS: u32 = u64::BITS - TAG_SHIFT;

/// A completed key in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u64);

const _: () = assert!(size_of::<Slot>() == 8);
const _: () = assert!(crate::limits::SEGMENT_BYTES_MAX / 8 <= 1 << OFFSET_BITS);

impl Slot {
    #[inline]
    pub(crate) fn new(hash: u64, segment: u16, offset_words: u64) -> Self {
        assert!(
            offset_words < 1 << OFFSET_BITS,
            "offset {offset_words} outside a segment"
        );
        let tag = hash >> TAG_SHIFT << TAG_SHIFT;
        Self(tag | u64::from(segment) << OFFSET_BITS | offset_words)
    }

    #[inline]
    pub(crate) fn segment(self) -> u16 {
        (self.0 >> OFFSET_BITS) as u16
    }

    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }

    /// The bits of the key's hash that it kept, which no move changes.
    #[cfg(any(test, feature = "redis", feature = "serve"))]
    pub(crate) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// Whether the slot may be of a key with this hash.
    #[inline]
    pub(crate) fn may_be(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == hash >> TAG_SHIFT
    }

    /// The hash by which the slot sits in its table: a function of the bits it kept.
    #[inline]
    pub(crate) fn table_hash(self) -> u64 {
        table_hash(self.0)
    }
}

/// The hash by which a key with this hash is looked up in its stripe's table.
pub(crate) fn table_hash(hash: u64) -> u64 {
    mix(hash >> TAG_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_gives_back_what_it_was_made_of() {
        for (hash, segment, offset) in [
            (0, 0, 0),
            (u64::MAX, u16::MAX, (1 << 23) - 1),
            (0xDEAD_BEEF_0123_4567, 42, 512),
        ] {
            let slot = Slot::new(hash, segment, offset);
            assert_eq!((slot.segment(), slot.offset()), (segment, offset));
            assert!(slot.may_be(hash));
            assert!(!slot.may_be(hash ^ 1 << 39));
            assert_eq!(slot.table_hash(), table_hash(hash));
        }
    }
}
