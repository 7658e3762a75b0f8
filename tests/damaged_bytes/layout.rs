//! A reader of a store's files that was written from `docs/format.md` and shares no code with the
//! library: which byte belongs to what, and what was known to be durable.
//!
//! It reads undamaged files only.

use std::collections::BTreeMap;
use std::ops::Range;

/// The files of a store, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

pub const PAGE: usize = 4_096;
/// How much of a page is covered by its checksum.
pub const COVERED: usize = 512;

/// One record, as far as answers depend on it.
#[derive(Clone, Debug)]
pub struct Record {
    pub kind: u8,
    pub sequence: u64,
    pub token: u64,
    pub watermark: u64,
    pub created_ms: u64,
    pub started_ms: u64,
    pub ended_ms: u64,
    pub deadline_ms: u64,
    pub attempt: u32,
    pub scope: Vec<u8>,
    pub operation: Vec<u8>,
    pub id: Vec<u8>,
    pub principal: Option<Vec<u8>>,
    pub checkpoint: Vec<u8>,
    /// `None` where it was not kept.
    pub response: Option<Vec<u8>>,
}

/// A range of a segment: a record, or padding.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where in the file, in bytes.
    pub bytes: Range<usize>,
    /// Position of its first word.
    pub position: u64,
    pub record: Option<Record>,
}

/// A segment's file.
#[derive(Clone, Debug)]
pub struct Segment {
    pub name: String,
    pub watermark: u64,
    pub places: Vec<Place>,
}

/// All of a store.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Of the copy of META that counts.
    pub meta_watermark: u64,
    pub segments: Vec<Segment>,
}

pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"))
}

fn u16_at(bytes: &[u8], offset: usize) -> usize {
    usize::from(u16::from_le_bytes(
        bytes[offset..offset + 2].try_into().expect("2 bytes"),
    ))
}

impl Layout {
    pub fn read(files: &Files) -> Self {
        let meta = &files["META"];
        let newest = if u64_at(meta, 16) > u64_at(meta, PAGE + 16) {
            0
        } else {
            PAGE
        };
        let segments = files
            .iter()
            .filter(|(name, _)| name.ends_with(".log"))
            .map(|(name, bytes)| Segment::read(name, bytes))
            .collect();
        Self {
            meta_watermark: u64_at(meta, newest + 88),
            segments,
        }
    }

    /// Whether anything was written to a segment.
    pub fn has_records(segment: &[u8]) -> bool {
        u64_at(segment, PAGE) != 0
    }

    pub fn segment(&self, name: &str) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.name == name)
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.segments
            .iter()
            .flat_map(|segment| &segment.places)
            .filter_map(|place| place.record.as_ref())
    }

    /// The highest watermark recorded anywhere but in the lost records: below it, all was durable.
    pub fn watermark_without(&self, lost: impl Fn(&Record) -> bool) -> u64 {
        let headers = self.segments.iter().map(|segment| segment.watermark);
        let records = self
            .records()
            .filter(|record| !lost(record))
            .map(|record| record.watermark);
        headers.chain(records).fold(self.meta_watermark, u64::max)
    }
}

impl Segment {
    fn read(name: &str, bytes: &[u8]) -> Self {
        let base = u64_at(bytes, 40);
        let mut places = Vec::new();
        let mut at = PAGE;
        while at < bytes.len() {
            let word = u64_at(bytes, at);
            let (len, state) = ((word & 0xFF_FFFF) as usize * 8, word >> 24 & 0xFF);
            if len == 0 {
                break;
            }
            places.push(Place {
                bytes: at..at + len,
                position: base + at as u64 / 8,
                record: (state == 0xA6).then(|| Record::read(&bytes[at..at + len])),
            });
            at += len;
        }
        Self {
            name: name.to_owned(),
            watermark: u64_at(bytes, 64),
            places,
        }
    }

    /// Where the last range ends, in bytes.
    pub fn end(&self) -> usize {
        self.places.last().map_or(PAGE, |last| last.bytes.end)
    }
}

impl Record {
    fn read(bytes: &[u8]) -> Self {
        let lengths = [
            u16_at(bytes, 100),
            u16_at(bytes, 102),
            u16_at(bytes, 104),
            u16_at(bytes, 106),
            u32_at(bytes, 108) as usize,
            u32_at(bytes, 112) as usize,
        ];
        let mut at = 120;
        let parts = lengths.map(|len| {
            let part = bytes[at..at + len].to_vec();
            at += len;
            part
        });
        let [scope, operation, id, principal, checkpoint, response] = parts;
        let (kind, flags) = (bytes[12], bytes[13]);
        Self {
            kind,
            sequence: u64_at(bytes, 16),
            token: u64_at(bytes, 24),
            watermark: u64_at(bytes, 32),
            created_ms: u64_at(bytes, 40),
            started_ms: u64_at(bytes, 48),
            ended_ms: u64_at(bytes, 56),
            deadline_ms: u64_at(bytes, 64),
            attempt: u32_at(bytes, 96),
            scope,
            operation,
            id,
            principal: (flags & 2 != 0).then_some(principal),
            checkpoint,
            response: (kind == 3 && flags & 1 == 0).then_some(response),
        }
    }
}
