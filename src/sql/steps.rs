//! The steps of a claim on one connection: alone, or within whatever transaction it is in.

use sqlx::Error;

use crate::backend::MalformedRecord;
use crate::key::Key;
use crate::shared::{Begun, Change, Grant, Listed, NewClaim, Record, Removal, State, Written};
use crate::sql::connection::{Connection, Row, Shape, Value};

/// No state: what a caller's transaction may complete or release besides, where there is none.
const NO_STATE: u64 = 9;

fn key_values(key: &Key) -> [Value<'_>; 3] {
    [key.scope(), key.operation(), key.id()].map(|part| Value::Bytes(Some(part)))
}

/// The states besides pending in which an owner may end its operation.
pub(crate) fn also_from(within_transaction: bool) -> u64 {
    if within_transaction {
        State::Interrupted as u64
    } else {
        NO_STATE
    }
}

/// See [`Driver::begin`](crate::shared::Driver::begin).
pub(crate) async fn begin<C: Connection>(
    connection: &mut C,
    claim: &NewClaim,
) -> Result<Begun, Error> {
    if let Some(grant) = insert(connection, claim).await? {
        return Ok(Begun::Granted(grant));
    }
    if let Some(record) = read(connection, &claim.key).await? {
        return Ok(Begun::Found(record));
    }
    // Absent, but not inserted: too late, or it went away in between.
    let now_ms = now(connection).await?;
    Ok(claim
        .too_late(now_ms)
        .map_or(Begun::Changed, Begun::TooLate))
}

async fn insert<C: Connection>(
    connection: &mut C,
    claim: &NewClaim,
) -> Result<Option<Grant>, Error> {
    let digest = claim.fingerprint.digest().to_le_bytes();
    let [scope, operation, id] = key_values(&claim.key);
    let first_sent_ms = claim
        .first_sent_ms
        .map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    let values = [
        scope,
        operation,
        id,
        Value::Number(claim.fingerprint.algorithm().into()),
        Value::Bytes(Some(&digest)),
        Value::Number(claim.state as u64),
        Value::Number(claim.lease_ms),
        Value::Signed(first_sent_ms.unwrap_or(-1)),
        Value::Number(claim.retention_ms),
    ];
    let row = with_token(connection, C::statements().begin, &values).await?;
    Ok(row.map(|(token, now_ms)| claim.started(token, now_ms)))
}

/// See [`Driver::take`](crate::shared::Driver::take).
pub(crate) async fn take<C: Connection>(
    connection: &mut C,
    claim: &NewClaim,
    seen: &Record,
) -> Result<Option<Grant>, Error> {
    let digest = claim.fingerprint.digest().to_le_bytes();
    let [scope, operation, id] = key_values(&claim.key);
    let values = [
        scope,
        operation,
        id,
        Value::Number(seen.token),
        Value::Number(claim.state as u64),
        Value::Number(claim.fingerprint.algorithm().into()),
        Value::Bytes(Some(&digest)),
        Value::Number(claim.lease_ms),
    ];
    let row = with_token(connection, C::statements().take, &values).await?;
    Ok(row.map(|(token, now_ms)| claim.taken(seen, token, now_ms)))
}

/// Runs a statement that uses the next token, which SQLite counts up behind it in the same transaction:
/// one that claims nothing writes nothing, so that a replay waits for no sync. A savepoint is a
/// transaction of its own where there is none.
async fn with_token<C: Connection>(
    connection: &mut C,
    sql: &'static str,
    values: &[Value<'_>],
) -> Result<Option<(u64, u64)>, Error> {
    if !C::MAKES_TOKENS {
        return numbers(connection, sql, values).await;
    }
    connection.execute("SAVEPOINT oncekey", &[]).await?;
    let error = match run_and_count(connection, sql, values).await {
        Ok(row) => match connection.execute("RELEASE oncekey", &[]).await {
            Ok(_) => return Ok(row),
            Err(error) => error,
        },
        Err(error) => error,
    };
    // A full disk makes SQLite roll back by itself, and the savepoint is gone with the rest: what came
    // first is what went wrong.
    drop(connection.execute("ROLLBACK TO oncekey", &[]).await);
    drop(connection.execute("RELEASE oncekey", &[]).await);
    Err(error)
}

async fn run_and_count<C: Connection>(
    connection: &mut C,
    sql: &'static str,
    values: &[Value<'_>],
) -> Result<Option<(u64, u64)>, Error> {
    let row = numbers(connection, sql, values).await?;
    if row.is_some() {
        let count = "UPDATE oncekey_token SET value = value + 1";
        connection.execute(count, &[]).await?;
    }
    Ok(row)
}

/// See [`Driver::write`](crate::shared::Driver::write).
pub(crate) async fn write<C: Connection>(
    connection: &mut C,
    key: &Key,
    token: u64,
    change: Change<'_>,
    also_from: u64,
) -> Result<Written, Error> {
    let statements = C::statements();
    let mut values = Vec::with_capacity(8);
    values.extend(key_values(key));
    values.push(Value::Number(token));
    let sql = match change {
        Change::Renew { lease_ms } => {
            values.push(Value::Number(lease_ms));
            statements.renew
        }
        Change::Checkpoint(note) => {
            values.push(Value::Bytes((!note.is_empty()).then_some(note)));
            statements.checkpoint
        }
        Change::Complete {
            response,
            principal,
            retention_ms,
        } => {
            values.extend([
                Value::Bytes(response),
                Value::Bytes(principal),
                Value::Number(retention_ms),
                Value::Number(also_from),
            ]);
            statements.complete
        }
        Change::Release => {
            values.push(Value::Number(also_from));
            statements.release
        }
        Change::Interrupt => statements.interrupt,
    };
    match numbers(connection, sql, &values).await? {
        Some((_, at_ms)) => Ok(Written::Done { at_ms }),
        None => {
            let found = read(connection, key).await?;
            Ok(Written::refused(found.as_ref(), token, change))
        }
    }
}

/// See [`Driver::read`](crate::shared::Driver::read).
pub(crate) async fn read<C: Connection>(
    connection: &mut C,
    key: &Key,
) -> Result<Option<Record>, Error> {
    let rows = connection
        .rows(C::statements().read, &key_values(key), Shape::Record)
        .await?;
    let record = rows.into_iter().next().and_then(Row::record).transpose();
    let record = record.map_err(|malformed| Error::Decode(malformed.into()))?;
    Ok(record.map(|(_, record)| record))
}

/// See [`Driver::remove`](crate::shared::Driver::remove).
pub(crate) async fn remove<C: Connection>(
    connection: &mut C,
    key: &Key,
    force: bool,
) -> Result<Removal, Error> {
    let [scope, operation, id] = key_values(key);
    let values = [scope, operation, id, Value::Number(force.into())];
    match numbers(connection, C::statements().remove, &values).await? {
        Some((0, _)) => return Ok(Removal::Absent),
        Some(_) => return Ok(Removal::Removed),
        None => {}
    }
    Ok(match read(connection, key).await? {
        None => Removal::Absent,
        Some(record) if record.state != State::Completed && !force => Removal::Pending {
            attempt: record.attempt,
        },
        Some(_) => Removal::Changed,
    })
}

/// See [`Driver::interrupted`](crate::shared::Driver::interrupted).
pub(crate) async fn interrupted<C: Connection>(
    connection: &mut C,
    max: usize,
) -> Result<Listed, Error> {
    let sql = C::statements().interrupted;
    let mut listed = Listed::default();
    for record in records(connection, sql, max).await? {
        match record {
            Ok((key, record)) => listed.keys.push(record.pending_key(key)),
            Err(malformed) => listed.malformed.push(malformed),
        }
    }
    let left = max.saturating_sub(listed.malformed.len());
    let sql = C::statements().malformed_open;
    let malformed = records(connection, sql, left).await?;
    listed
        .malformed
        .extend(malformed.into_iter().filter_map(Result::err));
    Ok(listed)
}

/// See [`Driver::malformed`](crate::shared::Driver::malformed).
pub(crate) async fn malformed<C: Connection>(
    connection: &mut C,
    max: usize,
) -> Result<Vec<MalformedRecord>, Error> {
    let sql = C::statements().malformed;
    let found = records(connection, sql, max).await?;
    Ok(found.into_iter().filter_map(Result::err).collect())
}

async fn records<C: Connection>(
    connection: &mut C,
    sql: &'static str,
    max: usize,
) -> Result<Vec<Result<(Key, Record), MalformedRecord>>, Error> {
    let values = [Value::Number(max as u64)];
    let rows = connection.rows(sql, &values, Shape::Record).await?;
    Ok(rows.into_iter().filter_map(Row::record).collect())
}

/// Removes up to `max` results that have expired; how many it removed.
pub(crate) async fn reap<C: Connection>(connection: &mut C, max: usize) -> Result<u64, Error> {
    let values = [Value::Number(max as u64)];
    connection.execute(C::statements().reap, &values).await
}

async fn now<C: Connection>(connection: &mut C) -> Result<u64, Error> {
    let sql = C::statements().now;
    let now = numbers(connection, sql, &[]).await?;
    now.map(|(now_ms, _)| now_ms).ok_or(Error::RowNotFound)
}

async fn numbers<C: Connection>(
    connection: &mut C,
    sql: &'static str,
    values: &[Value<'_>],
) -> Result<Option<(u64, u64)>, Error> {
    let rows = connection.rows(sql, values, Shape::Numbers).await?;
    Ok(rows.into_iter().next().and_then(Row::numbers))
}
