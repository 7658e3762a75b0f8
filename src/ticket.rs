//! Tickets: a pending operation on its way to another worker of the same store.

use std::fmt;

use crate::engine::TicketParts;
use crate::error::ClaimError;
use crate::fingerprint::Fingerprint;
use crate::key::Key;

/// Bytes before the key: magic and version, store, fingerprint, attempt, token, lease, retention,
/// three lengths.
const HEAD_BYTES: usize = 4 + 16 + 1 + 16 + 4 + 8 + 8 + 8 + 2 + 2 + 2;
const MAGIC: [u8; 4] = *b"oct1";

/// A serializable hold on a pending operation, from
/// [`Operation::into_ticket`](crate::Operation::into_ticket).
///
/// Send it through a queue and give it to [`Store::resume`](crate::Store::resume) on the other
/// side. A ticket is a capability: whoever has its bytes can take the operation, so treat it like
/// the queue message it travels in. The encoding is versioned and ends in a checksum.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    parts: TicketParts,
}

/// Bytes that are not a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TicketError {
    /// Too short, too long, or a field out of range.
    Malformed,
    /// Written by a later version of this library.
    UnknownVersion,
    /// The checksum does not match: the bytes were changed or cut on the way.
    Checksum,
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the bytes are not a ticket",
            Self::UnknownVersion => "the ticket is of an unknown version",
            Self::Checksum => "the ticket was changed or cut on its way",
        })
    }
}

impl std::error::Error for TicketError {}

/// Why a ticket gives no guard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ResumeError {
    /// The operation was taken over, released or removed since, or its result has expired.
    LeaseLost {
        /// The attempt that holds the key since, if it is known.
        new_attempt: Option<u32>,
    },
    /// The ticket is of another store.
    OtherStore,
    /// The errors of a claim.
    Claim(ClaimError),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost {
                new_attempt: Some(attempt),
            } => {
                write!(
                    f,
                    "the operation went on as attempt {attempt}; drop the ticket"
                )
            }
            Self::LeaseLost { new_attempt: None } => {
                f.write_str("the operation is not pending any more; drop the ticket")
            }
            Self::OtherStore => f.write_str("the ticket is of another store"),
            Self::Claim(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResumeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Claim(error) => Some(error),
            Self::LeaseLost { .. } | Self::OtherStore => None,
        }
    }
}

impl From<ClaimError> for ResumeError {
    fn from(error: ClaimError) -> Self {
        Self::Claim(error)
    }
}

impl Ticket {
    pub(crate) fn new(parts: TicketParts) -> Self {
        Self { parts }
    }

    pub(crate) fn parts(&self) -> &TicketParts {
        &self.parts
    }

    /// The key of the operation.
    pub fn key(&self) -> &Key {
        &self.parts.key
    }

    /// The attempt that handed it on.
    pub fn attempt(&self) -> u32 {
        self.parts.attempt
    }

    /// The ticket as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let parts = &self.parts;
        let (scope, operation, id) = parts.key.lengths();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + parts.key.as_bytes().len() + 4);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&parts.store_id.to_le_bytes());
        bytes.push(parts.fingerprint.algorithm());
        bytes.extend_from_slice(&parts.fingerprint.digest().to_le_bytes());
        bytes.extend_from_slice(&parts.attempt.to_le_bytes());
        for number in [parts.token, parts.lease_ms, parts.retention_ms] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for len in [scope, operation, id] {
            bytes.extend_from_slice(&len.to_le_bytes());
        }
        debug_assert_eq!(bytes.len(), HEAD_BYTES);
        bytes.extend_from_slice(parts.key.as_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a ticket back.
    ///
    /// # Errors
    ///
    /// [`TicketError`] for anything that [`encode`](Self::encode) did not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, TicketError> {
        let mut reader = Reader { rest: bytes };
        let magic: [u8; 4] = reader.array()?;
        if magic[..3] != MAGIC[..3] {
            return Err(TicketError::Malformed);
        }
        if magic != MAGIC {
            return Err(TicketError::UnknownVersion);
        }
        let (covered, crc) = bytes
            .split_last_chunk::<4>()
            .ok_or(TicketError::Malformed)?;
        if crc32fast::hash(covered) != u32::from_le_bytes(*crc) {
            return Err(TicketError::Checksum);
        }
        let store_id = u128::from_le_bytes(reader.array()?);
        let [algorithm] = reader.array()?;
        let digest = u128::from_le_bytes(reader.array()?);
        let attempt = u32::from_le_bytes(reader.array()?);
        let token = u64::from_le_bytes(reader.array()?);
        let lease_ms = u64::from_le_bytes(reader.array()?);
        let retention_ms = u64::from_le_bytes(reader.array()?);
        let mut lengths = [0; 3];
        for len in &mut lengths {
            *len = usize::from(u16::from_le_bytes(reader.array()?));
        }
        let [scope, operation, id] = lengths;
        let key = Key::new(
            reader.take(scope)?,
            reader.take(operation)?,
            reader.take(id)?,
        )
        .map_err(|_| TicketError::Malformed)?;
        if reader.rest.len() != 4 || token == 0 || attempt == 0 || lease_ms == 0 {
            return Err(TicketError::Malformed);
        }
        let fingerprint = Fingerprint::from_raw(algorithm, digest);
        let parts = TicketParts {
            store_id,
            key,
            fingerprint,
            attempt,
            token,
            lease_ms,
            retention_ms,
        };
        Ok(Self { parts })
    }
}

/// Shows neither the token nor the raw id.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("key", &self.parts.key)
            .field("attempt", &self.parts.attempt)
            .finish_non_exhaustive()
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], TicketError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(TicketError::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TicketError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(TicketError::Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket::new(TicketParts {
            store_id: 7,
            key: Key::new("acct", "charge", "k-1").unwrap(),
            fingerprint: Fingerprint::of(b"body"),
            attempt: 2,
            token: 4711,
            lease_ms: 1_500,
            retention_ms: 60_000,
        })
    }

    #[test]
    fn a_ticket_reads_back_as_written() {
        assert_eq!(Ticket::decode(&ticket().encode()), Ok(ticket()));
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let bytes = ticket().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Ticket::decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Ticket::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
        assert!(Ticket::decode(&longer).is_err());
    }
}
