//! The steps of a claim as scripts.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, Script};

use crate::backend::{BackendError, MalformedRecord};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::redis::name;
use crate::shared::{
    Begun, Change, Driver, Field, Fields, Grant, Listed, NewClaim, Record, Removal, State, Written,
    read_record,
};

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
    /// Of the key.
    name: Vec<u8>,
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

/// A server that answers with an error has not done what it was asked, since every script looks before
/// it writes; neither has one that can't be connected to. Else nobody knows.
pub(super) fn failed(step: &'static str) -> impl Fn(RedisError) -> BackendError {
    move |error| match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => BackendError::refused(step, error),
        ErrorKind::AuthenticationFailed => BackendError::refused(step, error),
        _ if error.is_connection_refusal() => BackendError::refused(step, error),
        _ => BackendError::new(step, error),
    }
}

fn odd_answer(step: &'static str, what: &str) -> BackendError {
    BackendError::new(step, format!("the server's answer has {what}"))
}

fn place(name: &[u8]) -> String {
    format!("the Redis key \"{}\"", name.escape_ascii())
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
        script: &Script,
        key: &Key,
        arguments: &[&[u8]],
    ) -> Result<Reply, BackendError> {
        let mut connection = self.connection.clone();
        let name = self.name(key);
        let mut invocation = script.key(&name);
        for argument in arguments {
            invocation.arg(*argument);
        }
        let answer: Result<Vec<Vec<u8>>, _> = invocation.invoke_async(&mut connection).await;
        let answer = answer.map_err(|error| {
            if error.to_string().contains("WRONGTYPE") {
                let malformed = MalformedRecord::new(place(&name), "", "another type than a hash");
                return BackendError::from((step, malformed));
            }
            failed(step)(error)
        })?;
        let mut answer = answer.into_iter();
        let (Some(word), Some(now)) = (answer.next(), answer.next()) else {
            return Err(odd_answer(step, "too few fields"));
        };
        Ok(Reply {
            name,
            word,
            now_ms: parse(&now).ok_or_else(|| odd_answer(step, "no time"))?,
            fields: answer.map(Bytes::from).collect(),
        })
    }
}

fn parse(digits: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // As this crate writes it: scripts compare the bytes.
    (number.to_string().as_bytes() == digits).then_some(number)
}

impl Reply {
    fn field(&self, name: &[u8]) -> Option<Bytes> {
        let mut pairs = self.fields.chunks_exact(2);
        pairs.find_map(|pair| match pair {
            [field, value] if field[..] == *name => Some(value.clone()),
            _ => None,
        })
    }

    fn record(&self) -> Result<Record, MalformedRecord> {
        read_record(self, self.now_ms, || place(&self.name))
    }

    fn found(&self, step: &'static str) -> Result<Option<Record>, BackendError> {
        match &self.word[..] {
            b"absent" => Ok(None),
            b"found" => {
                let record = self.record();
                record
                    .map(Some)
                    .map_err(|malformed| (step, malformed).into())
            }
            _ => Err(odd_answer(step, "an unknown word")),
        }
    }

    fn token(&self, step: &'static str) -> Result<u64, BackendError> {
        let token = self.field(b"t").and_then(|digits| parse(&digits));
        token.ok_or_else(|| odd_answer(step, "no token"))
    }
}

impl Fields for Reply {
    fn name(field: Field) -> &'static str {
        field.letter
    }

    fn number(&self, field: Field) -> Result<Option<u64>, String> {
        let Some(digits) = self.field(field.letter.as_bytes()) else {
            return Ok(None);
        };
        let number = parse(&digits).ok_or("what is no number of 64 bits");
        number.map(Some).map_err(str::to_owned)
    }

    fn bytes(&self, field: Field) -> Result<Option<Bytes>, String> {
        Ok(self.field(field.letter.as_bytes()))
    }

    fn fingerprint(&self) -> Result<Fingerprint, (&'static str, String)> {
        let bytes = self.field(b"f").unwrap_or_default();
        let Ok::<&[u8; 17], _>([algorithm, digest @ ..]) = bytes[..].try_into() else {
            return Err(("f", format!("{} bytes instead of 17", bytes.len())));
        };
        Ok(Fingerprint::from_raw(
            *algorithm,
            u128::from_le_bytes(*digest),
        ))
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
        let (lease, retention) = (claim.lease_ms.to_string(), claim.retention_ms.to_string());
        let arguments = [
            &fingerprint(claim.fingerprint)[..],
            lease.as_bytes(),
            first_sent.as_bytes(),
            retention.as_bytes(),
            digit(claim.state),
        ];
        let reply = self.run(step, &self.scripts.begin, &claim.key, &arguments);
        let reply = reply.await?;
        if reply.word == b"granted" {
            let grant = claim.started(reply.token(step)?, reply.now_ms);
            return Ok(Begun::Granted(grant));
        }
        if reply.word == b"late" {
            let too_late = claim.too_late(reply.now_ms);
            let too_late = too_late.ok_or_else(|| odd_answer(step, "another time"))?;
            return Ok(Begun::TooLate(too_late));
        }
        let record = reply.found(step)?;
        record
            .map(Begun::Found)
            .ok_or_else(|| odd_answer(step, "an unknown word"))
    }

    async fn take(&self, claim: &NewClaim, seen: &Record) -> Result<Option<Grant>, BackendError> {
        let step = "taking a key over";
        let (token, lease) = (seen.token.to_string(), claim.lease_ms.to_string());
        let arguments = [
            token.as_bytes(),
            &fingerprint(claim.fingerprint)[..],
            lease.as_bytes(),
            digit(claim.state),
        ];
        let reply = self.run(step, &self.scripts.take, &claim.key, &arguments);
        let reply = reply.await?;
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
        let number = match change {
            Change::Renew { lease_ms } => lease_ms,
            Change::Complete { retention_ms, .. } => retention_ms,
            Change::Checkpoint(_) | Change::Release | Change::Interrupt => 0,
        };
        let (number, token_digits) = (number.to_string(), token.to_string());
        let mut arguments = vec![token_digits.as_bytes()];
        match change {
            Change::Renew { .. } => arguments.extend([&b"renew"[..], number.as_bytes()]),
            Change::Checkpoint(note) => arguments.extend([b"checkpoint", note]),
            Change::Complete {
                response,
                principal,
                ..
            } => {
                arguments.extend([&b"complete"[..], number.as_bytes()]);
                for (field, value) in [(b"r", response), (b"p", principal)] {
                    arguments.extend(value.into_iter().flat_map(|value| [&field[..], value]));
                }
            }
            Change::Release => arguments.push(b"release"),
            Change::Interrupt => arguments.push(b"interrupt"),
        }
        let reply = self.run(step, &self.scripts.write, key, &arguments).await?;
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
        let reply = self.run(step, &self.scripts.read, key, &[]).await?;
        reply.found(step)
    }

    async fn remove(&self, key: &Key, force: bool) -> Result<Removal, BackendError> {
        let step = "removing a key";
        let force: &[u8] = if force { b"1" } else { b"0" };
        let reply = self.run(step, &self.scripts.remove, key, &[force]).await?;
        match &reply.word[..] {
            b"absent" => return Ok(Removal::Absent),
            b"removed" => return Ok(Removal::Removed),
            _ => {}
        }
        Ok(match reply.found(step)? {
            None => Removal::Absent,
            Some(record) if record.state != State::Completed => Removal::Pending {
                attempt: record.attempt,
            },
            Some(_) => Removal::Changed,
        })
    }

    async fn interrupted(&self, max: usize) -> Result<Listed, BackendError> {
        let step = "listing interrupted keys";
        let mut listed = Listed::default();
        self.walk(step, |key, record| {
            match record {
                Ok(record) if record.state != State::Completed && !record.is_held() => {
                    listed.keys.push(record.pending_key(key));
                }
                Ok(_) => {}
                Err(malformed) => {
                    // As many as were asked for is enough of these too.
                    if listed.malformed.len() < max {
                        listed.malformed.push(malformed);
                    }
                }
            }
            listed.keys.len() < max
        })
        .await?;
        listed.keys.truncate(max);
        Ok(listed)
    }

    async fn malformed(&self, max: usize) -> Result<Vec<MalformedRecord>, BackendError> {
        let mut found = Vec::new();
        self.walk("looking for keys that can't be read", |_, record| {
            found.extend(record.err());
            found.len() < max
        })
        .await?;
        found.truncate(max);
        Ok(found)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Redis<C> {
    /// Looks at every key of this server, until it is told to stop.
    async fn walk(
        &self,
        step: &'static str,
        mut look: impl FnMut(Key, Result<Record, MalformedRecord>) -> bool,
    ) -> Result<(), BackendError> {
        let mut connection = self.connection.clone();
        let mut looked_at = HashSet::new();
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
            let names = scan.1.iter();
            for key in names.filter_map(|name| name::decode(&self.prefix, name)) {
                // A scan may give a name twice.
                if !looked_at.insert(key.clone()) {
                    continue;
                }
                let record = match self.read(&key).await {
                    Ok(Some(record)) => Ok(record),
                    Ok(None) => continue,
                    Err(error) => Err(error.malformed().cloned().ok_or(error)?),
                };
                if !look(key, record) {
                    return Ok(());
                }
            }
            cursor = scan.0;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}

/// A state as its one digit.
fn digit(state: State) -> &'static [u8] {
    match state {
        State::Pending => b"0",
        State::Interrupted => b"1",
        State::Completed => b"2",
    }
}

impl<C> fmt::Debug for Redis<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
