//! Fencing tokens.

use std::fmt;

/// A fencing token: a number that grows with every grant of any key of the store.
///
/// Hand it to systems that the operation writes to; one that remembers the greatest token it saw and
/// refuses smaller ones is safe from an owner that was overtaken and does not know it. The term and
/// the technique are from Martin Kleppmann, "How to do distributed locking" (2016).
///
/// It is the position of the record that granted the key: the open epoch in the high 28 bits, which
/// is advanced durably at every open, and the place in the log in the rest. So it is strictly
/// increasing across restarts and power loss, and never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The token with this number, as read from where [`as_u64`](Self::as_u64) was kept.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The token as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
