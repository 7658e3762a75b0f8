//! A PostgreSQL as a table of keys with a unique index.
//!
//! A claim is an `INSERT … ON CONFLICT DO NOTHING RETURNING`, a completion an `UPDATE`, and each is a
//! transaction of its own; a repeated claim reads the row in a second step.

use std::future::Future;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, SqlSafeStr};
use tokio::runtime::{Builder, Runtime};

use super::{
    Claimed, Class, Contestant, Entrant, FINGERPRINT, Fault, Place, Sample, Session, Used, keys,
};

/// A server that says nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server whose address makes sense.
pub(crate) struct Postgres {
    options: PgConnectOptions,
}

impl Postgres {
    pub(crate) fn at(url: &str) -> Result<Self, Fault> {
        let is_known = ["postgres://", "postgresql://"]
            .iter()
            .any(|known| url.starts_with(known));
        let options = match is_known {
            true => PgConnectOptions::from_str(url).map_err(|error| error.to_string()),
            false => Err("not a URL of a PostgreSQL".to_owned()),
        };
        let options = options.map_err(|error| {
            format!("{error}; a URL is postgres://user:password@host:port/database")
        })?;
        Ok(Self { options })
    }

    /// Asks the server what it is and what its acknowledgements are worth.
    pub(crate) fn entrant(self) -> Result<Entrant, Fault> {
        let options = self.options.disable_statement_logging();
        let address = match options.get_socket() {
            Some(path) => path.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let blamed = |fault: Fault| -> Fault { format!("PostgreSQL at {address}: {fault}").into() };
        let mut link = Link::open(&options).map_err(blamed)?;
        let mut setting = |sql: &'static str| -> Result<String, Fault> {
            link.run(async |connection| sqlx::query_scalar(sql).fetch_one(connection).await)
        };
        let version = setting("SHOW server_version").map_err(blamed)?;
        let fsync = setting("SHOW fsync").map_err(blamed)?;
        let commit = setting("SHOW synchronous_commit").map_err(blamed)?;
        let class = match (fsync.as_str(), commit.as_str()) {
            // What was acknowledged may still be in the server's own memory.
            (_, "off") => Class::Volatile,
            ("off", _) => Class::Buffered,
            _ => Class::Sync,
        };
        let version = version.split(' ').next().unwrap_or_default();
        let settings = format!(
            "PostgreSQL {version} at {address}, fsync {fsync}, synchronous_commit {commit}; \
             INSERT ON CONFLICT DO NOTHING, then UPDATE, a transaction each"
        );
        let tried = keys::sample(0, 32).and_then(|key| {
            let table = Table::make(&options)?;
            super::lap::Subject::try_out(&table, &key, b"tried")?;
            Contestant::close(table)
        });
        tried.map_err(blamed)?;
        let open = move |_: &Path, _| Table::make(&options);
        Ok(Entrant::new(
            "PostgreSQL",
            class,
            Place::Server,
            &settings,
            open,
        ))
    }
}

/// A connection, and what drives it in the thread that uses it.
struct Link {
    connection: PgConnection,
    runtime: Runtime,
}

impl Link {
    fn open(options: &PgConnectOptions) -> Result<Self, Fault> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connection = patient(&runtime, options.connect())?;
        Ok(Self {
            connection,
            runtime,
        })
    }

    fn run<T>(
        &mut self,
        step: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Fault> {
        let Self {
            connection,
            runtime,
        } = self;
        patient(runtime, step(connection))
    }

    fn execute(&mut self, sql: String) -> Result<(), Fault> {
        self.run(async |connection| connection.execute(AssertSqlSafe(sql)).await)?;
        Ok(())
    }
}

fn patient<T>(
    runtime: &Runtime,
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    match runtime.block_on(async { tokio::time::timeout(PATIENCE, step).await }) {
        Ok(done) => Ok(done?),
        Err(_) => Err(format!("no answer within {} seconds", PATIENCE.as_secs()).into()),
    }
}

/// The statements, for one table.
struct Statements {
    insert: Arc<str>,
    read: Arc<str>,
    expire: Arc<str>,
    complete: Arc<str>,
}

impl Statements {
    fn of(table: &str) -> Self {
        Self {
            insert: format!(
                "INSERT INTO {table} (key, fingerprint, expires_at) \
                 VALUES ($1, $2, now() + interval '30 seconds') \
                 ON CONFLICT (key) DO NOTHING RETURNING true"
            )
            .into(),
            read: format!(
                "SELECT fingerprint, response FROM {table} WHERE key = $1 AND expires_at > now()"
            )
            .into(),
            expire: format!("DELETE FROM {table} WHERE key = $1 AND expires_at <= now()").into(),
            complete: format!(
                "UPDATE {table} SET response = $2, expires_at = now() + interval '1 day' \
                 WHERE key = $1 AND response IS NULL"
            )
            .into(),
        }
    }
}

/// A table of its own, which is removed when it is closed or dropped.
struct Table {
    options: PgConnectOptions,
    name: String,
    statements: Arc<Statements>,
    is_removed: bool,
}

impl Table {
    fn make(options: &PgConnectOptions) -> Result<Self, Fault> {
        let name = format!("oncekey_bench_{:016x}", keys::random());
        Link::open(options)?.execute(format!(
            "CREATE TABLE {name} (key bytea PRIMARY KEY, fingerprint bytea NOT NULL, \
             response bytea, expires_at timestamptz NOT NULL)"
        ))?;
        Ok(Self {
            options: options.clone(),
            statements: Arc::new(Statements::of(&name)),
            name,
            is_removed: false,
        })
    }

    fn remove(&mut self) -> Result<(), Fault> {
        if !self.is_removed {
            Link::open(&self.options)?.execute(format!("DROP TABLE {}", self.name))?;
            self.is_removed = true;
        }
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Where it was not closed something else went wrong already, and that is told.
        self.remove().unwrap_or_default();
    }
}

impl Contestant for Table {
    type Session = TableSession;

    fn session(&self) -> Result<TableSession, Fault> {
        let mut link = Link::open(&self.options)?;
        // Else the first operations would be slower than all others.
        for sql in [
            &self.statements.insert,
            &self.statements.read,
            &self.statements.complete,
        ] {
            let sql = AssertSqlSafe(Arc::clone(sql));
            link.run(async |connection| connection.prepare(sql.into_sql_str()).await.map(drop))?;
        }
        Ok(TableSession {
            link,
            statements: Arc::clone(&self.statements),
        })
    }

    fn filling_session(&self) -> Result<TableSession, Fault> {
        let mut session = self.session()?;
        session
            .link
            .execute("SET synchronous_commit = off".to_owned())?;
        Ok(session)
    }

    fn used(&self) -> Result<Used, Fault> {
        let mut link = Link::open(&self.options)?;
        let bytes: i64 = link.run(async |connection| {
            sqlx::query_scalar("SELECT pg_total_relation_size($1::regclass)")
                .bind(&self.name)
                .fetch_one(connection)
                .await
        })?;
        Ok(Used {
            disk_bytes: u64::try_from(bytes).ok(),
            memory_bytes: None,
        })
    }

    fn close(mut self) -> Result<(), Fault> {
        self.remove()
    }
}

struct TableSession {
    link: Link,
    statements: Arc<Statements>,
}

type Row = (Vec<u8>, Option<Vec<u8>>);

impl Session for TableSession {
    type Guard = Sample;
    type Response = Vec<u8>;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Sample, Vec<u8>>, Fault> {
        let sql = |sql: &Arc<str>| AssertSqlSafe(Arc::clone(sql));
        let Statements {
            insert,
            read,
            expire,
            ..
        } = &*self.statements;
        loop {
            let inserted: Option<bool> = self.link.run(async |connection| {
                sqlx::query_scalar(sql(insert))
                    .bind(&*key.bytes)
                    .bind(&FINGERPRINT[..])
                    .fetch_optional(connection)
                    .await
            })?;
            if inserted.is_some() {
                return Ok(Claimed::Started(key.clone()));
            }
            let row: Option<Row> = self.link.run(async |connection| {
                sqlx::query_as(sql(read))
                    .bind(&*key.bytes)
                    .fetch_optional(connection)
                    .await
            })?;
            match row {
                Some((fingerprint, _)) if fingerprint != FINGERPRINT => {
                    return Err("a key stands for another request".into());
                }
                Some((_, Some(response))) => return Ok(Claimed::Done(response)),
                Some((_, None)) => return Ok(Claimed::Running),
                None => self.link.run(async |connection| {
                    let expired = sqlx::query(sql(expire)).bind(&*key.bytes);
                    expired.execute(connection).await.map(drop)
                })?,
            }
        }
    }

    fn complete(&mut self, key: Sample, response: &[u8]) -> Result<(), Fault> {
        let sql = AssertSqlSafe(Arc::clone(&self.statements.complete));
        let updated = self.link.run(async |connection| {
            let update = sqlx::query(sql).bind(&*key.bytes).bind(response);
            update.execute(connection).await
        })?;
        match updated.rows_affected() {
            1 => Ok(()),
            _ => Err("a key was gone before it was completed".into()),
        }
    }
}
