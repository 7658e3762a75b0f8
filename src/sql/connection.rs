//! What the steps need of a connection, and nothing else: so that each step is written once.

use std::future::Future;

use bytes::Bytes;
use sqlx::{Error, Row as _};

use crate::backend::MalformedRecord;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::shared::{Field, Fields, Record, read_record};
use crate::sql::statements::Statements;

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Number(u64),
    /// For a number that may be missing: below zero then.
    Signed(i64),
    Bytes(Option<&'a [u8]>),
}

/// A row of one of the statements.
#[derive(Debug)]
pub enum Row {
    /// Two numbers.
    Numbers(u64, u64),
    /// A key and what it is.
    Record(Box<(Key, Record)>),
    /// A key that can't be read.
    Malformed(MalformedRecord),
}

/// Which of the two a statement returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Numbers,
    Record,
}

/// A connection of either database.
pub trait Connection: Send {
    /// The statements in its dialect.
    fn statements() -> &'static Statements;

    /// Whether the next token is made by a statement of its own, which has to be in one transaction
    /// with the claim.
    const MAKES_TOKENS: bool;

    /// Runs one statement and gives its rows.
    fn rows(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
        shape: Shape,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Runs one statement, and says how many rows it changed.
    fn execute(
        &mut self,
        sql: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Whether the error says that somebody else has the lock.
    fn is_locked(error: &Error) -> bool;
}

impl Row {
    pub(crate) fn numbers(self) -> Option<(u64, u64)> {
        match self {
            Self::Numbers(first, second) => Some((first, second)),
            Self::Record(_) | Self::Malformed(_) => None,
        }
    }

    pub(crate) fn record(self) -> Option<Result<(Key, Record), MalformedRecord>> {
        match self {
            Self::Record(record) => Some(Ok(*record)),
            Self::Malformed(malformed) => Some(Err(malformed)),
            Self::Numbers(..) => None,
        }
    }
}

fn place(key: &Key) -> String {
    format!("the row of {key} in the table oncekey")
}

/// What a row has in a column, of whatever type: a table may have been altered.
macro_rules! read_row {
    ($row:expr, $shape:expr) => {{
        let row = $row;
        match $shape {
            Shape::Numbers => {
                let number = |index: usize| -> Result<u64, Error> {
                    let number: i64 = row.try_get(index)?;
                    u64::try_from(number).map_err(|error| Error::Decode(error.into()))
                };
                Ok(Row::Numbers(number(0)?, number(1)?))
            }
            Shape::Record => {
                let now_ms = row.number_in("now_ms").ok().flatten();
                let now_ms = now_ms.ok_or(Error::Decode("the server tells no time".into()))?;
                let part = |column| row.bytes_in(column).map(Option::unwrap_or_default);
                let parts = (part("scope"), part("operation"), part("id"));
                let (Ok(scope), Ok(operation), Ok(id)) = parts else {
                    return Ok(Row::Malformed(MalformedRecord::new(
                        "a row of the table oncekey".to_owned(),
                        "scope, operation or id",
                        "another type than bytes",
                    )));
                };
                let Ok(key) = Key::new(&scope, &operation, &id) else {
                    let parts = [&scope, &operation, &id].map(|part| part.escape_ascii());
                    let [scope, operation, id] = parts;
                    return Ok(Row::Malformed(MalformedRecord::new(
                        format!(
                            "the row \"{scope}\", \"{operation}\", \"{id}\" in the table oncekey"
                        ),
                        "scope, operation or id",
                        "what makes no key",
                    )));
                };
                Ok(match read_record(row, now_ms, || place(&key)) {
                    Ok(record) => Row::Record(Box::new((key, record))),
                    Err(malformed) => Row::Malformed(malformed),
                })
            }
        }
    }};
}

/// The columns of a row by their names.
trait Columns {
    fn number_in(&self, column: &'static str) -> Result<Option<u64>, String>;
    fn bytes_in(&self, column: &'static str) -> Result<Option<Bytes>, String>;
}

impl<R: Columns> Fields for R {
    fn name(field: Field) -> &'static str {
        field.column
    }

    fn number(&self, field: Field) -> Result<Option<u64>, String> {
        self.number_in(field.column)
    }

    fn bytes(&self, field: Field) -> Result<Option<Bytes>, String> {
        self.bytes_in(field.column)
    }

    fn fingerprint(&self) -> Result<Fingerprint, (&'static str, String)> {
        let algorithm = self.number_in("algorithm");
        let algorithm = algorithm.map_err(|problem| ("algorithm", problem))?;
        let algorithm = algorithm.and_then(|number| u8::try_from(number).ok());
        let algorithm = algorithm.ok_or(("algorithm", "no number up to 255".to_owned()))?;
        let digest = self
            .bytes_in("digest")
            .map_err(|problem| ("digest", problem))?;
        let digest = digest.unwrap_or_default();
        let bytes = <[u8; 16]>::try_from(&*digest)
            .map_err(|_| ("digest", format!("{} bytes instead of 16", digest.len())))?;
        Ok(Fingerprint::from_raw(algorithm, u128::from_le_bytes(bytes)))
    }
}

macro_rules! connection {
    ($connection:ty, $row:ty, $statements:ident, $makes_tokens:literal, $locked:expr) => {
        impl Columns for $row {
            fn number_in(&self, column: &'static str) -> Result<Option<u64>, String> {
                let number: Option<i64> =
                    self.try_get(column).map_err(|error| error.to_string())?;
                let Some(number) = number else {
                    return Ok(None);
                };
                let checked = u64::try_from(number).map(Some);
                checked.map_err(|_| format!("the negative number {number}"))
            }

            fn bytes_in(&self, column: &'static str) -> Result<Option<Bytes>, String> {
                let bytes: Option<Vec<u8>> =
                    self.try_get(column).map_err(|error| error.to_string())?;
                Ok(bytes.map(Bytes::from))
            }
        }

        impl Connection for $connection {
            const MAKES_TOKENS: bool = $makes_tokens;

            fn statements() -> &'static Statements {
                &crate::sql::statements::$statements
            }

            async fn rows(
                &mut self,
                sql: &'static str,
                values: &[Value<'_>],
                shape: Shape,
            ) -> Result<Vec<Row>, Error> {
                let mut query = sqlx::query(sql);
                for value in values {
                    query = match *value {
                        Value::Number(number) => {
                            query.bind(i64::try_from(number).unwrap_or(i64::MAX))
                        }
                        Value::Signed(number) => query.bind(number),
                        Value::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
                    };
                }
                let rows = query.fetch_all(self).await?;
                let read = |row: &$row| -> Result<Row, Error> { read_row!(row, shape) };
                rows.iter().map(read).collect()
            }

            async fn execute(
                &mut self,
                sql: &'static str,
                values: &[Value<'_>],
            ) -> Result<u64, Error> {
                let mut query = sqlx::query(sql);
                for value in values {
                    query = match *value {
                        Value::Number(number) => {
                            query.bind(i64::try_from(number).unwrap_or(i64::MAX))
                        }
                        Value::Signed(number) => query.bind(number),
                        Value::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
                    };
                }
                Ok(query.execute(self).await?.rows_affected())
            }

            fn is_locked(error: &Error) -> bool {
                let code = error.as_database_error().and_then(|error| error.code());
                code.is_some_and(|code| $locked.contains(&&*code))
            }
        }
    };
}

// Lock not available.
#[cfg(feature = "postgres")]
connection!(
    sqlx::PgConnection,
    sqlx::postgres::PgRow,
    POSTGRES,
    false,
    ["55P03"]
);
// SQLITE_BUSY and SQLITE_BUSY_SNAPSHOT.
#[cfg(feature = "sqlite")]
connection!(
    sqlx::SqliteConnection,
    sqlx::sqlite::SqliteRow,
    SQLITE,
    true,
    ["5", "517"]
);
