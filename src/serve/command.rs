//! The commands: their names, and who runs them.

mod connection;
mod expiry;
mod keys;
mod lifecycle;
mod strings;

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::future::join_all;

use super::reply::Reply;
use super::session::{Session, Shared};
use crate::error::ClaimError;
use crate::values::ValueError;

pub(super) use self::lifecycle::Guards;

/// An answer, and the position that must be durable before it is given.
pub(super) type Answer = (Reply, u64);

/// A command in the table: name, number of arguments with the command (at least so many where negative),
/// whether it writes, first and last key and the step between keys.
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) arity: i64,
    pub(super) is_write: bool,
    pub(super) keys: (i64, i64, i64),
}

const fn command(name: &'static str, arity: i64, is_write: bool, keys: (i64, i64, i64)) -> Command {
    Command {
        name,
        arity,
        is_write,
        keys,
    }
}

const NO_KEYS: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);

pub(super) const COMMANDS: &[Command] = &[
    command("auth", -2, false, NO_KEYS),
    command("client", -2, false, NO_KEYS),
    command("command", -1, false, NO_KEYS),
    command("config", -2, false, NO_KEYS),
    command("dbsize", 1, false, NO_KEYS),
    command("del", -2, true, ALL),
    command("echo", 2, false, NO_KEYS),
    command("exists", -2, false, ALL),
    command("expire", -3, true, ONE),
    command("expireat", -3, true, ONE),
    command("expiretime", 2, false, ONE),
    command("get", 2, false, ONE),
    command("getdel", 2, true, ONE),
    command("getex", -2, true, ONE),
    command("hello", -1, false, NO_KEYS),
    command("idem.checkpoint", 6, true, NO_KEYS),
    command("idem.claim", -6, true, NO_KEYS),
    command("idem.complete", -5, true, NO_KEYS),
    command("idem.forget", -4, true, NO_KEYS),
    command("idem.get", 4, false, NO_KEYS),
    command("idem.release", 5, true, NO_KEYS),
    command("idem.renew", 5, true, NO_KEYS),
    command("idem.wait", 5, false, NO_KEYS),
    command("info", -1, false, NO_KEYS),
    command("mget", -2, false, ALL),
    command("persist", 2, true, ONE),
    command("pexpire", -3, true, ONE),
    command("pexpireat", -3, true, ONE),
    command("pexpiretime", 2, false, ONE),
    command("ping", -1, false, NO_KEYS),
    command("psetex", 4, true, ONE),
    command("pttl", 2, false, ONE),
    command("quit", -1, false, NO_KEYS),
    command("reset", 1, false, NO_KEYS),
    command("scan", -2, false, NO_KEYS),
    command("select", 2, false, NO_KEYS),
    command("set", -3, true, ONE),
    command("setex", 4, true, ONE),
    command("setnx", 3, true, ONE),
    command("strlen", 2, false, ONE),
    command("ttl", 2, false, ONE),
    command("type", 2, false, ONE),
    command("unlink", -2, true, ALL),
];

/// Why a command has another answer than it might.
#[derive(Debug)]
pub(super) struct Failure(String);

impl Failure {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    pub(super) fn syntax() -> Self {
        Self::new("ERR syntax error")
    }

    pub(super) fn not_integer() -> Self {
        Self::new("ERR value is not an integer or out of range")
    }
}

impl From<ValueError> for Failure {
    fn from(error: ValueError) -> Self {
        match error {
            ValueError::Claimed { attempt } => Self(format!(
                "WRONGTYPE the key is claimed (attempt {attempt}) and has no value yet"
            )),
            ValueError::Principal => Self::new("NOPERM the result belongs to a principal"),
            ValueError::TooLarge { len, max } => Self(format!(
                "ERR a value of {len} bytes is over the limit of {max}"
            )),
            ValueError::Claim(error) => error.into(),
        }
    }
}

impl From<ClaimError> for Failure {
    fn from(error: ClaimError) -> Self {
        let code = match &error {
            ClaimError::OutOfSpace(_)
            | ClaimError::LimitReached(_)
            | ClaimError::TooManyPending { .. } => "OOM",
            ClaimError::Unavailable(crate::Unavailable::Poisoned { .. })
            | ClaimError::OutcomeUnknown(_) => "MISCONF",
            _ => "ERR",
        };
        Self(format!("{code} {error}"))
    }
}

/// Runs one request, which is not empty.
pub(super) async fn run(session: &mut Session, shared: &Shared, request: &[Bytes]) -> Answer {
    match find_and_run(session, shared, request).await {
        Ok(answer) => answer,
        Err(Failure(message)) => (Reply::Error(message), 0),
    }
}

async fn find_and_run(
    session: &mut Session,
    shared: &Shared,
    request: &[Bytes],
) -> Result<Answer, Failure> {
    let (name, arguments) = request.split_first().ok_or_else(Failure::syntax)?;
    // A browser that was led here by a page.
    if [&b"post"[..], b"host:"]
        .iter()
        .any(|http| name.eq_ignore_ascii_case(http))
    {
        session.is_over = true;
        return Err(Failure::new("ERR this is no HTTP server"));
    }
    let is_it = |command: &&Command| name.eq_ignore_ascii_case(command.name.as_bytes());
    let Some(command) = COMMANDS.iter().find(is_it) else {
        return Err(unknown(name, arguments));
    };
    let count = request.len() as i64;
    if count < command.arity.abs() || command.arity >= 0 && count != command.arity {
        return Err(Failure(format!(
            "ERR wrong number of arguments for '{}' command",
            command.name
        )));
    }
    let is_open = matches!(command.name, "auth" | "hello" | "quit" | "reset");
    if !session.is_authenticated && !is_open {
        return Err(Failure::new("NOAUTH Authentication required."));
    }
    let values = &shared.values;
    match command.name {
        "set" => strings::set(values, arguments).await,
        "setnx" | "setex" | "psetex" => strings::set_short(values, command.name, arguments).await,
        "get" | "strlen" | "type" => strings::look(values, command.name, arguments).await,
        "mget" => strings::get_many(values, arguments, shared.options.output_bytes_max).await,
        "getdel" => strings::get_and_remove(values, arguments).await,
        "getex" => expiry::get_and_expire(values, arguments).await,
        "expire" | "pexpire" | "expireat" | "pexpireat" => {
            expiry::expire(values, command.name, arguments).await
        }
        "persist" => expiry::persist(values, arguments).await,
        "ttl" | "pttl" | "expiretime" | "pexpiretime" => {
            expiry::left(values, command.name, arguments).await
        }
        "del" | "unlink" => keys::remove(values, arguments).await,
        "exists" => keys::exist(values, arguments).await,
        "scan" => keys::scan(values, arguments),
        "dbsize" => Ok((keys::count(shared), 0)),
        name if name.starts_with("idem.") => {
            let reply = lifecycle::run(shared, name, arguments).await?;
            Ok((reply, 0))
        }
        "auth" | "hello" => {
            let reply = connection::run_with_password(session, shared, command.name, arguments);
            Ok((reply.await?, 0))
        }
        name => connection::run(session, shared, name, arguments).map(|reply| (reply, 0)),
    }
}

/// The key of a request that waits for the disk by itself, if it is one: such requests on different keys
/// may be run at once. `IDEM.WAIT` is none of them: what comes after it may count on its end.
pub(super) fn own_key(session: &Session, request: &[Bytes]) -> Option<[Bytes; 3]> {
    let [name, scope, operation, id, ..] = request else {
        return None;
    };
    let is_own = session.is_authenticated
        && name
            .get(..5)
            .is_some_and(|word| word.eq_ignore_ascii_case(b"idem."))
        && !name.eq_ignore_ascii_case(b"idem.wait");
    is_own.then(|| [scope, operation, id].map(Bytes::clone))
}

/// Runs requests that have an [`own_key`] at once, those on one key one after the other: their answers,
/// in the order of the requests.
pub(super) async fn run_together(
    session: &Session,
    shared: &Shared,
    requests: Vec<([Bytes; 3], Vec<Bytes>)>,
) -> Vec<Reply> {
    let mut places: HashMap<_, usize> = HashMap::new();
    let mut chains: Vec<Vec<(usize, Vec<Bytes>)>> = Vec::new();
    for (number, (key, request)) in requests.into_iter().enumerate() {
        let place = *places.entry(key).or_insert(chains.len());
        if place == chains.len() {
            chains.push(Vec::new());
        }
        if let Some(chain) = chains.get_mut(place) {
            chain.push((number, request));
        }
    }
    let chains = chains.into_iter().map(|chain| async move {
        let mut session = session.clone();
        let mut answers = Vec::with_capacity(chain.len());
        for (number, request) in chain {
            answers.push((number, run(&mut session, shared, &request).await.0));
        }
        answers
    });
    let mut answers: Vec<_> = join_all(chains).await.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, reply)| reply).collect()
}

/// As Redis says it, since clients look for it.
fn unknown(name: &[u8], arguments: &[Bytes]) -> Failure {
    let shown =
        |bytes: &[u8]| String::from_utf8_lossy(bytes.get(..128).unwrap_or(bytes)).into_owned();
    let mut message = format!(
        "ERR unknown command '{}', with args beginning with: ",
        shown(name)
    );
    for argument in arguments.iter().take(8) {
        message.push_str(&format!("'{}' ", shown(argument)));
    }
    Failure(message)
}
