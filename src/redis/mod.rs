//! Keys in Redis or Valkey, which a fleet shares.
//!
//! Each step (claim, takeover, completion and so on) is one script on one key: atomic, and within one
//! slot of a cluster. Leases and tokens are made of the server's clock.
//!
//! # What is lost when the server loses its memory
//!
//! **Everything that it had not yet written to disk, or copied to the replica that takes over; and with
//! it the promise that an operation runs once.** A key that is lost is absent: its next claim gets
//! `Started` as attempt 1, without a warning, although the operation may have run. That holds for
//!
//! * a crash of the server with `appendonly no`: all since the last snapshot;
//! * `appendfsync everysec`, the usual setting: up to two seconds;
//! * a failover, planned or not: what the new master had not received, since copying is asynchronous.
//!   A partition can let two masters grant one key;
//! * `FLUSHALL`, and eviction. [`connect`](RedisBackend::connect) refuses a server that may evict.
//!
//! Only `appendfsync always` on a server that never fails over keeps what was acknowledged. What remains
//! in each case is the downstream key: it is made of the key and the identity in
//! [`SharedOptions`], not of anything on the server, so another system that
//! deduplicates by it still acts once. Where that is not enough, use PostgreSQL.
//!
//! Tokens are the server's time in microseconds, and greater than the last one of a key that is still
//! there. A clock that is set back can make the token of a key smaller that was released, forgotten or
//! has expired in between.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use oncekey::redis::{RedisBackend, redis};
//! use oncekey::shared::SharedOptions;
//!
//! let client = redis::Client::open("redis://127.0.0.1/")?;
//! let connection = client.get_connection_manager().await?;
//! let options = SharedOptions::new("payments, 7f2c1ab0e9d34f55");
//! let backend = RedisBackend::connect(connection, "payments", options).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! Any connection of the `redis` crate that clones will do, that of a cluster too. Listing interrupted
//! keys looks at every key of one server; with a cluster, ask each master on a connection of its own.
//! Completed keys expire by themselves; pending and interrupted ones stay until they are resolved.

mod driver;
mod name;

use std::fmt;

use ::redis::aio::ConnectionLike;

use crate::backend::BackendError;
use crate::shared::{SharedBackend, SharedOptions, SharedOptionsError};

pub use ::redis;

pub use self::driver::Redis;

/// Keys in Redis or Valkey: see [the module](self) about what a server that loses its memory loses.
pub type RedisBackend<C = ::redis::aio::ConnectionManager> = SharedBackend<Redis<C>>;

/// Why a server can't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of range.
    Options(SharedOptionsError),
    /// The prefix is empty, or has characters that a pattern gives a meaning to.
    Prefix,
    /// The server may evict live keys when its memory is full, and their operations would run again.
    Evicts {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// It can't be reached, or does not say how it is set up.
    Backend(BackendError),
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisBackend<C> {
    /// A backend whose keys are named `prefix:{…}`, once the server has been asked whether it evicts.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn connect(
        connection: C,
        prefix: &str,
        options: SharedOptions,
    ) -> Result<Self, ConnectError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
        if prefix.is_empty() || prefix.len() > 255 || !prefix.bytes().all(is_plain) {
            return Err(ConnectError::Prefix);
        }
        check_memory(connection.clone()).await?;
        let driver = Redis::new(connection, prefix);
        Self::with_driver(driver, options).map_err(ConnectError::Options)
    }
}

async fn check_memory(mut connection: impl ConnectionLike) -> Result<(), ConnectError> {
    let memory: String = ::redis::cmd("INFO")
        .arg("memory")
        .query_async(&mut connection)
        .await
        .map_err(driver::failed("asking whether the server evicts"))
        .map_err(ConnectError::Backend)?;
    let value = |name: &str| {
        let mut lines = memory.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    match value("maxmemory_policy") {
        Some(policy) if policy != "noeviction" && value("maxmemory") != Some("0") => {
            Err(ConnectError::Evicts {
                policy: policy.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::Prefix => {
                f.write_str("the prefix must have 1 to 255 letters, digits, or any of \"_-.:/\"")
            }
            Self::Evicts { policy } => write!(
                f,
                "the server's maxmemory-policy is {policy}, so it may drop live keys and let their \
                 operations run again; set it to noeviction"
            ),
            Self::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Options(error) => Some(error),
            Self::Backend(error) => Some(error),
            Self::Prefix | Self::Evicts { .. } => None,
        }
    }
}
