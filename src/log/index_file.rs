//! The side-car of a sealed segment: which keys have records in it, and where the newest of each
//! stands.
//!
//! It says what an open needs to know of a segment, so that the records need not be read. It is
//! optional: one that is missing, damaged or of another segment is made anew from the records. That
//! it was made at all says that its segment was durable as a whole.
//!
//! A page of fields is followed by two columns: the hashes of the keys, reversed bit by bit and in
//! ascending order, and for each the place and kind of its newest record. The low bits of a hash
//! choose the stripe, so the keys of one stripe stand together, whatever the number of stripes is.
//! The byte table is in `docs/format.md`. The newest record of a key is the one with the highest
//! token, then sequence: nothing here rests on the order of the file.
//!
//! Reading trusts nothing: the length of the file bounds the number of entries before they are
//! touched, and every place is checked against the segment's end.

use crate::corruption::Damage;
use crate::domain::Domain;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::log::header::{FIELD_BYTES, PAGE_BYTES, PageFault, PageReader, PageWriter};
use crate::log::record::{HEAD_BYTES, Kind};
use crate::log::segment::FIRST_RECORD;
use crate::mem::Memory;

const MAGIC: &[u8; 8] = b"ONCEKEYI";

/// Bytes of a hash and of a place.
const HASH_BYTES: usize = 8;
const PLACE_BYTES: usize = 4;
/// Bits of a place that hold the offset in words; the kind follows, the domain, then zeros.
const OFFSET_BITS: u32 = 23;
const KIND_BITS: u32 = 3;
const DOMAIN_BITS: u32 = 2;

const _: () = assert!(SEGMENT_BYTES_MAX / 8 <= 1 << OFFSET_BITS);

/// Offset of each field of the first page, in bytes.
mod at {
    pub(super) const FILE_BYTES: usize = 16;
    pub(super) const STORE_ID: usize = 24;
    pub(super) const BASE: usize = 40;
    pub(super) const END: usize = 48;
    pub(super) const SEGMENT_CRC: usize = 56;
    pub(super) const ENTRIES_CRC: usize = 60;
    pub(super) const ENTRIES: usize = 64;
    pub(super) const RECORDS: usize = 72;
    pub(super) const RECORDS_END: usize = 80;
    pub(super) const WATERMARK: usize = 88;
    pub(super) const HIGH_WATER: usize = 96;
    pub(super) const FIELDS_END: usize = 104;
}

// The table in docs/format.md, field by field: each begins where the one before it ends.
const _: () = {
    assert!(at::FILE_BYTES == 16 && at::STORE_ID == at::FILE_BYTES + 8);
    assert!(at::BASE == at::STORE_ID + 16 && at::END == at::BASE + 8);
    assert!(at::SEGMENT_CRC == at::END + 8 && at::ENTRIES_CRC == at::SEGMENT_CRC + 4);
    assert!(at::ENTRIES == at::ENTRIES_CRC + 4 && at::RECORDS == at::ENTRIES + 8);
    assert!(at::RECORDS_END == at::RECORDS + 8 && at::WATERMARK == at::RECORDS_END + 8);
    assert!(at::HIGH_WATER == at::WATERMARK + 8 && at::FIELDS_END == at::HIGH_WATER + 8);
    assert!(at::FIELDS_END == 104 && at::FIELDS_END <= FIELD_BYTES);
    assert!(HASH_BYTES == 8 && PLACE_BYTES == 4 && OFFSET_BITS == 23 && KIND_BITS == 3);
    assert!(DOMAIN_BITS == 2 && OFFSET_BITS + KIND_BITS + DOMAIN_BITS <= 32);
};

/// What a side-car says about its segment as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) store_id: u128,
    /// Position of the segment's word 0.
    pub(crate) base: u64,
    /// Checksum of the segment's header page.
    pub(crate) segment_crc: u32,
    /// Word offset behind the last range of the segment.
    pub(crate) end: u64,
    /// Records in the segment.
    pub(crate) records: u64,
    /// Word offset behind the last of them.
    pub(crate) records_end: u64,
    /// The highest watermark that any of them knew.
    pub(crate) watermark: u64,
    /// The latest store time in ms that any of them mentions as past.
    pub(crate) high_water_ms: u64,
}

/// The newest record of one key in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// The hash of the key with its bits in reverse order.
    pub(crate) reversed_hash: u64,
    pub(crate) place: Place,
}

/// Where a record stands in its segment, and of which kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u32);

impl Place {
    pub(crate) fn new(offset: u64, kind: Kind, domain: Domain) -> Self {
        assert!(
            offset < 1 << OFFSET_BITS,
            "offset {offset} outside a segment"
        );
        let kind = kind as u32 | (domain as u32) << KIND_BITS;
        Self(offset as u32 | kind << OFFSET_BITS)
    }

    /// In words.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.0 & ((1 << OFFSET_BITS) - 1))
    }

    /// `None` for what no writer makes.
    pub(crate) fn kind(self) -> Option<Kind> {
        Kind::from_byte((self.0 >> OFFSET_BITS) as u8 & ((1 << KIND_BITS) - 1))
    }

    /// `None` for what no writer makes.
    pub(crate) fn domain(self) -> Option<Domain> {
        u8::try_from(self.0 >> (OFFSET_BITS + KIND_BITS))
            .ok()
            .and_then(Domain::from_byte)
    }
}

/// A side-car that was checked, or made just now.
#[derive(Debug)]
pub(crate) struct IndexFile {
    summary: Summary,
    entries: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Memory),
    Made(Vec<u8>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(memory) => memory.bytes(0, memory.words() * 8),
            Self::Made(bytes) => bytes,
        }
    }
}

impl IndexFile {
    /// Takes a file over, if all of it is as a writer makes it.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn of_map(memory: Memory) -> Result<Self, Damage> {
        let bytes = Bytes::Mapped(memory);
        let (summary, entries) = check(bytes.get())?;
        Ok(Self {
            summary,
            entries,
            bytes,
        })
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The file.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get()
    }

    /// One entry, in the order of the reversed hashes; `None` behind the last.
    pub(crate) fn entry(&self, at: usize) -> Option<Entry> {
        if at >= self.entries {
            return None;
        }
        Some(Entry {
            reversed_hash: hash_at(self.bytes(), at)?,
            place: place_at(self.bytes(), self.entries, at)?,
        })
    }

    /// The first entry whose reversed hash is not below `least`.
    pub(crate) fn first_from(&self, least: u64) -> usize {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            match hash_at(self.bytes(), middle) {
                Some(hash) if hash < least => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }
}

fn hash_at(bytes: &[u8], at: usize) -> Option<u64> {
    let chunk = bytes.get(PAGE_BYTES + at * HASH_BYTES..)?.first_chunk()?;
    Some(u64::from_le_bytes(*chunk))
}

fn place_at(bytes: &[u8], entries: usize, at: usize) -> Option<Place> {
    let places = bytes.get(PAGE_BYTES + entries * HASH_BYTES..)?;
    let chunk = places.get(at * PLACE_BYTES..)?.first_chunk()?;
    Some(Place(u32::from_le_bytes(*chunk)))
}

/// Bytes of a file with this many entries, a whole number of words.
fn file_bytes(entries: usize) -> usize {
    PAGE_BYTES + (entries * (HASH_BYTES + PLACE_BYTES)).next_multiple_of(8)
}

/// Checks a file of any origin against itself.
fn check(bytes: &[u8]) -> Result<(Summary, usize), Damage> {
    let page = PageReader::open(MAGIC, bytes).map_err(|fault| match fault {
        PageFault::Damaged(damage) => damage,
        PageFault::Version(_) => Damage::Field("version"),
    })?;
    if page.u64(at::FILE_BYTES) != bytes.len() as u64 {
        return Err(Damage::Truncated);
    }
    let field = |name, holds: bool| match holds {
        true => Ok(()),
        false => Err(Damage::Field(name)),
    };
    let entries_max = (bytes.len() - PAGE_BYTES) / (HASH_BYTES + PLACE_BYTES);
    let entries = usize::try_from(page.u64(at::ENTRIES))
        .ok()
        .filter(|entries| *entries <= entries_max && file_bytes(*entries) == bytes.len())
        .ok_or(Damage::Field("number of entries"))?;
    let columns = bytes.get(PAGE_BYTES..).unwrap_or_default();
    if page.u32(at::ENTRIES_CRC) != crc32fast::hash(columns) {
        return Err(Damage::Checksum);
    }
    let summary = Summary {
        store_id: u128::from_le_bytes(page.field(at::STORE_ID)),
        base: page.u64(at::BASE),
        segment_crc: page.u32(at::SEGMENT_CRC),
        end: page.u64(at::END),
        records: page.u64(at::RECORDS),
        records_end: page.u64(at::RECORDS_END),
        watermark: page.u64(at::WATERMARK),
        high_water_ms: page.u64(at::HIGH_WATER),
    };
    let end = summary.end;
    let is_end = (FIRST_RECORD..=SEGMENT_BYTES_MAX / 8).contains(&end);
    field("end", is_end && summary.base.checked_add(end).is_some())?;
    let is_records_end = (FIRST_RECORD..=end).contains(&summary.records_end);
    field("end of the records", is_records_end)?;
    let records_max = (summary.records_end - FIRST_RECORD) / RECORD_WORDS_MIN;
    let is_count = entries as u64 <= summary.records && summary.records <= records_max;
    field("number of records", is_count)?;
    check_columns(columns, entries, summary.records_end)?;
    Ok((summary, entries))
}

/// A record has a head and a key.
const RECORD_WORDS_MIN: u64 = HEAD_BYTES as u64 / 8 + 1;

fn check_columns(columns: &[u8], entries: usize, records_end: u64) -> Result<(), Damage> {
    let split = columns.split_at_checked(entries * HASH_BYTES);
    let (hashes, rest) = split.ok_or(Damage::Truncated)?;
    let split = rest.split_at_checked(entries * PLACE_BYTES);
    let (places, padding) = split.ok_or(Damage::Truncated)?;
    let (hashes, _) = hashes.as_chunks::<HASH_BYTES>();
    if !hashes.is_sorted_by_key(|hash| u64::from_le_bytes(*hash)) {
        return Err(Damage::Field("order"));
    }
    let (places, _) = places.as_chunks::<PLACE_BYTES>();
    let is_place = |bytes: &[u8; PLACE_BYTES]| {
        let place = Place(u32::from_le_bytes(*bytes));
        place.kind().is_some()
            && place.domain().is_some()
            && place.offset() >= FIRST_RECORD
            && place.offset() + RECORD_WORDS_MIN <= records_end
    };
    if !places.iter().all(is_place) {
        return Err(Damage::Field("place"));
    }
    if padding.iter().any(|byte| *byte != 0) {
        return Err(Damage::Field("padding"));
    }
    Ok(())
}

/// Writes the file; the entries in any order.
pub(crate) fn encode(summary: Summary, mut entries: Vec<Entry>) -> IndexFile {
    entries.sort_unstable();
    let mut bytes = Vec::with_capacity(file_bytes(entries.len()));
    bytes.resize(PAGE_BYTES, 0);
    let hashes = entries.iter().map(|entry| entry.reversed_hash);
    hashes.for_each(|hash| bytes.extend_from_slice(&hash.to_le_bytes()));
    let places = entries.iter().map(|entry| entry.place.0);
    places.for_each(|place| bytes.extend_from_slice(&place.to_le_bytes()));
    bytes.resize(file_bytes(entries.len()), 0);
    let (page, columns) = bytes.split_at_mut(PAGE_BYTES);
    let mut fields = PageWriter::new(MAGIC);
    let file_bytes = (PAGE_BYTES + columns.len()) as u64;
    fields.put(at::FILE_BYTES, &file_bytes.to_le_bytes());
    fields.put(at::STORE_ID, &summary.store_id.to_le_bytes());
    fields.put(at::BASE, &summary.base.to_le_bytes());
    fields.put(at::END, &summary.end.to_le_bytes());
    fields.put(at::SEGMENT_CRC, &summary.segment_crc.to_le_bytes());
    fields.put(at::ENTRIES_CRC, &crc32fast::hash(columns).to_le_bytes());
    fields.put(at::ENTRIES, &(entries.len() as u64).to_le_bytes());
    fields.put(at::RECORDS, &summary.records.to_le_bytes());
    fields.put(at::RECORDS_END, &summary.records_end.to_le_bytes());
    fields.put(at::WATERMARK, &summary.watermark.to_le_bytes());
    fields.put(at::HIGH_WATER, &summary.high_water_ms.to_le_bytes());
    page.copy_from_slice(&fields.finish());
    IndexFile {
        summary,
        entries: entries.len(),
        bytes: Bytes::Made(bytes),
    }
}

/// Gives bytes the checksums of a side-car.
#[cfg(any(all(test, not(oncekey_loom)), feature = "testing"))]
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some((page, columns)) = bytes.split_first_chunk_mut::<PAGE_BYTES>() {
        let mut fields = PageWriter::from_page(*page);
        fields.put(at::ENTRIES_CRC, &crc32fast::hash(columns).to_le_bytes());
        *page = fields.finish();
    }
    bytes
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests;
