//! Fingerprints: what a key was used for.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Nothing to compare.
const NONE: u8 = 0;
/// XXH3-128 of the bytes.
const BYTES: u8 = 1;
/// XXH3-128 of length-prefixed parts.
const PARTS: u8 = 2;
/// The first algorithm id that is the caller's own.
const CUSTOM_MIN: u8 = 128;

/// A digest of the request, with the id of the algorithm that made it.
///
/// The same key with another fingerprint is a mismatch: the key was reused for something else.
/// Fingerprints of different algorithms are never compared, so changing how a service makes them
/// causes no false mismatch for the keys that are stored already.
///
/// The digests made here are XXH3-128, which is fast and not cryptographic: somebody who can choose
/// both requests can make two with the same digest. Since scopes keep callers apart, that fools only
/// themselves. Where it matters (non-repudiation), bring a digest of your own with
/// [`custom`](Self::custom).
///
/// ```
/// use oncekey::{Comparison, Fingerprint};
///
/// let first = Fingerprint::of(br#"{"amount":1200}"#);
/// let other = Fingerprint::of(br#"{"amount":1300}"#);
/// assert_eq!(first.compare(other), Comparison::Different);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    algorithm: u8,
    digest: u128,
}

/// What comparing two fingerprints says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same request.
    Same,
    /// Another request.
    Different,
    /// Made by different algorithms, or one of them has nothing to compare: taken as the same.
    NotComparable,
}

/// A custom algorithm id that is not the caller's to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintError {
    /// Ids below 128 are this library's.
    ReservedAlgorithm {
        /// The id.
        algorithm: u8,
    },
}

impl fmt::Display for FingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::ReservedAlgorithm { algorithm } = self;
        write!(
            f,
            "algorithm id {algorithm} is reserved; use one from {CUSTOM_MIN} to 255"
        )
    }
}

impl std::error::Error for FingerprintError {}

impl Fingerprint {
    /// Of the request's bytes.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self {
            algorithm: BYTES,
            digest: xxh3_128(bytes.as_ref()),
        }
    }

    /// Of several parts, told apart by their lengths: method, path, body.
    ///
    /// ```
    /// use oncekey::Fingerprint;
    ///
    /// let one = Fingerprint::builder().part(b"ab").part(b"c").finish();
    /// let other = Fingerprint::builder().part(b"a").part(b"bc").finish();
    /// assert_ne!(one, other);
    /// ```
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder {
            hasher: Box::new(Xxh3::new()),
        }
    }

    /// A digest of the caller's own making, under an algorithm id of 128 or more.
    ///
    /// # Errors
    ///
    /// [`FingerprintError::ReservedAlgorithm`] for smaller ids.
    pub fn custom(algorithm: u8, digest: [u8; 16]) -> Result<Self, FingerprintError> {
        if algorithm < CUSTOM_MIN {
            return Err(FingerprintError::ReservedAlgorithm { algorithm });
        }
        Ok(Self {
            algorithm,
            digest: u128::from_le_bytes(digest),
        })
    }

    /// Nothing to compare: the key alone names the operation, as an event id does.
    pub const fn none() -> Self {
        Self {
            algorithm: NONE,
            digest: 0,
        }
    }

    /// Whether two requests are the same, as far as can be told.
    pub fn compare(self, other: Self) -> Comparison {
        if self.algorithm == NONE || self.algorithm != other.algorithm {
            Comparison::NotComparable
        } else if self.digest == other.digest {
            Comparison::Same
        } else {
            Comparison::Different
        }
    }

    pub(crate) const fn from_raw(algorithm: u8, digest: u128) -> Self {
        Self { algorithm, digest }
    }

    pub(crate) const fn algorithm(self) -> u8 {
        self.algorithm
    }

    pub(crate) const fn digest(self) -> u128 {
        self.digest
    }
}

/// Makes a fingerprint of several parts, from [`Fingerprint::builder`].
#[must_use]
pub struct FingerprintBuilder {
    hasher: Box<Xxh3>,
}

impl FingerprintBuilder {
    /// Adds a part.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.hasher.update(&(part.len() as u64).to_le_bytes());
        self.hasher.update(part);
        self
    }

    /// The fingerprint of the parts so far.
    pub fn finish(self) -> Fingerprint {
        Fingerprint {
            algorithm: PARTS,
            digest: self.hasher.digest128(),
        }
    }
}

impl fmt::Debug for FingerprintBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintBuilder").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_of_one_algorithm_are_compared() {
        let bytes = Fingerprint::of(b"a");
        let parts = Fingerprint::builder().part(b"a").finish();
        let custom = Fingerprint::custom(200, [1; 16]).unwrap();
        assert_eq!(bytes.compare(bytes), Comparison::Same);
        assert_eq!(bytes.compare(Fingerprint::of(b"b")), Comparison::Different);
        for other in [parts, custom, Fingerprint::none()] {
            assert_eq!(bytes.compare(other), Comparison::NotComparable);
            assert_eq!(other.compare(bytes), Comparison::NotComparable);
        }
        assert_eq!(
            Fingerprint::none().compare(Fingerprint::none()),
            Comparison::NotComparable
        );
        assert!(Fingerprint::custom(127, [0; 16]).is_err());
    }

    #[test]
    fn the_digests_are_part_of_the_format() {
        assert_eq!(
            Fingerprint::of(b"").digest(),
            0x99aa_06d3_0147_98d8_6001_c324_468d_497f
        );
    }
}
