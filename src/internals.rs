//! What the fuzz targets need of the inside: decoders on given bytes, and true checksums over wrong
//! contents. Exists only with the feature `testing`; no promise is made about it.

use crate::fs::simulated::SimulatedDisk;
use crate::log::header::{Header, PAGE_BYTES, PageWriter};
use crate::log::meta::MetaFile;
use crate::log::record::{COVERED_FROM, CRC_OFFSET, Contents, HEAD_BYTES, Kind, Record, checksum};
use crate::log::word::{self, Decoded, State};

/// The seed of every record that is fuzzed alone.
const SEED: u64 = 0x0123_4567_89AB_CDEF;

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

/// Parses a record; one that parses is written again and must then be the same record. Whether it
/// parsed.
pub fn record(bytes: &[u8]) -> bool {
    let Ok(record) = Record::parse(bytes, SEED) else {
        return false;
    };
    // What no writer makes, the writer refuses by an assertion.
    if record.kind != Kind::Complete && record.deadline_ms != 0 || record.token == 0 {
        return true;
    }
    let contents = Contents {
        kind: record.kind,
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
    };
    let mut again = contents.head(record.sequence, record.watermark).to_vec();
    for piece in contents.pieces() {
        again.extend_from_slice(piece);
    }
    again.resize(contents.words() as usize * 8, 0);
    assert!(again.len() >= HEAD_BYTES);
    seal_record(&mut again);
    let back = Record::parse(&again, SEED).map(|back| (back.sequence, back.watermark, back.token));
    assert_eq!(back, Ok((record.sequence, record.watermark, record.token)));
    let copy = Record::parse(&again, SEED).map(|copy| {
        (
            copy.kind,
            copy.key,
            copy.principal,
            copy.checkpoint,
            copy.response,
        )
    });
    let first = (
        record.kind,
        record.key,
        record.principal,
        record.checkpoint,
        record.response,
    );
    assert_eq!(copy, Ok(first), "one record, written twice");
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

/// Reads META of a disk and, where it is readable, updates it; the next reader must see the same.
pub fn meta(disk: &SimulatedDisk) -> bool {
    let Ok(mut file) = MetaFile::load(disk) else {
        return false;
    };
    let before = file.meta().clone();
    // The serial may be anything that passed the checksum.
    if file.update(|meta| meta.clean = false).is_err() {
        return true;
    }
    let after = MetaFile::load(disk).expect("META that was just written");
    assert_eq!(after.meta().store_id, before.store_id);
    assert_eq!(after.meta().epoch, before.epoch);
    assert!(!after.meta().clean, "the newer slot counts");
    true
}
