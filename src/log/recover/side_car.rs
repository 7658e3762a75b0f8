//! Whether a side-car may stand in for reading its segment.
//!
//! It may if it is whole, belongs to this very segment of this store, and the segment's file has the
//! length that it had when it was sealed. A side-car gets its name after its segment was synced
//! whole, so whatever it covers was durable.

use std::io;

use crate::corruption::Damage;
use crate::fs::{Storage, StorageFile};
use crate::log::index_file::{IndexFile, Summary};
use crate::log::recover::files::SegmentFile;
use crate::log::recover::finish::page_end;
use crate::log::recover::listing::side_car_name;
use crate::log::repair;
use crate::log::scan::Scan;
use crate::mem::Memory;

/// What became of a segment's side-car.
#[derive(Debug)]
pub(super) enum SideCar {
    /// There is none, or it is not asked.
    Missing,
    /// It is not believed.
    Bad(Damage),
    /// It stands for the segment.
    Good(IndexFile),
}

/// Reads the side-car of a segment whose header is true and whose place in the chain is known.
pub(super) fn read(storage: &dyn Storage, file: &SegmentFile) -> SideCar {
    read_with(storage, file, |open, len| {
        repair::read_through(open, len)?;
        open.map(false)
    })
}

/// The same, with the side-car's bytes got in another way.
pub(super) fn read_with(
    storage: &dyn Storage,
    file: &SegmentFile,
    bytes: impl FnOnce(&dyn StorageFile, u64) -> io::Result<Memory>,
) -> SideCar {
    let name = side_car_name(&file.name);
    match load(storage, &name, bytes) {
        Ok(Ok(index)) => match fault(index.summary(), file) {
            None => SideCar::Good(index),
            Some(damage) => SideCar::Bad(damage),
        },
        Ok(Err(damage)) => SideCar::Bad(damage),
        // Nothing depends on it that the segment does not say as well.
        Err(error) => {
            tracing::warn!(file = name, %error, "a side-car could not be read");
            SideCar::Bad(Damage::Unreadable)
        }
    }
}

fn load(
    storage: &dyn Storage,
    name: &str,
    bytes: impl FnOnce(&dyn StorageFile, u64) -> io::Result<Memory>,
) -> io::Result<Result<IndexFile, Damage>> {
    let open = storage.open(name)?;
    let len = open.len()?;
    if len == 0 || !len.is_multiple_of(8) {
        return Ok(Err(Damage::Truncated));
    }
    Ok(IndexFile::of_map(bytes(open.as_ref(), len)?))
}

/// Why a side-car is not that of this segment as it is now.
fn fault(summary: &Summary, file: &SegmentFile) -> Option<Damage> {
    if summary.store_id != file.header.store_id {
        return Some(Damage::ForeignSegment);
    }
    if summary.base != file.base || summary.segment_crc != file.header.checksum() {
        return Some(Damage::Misnamed);
    }
    // The last segment ends with its file; of the others the next one tells.
    let is_end = match file.expected_end {
        Some(expected) => summary.end == expected && file.len >= summary.end * 8,
        None => file.len == page_end(summary.end),
    };
    if !is_end || !file.len.is_multiple_of(8) || file.new_header {
        return Some(Damage::EndsEarly);
    }
    None
}

/// What a scan of the segment would have found.
pub(super) fn scan_of(summary: &Summary) -> Scan {
    Scan {
        end: summary.end,
        written_end: summary.end,
        spots: Vec::new(),
        records: summary.records,
        records_end: summary.records_end,
        // That there is a side-car says as much.
        watermark: summary.watermark.max(summary.base + summary.end),
        high_water_ms: summary.high_water_ms,
    }
}
