//! Downstream keys: derived from the store's identity, the same for every attempt.

use xxhash_rust::xxh3::xxh3_128_with_secret;

use crate::engine::Engine;
use crate::fingerprint::Fingerprint;
use crate::key::Key;

impl Engine {
    /// See [`Operation::downstream_key`](crate::Operation::downstream_key).
    pub(crate) fn downstream_key(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        label: &str,
    ) -> String {
        let (scope, operation, id) = key.lengths();
        let mut input = Vec::with_capacity(64 + key.as_bytes().len() + label.len());
        input.extend_from_slice(&self.store_id.to_le_bytes());
        input.push(fingerprint.algorithm());
        input.extend_from_slice(&fingerprint.digest().to_le_bytes());
        for len in [scope, operation, id] {
            input.extend_from_slice(&len.to_le_bytes());
        }
        input.extend_from_slice(key.as_bytes());
        input.extend_from_slice(label.as_bytes());
        format!(
            "{:032x}",
            xxh3_128_with_secret(&input, self.downstream_secret.bytes())
        )
    }
}
