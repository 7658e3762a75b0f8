//! The errors of a running store: one small enum for each kind of call.
//!
//! Every message names what was wrong and what to do. Opening has its own in
//! [`OpenError`](crate::OpenError).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::BackendError;
use crate::key::KeyError;
use crate::limit_reached::LimitReached;
use crate::operation::Operation;
use crate::options::ClaimOptionsError;
use crate::token::Token;
use crate::version::{AttachmentError, StaleVersion, VersionGap};

/// Why the store as a whole refuses: the part that every call shares.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// [`Store::close`](crate::Store::close) was called.
    Closed,
    /// The store was opened by the parent of this process: open it again here, in a directory of
    /// its own, or fork before opening.
    Forked,
    /// A sync failed, so what the disk holds is unknown from there on. Results known to be durable
    /// are still replayed; close the store and open it again to write.
    Poisoned {
        /// The file whose sync failed.
        file: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the store is closed"),
            Self::Forked => f.write_str(
                "the store was opened before this process was forked; open one in the child",
            ),
            Self::Poisoned { file, source } => write!(
                f,
                "syncing {file} failed ({source}); nothing more is written until the store is \
                 closed and opened again"
            ),
        }
    }
}

impl std::error::Error for Unavailable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Poisoned { source, .. } => Some(&**source),
            Self::Closed | Self::Forked => None,
        }
    }
}

/// No room in the log: the disk is full, a quota is reached, or all segments are in use.
///
/// Nothing was written. The store tries again at the next call, so it recovers by itself as soon as
/// there is space.
#[derive(Clone, Debug)]
pub struct OutOfSpace {
    /// Bytes that were needed, with the room set aside for the completion.
    pub needed_bytes: u64,
    /// What preparing a new segment met; `None` when the record is too large for what is left.
    pub source: Option<Arc<io::Error>>,
}

impl fmt::Display for OutOfSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for {} bytes in the log", self.needed_bytes)?;
        if let Some(source) = &self.source {
            write!(f, " (a new segment could not be made: {source})")?;
        }
        f.write_str("; free disk space, then call again: nothing was written")
    }
}

impl std::error::Error for OutOfSpace {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// A record that was readable when the store was opened is not any more: the file was changed from
/// outside, or the memory is faulty. It is never answered as "absent".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The segment.
    pub file: String,
    /// Where the record stands, in bytes from the start of the file.
    pub offset: u64,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the record at byte {} of {} is damaged; close the store, then restore a copy or open \
             with Recovery::Salvage",
            self.offset, self.file
        )
    }
}

impl std::error::Error for Damaged {}

/// An interrupted operation that is too old to be taken up again. Its outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abandoned {
    /// The attempt that was interrupted last.
    pub attempt: u32,
    /// When that attempt began.
    pub since: SystemTime,
    /// When the operation was first claimed.
    pub created_at: SystemTime,
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "attempt {} was interrupted, its outcome is unknown, and the operation is older than \
             Options::abandon_after; find out what became of it, then settle it with \
             Store::reconcile or remove the key with Forget::Force",
            self.attempt
        )
    }
}

impl std::error::Error for Abandoned {}

/// Why a claim, a look-up or a wait has no answer. The key is as it was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClaimError {
    /// A part of the key is longer than this store takes.
    Key(KeyError),
    /// An option of the claim is out of range.
    Options(ClaimOptionsError),
    /// No room: nothing was claimed.
    OutOfSpace(OutOfSpace),
    /// A limit on what may be stored is reached: nothing was claimed.
    LimitReached(LimitReached),
    /// Too many keys are pending or interrupted ([`Options::max_pending`](crate::Options)).
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// Too many callers wait, for this key or in all: answer "retry later".
    TooManyWaiters {
        /// The limit that was reached.
        limit: usize,
    },
    /// The operation was interrupted and is older than
    /// [`Options::abandon_after`](crate::Options::abandon_after) allows: it is not run again. Find out
    /// what became of it, then settle it with [`Store::reconcile`](crate::Store::reconcile) or remove
    /// the key with [`Forget::Force`](crate::Forget::Force).
    Abandoned(Abandoned),
    /// The claim was written but its sync failed: whether it survives a power loss is unknown. The
    /// work was not started; after the store is opened again the key is free or interrupted.
    OutcomeUnknown(Unavailable),
    /// The key is held by a guard of the same batch: waiting would wait for oneself.
    HeldBySameBatch,
    /// The key's record cannot be read.
    Damaged(Damaged),
    /// The store refuses.
    Unavailable(Unavailable),
    /// A shared backend failed; an embedded store never gives this.
    Backend(BackendError),
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => error.fmt(f),
            Self::Options(error) => error.fmt(f),
            Self::OutOfSpace(error) => error.fmt(f),
            Self::LimitReached(error) => error.fmt(f),
            Self::Abandoned(error) => error.fmt(f),
            Self::TooManyPending { limit } => write!(
                f,
                "{limit} keys are pending or interrupted, as many as allowed; resolve interrupted \
                 ones or raise Options::max_pending"
            ),
            Self::TooManyWaiters { limit } => {
                write!(f, "{limit} callers wait already; answer \"retry later\"")
            }
            Self::OutcomeUnknown(error) => {
                write!(f, "the claim may or may not be durable: {error}")
            }
            Self::HeldBySameBatch => f.write_str(
                "the key is held by another entry of the same batch; finish that one first",
            ),
            Self::Damaged(error) => error.fmt(f),
            Self::Unavailable(error) => error.fmt(f),
            Self::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClaimError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Key(error) => Some(error),
            Self::Options(error) => Some(error),
            Self::OutOfSpace(error) => Some(error),
            Self::LimitReached(error) => Some(error),
            Self::Abandoned(error) => Some(error),
            Self::OutcomeUnknown(error) | Self::Unavailable(error) => Some(error),
            Self::Damaged(error) => Some(error),
            Self::Backend(error) => Some(error),
            Self::TooManyPending { .. } | Self::TooManyWaiters { .. } | Self::HeldBySameBatch => {
                None
            }
        }
    }
}

/// Why a write by the owner of a key did not happen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The guard lost the key: its lease was over and somebody took over, an operator interrupted or
    /// removed it, or a ticket was resumed elsewhere. Nothing was changed.
    LeaseLost {
        /// The attempt that holds or held the key since, if it is known.
        new_attempt: Option<u32>,
    },
    /// The response is over the store's limit; the guard still holds the key. Complete with a
    /// shorter one, or with `complete_without_response`.
    ResponseTooLarge {
        /// Bytes of the response.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The checkpoint is over 4,096 bytes.
    CheckpointTooLarge {
        /// Bytes of the checkpoint.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The principal is over 255 bytes.
    PrincipalTooLong {
        /// Bytes of the principal.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// An option is out of range.
    Options(ClaimOptionsError),
    /// A ticket needs `Lease::For`: with `Lease::WhileAlive` nobody would notice a lost ticket.
    TicketNeedsLease,
    /// No room: nothing was written and the guard still holds the key.
    OutOfSpace(OutOfSpace),
    /// No room under [`Options::max_disk_bytes`](crate::Options::max_disk_bytes): nothing was
    /// written and the guard still holds the key.
    LimitReached(LimitReached),
    /// An entity has a newer version already: nothing was written and the guard still holds the key.
    StaleVersion(StaleVersion),
    /// Versions of an entity are missing: nothing was written and the guard still holds the key.
    VersionGap(VersionGap),
    /// As many messages wait in the outbox as
    /// [`Options::max_outbox`](crate::Options::max_outbox) allows: nothing was written and the guard
    /// still holds the key.
    OutboxFull {
        /// The limit.
        limit: usize,
    },
    /// What was to be stored with the completion cannot be: nothing was written and the guard still
    /// holds the key.
    Attachment(AttachmentError),
    /// The record was written but its sync failed: whether it survives a power loss is unknown.
    OutcomeUnknown(Unavailable),
    /// The record was written but can't be read back.
    Damaged(Damaged),
    /// The store refuses; nothing was written.
    Unavailable(Unavailable),
    /// A shared backend failed, and whether it wrote is unknown: call again. An embedded store never
    /// gives this.
    Backend(BackendError),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost {
                new_attempt: Some(attempt),
            } => {
                write!(
                    f,
                    "the key was lost to attempt {attempt}; nothing was changed"
                )
            }
            Self::LeaseLost { new_attempt: None } => {
                f.write_str("the key was lost; nothing was changed")
            }
            Self::ResponseTooLarge { len, max } => write!(
                f,
                "a response of {len} bytes is over the limit of {max}; shorten it, raise \
                 Options::max_response, or complete without a response"
            ),
            Self::CheckpointTooLarge { len, max } => {
                write!(f, "a checkpoint of {len} bytes is over the limit of {max}")
            }
            Self::PrincipalTooLong { len, max } => {
                write!(f, "a principal of {len} bytes is over the limit of {max}")
            }
            Self::Options(error) => error.fmt(f),
            Self::TicketNeedsLease => f.write_str("a ticket needs a claim with Lease::For"),
            Self::StaleVersion(error) => error.fmt(f),
            Self::VersionGap(error) => error.fmt(f),
            Self::Attachment(error) => error.fmt(f),
            Self::OutboxFull { limit } => write!(
                f,
                "the messages would be more than the {limit} that the outbox takes; deliver some, \
                 discard dead letters, or raise Options::max_outbox"
            ),
            Self::OutOfSpace(error) => error.fmt(f),
            Self::LimitReached(error) => error.fmt(f),
            Self::OutcomeUnknown(error) => {
                write!(f, "the write may or may not be durable: {error}")
            }
            Self::Damaged(error) => error.fmt(f),
            Self::Unavailable(error) => error.fmt(f),
            Self::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Options(error) => Some(error),
            Self::OutOfSpace(error) => Some(error),
            Self::LimitReached(error) => Some(error),
            Self::StaleVersion(error) => Some(error),
            Self::VersionGap(error) => Some(error),
            Self::Attachment(error) => Some(error),
            Self::OutcomeUnknown(error) | Self::Unavailable(error) => Some(error),
            Self::Damaged(error) => Some(error),
            Self::Backend(error) => Some(error),
            _ => None,
        }
    }
}

/// A call that would have ended the guard failed.
///
/// Where the guard still holds the key, it is inside: take it out with
/// [`into_operation`](Self::into_operation). Dropped with the error, it leaves the key interrupted.
///
/// `G` is the guard's type: [`Operation`] for an embedded store.
#[derive(Debug)]
pub struct FinishError<G = Operation> {
    error: WriteError,
    operation: Option<Box<G>>,
}

impl<G> FinishError<G> {
    /// The guard still holds its key. For implementations of
    /// [`Backend`](crate::backend::Backend).
    pub fn held(error: WriteError, operation: G) -> Self {
        Self {
            error,
            operation: Some(Box::new(operation)),
        }
    }

    /// The guard has ended. For implementations of [`Backend`](crate::backend::Backend).
    pub fn lost(error: WriteError) -> Self {
        Self {
            error,
            operation: None,
        }
    }

    /// The same error with the guard in another form.
    pub(crate) fn map<H>(self, form: impl FnOnce(G) -> H) -> FinishError<H> {
        FinishError {
            error: self.error,
            operation: self.operation.map(|operation| Box::new(form(*operation))),
        }
    }

    /// What went wrong.
    pub fn error(&self) -> &WriteError {
        &self.error
    }

    /// The guard, if it still holds the key.
    pub fn into_operation(self) -> Option<G> {
        self.operation.map(|operation| *operation)
    }
}

impl<G> fmt::Display for FinishError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G: fmt::Debug> std::error::Error for FinishError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Why an operator's call did nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AdminError {
    /// The key is pending or interrupted; removing it needs `Forget::Force`.
    Pending {
        /// The attempt that holds it.
        attempt: u32,
    },
    /// The key is not held under this token.
    NotHeld {
        /// The token that was named.
        token: Token,
    },
    /// The claim layer's errors: key limits, room, damage, availability.
    Claim(ClaimError),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending { attempt } => write!(
                f,
                "the key is pending (attempt {attempt}); removing it needs Forget::Force, which \
                 takes it from its owner"
            ),
            Self::NotHeld { token } => write!(f, "nobody holds the key under token {token}"),
            Self::Claim(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Claim(error) => Some(error),
            Self::Pending { .. } | Self::NotHeld { .. } => None,
        }
    }
}

/// The caller may not see a stored result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessDenied {
    /// The result was stored for another principal than the one named.
    OtherPrincipal,
    /// The result was stored for a principal; name the caller with `for_principal`.
    PrincipalRequired,
    /// The result was stored for no principal; use `by_scope`.
    NoPrincipal,
}

impl fmt::Display for AccessDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherPrincipal => "the result was stored for another principal",
            Self::PrincipalRequired => {
                "the result was stored for a principal; name the caller with for_principal"
            }
            Self::NoPrincipal => "the result was stored for no principal; use by_scope",
        })
    }
}

impl std::error::Error for AccessDenied {}

macro_rules! convert {
    ($($from:ty => $to:ident :: $variant:ident),* $(,)?) => {
        $(impl From<$from> for $to {
            fn from(error: $from) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

convert! {
    KeyError => ClaimError::Key,
    ClaimOptionsError => ClaimError::Options,
    OutOfSpace => ClaimError::OutOfSpace,
    LimitReached => ClaimError::LimitReached,
    Damaged => ClaimError::Damaged,
    Unavailable => ClaimError::Unavailable,
    BackendError => ClaimError::Backend,
    BackendError => WriteError::Backend,
    ClaimOptionsError => WriteError::Options,
    OutOfSpace => WriteError::OutOfSpace,
    LimitReached => WriteError::LimitReached,
    Unavailable => WriteError::Unavailable,
    AttachmentError => WriteError::Attachment,
    ClaimError => AdminError::Claim,
}
