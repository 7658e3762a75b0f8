//! The border of an epoch, which a store reaches once in 512 GiB.

use super::*;
use crate::fs::simulated::SimulatedDisk;
use crate::log::meta::Meta;

const SEGMENT_BYTES: u64 = 64 << 10;

/// A plan whose next segment would reach `over` words into the epoch behind `epoch`.
fn plan(disk: &SimulatedDisk, epoch: u64, over: u64) -> Plan {
    let meta = Meta {
        epoch,
        ..Meta::fresh(77).expect("random bytes")
    };
    let behind = position::first_position(epoch + 1);
    Plan {
        meta: MetaFile::create(disk, meta).expect("META"),
        copies_start: position::first_position(epoch - 1),
        next_base: behind + over - SEGMENT_BYTES / 8,
        previous: (0, 0),
        segment_bytes: SEGMENT_BYTES,
        disk_bytes_max: u64::MAX,
        zeroing: Zeroing::Ahead,
    }
}

fn prepare(plan: &mut Plan, disk: &SimulatedDisk) -> io::Result<Arc<Segment>> {
    plan.prepare(disk, &Segments::new(), 0, 78)
}

/// The newest epoch of which there is a segment.
fn newest_epoch(disk: &SimulatedDisk) -> u64 {
    let base = |name: &String| {
        let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let bases = disk.names().iter().filter_map(base).max();
    bases.map_or(0, position::epoch_of)
}

#[test]
fn a_segment_that_would_reach_into_the_next_epoch_begins_it_and_meta_knows_first() {
    let mut made = 0;
    for number in 0.. {
        let disk = SimulatedDisk::with_granule(512);
        let mut plan = plan(&disk, 5, 1);
        disk.crash_at(disk.operations() + number);
        let prepared = prepare(&mut plan, &disk);
        for image in [disk.crash_all_lost(), disk.crash_none_lost()]
            .into_iter()
            .chain((0..8).map(|seed| disk.crash_random(seed)))
        {
            let meta = MetaFile::load(&image).expect("META");
            assert!(
                newest_epoch(&image) <= meta.meta().epoch,
                "a segment of an epoch that the next open would begin, cut off at {number}"
            );
            made += u64::from(newest_epoch(&image) == 6);
        }
        if let Ok(segment) = prepared {
            assert_eq!(segment.base, position::first_position(6));
            assert_eq!(newest_epoch(&disk.crash_all_lost()), 6);
            break;
        }
    }
    assert!(made > 0);
}

#[test]
fn the_next_segment_of_an_epoch_follows_the_one_before_and_is_linked_to_it() {
    let disk = SimulatedDisk::new();
    // All but one word of a third segment would fit.
    let mut plan = plan(&disk, 5, 1);
    plan.next_base -= 2 * SEGMENT_BYTES / 8;
    let first_base = plan.next_base;
    for number in 0..2 {
        let segment = prepare(&mut plan, &disk).expect("a segment");
        assert_eq!(segment.base, first_base + number * SEGMENT_BYTES / 8);
        assert_eq!(plan.previous, (segment.base, segment.end()));
        assert_eq!(plan.meta.meta().epoch, 5, "nothing to write down");
    }
    let segment = prepare(&mut plan, &disk).expect("a segment");
    assert_eq!(segment.base, position::first_position(6));
    assert_eq!(plan.meta.meta().epoch, 6);
}

#[test]
fn behind_the_last_epoch_no_segment_is_made() {
    let disk = SimulatedDisk::new();
    let mut plan = plan(&disk, position::EPOCH_MAX - 1, 1);
    let last = |meta: &mut Meta| meta.epoch = position::EPOCH_MAX;
    plan.meta.update(last).expect("META");
    plan.next_base = position::first_position(position::EPOCH_MAX);
    plan.next_base += (1 << 36) - SEGMENT_BYTES / 8 + 1;
    prepare(&mut plan, &disk).expect_err("all epochs are used up");
    assert_eq!(newest_epoch(&disk), 0);
}
