//! Opens that meet no damage: new, closed, killed.

use super::*;
use crate::fs::os::OsStorage;

#[test]
fn a_new_store_gets_an_identity_of_its_own() {
    let disk = SimulatedDisk::new();
    let recovered = open(&disk).expect("a new store");
    assert!(recovered.report.created && !recovered.report.meta_rebuilt);
    assert_eq!(seen(&recovered), []);
    assert_eq!((recovered.log_end, recovered.previous), (0, (0, 0)));
    let meta = recovered.meta.meta().clone();
    assert_eq!((meta.created_ms, meta.epoch), (1_000, 0));
    assert_ne!((meta.store_id, meta.secret), (0, [0; 32]));

    let again = open(&disk).expect("the same store");
    assert!(again.report.clean && !again.report.created);
    assert_eq!(again.meta.meta(), &meta);

    let other = open(&SimulatedDisk::new()).expect("another new store");
    assert_ne!(other.meta.meta().store_id, meta.store_id);
    assert_ne!(other.meta.meta().secret, meta.secret);
}

#[test]
fn a_closed_store_is_read_and_not_touched() {
    let (disk, records) = closed_store();
    let before = disk.operations();
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    assert!(recovered.report.clean);
    assert!(recovered.segments.len() >= 3);
    assert!(recovered.high_water_ms >= 34);
    assert_eq!(disk.operations(), before, "{:?}", disk.log());
}

/// A process that closes has the active segment mapped, so it may leave the cutting to the next.
#[test]
fn zeros_behind_the_end_of_a_closed_store_are_cut_off() {
    let (disk, records) = closed_store();
    let name = segment_names(&disk).pop().expect("a segment");
    let cut = disk.contents(&name).expect("a segment").len();
    edit(&disk, &name, |bytes| bytes.resize(10 * 4096, 0));
    for step in 0..3 {
        let crashed = fork(&disk);
        crashed.crash_at(step);
        assert_eq!(open(&crashed).is_ok(), step == 2);
        for seed in 0..4 {
            let crashed = crashed.crash_random(seed);
            let recovered = open(&crashed).expect("a store");
            assert!(recovered.report.clean);
            assert_eq!(seen(&recovered), records);
            assert_eq!(crashed.contents(&name).expect("a segment").len(), cut);
        }
    }
}

#[test]
fn a_store_closed_without_a_record_opens() {
    let disk = SimulatedDisk::new();
    Writer::open(&disk).close();
    let mut writer = Writer::open(&disk);
    let records = writer.append_some("x", 3);
    writer.close();
    // The active segment of this open holds nothing but its header.
    Writer::open(&disk).close();
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    assert_settled(&disk, &records);
}

#[test]
fn a_kill_loses_nothing() {
    for count in [0, 1, 20, 40] {
        let mut writer = Writer::open(&SimulatedDisk::new());
        let records = writer.append_some("killed", count);
        let disk = writer.kill();
        let recovered = open(&disk).expect("a store");
        assert_eq!(seen(&recovered), records);
        assert!(!recovered.report.clean);
        assert_eq!(recovered.report.torn_tail, None);
        drop(recovered);
        assert_settled(&disk, &records);
        // The end of the log was made durable by the recovery.
        assert_settled(&disk.crash_all_lost(), &records);
    }
}

#[test]
fn an_open_after_a_kill_leaves_only_what_holds_records() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    writer.append_some("x", 1);
    let disk = writer.kill();
    assert_eq!(segment_names(&disk).len(), 2);
    drop(open(&disk).expect("a store"));
    let names = segment_names(&disk);
    assert_eq!(names.len(), 1);
    assert_eq!(disk.contents(&names[0]).expect("a segment").len(), 8192);
}

#[test]
fn holes_are_skipped_and_become_padding() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let mut records = writer.append_some("before", 2);
    writer.leave_hole(3);
    records.extend(writer.append_some("between", 2));
    writer.leave_hole(200);
    // In the next segment.
    records.extend(writer.append_some("behind", 30));
    writer.leave_hole(17);
    let disk = writer.kill();
    let recovered = open(&disk).expect("a store");
    assert_eq!(recovered.report.holes, 3);
    assert_eq!(recovered.report.torn_tail, None);
    assert_eq!(seen(&recovered), records);
    drop(recovered);
    assert_settled(&disk, &records);
}

#[test]
fn what_a_dead_writer_copied_into_its_hole_is_wiped() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let hole = writer.leave_hole(30);
    let segment = writer.active();
    segment.copy_in((hole - segment.base) as usize * 8 + 40, b"half a secret");
    let records = vec![writer.append(b"sokey", b"done")];
    let (name, byte) = (
        segment_names(&writer.disk)[0].clone(),
        (hole % (1 << 36)) as usize * 8,
    );
    let disk = writer.kill();
    assert_eq!(seen(&open(&disk).expect("a store")), records);
    let bytes = disk.contents(&name).expect("a segment");
    assert_eq!(bytes[byte + 8..byte + 240], [0; 232]);
}

#[test]
fn segments_of_many_opens_are_read_in_order() {
    let disk = SimulatedDisk::new();
    let mut records = Vec::new();
    for open in 0..12 {
        let mut writer = Writer::open(&disk);
        records.extend(writer.append_some(&open.to_string(), 15));
        if open % 3 == 0 {
            writer.close();
        }
    }
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    assert_eq!(recovered.segments.len(), 12);
}

#[test]
fn a_watermark_in_an_empty_segment_is_no_loss() {
    // A flush of an idle store moves the watermark to the first record of an empty segment.
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let records = writer.append_some("x", 3);
    writer.sync();
    drop(writer);
    let mut writer = Writer::open(&disk);
    let watermark = writer.sync();
    writer
        .meta
        .update(|meta| meta.watermark = watermark)
        .expect("META");
    // A segment prepared since knows it, too.
    writer.prepare();
    let image = writer.kill();
    for cut in 0.. {
        let disk = fork(&image);
        disk.crash_at(cut);
        let done = open(&disk).is_ok();
        for seed in 0..8 {
            let crashed = disk.crash_random(seed);
            let recovered = open(&crashed).expect("a store");
            assert_eq!(seen(&recovered), records, "cut {cut}, seed {seed}");
            drop(recovered);
            assert_settled(&crashed, &records);
        }
        if done {
            break;
        }
    }
}

#[test]
fn leftovers_of_a_preparation_go() {
    let (disk, records) = closed_store();
    for name in [
        "META.tmp",
        "segment-0000009000000000.log.tmp",
        "segment-0000009000000000.idx.tmp",
    ] {
        disk.put(name, b"half");
    }
    assert_settled(&disk, &records);
    assert!(!disk.names().iter().any(|name| name.ends_with(".tmp")));
}

#[test]
fn the_clock_goes_on_from_the_latest_time_anything_mentions() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    writer
        .meta
        .update(|meta| meta.high_water_ms = 5_000_000)
        .expect("META");
    writer.now_ms = 7_000_000;
    writer.append_some("x", 1);
    let offset = writer.reserve(20);
    let segment = writer.active();
    let mut late = contents(b"solate", b"");
    late.ended_ms = 9_000_000;
    let bytes = encode_at(&late, segment.base + offset, 0, segment.seed);
    segment.copy_in(offset as usize * 8 + 8, &bytes[8..]);
    segment.finish(offset, late.words(), State::Committed);
    assert_eq!(
        open(&writer.kill()).expect("a store").high_water_ms,
        9_000_000
    );
}

/// The same on the operating system's files.
#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn files_of_the_system_are_recovered_like_simulated_ones() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let mut records = writer.append_some("x", 40);
    writer.leave_hole(12);
    records.extend(writer.append_some("y", 3));
    let disk = writer.kill();
    let directory = tempfile::tempdir().expect("a directory");
    for name in disk.names() {
        let contents = disk.contents(&name).expect("a file");
        std::fs::write(directory.path().join(&name), contents).expect("a file");
    }
    std::fs::create_dir(directory.path().join("lost+found")).expect("a directory");
    let storage = OsStorage::open(directory.path(), false).expect("a directory");
    let recovered = recover(&storage, false, 0).expect("a store");
    assert_eq!(seen(&recovered), records);
    assert_eq!(recovered.report.holes, 1);
    drop(recovered);

    // And as a closed store, with damage.
    let mut meta = MetaFile::load(&storage).expect("META");
    let again = recover(&storage, false, 0).expect("a store");
    let log_end = again.log_end;
    meta.update(|meta| {
        meta.clean = true;
        meta.watermark = log_end;
    })
    .expect("META");
    assert!(recover(&storage, false, 0).expect("a store").report.clean);
    let last = again.segments.last().expect("a segment").name.clone();
    drop(again);
    let mut bytes = std::fs::read(directory.path().join(&last)).expect("a segment");
    bytes[4096 + 50] ^= 1;
    std::fs::write(directory.path().join(&last), bytes).expect("a segment");
    corruption(recover(&storage, false, 0));
    let recovered = recover(&storage, true, 0).expect("a store");
    assert_eq!(seen(&recovered).len(), records.len() - 1);
    assert_eq!(recovered.report.kept_copies.len(), 1);
    drop(recovered);
    assert!(recover(&storage, false, 0).is_ok());
    std::fs::create_dir(directory.path().join("META.tmp")).expect("a directory");
    let foreign = recover(&storage, false, 0);
    assert!(
        matches!(foreign, Err(RecoverError::ForeignFile { .. })),
        "{foreign:?}"
    );
}
