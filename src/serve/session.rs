//! What a connection knows of its client, and what all connections share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore};

use super::command::Guards;
use super::options::ServeOptions;
use super::reply::Protocol;
use super::request::RequestLimits;
use crate::store::Store;
use crate::values::Values;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) values: Values,
    pub(super) guards: Guards,
    pub(super) options: ServeOptions,
    pub(super) started: Instant,
    pub(super) clients: AtomicUsize,
    /// A permit for each TLS handshake that may be under way.
    pub(super) handshakes: Semaphore,
    pub(super) next_client: AtomicU64,
    /// Held while a password is looked at, and for a while after a wrong one.
    pub(super) guess: Mutex<()>,
}

impl Shared {
    /// What a request may be: of a client that is not authenticated, little.
    pub(super) fn limits(&self, session: &Session) -> RequestLimits {
        let options = &self.options;
        if !session.is_authenticated {
            return RequestLimits {
                arguments: 10,
                argument_bytes: 1 << 10,
                bytes: 4 << 10,
            };
        }
        RequestLimits {
            arguments: options.arguments_max,
            argument_bytes: self.store.settings().response_bytes_max.max(1 << 10),
            bytes: options.request_bytes_max,
        }
    }

    pub(super) fn is_password(&self, user: &[u8], password: &[u8]) -> bool {
        let Some(expected) = &self.options.password else {
            return false;
        };
        // Every byte is looked at, so that time tells nothing but the length.
        let same = |one: &[u8], other: &[u8]| {
            let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
            one.len() == other.len() && differences == 0
        };
        same(self.options.user.as_bytes(), user) & same(expected.as_bytes(), password)
    }
}

/// One client.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) is_authenticated: bool,
    pub(super) name: Bytes,
    pub(super) wrong_passwords: u32,
    /// It said good-bye.
    pub(super) is_over: bool,
}

impl Session {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            id: shared.next_client.fetch_add(1, Ordering::Relaxed),
            protocol: Protocol::Resp2,
            is_authenticated: shared.options.password.is_none(),
            name: Bytes::new(),
            wrong_passwords: 0,
            is_over: false,
        }
    }
}
