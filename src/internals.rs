//! What the fuzz targets need of the inside: decoders on given bytes, true checksums over wrong
//! contents, and a store whose identity is always the same. Exists only with the feature `testing`;
//! no promise is made about it.

use crate::domain::Domain;
use crate::fingerprint::Fingerprint;
use crate::fs::simulated::SimulatedDisk;
use crate::log::attached::attached;
use crate::log::header::{Header, PAGE_BYTES, PageWriter};
use crate::log::index_file::{self, Entry, IndexFile, Place, Summary};
use crate::log::meta::{Meta, MetaFile};
use crate::log::record::{COVERED_FROM, CRC_OFFSET, Contents, Kind, Record, checksum, make_copy};
use crate::log::segment::FIRST_RECORD;
use crate::log::word::{self, Decoded, State};
use crate::mem::Memory;

/// The seed of every record that is fuzzed alone.
const SEED: u64 = 0x0123_4567_89AB_CDEF;

/// Makes a store on an empty disk whose identity and secret are no chance: the same input always
/// gives the same files.
pub fn identify(disk: &SimulatedDisk, created_ms: u64) {
    let meta = Meta {
        store_id: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10,
        secret: std::array::from_fn(|at| at as u8),
        epoch: 0,
        high_water_ms: 0,
        watermark: 0,
        clean: true,
        snapshot: false,
        restored_at_ms: 0,
        created_ms,
        members: crate::log::members::Members::default(),
    };
    drop(MetaFile::create(disk, meta).expect("META on a disk that works"));
}

/// Gives bytes the checksum of a record.
pub fn seal_record(bytes: &mut [u8]) {
    seal_record_with(bytes, SEED);
}

fn seal_record_with(bytes: &mut [u8], seed: u64) {
    let Some(crc) = bytes.get(COVERED_FROM..).map(|rest| checksum(rest, seed)) else {
        return;
    };
    if let Some(field) = bytes.get_mut(CRC_OFFSET..COVERED_FROM) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

fn written(contents: &Contents<'_>, sequence: u64, watermark: u64, seed: u64) -> Vec<u8> {
    let mut bytes = contents.head(sequence, watermark).to_vec();
    for piece in contents.pieces() {
        bytes.extend_from_slice(piece);
    }
    bytes.resize(contents.words() as usize * 8, 0);
    seal_record_with(&mut bytes, seed);
    bytes
}

/// A true record of every kind, with and without the parts that are optional.
pub fn records() -> Vec<Vec<u8>> {
    let kinds = [
        Kind::Claim,
        Kind::Checkpoint,
        Kind::Complete,
        Kind::Release,
        Kind::Forget,
    ];
    let mut records = Vec::new();
    for kind in kinds {
        for full in [false, true] {
            let done = kind == Kind::Complete;
            let contents = Contents {
                kind,
                domain: Domain::Operations,
                is_dead: false,
                fingerprint: Fingerprint::of(b"request"),
                token: if full { 600 } else { 0 },
                ticket: if full { 520 } else { 0 },
                attempt: 1 + u32::from(full),
                created_ms: 10,
                started_ms: 20,
                ended_ms: if done { 30 } else { 0 },
                deadline_ms: if done { 40 } else { 0 },
                key: b"scope/operation/id",
                key_lengths: (6, 10, 2),
                principal: (done && full).then_some(&b"alice"[..]),
                checkpoint: if full { b"half way" } else { b"" },
                response: (done && full).then_some(&b"response"[..]),
                attached: &[],
            };
            records.push(written(&contents, 700, 512, SEED));
        }
    }
    records
}

/// Parses a record; one that parses is written again and must then be the same bytes, but for the
/// first word. Whether it parsed.
pub fn record(bytes: &[u8]) -> bool {
    let Ok(record) = Record::parse(bytes, SEED) else {
        return false;
    };
    if record.extension_bytes > 0 {
        // What is attached is written by itself.
        return attached(&record, bytes, record.sequence, SEED).all(|one| one.is_ok());
    }
    let contents = Contents {
        kind: record.kind,
        domain: record.domain,
        is_dead: record.is_dead,
        fingerprint: record.fingerprint,
        token: record.token,
        ticket: record.ticket,
        attempt: record.attempt,
        created_ms: record.created_ms,
        started_ms: record.started_ms,
        ended_ms: record.ended_ms,
        deadline_ms: record.deadline_ms,
        key: record.key,
        key_lengths: record.key_lengths,
        principal: record.principal,
        checkpoint: record.checkpoint,
        response: record.response,
        attached: &[],
    };
    let mut again = written(&contents, record.sequence, record.watermark, SEED);
    if record.is_copy {
        make_copy(&mut again, SEED);
    }
    assert_eq!(
        again.get(CRC_OFFSET..),
        bytes.get(CRC_OFFSET..),
        "a record that is written again is the same"
    );
    true
}

/// The key in a header's value.
#[cfg(feature = "http")]
pub fn http_key(value: &[u8], syntax: crate::http::KeySyntax, bytes_max: usize) -> Option<String> {
    crate::http::key_header::parse(value, syntax, bytes_max).ok()
}

/// The requests in what a client of the server sends, in pieces of a size; what is wrong with them.
#[cfg(feature = "serve")]
pub fn requests(bytes: &[u8], piece: usize) -> Result<Vec<Vec<bytes::Bytes>>, String> {
    crate::serve::request::read_all(bytes, piece)
}

/// A true side-car of no, one, two and many keys.
pub fn side_cars() -> Vec<Vec<u8>> {
    let kinds = [Kind::Complete, Kind::Claim, Kind::Release];
    let entry = |number: usize| Entry {
        reversed_hash: (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        place: Place::new(
            FIRST_RECORD + 40 * number as u64,
            kinds[number % 3],
            Domain::Operations,
        ),
    };
    let of = |count: usize| {
        let summary = Summary {
            store_id: 7,
            base: 3 << 36,
            segment_crc: 9,
            end: 8_192,
            records: 2 * count as u64,
            records_end: 8_000,
            watermark: (3 << 36) + 600,
            high_water_ms: 1_000,
        };
        let entries = (0..count).map(entry).collect();
        index_file::encode(summary, entries).bytes().to_vec()
    };
    [0, 1, 2, 60].map(of).into()
}

/// Gives bytes the checksums of a side-car.
pub fn seal_side_car(bytes: Vec<u8>) -> Vec<u8> {
    index_file::sealed(bytes)
}

/// Checks a side-car; one that passes says the same when it is written again. Whether it passed.
pub fn side_car(bytes: &[u8]) -> bool {
    let map = |bytes: &[u8]| {
        let memory = Memory::heap(bytes.len().div_ceil(8));
        memory.copy_in(0, bytes);
        memory
    };
    let entries =
        |file: &IndexFile| -> Vec<Entry> { (0..).map_while(|at| file.entry(at)).collect() };
    let Ok(file) = IndexFile::of_map(map(bytes)) else {
        return false;
    };
    let mut read = entries(&file);
    assert!(read.len() * 12 <= bytes.len(), "more entries than bytes");
    for (at, entry) in read.iter().enumerate() {
        assert!(file.first_from(entry.reversed_hash) <= at, "in order");
        assert!(entry.place.kind().is_some() && entry.place.offset() >= FIRST_RECORD);
    }
    let again = index_file::encode(file.summary().clone(), read.clone());
    let again = IndexFile::of_map(map(again.bytes())).expect("a side-car that was just written");
    assert_eq!(again.summary(), file.summary());
    read.sort_unstable();
    assert_eq!(entries(&again), read);
    true
}

/// The first word: whatever decodes is what encoding its parts gives.
pub fn first_word(raw: u64, position: u64) -> bool {
    match word::decode(raw, position, SEED) {
        Decoded::Word { words, state } => {
            assert_eq!(word::encode(words, state, position, SEED), raw);
            true
        }
        Decoded::Empty | Decoded::Invalid => false,
    }
}

/// A true first word at a position.
pub fn true_word(words: u64, position: u64) -> u64 {
    word::encode(words, State::Committed, position, SEED)
}

/// Gives a page a true checksum.
pub fn seal_page(page: &mut [u8]) {
    if let Some(page) = page.first_chunk_mut::<PAGE_BYTES>() {
        *page = PageWriter::from_page(*page).finish();
    }
}

/// Gives a segment file true words and checksums along its chain of lengths, as far as that goes.
pub fn seal_segment(file: &mut [u8]) {
    let Ok(header) = Header::decode(file) else {
        return;
    };
    let (seed, mut offset) = (header.seed(), PAGE_BYTES);
    while let Some(raw) = file.get(offset..).and_then(<[u8]>::first_chunk) {
        let raw = u64::from_le_bytes(*raw);
        let words = word::length(raw);
        let state = match (raw >> 24) as u8 {
            0x1D => State::Reserved,
            0x7B => State::Padding,
            _ => State::Committed,
        };
        let end = offset.saturating_add(words as usize * 8);
        let position = header.base.wrapping_add(offset as u64 / 8);
        let Some(bytes) = file.get_mut(offset..end).filter(|bytes| !bytes.is_empty()) else {
            return;
        };
        if state == State::Committed {
            seal_record_with(bytes, seed);
        }
        let first = word::encode(words, state, position, seed).to_le_bytes();
        if let Some(field) = bytes.first_chunk_mut() {
            *field = first;
        }
        offset = end;
    }
}

/// A record that stands somewhere in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its scope, operation and id.
    pub key: [Vec<u8>; 3],
    /// All that its checksum covers.
    pub covered: Vec<u8>,
    /// What it keeps for its key.
    pub response: Option<Vec<u8>>,
}

/// All that passes for a record anywhere in a segment's file, whether its place is one or not.
pub fn standing(file: &[u8]) -> Vec<Standing> {
    let Ok(header) = Header::decode(file) else {
        return Vec::new();
    };
    let seed = header.seed();
    let at = |offset: usize| {
        let raw = file.get(offset..)?.first_chunk()?;
        let words = word::length(u64::from_le_bytes(*raw)) as usize;
        let bytes = file.get(offset..offset.checked_add(words * 8)?)?;
        let record = Record::parse(bytes, seed).ok()?;
        let (scope, operation, _) = record.key_lengths;
        let (scope, rest) = record.key.split_at_checked(usize::from(scope))?;
        let (operation, id) = rest.split_at_checked(usize::from(operation))?;
        Some(Standing {
            key: [scope, operation, id].map(<[u8]>::to_vec),
            covered: bytes.get(COVERED_FROM..)?.to_vec(),
            response: record.response.map(<[u8]>::to_vec),
        })
    };
    let offsets = (PAGE_BYTES..file.len()).step_by(8);
    offsets.filter_map(at).collect()
}

/// Reads META of a disk and, where it is readable, updates it twice; the next reader must see
/// exactly that. Whether it was readable.
pub fn meta(disk: &SimulatedDisk) -> bool {
    let Ok(mut file) = MetaFile::load(disk) else {
        return false;
    };
    for clean in [false, true] {
        let mut expected = file.meta().clone();
        expected.clean = clean;
        expected.high_water_ms = expected.high_water_ms.wrapping_add(1);
        let changed = expected.clone();
        if file.update(|meta| *meta = changed).is_err() {
            // Only where the serial has come to its end.
            return true;
        }
        let next = MetaFile::load(disk).expect("META that was just written");
        assert_eq!(next.meta(), &expected, "the newer slot counts");
        assert_eq!(file.meta(), &expected);
        file = next;
    }
    assert_eq!(file.bad_slot(), None, "both slots were written again");
    true
}
