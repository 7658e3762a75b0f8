//! What the steps need of a connection, and nothing else: so that each step is written once.

use std::future::Future;

use bytes::Bytes;
use sqlx::{Error, Row as _};

use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::shared::{Record, State};
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
            Self::Record(_) => None,
        }
    }

    pub(crate) fn record(self) -> Option<(Key, Record)> {
        match self {
            Self::Record(record) => Some(*record),
            Self::Numbers(..) => None,
        }
    }
}

fn malformed(what: &str) -> Error {
    Error::Decode(format!("a row of the table oncekey has {what}").into())
}

/// Trusts nothing that it reads: a row may have been written by anybody.
macro_rules! read_row {
    ($row:expr, $shape:expr) => {{
        let row = $row;
        let number = |index: usize| -> Result<u64, Error> {
            let number = row.try_get::<Option<i64>, _>(index)?.unwrap_or(0);
            u64::try_from(number).map_err(|_| malformed("a negative number"))
        };
        let bytes = |index: usize| -> Result<Option<Bytes>, Error> {
            Ok(row.try_get::<Option<Vec<u8>>, _>(index)?.map(Bytes::from))
        };
        match $shape {
            Shape::Numbers => Ok(Row::Numbers(number(0)?, number(1)?)),
            Shape::Record => {
                let part = |index| bytes(index).map(Option::unwrap_or_default);
                let key = Key::new(part(14)?, part(15)?, part(16)?)
                    .map_err(|_| malformed("a key that is none"))?;
                let algorithm =
                    u8::try_from(number(1)?).map_err(|_| malformed("no such algorithm"))?;
                let digest = <[u8; 16]>::try_from(&*part(2)?)
                    .map_err(|_| malformed("a digest that is not 16 bytes long"))?;
                let record = Record {
                    now_ms: number(0)?,
                    fingerprint: Fingerprint::from_raw(algorithm, u128::from_le_bytes(digest)),
                    state: State::from_number(number(3)?)
                        .ok_or_else(|| malformed("no such state"))?,
                    token: number(4)?,
                    attempt: u32::try_from(number(5)?)
                        .map_err(|_| malformed("too large an attempt"))?,
                    created_ms: number(6)?,
                    started_ms: number(7)?,
                    lease_until_ms: number(8)?,
                    completed_ms: number(9)?,
                    expires_ms: number(10)?,
                    checkpoint: bytes(11)?,
                    response: bytes(12)?,
                    principal: bytes(13)?,
                };
                Ok(Row::Record(Box::new((key, record))))
            }
        }
    }};
}

macro_rules! connection {
    ($connection:ty, $statements:ident, $makes_tokens:literal, $locked:expr) => {
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
                rows.iter().map(|row| read_row!(row, shape)).collect()
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
connection!(sqlx::PgConnection, POSTGRES, false, ["55P03"]);
// SQLITE_BUSY and SQLITE_BUSY_SNAPSHOT.
#[cfg(feature = "sqlite")]
connection!(sqlx::SqliteConnection, SQLITE, true, ["5", "517"]);
