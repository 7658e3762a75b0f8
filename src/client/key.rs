//! Keys as clients send them. Only the journal makes one, and everything else borrows it.

use std::fmt;

use http::HeaderValue;

/// How a key is written into its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KeyFormat {
    /// A structured-field string, `"8e03978e-…"`, as the IETF's draft has it. The default.
    #[default]
    StructuredString,
    /// The bare token, `8e03978e-…`, as Stripe and most services of today take it.
    Raw,
}

/// The key of one journaled operation, the same in all of its attempts.
///
/// It can't be made by hand and has no way to be made anew: what retries borrows it from the
/// operation. 36 characters in the form of a UUID, of which 122 bits are pseudo-random.
///
/// It is derived from the operation's name and request with the secret of the journal's store. So
/// the same operation begun again has the same key even where the journal has lost it, such as
/// after a backup was put back.
///
/// ```compile_fail
/// let key = oncekey::client::IdempotencyKey("made inside a retry".to_owned());
/// ```
#[derive(PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// `digest` has 32 hexadecimal digits.
    pub(super) fn from_digest(digest: &str) -> Self {
        let mut key = String::with_capacity(36);
        for (at, digit) in digest.chars().enumerate() {
            if matches!(at, 8 | 12 | 16 | 20) {
                key.push('-');
            }
            key.push(match at {
                // The version, pseudo-random, and the variant.
                12 => '4',
                16 => match digit {
                    '0' | '4' | '8' | 'c' => '8',
                    '1' | '5' | '9' | 'd' => '9',
                    '2' | '6' | 'a' | 'e' => 'a',
                    _ => 'b',
                },
                _ => digit,
            });
        }
        Self(key)
    }

    /// The key without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn header(&self, format: KeyFormat) -> HeaderValue {
        let written = match format {
            KeyFormat::StructuredString => match sfv::StringRef::from_str(&self.0) {
                Ok(key) => sfv::ItemSerializer::new().bare_item(key).finish(),
                Err(_) => self.0.clone(),
            },
            KeyFormat::Raw => self.0.clone(),
        };
        // Hexadecimal digits, hyphens and quotes may stand in any header.
        HeaderValue::try_from(written).unwrap_or_else(|_| unreachable!("a key is ASCII"))
    }
}

/// Whoever learns a key may learn what became of the operation, so only its beginning is shown.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "IdempotencyKey({}…)",
            self.0.get(..8).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_uuid_of_version_4_and_keeps_the_other_digits() {
        let key = IdempotencyKey::from_digest("0123456789abcdef0123456789abcdef");
        assert_eq!(key.as_str(), "01234567-89ab-4def-8123-456789abcdef");
        let key = IdempotencyKey::from_digest("ffffffffffffffffffffffffffffffff");
        assert_eq!(key.as_str(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(ffffffff…)");
    }

    #[test]
    fn a_key_is_written_in_quotes_or_bare() {
        let key = IdempotencyKey::from_digest("0123456789abcdef0123456789abcdef");
        let quoted = key.header(KeyFormat::StructuredString);
        assert_eq!(quoted, "\"01234567-89ab-4def-8123-456789abcdef\"");
        assert_eq!(key.header(KeyFormat::Raw), key.as_str());
    }
}
