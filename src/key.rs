//! Keys: who, what, and which one.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret};

use crate::limits::KEY_PART_BYTES_MAX;
use crate::log::word::mix;

/// The name of an operation: scope, operation and id.
///
/// * **scope** is who: tenant and principal. Two scopes never see each other's keys, so make it
///   from the authenticated caller, not from what the request claims.
/// * **operation** is what: method and concrete path, or the handler's name.
/// * **id** is which one: the client's idempotency key, or the event's id.
///
/// Scope and operation may be empty, the id may not. Each takes up to 255 bytes by default and 1,024
/// at most ([`Options::max_key_part`](crate::Options::max_key_part)); any bytes are allowed. The
/// parts are kept with their lengths, so no two different triples are the same key.
///
/// A key can be a secret (whoever knows it may learn what became of the operation), so `Debug` and
/// `Display` show the id only as a short digest; [`display_raw`](Self::display_raw) shows all.
///
/// ```
/// use oncekey::Key;
///
/// let key = Key::new("acct_1", "POST /v1/payments", "3f6c")?;
/// assert_eq!(key.id(), b"3f6c");
/// assert_ne!(key, Key::new("acct_1", "POST /v1/payments/3", "f6c")?);
/// # Ok::<(), oncekey::KeyError>(())
/// ```
#[derive(Clone)]
pub struct Key {
    bytes: Arc<[u8]>,
    scope_len: u16,
    operation_len: u16,
}

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        f.write_str(match self {
            Self::Scope => "scope",
            Self::Operation => "operation",
            Self::Id => "id",
        })
    }
}

/// Parts that make no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The part must not be empty.
    Empty {
        /// Which part.
        part: KeyPart,
    },
    /// The part is too long.
    TooLong {
        /// Which part.
        part: KeyPart,
        /// Its bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { part } => write!(f, "the key's {part} is empty"),
            Self::TooLong { part, len, max } => write!(
                f,
                "the key's {part} has {len} bytes, over the limit of {max}; use a digest of it, or \
                 raise Options::max_key_part (up to {KEY_PART_BYTES_MAX})"
            ),
        }
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// Makes a key of its three parts.
    ///
    /// # Errors
    ///
    /// [`KeyError`] for an empty id, or a part of more than 1,024 bytes. The smaller limit of a store
    /// is checked when the key is used.
    pub fn new(
        scope: impl AsRef<[u8]>,
        operation: impl AsRef<[u8]>,
        id: impl AsRef<[u8]>,
    ) -> Result<Self, KeyError> {
        let (scope, operation, id) = (scope.as_ref(), operation.as_ref(), id.as_ref());
        check_parts([scope.len(), operation.len(), id.len()], KEY_PART_BYTES_MAX)?;
        Ok(Self {
            bytes: [scope, operation, id].concat().into(),
            scope_len: scope.len() as u16,
            operation_len: operation.len() as u16,
        })
    }

    /// Who.
    pub fn scope(&self) -> &[u8] {
        self.parts().0
    }

    /// What.
    pub fn operation(&self) -> &[u8] {
        self.parts().1
    }

    /// Which one.
    pub fn id(&self) -> &[u8] {
        self.parts().2
    }

    /// All three parts, with everything but printable ASCII escaped. For operators: where keys are
    /// secrets, this shows them.
    pub fn display_raw(&self) -> impl fmt::Display {
        let (scope, operation, id) = self.parts();
        format!(
            "{}/{}/{}",
            scope.escape_ascii(),
            operation.escape_ascii(),
            id.escape_ascii()
        )
    }

    /// The three parts, one after the other.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn lengths(&self) -> (u16, u16, u16) {
        let id_len = self.bytes.len() as u16 - self.scope_len - self.operation_len;
        (self.scope_len, self.operation_len, id_len)
    }

    /// A key as it stands in the log.
    pub(crate) fn from_parts(bytes: &[u8], lengths: (u16, u16, u16)) -> Result<Self, KeyError> {
        let (scope, operation, id) = lengths;
        let sizes = [scope, operation, id].map(usize::from);
        check_parts(sizes, KEY_PART_BYTES_MAX)?;
        let len = sizes.iter().sum::<usize>();
        if bytes.len() != len {
            return Err(KeyError::TooLong {
                part: KeyPart::Id,
                len: bytes.len(),
                max: len,
            });
        }
        Ok(Self {
            bytes: bytes.into(),
            scope_len: scope,
            operation_len: operation,
        })
    }

    /// Whether a key in the log is this one.
    pub(crate) fn matches(&self, lengths: (u16, u16, u16), bytes: &[u8]) -> bool {
        self.lengths() == lengths && *self.bytes == *bytes
    }

    /// Checks the parts against a store's limit.
    pub(crate) fn check(&self, part_bytes_max: usize) -> Result<(), KeyError> {
        let (scope, operation, id) = self.lengths();
        check_parts([scope, operation, id].map(usize::from), part_bytes_max)
    }

    /// The keyed hash by which the index finds the key.
    pub(crate) fn hash_with(&self, secret: &[u8; 192]) -> u64 {
        let lengths = u64::from(self.scope_len) << 16 | u64::from(self.operation_len);
        xxh3_64_with_secret(&self.bytes, secret) ^ mix(lengths)
    }

    fn parts(&self) -> (&[u8], &[u8], &[u8]) {
        let (scope, rest) = self.bytes.split_at(usize::from(self.scope_len));
        let (operation, id) = rest.split_at(usize::from(self.operation_len));
        (scope, operation, id)
    }
}

fn check_parts([scope, operation, id]: [usize; 3], max: usize) -> Result<(), KeyError> {
    if id == 0 {
        return Err(KeyError::Empty { part: KeyPart::Id });
    }
    for (part, len) in [
        (KeyPart::Scope, scope),
        (KeyPart::Operation, operation),
        (KeyPart::Id, id),
    ] {
        if len > max {
            return Err(KeyError::TooLong { part, len, max });
        }
    }
    Ok(())
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.lengths() == other.lengths() && self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
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
        self.parts().cmp(&other.parts())
    }
}

/// Scope and operation escaped, the id as eight hexadecimal digits of a digest.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, operation, id) = self.parts();
        let digest = xxh3_64(id) as u32;
        write!(
            f,
            "{}/{}/#{digest:08x}",
            scope.escape_ascii(),
            operation.escape_ascii()
        )
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_exact() {
        let max = vec![b'x'; KEY_PART_BYTES_MAX];
        let over = vec![b'x'; KEY_PART_BYTES_MAX + 1];
        assert!(Key::new(&max, &max, &max).is_ok());
        assert_eq!(
            Key::new("", "", "").unwrap_err(),
            KeyError::Empty { part: KeyPart::Id }
        );
        for (parts, part) in [
            ([&over[..], b"", b"k"], KeyPart::Scope),
            ([b"", &over[..], b"k"], KeyPart::Operation),
            ([b"", b"", &over[..]], KeyPart::Id),
        ] {
            let error = Key::new(parts[0], parts[1], parts[2]).unwrap_err();
            assert_eq!(
                error,
                KeyError::TooLong {
                    part,
                    len: 1_025,
                    max: 1_024
                }
            );
        }
        let key = Key::new("s", "o", vec![b'x'; 256]).unwrap();
        assert!(key.check(255).is_err());
        assert!(key.check(256).is_ok());
    }

    #[test]
    fn nothing_shows_the_id() {
        let key = Key::new("acct\n", "POST /", "very-secret").unwrap();
        assert!(!format!("{key} {key:?}").contains("very-secret"));
        assert!(format!("{key}").starts_with("acct\\n/POST //#"));
        assert!(key.display_raw().to_string().ends_with("very-secret"));
    }

    proptest! {
        #[test]
        fn different_triples_are_different_keys(
            left in prop::array::uniform3(prop::collection::vec(0..3_u8, 0..4)),
            right in prop::array::uniform3(prop::collection::vec(0..3_u8, 0..4)),
        ) {
            prop_assume!(!left[2].is_empty() && !right[2].is_empty());
            let one = Key::new(&left[0], &left[1], &left[2]).unwrap();
            let other = Key::new(&right[0], &right[1], &right[2]).unwrap();
            prop_assert_eq!(left == right, one == other);
            let secret = [7; 192];
            prop_assert_eq!(left == right, one.hash_with(&secret) == other.hash_with(&secret));
            let read = Key::from_parts(one.as_bytes(), one.lengths()).unwrap();
            prop_assert_eq!(&read, &one);
            prop_assert!(one.matches(read.lengths(), read.as_bytes()));
            prop_assert_eq!(one.cmp(&other), left.cmp(&right));
        }
    }
}
