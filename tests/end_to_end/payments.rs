//! The payments service with its provider, on sockets of this process, and the provider's books.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use oncekey::http::IdempotencyLayer;
use oncekey::{Durability, Options, Store};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::api::{self, App};
use crate::ledger::Ledger;
use crate::owner::Reconcile;
use crate::payment::payment_id;
use crate::provider_client::ProviderClient;
use crate::server::Provider;
use crate::support::LONG;

const PROVIDER_DELAY_MAX: Duration = LONG;

pub struct Payments {
    pub address: SocketAddr,
    pub routes: Router,
    pub layer: IdempotencyLayer,
    pub books: Books,
    // Dropped last.
    _directory: TempDir,
}

/// What a service under test is like.
pub struct Setup {
    /// Whether the provider charges a key once, however often it is asked.
    pub provider_deduplicates: bool,
    /// How long a charge takes.
    pub charge: Duration,
    /// How long the service waits for its provider.
    pub provider_timeout: Duration,
    /// How long a duplicate waits.
    pub wait: Duration,
}

impl Default for Setup {
    /// A provider that charges as often as it is asked shows every run of the handler.
    fn default() -> Self {
        Self {
            provider_deduplicates: false,
            charge: Duration::ZERO,
            // Only answers that are lost on purpose take so long.
            provider_timeout: LONG,
            wait: Duration::from_millis(200),
        }
    }
}

impl Payments {
    pub async fn start(setup: Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let books = Books(directory.path().join("ledger.jsonl"));
        let ledger = Ledger::open(&books.0, setup.provider_deduplicates).unwrap();
        let provider = Provider::new(ledger, setup.charge, PROVIDER_DELAY_MAX);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(provider.serve(listener));

        let store = store(&directory);
        let provider =
            ProviderClient::new(&provider_url, setup.provider_timeout, PROVIDER_DELAY_MAX);
        let app = App {
            store: store.clone(),
            provider: provider.unwrap(),
            reconcile: Reconcile::Rerun,
            lease: None,
        };
        let layer = api::idempotency(store, setup.wait).unwrap();
        let routes = api::routes(Arc::new(app), layer.clone());
        Self {
            address: serve(routes.clone()).await,
            routes,
            layer,
            books,
            _directory: directory,
        }
    }
}

pub fn store(directory: &TempDir) -> Store {
    Options::new()
        .durability(Durability::Buffered)
        .segment_size(4 << 20)
        .open(directory.path().join("store"))
        .unwrap()
}

/// Serves until the runtime ends.
pub async fn serve(routes: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener.tap_io(|connection| connection.set_nodelay(true).unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

/// The provider's ledger, read from outside.
#[derive(Clone)]
pub struct Books(PathBuf);

impl Books {
    /// How often each payment was charged.
    pub fn charges(&self) -> HashMap<String, usize> {
        let text = std::fs::read(&self.0).unwrap();
        let whole = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1);
        let mut payments = HashMap::new();
        let mut charges = HashMap::new();
        for line in text[..whole]
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let line: Value = serde_json::from_slice(line).unwrap();
            if line["line"] == "received" {
                let payment = line["payment"].as_str().unwrap().to_owned();
                payments.insert(line["number"].as_u64(), payment);
            } else if line["decision"] == "charged" {
                let payment = payments[&line["call"].as_u64()].clone();
                *charges.entry(payment).or_insert(0) += 1;
            }
        }
        charges
    }

    pub fn charged_in_all(&self) -> usize {
        self.charges().values().sum()
    }

    pub fn charged(&self, key: &str) -> usize {
        let charges = self.charges();
        charges
            .get(&payment_id(key.as_bytes()))
            .copied()
            .unwrap_or(0)
    }
}
