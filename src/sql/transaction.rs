//! A claim inside the caller's own transaction.

use std::fmt;

use bytes::Bytes;
use sqlx::Error;

use crate::backend::{Answer, Backend, Outcome, Progress, SavedParts};
use crate::claim::{Mismatch, Saved, TooLate};
use crate::clock::time;
use crate::error::{ClaimError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::operation::Previous;
use crate::options::ClaimOptions;
use crate::shared::{
    Begun, Change, Driver, Grant, NewClaim, ROUNDS_MAX, SharedBackend, State, Written, changing,
    check_answer, judge, previous,
};
use crate::sql::connection::Connection;
use crate::sql::driver::failed;
use crate::sql::steps;
use crate::token::Token;

/// What a claim does that meets another transaction at work on the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// Waits until that one commits or rolls back, then answers. On SQLite for as long as the
    /// connection's `busy_timeout`.
    #[default]
    Wait,
    /// Answers [`TransactionClaim::Busy`] at once.
    Skip,
}

/// What became of the operation, for a claim inside a transaction.
#[derive(Debug)]
#[must_use = "a started operation that is not completed is interrupted once the transaction commits"]
pub enum TransactionClaim {
    /// The key was free: do the work in this transaction, complete, and commit.
    Started(TransactionOperation),
    /// An earlier attempt ended without a word: a stand-alone owner that is gone, or a transaction
    /// that committed without completing. **What it did elsewhere is unknown.** What it wrote in a
    /// transaction that was rolled back is gone.
    Interrupted(TransactionOperation),
    /// Another transaction is at work on the key and has not committed: answer "retry later", and roll
    /// back.
    Busy,
    /// A stand-alone owner is at work.
    InProgress(Progress),
    /// The operation is done: here is its stored result.
    Completed(Saved),
    /// The key was used for another request.
    Mismatch(Mismatch),
    /// The key is absent, but was first sent before the time from which results are kept.
    TooLate(TooLate),
}

/// A key that was claimed in a transaction.
///
/// The claim, what the caller writes, and the completion commit or roll back together. There is no
/// lease to renew: until the transaction ends, no other can have the key. Rolled back, the key is as
/// it was; committed without a completion, it is interrupted. Nothing happens when this is dropped.
#[must_use = "without a completion the key is interrupted once the transaction commits"]
pub struct TransactionOperation {
    claim: NewClaim,
    grant: Grant,
    response_bytes_max: usize,
    downstream: Box<dyn Fn(&str) -> String + Send + Sync>,
}

impl<D: Driver> SharedBackend<D> {
    async fn claim_on<C: Connection>(
        &self,
        connection: &mut C,
        key: &Key,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<TransactionClaim, ClaimError> {
        let (mut claim, _) = self.new_claim(key, fingerprint, options, State::Interrupted)?;
        claim.lease_ms = 0;
        let outcome = match decide(connection, &claim).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Err(changing("claiming a key in a transaction").into()),
            Err(error) if C::is_locked(&error) => return Ok(TransactionClaim::Busy),
            Err(error) => return Err(failed("claiming a key in a transaction")(error).into()),
        };
        let operation = |grant: Grant| {
            let (backend, key) = (self.clone(), key.clone());
            let fingerprint = grant.fingerprint;
            TransactionOperation {
                response_bytes_max: self.response_bytes_max(),
                claim: claim.clone(),
                grant,
                downstream: Box::new(move |label| backend.downstream_key(&key, fingerprint, label)),
            }
        };
        Ok(match outcome {
            Outcome::Started(grant) => TransactionClaim::Started(operation(grant)),
            Outcome::Interrupted(grant) => TransactionClaim::Interrupted(operation(grant)),
            Outcome::InProgress(progress) => TransactionClaim::InProgress(progress),
            Outcome::Completed(saved) => TransactionClaim::Completed(saved),
            Outcome::Mismatch(mismatch) => TransactionClaim::Mismatch(mismatch),
            Outcome::TooLate(too_late) => TransactionClaim::TooLate(too_late),
        })
    }
}

/// Claims on one connection, by the same judgement as everywhere. `None` where the key changed at every
/// look.
async fn decide<C: Connection>(
    connection: &mut C,
    claim: &NewClaim,
) -> Result<Option<Outcome<Grant>>, Error> {
    for _ in 0..ROUNDS_MAX {
        let seen = match steps::begin(connection, claim).await? {
            Begun::Granted(grant) => return Ok(Some(Outcome::Started(grant))),
            Begun::TooLate(too_late) => return Ok(Some(Outcome::TooLate(too_late))),
            Begun::Found(seen) => seen,
            Begun::Changed => continue,
        };
        if let Some(outcome) = judge(&seen, claim) {
            return Ok(Some(outcome));
        }
        if let Some(grant) = steps::take(connection, claim, &seen).await? {
            return Ok(Some(grant.taken()));
        }
    }
    Ok(None)
}

impl TransactionOperation {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.claim.key
    }

    /// 1 for the first owner, one more at each takeover.
    pub fn attempt(&self) -> u32 {
        self.grant.attempt
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        Token::from_u64(self.grant.token)
    }

    /// The interrupted attempt before this one; `None` for the first.
    pub fn previous(&self) -> Option<Previous> {
        previous(&self.grant)
    }

    /// A key for a call to another system: the same for every attempt of this operation, also after
    /// the transaction was rolled back.
    pub fn downstream_key(&self, label: &str) -> String {
        (self.downstream)(label)
    }

    /// Stores the result, in the transaction that the key was claimed in. It counts once that commits.
    ///
    /// # Errors
    ///
    /// [`WriteError::LeaseLost`] on another transaction than that of the claim, if the key went on;
    /// a limit; or [`WriteError::Backend`], after which the transaction can only be rolled back.
    pub async fn complete<C: Connection>(
        &self,
        connection: &mut C,
        answer: Answer<'_>,
    ) -> Result<Saved, WriteError> {
        let len = answer.response.map_or(0, <[u8]>::len);
        if len > self.response_bytes_max {
            return Err(WriteError::ResponseTooLarge {
                len,
                max: self.response_bytes_max,
            });
        }
        let retention_ms = check_answer(answer)?.unwrap_or(self.claim.retention_ms);
        let change = Change::Complete {
            response: answer.response,
            principal: answer.principal,
            retention_ms,
        };
        let completed_ms = self.write(connection, change).await?;
        Ok(Saved::from(SavedParts {
            response: answer.response.map(Bytes::copy_from_slice),
            principal: answer.principal.map(Bytes::copy_from_slice),
            attempt: self.attempt(),
            token: self.token(),
            created_at: time(self.grant.created_ms),
            completed_at: time(completed_ms),
            expires_at: time(completed_ms.saturating_add(retention_ms)),
        }))
    }

    /// Says that nothing happened: once the transaction commits, the key is absent.
    ///
    /// # Errors
    ///
    /// As for [`complete`](Self::complete).
    pub async fn release<C: Connection>(&self, connection: &mut C) -> Result<(), WriteError> {
        self.write(connection, Change::Release).await.map(drop)
    }

    async fn write<C: Connection>(
        &self,
        connection: &mut C,
        change: Change<'_>,
    ) -> Result<u64, WriteError> {
        let (key, token) = (&self.claim.key, self.grant.token);
        let also_from = steps::also_from(true);
        let written = steps::write(connection, key, token, change, also_from).await;
        match written.map_err(failed("writing in a transaction"))? {
            Written::Done { at_ms } => Ok(at_ms),
            Written::Lost { new_attempt, .. } => Err(WriteError::LeaseLost { new_attempt }),
        }
    }
}

impl fmt::Debug for TransactionOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionOperation")
            .field("key", &self.claim.key)
            .field("attempt", &self.grant.attempt)
            .field("token", &self.grant.token)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "postgres")]
impl SharedBackend<super::Postgres> {
    /// Claims the key inside a transaction of the caller, who goes on in it, completes, and commits.
    ///
    /// Needs the default isolation level, `READ COMMITTED`; under a stricter one a claim that waited
    /// for another transaction gets the database's serialization failure, and the caller starts over.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]. After [`ClaimError::Backend`] the transaction can only be rolled back, as it is
    /// after this future was dropped: the key may have been claimed. With [`OnConflict::Skip`] it is
    /// as it was before, unless the connection is broken.
    pub async fn claim_in(
        &self,
        transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
        on_conflict: OnConflict,
    ) -> Result<TransactionClaim, ClaimError> {
        let connection = &mut **transaction;
        if on_conflict == OnConflict::Wait {
            return self.claim_on(connection, key, fingerprint, &options).await;
        }
        // The savepoint keeps the caller's transaction usable after an error, and puts the time-out
        // back.
        run(connection, "SAVEPOINT oncekey_claim").await?;
        let claimed = self
            .claim_at_once(connection, key, fingerprint, &options)
            .await;
        let ended = async {
            if !matches!(&claimed, Ok(claim) if !matches!(claim, TransactionClaim::Busy)) {
                run(connection, "ROLLBACK TO SAVEPOINT oncekey_claim").await?;
            }
            run(connection, "RELEASE SAVEPOINT oncekey_claim").await
        };
        let ended = ended.await;
        // What came first is what went wrong.
        let claimed = claimed?;
        ended?;
        Ok(claimed)
    }

    /// A lock that is not there after a millisecond belongs to another transaction.
    async fn claim_at_once(
        &self,
        connection: &mut sqlx::PgConnection,
        key: &Key,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<TransactionClaim, ClaimError> {
        let failed = failed("claiming without waiting");
        let timeout: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
            .fetch_one(&mut *connection)
            .await
            .map_err(&failed)?;
        run(connection, "SET LOCAL lock_timeout = '1ms'").await?;
        let claimed = self.claim_on(connection, key, fingerprint, options).await?;
        if !matches!(claimed, TransactionClaim::Busy) {
            sqlx::query("SELECT set_config('lock_timeout', $1, true)")
                .bind(timeout)
                .execute(connection)
                .await
                .map_err(&failed)?;
        }
        Ok(claimed)
    }
}

#[cfg(feature = "postgres")]
async fn run(connection: &mut sqlx::PgConnection, sql: &'static str) -> Result<(), ClaimError> {
    let done = connection.execute(sql, &[]).await;
    done.map_err(failed("claiming without waiting"))?;
    Ok(())
}

#[cfg(feature = "sqlite")]
impl SharedBackend<super::Sqlite> {
    /// Claims the key inside a transaction of the caller, who goes on in it, completes, and commits.
    ///
    /// SQLite has one writer at a time, so another transaction at work is one on any key. Begin with
    /// `BEGIN IMMEDIATE`, which waits there and not here: a transaction that has read before it claims
    /// may find that its view is out of date, gets [`TransactionClaim::Busy`], and has to start over.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]. After [`ClaimError::Backend`], and after this future was dropped, roll the
    /// transaction back: the key may have been claimed.
    pub async fn claim_in(
        &self,
        transaction: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
        on_conflict: OnConflict,
    ) -> Result<TransactionClaim, ClaimError> {
        let connection = &mut **transaction;
        if on_conflict == OnConflict::Wait {
            return self.claim_on(connection, key, fingerprint, &options).await;
        }
        // A transaction that has read is never made to wait for a lock that it wants besides: two of
        // that kind would wait for each other for ever. So nothing of the connection is changed.
        let read = sqlx::query("SELECT value FROM oncekey_token").execute(&mut *connection);
        match read.await {
            Ok(_) => self.claim_on(connection, key, fingerprint, &options).await,
            Err(error) if sqlx::SqliteConnection::is_locked(&error) => Ok(TransactionClaim::Busy),
            Err(error) => Err(failed("claiming without waiting")(error).into()),
        }
    }
}
