//! A Redis, or a server that speaks as one, as a table of keys.
//!
//! A claim is a `SET` with `NX`, which expires; the owner writes the response over it. That is what
//! its documentation describes, and what most that deduplicate with it do. Nobody's token is checked
//! at the completion.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::redis::{Client, Cmd, Connection, RedisError, Value, cmd, pipe};

use super::{
    Claimed, Class, Contestant, Entrant, FINGERPRINT, Fault, Place, Sample, Session, Used, keys,
};

/// As long as a pending key counts.
const LEASE_MS: u64 = 30_000;
/// As long as a response is kept.
const RETENTION_MS: u64 = 24 * 3_600 * 1_000;
/// A server that says nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Keys that one step removes.
const REMOVED_AT_ONCE: usize = 1_000;
const PENDING: u8 = b'P';
const DONE: u8 = b'D';
const HEAD_BYTES: usize = 1 + FINGERPRINT.len();

/// A server whose address makes sense.
pub(crate) struct Redis {
    client: Client,
}

impl Redis {
    pub(crate) fn at(url: &str) -> Result<Self, Fault> {
        let client = Client::open(url)
            .map_err(|error| format!("{error}; a URL is redis://user:password@host:port"))?;
        Ok(Self { client })
    }

    /// Asks the server what it is and what its acknowledgements are worth.
    pub(crate) fn entrant(self) -> Result<Entrant, Fault> {
        let Self { client } = self;
        let address = client.get_connection_info().addr().to_string();
        let blamed = |fault: Fault| -> Fault { format!("Redis at {address}: {fault}").into() };
        let mut connection = connect(&client).map_err(blamed)?;
        let about = About::ask(&mut connection);
        let steps = match about.is_one_step {
            true => "SET NX GET PX",
            false => "SET NX PX and GET",
        };
        let settings = format!(
            "{} {} at {address}, {}; {steps}, then SET XX PX, no fencing",
            about.name, about.version, about.durability
        );
        let table = Table::new(&client, about.is_one_step);
        let tried = keys::sample(0, 32).and_then(|key| {
            super::lap::Subject::try_out(&table, &key, b"tried")?;
            Contestant::close(table)
        });
        tried.map_err(blamed)?;
        let is_one_step = about.is_one_step;
        let open = move |_: &std::path::Path, _| Ok(Table::new(&client, is_one_step));
        Ok(Entrant::new(
            about.name,
            about.class,
            Place::Server,
            &settings,
            open,
        ))
    }
}

fn connect(client: &Client) -> Result<Connection, Fault> {
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// What a server says of itself. What it refuses to say counts against it.
struct About {
    name: &'static str,
    version: String,
    is_one_step: bool,
    durability: String,
    class: Class,
}

impl About {
    fn ask(connection: &mut Connection) -> Self {
        let info = info(connection, "server").unwrap_or_default();
        // Others say which version they are like, too.
        let others = [
            ("oncekey serve", "oncekey_version"),
            ("Valkey", "valkey_version"),
        ];
        let like = field(&info, "redis_version").unwrap_or("of unknown version");
        let (name, version) = others
            .into_iter()
            .find_map(|(name, version)| Some((name, field(&info, version)?)))
            .unwrap_or(("Redis", like));
        let mut setting = |name: &str| {
            let told: Result<Vec<String>, RedisError> =
                cmd("CONFIG").arg("GET").arg(name).query(connection);
            told.ok().and_then(|told| told.into_iter().nth(1))
        };
        let (append_only, sync) = (setting("appendonly"), setting("appendfsync"));
        let class = match (append_only.as_deref(), sync.as_deref()) {
            (Some("yes"), Some("always")) => Class::Sync,
            (Some("yes"), Some(_)) => Class::Buffered,
            _ => Class::Volatile,
        };
        let durability = match (append_only, sync) {
            (Some(append_only), Some(sync)) if append_only == "yes" => {
                format!("appendonly yes, appendfsync {sync}")
            }
            (Some(append_only), _) => format!("appendonly {append_only}"),
            (None, _) => "which does not tell its durability (CONFIG GET is refused)".to_owned(),
        };
        Self {
            name,
            version: version.to_owned(),
            is_one_step: is_one_step(like),
            durability,
            class,
        }
    }
}

/// Whether `SET` takes `NX` together with `GET`, since version 7.
fn is_one_step(version: &str) -> bool {
    let major = version.split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= 7)
}

fn info(connection: &mut Connection, section: &str) -> Result<String, Fault> {
    Ok(cmd("INFO").arg(section).query(connection)?)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Keys under a prefix of their own, which are removed when it is closed or dropped.
struct Table {
    client: Client,
    prefix: String,
    is_one_step: bool,
    claimed: Arc<Mutex<Vec<Sample>>>,
}

impl Table {
    fn new(client: &Client, is_one_step: bool) -> Self {
        Self {
            client: client.clone(),
            prefix: format!("oncekey-bench:{:016x}:", keys::random()),
            is_one_step,
            claimed: Arc::default(),
        }
    }

    fn remove(&self) -> Result<(), Fault> {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if claimed.is_empty() {
            return Ok(());
        }
        let mut connection = connect(&self.client)?;
        for keys in claimed.chunks(REMOVED_AT_ONCE) {
            let mut pipe = pipe();
            for key in keys {
                pipe.cmd("DEL").arg(name(&self.prefix, key)).ignore();
            }
            pipe.query::<()>(&mut connection)?;
        }
        claimed.clear();
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Whoever closed it left nothing. What cannot be removed now expires within a day.
        self.remove().unwrap_or_default();
    }
}

impl Contestant for Table {
    type Session = TableSession;

    fn session(&self) -> Result<TableSession, Fault> {
        Ok(TableSession {
            connection: connect(&self.client)?,
            prefix: self.prefix.clone(),
            is_one_step: self.is_one_step,
            claimed: Vec::new(),
            all_claimed: Arc::clone(&self.claimed),
        })
    }

    fn used(&self) -> Result<Used, Fault> {
        let mut connection = connect(&self.client)?;
        let mut number = |section, name| -> Option<u64> {
            let info = info(&mut connection, section).ok()?;
            field(&info, name)?.parse().ok()
        };
        // What waits for a sync is not in the file's size yet, and what is being rewritten not any more.
        let is_moving = [
            "aof_buffer_length",
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
        ];
        let begun = Instant::now();
        while is_moving
            .iter()
            .any(|name| number("persistence", name) > Some(0))
            && begun.elapsed() < PATIENCE
        {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Used {
            disk_bytes: number("persistence", "aof_current_size"),
            memory_bytes: number("memory", "used_memory"),
        })
    }

    fn close(self) -> Result<(), Fault> {
        self.remove()
    }
}

struct TableSession {
    connection: Connection,
    prefix: String,
    is_one_step: bool,
    claimed: Vec<Sample>,
    all_claimed: Arc<Mutex<Vec<Sample>>>,
}

impl Drop for TableSession {
    fn drop(&mut self) {
        let mut all = self
            .all_claimed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.append(&mut self.claimed);
    }
}

fn name(prefix: &str, key: &Sample) -> Vec<u8> {
    [prefix.as_bytes(), &key.bytes].concat()
}

fn row(state: u8, response: &[u8]) -> Vec<u8> {
    [&[state], &FINGERPRINT[..], response].concat()
}

impl TableSession {
    /// What stood there; nothing where the key is now the caller's.
    fn set_if_free(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let pending = row(PENDING, &[]);
        let mut set = Cmd::new();
        set.arg("SET").arg(name).arg(&pending).arg("NX");
        if self.is_one_step {
            set.arg("GET").arg("PX").arg(LEASE_MS);
            return Ok(set.query(&mut self.connection)?);
        }
        set.arg("PX").arg(LEASE_MS);
        loop {
            if set.query::<Value>(&mut self.connection)? != Value::Nil {
                return Ok(None);
            }
            let there = cmd("GET").arg(name).query(&mut self.connection)?;
            // It may have expired in between.
            if let Some(there) = there {
                return Ok(Some(there));
            }
        }
    }
}

impl Session for TableSession {
    type Guard = Sample;
    type Response = Response;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Sample, Response>, Fault> {
        let Some(there) = self.set_if_free(&name(&self.prefix, key))? else {
            self.claimed.push(key.clone());
            return Ok(Claimed::Started(key.clone()));
        };
        match there.split_first() {
            Some((&state, rest)) if rest.starts_with(&FINGERPRINT) => match state {
                DONE => Ok(Claimed::Done(Response(there))),
                _ => Ok(Claimed::Running),
            },
            _ => Err("a key stands for another request".into()),
        }
    }

    fn complete(&mut self, key: Sample, response: &[u8]) -> Result<(), Fault> {
        let mut set = Cmd::new();
        set.arg("SET")
            .arg(name(&self.prefix, &key))
            .arg(row(DONE, response))
            .arg(&["XX", "PX"])
            .arg(RETENTION_MS);
        match set.query(&mut self.connection)? {
            Value::Nil => Err("a key was gone before it was completed".into()),
            _ => Ok(()),
        }
    }
}

struct Response(Vec<u8>);

impl AsRef<[u8]> for Response {
    fn as_ref(&self) -> &[u8] {
        self.0.get(HEAD_BYTES..).unwrap_or_default()
    }
}
