//! The steps of a claim as scripts.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use redis::aio::ConnectionLike;
use redis::{RedisError, Script, ScriptInvocation};

use crate::backend::BackendError;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::PendingKey;
use crate::redis::name;
use crate::shared::{Begun, Change, Driver, Grant, NewClaim, Record, Removal, State, Written};

/// Keys that one step of a listing looks at.
const SCAN_COUNT: usize = 500;

/// Keys in Redis or Valkey.
#[derive(Clone)]
pub struct Redis<C> {
    connection: C,
    prefix: Arc<str>,
    scripts: Arc<Scripts>,
}

struct Scripts {
    begin: Script,
    take: Script,
    write: Script,
    remove: Script,
    read: Script,
}

/// What a script answers: a word, the server's time, and fields with their values.
struct Reply {
    word: Vec<u8>,
    now_ms: u64,
    fields: Vec<Bytes>,
}

macro_rules! script {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("scripts/prelude.lua"),
            include_str!(concat!("scripts/", $name, ".lua"))
        ))
    };
}

fn failed(step: &'static str) -> impl Fn(RedisError) -> BackendError {
    move |error| BackendError::new(step, error)
}

fn malformed(step: &'static str, what: &str) -> BackendError {
    BackendError::new(step, format!("the key or the answer has {what}"))
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Redis<C> {
    pub(super) fn new(connection: C, prefix: &str) -> Self {
        let scripts = Scripts {
            begin: script!("begin"),
            take: script!("take"),
            write: script!("write"),
            remove: script!("remove"),
            read: script!("read"),
        };
        Self {
            connection,
            prefix: prefix.into(),
            scripts: Arc::new(scripts),
        }
    }

    fn name(&self, key: &Key) -> Vec<u8> {
        name::encode(&self.prefix, key)
    }

    async fn run(
        &self,
        step: &'static str,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<Reply, BackendError> {
        let mut connection = self.connection.clone();
        let answer: Vec<Vec<u8>> = invocation
            .invoke_async(&mut connection)
            .await
            .map_err(failed(step))?;
        let mut answer = answer.into_iter();
        let (Some(word), Some(now)) = (answer.next(), answer.next()) else {
            return Err(malformed(step, "too few fields"));
        };
        Ok(Reply {
            word,
            now_ms: parse(&now).ok_or_else(|| malformed(step, "no time"))?,
            fields: answer.map(Bytes::from).collect(),
        })
    }
}

fn parse(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl Reply {
    fn field(&self, name: &[u8]) -> Option<Bytes> {
        let mut pairs = self.fields.chunks_exact(2);
        pairs.find_map(|pair| match pair {
            [field, value] if field[..] == *name => Some(value.clone()),
            _ => None,
        })
    }

    fn number(&self, name: &[u8]) -> Option<u64> {
        parse(&self.field(name)?)
    }

    /// Trusts nothing that it reads: anybody may have written to the server.
    fn record(&self) -> Option<Record> {
        let fingerprint = self.field(b"f")?;
        let (algorithm, digest) = fingerprint.split_first()?;
        let digest = <[u8; 16]>::try_from(digest).ok()?;
        let state = State::from_number(self.number(b"s")?)?;
        let is_completed = state == State::Completed;
        let when = |needed: bool, number: Option<u64>| match number {
            None if needed => None,
            number => Some(number.unwrap_or(0)),
        };
        Some(Record {
            now_ms: self.now_ms,
            fingerprint: Fingerprint::from_raw(*algorithm, u128::from_le_bytes(digest)),
            state,
            token: self.number(b"t")?,
            attempt: u32::try_from(self.number(b"a")?).ok()?,
            created_ms: self.number(b"c")?,
            started_ms: self.number(b"b")?,
            lease_until_ms: when(!is_completed, self.number(b"l"))?,
            completed_ms: when(is_completed, self.number(b"d"))?,
            expires_ms: when(is_completed, self.number(b"e"))?,
            checkpoint: self.field(b"n"),
            response: self.field(b"r"),
            principal: self.field(b"p"),
        })
    }

    fn found(&self, step: &'static str) -> Result<Option<Record>, BackendError> {
        match &self.word[..] {
            b"absent" => Ok(None),
            b"found" => {
                let record = self.record();
                record
                    .map(Some)
                    .ok_or_else(|| malformed(step, "other fields than it should"))
            }
            _ => Err(malformed(step, "an unknown word")),
        }
    }

    fn token(&self, step: &'static str) -> Result<u64, BackendError> {
        self.number(b"t").ok_or_else(|| malformed(step, "no token"))
    }
}

fn fingerprint(fingerprint: Fingerprint) -> Vec<u8> {
    let mut bytes = vec![fingerprint.algorithm()];
    bytes.extend_from_slice(&fingerprint.digest().to_le_bytes());
    bytes
}

#[allow(private_interfaces, reason = "the trait is sealed by its types")]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> Driver for Redis<C> {
    async fn begin(&self, claim: &NewClaim) -> Result<Begun, BackendError> {
        let step = "claiming a key";
        let first_sent = claim
            .first_sent_ms
            .map_or("-1".to_owned(), |ms| ms.to_string());
        let mut invocation = self.scripts.begin.key(self.name(&claim.key));
        invocation
            .arg(fingerprint(claim.fingerprint))
            .arg(claim.lease_ms)
            .arg(first_sent)
            .arg(claim.retention_ms)
            .arg(claim.state as u64);
        let reply = self.run(step, &invocation).await?;
        if reply.word == b"granted" {
            let grant = claim.started(reply.token(step)?, reply.now_ms);
            return Ok(Begun::Granted(grant));
        }
        if reply.word == b"late" {
            let too_late = claim.too_late(reply.now_ms);
            let too_late = too_late.ok_or_else(|| malformed(step, "another time"))?;
            return Ok(Begun::TooLate(too_late));
        }
        let record = reply.found(step)?;
        record
            .map(Begun::Found)
            .ok_or_else(|| malformed(step, "an unknown word"))
    }

    async fn take(&self, claim: &NewClaim, seen: &Record) -> Result<Option<Grant>, BackendError> {
        let step = "taking a key over";
        let mut invocation = self.scripts.take.key(self.name(&claim.key));
        invocation
            .arg(seen.token)
            .arg(fingerprint(claim.fingerprint))
            .arg(claim.lease_ms)
            .arg(claim.state as u64);
        let reply = self.run(step, &invocation).await?;
        if reply.word != b"granted" {
            return Ok(None);
        }
        Ok(Some(claim.taken(seen, reply.token(step)?, reply.now_ms)))
    }

    async fn write(
        &self,
        key: &Key,
        token: u64,
        change: Change<'_>,
    ) -> Result<Written, BackendError> {
        let step = "writing as the owner of a key";
        let mut invocation = self.scripts.write.key(self.name(key));
        invocation.arg(token);
        match change {
            Change::Renew { lease_ms } => invocation.arg("renew").arg(lease_ms),
            Change::Checkpoint(note) => invocation.arg("checkpoint").arg(note),
            Change::Complete {
                response,
                principal,
                retention_ms,
            } => {
                invocation.arg("complete").arg(retention_ms);
                for (field, value) in [("r", response), ("p", principal)] {
                    if let Some(value) = value {
                        invocation.arg(field).arg(value);
                    }
                }
                &mut invocation
            }
            Change::Release => invocation.arg("release"),
            Change::Interrupt => invocation.arg("interrupt"),
        };
        let reply = self.run(step, &invocation).await?;
        if reply.word == b"done" {
            return Ok(Written::Done {
                at_ms: reply.now_ms,
            });
        }
        let found = reply.found(step)?;
        Ok(Written::refused(found.as_ref(), token, change))
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>, BackendError> {
        let step = "reading a key";
        let invocation = self.scripts.read.key(self.name(key));
        self.run(step, &invocation).await?.found(step)
    }

    async fn remove(&self, key: &Key, force: bool) -> Result<Removal, BackendError> {
        let step = "removing a key";
        let mut invocation = self.scripts.remove.key(self.name(key));
        invocation.arg(u8::from(force));
        let reply = self.run(step, &invocation).await?;
        match &reply.word[..] {
            b"absent" => Ok(Removal::Absent),
            b"removed" => Ok(Removal::Removed),
            b"pending" => {
                let attempt = reply.number(b"a").and_then(|it| u32::try_from(it).ok());
                let attempt = attempt.ok_or_else(|| malformed(step, "no attempt"))?;
                Ok(Removal::Pending { attempt })
            }
            _ => Err(malformed(step, "an unknown word")),
        }
    }

    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, BackendError> {
        let step = "listing interrupted keys";
        let mut connection = self.connection.clone();
        let (mut listed, mut looked_at) = (Vec::new(), HashSet::new());
        let mut cursor = 0_u64;
        loop {
            let scan: (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("{}:{{*", self.prefix))
                .arg("COUNT")
                .arg(SCAN_COUNT)
                .query_async(&mut connection)
                .await
                .map_err(failed(step))?;
            for key in scan
                .1
                .iter()
                .filter_map(|name| name::decode(&self.prefix, name))
            {
                // A scan may give a name twice.
                if listed.len() >= max || !looked_at.insert(key.clone()) {
                    continue;
                }
                let record = self.read(&key).await?;
                let record = record.filter(|it| it.state != State::Completed && !it.is_held());
                listed.extend(record.map(|record| record.pending_key(key)));
            }
            cursor = scan.0;
            if cursor == 0 || listed.len() >= max {
                return Ok(listed);
            }
        }
    }
}

impl<C> fmt::Debug for Redis<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
