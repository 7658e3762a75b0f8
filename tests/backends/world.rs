//! The backends under test, and how the tests get at them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncekey::conformance::Factory;
use oncekey::redis::redis::aio::ConnectionManager;
use oncekey::redis::{RedisBackend, redis};
use oncekey::shared::SharedOptions;
use oncekey::sql::sqlx::{PgPool, SqlitePool, postgres, sqlite};
use oncekey::sql::{self, PostgresBackend, SqliteBackend};
use oncekey::{ManualClock, Options, Store};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::servers::Server;

/// More than anything here takes.
pub const LONG: Duration = Duration::from_secs(120);

/// Long enough that no machine stands still for most of it, short enough to wait for.
pub const LEASE: Duration = Duration::from_secs(4);

pub fn options() -> SharedOptions {
    SharedOptions::new("an identity of sixteen bytes or more")
        .lease(LEASE)
        .poll(Duration::from_millis(20))
}

/// Runs a test on a runtime of its own.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test)
}

pub async fn postgres_pool(port: u16) -> PgPool {
    let server = postgres::PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username("oncekey")
        .database("postgres");
    let begun = Instant::now();
    loop {
        let pool = postgres::PgPoolOptions::new().max_connections(12);
        match pool.connect_with(server.clone()).await {
            Ok(pool) => return pool,
            Err(error) => assert!(begun.elapsed() < LONG, "no connection: {error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub async fn postgres(port: u16) -> (PgPool, PostgresBackend) {
    let pool = postgres_pool(port).await;
    sql::migrate_postgres(&pool).await.expect("migrated");
    let backend = PostgresBackend::new(pool.clone(), options()).expect("options");
    (pool, backend)
}

pub async fn sqlite(directory: &TempDir) -> (SqlitePool, SqliteBackend) {
    let file = sqlite::SqliteConnectOptions::new()
        .filename(directory.path().join("keys.db"))
        .journal_mode(sqlite::SqliteJournalMode::Wal)
        .busy_timeout(LONG)
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(file).await.expect("a file");
    sql::migrate_sqlite(&pool).await.expect("migrated");
    let backend = SqliteBackend::new(pool.clone(), options()).expect("options");
    (pool, backend)
}

pub async fn redis_connection(port: u16) -> ConnectionManager {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).expect("a url");
    let begun = Instant::now();
    loop {
        let mut connection = match client.get_connection_manager().await {
            Ok(connection) => connection,
            Err(error) => {
                assert!(begun.elapsed() < LONG, "no connection: {error}");
                continue;
            }
        };
        // It says no while it loads what it wrote before.
        let ping = redis::cmd("PING");
        match ping.query_async::<String>(&mut connection).await {
            Ok(_) => return connection,
            Err(error) => assert!(begun.elapsed() < LONG, "no answer: {error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub async fn redis(port: u16) -> RedisBackend {
    let mut connection = redis_connection(port).await;
    let begun = Instant::now();
    // A cluster answers pings before it takes commands again.
    while let Err(error) = redis::cmd("EXISTS")
        .arg("ready")
        .query_async::<i64>(&mut connection)
        .await
    {
        assert!(begun.elapsed() < LONG, "not ready: {error}");
        sleep(Duration::from_millis(50)).await;
    }
    let connected = RedisBackend::connect(connection, "test", options()).await;
    connected.expect("a usable server")
}

#[derive(Clone)]
pub struct Embedded {
    directory: Arc<TempDir>,
    clock: ManualClock,
    store: Arc<Mutex<Option<Store>>>,
}

impl Embedded {
    pub fn new() -> Self {
        let this = Self {
            directory: Arc::new(tempfile::tempdir().expect("a directory")),
            clock: ManualClock::new(1_700_000_000_000),
            store: Arc::default(),
        };
        *this.store.lock().expect("no panic") = Some(this.opened());
        this
    }

    fn opened(&self) -> Store {
        let options = Options::new().clock(Arc::new(self.clock.clone()));
        let opened = options.segment_size(16 << 20).max_response(1 << 20);
        opened.open(self.directory.path()).expect("a store")
    }

    pub fn store(&self) -> Store {
        self.store.lock().expect("no panic").clone().expect("open")
    }
}

impl Factory for Embedded {
    type Backend = Store;

    async fn open(&self) -> Store {
        self.store()
    }

    async fn restart(&self) -> Option<Store> {
        self.store().close().expect("closed");
        let store = self.opened();
        *self.store.lock().expect("no panic") = Some(store.clone());
        Some(store)
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }
}

#[derive(Clone)]
pub struct InSqlite(pub Arc<TempDir>);

impl Factory for InSqlite {
    type Backend = SqliteBackend;

    async fn open(&self) -> SqliteBackend {
        sqlite(&self.0).await.1
    }

    async fn restart(&self) -> Option<SqliteBackend> {
        Some(self.open().await)
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE)
    }
}

#[derive(Clone)]
pub struct InPostgres(pub Arc<Mutex<Server>>);

impl Factory for InPostgres {
    type Backend = PostgresBackend;

    async fn open(&self) -> PostgresBackend {
        let port = self.0.lock().expect("no panic").port();
        postgres(port).await.1
    }

    async fn restart(&self) -> Option<PostgresBackend> {
        self.0.lock().expect("no panic").restart();
        Some(self.open().await)
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE)
    }
}

#[derive(Clone)]
pub struct InRedis(pub Arc<Mutex<Server>>);

impl Factory for InRedis {
    type Backend = RedisBackend;

    async fn open(&self) -> RedisBackend {
        let port = self.0.lock().expect("no panic").port();
        redis(port).await
    }

    async fn restart(&self) -> Option<RedisBackend> {
        self.0.lock().expect("no panic").restart();
        Some(self.open().await)
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE)
    }
}
