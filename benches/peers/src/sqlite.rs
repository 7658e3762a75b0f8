//! A SQLite file as a table of keys with a unique index: one connection writes, each thread has one
//! to read with.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::measure::{
    Claimed, Class, Contestant, Entrant, FINGERPRINT, Fault, Place, Sample, Session,
};
use crate::rows::{lease_end, now, retention_end};

pub(crate) fn entrants() -> [Entrant; 2] {
    let entrant = |class, synchronous: &'static str| {
        let settings = format!(
            "rusqlite, journal_mode=WAL, synchronous={synchronous}, one connection that writes; \
             SELECT, then INSERT ON CONFLICT DO NOTHING RETURNING, then UPDATE"
        );
        let place = Place::Files;
        Entrant::new("SQLite", class, place, &settings, move |path, _| {
            Table::open(path, synchronous)
        })
    };
    [
        entrant(Class::Buffered, "NORMAL"),
        entrant(Class::Sync, "FULL"),
    ]
}

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS keys (key BLOB PRIMARY KEY NOT NULL, \
    fingerprint BLOB NOT NULL, response BLOB, expires_at INTEGER NOT NULL)";
const READ: &str = "SELECT fingerprint, response FROM keys WHERE key = ?1 AND expires_at > ?2";
const EXPIRE: &str = "DELETE FROM keys WHERE key = ?1 AND expires_at <= ?2";
const INSERT: &str = "INSERT INTO keys (key, fingerprint, expires_at) VALUES (?1, ?2, ?3) \
    ON CONFLICT (key) DO NOTHING RETURNING 1";
const COMPLETE: &str = "UPDATE keys SET response = ?2, expires_at = ?3 \
    WHERE key = ?1 AND response IS NULL";

struct Table {
    path: PathBuf,
    writer: Arc<Mutex<Connection>>,
}

impl Table {
    fn open(directory: &Path, synchronous: &str) -> Result<Self, Fault> {
        let path = directory.join("keys.db");
        let writer = connect(&path)?;
        writer.pragma_update(None, "journal_mode", "WAL")?;
        writer.pragma_update(None, "synchronous", synchronous)?;
        writer.execute(SCHEMA, [])?;
        Ok(Self {
            path,
            writer: Arc::new(Mutex::new(writer)),
        })
    }
}

fn connect(path: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    Ok(connection)
}

impl Contestant for Table {
    type Session = TableSession;

    fn session(&self) -> Result<TableSession, Fault> {
        let reader = connect(&self.path)?;
        // Reads the schema now, not within the first operation.
        reader.prepare_cached(READ)?;
        Ok(TableSession {
            reader,
            writer: Arc::clone(&self.writer),
        })
    }

    fn close(self) -> Result<(), Fault> {
        let writer = Arc::into_inner(self.writer).ok_or("somebody still writes")?;
        let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.close().map_err(|(_, error)| error.into())
    }
}

struct TableSession {
    reader: Connection,
    writer: Arc<Mutex<Connection>>,
}

type Row = (Vec<u8>, Option<Vec<u8>>);

impl TableSession {
    fn read(&self, key: &[u8]) -> Result<Option<Row>, Fault> {
        let mut read = self.reader.prepare_cached(READ)?;
        let row = read.query_row(params![key, now() as i64], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
        Ok(row.optional()?)
    }

    fn insert(&self, key: &[u8]) -> Result<bool, Fault> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut insert = writer.prepare_cached(INSERT)?;
        let mut is_inserted = || -> Result<bool, Fault> {
            let row = params![key, FINGERPRINT, lease_end() as i64];
            Ok(insert.query_row(row, |_| Ok(())).optional()?.is_some())
        };
        if is_inserted()? {
            return Ok(true);
        }
        let mut expire = writer.prepare_cached(EXPIRE)?;
        Ok(expire.execute(params![key, now() as i64])? == 1 && is_inserted()?)
    }
}

impl Session for TableSession {
    type Guard = Sample;
    type Response = Vec<u8>;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Sample, Vec<u8>>, Fault> {
        loop {
            match self.read(&key.bytes)? {
                Some((fingerprint, _)) if fingerprint != FINGERPRINT => {
                    return Err("a key stands for another request".into());
                }
                Some((_, Some(response))) => return Ok(Claimed::Done(response)),
                Some((_, None)) => return Ok(Claimed::Running),
                None if self.insert(&key.bytes)? => return Ok(Claimed::Started(key.clone())),
                None => (),
            }
        }
    }

    fn complete(&mut self, key: Sample, response: &[u8]) -> Result<(), Fault> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut complete = writer.prepare_cached(COMPLETE)?;
        match complete.execute(params![&*key.bytes, response, retention_end() as i64])? {
            1 => Ok(()),
            _ => Err("a key was gone before it was completed".into()),
        }
    }
}
