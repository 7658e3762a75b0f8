//! Stored responses, handed out without a copy.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::limits::SEGMENT_BYTES_MAX;
use crate::log::segment::Segment;

/// The bytes of a stored response, in place.
///
/// From a [`Store`](crate::Store) it points into the mapped log and keeps that segment mapped: cloning it copies no bytes, and it
/// stays readable after the store was closed or dropped and after the segment's file was removed.
/// It holds address space, not memory: hold it as long as the reply takes, not for ever.
///
/// `Bytes::from(response)` gives a [`Bytes`] over the same memory, also without a copy.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use oncekey::{Claim, Fingerprint, Key, Replay, Store};
///
/// let store = Store::open(dir.path())?;
/// let key = Key::new("acct_1", "POST /v1/payments", "k-1")?;
/// if let Claim::Started(operation) = store.claim(&key, Fingerprint::of(b"body"))? {
///     operation.complete(b"paid")?;
/// }
/// if let Claim::Completed(saved) = store.claim(&key, Fingerprint::of(b"body"))? {
///     let Replay::Response(response) = saved.by_scope()? else { panic!("it was stored") };
///     store.close()?;
///     drop(store);
///     assert_eq!(&response[..], b"paid");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Response {
    source: Source,
}

#[derive(Clone)]
enum Source {
    /// Bytes of a committed record.
    Mapped {
        segment: Arc<Segment>,
        /// In bytes; a segment is far smaller than 4 GiB.
        offset: u32,
        len: u32,
    },
    /// What a shared backend sent.
    Owned(Bytes),
}

const _: () = assert!(SEGMENT_BYTES_MAX <= u32::MAX as u64);

impl Response {
    /// `offset` and `len` name bytes of a committed record.
    #[inline]
    pub(crate) fn new(segment: Arc<Segment>, offset: usize, len: usize) -> Self {
        let (offset, len) = (offset as u32, len as u32);
        Self {
            source: Source::Mapped {
                segment,
                offset,
                len,
            },
        }
    }

    /// A response from elsewhere than the log.
    pub(crate) fn owned(bytes: Bytes) -> Self {
        Self {
            source: Source::Owned(bytes),
        }
    }
}

impl Deref for Response {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Mapped {
                segment,
                offset,
                len,
            } => segment.bytes(*offset as usize, *len as usize),
            Source::Owned(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Response {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Response> for Bytes {
    fn from(response: Response) -> Self {
        match response.source {
            Source::Owned(bytes) => bytes,
            Source::Mapped { .. } => Bytes::from_owner(response),
        }
    }
}

impl PartialEq for Response {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Response {}

/// Shows the length only: a response may hold what must not be logged.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// What a completed key has to hand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The stored response, which may be empty.
    Response(Response),
    /// The operation is done and must not run again, but its response was not kept: see
    /// [`Operation::complete_without_response`](crate::Operation::complete_without_response).
    NotStored,
}

impl Replay {
    /// The response, if it was kept.
    pub fn response(&self) -> Option<&Response> {
        match self {
            Self::Response(response) => Some(response),
            Self::NotStored => None,
        }
    }
}
