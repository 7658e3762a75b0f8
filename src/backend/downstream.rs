//! The downstream keys of an operation, for whoever has no guard of it.

use crate::backend::{AnyBackend, Backend};
use crate::fingerprint::Fingerprint;
use crate::key::Key;

/// What it takes to derive downstream keys after the guard was given away.
#[derive(Clone)]
pub(crate) struct Downstream {
    backend: AnyBackend,
    key: Key,
    fingerprint: Fingerprint,
}

impl Downstream {
    pub(crate) fn new(backend: AnyBackend, key: Key, fingerprint: Fingerprint) -> Self {
        Self {
            backend,
            key,
            fingerprint,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn derive(&self, label: &str) -> String {
        self.backend
            .downstream_key(&self.key, self.fingerprint, label)
    }
}
