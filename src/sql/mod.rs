//! Keys in PostgreSQL or SQLite, alone or inside the caller's own transaction.
//!
//! **Inside the transaction** is the strongest there is: claim, business writes and completion commit
//! or roll back together, so there is no crash in between to be reconciled, as long as all that the
//! operation does is in that database.
//!
//! ```
//! # #[cfg(feature = "sqlite")] async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use oncekey::backend::Answer;
//! use oncekey::shared::SharedOptions;
//! use oncekey::sql::{self, OnConflict, SqliteBackend, TransactionClaim, sqlx};
//! use oncekey::{ClaimOptions, Fingerprint, Key};
//!
//! # let dir = tempfile::tempdir()?;
//! # let file = sqlx::sqlite::SqliteConnectOptions::new()
//! #     .filename(dir.path().join("orders.db")).create_if_missing(true);
//! let pool = sqlx::SqlitePool::connect_with(file).await?;
//! sql::migrate_sqlite(&pool).await?;
//! # sqlx::query("CREATE TABLE orders (id TEXT)").execute(&pool).await?;
//! let backend = SqliteBackend::new(pool.clone(), SharedOptions::new("orders, 7f2c1ab0e9d34f55"))?;
//!
//! let key = Key::new("acct_1", "POST /v1/orders", "k-1")?;
//! let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
//! let request = Fingerprint::of(b"2 apples");
//! let claim = backend
//!     .claim_in(&mut transaction, &key, request, ClaimOptions::new(), OnConflict::Wait)
//!     .await?;
//! match claim {
//!     TransactionClaim::Started(operation) | TransactionClaim::Interrupted(operation) => {
//!         sqlx::query("INSERT INTO orders VALUES ('o-1')").execute(&mut *transaction).await?;
//!         operation.complete(&mut *transaction, Answer::response(b"o-1")).await?;
//!         transaction.commit().await?;
//!     }
//!     TransactionClaim::Completed(saved) => { saved.by_scope()?; /* replay it */ }
//!     _ => { /* 409 or 422 */ }
//! }
//! # Ok(())
//! # }
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
//! #     .block_on(example()).unwrap();
//! ```
//!
//! **Alone** ([`Backend`](crate::backend::Backend)) the claim commits before the work begins. That is
//! for work that has effects elsewhere, with all that interrupted keys are for.
//!
//! Both may use one table at the same time. Leases run by the server's clock. PostgreSQL 13 or later,
//! in plain SQL; migrations are in the repository under `src/sql/migrations`, as files for your own
//! tool, or run [`migrate_postgres`], [`migrate_sqlite`].

mod connection;
mod driver;
mod statements;
mod steps;
mod transaction;

use crate::backend::BackendError;
use crate::shared::SharedBackend;

pub use sqlx;

pub use self::connection::Connection;
#[cfg(feature = "postgres")]
pub use self::driver::Postgres;
#[cfg(feature = "sqlite")]
pub use self::driver::Sqlite;
pub use self::transaction::{OnConflict, TransactionClaim, TransactionOperation};

/// Keys in PostgreSQL, shared by all who reach it.
#[cfg(feature = "postgres")]
pub type PostgresBackend = SharedBackend<Postgres>;

/// Keys in a SQLite file, shared by the processes of one machine.
#[cfg(feature = "sqlite")]
pub type SqliteBackend = SharedBackend<Sqlite>;

/// The schema for PostgreSQL, to be run by a migration tool of your own. Safe to run again.
#[cfg(feature = "postgres")]
pub const POSTGRES_SCHEMA: &str = include_str!("migrations/postgres-1.sql");

/// The schema for SQLite, to be run by a migration tool of your own. Safe to run again.
#[cfg(feature = "sqlite")]
pub const SQLITE_SCHEMA: &str = include_str!("migrations/sqlite-1.sql");

/// Makes the table and what belongs to it in the schema that comes first in the search path, where
/// they are not there yet. Any number of processes may do so at once.
///
/// # Errors
///
/// [`BackendError`]: the database refuses or can't be reached.
#[cfg(feature = "postgres")]
pub async fn migrate_postgres(pool: &sqlx::PgPool) -> Result<(), BackendError> {
    let failed = |error: sqlx::Error| BackendError::new("making the table", error);
    let mut transaction = pool.begin().await.map_err(failed)?;
    // "IF NOT EXISTS" alone lets two who make the same thing at once fail. CockroachDB takes the
    // lock for granted.
    let lock = "SELECT pg_advisory_xact_lock(7957135362741858411)";
    for sql in [lock, POSTGRES_SCHEMA] {
        let run = sqlx::raw_sql(sql).execute(&mut *transaction);
        run.await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}

/// Makes the table and what belongs to it, where they are not there yet.
///
/// # Errors
///
/// [`BackendError`]: the database refuses.
#[cfg(feature = "sqlite")]
pub async fn migrate_sqlite(pool: &sqlx::SqlitePool) -> Result<(), BackendError> {
    let failed = |error: sqlx::Error| BackendError::new("making the table", error);
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let run = sqlx::raw_sql(SQLITE_SCHEMA).execute(&mut *transaction);
    run.await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}
