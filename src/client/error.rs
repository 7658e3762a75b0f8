//! What can be in the way of a journaled operation.

use std::error::Error;
use std::fmt;

use http::HeaderName;

use crate::error::{AdminError, ClaimError, Unavailable, WriteError};
use crate::key::KeyError;
use crate::stored_response::StoredResponse;

use super::operation::{JournaledOperation, Unsendable};

/// Why the journal did not take an operation, or a change of one. Nothing was sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// The name makes no key of the store.
    Name(KeyError),
    /// The name stands for another request. Take another name for another operation.
    OtherRequest,
    /// The request is over the store's limit on responses, within which requests are kept.
    RequestTooLarge {
        /// Bytes of the request with its headers.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The request has over 1,024 headers.
    TooManyHeaders,
    /// The request has a key already. The journal makes it.
    HasKey(HeaderName),
    /// Credentials are not written to disk, and may be stale when an operation is resumed: add them
    /// to each attempt.
    Credentials(HeaderName),
    /// The URI has a user's name or password before its host. As for
    /// [`Credentials`](Self::Credentials).
    CredentialsInUri,
    /// The system gives no random bytes.
    NoRandomness,
    /// What is kept of the operation was not written by this version of the journal.
    Damaged,
    /// The store did not take the claim, or could not read it.
    Store(ClaimError),
    /// The store did not take the request, or the end of the operation.
    Write(WriteError),
    /// The store could not remove an earlier request.
    Admin(AdminError),
    /// The store refuses.
    Unavailable(Unavailable),
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => write!(f, "the operation's name makes no key: {error}"),
            Self::OtherRequest => f.write_str(
                "the name stands for another request; take another name for another operation",
            ),
            Self::RequestTooLarge { len, max } => write!(
                f,
                "a request of {len} bytes is over the limit of {max}; raise Options::max_response \
                 of the journal's store"
            ),
            Self::TooManyHeaders => f.write_str("a request can be kept with 1,024 headers"),
            Self::HasKey(name) => write!(
                f,
                "the request has the header {name} already; leave it to the journal"
            ),
            Self::Credentials(name) => write!(
                f,
                "the header {name} holds credentials, which are not journaled; add it to each \
                 attempt"
            ),
            Self::CredentialsInUri => f.write_str(
                "the URI holds credentials, which are not journaled; add them to each attempt",
            ),
            Self::NoRandomness => f.write_str("the system gives no random bytes"),
            Self::Damaged => f.write_str(
                "what the journal has of the operation was not written by this version of it",
            ),
            Self::Store(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
            Self::Admin(error) => error.fmt(f),
            Self::Unavailable(error) => error.fmt(f),
        }
    }
}

impl Error for JournalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::Write(error) => Some(error),
            Self::Admin(error) => Some(error),
            Self::Unavailable(error) => Some(error),
            Self::OtherRequest
            | Self::RequestTooLarge { .. }
            | Self::TooManyHeaders
            | Self::HasKey(_)
            | Self::Credentials(_)
            | Self::CredentialsInUri
            | Self::NoRandomness
            | Self::Damaged => None,
        }
    }
}

/// Why an operation was sent and is not done.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError<E> {
    /// It was not sent: the server may have forgotten its key.
    TooOld(Box<Unsendable>),
    /// No answer came. **Whether it was carried out is unknown.** Send it again, now or later.
    NoAnswer {
        /// What the client met.
        source: E,
        /// The operation, to go on with; dropped, it is unfinished.
        operation: Box<JournaledOperation>,
    },
    /// An answer came that decides nothing, such as 503 after all attempts, or 401.
    NotFinal {
        /// The answer.
        answer: StoredResponse,
        /// The operation, to go on with; dropped, it is unfinished.
        operation: Box<JournaledOperation>,
    },
    /// The answer is final, but the journal could not be told: the operation is unfinished. Sent
    /// again, it gets the same answer from a server that keeps it.
    NotMarked {
        /// The answer.
        answer: StoredResponse,
        /// What was in the way.
        source: JournalError,
    },
}

impl<E: fmt::Display> fmt::Display for SendError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld(_) => f.write_str(
                "the server may have forgotten the operation's key; find out what became of it",
            ),
            Self::NoAnswer { source, .. } => write!(
                f,
                "no answer: {source}; whether the operation was carried out is unknown, send it \
                 again with the same key"
            ),
            Self::NotFinal { answer, .. } => write!(
                f,
                "the server answered {}, which decides nothing; the operation can be sent again",
                answer.status
            ),
            Self::NotMarked { answer, source } => write!(
                f,
                "the server answered {}, but the journal could not be told: {source}",
                answer.status
            ),
        }
    }
}

impl<E: Error + 'static> Error for SendError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NoAnswer { source, .. } => Some(source),
            Self::NotMarked { source, .. } => Some(source),
            Self::TooOld(_) | Self::NotFinal { .. } => None,
        }
    }
}
