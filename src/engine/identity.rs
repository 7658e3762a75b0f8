//! Downstream keys: derived from the store's identity, the same for every attempt.

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
        let store = self.store_id.to_le_bytes();
        self.downstream_secret
            .downstream_key(&store, key, fingerprint, label)
    }
}
