//! The first word of every record: its length, its state and a check over both, in one atomic step.
//!
//! The log is a chain of lengths: whoever wants to append swaps a zero word for a *reserved* one, so
//! that the reservation and its length appear together and a thread killed at any later instruction
//! hides nothing behind it. The same word later says *committed* (the record below is whole) or
//! *padding* (skip it). Words are little-endian on disk:
//!
//! ```text
//!  bits  0..24   length of the record in 8-byte words, this one included (1 ..= 2^23)
//!  bits 24..32   state
//!  bits 32..64   check: mix of the length, the state, the position and the segment's seed
//! ```
//!
//! The check binds a word to its place: a word left by another segment's life, moved by a copy or
//! hit by a flipped bit decodes as [`Decoded::Invalid`], and after damage a scan can find the next
//! true record by trying every word.

/// How many bits of a word hold the length.
const LENGTH_BITS: u32 = 24;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

/// What the owner of a reserved range has done with it. The values differ in at least four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Being written. Found at recovery, it is a hole to skip: its writer died.
    Reserved = 0x1D,
    /// The record is whole.
    Committed = 0xA6,
    /// Nothing here: a writer gave up, or the rest of a segment was left unused.
    Padding = 0x7B,
    /// A whole record that is part of another one, whose word stands before it: no range of its own.
    Attached = 0xD1,
}

impl State {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0x1D => Some(Self::Reserved),
            0xA6 => Some(Self::Committed),
            0x7B => Some(Self::Padding),
            0xD1 => Some(Self::Attached),
            _ => None,
        }
    }
}

/// A word as read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Zero: nobody reserved anything here.
    Empty,
    /// A true word of this segment at this position.
    Word {
        /// Length in words, at least 1.
        words: u64,
        /// What its owner did.
        state: State,
    },
    /// Anything else: damage, or a word of another place.
    Invalid,
}

/// Builds the word for a record of `words` words at `position` in the segment of `seed`.
#[inline]
pub(crate) fn encode(words: u64, state: State, position: u64, seed: u64) -> u64 {
    assert!(
        (1..=LENGTH_MASK).contains(&words),
        "record of {words} words"
    );
    let low = words | (state as u64) << LENGTH_BITS;
    low | u64::from(check(low, position, seed)) << 32
}

/// Reads a word back. Never trusts it: the check must hold for this position and seed.
#[inline]
pub(crate) fn decode(raw: u64, position: u64, seed: u64) -> Decoded {
    if raw == 0 {
        return Decoded::Empty;
    }
    let low = raw & 0xFFFF_FFFF;
    let words = low & LENGTH_MASK;
    let state = State::from_byte((low >> LENGTH_BITS) as u8);
    match state {
        Some(state) if words > 0 && (raw >> 32) as u32 == check(low, position, seed) => {
            Decoded::Word { words, state }
        }
        _ => Decoded::Invalid,
    }
}

/// The length in a word this process wrote itself, without the check: the append path only asks
/// how far to step over its neighbours.
#[inline]
pub(crate) fn length(raw: u64) -> u64 {
    raw & LENGTH_MASK
}

#[inline]
fn check(low: u64, position: u64, seed: u64) -> u32 {
    (mix(mix(position ^ seed) ^ low) >> 32) as u32
}

/// A bijective mixer with full avalanche (the finaliser published with SplitMix64, Steele et al.,
/// "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 4] = [
        State::Reserved,
        State::Committed,
        State::Padding,
        State::Attached,
    ];

    #[test]
    fn a_word_reads_back_at_its_place_only() {
        for state in STATES {
            for words in [1, 15, 90, LENGTH_MASK] {
                let raw = encode(words, state, 4711, 99);
                assert_eq!(decode(raw, 4711, 99), Decoded::Word { words, state });
                assert_eq!(decode(raw, 4712, 99), Decoded::Invalid);
                assert_eq!(decode(raw, 4711, 98), Decoded::Invalid);
                assert_eq!(length(raw), words);
            }
        }
        assert_eq!(decode(0, 4711, 99), Decoded::Empty);
    }

    #[test]
    fn every_flip_of_one_or_two_bits_is_noticed() {
        for state in STATES {
            let raw = encode(22, state, 512, 7);
            for first in 0..64 {
                for second in 0..64 {
                    let flipped = raw ^ (1 << first) ^ (1 << second);
                    let expected = if first == second {
                        Decoded::Word { words: 22, state }
                    } else {
                        Decoded::Invalid
                    };
                    assert_eq!(decode(flipped, 512, 7), expected, "bits {first} {second}");
                }
                assert_eq!(decode(raw ^ (1 << first), 512, 7), Decoded::Invalid);
            }
        }
    }

    #[test]
    fn states_are_four_bits_apart() {
        for left in STATES {
            for right in STATES {
                let distance = (left as u8 ^ right as u8).count_ones();
                assert!(left == right || distance >= 4);
            }
        }
    }
}
