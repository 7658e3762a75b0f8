//! Secrets derived from the store's, one for each purpose: the hash of the index and of side-cars,
//! downstream keys, and counting by scope.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128_with_secret;

use crate::fingerprint::Fingerprint;
use crate::key::Key;
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

    /// A key for a call to another system, of a secret derived for [`DOWNSTREAM`]: the same for every
    /// attempt of the operation, different for every other one, and for every `owner`.
    pub(crate) fn downstream_key(
        &self,
        owner: &[u8],
        key: &Key,
        fingerprint: Fingerprint,
        label: &str,
    ) -> String {
        let (scope, operation, id) = key.lengths();
        let mut input = Vec::with_capacity(64 + key.as_bytes().len() + label.len());
        input.extend_from_slice(owner);
        input.push(fingerprint.algorithm());
        input.extend_from_slice(&fingerprint.digest().to_le_bytes());
        for len in [scope, operation, id] {
            input.extend_from_slice(&len.to_le_bytes());
        }
        input.extend_from_slice(key.as_bytes());
        input.extend_from_slice(label.as_bytes());
        format!("{:032x}", xxh3_128_with_secret(&input, &self.0))
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
