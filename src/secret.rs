//! Secrets derived from the store's, one for each purpose: the hash of the index and of side-cars,
//! downstream keys, and counting by scope.

use std::fmt;

use crate::log::word::mix;

/// Length of an XXH3 secret as this crate uses it.
const SECRET_BYTES: usize = 192;

/// A secret for keyed hashing, stretched from the store's. Clients choose keys; without it they
/// could choose ones that collide.
pub(crate) struct HashSecret([u8; SECRET_BYTES]);

impl HashSecret {
    /// The secret for one purpose.
    pub(crate) fn derive(secret: &[u8; 32], purpose: u64) -> Self {
        let mut stretched = [0; SECRET_BYTES];
        for (index, chunk) in stretched.chunks_exact_mut(8).enumerate() {
            // Every word depends on the whole secret, the purpose and its place.
            let mut word = mix(purpose ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            for part in secret.chunks_exact(8) {
                let part = part
                    .first_chunk()
                    .map_or(0, |part| u64::from_le_bytes(*part));
                word = mix(word ^ part).wrapping_add(part.rotate_left(index as u32));
            }
            chunk.copy_from_slice(&mix(word).to_le_bytes());
        }
        Self(stretched)
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}

/// Purposes of derived secrets. Part of the format: downstream keys must not change.
pub(crate) const INDEX: u64 = 1;
pub(crate) const DOWNSTREAM: u64 = 2;
pub(crate) const SCOPES: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_secrets_differ_by_secret_and_purpose() {
        let one = HashSecret::derive(&[1; 32], INDEX);
        assert_eq!(one.bytes(), HashSecret::derive(&[1; 32], INDEX).bytes());
        assert_ne!(
            one.bytes(),
            HashSecret::derive(&[1; 32], DOWNSTREAM).bytes()
        );
        assert_ne!(one.bytes(), HashSecret::derive(&[2; 32], INDEX).bytes());
        let mut words: Vec<&[u8]> = one.bytes().chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), SECRET_BYTES / 8);
    }
}
