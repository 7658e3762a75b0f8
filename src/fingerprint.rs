//! Fingerprints: what a key was used for.
//!
//! A [`Fingerprint`] is a 128-bit digest with the id of the algorithm that made it, and stands in
//! every record. The id is what lets a service change how it digests requests: two fingerprints are
//! compared only if the ids are equal, so a stored key is never called a mismatch because of an
//! upgrade. Ids are part of the format: 0 to 127 are this module's, and an id, once released, means
//! the same bytes for ever; 128 to 255 are the caller's.
//!
//! [`Fingerprint::compare`] is the only judge of whether two requests are the same. `==` tells
//! whether two fingerprints are identical, which is another question.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Nothing to compare.
const NONE: u8 = 0;
/// XXH3-128 of the bytes.
const BYTES: u8 = 1;
/// XXH3-128 of the parts, each behind its length as a little-endian `u64`.
const PARTS: u8 = 2;
/// As `PARTS`: an HTTP request with its body byte for byte.
#[cfg(feature = "http")]
const HTTP_RAW: u8 = 3;
/// As `PARTS`: an HTTP request with a JSON body by its value.
#[cfg(feature = "http")]
const HTTP_JSON: u8 = 4;
/// The first algorithm id that is the caller's own.
const CUSTOM_MIN: u8 = 128;

/// A digest of the request, to tell a retry from another request under the same key.
///
/// A retry repeats the request, so its fingerprint is the same and it gets the stored result. A
/// client that reuses a key for something else gets [`Claim::Mismatch`](crate::Claim::Mismatch)
/// instead of an answer to a question it did not ask.
///
/// # What to put in
///
/// What makes the request *this* request, and nothing that changes from one attempt to the next.
/// The body and the query belong in; headers that clients, proxies or tracing add per attempt
/// (`X-Request-Id`, `traceparent`, `Date`, `User-Agent`) do not. What is part of the
/// [`Key`](crate::Key) already need not be repeated. Clients that may serialise the same value
/// differently the next time, such as JSON with its keys in another order, need the parsed value
/// digested in a fixed form; the raw bytes are the stricter choice, and what to use where it
/// matters what exactly was sent.
///
/// | constructor | compares | for |
/// |---|---|---|
/// | [`of`](Self::of) | one byte string | a request body |
/// | [`builder`](Self::builder) | several parts | query and body; selected fields |
/// | [`custom`](Self::custom) | a digest made elsewhere | cryptographic or existing digests |
/// | [`none`](Self::none) | nothing | events whose id says all |
///
/// The HTTP layer makes those of requests by itself: algorithm ids 3 and 4.
///
/// # Not cryptographic
///
/// The digests made here are XXH3-128: fast, and different by accident once in 2¹²⁸. Somebody who
/// tries can construct two requests of the same digest. With both under one key of his scope he
/// gets the answer to the first for the second, which he could have asked for anyway: scopes keep
/// callers apart, so he fools only himself. Where a fingerprint has to prove what was sent, bring a
/// cryptographic digest with [`custom`](Self::custom).
///
/// # Examples
///
/// ```
/// use oncekey::{Comparison, Fingerprint};
///
/// let first = Fingerprint::of(br#"{"amount":1200}"#);
/// let retry = Fingerprint::of(br#"{"amount":1200}"#);
/// let other = Fingerprint::of(br#"{"amount":1300}"#);
///
/// assert_eq!(first.compare(retry), Comparison::Same);
/// assert_eq!(first.compare(other), Comparison::Different);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    algorithm: u8,
    /// Little-endian. Bytes, since they need no alignment: this is moved about a lot.
    digest: [u8; 16],
}

impl Fingerprint {
    /// The fingerprint of one byte string, usually the request's body. Algorithm id 1.
    ///
    /// ```
    /// use oncekey::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::of("amount=1200"), Fingerprint::of(b"amount=1200"));
    /// ```
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self {
            algorithm: BYTES,
            digest: xxh3_128(bytes.as_ref()).to_le_bytes(),
        }
    }

    /// Starts a fingerprint of several parts. Algorithm id 2.
    ///
    /// Each part goes in behind its length: where one ends and the next begins is part of what is
    /// compared, as are empty parts and the order. The same parts must be given every time, so
    /// don't cut a body where the network happened to cut it.
    ///
    /// ```
    /// use oncekey::Fingerprint;
    ///
    /// let of_request = |query: &str, body: &[u8]| {
    ///     Fingerprint::builder().part(query).part(body).finish()
    /// };
    /// assert_ne!(of_request("a", b"bc"), of_request("ab", b"c"));
    /// ```
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder {
            hasher: Box::new(Xxh3::new()),
        }
    }

    /// A digest made by the caller, such as SHA-256 cut to 16 bytes.
    ///
    /// The caller chooses `algorithm`, a number from 128 to 255. Take another one whenever the way
    /// of making the digest changes: what goes in, its order, its form, the algorithm. Keys stored
    /// under the old number are then [not comparable](Comparison::NotComparable) and go on
    /// answering, instead of looking like mismatches.
    ///
    /// # Errors
    ///
    /// [`FingerprintError::ReservedAlgorithm`] if `algorithm` is below 128.
    ///
    /// # Examples
    ///
    /// ```
    /// use oncekey::Fingerprint;
    ///
    /// /// SHA-256 of the canonical JSON, second version of our canonical form.
    /// const CANONICAL_JSON_2: u8 = 129;
    ///
    /// # fn sha256(_: &[u8]) -> [u8; 32] { [7; 32] }
    /// let digest = sha256(br#"{"amount":1200}"#);
    /// let (first_half, _) = digest.split_first_chunk().expect("32 bytes");
    /// let fingerprint = Fingerprint::custom(CANONICAL_JSON_2, *first_half)?;
    /// # Ok::<(), oncekey::FingerprintError>(())
    /// ```
    pub const fn custom(algorithm: u8, digest: [u8; 16]) -> Result<Self, FingerprintError> {
        if algorithm < CUSTOM_MIN {
            return Err(FingerprintError::ReservedAlgorithm { algorithm });
        }
        // Big-endian, so that the digits shown are those of the caller's digest, in its order.
        Ok(Self::from_raw(algorithm, u128::from_be_bytes(digest)))
    }

    /// Nothing to compare: every use of the key is taken for the same operation. Algorithm id 0.
    ///
    /// Right where the id alone names the operation and its content can't differ, or may: a message
    /// redelivered by a broker, a webhook event whose envelope carries a new timestamp each time.
    /// Wrong for keys that clients choose, because it turns every mismatch into a replay.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            algorithm: NONE,
            digest: [0; 16],
        }
    }

    /// Whether two requests are the same, as far as their fingerprints can tell. Symmetric.
    ///
    /// ```
    /// use oncekey::{Comparison, Fingerprint};
    ///
    /// let whole = Fingerprint::of(b"body");
    /// let parts = Fingerprint::builder().part(b"body").finish();
    /// assert_eq!(whole.compare(parts), Comparison::NotComparable);
    /// assert_eq!(whole.compare(Fingerprint::none()), Comparison::NotComparable);
    /// ```
    #[must_use]
    pub const fn compare(self, other: Self) -> Comparison {
        if self.algorithm == NONE || self.algorithm != other.algorithm {
            Comparison::NotComparable
        } else if self.digest() == other.digest() {
            Comparison::Same
        } else {
            Comparison::Different
        }
    }

    /// The algorithm's id, as it stands in the log.
    pub(crate) const fn algorithm(self) -> u8 {
        self.algorithm
    }

    /// The digest, as it stands in the log.
    pub(crate) const fn digest(self) -> u128 {
        u128::from_le_bytes(self.digest)
    }

    /// A fingerprint from the log or a ticket. Ids that this version does not know are kept as they
    /// are, and compared with their own kind alone.
    pub(crate) const fn from_raw(algorithm: u8, digest: u128) -> Self {
        Self {
            algorithm,
            digest: digest.to_le_bytes(),
        }
    }
}

/// The algorithm's id and the digest in hexadecimal: `1:99aa06d3014798d86001c324468d497f`.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm {
            NONE => f.write_str("none"),
            algorithm => write!(f, "{algorithm}:{:032x}", self.digest()),
        }
    }
}

/// Reads what [`Display`](fmt::Display) writes, to carry fingerprints from one store to another.
///
/// ```
/// use oncekey::Fingerprint;
///
/// let fingerprint = Fingerprint::of(b"1200 eur");
/// assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
/// assert_eq!("none".parse(), Ok(Fingerprint::none()));
/// assert!("1:99".parse::<Fingerprint>().is_err());
/// ```
impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        if text == "none" {
            return Ok(Self::none());
        }
        let parsed = text.split_once(':').and_then(|(algorithm, digest)| {
            let is_digest =
                digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            let digest = u128::from_str_radix(digest, 16)
                .ok()
                .filter(|_| is_digest)?;
            Some((algorithm.parse().ok()?, digest))
        });
        match parsed {
            Some((algorithm, digest)) if algorithm != NONE => Ok(Self::from_raw(algorithm, digest)),
            _ => Err(FingerprintError::Unreadable),
        }
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What [comparing](Fingerprint::compare) two fingerprints says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// The same request.
    Same,
    /// Another request: a claim with it is a mismatch.
    Different,
    /// Made by different algorithms, or at least one is [`Fingerprint::none`]. The store takes them
    /// for the same request, since it knows nothing to the contrary.
    NotComparable,
}

/// A fingerprint of several parts in the making: see [`Fingerprint::builder`].
#[must_use = "a builder makes no fingerprint until `finish` is called"]
#[derive(Clone)]
pub struct FingerprintBuilder {
    /// Boxed: over half a kilobyte, which every call would move otherwise.
    hasher: Box<Xxh3>,
}

impl FingerprintBuilder {
    /// Adds a part, which is digested at once and not kept.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.hasher.update(&(part.len() as u64).to_le_bytes());
        self.hasher.update(part);
        self
    }

    /// The fingerprint of the parts so far.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        self.finish_as(PARTS)
    }

    #[cfg(feature = "http")]
    pub(crate) fn finish_http_raw(self) -> Fingerprint {
        self.finish_as(HTTP_RAW)
    }

    #[cfg(feature = "http")]
    pub(crate) fn finish_http_json(self) -> Fingerprint {
        self.finish_as(HTTP_JSON)
    }

    fn finish_as(self, algorithm: u8) -> Fingerprint {
        Fingerprint {
            algorithm,
            digest: self.hasher.digest128().to_le_bytes(),
        }
    }
}

impl fmt::Debug for FingerprintBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintBuilder").finish_non_exhaustive()
    }
}

/// Why a [custom](Fingerprint::custom) fingerprint can't be made, or one can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintError {
    /// Algorithm ids below 128 are this library's. Choose one from 128 to 255.
    ReservedAlgorithm {
        /// The id that was given.
        algorithm: u8,
    },
    /// Text that no fingerprint is written as.
    Unreadable,
}

impl fmt::Display for FingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedAlgorithm { algorithm } => write!(
                f,
                "fingerprint algorithm id {algorithm} is reserved for the library; use one from \
                 {CUSTOM_MIN} to 255"
            ),
            Self::Unreadable => f.write_str(
                "a fingerprint is written as \"none\", or as an algorithm's id, a colon and 32 \
                 hexadecimal digits",
            ),
        }
    }
}

impl std::error::Error for FingerprintError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_parts(parts: &[Vec<u8>]) -> Fingerprint {
        let builder = Fingerprint::builder();
        parts
            .iter()
            .fold(builder, |builder, part| builder.part(part))
            .finish()
    }

    #[test]
    fn only_digests_of_one_algorithm_are_compared() {
        let kinds = [
            Fingerprint::none(),
            Fingerprint::of(b"a"),
            Fingerprint::builder().part(b"a").finish(),
            Fingerprint::custom(128, [1; 16]).unwrap(),
            Fingerprint::custom(255, [1; 16]).unwrap(),
            Fingerprint::from_raw(77, 1),
        ];
        for (at, one) in kinds.into_iter().enumerate() {
            for (other_at, other) in kinds.into_iter().enumerate() {
                let expected = if at == other_at && at != 0 {
                    Comparison::Same
                } else {
                    Comparison::NotComparable
                };
                assert_eq!(one.compare(other), expected, "{one} {other}");
            }
        }
        let other = Fingerprint::of(b"b");
        assert_eq!(kinds[1].compare(other), Comparison::Different);
    }

    #[test]
    fn custom_takes_the_upper_half_of_the_ids() {
        for algorithm in 0..=u8::MAX {
            let made = Fingerprint::custom(algorithm, [0; 16]);
            assert_eq!(made.is_ok(), algorithm >= 128);
            if let Err(error) = made {
                assert_eq!(error, FingerprintError::ReservedAlgorithm { algorithm });
                assert!(error.to_string().contains("from 128 to 255"));
            }
        }
    }

    /// Algorithms 1 and 2 must give these digests for ever: they stand in the log. The values are
    /// those of the reference implementation of XXH3-128, in C.
    #[test]
    fn the_digests_are_part_of_the_format() {
        let cases = [
            (Fingerprint::none(), "none"),
            (Fingerprint::of(b""), "1:99aa06d3014798d86001c324468d497f"),
            (
                Fingerprint::of(b"oncekey"),
                "1:2483f4d47a461e1341eb82ce6382ac6b",
            ),
            (
                Fingerprint::of([b'x'; 1_000]),
                "1:50a1af5a5f2dcf01c0a4877b962cba82",
            ),
            (
                Fingerprint::builder().finish(),
                "2:99aa06d3014798d86001c324468d497f",
            ),
            (
                Fingerprint::builder().part("once").part("key").finish(),
                "2:9858264b72cf688d42a78338fd40d417",
            ),
            (
                Fingerprint::builder().part([b'x'; 1_000]).finish(),
                "2:9ded8b00f48e420af32d4d8b7c06495d",
            ),
        ];
        for (fingerprint, shown) in cases {
            assert_eq!(fingerprint.to_string(), shown);
        }
    }

    #[test]
    fn a_custom_digest_is_shown_in_its_own_order() {
        let digest = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff";
        let fingerprint = Fingerprint::custom(200, digest).unwrap();
        let shown = "200:000102030405060708090a0b0c0d0eff";
        assert_eq!(fingerprint.to_string(), shown);
        assert_eq!(format!("{fingerprint:?}"), format!("Fingerprint({shown})"));
    }

    #[test]
    fn a_builder_can_be_forked() {
        let common = Fingerprint::builder().part("tenant");
        let one = common.clone().part("a").finish();
        assert_ne!(one, common.clone().part("b").finish());
        assert_eq!(one, common.part("a").finish());
    }

    proptest! {
        /// Short parts of few bytes: equal concatenations of different parts are common.
        #[test]
        fn parts_are_told_apart_wherever_they_are_cut(
            left in prop::collection::vec(prop::collection::vec(0..2_u8, 0..3), 0..4),
            right in prop::collection::vec(prop::collection::vec(0..2_u8, 0..3), 0..4),
        ) {
            let expected = if left == right { Comparison::Same } else { Comparison::Different };
            prop_assert_eq!(of_parts(&left).compare(of_parts(&right)), expected);
        }

        /// Digesting piece by piece, as the builder does, is digesting the whole encoding at once.
        #[test]
        fn parts_are_length_prefixed(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..700), 0..4),
        ) {
            let mut encoded = Vec::new();
            for part in &parts {
                encoded.extend_from_slice(&(part.len() as u64).to_le_bytes());
                encoded.extend_from_slice(part);
            }
            prop_assert_eq!(of_parts(&parts).digest(), xxh3_128(&encoded));
        }

        #[test]
        fn the_log_gives_back_what_it_got(algorithm: u8, digest: u128) {
            let fingerprint = Fingerprint::from_raw(algorithm, digest);
            let read = Fingerprint::from_raw(fingerprint.algorithm(), fingerprint.digest());
            prop_assert_eq!(read, fingerprint);
        }
    }
}
