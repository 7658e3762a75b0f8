//! Keys: who, what, and which one.
//!
//! A [`Key`] is three byte strings kept as one: their concatenation, shared by all clones, and the
//! lengths that cut it up again. Everything that decides whether two keys are the same (equality,
//! the index's hash, the record in the log) looks at the lengths *and* the bytes, so `("ab", "c")`
//! and `("a", "bc")` never meet. A key never changes once it is made, and is always within
//! [`KEY_PART_BYTES_MAX`]; the lower limit of one store is checked where the key enters it.
//!
//! Nothing here prints an id unasked: whoever learns it may learn what became of the operation.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret, xxh3_128_with_secret};

use crate::domain::Domain;
use crate::limits::KEY_PART_BYTES_MAX;
use crate::log::word::mix;

/// The name of an operation: scope, operation and id.
///
/// * **scope** is *who*: tenant and principal. Two scopes never see each other's keys, so make it
///   from the authenticated caller and not from what the request claims. Callers who are not
///   authenticated need something that tells them apart; a shared constant such as `anonymous`
///   would hand one caller's result to another.
/// * **operation** is *what*: method and concrete path (`PUT /tickets/1`, not the route's pattern),
///   or the name of the handler or consumer.
/// * **id** is *which one*: the client's idempotency key, or the event's or message's id.
///
/// Two keys are the same when all three parts are, byte for byte: nothing is trimmed, folded or
/// normalised, and any bytes are allowed, NUL and invalid UTF-8 included. Scope and operation may
/// be empty, the id may not. A store takes 255 bytes a part unless set otherwise
/// ([`Options::max_key_part`](crate::Options::max_key_part)), and 1,024 at most.
///
/// A key is immutable; a clone shares its bytes. Keys order by scope, then operation, then id.
///
/// # Secrecy
///
/// An id can be a secret: who knows it may be able to ask what became of the operation. So `Debug`
/// and `Display` show scope and operation, escaped, but of the id only a digest of eight
/// hexadecimal digits, enough to follow one operation through a log. The digest is not keyed and
/// hides only what can't be guessed: an id of few digits can be found from it by trying them all.
/// Operators who need the id itself ask for [`display_raw`](Self::display_raw).
///
/// # Examples
///
/// ```
/// use oncekey::Key;
///
/// let key = Key::new("acct_1", "POST /v1/payments", "3f6c1f0a")?;
/// assert_eq!(key.scope(), b"acct_1");
/// assert_eq!(key.operation(), b"POST /v1/payments");
/// assert_eq!(key.id(), b"3f6c1f0a");
///
/// // Where one part ends and the next begins is part of the key.
/// assert_ne!(key, Key::new("acct_1", "POST /v1/payments3", "f6c1f0a")?);
///
/// // Logs show the id as a digest only.
/// assert!(!format!("{key} {key:?}").contains("3f6c1f0a"));
/// # Ok::<(), oncekey::KeyError>(())
/// ```
#[derive(Clone)]
pub struct Key {
    /// Scope, operation and id, one after the other.
    bytes: Arc<[u8]>,
    scope_len: u16,
    operation_len: u16,
    domain: Domain,
}

// The casts in `new` and `lengths` rely on it: a part, and the sum of all three, fit into a u16.
const _: () = assert!(3 * KEY_PART_BYTES_MAX <= u16::MAX as usize);

impl Key {
    /// Makes a key of its three parts.
    ///
    /// Text, `String`, byte slices and arrays are all accepted. Costs one allocation.
    ///
    /// # Errors
    ///
    /// * [`KeyError::Empty`] if `id` is empty.
    /// * [`KeyError::TooLong`] if a part has more than 1,024 bytes, which no store takes. A store's
    ///   own limit, 255 bytes by default, is checked by the calls that the key is given to.
    ///
    /// # Examples
    ///
    /// ```
    /// use oncekey::{Key, KeyError, KeyPart};
    ///
    /// // An event consumer: no tenant, the consumer's name, the event's binary id.
    /// let key = Key::new("", "order-mailer", [0xde, 0xad, 0xbe, 0xef])?;
    /// assert_eq!(key.scope(), b"");
    ///
    /// let error = Key::new("acct_1", "POST /v1/payments", "").unwrap_err();
    /// assert_eq!(error, KeyError::Empty { part: KeyPart::Id });
    /// # Ok::<(), KeyError>(())
    /// ```
    pub fn new(
        scope: impl AsRef<[u8]>,
        operation: impl AsRef<[u8]>,
        id: impl AsRef<[u8]>,
    ) -> Result<Self, KeyError> {
        let (scope, operation, id) = (scope.as_ref(), operation.as_ref(), id.as_ref());
        check_parts([scope.len(), operation.len(), id.len()], KEY_PART_BYTES_MAX)?;
        let len = scope.len() + operation.len() + id.len();
        // Filled in place, which spares the second allocation of going through a vector.
        let mut bytes: Arc<[u8]> = iter::repeat_n(0, len).collect();
        let (scope_to, rest) = Arc::make_mut(&mut bytes).split_at_mut(scope.len());
        let (operation_to, id_to) = rest.split_at_mut(operation.len());
        scope_to.copy_from_slice(scope);
        operation_to.copy_from_slice(operation);
        id_to.copy_from_slice(id);
        Ok(Self {
            bytes,
            scope_len: scope.len() as u16,
            operation_len: operation.len() as u16,
            domain: Domain::Operations,
        })
    }

    /// Who: the tenant and principal. May be empty.
    pub fn scope(&self) -> &[u8] {
        self.parts().0
    }

    /// What: the method and path, or the name of the handler. May be empty.
    pub fn operation(&self) -> &[u8] {
        self.parts().1
    }

    /// Which one: the client's idempotency key, or the event's id. Never empty, and possibly a
    /// secret: see [secrecy](Self#secrecy).
    pub fn id(&self) -> &[u8] {
        self.parts().2
    }

    /// Shows the whole key, the id included: `scope/operation/id`, everything but printable ASCII
    /// escaped as in a byte string literal.
    ///
    /// For the eyes of operators. It reveals what may be a secret, so keep it out of logs; and
    /// since parts may contain `/`, it is not an encoding to read back.
    ///
    /// ```
    /// use oncekey::Key;
    ///
    /// let key = Key::new("acct_1", "charge", b"\x00\xffid")?;
    /// assert_eq!(key.display_raw().to_string(), r"acct_1/charge/\x00\xffid");
    /// # Ok::<(), oncekey::KeyError>(())
    /// ```
    pub fn display_raw(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            let (scope, operation, id) = self.parts();
            write!(
                f,
                "{}/{}/{}",
                scope.escape_ascii(),
                operation.escape_ascii(),
                id.escape_ascii()
            )
        })
    }

    /// The three parts, one after the other, as they stand in the log.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How [`as_bytes`](Self::as_bytes) is cut up: the lengths of scope, operation and id.
    #[inline]
    pub(crate) fn lengths(&self) -> (u16, u16, u16) {
        let id_len = self.bytes.len() as u16 - self.scope_len - self.operation_len;
        (self.scope_len, self.operation_len, id_len)
    }

    /// The same parts as a key of another domain.
    pub(crate) fn within(mut self, domain: Domain) -> Self {
        self.domain = domain;
        self
    }

    #[inline]
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    /// The key of an operation, from a ticket. Trusts neither the bytes nor the lengths.
    pub(crate) fn from_parts(bytes: &[u8], lengths: (u16, u16, u16)) -> Result<Self, MalformedKey> {
        let (scope_len, operation_len, id_len) = lengths;
        let lens = [scope_len, operation_len, id_len].map(usize::from);
        if check_parts(lens, KEY_PART_BYTES_MAX).is_err()
            || lens.iter().sum::<usize>() != bytes.len()
        {
            return Err(MalformedKey);
        }
        Ok(Self {
            bytes: bytes.into(),
            scope_len,
            operation_len,
            domain: Domain::Operations,
        })
    }

    /// Whether a key of its domain in the log is this one. For bytes and lengths of any origin.
    #[inline]
    pub(crate) fn matches(&self, lengths: (u16, u16, u16), bytes: &[u8]) -> bool {
        self.lengths() == lengths && *self.bytes == *bytes
    }

    /// Checks the parts against the limit of a store.
    #[inline]
    pub(crate) fn check(&self, part_bytes_max: usize) -> Result<(), KeyError> {
        let (scope, operation, id) = self.lengths();
        check_parts([scope, operation, id].map(usize::from), part_bytes_max)
    }

    /// The hash by which the index finds the key.
    ///
    /// Clients choose keys, so it depends on a secret: they can't aim for one stripe or one slot.
    /// The last step is a bijection of the bytes' hash and the lengths. Triples of one
    /// concatenation therefore never collide, and how far apart they land depends on the secret
    /// too. XXH3 is no pseudorandom function in the cryptographic sense; a collision costs a look
    /// at the log, since the index compares whole keys, and is never taken for equality.
    #[inline]
    pub(crate) fn hash_with(&self, secret: &[u8; 192]) -> u64 {
        let lengths = (self.scope_len, self.operation_len);
        hash(self.domain, &self.bytes, lengths, secret)
    }

    /// The same of a key in the log; `None` for bytes that are no key.
    pub(crate) fn hash_of(
        domain: Domain,
        bytes: &[u8],
        lengths: (u16, u16, u16),
        secret: &[u8; 192],
    ) -> Option<u64> {
        let (scope_len, operation_len, id_len) = lengths;
        let lens = [scope_len, operation_len, id_len].map(usize::from);
        let is_key = check_parts(lens, KEY_PART_BYTES_MAX).is_ok()
            && lens.iter().sum::<usize>() == bytes.len();
        is_key.then(|| hash(domain, bytes, (scope_len, operation_len), secret))
    }

    /// The hash of scope and operation alone: a message's topic and key.
    pub(crate) fn lane(&self, secret: &[u8; 192]) -> u64 {
        let lengths = (self.scope_len, self.operation_len);
        let len = usize::from(self.scope_len) + usize::from(self.operation_len);
        hash(self.domain, &self.bytes[..len], lengths, secret)
    }

    /// A digest of a key in the log, wide enough to stand for the key where the keys of a whole store
    /// do not fit into memory.
    pub(crate) fn digest_of(bytes: &[u8], lengths: (u16, u16, u16), secret: &[u8; 192]) -> u128 {
        // Odd, so that two triples of one concatenation never meet.
        const SPREAD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        let cut = u128::from(lengths.0) << 16 | u128::from(lengths.1);
        xxh3_128_with_secret(bytes, secret) ^ cut.wrapping_mul(SPREAD)
    }

    fn parts(&self) -> (&[u8], &[u8], &[u8]) {
        // In bounds: both constructors checked the lengths, and nothing changes them afterwards.
        let (scope, rest) = self.bytes.split_at(usize::from(self.scope_len));
        let (operation, id) = rest.split_at(usize::from(self.operation_len));
        (scope, operation, id)
    }
}

#[inline]
fn hash(domain: Domain, bytes: &[u8], lengths: (u16, u16), secret: &[u8; 192]) -> u64 {
    let (scope_len, operation_len) = lengths;
    let lengths = u64::from(scope_len) << 16 | u64::from(operation_len);
    let domain = (domain as u64) << 32;
    mix(xxh3_64_with_secret(bytes, secret) ^ domain ^ lengths)
}

#[inline]
fn check_parts([scope, operation, id]: [usize; 3], max: usize) -> Result<(), KeyError> {
    if id == 0 {
        return Err(KeyError::Empty { part: KeyPart::Id });
    }
    let parts = [
        (KeyPart::Scope, scope),
        (KeyPart::Operation, operation),
        (KeyPart::Id, id),
    ];
    match parts.into_iter().find(|(_, len)| *len > max) {
        Some((part, len)) => Err(KeyError::TooLong { part, len, max }),
        None => Ok(()),
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        // A guard and the index hold clones of one key, as a rule.
        self.lengths() == other.lengths()
            && self.domain == other.domain
            && (Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.domain.hash(state);
        self.lengths().hash(state);
        self.bytes.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By scope, then operation, then id.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.parts(), self.domain).cmp(&(other.parts(), other.domain))
    }
}

/// `scope/operation/#digest`: scope and operation escaped, the id as eight hexadecimal digits of a
/// digest. See [secrecy](Key#secrecy).
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, operation, id) = self.parts();
        write!(
            f,
            "{}/{}/#{:08x}",
            scope.escape_ascii(),
            operation.escape_ascii(),
            xxh3_64(id) >> 32
        )
    }
}

/// As [`Display`](fmt::Display), so that a structure with a key in it can be logged as it is.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// One of the three parts of a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// Who.
    Scope,
    /// What.
    Operation,
    /// Which one.
    Id,
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scope => "scope",
            Self::Operation => "operation",
            Self::Id => "id",
        })
    }
}

/// Three parts that make no key, or none that this store takes.
///
/// The client sent something unusable: an HTTP service answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// A part is empty that must not be. Only the id must not: without it every operation of its
    /// kind would be the same one.
    Empty {
        /// Which part.
        part: KeyPart,
    },
    /// A part is too long. Raise [`Options::max_key_part`](crate::Options::max_key_part) (to 1,024
    /// at most), or put a digest of the part in its place.
    TooLong {
        /// Which part.
        part: KeyPart,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { part } => write!(
                f,
                "the key's {part} is empty; give every operation one of its own, of 1 byte or more"
            ),
            Self::TooLong { part, len, max } => {
                write!(
                    f,
                    "the key's {part} has {len} bytes, over the limit of {max}; "
                )?;
                if *max < KEY_PART_BYTES_MAX {
                    write!(
                        f,
                        "raise Options::max_key_part (up to {KEY_PART_BYTES_MAX}), or "
                    )?;
                }
                f.write_str("use a cryptographic digest of it instead")
            }
        }
    }
}

impl std::error::Error for KeyError {}

/// Bytes and lengths that are no key: they contradict each other or exceed every store's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedKey;

#[cfg(test)]
mod tests;
