//! The limits that a store is given, and the error where one is reached.

use std::fmt;
use std::io;

/// A limit of a store, set by the option of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// [`Options::max_keys`](crate::Options::max_keys).
    Keys,
    /// [`Options::max_keys_per_scope`](crate::Options::max_keys_per_scope).
    KeysPerScope,
    /// [`Options::max_disk_bytes`](crate::Options::max_disk_bytes).
    DiskBytes,
}

/// A limit of the store is reached. Nothing was written, and nothing that is stored is evicted.
///
/// Only what would go over the limit is refused: replays, and completions, renewals and releases of
/// keys that are claimed already, go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReached {
    /// Which one.
    pub limit: Limit,
    /// What it is set to: keys, or bytes.
    pub value: u64,
    /// What is used of it: keys, or bytes. More than `value` where that was lowered.
    pub used: u64,
}

impl LimitReached {
    pub(crate) fn new(limit: Limit, value: u64, used: u64) -> Self {
        Self { limit, value, used }
    }

    /// The limit that made an operation of the log fail.
    pub(crate) fn within(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().cloned()
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, used, .. } = self;
        match self.limit {
            Limit::Keys => write!(
                f,
                "{used} keys exist and Options::max_keys is {value}; forget keys, wait until \
                 results expire and are reclaimed, or raise it"
            ),
            Limit::KeysPerScope => write!(
                f,
                "{used} keys of this scope exist and Options::max_keys_per_scope is {value}; \
                 forget keys of it, wait until results expire and are reclaimed, or raise it"
            ),
            Limit::DiskBytes => write!(
                f,
                "the log takes {used} bytes and with another segment it would be over \
                 Options::max_disk_bytes, which is {value}; wait until expired results are \
                 reclaimed, or raise it"
            ),
        }
    }
}

impl std::error::Error for LimitReached {}

impl From<LimitReached> for io::Error {
    fn from(reached: LimitReached) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, reached)
    }
}
