//! The header page of a segment, and what it shares with META: a checksummed page.
//!
//! A page begins with a magic and a format version and ends its fields with a CRC-32 over all that
//! stands before. Everything lies in the first 512 bytes, which disks write as one piece; the rest
//! of the page is zero and ignored. Magic, version and the place of the checksum are the same in
//! every format version, so that a page of a later version is told apart from a damaged one.
//!
//! A header is written once, before its segment gets its name, and never again but by a salvage. It
//! holds the store's secret, so that META can be rebuilt from any segment.

use std::fmt;

use crate::corruption::Damage;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::log::position;
use crate::log::segment::{FIRST_RECORD, HEADER_BYTES};
use crate::log::word;

/// The format version that this code reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = HEADER_BYTES;

const MAGIC: &[u8; 8] = b"ONCEKEYS";

/// Offset of each field, in bytes.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const CRC: usize = 12;
    pub(super) const FILE_BYTES: usize = 16;
    pub(super) const STORE_ID: usize = 24;
    pub(super) const BASE: usize = 40;
    pub(super) const PREVIOUS_BASE: usize = 48;
    pub(super) const PREVIOUS_END: usize = 56;
    pub(super) const WATERMARK: usize = 64;
    pub(super) const CREATED: usize = 72;
    pub(super) const SECRET: usize = 80;
    pub(super) const COPIES_END: usize = 112;
    pub(super) const END: usize = 120;
}

/// Bytes of a page that hold fields. Disks write them as one piece.
pub(crate) const FIELD_BYTES: usize = 512;
// The table in docs/format.md, field by field: each begins where the one before it ends.
const _: () = {
    assert!(at::MAGIC == 0 && at::VERSION == 8 && at::CRC == at::VERSION + 4);
    assert!(at::FILE_BYTES == at::CRC + 4 && at::STORE_ID == at::FILE_BYTES + 8);
    assert!(at::BASE == at::STORE_ID + 16 && at::PREVIOUS_BASE == at::BASE + 8);
    assert!(at::PREVIOUS_END == at::PREVIOUS_BASE + 8 && at::WATERMARK == at::PREVIOUS_END + 8);
    assert!(at::CREATED == at::WATERMARK + 8 && at::SECRET == at::CREATED + 8);
    assert!(at::COPIES_END == at::SECRET + 32 && at::END == at::COPIES_END + 8 && at::END == 120);
    assert!(at::END <= FIELD_BYTES && FIELD_BYTES <= PAGE_BYTES);
};

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageFault {
    /// Its bytes are damaged.
    Damaged(Damage),
    /// Whole, but of another format version.
    Version(u32),
}

/// A page that is being filled in. Both kinds of page are written through it, so that their frame
/// is the same.
pub(crate) struct PageWriter {
    bytes: [u8; PAGE_BYTES],
}

impl PageWriter {
    pub(crate) fn new(magic: &[u8; 8]) -> Self {
        let mut page = Self {
            bytes: [0; PAGE_BYTES],
        };
        page.put(at::MAGIC, magic);
        page.put(at::VERSION, &FORMAT_VERSION.to_le_bytes());
        page
    }

    /// Writes one field.
    pub(crate) fn put(&mut self, offset: usize, field: &[u8]) {
        assert!(
            offset + field.len() <= FIELD_BYTES,
            "a field behind the first sector"
        );
        self.bytes[offset..offset + field.len()].copy_from_slice(field);
    }

    /// A page that is there already, to give it a new checksum.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn from_page(bytes: [u8; PAGE_BYTES]) -> Self {
        Self { bytes }
    }

    /// Adds the checksum.
    pub(crate) fn finish(mut self) -> [u8; PAGE_BYTES] {
        let crc = page_checksum(&self.bytes);
        self.put(at::CRC, &crc.to_le_bytes());
        self.bytes
    }
}

/// A page that was read and whose checksum held.
#[derive(Clone, Copy)]
pub(crate) struct PageReader<'a> {
    bytes: &'a [u8; PAGE_BYTES],
}

impl<'a> PageReader<'a> {
    /// Checks the frame: whole, of this magic, undamaged, of this version.
    pub(crate) fn open(magic: &[u8; 8], bytes: &'a [u8]) -> Result<Self, PageFault> {
        let bytes: &[u8; PAGE_BYTES] = bytes
            .first_chunk()
            .ok_or(PageFault::Damaged(Damage::Truncated))?;
        let page = Self { bytes };
        if &page.field::<8>(at::MAGIC) != magic {
            return Err(PageFault::Damaged(Damage::Magic));
        }
        if page.u32(at::CRC) != page_checksum(bytes) {
            return Err(PageFault::Damaged(Damage::PageChecksum));
        }
        match page.u32(at::VERSION) {
            FORMAT_VERSION => Ok(page),
            version => Err(PageFault::Version(version)),
        }
    }

    /// One field. All offsets are constants within the page.
    pub(crate) fn field<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.bytes
            .get(offset..)
            .and_then(<[u8]>::first_chunk)
            .copied()
            .unwrap_or([0; N])
    }

    pub(crate) fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.field(offset))
    }

    pub(crate) fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.field(offset))
    }
}

/// The checksum of all fields, with that of the checksum taken for zero.
fn page_checksum(page: &[u8; PAGE_BYTES]) -> u32 {
    let (fields, _) = page.split_at(FIELD_BYTES);
    let (before, rest) = fields.split_at(at::CRC);
    let (_, behind) = rest.split_at(4);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(&[0; 4]);
    hasher.update(behind);
    hasher.finalize()
}

/// What a segment says about itself.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of the file when it was made. A recovered segment may have been cut since.
    pub(crate) file_bytes: u64,
    pub(crate) store_id: u128,
    /// Position of word 0.
    pub(crate) base: u64,
    /// Base of the segment before, 0 if this is the first.
    pub(crate) previous_base: u64,
    /// Position behind the last range of the segment before, 0 if this is the first.
    pub(crate) previous_end: u64,
    /// Everything below was durable when the header was written.
    pub(crate) watermark: u64,
    /// Store time in ms.
    pub(crate) created_ms: u64,
    /// The store's secret, as in META.
    pub(crate) secret: [u8; 32],
    /// Word offset behind the last record of a compacted file; 0 in a segment of the log.
    pub(crate) copies_end: u64,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("Header")
            .field("file_bytes", &self.file_bytes)
            .field("store_id", &format_args!("{:032x}", self.store_id))
            .field("base", &format_args!("{:#x}", self.base))
            .field("previous_base", &format_args!("{:#x}", self.previous_base))
            .field("previous_end", &format_args!("{:#x}", self.previous_end))
            .field("watermark", &format_args!("{:#x}", self.watermark))
            .field("created_ms", &self.created_ms)
            .field("copies_end", &self.copies_end)
            .finish_non_exhaustive()
    }
}

impl Header {
    /// The page as it stands at the start of the file.
    pub(crate) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = PageWriter::new(MAGIC);
        page.put(at::FILE_BYTES, &self.file_bytes.to_le_bytes());
        page.put(at::STORE_ID, &self.store_id.to_le_bytes());
        page.put(at::BASE, &self.base.to_le_bytes());
        page.put(at::PREVIOUS_BASE, &self.previous_base.to_le_bytes());
        page.put(at::PREVIOUS_END, &self.previous_end.to_le_bytes());
        page.put(at::WATERMARK, &self.watermark.to_le_bytes());
        page.put(at::CREATED, &self.created_ms.to_le_bytes());
        page.put(at::SECRET, &self.secret);
        page.put(at::COPIES_END, &self.copies_end.to_le_bytes());
        page.finish()
    }

    /// The checksum of the page, which tells this header from every other.
    pub(crate) fn checksum(&self) -> u32 {
        page_checksum(&self.encode())
    }

    /// Reads a page back, with every field checked against the others.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, PageFault> {
        let page = PageReader::open(MAGIC, bytes)?;
        let header = Self {
            file_bytes: page.u64(at::FILE_BYTES),
            store_id: u128::from_le_bytes(page.field(at::STORE_ID)),
            base: page.u64(at::BASE),
            previous_base: page.u64(at::PREVIOUS_BASE),
            previous_end: page.u64(at::PREVIOUS_END),
            watermark: page.u64(at::WATERMARK),
            created_ms: page.u64(at::CREATED),
            secret: page.field(at::SECRET),
            copies_end: page.u64(at::COPIES_END),
        };
        match header.fault() {
            None => Ok(header),
            Some(field) => Err(PageFault::Damaged(Damage::Field(field))),
        }
    }

    /// The field that no writer could have written, if there is one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let words = self.file_bytes / 8;
        let is_possible = words > FIRST_RECORD && self.file_bytes <= SEGMENT_BYTES_MAX;
        if !self.file_bytes.is_multiple_of(8) || !is_possible {
            return Some("file bytes");
        }
        let end = self.base.checked_add(words);
        let in_one_epoch =
            |end| position::epoch_of(end - 1) == position::epoch_of(self.base) && self.base > 0;
        if !end.is_some_and(in_one_epoch) {
            return Some("base");
        }
        let first = self.previous_base == 0 && self.previous_end == 0;
        let previous_words = self.previous_end.checked_sub(self.previous_base);
        let follows = previous_words
            .is_some_and(|words| (FIRST_RECORD..=SEGMENT_BYTES_MAX / 8).contains(&words))
            && self.previous_end <= self.base
            && self.previous_base > 0;
        if !first && !follows {
            return Some("previous segment");
        }
        if self.watermark > self.base {
            return Some("watermark");
        }
        if self.copies_end != 0 && !(FIRST_RECORD + 1..=words).contains(&self.copies_end) {
            return Some("end of the copies");
        }
        None
    }

    /// Whether the file holds copies of records from elsewhere, and is no part of the chain.
    pub(crate) fn is_compacted(&self) -> bool {
        self.copies_end > 0
    }

    /// What binds words and checksums to this segment of this store. It takes in the secret, so
    /// that nobody who only chooses keys and responses can store bytes that pass for a record.
    pub(crate) fn seed(&self) -> u64 {
        seed(self.store_id, &self.secret, self.base)
    }
}

/// The seed of the segment at `base`.
pub(crate) fn seed(store_id: u128, secret: &[u8; 32], base: u64) -> u64 {
    let mut seed = word::mix(base ^ store_id as u64);
    seed = word::mix(seed ^ (store_id >> 64) as u64);
    for part in secret.chunks_exact(8) {
        let part = part.first_chunk().copied().unwrap_or_default();
        seed = word::mix(seed ^ u64::from_le_bytes(part));
    }
    seed
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header() -> Header {
        Header {
            file_bytes: 1 << 20,
            store_id: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10,
            base: position::first_position(7),
            previous_base: position::first_position(6),
            previous_end: position::first_position(6) + 9000,
            watermark: position::first_position(6) + 800,
            created_ms: 1_700_000_000_000,
            secret: [0x5A; 32],
            copies_end: 0,
        }
    }

    #[test]
    fn a_header_reads_back() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_is_noticed_or_means_nothing() {
        let page = header().encode();
        for byte in 0..PAGE_BYTES {
            for bit in 0..8 {
                let mut flipped = page;
                flipped[byte] ^= 1 << bit;
                let expected = match byte {
                    0..8 => Err(PageFault::Damaged(Damage::Magic)),
                    8..FIELD_BYTES => Err(PageFault::Damaged(Damage::PageChecksum)),
                    _ => Ok(header()),
                };
                assert_eq!(
                    Header::decode(&flipped),
                    expected,
                    "bit {bit} of byte {byte}"
                );
            }
        }
    }

    #[test]
    fn a_short_page_and_a_later_version_are_told_apart() {
        let page = header().encode();
        for len in 0..PAGE_BYTES {
            let truncated = Err(PageFault::Damaged(Damage::Truncated));
            assert_eq!(Header::decode(&page[..len]), truncated);
        }
        assert_eq!(
            Header::decode(&with_version(page, 2)),
            Err(PageFault::Version(2))
        );
    }

    /// The page as a later version would write it.
    pub(crate) fn with_version(mut page: [u8; PAGE_BYTES], version: u32) -> [u8; PAGE_BYTES] {
        page[at::VERSION..at::VERSION + 4].copy_from_slice(&version.to_le_bytes());
        let crc = page_checksum(&page);
        page[at::CRC..at::CRC + 4].copy_from_slice(&crc.to_le_bytes());
        page
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        let base = header().base;
        type Change = fn(&mut Header);
        let cases: [(&str, Change); 13] = [
            ("end of the copies", |header| {
                header.copies_end = FIRST_RECORD
            }),
            ("end of the copies", |header| {
                header.copies_end = header.file_bytes / 8 + 1
            }),
            ("file bytes", |header| header.file_bytes = 4097),
            ("file bytes", |header| header.file_bytes = 4096),
            ("file bytes", |header| {
                header.file_bytes = SEGMENT_BYTES_MAX + 8
            }),
            ("base", |header| header.base = u64::MAX - 8),
            ("base", |header| {
                header.base = position::first_position(8) - 1000
            }),
            ("base", |header| header.base = 0),
            ("previous segment", |header| header.previous_base = u64::MAX),
            ("previous segment", |header| {
                header.previous_end = header.previous_base + 511
            }),
            ("previous segment", |header| {
                header.previous_end = header.base + 1
            }),
            ("previous segment", |header| {
                header.previous_end = header.base
            }),
            ("watermark", |header| header.watermark = header.base + 1),
        ];
        for (field, change) in cases {
            let mut changed = header();
            change(&mut changed);
            assert_eq!(
                Header::decode(&changed.encode()),
                Err(PageFault::Damaged(Damage::Field(field))),
                "{changed:?}"
            );
        }
        assert_eq!(header().base, base);
    }

    #[test]
    fn the_seed_depends_on_everything_it_binds() {
        let seed = header().seed();
        let changes: [fn(&mut Header); 4] = [
            |header| header.base += 1,
            |header| header.store_id ^= 1,
            |header| header.store_id ^= 1 << 100,
            |header| header.secret[31] ^= 1,
        ];
        for change in changes {
            let mut other = header();
            change(&mut other);
            assert_ne!(other.seed(), seed);
        }
    }
}
