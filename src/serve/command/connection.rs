//! Commands about the connection and the server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::{COMMANDS, Command, Failure};
use crate::serve::glob;
use crate::serve::reply::{OK, Protocol, Reply};
use crate::serve::request::integer;
use crate::serve::session::{Session, Shared};

/// Bytes of a client's name.
const NAME_BYTES_MAX: usize = 255;

/// Wrong passwords after which a client is hung up on.
const WRONG_PASSWORDS_MAX: u32 = 3;
/// What a wrong one costs. Passwords are looked at one after the other, whoever sends them, so this is
/// what all who guess get through together: twenty in a second.
const AFTER_WRONG_PASSWORD: Duration = Duration::from_millis(50);

/// Runs a command that may bring a password.
pub(super) async fn run_with_password(
    session: &mut Session,
    shared: &Shared,
    name: &str,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    let brings_password = shared.options.password.is_some()
        && (name == "auth" || arguments.iter().any(|it| it.eq_ignore_ascii_case(b"AUTH")));
    if !brings_password {
        return run(session, shared, name, arguments);
    }
    let turn = shared.guess.lock().await;
    let wrong_before = session.wrong_passwords;
    let answer = run(session, shared, name, arguments);
    if session.wrong_passwords > wrong_before {
        tokio::time::sleep(AFTER_WRONG_PASSWORD).await;
    }
    drop(turn);
    answer
}

/// The version of Redis whose answers these are like.
const REDIS_VERSION: &str = "7.2.0";

pub(super) fn run(
    session: &mut Session,
    shared: &Shared,
    name: &str,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    match (name, arguments) {
        ("ping", []) => Ok(Reply::Simple("PONG")),
        ("ping" | "echo", [message]) => Ok(Reply::Bulk(message.clone())),
        ("ping", _) => Err(Failure::new(
            "ERR wrong number of arguments for 'ping' command",
        )),
        ("select", [index]) if integer(index).is_none() => Err(Failure::not_integer()),
        ("select", [index]) if **index == *b"0" => Ok(OK),
        ("select", _) => Err(Failure::new("ERR DB index is out of range")),
        ("quit", _) => {
            session.is_over = true;
            Ok(OK)
        }
        ("reset", _) => {
            session.protocol = Protocol::Resp2;
            session.is_authenticated = shared.options.password.is_none();
            session.name = Bytes::new();
            Ok(Reply::Simple("RESET"))
        }
        ("auth", [password]) => authenticate(session, shared, b"default", password),
        ("auth", [user, password]) => authenticate(session, shared, user, password),
        ("hello", arguments) => hello(session, shared, arguments),
        ("client", [what, rest @ ..]) => client(session, what, rest),
        ("command", arguments) => commands(arguments),
        ("config", [what, patterns @ ..]) if what.eq_ignore_ascii_case(b"get") => {
            Ok(config(shared, patterns))
        }
        ("info", _) => Ok(Reply::text(info(shared))),
        _ => Err(Failure::syntax()),
    }
}

fn authenticate(
    session: &mut Session,
    shared: &Shared,
    user: &[u8],
    password: &[u8],
) -> Result<Reply, Failure> {
    if shared.options.password.is_none() {
        return Err(Failure::new(
            "ERR AUTH <password> called without any password configured for the default user. Are you \
             sure your configuration is correct?",
        ));
    }
    if !shared.is_password(user, password) {
        session.wrong_passwords += 1;
        // A peer that guesses is to come again, and to wait for its turn again.
        session.is_over = session.wrong_passwords >= WRONG_PASSWORDS_MAX;
        return Err(Failure::new(
            "WRONGPASS invalid username-password pair or user is disabled.",
        ));
    }
    session.is_authenticated = true;
    Ok(OK)
}

fn hello(session: &mut Session, shared: &Shared, arguments: &[Bytes]) -> Result<Reply, Failure> {
    let mut protocol = session.protocol;
    let mut rest = arguments;
    if let [version, options @ ..] = rest {
        protocol = match &version[..] {
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            _ => return Err(Failure::new("NOPROTO unsupported protocol version")),
        };
        rest = options;
    }
    let mut name = None;
    loop {
        rest = match rest {
            [] => break,
            [option, user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                authenticate(session, shared, user, password)?;
                rest
            }
            [option, given, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(client_name(given)?);
                rest
            }
            _ => return Err(Failure::new("ERR Syntax error in HELLO option")),
        };
    }
    if !session.is_authenticated {
        return Err(Failure::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time",
        ));
    }
    session.protocol = protocol;
    session.name = name.unwrap_or_else(|| session.name.clone());
    let number = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    Ok(Reply::Map(vec![
        ("server", Reply::text("redis")),
        ("version", Reply::text(REDIS_VERSION)),
        ("proto", Reply::Integer(number)),
        ("id", Reply::Integer(session.id as i64)),
        ("mode", Reply::text("standalone")),
        ("role", Reply::text("master")),
        ("modules", Reply::Array(Vec::new())),
    ]))
}

/// A name as it is kept: for itself, not with the bytes that it came with.
fn client_name(name: &[u8]) -> Result<Bytes, Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::new(format!(
            "ERR a client's name is at most {NAME_BYTES_MAX} bytes"
        )));
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(Failure::new(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    Ok(Bytes::copy_from_slice(name))
}

fn client(session: &mut Session, what: &[u8], rest: &[Bytes]) -> Result<Reply, Failure> {
    match (&what.to_ascii_uppercase()[..], rest) {
        (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => Ok(OK),
        (b"SETNAME", [name]) => {
            session.name = client_name(name)?;
            Ok(OK)
        }
        (b"GETNAME", []) if session.name.is_empty() => Ok(Reply::Null),
        (b"GETNAME", []) => Ok(Reply::Bulk(session.name.clone())),
        (b"ID", []) => Ok(Reply::Integer(session.id as i64)),
        (b"INFO" | b"LIST", []) => Ok(Reply::text(format!(
            "id={} name={} db=0\n",
            session.id,
            session.name.escape_ascii()
        ))),
        _ => Err(Failure::new(format!(
            "ERR unknown subcommand '{}'. Try CLIENT SETINFO, SETNAME, GETNAME, ID, INFO.",
            what.escape_ascii()
        ))),
    }
}

fn commands(arguments: &[Bytes]) -> Result<Reply, Failure> {
    let Some((what, names)) = arguments.split_first() else {
        return Ok(Reply::Array(COMMANDS.iter().map(description).collect()));
    };
    match &what.to_ascii_uppercase()[..] {
        b"COUNT" => Ok(Reply::Integer(COMMANDS.len() as i64)),
        b"LIST" => {
            let names = COMMANDS.iter().map(|command| Reply::text(command.name));
            Ok(Reply::Array(names.collect()))
        }
        b"DOCS" => Ok(Reply::Map(Vec::new())),
        b"INFO" => {
            let find = |name: &Bytes| {
                let mut all = COMMANDS.iter();
                let found = all.find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()));
                found.map_or(Reply::Null, description)
            };
            Ok(Reply::Array(names.iter().map(find).collect()))
        }
        _ => Err(Failure::new(
            "ERR unknown subcommand. Try COMMAND COUNT, DOCS, INFO, LIST.",
        )),
    }
}

fn description(command: &Command) -> Reply {
    let flag = Reply::Simple(if command.is_write {
        "write"
    } else {
        "readonly"
    });
    let (first, last, step) = command.keys;
    let numbers = [first, last, step].map(Reply::Integer);
    let mut parts = vec![
        Reply::text(command.name),
        Reply::Integer(command.arity),
        Reply::Array(vec![flag]),
    ];
    parts.extend(numbers);
    Reply::Array(parts)
}

fn config(shared: &Shared, patterns: &[Bytes]) -> Reply {
    let settings = shared.store.settings();
    let is_sync = settings.durability == crate::Durability::Sync;
    let all = [
        (
            "appendfsync",
            if is_sync { "always" } else { "no" }.to_owned(),
        ),
        ("appendonly", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", shared.options.clients_max.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        (
            "proto-max-bulk-len",
            settings.response_bytes_max.to_string(),
        ),
        ("save", String::new()),
        ("timeout", shared.options.idle.as_secs().to_string()),
    ];
    let is_asked = |name: &str| {
        patterns
            .iter()
            .any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let asked = all.into_iter().filter(|(name, _)| is_asked(name));
    Reply::Map(
        asked
            .map(|(name, value)| (name, Reply::text(value)))
            .collect(),
    )
}

fn info(shared: &Shared) -> String {
    let stats = shared.store.stats();
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
         oncekey_version:{}\r\nuptime_in_seconds:{}\r\n\r\n\
         # Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\n\r\n\
         # Persistence\r\nloading:0\r\naof_enabled:1\r\n\r\n\
         # Stats\r\nexpired_keys:{}\r\nevicted_keys:0\r\n\r\n\
         # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n\
         # Keyspace\r\ndb0:keys={},expires=0,avg_ttl=0\r\n",
        env!("CARGO_PKG_VERSION"),
        shared.started.elapsed().as_secs(),
        shared.clients.load(Ordering::Relaxed),
        shared.options.clients_max,
        stats.expired,
        stats.completed_keys,
    )
}
