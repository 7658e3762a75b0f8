//! The record: one key's whole current state, as it stands in the log.
//!
//! The newest record of a key alone answers every question about it, so older ones can go. A record
//! is a fixed head, then the key, the principal, the checkpoint and the response, padded with zeros to
//! whole words, then an extension: the records that are [attached](super::attached) to a completion.
//! The byte table is in `docs/format.md`; the assertions below tie the offsets to it.
//!
//! Reading trusts nothing: the checksum is verified before any field is looked at, and every length
//! is checked against the record's own size even then. The checksum is a CRC-32 that starts from
//! the segment's seed, so a record of another segment or another life of the file never passes.

use crate::domain::Domain;
use crate::fingerprint::Fingerprint;
use crate::limits::{CHECKPOINT_BYTES_MAX, KEY_PART_BYTES_MAX, PRINCIPAL_BYTES_MAX};

/// Bytes of the fixed head, the first word included.
pub(crate) const HEAD_BYTES: usize = 120;

/// Offset of each field of the head, in bytes from the start of the record.
mod at {
    pub(super) const CRC: usize = 8;
    pub(super) const KIND: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const ALGORITHM: usize = 14;
    pub(super) const DOMAIN: usize = 15;
    pub(super) const SEQUENCE: usize = 16;
    pub(super) const TOKEN: usize = 24;
    pub(super) const WATERMARK: usize = 32;
    pub(super) const CREATED: usize = 40;
    pub(super) const STARTED: usize = 48;
    pub(super) const ENDED: usize = 56;
    pub(super) const DEADLINE: usize = 64;
    pub(super) const DIGEST: usize = 72;
    pub(super) const TICKET: usize = 88;
    pub(super) const ATTEMPT: usize = 96;
    pub(super) const SCOPE_LENGTH: usize = 100;
    pub(super) const OPERATION_LENGTH: usize = 102;
    pub(super) const ID_LENGTH: usize = 104;
    pub(super) const PRINCIPAL_LENGTH: usize = 106;
    pub(super) const CHECKPOINT_LENGTH: usize = 108;
    pub(super) const RESPONSE_LENGTH: usize = 112;
    pub(super) const EXTENSION_LENGTH: usize = 116;
}

// The table in docs/format.md, field by field: each begins where the one before it ends.
const _: () = {
    assert!(at::CRC == 8 && at::KIND == at::CRC + 4 && at::FLAGS == at::KIND + 1);
    assert!(at::ALGORITHM == at::FLAGS + 1 && at::DOMAIN == at::ALGORITHM + 1);
    assert!(at::SEQUENCE == at::DOMAIN + 1 && at::TOKEN == at::SEQUENCE + 8);
    assert!(at::WATERMARK == at::TOKEN + 8 && at::CREATED == at::WATERMARK + 8);
    assert!(at::STARTED == at::CREATED + 8 && at::ENDED == at::STARTED + 8);
    assert!(at::DEADLINE == at::ENDED + 8 && at::DIGEST == at::DEADLINE + 8);
    assert!(at::TICKET == at::DIGEST + 16 && at::ATTEMPT == at::TICKET + 8);
    assert!(at::SCOPE_LENGTH == at::ATTEMPT + 4 && at::OPERATION_LENGTH == at::SCOPE_LENGTH + 2);
    assert!(at::ID_LENGTH == at::OPERATION_LENGTH + 2 && at::PRINCIPAL_LENGTH == at::ID_LENGTH + 2);
    assert!(at::CHECKPOINT_LENGTH == at::PRINCIPAL_LENGTH + 2);
    assert!(at::RESPONSE_LENGTH == at::CHECKPOINT_LENGTH + 4);
    assert!(at::EXTENSION_LENGTH == at::RESPONSE_LENGTH + 4);
    assert!(HEAD_BYTES == at::EXTENSION_LENGTH + 4 && HEAD_BYTES == 120);
};
const _: () = assert!(KEY_PART_BYTES_MAX <= u16::MAX as usize);

/// The result is done but its response was not kept.
const FLAG_NOT_STORED: u8 = 1;
/// The result belongs to a principal (which may be the empty string).
const FLAG_PRINCIPAL: u8 = 2;
/// A copy in a compacted file: sequence and token are those of the record it was made of.
const FLAG_COPY: u8 = 4;
/// A message that is a dead letter.
const FLAG_DEAD: u8 = 8;
const FLAGS_KNOWN: u8 = FLAG_NOT_STORED | FLAG_PRINCIPAL | FLAG_COPY | FLAG_DEAD;

/// What happened to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An owner was granted the key: first claim, takeover or resumed ticket.
    Claim = 1,
    /// The owner left a note.
    Checkpoint = 2,
    /// The owner finished.
    Complete = 3,
    /// The owner says that nothing happened.
    Release = 4,
    /// An operator removed the key.
    Forget = 5,
}

impl Kind {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Claim),
            2 => Some(Self::Checkpoint),
            3 => Some(Self::Complete),
            4 => Some(Self::Release),
            5 => Some(Self::Forget),
            _ => None,
        }
    }
}

/// Everything of a record but its sequence and watermark, which the log adds when it is appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) kind: Kind,
    pub(crate) domain: Domain,
    /// Only of a message.
    pub(crate) is_dead: bool,
    pub(crate) fingerprint: Fingerprint,
    /// Position of the record that granted the current owner; 0 in a grant, which is its own.
    pub(crate) token: u64,
    /// Token of the ticket from which the owner was resumed, 0 without one.
    pub(crate) ticket: u64,
    pub(crate) attempt: u32,
    /// Store time in ms of the first attempt's claim.
    pub(crate) created_ms: u64,
    /// Store time in ms of this attempt's claim.
    pub(crate) started_ms: u64,
    /// Store time in ms of completion, release or removal; 0 while pending.
    pub(crate) ended_ms: u64,
    /// Store time in ms from which a completed key is free again, and in a removal the time from
    /// which what it removed would have been; 0 while pending.
    pub(crate) deadline_ms: u64,
    /// Scope, operation and id, one after the other.
    pub(crate) key: &'a [u8],
    pub(crate) key_lengths: (u16, u16, u16),
    pub(crate) principal: Option<&'a [u8]>,
    /// The owner's note. In a completion, until when the result that it took the place of would have
    /// answered, in 8 bytes, if that is longer than its own (else nothing).
    pub(crate) checkpoint: &'a [u8],
    /// `None`: done, not replayable (only for [`Kind::Complete`]).
    pub(crate) response: Option<&'a [u8]>,
    /// Records to be one with this one, a completion.
    pub(crate) attached: &'a [Contents<'a>],
}

impl Contents<'_> {
    /// Length of the record in words, with all that is attached.
    #[inline]
    pub(crate) fn words(&self) -> u64 {
        self.body_words() + self.attached_words()
    }

    /// Length in words of what is attached.
    #[inline]
    pub(crate) fn attached_words(&self) -> u64 {
        self.attached.iter().map(Self::body_words).sum()
    }

    /// Length in words without what is attached.
    #[inline]
    pub(crate) fn body_words(&self) -> u64 {
        words_for(
            self.key.len(),
            self.principal.map_or(0, <[u8]>::len),
            self.checkpoint.len(),
            self.response.map_or(0, <[u8]>::len),
        )
    }

    /// The variable part, in the order in which it is written.
    #[inline]
    pub(crate) fn pieces(&self) -> [&[u8]; 4] {
        [
            self.key,
            self.principal.unwrap_or_default(),
            self.checkpoint,
            self.response.unwrap_or_default(),
        ]
    }

    /// Where the principal stands within the record, in bytes.
    #[inline]
    pub(crate) fn principal_offset(&self) -> usize {
        HEAD_BYTES + self.key.len()
    }

    /// Where the response stands within the record, in bytes.
    #[inline]
    pub(crate) fn response_offset(&self) -> usize {
        self.principal_offset() + self.principal.map_or(0, <[u8]>::len) + self.checkpoint.len()
    }

    /// The head from byte 12 on (what the checksum covers first), in a whole-head buffer.
    #[inline]
    pub(crate) fn head(&self, sequence: u64, watermark: u64) -> [u8; HEAD_BYTES] {
        let (scope, operation, id) = self.key_lengths;
        let key_bytes = usize::from(scope) + usize::from(operation) + usize::from(id);
        assert!(
            id > 0 && key_bytes == self.key.len(),
            "key lengths disagree"
        );
        assert!(matches!(self.kind, Kind::Complete | Kind::Forget) || self.deadline_ms == 0);
        assert!(watermark <= sequence, "a watermark above its own record");
        let token = if self.token == 0 {
            sequence
        } else {
            self.token
        };
        assert!(token <= sequence, "a token above its own record");

        let mut flags = 0;
        if self.kind == Kind::Complete && self.response.is_none() {
            flags |= FLAG_NOT_STORED;
        }
        if self.principal.is_some() {
            flags |= FLAG_PRINCIPAL;
        }
        let mut head = [0; HEAD_BYTES];
        if self.is_dead {
            flags |= FLAG_DEAD;
        }
        head[at::ALGORITHM] = self.fingerprint.algorithm();
        head[at::DOMAIN] = self.domain as u8;
        let mut put = |offset: usize, bytes: &[u8]| {
            head[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(at::SEQUENCE, &sequence.to_le_bytes());
        put(at::TOKEN, &token.to_le_bytes());
        put(at::WATERMARK, &watermark.to_le_bytes());
        put(at::CREATED, &self.created_ms.to_le_bytes());
        put(at::STARTED, &self.started_ms.to_le_bytes());
        put(at::ENDED, &self.ended_ms.to_le_bytes());
        put(at::DEADLINE, &self.deadline_ms.to_le_bytes());
        put(at::DIGEST, &self.fingerprint.digest().to_le_bytes());
        put(at::TICKET, &self.ticket.to_le_bytes());
        put(at::ATTEMPT, &self.attempt.to_le_bytes());
        put(at::SCOPE_LENGTH, &scope.to_le_bytes());
        put(at::OPERATION_LENGTH, &operation.to_le_bytes());
        put(at::ID_LENGTH, &id.to_le_bytes());
        let [_, principal, checkpoint, response] = self.pieces();
        put(
            at::PRINCIPAL_LENGTH,
            &(principal.len() as u16).to_le_bytes(),
        );
        put(
            at::CHECKPOINT_LENGTH,
            &(checkpoint.len() as u32).to_le_bytes(),
        );
        put(at::RESPONSE_LENGTH, &(response.len() as u32).to_le_bytes());
        let extension_bytes = (self.attached_words() * 8) as u32;
        put(at::EXTENSION_LENGTH, &extension_bytes.to_le_bytes());
        head[at::KIND] = self.kind as u8;
        head[at::FLAGS] = flags;
        head
    }
}

/// Length in words of a record with a variable part of these sizes.
#[inline]
pub(crate) const fn words_for(
    key: usize,
    principal: usize,
    checkpoint: usize,
    response: usize,
) -> u64 {
    (HEAD_BYTES + key + principal + checkpoint + response).div_ceil(8) as u64
}

/// The checksum of a record: from byte 12 to its end, padding included.
#[inline]
pub(crate) fn checksum(covered: &[u8], seed: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial((seed >> 32) as u32 ^ seed as u32);
    hasher.update(covered);
    hasher.finalize()
}

/// Turns a record's bytes, without what is attached, into those of a copy, for the segment of `seed`.
/// The first word is left to the caller, who knows where the copy will stand.
pub(crate) fn make_copy(bytes: &mut [u8], seed: u64) {
    if let Some(length) = bytes.get_mut(at::EXTENSION_LENGTH..at::EXTENSION_LENGTH + 4) {
        length.fill(0);
    }
    if let Some(flags) = bytes.get_mut(at::FLAGS) {
        *flags |= FLAG_COPY;
    }
    let crc = checksum(bytes.get(COVERED_FROM..).unwrap_or_default(), seed);
    if let Some(field) = bytes.get_mut(at::CRC..at::CRC + 4) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Where the checksum stands and where the bytes it covers begin.
pub(crate) const CRC_OFFSET: usize = at::CRC;
pub(crate) const COVERED_FROM: usize = at::KIND;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Shorter than a head.
    Short,
    /// The checksum does not match: torn, flipped, stale or foreign bytes.
    Checksum,
    /// The checksum matches but a field is outside what any version writes.
    Field(&'static str),
}

/// A record in the log, parsed and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: Kind,
    /// Whether it is a copy, whose sequence is not its own position.
    pub(crate) is_copy: bool,
    pub(crate) domain: Domain,
    pub(crate) is_dead: bool,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) sequence: u64,
    pub(crate) token: u64,
    pub(crate) watermark: u64,
    pub(crate) ticket: u64,
    pub(crate) attempt: u32,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) ended_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) key: &'a [u8],
    pub(crate) key_lengths: (u16, u16, u16),
    pub(crate) principal: Option<&'a [u8]>,
    pub(crate) checkpoint: &'a [u8],
    pub(crate) response: Option<&'a [u8]>,
    /// Where the response stands within the record, in bytes.
    pub(crate) response_offset: usize,
    /// Bytes of what is attached, at the record's end.
    pub(crate) extension_bytes: usize,
}

impl<'a> Record<'a> {
    /// Parses bytes that came from a disk: checksum first, then every field against its limits.
    pub(crate) fn parse(bytes: &'a [u8], seed: u64) -> Result<Self, Malformed> {
        let stored = u32_at(bytes, at::CRC).ok_or(Malformed::Short)?;
        let covered = bytes.get(COVERED_FROM..).ok_or(Malformed::Short)?;
        if bytes.len() < HEAD_BYTES {
            return Err(Malformed::Short);
        }
        if checksum(covered, seed) != stored {
            return Err(Malformed::Checksum);
        }
        let record = Self::parse_verified(bytes)?;
        record.check_as_written(bytes)?;
        Ok(record)
    }

    /// The latest store time in ms that it mentions as past.
    pub(crate) fn latest_ms(&self) -> u64 {
        self.created_ms.max(self.started_ms).max(self.ended_ms)
    }

    /// Length in words without what is attached.
    #[inline]
    pub(crate) fn body_words(&self) -> u64 {
        let end = self.response_offset + self.response.map_or(0, <[u8]>::len);
        end.div_ceil(8) as u64
    }

    /// Refuses what would be lost if the record were written again: no writer makes it, so it is
    /// damage under a checksum that somebody made true. Not asked of bytes that were verified once.
    fn check_as_written(&self, bytes: &[u8]) -> Result<(), Malformed> {
        let flags = bytes.get(at::FLAGS).copied().ok_or(Malformed::Short)?;
        if flags & FLAG_NOT_STORED != 0 && self.kind != Kind::Complete {
            return Err(Malformed::Field("flags"));
        }
        if self.is_copy && !matches!(self.kind, Kind::Complete | Kind::Forget) {
            return Err(Malformed::Field("flags"));
        }
        let is_attachable = matches!(self.kind, Kind::Complete | Kind::Forget);
        if self.domain != Domain::Operations && !is_attachable {
            return Err(Malformed::Field("domain"));
        }
        if self.is_dead && (self.domain != Domain::Messages || self.kind != Kind::Complete) {
            return Err(Malformed::Field("flags"));
        }
        let principal = bytes
            .get(at::PRINCIPAL_LENGTH..)
            .and_then(<[u8]>::first_chunk)
            .map(|length| u16::from_le_bytes(*length));
        if self.principal.is_none() && principal != Some(0) {
            return Err(Malformed::Field("principal length"));
        }
        if self.token == 0 {
            return Err(Malformed::Field("token"));
        }
        // A removal may say until when what it removed would have answered.
        if !matches!(self.kind, Kind::Complete | Kind::Forget) && self.deadline_ms != 0 {
            return Err(Malformed::Field("deadline"));
        }
        let end = self.response_offset + self.response.map_or(0, <[u8]>::len);
        let body_bytes = self.body_words() as usize * 8;
        let padding = bytes.get(end..body_bytes).ok_or(Malformed::Short)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Malformed::Field("padding"));
        }
        Ok(())
    }

    /// Parses bytes whose checksum was verified when they were written or recovered. The lengths
    /// are still checked, so a map that was changed behind our back gives an error, not a panic.
    #[inline]
    pub(crate) fn parse_verified(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk().ok_or(Malformed::Short)?;
        let kind = Kind::from_byte(head[at::KIND]).ok_or(Malformed::Field("kind"))?;
        let flags = head[at::FLAGS];
        if flags & !FLAGS_KNOWN != 0 {
            return Err(Malformed::Field("flags"));
        }
        let domain = Domain::from_byte(head[at::DOMAIN]).ok_or(Malformed::Field("domain"))?;
        let u16_of = |offset: usize| u16::from_le_bytes([head[offset], head[offset + 1]]);
        let u32_of = |offset| u32_at(head, offset).ok_or(Malformed::Short);
        let u64_of = |offset| u64_at(head, offset).ok_or(Malformed::Short);

        let key_lengths = (
            u16_of(at::SCOPE_LENGTH),
            u16_of(at::OPERATION_LENGTH),
            u16_of(at::ID_LENGTH),
        );
        let (scope, operation, id) = key_lengths;
        let part_max = KEY_PART_BYTES_MAX as u16;
        if id == 0 || scope > part_max || operation > part_max || id > part_max {
            return Err(Malformed::Field("key length"));
        }
        let principal_bytes = usize::from(u16_of(at::PRINCIPAL_LENGTH));
        let checkpoint_bytes = u32_of(at::CHECKPOINT_LENGTH)? as usize;
        let response_bytes = u32_of(at::RESPONSE_LENGTH)? as usize;
        if principal_bytes > PRINCIPAL_BYTES_MAX || checkpoint_bytes > CHECKPOINT_BYTES_MAX {
            return Err(Malformed::Field("principal or checkpoint length"));
        }
        let extension_bytes = u32_of(at::EXTENSION_LENGTH)? as usize;
        let may_be_extended =
            kind == Kind::Complete && domain == Domain::Operations && flags & FLAG_COPY == 0;
        if extension_bytes != 0 && !(may_be_extended && extension_bytes.is_multiple_of(8)) {
            return Err(Malformed::Field("extension length"));
        }

        let mut rest = Splitter {
            bytes,
            at: HEAD_BYTES,
        };
        let key = rest.take(usize::from(scope) + usize::from(operation) + usize::from(id))?;
        let principal = rest.take(principal_bytes)?;
        let checkpoint = rest.take(checkpoint_bytes)?;
        let response_offset = rest.at;
        let response = rest.take(response_bytes)?;
        if rest.at.next_multiple_of(8).checked_add(extension_bytes) != Some(bytes.len()) {
            return Err(Malformed::Field("length"));
        }
        let stored = kind == Kind::Complete && flags & FLAG_NOT_STORED == 0;
        if !stored && response_bytes != 0 {
            return Err(Malformed::Field("response length"));
        }
        let digest = u128::from_le_bytes(
            *head
                .get(at::DIGEST..)
                .and_then(<[u8]>::first_chunk)
                .ok_or(Malformed::Short)?,
        );
        let record = Self {
            kind,
            is_copy: flags & FLAG_COPY != 0,
            domain,
            is_dead: flags & FLAG_DEAD != 0,
            fingerprint: Fingerprint::from_raw(head[at::ALGORITHM], digest),
            sequence: u64_of(at::SEQUENCE)?,
            token: u64_of(at::TOKEN)?,
            watermark: u64_of(at::WATERMARK)?,
            ticket: u64_of(at::TICKET)?,
            attempt: u32_of(at::ATTEMPT)?,
            created_ms: u64_of(at::CREATED)?,
            started_ms: u64_of(at::STARTED)?,
            ended_ms: u64_of(at::ENDED)?,
            deadline_ms: u64_of(at::DEADLINE)?,
            key,
            key_lengths,
            principal: (flags & FLAG_PRINCIPAL != 0).then_some(principal),
            checkpoint,
            response: stored.then_some(response),
            response_offset,
            extension_bytes,
        };
        if record.token > record.sequence || record.watermark > record.sequence {
            return Err(Malformed::Field("token or watermark"));
        }
        if record.attempt == 0 {
            return Err(Malformed::Field("attempt"));
        }
        Ok(record)
    }

    /// Whether a completed record still answers at this store time. The one place that decides
    /// expiry: every path, fast or slow, asks here.
    #[inline]
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        match self.kind {
            Kind::Claim | Kind::Checkpoint => true,
            Kind::Complete => now_ms < self.deadline_ms,
            Kind::Release | Kind::Forget => false,
        }
    }

    /// Until when, in store time in ms, an older result of the key would answer if this record were
    /// not there; 0 where it hides none that outlives it.
    #[inline]
    pub(crate) fn hides_until_ms(&self) -> u64 {
        match (self.kind, self.checkpoint.first_chunk()) {
            (Kind::Complete, Some(until_ms)) => u64::from_le_bytes(*until_ms),
            _ => 0,
        }
    }
}

/// Cuts the variable part into pieces without ever reading past the record.
struct Splitter<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Splitter<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).ok_or(Malformed::Field("length"))?;
        let piece = self
            .bytes
            .get(self.at..end)
            .ok_or(Malformed::Field("length"))?;
        self.at = end;
        Ok(piece)
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes
        .get(offset..)?
        .first_chunk()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes
        .get(offset..)?
        .first_chunk()
        .map(|chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn contents<'a>(key: &'a [u8], response: &'a [u8]) -> Contents<'a> {
        Contents {
            kind: Kind::Complete,
            domain: Domain::Operations,
            is_dead: false,
            fingerprint: Fingerprint::of(b"request"),
            token: 600,
            ticket: 0,
            attempt: 2,
            created_ms: 10,
            started_ms: 20,
            ended_ms: 30,
            deadline_ms: 40,
            key,
            key_lengths: (1, 1, (key.len() - 2) as u16),
            principal: Some(b"alice"),
            checkpoint: b"",
            response: Some(response),
            attached: &[],
        }
    }

    /// Lays a record out as the log does, in a plain buffer.
    pub(crate) fn encode(contents: &Contents<'_>, sequence: u64, seed: u64) -> Vec<u8> {
        let mut bytes = contents.head(sequence, 512).to_vec();
        for piece in contents.pieces() {
            bytes.extend_from_slice(piece);
        }
        bytes.resize(contents.words() as usize * 8, 0);
        let crc = checksum(&bytes[COVERED_FROM..], seed);
        bytes[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_record_reads_back_as_written() {
        for len in 0..40 {
            let response = vec![7; len];
            let bytes = encode(&contents(b"abkey", &response), 700, 9);
            let record = Record::parse(&bytes, 9).unwrap();
            assert_eq!(record.kind, Kind::Complete);
            assert_eq!(record.sequence, 700);
            assert_eq!(record.token, 600);
            assert_eq!(record.attempt, 2);
            assert_eq!((record.created_ms, record.started_ms), (10, 20));
            assert_eq!((record.ended_ms, record.deadline_ms), (30, 40));
            assert_eq!(record.key, b"abkey");
            assert_eq!(record.principal, Some(&b"alice"[..]));
            assert_eq!(record.response, Some(&response[..]));
            assert_eq!(&bytes[record.response_offset..][..len], &response[..]);
            assert_eq!(record.fingerprint, Fingerprint::of(b"request"));
        }
    }

    #[test]
    fn every_flipped_bit_after_the_first_word_is_noticed() {
        let bytes = encode(&contents(b"abkey", b"response"), 700, 9);
        for bit in 64..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                Record::parse(&flipped, 9).unwrap_err(),
                Malformed::Checksum,
                "bit {bit}"
            );
        }
        assert_eq!(
            Record::parse(&bytes, 10).unwrap_err(),
            Malformed::Checksum,
            "other seed"
        );
    }

    #[test]
    fn no_length_in_a_record_is_trusted_even_under_a_true_checksum() {
        let bytes = encode(&contents(b"abkey", b"response"), 700, 9);
        for offset in at::SCOPE_LENGTH..HEAD_BYTES {
            for value in [0x00, 0x01, 0x7F, 0xFF] {
                let mut forged = bytes.clone();
                forged[offset] = value;
                let crc = checksum(&forged[COVERED_FROM..], 9);
                forged[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
                if let Ok(record) = Record::parse(&forged, 9) {
                    assert!(record.key.len() <= bytes.len());
                }
            }
        }
        for len in 0..bytes.len() {
            assert!(Record::parse(&bytes[..len], 9).is_err());
        }
    }

    #[test]
    fn what_no_writer_makes_is_refused_even_under_a_true_checksum() {
        let claim = Contents {
            kind: Kind::Claim,
            deadline_ms: 0,
            principal: None,
            response: None,
            ..contents(b"abkey", b"")
        };
        let release = Contents {
            kind: Kind::Release,
            ..claim
        };
        let complete = contents(b"abkey", b"response");
        let cases: [(&str, &Contents<'_>, usize, u8); 7] = [
            ("flags", &claim, at::FLAGS, FLAG_NOT_STORED),
            ("flags", &release, at::FLAGS, FLAG_NOT_STORED),
            // Without its flag the principal would be a gap.
            ("principal length", &complete, at::FLAGS, 0),
            ("token", &claim, at::TOKEN, 0),
            ("deadline", &claim, at::DEADLINE, 1),
            ("deadline", &release, at::DEADLINE + 7, 0x80),
            ("padding", &claim, HEAD_BYTES + 5, 1),
        ];
        for (field, contents, offset, value) in cases {
            let mut forged = encode(contents, 700, 9);
            assert!(Record::parse(&forged, 9).is_ok());
            forged[offset] = value;
            if field == "token" {
                forged[at::TOKEN..at::TOKEN + 8].fill(0);
            }
            let crc = checksum(&forged[COVERED_FROM..], 9);
            forged[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
            let fault = Record::parse(&forged, 9).unwrap_err();
            assert_eq!(fault, Malformed::Field(field), "byte {offset}");
        }
    }

    #[test]
    fn done_without_a_response_differs_from_an_empty_response() {
        let mut without = contents(b"abkey", b"");
        without.response = None;
        without.principal = None;
        let bytes = encode(&without, 700, 9);
        let record = Record::parse(&bytes, 9).unwrap();
        assert_eq!((record.response, record.principal), (None, None));

        let mut empty = contents(b"abkey", b"");
        empty.principal = Some(b"");
        let bytes = encode(&empty, 700, 9);
        let record = Record::parse(&bytes, 9).unwrap();
        assert_eq!(
            (record.response, record.principal),
            (Some(&b""[..]), Some(&b""[..]))
        );
    }

    #[test]
    fn a_completed_record_is_live_until_its_deadline_exactly() {
        let bytes = encode(&contents(b"abkey", b""), 700, 9);
        let record = Record::parse(&bytes, 9).unwrap();
        assert!(record.is_live(39));
        assert!(!record.is_live(40));
        assert!(!record.is_live(u64::MAX));
    }
}
