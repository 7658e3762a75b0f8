//! Recovery on a simulated disk. A [`Writer`] lays logs out with the code that ships (prepare,
//! reserve, commit), without the threads of a running store.

mod bytes;
mod chain;
mod crashes;
mod errors;
mod opens;

use super::*;
use crate::fs::Storage;
use crate::fs::simulated::SimulatedDisk;
use crate::log::header::Header;
use crate::log::position;
use crate::log::prepare::{Zeroing, prepare_segment};
use crate::log::record::tests::contents;
use crate::log::record::{COVERED_FROM, CRC_OFFSET, Contents, checksum};
use crate::log::segment::Attempt;

/// Bytes of the segments, small so that every byte can be tried.
const SEGMENT_BYTES: u64 = 8192;

/// A record as far as the tests tell them apart: sequence, key, response.
type Seen = (u64, Vec<u8>, Vec<u8>);

/// A process that has the store open.
struct Writer {
    disk: SimulatedDisk,
    meta: MetaFile,
    segment_bytes: u64,
    /// Segments of this open, the one that is written first.
    segments: Vec<Segment>,
    next_base: u64,
    previous: (u64, u64),
    watermark: u64,
    now_ms: u64,
}

impl Writer {
    /// Opens the store as the engine does, with one segment to write and one prepared.
    fn open(disk: &SimulatedDisk) -> Self {
        Self::open_with(disk, SEGMENT_BYTES)
    }

    /// The same with segments of another size.
    fn open_with(disk: &SimulatedDisk, segment_bytes: u64) -> Self {
        let recovered = open(disk).expect("a store");
        let mut meta = recovered.meta;
        let epoch = position::next_epoch(meta.meta().epoch).expect("an epoch");
        meta.update(|meta| {
            meta.epoch = epoch;
            meta.clean = false;
        })
        .expect("META");
        let mut writer = Self {
            disk: disk.clone(),
            meta,
            segment_bytes,
            segments: Vec::new(),
            next_base: position::first_position(epoch),
            previous: recovered.previous,
            watermark: recovered.log_end,
            now_ms: recovered.high_water_ms + 1,
        };
        writer.prepare();
        writer.prepare();
        writer
    }

    fn prepare(&mut self) {
        let meta = self.meta.meta();
        let header = Header {
            file_bytes: self.segment_bytes,
            store_id: meta.store_id,
            base: self.next_base,
            previous_base: self.previous.0,
            previous_end: self.previous.1,
            watermark: self.watermark,
            created_ms: self.now_ms,
            secret: meta.secret,
            copies_end: 0,
        };
        let segment = prepare_segment(&self.disk, &header, 0, Zeroing::Ahead).expect("a segment");
        self.previous = (segment.base, segment.end());
        self.next_base = segment.end();
        self.segments.push(segment);
    }

    /// The segment being written: the one before the prepared one.
    fn active(&self) -> &Segment {
        &self.segments[self.segments.len() - 2]
    }

    fn reserve(&mut self, words: u64) -> u64 {
        loop {
            match self.active().try_reserve(words) {
                Attempt::Reserved(offset) => return offset,
                Attempt::NoRoom { offset, remainder } => {
                    self.active().try_pad(offset, remainder);
                    self.prepare();
                }
            }
        }
    }

    /// Appends a record that knows of the writer's watermark.
    fn append(&mut self, key: &[u8], response: &[u8]) -> Seen {
        self.now_ms += 1;
        let contents = contents(key, response);
        let offset = self.reserve(contents.words());
        let segment = self.active();
        let sequence = segment.base + offset;
        let bytes = encode_at(&contents, sequence, self.watermark, segment.seed);
        segment.copy_in(offset as usize * 8 + 8, &bytes[8..]);
        segment.finish(offset, contents.words(), State::Committed);
        (sequence, key.to_vec(), response.to_vec())
    }

    /// Appends `count` records of different lengths.
    fn append_some(&mut self, name: &str, count: usize) -> Vec<Seen> {
        (0..count)
            .map(|number| {
                let key = format!("so{name}-{number}");
                self.append(key.as_bytes(), &vec![b'r'; number * 13 % 70])
            })
            .collect()
    }

    /// Reserves a range and leaves it.
    fn leave_hole(&mut self, words: u64) -> u64 {
        let offset = self.reserve(words);
        self.active().base + offset
    }

    fn tail(&self) -> u64 {
        self.active().tail()
    }

    /// Makes everything durable; later records know of it.
    fn sync(&mut self) -> u64 {
        for segment in &self.segments {
            segment.sync().expect("a sync");
        }
        self.watermark = self.tail();
        self.watermark
    }

    /// Closes the store properly.
    fn close(mut self) {
        self.sync();
        let tail = self.tail();
        let active = self.active();
        let (name, base) = (active.name.clone(), active.base);
        let unused = self
            .segments
            .pop()
            .expect("a prepared segment")
            .name
            .clone();
        self.segments.clear();
        self.disk.remove(&unused).expect("a removal");
        let file = self.disk.open(&name).expect("a segment");
        file.set_len(((tail - base) * 8).next_multiple_of(4096))
            .expect("a cut");
        file.sync_data().expect("a sync");
        self.disk.sync_directory().expect("a sync");
        let now_ms = self.now_ms;
        self.meta
            .update(|meta| {
                meta.clean = true;
                meta.watermark = tail;
                meta.high_water_ms = now_ms;
            })
            .expect("META");
    }

    /// The disk after a kill: everything is there, synced or not.
    fn kill(self) -> SimulatedDisk {
        self.disk.crash_none_lost()
    }
}

/// A record's bytes from the second word on, after eight zeros.
fn encode_at(contents: &Contents<'_>, sequence: u64, watermark: u64, seed: u64) -> Vec<u8> {
    let mut bytes = contents.head(sequence, watermark).to_vec();
    for piece in contents.pieces() {
        bytes.extend_from_slice(piece);
    }
    bytes.resize(contents.words() as usize * 8, 0);
    let crc = checksum(&bytes[COVERED_FROM..], seed);
    bytes[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn open(disk: &SimulatedDisk) -> Result<Recovered, RecoverError> {
    recover(disk, false, 1_000)
}

fn salvage(disk: &SimulatedDisk) -> Recovered {
    recover(disk, true, 1_000).expect("a salvage always ends well")
}

/// All records of a recovered log; checks what must hold for every one.
fn seen(recovered: &Recovered) -> Vec<Seen> {
    let mut records = Vec::new();
    for (number, segment) in recovered.segments.iter().enumerate() {
        assert_eq!(usize::from(segment.number), number);
        walk(segment, &mut |offset, _, record| {
            assert_eq!(record.sequence, segment.base + offset);
            assert!(record.sequence < recovered.log_end);
            let response = record.response.unwrap_or_default().to_vec();
            records.push((record.sequence, record.key.to_vec(), response));
        })
        .expect("a recovered segment");
    }
    assert_eq!(recovered.report.records, records.len() as u64);
    assert_eq!(recovered.report.segments, recovered.segments.len() as u64);
    let end = recovered
        .segments
        .last()
        .map_or((0, 0), |last| (last.base, last.tail()));
    assert_eq!((recovered.previous, recovered.log_end), (end, end.1));
    assert!(position::epoch_of(recovered.log_end) <= recovered.meta.meta().epoch);
    assert!(recovered.meta.meta().watermark <= recovered.log_end);
    records
}

/// Opens once more: nothing is left to repair but the mark that the store was not closed, and the
/// answers are the same.
fn assert_settled(disk: &SimulatedDisk, expected: &[Seen]) {
    let again = open(disk).expect("a repaired store");
    assert_eq!(seen(&again), expected);
    assert_eq!(again.report.torn_tail, None);
    assert_eq!(again.report.holes, 0);
    assert_eq!(again.report.meta_slot, None);
    assert!(again.report.losses.is_empty());
}

fn corruption(outcome: Result<Recovered, RecoverError>) -> Corruption {
    match outcome {
        Err(RecoverError::Corrupt(corruption)) => corruption,
        other => panic!("no corruption: {other:?}"),
    }
}

/// A closed store of two opens with some records in three segments, and the records.
fn closed_store() -> (SimulatedDisk, Vec<Seen>) {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("first", 9);
    writer.close();
    let mut writer = Writer::open(&disk);
    records.extend(writer.append_some("second", 25));
    writer.close();
    (disk, records)
}

/// Changes a file's bytes behind the store's back.
fn edit(disk: &SimulatedDisk, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = disk.contents(name).expect("a file");
    change(&mut bytes);
    disk.put(name, &bytes);
}

/// Names of the segments, in order.
fn segment_names(disk: &SimulatedDisk) -> Vec<String> {
    disk.names()
        .into_iter()
        .filter(|name| name.ends_with(".log"))
        .collect()
}

/// The segment and byte where a record stands.
fn place(disk: &SimulatedDisk, sequence: u64) -> (String, usize) {
    let found = segment_names(disk).into_iter().rev().find_map(|name| {
        let base = u64::from_str_radix(name.strip_prefix("segment-")?.strip_suffix(".log")?, 16);
        let base = base.ok()?;
        (base <= sequence).then(|| (name, (sequence - base) as usize * 8))
    });
    found.expect("a segment")
}

/// Everything but the records of the sequences in `without`.
fn all_without(records: &[Seen], without: &[u64]) -> Vec<Seen> {
    records
        .iter()
        .filter(|record| !without.contains(&record.0))
        .cloned()
        .collect()
}

fn fork(disk: &SimulatedDisk) -> SimulatedDisk {
    disk.crash_none_lost()
}
