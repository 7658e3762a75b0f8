//! Whole files that are missing, foreign, renamed, copied, swapped, old or of another version.

use super::*;
use crate::log::header::PAGE_BYTES;
use crate::log::header::tests::with_version;
use crate::log::prepare::segment_name;

fn swap_in(disk: &SimulatedDisk, name: &str, contents: &[u8]) {
    disk.put(name, contents);
}

#[test]
fn a_missing_segment_is_named_and_salvage_goes_on_without_it() {
    let (image, records) = closed_store();
    let names = segment_names(&image);
    assert!(names.len() >= 3);
    for (index, name) in names.iter().enumerate() {
        let disk = fork(&image);
        disk.remove(name).expect("a removal");
        let corruption = corruption(open(&disk));
        let last = index + 1 == names.len();
        if last {
            assert_eq!(corruption.damage, Damage::EndsEarly);
        } else {
            assert_eq!(
                (corruption.damage, &corruption.file),
                (Damage::MissingSegment, name)
            );
        }
        let lost: Vec<u64> = records
            .iter()
            .map(|record| record.0)
            .filter(|sequence| &place(&image, *sequence).0 == name)
            .collect();
        assert!(!lost.is_empty());
        for sequence in &lost {
            assert!((corruption.first_sequence..=corruption.last_sequence).contains(sequence));
        }
        let expected = all_without(&records, &lost);
        let recovered = salvage(&disk);
        assert_eq!(seen(&recovered), expected);
        assert_eq!(recovered.report.losses, [corruption]);
        drop(recovered);
        assert_settled(&disk, &expected);
    }
}

#[test]
fn a_log_without_any_segment_is_no_new_store() {
    let (disk, _) = closed_store();
    for name in segment_names(&disk) {
        disk.remove(&name).expect("a removal");
    }
    assert_eq!(corruption(open(&disk)).damage, Damage::EndsEarly);
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), []);
    assert_eq!(recovered.report.losses.len(), 1);
    assert!(
        recovered.meta.meta().epoch >= 2,
        "no position is given out again"
    );
    drop(recovered);
    assert_settled(&disk, &[]);
}

#[test]
fn a_copied_or_swapped_segment_is_noticed() {
    let (image, records) = closed_store();
    let names = segment_names(&image);
    let contents = |name: &str| image.contents(name).expect("a file");

    // A copy under a name that is free.
    let disk = fork(&image);
    swap_in(&disk, "segment-0000009000000000.log", &contents(&names[0]));
    let found = corruption(open(&disk));
    assert_eq!(found.damage, Damage::Misnamed);
    assert_eq!(found.file, "segment-0000009000000000.log");
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), records);
    assert_eq!(
        recovered.report.kept_copies,
        ["segment-0000009000000000.damaged"]
    );
    assert_eq!(recovered.meta.meta().epoch, 2, "a name alone is no epoch");
    drop(recovered);
    assert_settled(&disk, &records);

    // Two in each other's place: both are set aside, nothing is mixed up.
    let disk = fork(&image);
    swap_in(&disk, &names[0], &contents(&names[1]));
    swap_in(&disk, &names[1], &contents(&names[0]));
    let found = corruption(open(&disk));
    assert_eq!((found.damage, &found.file), (Damage::Misnamed, &names[0]));
    let recovered = salvage(&disk);
    let lost = |record: &&Seen| names[..2].contains(&place(&image, record.0).0);
    let expected: Vec<Seen> = records.iter().filter(|each| !lost(each)).cloned().collect();
    assert_eq!(seen(&recovered), expected);
    assert_eq!(
        recovered.report.kept_copies.len(),
        2 + 1,
        "and a copy of the header that changed"
    );
    drop(recovered);
    assert_settled(&disk, &expected);
}

#[test]
fn another_stores_segment_is_noticed() {
    let (image, records) = closed_store();
    let (other, _) = closed_store();
    let names = segment_names(&image);
    for name in &names {
        let disk = fork(&image);
        swap_in(&disk, name, &other.contents(name).expect("the same name"));
        let found = corruption(open(&disk));
        assert_eq!((found.damage, &found.file), (Damage::ForeignSegment, name));
        let lost = |record: &&Seen| &place(&image, record.0).0 == name;
        let expected: Vec<Seen> = records.iter().filter(|each| !lost(each)).cloned().collect();
        let recovered = salvage(&disk);
        assert_eq!(seen(&recovered), expected);
        drop(recovered);
        assert_settled(&disk, &expected);
    }
    // With the other store's META, all of them are foreign.
    let disk = fork(&image);
    swap_in(&disk, "META", &other.contents("META").expect("META"));
    assert_eq!(corruption(open(&disk)).damage, Damage::ForeignSegment);
}

#[test]
fn an_older_copy_of_a_segment_is_noticed() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("old", 5);
    let names = segment_names(&disk);
    let old = disk.contents(&names[0]).expect("a segment");
    records.extend(writer.append_some("new", 5));
    writer.sync();
    records.extend(writer.append_some("later", 20));
    let killed = writer.kill();
    let at_close = {
        let mut writer = Writer::open(&fork(&killed));
        writer.append_some("x", 1);
        let disk = writer.disk.clone();
        writer.close();
        disk
    };
    for disk in [killed, at_close] {
        swap_in(&disk, &names[0], &old);
        let found = corruption(open(&disk));
        assert_eq!((found.damage, &found.file), (Damage::EndsEarly, &names[0]));
        assert_eq!(found.first_sequence, records[5].0);
        let recovered = salvage(&disk);
        let found = seen(&recovered);
        assert_eq!(found[..5], records[..5]);
        assert_eq!(recovered.report.losses.len(), 1);
        drop(recovered);
        assert_settled(&disk, &found);
    }
}

/// A segment that an earlier recovery discarded does not come back, should its file.
#[test]
fn a_discarded_segment_that_reappears_is_noticed() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let records = writer.append_some("x", 60);
    drop(writer);
    let names = segment_names(&disk);
    let late = disk.contents(&names[1]).expect("a segment");
    let (name, byte) = place(&disk, records[4].0);
    edit(&disk, &name, |bytes| bytes[byte + 100] ^= 4);
    // Discards all but the first segment, and goes on.
    let mut writer = Writer::open(&disk);
    let mut expected = records[..4].to_vec();
    expected.extend(writer.append_some("y", 3));
    writer.close();
    assert_settled(&disk, &expected);

    swap_in(&disk, &names[1], &late);
    let found = corruption(open(&disk));
    assert_eq!((found.damage, &found.file), (Damage::Unlinked, &names[1]));
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), expected);
    drop(recovered);
    assert_settled(&disk, &expected);
}

#[test]
fn a_later_version_is_refused_even_by_salvage() {
    let (image, _) = closed_store();
    for name in image.names() {
        for slot in [0, 4096] {
            if slot > 0 && name != "META" {
                continue;
            }
            let disk = fork(&image);
            edit(&disk, &name, |bytes| {
                let page: [u8; 4096] = bytes[slot..slot + 4096].try_into().expect("a page");
                bytes[slot..slot + 4096].copy_from_slice(&with_version(page, 7));
            });
            for salvage in [false, true] {
                match recover(&disk, salvage, 0) {
                    Err(RecoverError::Version {
                        file,
                        found: 7,
                        supported: 1,
                    }) => {
                        assert_eq!(file, name);
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_missing_meta_is_rebuilt_by_salvage_only() {
    let (disk, records) = closed_store();
    let meta = MetaFile::load(&disk).expect("META").meta().clone();
    disk.remove("META").expect("a removal");
    match open(&disk) {
        Err(RecoverError::MetaMissing { segments }) => {
            assert_eq!(segments, segment_names(&disk).len());
        }
        other => panic!("{other:?}"),
    }
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), records);
    assert!(recovered.report.meta_rebuilt && !recovered.report.created);
    assert!(recovered.report.losses.is_empty());
    let rebuilt = recovered.meta.meta();
    assert_eq!(
        (rebuilt.store_id, rebuilt.secret),
        (meta.store_id, meta.secret)
    );
    assert!(
        rebuilt.epoch > meta.epoch,
        "epochs without a segment may have been used"
    );
    drop(recovered);
    assert_settled(&disk, &records);
}

#[test]
fn one_bad_slot_is_repaired_and_both_are_refused() {
    let (image, records) = closed_store();
    let meta = MetaFile::load(&image).expect("META").meta().clone();
    for slot in [0, 4096] {
        let disk = fork(&image);
        edit(&disk, "META", |bytes| bytes[slot + 90] ^= 1);
        let recovered = open(&disk).expect("a store");
        assert_eq!(recovered.report.meta_slot, Some(Damage::PageChecksum));
        assert!(!recovered.report.clean);
        assert_eq!(seen(&recovered), records);
        assert!(
            recovered.meta.meta().epoch > meta.epoch,
            "the newer slot may be the bad one"
        );
        drop(recovered);
        assert_settled(&disk, &records);
    }
    type Change = fn(&mut Vec<u8>);
    let changes: [(Change, [Damage; 2]); 4] = [
        (|bytes| bytes.clear(), [Damage::Truncated; 2]),
        (|bytes| bytes.truncate(4095), [Damage::Truncated; 2]),
        (|bytes| bytes.fill(0), [Damage::Magic; 2]),
        (
            |bytes| {
                bytes[100] ^= 1;
                bytes.truncate(8191);
            },
            [Damage::PageChecksum, Damage::Truncated],
        ),
    ];
    for (change, expected) in changes {
        let disk = fork(&image);
        edit(&disk, "META", change);
        match open(&disk) {
            Err(RecoverError::MetaDamaged { slots }) => assert_eq!(slots, expected),
            other => panic!("{other:?}"),
        }
        let recovered = salvage(&disk);
        assert!(recovered.report.meta_rebuilt);
        assert_eq!(recovered.report.kept_copies, ["META.damaged"]);
        assert_eq!(recovered.meta.meta().secret, meta.secret);
        assert_eq!(seen(&recovered), records);
        drop(recovered);
        assert_settled(&disk, &records);
    }
}

#[test]
fn a_bad_meta_without_segments_is_no_new_store_without_being_told_to() {
    let disk = SimulatedDisk::new();
    Writer::open(&disk).close();
    assert_eq!(segment_names(&disk).len(), 1);
    let names = segment_names(&disk);
    disk.remove(&names[0]).expect("a removal");
    disk.put("META", b"");
    assert!(matches!(open(&disk), Err(RecoverError::MetaDamaged { .. })));
    let recovered = salvage(&disk);
    assert!(recovered.report.meta_rebuilt && !recovered.report.created);
    assert!(recovered.meta.meta().epoch > 1000);
}

#[test]
fn an_older_copy_of_meta_gives_no_position_out_again() {
    let disk = SimulatedDisk::new();
    Writer::open(&disk).close();
    let old = disk.contents("META").expect("META");
    let mut records = Vec::new();
    for open in 0..3 {
        let mut writer = Writer::open(&disk);
        records.extend(writer.append_some(&open.to_string(), 3));
        writer.close();
    }
    disk.put("META", &old);
    let recovered = open(&disk).expect("a store");
    assert_eq!(seen(&recovered), records);
    assert!(!recovered.report.clean);
    assert!(recovered.meta.meta().epoch > position::epoch_of(recovered.log_end));
}

#[test]
fn a_damaged_header_is_made_up_by_salvage() {
    let (image, records) = closed_store();
    for name in segment_names(&image) {
        let disk = fork(&image);
        edit(&disk, &name, |bytes| bytes[..4096].fill(0xAA));
        let found = corruption(open(&disk));
        assert_eq!((found.damage, found.offset), (Damage::Magic, 0));
        let recovered = salvage(&disk);
        assert_eq!(seen(&recovered), records, "records prove themselves");
        assert_eq!(recovered.report.losses, [found]);
        drop(recovered);
        assert_settled(&disk, &records);
    }
}

/// Records that are gone and that no loss names.
fn lost_in_silence(recovered: &Recovered, records: &[Seen]) -> Vec<u64> {
    let found = seen(recovered);
    let is_named = |sequence: &u64| {
        let mut losses = recovered.report.losses.iter();
        losses.any(|loss| (loss.first_sequence..=loss.last_sequence).contains(sequence))
    };
    records
        .iter()
        .filter(|record| !found.contains(record))
        .map(|record| record.0)
        .filter(|sequence| !is_named(sequence))
        .collect()
}

#[test]
fn records_behind_a_cut_are_named_although_the_next_header_is_damaged_too() {
    let (image, records) = closed_store();
    for pair in segment_names(&image).windows(2) {
        let [name, next] = pair else { continue };
        let len = image.contents(name).expect("a segment").len();
        // A cut between two pages and two records at once leaves nothing that tells of it.
        let within_a_page = |cut: &usize| !cut.is_multiple_of(PAGE_BYTES);
        for cut in (PAGE_BYTES..len).step_by(8).filter(within_a_page) {
            let disk = fork(&image);
            edit(&disk, name, |bytes| bytes.truncate(cut));
            edit(&disk, next, |bytes| bytes[..4096].fill(0xAA));
            let recovered = salvage(&disk);
            let silent = lost_in_silence(&recovered, &records);
            assert_eq!(silent, [0; 0], "{name} cut at byte {cut}");
        }
    }
}

#[test]
fn records_that_were_zeroed_below_a_watermark_are_named_without_a_header_behind_them() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let records = writer.append_some("a", 6);
    writer.close();
    let [name] = &segment_names(&disk)[..] else {
        panic!("one segment");
    };
    let (_, from) = place(&disk, records[2].0);
    // A segment that was prepared by the next process, of which nothing but the name can be read.
    let len = disk.contents(name).expect("a segment").len();
    let next = segment_name(position::first_position(7));
    disk.put(&next, &vec![0xAA; len]);
    edit(&disk, name, |bytes| bytes[from..].fill(0));
    let recovered = salvage(&disk);
    assert_eq!(lost_in_silence(&recovered, &records), [0; 0]);
    assert!(seen(&recovered).len() < records.len());
}

#[test]
fn a_missing_segment_is_named_although_the_header_that_named_it_is_damaged_too() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records: Vec<Seen> = Vec::new();
    while segment_names(&disk).len() < 4 {
        records.extend(writer.append_some(&records.len().to_string(), 1));
    }
    writer.close();
    let names = segment_names(&disk);
    for pair in names.windows(2) {
        let [name, next] = pair else { continue };
        let disk = fork(&disk);
        disk.remove(name).expect("a removal");
        edit(&disk, next, |bytes| bytes[..4096].fill(0xAA));
        let recovered = salvage(&disk);
        assert_eq!(lost_in_silence(&recovered, &records), [0; 0], "{name}");
    }
}

#[test]
fn foreign_files_and_directories_stop_the_open() {
    let (disk, _) = closed_store();
    disk.put("backup.tar", b"");
    for salvage in [false, true] {
        match recover(&disk, salvage, 0) {
            Err(RecoverError::ForeignFile { name }) => assert_eq!(name, "backup.tar"),
            other => panic!("{other:?}"),
        }
    }
}

/// Two segments of different lengths in each other's place: the shorter file now stands under the
/// name of the longer segment, and says nothing of how far that one reached.
#[test]
fn swapped_segments_are_named_as_lost_to_their_full_length() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open_with(&disk, 2 * SEGMENT_BYTES);
    let mut records = writer.append_some("long", 40);
    writer.close();
    let mut writer = Writer::open(&disk);
    records.extend(writer.append_some("short", 2));
    writer.close();
    let mut writer = Writer::open(&disk);
    writer.append_some("last", 2);
    writer.close();
    let names = segment_names(&disk);
    let contents = |name: &String| disk.contents(name).expect("a segment");
    let [first, second] = [contents(&names[0]), contents(&names[1])];
    assert!(first.len() > second.len());
    disk.put(&names[0], &second);
    disk.put(&names[1], &first);
    let losses = salvage(&disk).report.losses;
    for record in &records {
        let covers =
            |loss: &Corruption| (loss.first_sequence..=loss.last_sequence).contains(&record.0);
        assert!(losses.iter().any(covers), "{:#x}: {losses:?}", record.0);
    }
}

/// Something cut the newest segment of a killed store in the middle of a word: all that stood behind
/// the cut is named, also what no watermark vouches for.
#[test]
fn what_stood_behind_a_cut_at_an_odd_length_is_named() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let records = writer.append_some("killed", 6);
    let disk = writer.kill();
    let (name, byte) = place(&disk, records[2].0);
    edit(&disk, &name, |bytes| bytes.truncate(byte + 5));
    assert_eq!(corruption(open(&disk)).damage, Damage::Truncated);
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), records[..2]);
    let losses = &recovered.report.losses;
    for record in &records[2..] {
        let covers =
            |loss: &Corruption| (loss.first_sequence..=loss.last_sequence).contains(&record.0);
        assert!(losses.iter().any(covers), "{:#x}: {losses:?}", record.0);
    }
}
