//! The receiver on its directory: the store, the book, and the socket.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use oncekey::http::IdempotencyLayer;
use oncekey::{Options, Store};
use tokio::net::TcpListener;
use tracing::warn;

use crate::book::Book;
use crate::receiver::{self, Endpoint, Kind, Receiver};

/// A few deliveries a second need no large segments.
const SEGMENT_BYTES: u64 = 4 << 20;

pub struct Host {
    pub store: Store,
    pub layer: IdempotencyLayer,
    pub receiver: Arc<Receiver>,
}

/// Two endpoints to begin with: a shop's payments, whose secret is being rotated, and a repository.
pub fn demonstration() -> HashMap<String, Endpoint> {
    let endpoint = |name: &str, kind, secrets: &[&str]| {
        let secrets = secrets.iter().map(|&secret| secret.to_owned()).collect();
        (name.to_owned(), Endpoint { kind, secrets })
    };
    HashMap::from([
        endpoint("shop", Kind::Stripe, &["whsec_new", "whsec_old"]),
        endpoint("code", Kind::GitHub, &["It's a Secret to Everybody"]),
    ])
}

pub fn book_path(data: &Path) -> PathBuf {
    data.join("book.jsonl")
}

pub fn store_options() -> Options {
    // A process that was killed may not be gone yet.
    let patience = Duration::from_secs(10);
    Options::new()
        .segment_size(SEGMENT_BYTES)
        .lock_wait(patience)
}

impl Host {
    pub fn open(
        data: &Path,
        endpoints: HashMap<String, Endpoint>,
        work: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        std::fs::create_dir_all(data)?;
        // The store first: its lock says that no other process writes the book.
        let store = store_options().open(data.join("store"))?;
        let receiver = Receiver {
            endpoints,
            book: Mutex::new(Book::open(&book_path(data))?),
            work,
        };
        Ok(Self {
            layer: receiver::idempotency(store.clone())?,
            receiver: Arc::new(receiver),
            store,
        })
    }

    pub fn routes(&self) -> Router {
        receiver::routes(Arc::clone(&self.receiver), self.layer.clone())
    }

    /// Serves until `stop`, then until the last handler is done.
    pub async fn serve(
        self,
        address: SocketAddr,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Box<dyn Error>> {
        let listener = TcpListener::bind(address).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                warn!(%error, "cannot set TCP_NODELAY");
            }
        });
        axum::serve(listener, self.routes())
            .with_graceful_shutdown(stop)
            .await?;
        self.layer.idle().await;
        let store = self.store;
        tokio::task::spawn_blocking(move || store.close()).await??;
        Ok(())
    }
}
