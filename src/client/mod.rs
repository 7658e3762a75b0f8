//! The client's side of a retried operation: a journal that outlives crashes, and a retry policy.
//!
//! A server can run a repeated request once only if every attempt carries the same key. So the key
//! must exist before the first attempt and outlive the process that makes it: that is the
//! [`Journal`]. And attempts must be made where they help, no faster than the server can bear: that
//! is the [`RetryPolicy`], for tower ([`RetryPolicy::tower`]) and, with feature `reqwest`, as a
//! middleware of reqwest.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use oncekey::Store;
//! use oncekey::client::{Journal, Journaled, SendError};
//!
//! // The server keeps keys for 24 hours; an hour less is safe.
//! let store = Store::open(directory.path())?;
//! let journal = Journal::new(store, Duration::from_secs(23 * 60 * 60));
//!
//! let request = http::Request::post("https://api.example/v1/payments")
//!     .header("content-type", "application/json")
//!     .body(Bytes::from(r#"{"amount":1200}"#))?;
//! // Durable when it returns. Called again after a crash, it gives the same key.
//! let Journaled::Ready(operation) = journal.begin("order-17", request).await? else {
//!     panic!("it is new")
//! };
//!
//! // The client may retry the request as it likes: the key is in it.
//! let sent = operation.send(async |attempt| {
//!     let request: http::Request<Bytes> = attempt.request();
//!     assert!(request.headers().contains_key("idempotency-key"));
//!     # async fn client(_: http::Request<Bytes>) -> Result<http::Response<Bytes>, std::io::Error> {
//!     #     Ok(http::Response::new(Bytes::from("paid")))
//!     # }
//!     client(request).await
//! });
//! match sent.await {
//!     Ok(answer) => assert_eq!(&answer.body[..], b"paid"),
//!     // Still in the journal, to be sent again: now, or after a restart.
//!     Err(SendError::NoAnswer { .. } | SendError::NotFinal { .. }) => {}
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! Every rule is in the [guide](crate::documentation::client).
#![forbid(unsafe_code)]

mod error;
mod journal;
mod key;
mod operation;
mod policy;
mod record;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry_after;
mod tower;
mod verdict;

pub use self::error::{JournalError, SendError};
pub use self::journal::{Journal, Journaled, Unfinished};
pub use self::key::{IdempotencyKey, KeyFormat};
pub use self::operation::{Attempt, JournaledOperation, Unsendable};
pub use self::policy::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, GaveUp, RETRY_AFTER_MAX_DEFAULT, RetryPolicy,
    TOTAL_TIME_DEFAULT,
};
#[cfg(feature = "reqwest")]
pub use self::reqwest::{BodyError, NoAnswer, RetryMiddleware, whole};
pub use self::tower::TowerRetry;
pub use self::verdict::{Failure, Verdict};
pub use crate::stored_response::StoredResponse;
