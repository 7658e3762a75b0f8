//! From a Redis table to a store, and back: keys, values, and the time they have left.
//!
//! [`Import`] takes over strings whose names match, each as a completed operation. It may be stopped at any
//! moment and run again: a key that is taken twice is the same. It reads with `SCAN`, `TYPE`, `GET` and
//! `PTTL`, so any server that has these will do, ours included. Redis is the truth as long as the service
//! acts on it, so what is in the store under the same key is overwritten: import before the switch.
//!
//! The store must take keys as long as Redis has: [`Options::max_key_part`](crate::Options::max_key_part).
#![forbid(unsafe_code)]

mod map;

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use redis::{Connection, RedisError, Value as RedisValue, cmd, pipe};

pub use self::map::{KeyMap, MapError};
use crate::block::block_on;
use crate::engine::Next;
use crate::error::{ClaimError, Unavailable};
use crate::store::Store;
use crate::values::{NEVER_MS, ValueError, Values};

/// Keys that are asked for at once.
const BATCH: usize = 500;
/// Keys that failed, of which the report keeps the reason.
const FAILURES_KEPT: usize = 100;

/// How far it is, and what became of it in the end.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MigrationReport {
    /// Keys that were found, some twice perhaps: `SCAN` repeats itself.
    pub found: u64,
    /// Keys that were written.
    pub written: u64,
    /// Keys that expired on the way.
    pub expired: u64,
    /// Keys that could not be taken over.
    pub failed: u64,
    /// The first hundred of them, with the reason.
    pub failures: Vec<(Vec<u8>, String)>,
    /// The cursor of `SCAN` from which another run may go on, as long as the same server runs.
    pub cursor: u64,
}

/// What a comparison of both sides found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Keys of Redis that were looked for.
    pub keys: u64,
    /// Keys that the store does not have, and that Redis still does.
    pub missing: u64,
    /// Keys whose values were compared.
    pub sampled: u64,
    /// Keys with another value.
    pub different: u64,
}

/// Why a migration stopped. What was written is whole and stays.
#[derive(Debug)]
#[non_exhaustive]
pub enum MigrationError {
    /// Redis failed, or can't be reached.
    Redis(RedisError),
    /// The store refuses.
    Store(ClaimError),
}

impl fmt::Display for MigrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) => write!(f, "Redis: {error}; run it again to go on"),
            Self::Store(error) => write!(f, "the store: {error}"),
        }
    }
}

impl std::error::Error for MigrationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Redis(error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

impl From<RedisError> for MigrationError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<ClaimError> for MigrationError {
    fn from(error: ClaimError) -> Self {
        Self::Store(error)
    }
}

impl From<Unavailable> for MigrationError {
    fn from(error: Unavailable) -> Self {
        Self::Store(error.into())
    }
}

/// Taking keys over from Redis.
#[derive(Clone, Debug)]
#[must_use = "nothing is imported before `run`"]
pub struct Import {
    pattern: String,
    map: KeyMap,
    hash_field: Option<String>,
    cursor: u64,
}

impl Import {
    /// Of the keys that match, as `SCAN MATCH` takes it, under the names that `map` gives them.
    pub fn new(pattern: impl Into<String>, map: KeyMap) -> Self {
        Self {
            pattern: pattern.into(),
            map,
            hash_field: None,
            cursor: 0,
        }
    }

    /// Takes this field of a hash as its value. Without it a hash is a failure, like other types.
    pub fn hash_field(mut self, field: impl Into<String>) -> Self {
        self.hash_field = Some(field.into());
        self
    }

    /// Goes on from the cursor of an earlier report.
    pub fn from_cursor(mut self, cursor: u64) -> Self {
        self.cursor = cursor;
        self
    }

    /// Does it. `progress` is told after every batch, each of which is as durable as the store's level by
    /// then, and may end it there: the report has the cursor to go on from. Blocks.
    ///
    /// # Errors
    ///
    /// [`MigrationError`]. A key that can't be taken over is in the report instead.
    pub fn run(
        &self,
        store: &Store,
        connection: &mut Connection,
        mut progress: impl FnMut(&MigrationReport) -> ControlFlow<()>,
    ) -> Result<MigrationReport, MigrationError> {
        let values = Values::new(store, b"");
        let mut report = MigrationReport {
            cursor: self.cursor,
            ..MigrationReport::default()
        };
        loop {
            let (cursor, names) = scan(connection, report.cursor, &self.pattern)?;
            let mut newest = 0;
            for (name, taken) in self.read(connection, names)? {
                report.found += 1;
                match self.write(&values, &name, taken) {
                    Ok(Some(end)) => {
                        report.written += 1;
                        newest = newest.max(end);
                    }
                    Ok(None) => report.expired += 1,
                    Err(Refused::Stop(error)) => return Err(error.into()),
                    Err(Refused::Key(reason)) => {
                        report.failed += 1;
                        if report.failures.len() < FAILURES_KEPT {
                            report.failures.push((name, reason));
                        }
                    }
                }
            }
            block_on(values.reach(newest))?;
            report.cursor = cursor;
            if progress(&report).is_break() || cursor == 0 {
                return Ok(report);
            }
        }
    }

    /// Looks for every key of Redis in the store, and compares the value of each `sample_every`th.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn verify(
        &self,
        store: &Store,
        connection: &mut Connection,
        sample_every: u64,
    ) -> Result<VerifyReport, MigrationError> {
        let values = Values::new(store, b"");
        let (mut report, mut cursor) = (VerifyReport::default(), 0);
        loop {
            let (next, names) = scan(connection, cursor, &self.pattern)?;
            for (name, taken) in self.read(connection, names)? {
                let (Ok(Some(taken)), Ok(key)) = (taken, self.map.key(&name)) else {
                    continue;
                };
                report.keys += 1;
                let mut stored = None;
                let looked = values.change_key(&key, |value, _| {
                    stored = value.map(|value| value.bytes.clone());
                    Next::Keep
                });
                match block_on(looked) {
                    Ok(_) => {}
                    Err(ValueError::Claim(error)) => return Err(error.into()),
                    Err(_) => stored = None,
                }
                match stored {
                    None => report.missing += 1,
                    Some(stored) if report.keys % sample_every.max(1) == 0 => {
                        report.sampled += 1;
                        report.different += u64::from(stored != taken.value);
                    }
                    Some(_) => {}
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(report);
            }
        }
    }

    /// What the keys have; `None` for one that is gone.
    fn read(
        &self,
        connection: &mut Connection,
        names: Vec<Vec<u8>>,
    ) -> Result<Vec<Read>, MigrationError> {
        let mut kinds = pipe();
        for name in &names {
            kinds.cmd("TYPE").arg(name);
        }
        let kinds: Vec<String> = match names.is_empty() {
            true => Vec::new(),
            false => kinds.query(connection)?,
        };
        let mut all = Vec::with_capacity(names.len());
        for (name, kind) in names.into_iter().zip(kinds) {
            let taken = match (kind.as_str(), &self.hash_field) {
                ("none", _) => Ok(None),
                ("string", _) => taken(connection, cmd("GET").arg(&name), &name)?,
                ("hash", Some(field)) => {
                    taken(connection, cmd("HGET").arg(&name).arg(field), &name)?
                }
                ("hash", None) => Err("a hash: say which field is the value".to_owned()),
                (other, _) => Err(format!("a {other} is no value")),
            };
            all.push((name, taken));
        }
        Ok(all)
    }

    fn write(
        &self,
        values: &Values,
        name: &[u8],
        taken: Result<Option<Taken>, String>,
    ) -> Result<Option<u64>, Refused> {
        let Some(taken) = taken.map_err(Refused::Key)? else {
            return Ok(None);
        };
        let key = self
            .map
            .key(name)
            .map_err(|error| Refused::Key(error.to_string()))?;
        let changed = values.change_key(&key, |_, now_ms| Next::Store {
            response: taken.value.clone(),
            deadline_ms: taken
                .left_ms
                .map_or(NEVER_MS, |left_ms| now_ms.saturating_add(left_ms)),
        });
        block_on(changed).map(Some).map_err(|error| match error {
            ValueError::Claim(ClaimError::Key(error)) => Refused::Key(error.to_string()),
            ValueError::Claim(error) => Refused::Stop(error),
            ValueError::Claimed { attempt } => {
                Refused::Key(format!("claimed in the store, attempt {attempt}"))
            }
            ValueError::Principal => Refused::Key("the store has it for a principal".to_owned()),
            ValueError::TooLarge { len, max } => {
                Refused::Key(format!("{len} bytes are over the store's limit of {max}"))
            }
        })
    }
}

/// Writes all values of a scope (those without an operation) to Redis, under `prefix` and their id, with
/// the time they have left. `progress` is told after every batch, and may end it there. Blocks.
///
/// # Errors
///
/// [`MigrationError`]. Run again it writes the same.
pub fn export(
    store: &Store,
    scope: impl AsRef<[u8]>,
    prefix: impl AsRef<[u8]>,
    connection: &mut Connection,
    mut progress: impl FnMut(&MigrationReport) -> ControlFlow<()>,
) -> Result<MigrationReport, MigrationError> {
    let values = Values::new(store, scope.as_ref());
    let mut report = MigrationReport::default();
    loop {
        let mut ids = Vec::new();
        report.cursor = values.scan(report.cursor, BATCH, |id| ids.push(id.to_vec()))?;
        let (mut batch, mut in_batch) = (pipe(), 0);
        for id in &ids {
            report.found += 1;
            match block_on(values.look(id)) {
                Ok((Some(value), end)) => {
                    // Redis gets nothing that a power loss could take back here.
                    block_on(values.reach(end))?;
                    let name = [prefix.as_ref(), id].concat();
                    let set = batch.cmd("SET").arg(name).arg(&value.bytes[..]);
                    if let Some(left_ms) = value.left_ms(values.now_ms()) {
                        set.arg("PX").arg(left_ms.max(1));
                    }
                    in_batch += 1;
                }
                Ok((None, _)) => report.expired += 1,
                Err(ValueError::Claim(error)) => return Err(error.into()),
                Err(_) => report.failed += 1,
            }
        }
        if in_batch > 0 {
            batch.query::<RedisValue>(connection)?;
            report.written += in_batch;
        }
        if progress(&report).is_break() || report.cursor == 0 {
            return Ok(report);
        }
    }
}

/// The name of a key and what it has: nothing where it is gone, or why it has no value.
type Read = (Vec<u8>, Result<Option<Taken>, String>);

/// A value on its way.
#[derive(Debug)]
struct Taken {
    value: Bytes,
    /// `None` for ever.
    left_ms: Option<u64>,
}

/// Why a key was not written.
enum Refused {
    Key(String),
    Stop(ClaimError),
}

fn scan(
    connection: &mut Connection,
    cursor: u64,
    pattern: &str,
) -> Result<(u64, Vec<Vec<u8>>), RedisError> {
    let mut scan = cmd("SCAN");
    scan.arg(cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(BATCH);
    scan.query(connection)
}

/// Asks for a value and the time that it has left, in one exchange.
fn taken(
    connection: &mut Connection,
    get: &redis::Cmd,
    name: &[u8],
) -> Result<Result<Option<Taken>, String>, RedisError> {
    let mut both = pipe();
    both.add_command(get.clone()).cmd("PTTL").arg(name);
    let asked: Result<(Option<Vec<u8>>, i64), _> = both.query(connection);
    match asked {
        Ok((Some(value), left_ms)) if left_ms != -2 => Ok(Ok(Some(Taken {
            value: value.into(),
            left_ms: u64::try_from(left_ms).ok(),
        }))),
        Ok(_) => Ok(Ok(None)),
        // It became something else in between.
        Err(error) if error.code().is_some() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}
