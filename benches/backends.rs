//! What a claim costs where the keys are: in the process, in SQLite, in PostgreSQL, in Redis.
//!
//! ```text
//! cargo bench --features redis,sql --bench backends
//! cargo bench --features redis,sql --bench backends -- --quick
//! ```
//!
//! Each server is started here, on this machine, and syncs what it acknowledges; so does the store in
//! `Sync`. A client elsewhere adds its network twice a step. Rounds of all contestants take turns, and
//! the medians are printed. Without `--bench` (as `cargo test --benches` runs it) everything runs once,
//! in miniature.

#[path = "contest/place.rs"]
mod place;
#[path = "../tests/backends/servers.rs"]
#[allow(dead_code, reason = "each uses its part")]
mod servers;

use std::time::{Duration, Instant};

use oncekey::backend::{Answer, AnyBackend, Backend, Guard, Outcome};
use oncekey::redis::{RedisBackend, redis};
use oncekey::shared::SharedOptions;
use oncekey::sql::sqlx::{PgPool, SqlitePool, postgres, sqlite};
use oncekey::sql::{self, PostgresBackend, SqliteBackend};
use oncekey::{ClaimOptions, Durability, Fingerprint, Key, Options};
use tokio::task::JoinSet;

use servers::Server;

const CALLERS: [usize; 2] = [1, 16];
const RESPONSE: [u8; 512] = [b'r'; 512];

struct Contestant {
    name: &'static str,
    backend: AnyBackend,
    /// Microseconds of a claim+complete and of a replay, for each number of callers: one a round.
    micros: [[Vec<f64>; 2]; CALLERS.len()],
}

impl Contestant {
    fn new(name: &'static str, backend: impl Backend) -> Self {
        Self {
            name,
            backend: AnyBackend::new(backend),
            micros: Default::default(),
        }
    }
}

fn options() -> SharedOptions {
    SharedOptions::new("an identity for benchmarks alone")
}

async fn lifecycle(backend: &AnyBackend, key: &Key) {
    let request = Fingerprint::of(b"a request");
    let claim = backend.claim(key, request, ClaimOptions::new()).await;
    let guard = claim.expect("claimed").into_guard().expect("a new key");
    let completed = guard.complete(Answer::response(&RESPONSE)).await;
    completed.expect("completed");
}

async fn replay(backend: &AnyBackend, key: &Key) {
    let request = Fingerprint::of(b"a request");
    let claim = backend.claim(key, request, ClaimOptions::new()).await;
    assert!(matches!(claim.expect("claimed"), Outcome::Completed(_)));
}

/// Microseconds an operation, in the time of all callers together.
async fn timed(backend: &AnyBackend, keys: &[Vec<Key>], is_replay: bool) -> f64 {
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for keys in keys {
        let (backend, keys) = (backend.clone(), keys.clone());
        callers.spawn(async move {
            for key in &keys {
                match is_replay {
                    true => replay(&backend, key).await,
                    false => lifecycle(&backend, key).await,
                }
            }
        });
    }
    callers.join_all().await;
    let operations: usize = keys.iter().map(Vec::len).sum();
    begun.elapsed().as_secs_f64() * 1e6 / operations as f64
}

fn keys(round: usize, callers: usize, each: usize) -> Vec<Vec<Key>> {
    let key = |caller, index| {
        let id = format!("{round}-{callers}-{caller}-{index}");
        Key::new("tenant-0001", "POST /v1/payments", id).expect("a key")
    };
    let of_caller = |caller| (0..each).map(|index| key(caller, index)).collect();
    (0..callers).map(of_caller).collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn postgres(server: &Server) -> PostgresBackend {
    let options_of_server = postgres::PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(server.port())
        .username("oncekey")
        .database("postgres");
    let pool: PgPool = loop {
        let pool = postgres::PgPoolOptions::new().max_connections(16);
        match pool.connect_with(options_of_server.clone()).await {
            Ok(pool) => break pool,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    sql::migrate_postgres(&pool).await.expect("migrated");
    PostgresBackend::new(pool, options()).expect("options")
}

async fn main_async() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let (rounds, operations) = match (has("--bench"), has("--quick")) {
        (false, _) => (1, 16),
        (true, true) => (3, 320),
        (true, false) => (5, 1_600),
    };
    let directory = place::directory();
    let embedded = |name: &str, durability| {
        let options = Options::new().durability(durability);
        options.open(directory.path().join(name)).expect("a store")
    };
    let file = sqlite::SqliteConnectOptions::new()
        .filename(directory.path().join("keys.db"))
        .journal_mode(sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlite::SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(60))
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(file).await.expect("a file");
    sql::migrate_sqlite(&pool).await.expect("migrated");
    let mut contestants = vec![
        Contestant::new(
            "embedded, `Buffered`",
            embedded("buffered", Durability::Buffered),
        ),
        Contestant::new("embedded, `Sync`", embedded("sync", Durability::Sync)),
        Contestant::new(
            "SQLite, WAL, `synchronous=FULL`",
            SqliteBackend::new(pool, options()).expect("options"),
        ),
    ];
    let postgres_server = Server::durable_postgres();
    if let Some(server) = &postgres_server {
        let backend = postgres(server).await;
        contestants.push(Contestant::new("PostgreSQL", backend));
    }
    let redis_server = Server::redis();
    if let Some(server) = &redis_server {
        let url = format!("redis://127.0.0.1:{}/", server.port());
        let client = redis::Client::open(url).expect("a url");
        let connection = client.get_connection_manager().await.expect("connected");
        let backend = RedisBackend::connect(connection, "bench", options()).await;
        let backend = backend.expect("a usable server");
        contestants.push(Contestant::new("Redis, `appendfsync always`", backend));
    }
    for round in 0..rounds {
        for (place, callers) in CALLERS.into_iter().enumerate() {
            let keys = keys(round, callers, operations / 16);
            for contestant in &mut contestants {
                for (work, is_replay) in [false, true].into_iter().enumerate() {
                    let micros = timed(&contestant.backend, &keys, is_replay).await;
                    contestant.micros[place][work].push(micros);
                }
            }
        }
    }
    println!(
        "Microseconds an operation, medians of {rounds} rounds; with 16 callers, of all together."
    );
    if cfg!(feature = "testing") {
        println!("**Built with the feature `testing`, which slows the embedded store down.**");
    }
    println!();
    println!("| | claim+complete | 16 callers | replay | 16 callers |");
    println!("|---|---:|---:|---:|---:|");
    for contestant in &mut contestants {
        let [one, many] = &mut contestant.micros;
        let [new, new_of_many] = [median(&mut one[0]), median(&mut many[0])];
        let [old, old_of_many] = [median(&mut one[1]), median(&mut many[1])];
        println!(
            "| {} | {new:.1} | {new_of_many:.1} | {old:.1} | {old_of_many:.1} |",
            contestant.name
        );
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(main_async());
}
