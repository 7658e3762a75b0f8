//! A server that Redis clients talk to: the commands that deduplicate, over TCP, TLS or a Unix socket.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use oncekey::Store;
//! use oncekey::serve::{ServeOptions, Server};
//!
//! let store = oncekey::Options::new().max_key_part(1_024).open("/var/lib/oncekey")?;
//! let server = Server::start(store.clone(), ServeOptions::new().tcp("127.0.0.1:6379".parse()?)).await?;
//! // Until the service is told to stop, then:
//! server.shutdown(Duration::from_secs(10)).await;
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What a value is
//!
//! A key with a string in it is a completed operation of one [scope](ServeOptions::scope): no operation,
//! the key's name as its id, the value as its response, its expiry as its retention. One without an
//! expiry is kept until the end of the year 9999, which `TTL` answers with -1. Each change is one record,
//! so a crash leaves the old value or the new one. Calls on one key are one after the other, whoever makes
//! them, other users of the same [`Store`](crate::Store) included; a command on several keys is not one step for all of
//! them.
//!
//! An answer is sent when everything it rests on is as durable as the store's
//! [`Durability`](crate::Durability) says. All that a client has sent ahead shares one sync, and so do
//! clients.
//!
//! # The whole life of a key
//!
//! | command | answer |
//! |---|---|
//! | `IDEM.CLAIM scope operation id LEASE ms [RETENTION ms] [FINGERPRINT request]` | a map: `outcome` is `started`, `interrupted` (both with `token`, `attempt`, `checkpoint`), `in_progress`, `completed` (with `response`), `mismatch` |
//! | `IDEM.COMPLETE scope operation id token [response]` | `OK`, also for the same completion once more |
//! | `IDEM.RELEASE`, `IDEM.RENEW`, `IDEM.CHECKPOINT scope operation id token [note]` | `OK` |
//! | `IDEM.GET scope operation id`, `IDEM.WAIT scope operation id ms` | a map with `state` |
//! | `IDEM.FORGET scope operation id [FORCE]` | 1 if there was something |
//!
//! A claim belongs to its token, not to a connection, and needs a lease. Who was overtaken gets
//! `LEASELOST`. When the server restarts, pending keys are interrupted at once; the token still completes or
//! releases its key if nobody has taken it over.
#![forbid(unsafe_code)]

mod command;
mod connection;
pub(crate) mod glob;
mod options;
mod reply;
pub(crate) mod request;
mod server;
mod session;
mod tls;

pub use self::options::{ServeError, ServeOptions};
pub use self::server::{Server, Shutdown};
pub use self::tls::TlsFiles;
