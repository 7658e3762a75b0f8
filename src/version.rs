//! Versions of entities: what a late or repeated event finds out.

use std::fmt;
use std::time::SystemTime;

use crate::claim::Saved;
use crate::engine::{Look, version_in};
use crate::key::KeyError;

/// The version that an entity must have for a completion to set a new one: see
/// [`Completion::version`](crate::Completion::version).
///
/// An entity that was never seen has version 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This one. A higher one is [stale](StaleVersion), a lower one a [gap](VersionGap).
    Exactly(u64),
    /// Any that is lower than the new one: no gap is noticed.
    Older,
}

impl From<u64> for Expected {
    fn from(version: u64) -> Self {
        Self::Exactly(version)
    }
}

/// The version of an entity, from [`Store::version`](crate::Store::version).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntityVersion {
    /// Its number, at least 1.
    pub number: u64,
    /// When it was set, in store time.
    pub set_at: SystemTime,
}

impl EntityVersion {
    pub(crate) fn new(look: Look) -> Option<Self> {
        let Look::Completed(stored) = look else {
            return None;
        };
        let number = version_in(stored.replay.response()?);
        let set_at = Saved::new(stored).completed_at();
        Some(Self { number, set_at })
    }
}

/// An event came late, or again: its entity has a newer version. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StaleVersion {
    /// The entity.
    pub entity: Vec<u8>,
    /// The version it has.
    pub current: u64,
    /// The one that was to be set.
    pub new: u64,
}

impl fmt::Display for StaleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entity,
            current,
            new,
        } = self;
        write!(
            f,
            "{} is at version {current} already, so version {new} comes late or again; nothing was \
             changed: drop the event, and complete without the version",
            entity.escape_ascii()
        )
    }
}

impl std::error::Error for StaleVersion {}

/// An event came early: versions before it are missing. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionGap {
    /// The entity.
    pub entity: Vec<u8>,
    /// The version it has; 0 for none.
    pub current: u64,
    /// The one that was to be set.
    pub new: u64,
}

impl fmt::Display for VersionGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entity,
            current,
            new,
        } = self;
        write!(
            f,
            "{} is at version {current}, so what comes before version {new} is missing; nothing was \
             changed: try again when it has come",
            entity.escape_ascii()
        )
    }
}

impl std::error::Error for VersionGap {}

/// What was to be stored with a completion cannot be. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachmentError {
    /// A topic, a message's key or an entity's name is too long, or the name is empty. In the error a
    /// topic is the scope, a message's key the operation, and an entity the id.
    Name(KeyError),
    /// A message's payload is over the limit of a response
    /// ([`Options::max_response`](crate::Options::max_response)).
    PayloadTooLarge {
        /// Bytes of the payload.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Response and attachments are together over half a segment
    /// ([`Options::segment_size`](crate::Options::segment_size)).
    TooLarge {
        /// Bytes of all of it.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// More messages and versions than one completion takes.
    TooMany {
        /// How many.
        count: usize,
        /// The limit: [`limits::ATTACHED_MAX`](crate::limits::ATTACHED_MAX).
        max: usize,
    },
    /// One entity stands twice in one completion.
    EntityTwice {
        /// The entity.
        entity: Vec<u8>,
    },
    /// A new version that is not above the expected one.
    VersionNotAbove {
        /// The version that is expected; 0 for an entity that was never seen.
        expected: u64,
        /// The one to be set.
        new: u64,
    },
}

impl fmt::Display for AttachmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => write!(
                f,
                "a topic (scope), message key (operation) or entity (id) cannot be stored: {error}"
            ),
            Self::PayloadTooLarge { len, max } => write!(
                f,
                "a message of {len} bytes is over the limit of {max}; raise Options::max_response, \
                 or send a reference to what it says"
            ),
            Self::TooLarge { len, max } => write!(
                f,
                "a response with its messages takes {len} bytes, over the limit of {max}; send \
                 less, or raise Options::segment_size"
            ),
            Self::TooMany { count, max } => write!(
                f,
                "{count} messages and versions in one completion are over the limit of {max}"
            ),
            Self::EntityTwice { entity } => write!(
                f,
                "{} stands twice in one completion; set its last version only",
                entity.escape_ascii()
            ),
            Self::VersionNotAbove { expected, new } => write!(
                f,
                "version {new} is not above {expected}, which it is to follow"
            ),
        }
    }
}

impl std::error::Error for AttachmentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            _ => None,
        }
    }
}

impl From<KeyError> for AttachmentError {
    fn from(error: KeyError) -> Self {
        Self::Name(error)
    }
}
