//! Damaged bytes: every byte of every file flipped, every truncation, zeroed pages, noise.

use super::*;
use crate::log::word;
use crate::sync::Ordering;

/// Some records in two segments, of which the first ones are known to be durable; and the disk
/// after a kill.
fn unclean_store() -> (SimulatedDisk, Vec<Seen>, usize) {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("closed", 7);
    writer.close();
    let mut writer = Writer::open(&disk);
    records.extend(writer.append_some("durable", 10));
    let watermark = writer.sync();
    writer
        .meta
        .update(|meta| meta.watermark = watermark)
        .expect("META");
    // Know that all before them is durable, as META does.
    let durable = records.len();
    records.extend(writer.append_some("buffered", 5));
    (writer.kill(), records, durable)
}

/// Opens a damaged store in both ways and checks that nothing durable is lost in silence, nothing
/// is made up, and that a salvage ends in a store that opens.
fn judge_damage(disk: &SimulatedDisk, records: &[Seen], durable: usize, what: &str) -> Outcome {
    let outcome = judge_refusal(disk, records, durable, what);
    if outcome != Outcome::Whole {
        judge_salvage(disk, records, durable, outcome, what);
    }
    outcome
}

fn judge_refusal(disk: &SimulatedDisk, records: &[Seen], durable: usize, what: &str) -> Outcome {
    let refused = fork(disk);
    let before = refused.operations();
    match open(&refused) {
        Ok(recovered) => {
            let found = seen(&recovered);
            assert!(
                found.len() >= durable,
                "{what}: {} records in silence",
                found.len()
            );
            assert_eq!(found, records[..found.len()], "{what}");
            let whole = found.len() == records.len();
            assert!(whole || !recovered.report.clean, "{what}");
            drop(recovered);
            assert_settled(&refused, &found);
            if whole { Outcome::Whole } else { Outcome::Torn }
        }
        Err(RecoverError::Corrupt(corruption)) => {
            assert!(!corruption.file.is_empty());
            assert!(
                corruption.first_sequence <= corruption.last_sequence,
                "{what}"
            );
            assert_eq!(refused.operations(), before, "{what}: refused and changed");
            Outcome::Refused
        }
        Err(RecoverError::MetaDamaged { .. }) => Outcome::Refused,
        Err(other) => panic!("{what}: {other:?}"),
    }
}

fn judge_salvage(
    disk: &SimulatedDisk,
    records: &[Seen],
    durable: usize,
    outcome: Outcome,
    what: &str,
) {
    let salvaged = fork(disk);
    let recovered = salvage(&salvaged);
    let found = seen(&recovered);
    let mut written = records.iter();
    assert!(
        found
            .iter()
            .all(|record| written.any(|other| other == record)),
        "{what}"
    );
    let losses = &recovered.report.losses;
    for record in records[..durable]
        .iter()
        .filter(|record| !found.contains(record))
    {
        let covers =
            |loss: &Corruption| (loss.first_sequence..=loss.last_sequence).contains(&record.0);
        assert!(
            losses.iter().any(covers),
            "{what}: {} lost in silence",
            record.0
        );
    }
    if outcome == Outcome::Refused {
        assert!(
            !losses.is_empty() || recovered.report.meta_rebuilt,
            "{what}"
        );
    } else {
        assert!(losses.is_empty(), "{what}: {losses:?}");
    }
    drop(recovered);
    assert_settled(&salvaged, &found);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Whole,
    Torn,
    Refused,
}

fn count(outcomes: &[Outcome], outcome: Outcome) -> usize {
    outcomes.iter().filter(|other| **other == outcome).count()
}

/// Flips one bit, or all, of every byte of every file; of those far from any byte in use, some.
fn flip_all(disk: &SimulatedDisk, records: &[Seen], durable: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for name in disk.names() {
        let contents = disk.contents(&name).expect("a file");
        let is_used = |byte: usize| {
            let around = byte.saturating_sub(24)..(byte + 24).min(contents.len());
            byte.is_multiple_of(53) || contents[around].iter().any(|byte| *byte != 0)
        };
        for byte in (0..contents.len()).filter(|byte| is_used(*byte)) {
            let mask = if byte % 3 == 0 { 0xFF } else { 1 << (byte % 8) };
            let damaged = fork(disk);
            edit(&damaged, &name, |bytes| bytes[byte] ^= mask);
            let what = format!("{name}, byte {byte}");
            let outcome = judge_refusal(&damaged, records, durable, &what);
            if outcome != Outcome::Whole && byte % 4 == 0 {
                judge_salvage(&damaged, records, durable, outcome, &what);
            }
            outcomes.push(outcome);
        }
    }
    outcomes
}

#[test]
fn every_flipped_byte_of_a_closed_store() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("first", 7);
    writer.close();
    let mut writer = Writer::open(&disk);
    records.extend(writer.append_some("second", 5));
    writer.close();
    let outcomes = flip_all(&disk, &records, records.len());
    assert_eq!(count(&outcomes, Outcome::Torn), 0, "all was durable");
    let refused = count(&outcomes, Outcome::Refused);
    assert!(refused >= 2 * 120 + records.len() * 144, "{refused}");
}

#[test]
fn every_flipped_byte_of_a_killed_store() {
    let (disk, records, durable) = unclean_store();
    let outcomes = flip_all(&disk, &records, durable);
    assert!(count(&outcomes, Outcome::Torn) > 300);
    assert!(count(&outcomes, Outcome::Refused) > 2000);
}

#[test]
fn every_truncation() {
    let (killed, records, durable) = unclean_store();
    let (closed, closed_records) = closed_store();
    let stores = [
        (killed, records, durable),
        (closed, closed_records.clone(), closed_records.len()),
    ];
    for (disk, records, durable) in stores {
        for name in disk.names() {
            let len = disk.contents(&name).expect("a file").len();
            for cut in (0..len).filter(|cut| cut % 72 < 2 || cut % 512 > 510) {
                let damaged = fork(&disk);
                edit(&damaged, &name, |bytes| bytes.truncate(cut));
                judge_damage(&damaged, &records, durable, &format!("{name} cut at {cut}"));
            }
        }
    }
}

#[test]
fn every_zeroed_sector() {
    let (disk, records, durable) = unclean_store();
    for name in segment_names(&disk) {
        let len = disk.contents(&name).expect("a file").len();
        for sector in (0..len).step_by(512) {
            for sectors in 1..=3 {
                let end = (sector + sectors * 512).min(len);
                let damaged = fork(&disk);
                edit(&damaged, &name, |bytes| bytes[sector..end].fill(0));
                judge_damage(
                    &damaged,
                    &records,
                    durable,
                    &format!("{name} zero at {sector}"),
                );
            }
        }
    }
}

#[test]
fn noise_in_any_sector() {
    let (disk, records, durable) = unclean_store();
    let mut random = 1_u64;
    for name in disk.names() {
        let len = disk.contents(&name).expect("a file").len();
        for sector in (0..len).step_by(512) {
            let damaged = fork(&disk);
            edit(&damaged, &name, |bytes| {
                for byte in &mut bytes[sector..sector + 512] {
                    random = crate::log::word::mix(random);
                    *byte = random as u8;
                }
            });
            judge_damage(
                &damaged,
                &records,
                durable,
                &format!("{name} noise at {sector}"),
            );
        }
    }
}

/// Sectors of one file, or of another, in each other's place.
#[test]
fn sectors_that_were_written_to_the_wrong_place() {
    let (disk, records, durable) = unclean_store();
    let names = segment_names(&disk);
    for from in &names {
        let source = disk.contents(from).expect("a file");
        for to in &names {
            for sector in (4096..source.len()).step_by(512) {
                let damaged = fork(&disk);
                edit(&damaged, to, |bytes| {
                    let target = (sector + 1024) % bytes.len();
                    bytes[target..target + 512].copy_from_slice(&source[sector..sector + 512]);
                });
                judge_damage(
                    &damaged,
                    &records,
                    durable,
                    &format!("{from} {sector} to {to}"),
                );
            }
        }
    }
}

#[test]
fn damage_to_one_record_costs_one_record() {
    let (disk, records) = closed_store();
    for (index, record) in records.iter().enumerate() {
        let (name, byte) = place(&disk, record.0);
        // The length word, the checksum, a field, the key.
        for at in [0, 3, 4, 8, 20, 121] {
            let damaged = fork(&disk);
            edit(&damaged, &name, |bytes| bytes[byte + at] ^= 0x10);
            let corruption = corruption(open(&damaged));
            assert_eq!((&corruption.file, corruption.offset), (&name, byte as u64));
            assert_eq!(corruption.first_sequence, record.0);
            let expected = if at < 8 {
                Damage::Length
            } else {
                Damage::Checksum
            };
            assert_eq!(corruption.damage, expected, "record {index}, byte {at}");
            let recovered = salvage(&damaged);
            assert_eq!(seen(&recovered), all_without(&records, &[record.0]));
            assert_eq!(recovered.report.losses, [corruption]);
        }
    }
}

/// A device that lost a write, or an older copy of the page: the length proves itself, and above the
/// watermark this is what a writer leaves that was killed.
#[test]
fn a_durable_record_that_is_unfinished_again_is_damage_and_no_hole() {
    let (disk, records) = closed_store();
    for record in &records {
        let (name, byte) = place(&disk, record.0);
        let damaged = fork(&disk);
        edit(&damaged, &name, |bytes| {
            let seed = Header::decode(&bytes[..4096]).expect("a header").seed();
            let at = byte..byte + 8;
            let raw = u64::from_le_bytes(bytes[at.clone()].try_into().expect("a word"));
            let Decoded::Word { words, state } = word::decode(raw, record.0, seed) else {
                panic!("no word at {byte} of {name}");
            };
            assert_eq!(state, State::Committed);
            let reserved = word::encode(words, State::Reserved, record.0, seed);
            bytes[at].copy_from_slice(&reserved.to_le_bytes());
        });
        let corruption = corruption(open(&damaged));
        assert_eq!(corruption.damage, Damage::Unfinished);
        assert_eq!((&corruption.file, corruption.offset), (&name, byte as u64));
        assert_eq!(corruption.first_sequence, record.0);
        let recovered = salvage(&damaged);
        let expected = all_without(&records, &[record.0]);
        assert_eq!(seen(&recovered), expected);
        assert_eq!(recovered.report.losses, [corruption]);
        assert_eq!(recovered.report.holes, 0);
        assert_eq!(recovered.report.kept_copies.len(), 1);
        drop(recovered);
        assert_settled(&damaged, &expected);
    }
}

#[test]
fn two_damaged_records_are_two_losses_and_both_are_kept_in_a_copy() {
    let (disk, records) = closed_store();
    let lost = [records[2].0, records[6].0];
    let (name, first) = place(&disk, lost[0]);
    let (_, second) = place(&disk, lost[1]);
    edit(&disk, &name, |bytes| {
        bytes[first + 30] ^= 1;
        bytes[second + 1] ^= 1;
    });
    let damaged = disk.contents(&name).expect("a segment");
    let recovered = salvage(&disk);
    let expected = all_without(&records, &lost);
    assert_eq!(seen(&recovered), expected);
    assert_eq!(recovered.report.losses.len(), 2);
    let copy = name.replace(".log", ".damaged");
    assert_eq!(recovered.report.kept_copies, std::slice::from_ref(&copy));
    assert_eq!(disk.contents(&copy), Some(damaged));
    drop(recovered);
    assert_settled(&disk, &expected);
}

/// What is below the watermark that any record knows was durable, even if META does not know.
#[test]
fn a_later_record_proves_that_an_earlier_one_was_durable() {
    let disk = SimulatedDisk::new();
    let mut writer = Writer::open(&disk);
    let mut records = writer.append_some("durable", 10);
    writer.sync();
    let durable = records.len();
    records.extend(writer.append_some("buffered", 5));
    let (name, byte) = place(&disk, records[durable - 1].0);
    let later = (durable..records.len()).map(|index| place(&disk, records[index].0));
    let later: Vec<_> = later.collect();
    edit(&disk, &name, |bytes| bytes[byte + 9] ^= 1);
    corruption(open(&disk));
    // Without any later record nobody knows.
    for (name, byte) in later {
        edit(&disk, &name, |bytes| bytes[byte + 9] ^= 1);
    }
    let recovered = open(&disk).expect("a torn tail");
    assert_eq!(seen(&recovered), records[..durable - 1]);
    assert!(recovered.report.torn_tail.is_some());
}

/// So does the header of a segment that was prepared later.
#[test]
fn a_prepared_segment_proves_what_was_durable_before() {
    let mut writer = Writer::open(&SimulatedDisk::new());
    let records = writer.append_some("durable", 5);
    writer.sync();
    writer.prepare();
    let (name, byte) = place(&writer.disk, records[4].0);
    let disk = writer.kill();
    edit(&disk, &name, |bytes| bytes[byte + 9] ^= 1);
    assert_eq!(corruption(open(&disk)).first_sequence, records[4].0);
    let recovered = salvage(&disk);
    assert_eq!(seen(&recovered), records[..4]);
    drop(recovered);
    assert_settled(&disk, &records[..4]);
}

/// A crash at any moment of a salvage: the next salvage ends it, with the same answers.
#[test]
fn a_crash_in_the_middle_of_a_salvage() {
    let (image, records) = closed_store();
    let lost = [records[2].0, records[12].0];
    for sequence in lost {
        let (name, byte) = place(&image, sequence);
        edit(&image, &name, |bytes| bytes[byte + 30] ^= 1);
    }
    edit(&image, "META", |bytes| {
        bytes[16] ^= 1;
        bytes[4096 + 16] ^= 1;
    });
    let expected = all_without(&records, &lost);
    for cut in 0.. {
        let disk = fork(&image);
        disk.crash_at(cut);
        let done = recover(&disk, true, 1_000).is_ok();
        for seed in 0..6 {
            let crashed = disk.crash_random(seed);
            let recovered = salvage(&crashed);
            assert_eq!(seen(&recovered), expected, "cut {cut}, seed {seed}");
            drop(recovered);
            assert_settled(&crashed, &expected);
            let copies = crashed
                .names()
                .iter()
                .filter(|name| name.ends_with(".damaged"))
                .count();
            assert!((3..=4).contains(&copies), "{:?}", crashed.names());
        }
        if done {
            assert!(cut > 15);
            break;
        }
    }
}

/// Several kinds of damage at once: no panic, nothing made up, and whatever a salvage ends with is
/// a store that opens with the same answers.
#[test]
fn any_mixture_of_damage() {
    let (killed, records, _) = unclean_store();
    let (closed, closed_records) = closed_store();
    let mut salvaged = 0;
    for seed in 0..600_u64 {
        let even = seed % 2 == 0;
        let (image, records) = if even {
            (&killed, &records)
        } else {
            (&closed, &closed_records)
        };
        let disk = fork(image);
        let mut random = seed << 32 | 1;
        let mut below = |limit: usize| {
            random = crate::log::word::mix(random.wrapping_add(0x9E37_79B9_7F4A_7C15));
            (random >> 8) as usize % limit.max(1)
        };
        for _ in 0..1 + below(5) {
            let names: Vec<_> = disk
                .names()
                .into_iter()
                .filter(|name| name != "LOCK")
                .collect();
            if names.is_empty() {
                break;
            }
            let name = names[below(names.len())].clone();
            let other = names[below(names.len())].clone();
            let kind = below(9);
            let noise = below(usize::MAX) as u64;
            let mut bytes = disk.contents(&name).expect("a file");
            let at = below(bytes.len());
            let end = (at + below(900)).min(bytes.len());
            match kind {
                0 => drop(disk.remove(&name)),
                1 => disk.put(&name, &disk.contents(&other).expect("a file")),
                2 => bytes.truncate(at),
                3 => bytes.resize(bytes.len() + end - at, noise as u8),
                4 => bytes[at..end].fill(0),
                5 => bytes[at..end].fill(noise as u8),
                6 => {
                    let from = at - at % 8;
                    bytes.copy_within(from..end, (from + 512) % 4096);
                }
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << (noise % 8);
                    }
                }
            }
            if kind > 1 {
                disk.put(&name, &bytes);
            }
        }
        let what = format!("seed {seed}: {:?}", disk.names());
        let made_up = |found: &[Seen]| found.iter().any(|record| !records.contains(record));
        if let Ok(recovered) = open(&fork(&disk)) {
            assert!(!made_up(&seen(&recovered)), "{what}");
        }
        match recover(&disk, true, 1_000) {
            Ok(recovered) => {
                let found = seen(&recovered);
                assert!(!made_up(&found), "{what}");
                drop(recovered);
                assert_settled(&disk, &found);
                salvaged += 1;
            }
            // No header is left to rebuild META from.
            Err(RecoverError::MetaDamaged { .. } | RecoverError::MetaMissing { .. }) => {}
            Err(other) => panic!("{what}: {other:?}"),
        }
    }
    assert!(salvaged > 500, "{salvaged}");
}

/// Segments of pure noise behind a true header.
#[test]
fn noise_is_scanned_and_never_believed() {
    let (disk, _) = closed_store();
    let meta = MetaFile::load(&disk).expect("META");
    let mut random = 5_u64;
    for round in 0..200_u64 {
        let header = Header {
            file_bytes: SEGMENT_BYTES,
            store_id: meta.meta().store_id,
            base: position::first_position(round + 1),
            previous_base: 0,
            previous_end: 0,
            watermark: 0,
            created_ms: 0,
            secret: meta.meta().secret,
            copies_end: 0,
        };
        let memory = Memory::heap(SEGMENT_BYTES as usize / 8);
        for word in 512..memory.words() {
            random = crate::log::word::mix(random);
            // Now and then a true word, of any state and length.
            let words = random >> 33 & 0x3FF | 1;
            let state = [State::Committed, State::Padding, State::Reserved][random as usize % 3];
            let position = header.base + word as u64;
            let raw = match random >> 8 & 7 {
                0 => crate::log::word::encode(words, state, position, header.seed()),
                1 => 0,
                _ => random,
            };
            memory.word(word).store(raw, Ordering::Relaxed);
        }
        let found = scan_file(&memory, &header, u64::MAX);
        assert_eq!(found.records, 0);
        assert!(found.end <= found.written_end && found.written_end <= 1024);
        let mut at = 512;
        for spot in &found.spots {
            assert!(at <= spot.from && spot.from < spot.to && spot.to <= found.written_end);
            at = spot.to;
        }
    }
}
