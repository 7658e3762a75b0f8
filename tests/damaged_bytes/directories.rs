//! The same on real files: a share of the bytes, files that are no files, and damage that is done
//! while the store is open.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use oncekey::{ClaimError, KeyState, OpenError, Recovery, Store, Unavailable};

use crate::answers::{Answer, Keys, answers};
use crate::judge::{Case, Effort, Expected};
use crate::layout::{Files, Layout, Place, Record};
use crate::medium::{Medium, Opened, read};
use crate::meters::{alone, panics};
use crate::single::{changed, is_long};
use crate::stores::{Subject, closed, judging, killed};
use crate::support::kinds::every_kind;
use crate::support::{buffered, finish, interrupted, key, owned, request};
use crate::table::Table;

/// What a process that was killed leaves in the lock.
const LOCK: &str = "pid=4194303\nboot=00000000-0000-0000-0000-000000000000\nstarted=123\n";

#[test]
fn a_share_of_the_bytes_on_real_files() {
    let _alone = alone();
    let stride = if is_long() { 211 } else { 997 };
    let mut table = Table::new("real files, a byte changed");
    for subject in [closed(), killed()] {
        for (name, original) in &subject.files {
            for byte in (0..original.len()).step_by(stride) {
                let mut files = subject.files.clone();
                files.insert("LOCK".to_owned(), LOCK.as_bytes().to_vec());
                files.get_mut(name).expect("a file")[byte] ^= 1 << (byte % 8);
                let segment = subject.layout.segment(name);
                let mut places = segment.iter().flat_map(|segment| &segment.places);
                let place = places.find(|place| place.bytes.contains(&byte));
                let position = place.map_or(0, |place| place.position);
                let hit = |record: &Record| record.sequence == position;
                let expected = match place {
                    Some(_) if position < subject.layout.watermark_without(hit) => {
                        Expected::Refused
                    }
                    Some(_) => Expected::Torn(position),
                    None if segment.is_some() && byte < 512 => Expected::Refused,
                    None => Expected::Same,
                };
                Case {
                    subject: &subject,
                    files,
                    what: format!("{name}, byte {byte}, in a directory"),
                    expected,
                    lost: Some(&hit),
                    effort: Effort::GoOn,
                    medium: Medium::Directory,
                }
                .judge(&mut table);
            }
        }
    }
    table.finish();
}

#[test]
fn whatever_stands_in_the_lock_a_store_opens_the_same() {
    let _alone = alone();
    let subject = closed();
    let mut table = Table::new("real files, the lock's text changed");
    let texts = (0..LOCK.len()).map(|byte| {
        let mut text = LOCK.as_bytes().to_vec();
        text[byte] ^= 0xFF;
        text
    });
    let cut = (0..LOCK.len())
        .step_by(7)
        .map(|len| LOCK.as_bytes()[..len].to_vec());
    let long = [vec![b'9'; 100_000], vec![0; 5_000]];
    for (number, text) in texts.chain(cut).chain(long).enumerate() {
        let mut files = subject.files.clone();
        files.insert("LOCK".to_owned(), text);
        Case {
            subject: &subject,
            files,
            what: format!("lock number {number}"),
            expected: Expected::Same,
            lost: None,
            effort: Effort::Open,
            medium: Medium::Directory,
        }
        .judge(&mut table);
    }
    table.finish();
}

/// A directory or a link in a file's place is named, and what the link leads to is left alone.
#[test]
fn files_that_are_no_files_are_refused_by_name() {
    let _alone = alone();
    let subject = closed();
    for name in subject.files.keys() {
        for link in [false, true] {
            let Opened::Directory(directory) = Medium::Directory.put(&subject.files) else {
                unreachable!("that is what was asked for");
            };
            let elsewhere = crate::support::directory();
            let target = elsewhere.path().join("target");
            let path = directory.path().join(name);
            fs::rename(&path, &target).expect("moved");
            if link {
                symlink(&target, &path).expect("a link");
            } else {
                fs::create_dir(&path).expect("a directory");
            }
            for recovery in [Recovery::Refuse, Recovery::Salvage] {
                match judging(recovery).open(directory.path()) {
                    Err(OpenError::ForeignFile { name: found, .. }) => assert_eq!(&found, name),
                    other => panic!("{name}, link: {link}: {other:?}"),
                }
            }
            assert_eq!(fs::read(&target).expect("there"), subject.files[name]);
        }
    }
}

/// A store on real files with records from an earlier life and from this one, all durable, and its
/// files as they are now.
fn open_store() -> (tempfile::TempDir, Store, Files) {
    let Opened::Directory(directory) = Medium::Directory.put(&closed().files) else {
        unreachable!("that is what was asked for");
    };
    let clock = oncekey::ManualClock::new(crate::stores::JUDGED_MS);
    let store = crate::stores::options(&clock)
        .open(directory.path())
        .expect("opens");
    let store = crate::support::prepared(store);
    every_kind(&store, &clock, "open");
    store.flush().expect("synced");
    let mut files = read(&directory);
    files.remove("LOCK");
    (directory, store, files)
}

/// The record of a place, if it is the newest of its key.
fn newest<'a>(layout: &'a Layout, place: &'a Place) -> Option<&'a Record> {
    let record = place.record.as_ref()?;
    let is_newer = |other: &Record| {
        (&other.scope, &other.operation, &other.id)
            == (&record.scope, &record.operation, &record.id)
            && (other.token, other.sequence) > (record.token, record.sequence)
    };
    (!layout.records().any(is_newer)).then_some(record)
}

/// Bytes are overwritten in place, through another handle, while the store is open: who asks for the
/// key is told, everybody else is answered as before, and nobody gets other bytes.
#[test]
fn damage_under_an_open_store_is_told_to_who_asks_for_it() {
    let _alone = alone();
    let (directory, store, files) = open_store();
    let layout = Layout::read(&files);
    let keys = Keys::read(&layout);
    let before = answers(&store, &keys);
    let (mut cases, mut told) = (0, 0);
    for segment in &layout.segments {
        let original = &files[&segment.name];
        let file = fs::OpenOptions::new()
            .write(true)
            .open(directory.path().join(&segment.name))
            .expect("a file");
        for byte in 0..segment.end() {
            let kinds: &[usize] = if is_long() {
                &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
            } else {
                &[byte % 10]
            };
            for kind in kinds {
                let value = changed(original[byte], *kind);
                if value == original[byte] {
                    continue;
                }
                file.write_all_at(&[value], byte as u64).expect("written");
                let now = answers(&store, &keys);
                file.write_all_at(&original[byte..=byte], byte as u64)
                    .expect("written");
                let mut places = segment.places.iter();
                let place = places.find(|place| place.bytes.contains(&byte));
                let newest = place.and_then(|place| newest(&layout, place));
                for ((key, before), now) in keys.iter().zip(&before).zip(&now) {
                    let is_hit = newest.is_some_and(|record| {
                        let parts = [&record.scope[..], &record.operation, &record.id];
                        parts == [key.scope(), key.operation(), key.id()]
                    });
                    // Pending keys are held in memory; an expired one has to be read to know it.
                    let is_read = newest.is_some_and(|record| record.kind == 3);
                    if is_hit && is_read {
                        assert_eq!(now, &Answer::Damaged, "{}, byte {byte}", segment.name);
                        told += 1;
                    } else {
                        assert_eq!(now, before, "{}, byte {byte}", segment.name);
                    }
                }
                cases += 1;
            }
        }
    }
    println!("| open store, a byte overwritten | {cases} | told: {told} |");
    assert!(told > 3_000, "{told}");
    assert_eq!(answers(&store, &keys), before);
    store.close().expect("closes");
}

/// The note of an interrupted attempt is read when somebody takes over: damage to it is told, and
/// the key stays as it was.
#[test]
fn a_damaged_note_is_told_and_the_key_can_be_taken_over_when_it_is_whole_again() {
    let _alone = alone();
    let (directory, store, files) = open_store();
    let layout = Layout::read(&files);
    let pending = key("open-pending");
    let (segment, place) = layout
        .segments
        .iter()
        .flat_map(|segment| segment.places.iter().map(move |place| (segment, place)))
        .find(|(_, place)| {
            let record = place.record.as_ref();
            record.is_some_and(|record| record.kind == 2 && record.id == pending.id())
        })
        .expect("a checkpoint");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join(&segment.name))
        .expect("a file");
    for byte in place.bytes.clone() {
        let original = files[&segment.name][byte];
        file.write_all_at(&[original ^ 0x10], byte as u64)
            .expect("written");
        match store.claim(&pending, request()) {
            Err(ClaimError::Damaged(damaged)) => {
                assert_eq!(damaged.file, segment.name);
                assert_eq!(damaged.offset, place.bytes.start as u64);
            }
            other => panic!("byte {byte}: {other:?}"),
        }
        assert!(matches!(
            store.get(&pending),
            Ok(KeyState::Interrupted { attempt: 1, .. })
        ));
        file.write_all_at(&[original], byte as u64)
            .expect("written");
    }
    let operation = interrupted(store.claim(&pending, request()).expect("a claim"));
    assert_eq!(
        operation.last_checkpoint().expect("a note")[..],
        *b"half way"
    );
}

/// Damage that stays is found by the next open, and named.
#[test]
fn damage_done_under_an_open_store_is_refused_by_the_next_open() {
    let _alone = alone();
    let (directory, store, files) = open_store();
    let layout = Layout::read(&files);
    let segment = layout.segments.last().expect("a segment");
    let segment = if segment.places.is_empty() {
        &layout.segments[layout.segments.len() - 2]
    } else {
        segment
    };
    let place = &segment.places[3];
    fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join(&segment.name))
        .expect("a file")
        .write_all_at(&[0xA5; 16], place.bytes.start as u64 + 40)
        .expect("written");
    // The store goes on.
    owned(store.claim(&key("later"), request()).expect("a claim"))
        .complete(b"later")
        .expect("completes");
    store.close().expect("closes");
    drop(store);
    match judging(Recovery::Refuse).open(directory.path()) {
        Err(OpenError::Corrupt { corruption, .. }) => {
            assert_eq!(corruption.file, segment.name);
            assert_eq!(corruption.offset, place.bytes.start as u64);
            assert_eq!(corruption.first_sequence, place.position);
        }
        other => panic!("{other:?}"),
    }
    let subject = Subject::new("open", files);
    let store = judging(Recovery::Salvage)
        .open(directory.path())
        .expect("salvages");
    let lost = |record: &Record| record.sequence == place.position;
    assert_eq!(
        answers(&store, &subject.keys),
        subject.keys.answers_without(lost)
    );
}

/// A record is overwritten before it was synced: nobody can say any more what is durable, so the
/// store is poisoned. No caller panics, and none is told that its write is safe.
#[test]
fn damage_to_what_is_not_synced_yet_poisons_the_store() {
    let _alone = alone();
    let before = panics();
    for byte in 0..8 {
        let (directory, store) = buffered();
        finish(&store, &key("paid"), b"paid");
        let name = read(&directory)
            .into_iter()
            .find(|(name, bytes)| name.ends_with(".log") && Layout::has_records(bytes))
            .expect("a segment with records")
            .0;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(directory.path().join(name))
            .expect("a file");
        let mut damaged = [0];
        file.read_exact_at(&mut damaged, 4_096 + byte)
            .expect("read");
        damaged[0] ^= 0x55;
        file.write_all_at(&damaged, 4_096 + byte).expect("written");
        match store.flush() {
            Err(error @ Unavailable::Poisoned { .. }) => {
                assert!(error.to_string().contains("behind the store's back"));
            }
            other => panic!("byte {byte}: {other:?}"),
        }
        assert!(store.stats().poisoned);
    }
    assert_eq!(panics(), before);
}
