//! The files of a true store with edits, under true checksums or not, opened in both ways.
//!
//! The first byte says which store, and whether records and pages are sealed after the edits. Each
//! edit has 8 bytes: what, which file, where (2), how much, with what (3).

use std::collections::HashSet;
use std::ops::Range;

use oncekey::testing::{SimulatedDisk, internals};
use oncekey::{Claim, Fingerprint, Key, Recovery, Store};

use crate::answers::{answers, is_named};
use crate::layout::{COVERED, Files, PAGE, Place, Record, Segment};
use crate::stores::{Subject, disk_of, files_of, judging, new_key};
use crate::subjects::{CLOSED, KILLED, Response, Seen, records_of};

pub const EDIT_BYTES: usize = 8;
const EDITS_MAX: usize = 12;

/// Bits of the first byte.
pub const OF_KILLED: u8 = 1;
pub const SEAL_RECORDS: u8 = 2;
pub const SEAL_PAGES: u8 = 4;

/// Whether the store opens without a salvage.
pub fn run(input: &[u8]) -> bool {
    let Some((mode, edits)) = input.split_first() else {
        return false;
    };
    let subject: &Subject = if mode & OF_KILLED == 0 {
        &CLOSED
    } else {
        &KILLED
    };
    let mut files = subject.files.clone();
    let names = subject.segment_names();
    for edit in edits.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        self::edit(subject, &names, &mut files, edit);
    }
    let sealed = mode & (SEAL_RECORDS | SEAL_PAGES) != 0;
    for (_, file) in files.iter_mut().filter(|(name, _)| names.contains(name)) {
        if mode & SEAL_PAGES != 0 {
            internals::seal_page(file);
        }
        if mode & SEAL_RECORDS != 0 {
            internals::seal_segment(file);
        }
    }
    if sealed {
        forged(subject, &files)
    } else {
        damaged(subject, &files)
    }
}

/// Where an edit applies: anywhere, or within a record.
fn place(subject: &Subject, name: &str, len: usize, raw: usize, in_record: bool) -> usize {
    let places: &[Place] = subject
        .layout
        .segment(name)
        .map_or(&[], |segment| &segment.places);
    let at = match places.get(raw % places.len().max(1)) {
        Some(place) if in_record => {
            let within = raw / places.len() % place.bytes.len();
            place.bytes.start + within
        }
        _ => raw,
    };
    at.min(len)
}

fn edit(subject: &Subject, names: &[String], files: &mut Files, edit: &[u8]) {
    let name = &names[usize::from(edit[1]) % names.len()];
    let other = &names[usize::from(edit[1] >> 4) % names.len()];
    let Some(mut file) = files.get(name).cloned() else {
        return;
    };
    let in_record = edit[0] & 0x80 != 0;
    let raw = |low: u8, high: u8| usize::from(u16::from_le_bytes([low, high]));
    let at = place(subject, name, file.len(), raw(edit[2], edit[3]), in_record);
    let end = (at + usize::from(edit[4])).min(file.len());
    let target = |len| place(subject, name, len, raw(edit[5], edit[6]), in_record);
    match edit[0] & 0x0F {
        0 | 8 => file[at..end].fill(edit[5]),
        1 | 9 => {
            let values = edit[5..EDIT_BYTES].iter().cycle();
            for (byte, value) in file[at..end].iter_mut().zip(values) {
                *byte ^= value;
            }
        }
        2 | 10 => file.truncate(at),
        3 | 11 => {
            let to = target(file.len());
            let end = end.min(at + (file.len() - to));
            file.copy_within(at..end, to);
        }
        4 | 12 => {
            let to = target(file.len());
            let count = (end - at).min(file.len() - to).min(at.abs_diff(to));
            for step in 0..count {
                file.swap(at + step, to + step);
            }
        }
        5 | 13 => {
            let piece = files.get(other).and_then(|from| {
                let start = target(from.len());
                from.get(start..(start + (end - at)).min(from.len()))
            });
            for (byte, value) in file[at..end].iter_mut().zip(piece.unwrap_or_default()) {
                *byte = *value;
            }
        }
        6 => {
            files.remove(name);
            return;
        }
        7 => {
            if let Some(swapped) = files.insert(other.clone(), file.clone()) {
                files.insert(name.clone(), swapped);
            }
            return;
        }
        14 => {
            for (byte, value) in file[at..].iter_mut().zip(&edit[4..EDIT_BYTES]) {
                *byte = *value;
            }
        }
        _ => file.resize((at / PAGE + 1) * PAGE, 0),
    }
    files.insert(name.clone(), file);
}

/// Bytes that nobody made checksums for.
fn damaged(subject: &Subject, files: &Files) -> bool {
    let disk = disk_of(files);
    let opened = judging(Recovery::Refuse).open_simulated(&disk);
    let opens = opened.is_ok();
    match opened {
        Ok(store) => {
            let found = answers(&store, &subject.keys);
            // As before, or as if the log ended at one place that no watermark vouches for.
            let cuts = subject.layout.records().map(|record| record.sequence);
            let explained = cuts.chain([u64::MAX]).any(|cut| {
                let watermark = subject
                    .layout
                    .watermark_without(|record| record.sequence >= cut);
                let without = |record: &Record| record.sequence >= cut;
                cut >= watermark && found == subject.keys.answers_without(without)
            });
            assert!(explained, "{}", store.recovery_report());
            goes_on(store, &disk);
        }
        Err(error) => {
            assert_eq!(&files_of(&disk), files, "refused and changed: {error}");
        }
    }
    if !opens {
        let store = judging(Recovery::Salvage)
            .open_simulated(&disk)
            .unwrap_or_else(|error| panic!("not salvaged: {error}"));
        let found = answers(&store, &subject.keys);
        let report = store.recovery_report().clone();
        let ends = unvouched_ends(subject, files);
        let gone = |record: &Record| ends.iter().any(|gone| gone.contains(&record.sequence));
        let unexplained = subject
            .keys
            .unexplained(&found, |record| is_named(&report, record) || gone(record));
        assert_eq!(unexplained, None, "lost in silence: {report}");
        goes_on(store, &disk);
    }
    opens
}

/// Positions at the ends of segments of which nothing is left to tell: the bytes are zeros or cut off
/// where a range begins, and the header behind, which said how far the segment goes, is damaged too.
fn unvouched_ends(subject: &Subject, files: &Files) -> Vec<Range<u64>> {
    let segments = &subject.layout.segments;
    let header = |files: &Files, name: &str| files.get(name)?.get(..COVERED).map(<[u8]>::to_vec);
    let mut ends = Vec::new();
    for (segment, next) in segments.iter().zip(segments.iter().skip(1)) {
        let told = header(files, &next.name) == header(&subject.files, &next.name);
        let file = files.get(&segment.name).map_or(&[][..], |file| file);
        let is_blank = |place: &&Place| {
            let rest = file.get(place.bytes.start..).unwrap_or_default();
            rest.iter().all(|byte| *byte == 0)
        };
        let blank = segment.places.iter().find(is_blank);
        if let (false, Some(from), Some(last)) = (told, blank, segment.places.last()) {
            ends.push(from.position..last.position + 1);
        }
    }
    ends
}

/// Bytes that somebody made true checksums for: anything may be told of the keys that they name,
/// but nothing that does not stand there.
fn forged(subject: &Subject, files: &Files) -> bool {
    let disk = disk_of(files);
    let opened = judging(Recovery::Refuse).open_simulated(&disk);
    let opens = opened.is_ok();
    match opened {
        Ok(store) => {
            is_true(&store, subject, files);
            tries_everything(store, subject, &disk);
        }
        Err(_) => {
            if let Ok(store) = judging(Recovery::Salvage).open_simulated(&disk) {
                is_true(&store, subject, files);
                tries_everything(store, subject, &disk);
            }
        }
    }
    opens
}

/// No key answers what neither was stored for it nor stands in the files now; a key that no forged
/// record names is as it was at some time of its life.
fn is_true(store: &Store, subject: &Subject, files: &Files) {
    let standing: Vec<_> = files
        .iter()
        .filter(|(name, _)| name.ends_with(".log"))
        .flat_map(|(_, bytes)| internals::standing(bytes))
        .collect();
    let originals = originals(subject);
    for key in subject.keys.iter() {
        let seen = Seen::of(store, key);
        let records = records_of(subject, key);
        let parts = [key.scope(), key.operation(), key.id()];
        let now = || standing.iter().filter(|each| each.key == parts);
        if let Seen::Completed {
            response: Response::Bytes(bytes),
            ..
        } = &seen
        {
            let before = records.iter().map(|record| &record.response);
            let mut stored = before.chain(now().map(|each| &each.response));
            let is_stored = stored.any(|response| response.as_ref() == Some(bytes));
            assert!(is_stored, "{key:?}: {bytes:?}");
        }
        let is_as_it_was = Seen::Absent == seen
            || Seen::Refused == seen
            || records.iter().any(|record| Seen::by(record) == seen);
        let is_named = now().any(|each| !originals.contains(&each.covered[..]));
        assert!(is_as_it_was || is_named, "{key:?}: {seen:?}");
    }
}

/// What the checksums of all records cover in the store before it was edited.
fn originals(subject: &Subject) -> HashSet<&[u8]> {
    let of = |segment: &Segment| {
        let file = &subject.files[&segment.name];
        let places = segment.places.iter().filter(|place| place.record.is_some());
        places
            .map(|place| &file[place.bytes.start + 12..place.bytes.end])
            .collect::<Vec<_>>()
    };
    subject.layout.segments.iter().flat_map(of).collect()
}

/// A store that was opened takes new work, closes, and opens clean with it.
fn goes_on(store: Store, disk: &SimulatedDisk) {
    match store.claim(&new_key(), Fingerprint::none()) {
        Ok(Claim::Started(operation)) => drop(operation.complete(b"new").expect("completes")),
        other => panic!("{other:?}"),
    }
    store.close().expect("closes");
    drop(store);
    let store = judging(Recovery::Refuse)
        .open_simulated(disk)
        .expect("opens again");
    assert!(store.recovery_report().clean);
    assert!(matches!(
        store.claim(&new_key(), Fingerprint::none()),
        Ok(Claim::Completed(_))
    ));
}

/// Every key may be claimed and finished; errors are allowed, panics are not.
fn tries_everything(store: Store, subject: &Subject, disk: &SimulatedDisk) {
    let keys: Vec<Key> = subject.keys.iter().cloned().chain([new_key()]).collect();
    drop(store.pending());
    drop(store.interrupted());
    for (number, key) in keys.iter().enumerate() {
        if let Ok(Claim::Started(mut operation) | Claim::Interrupted(mut operation)) =
            store.claim(key, crate::support::request())
        {
            drop(operation.previous());
            match number % 3 {
                0 => drop(operation.checkpoint(b"note")),
                1 => drop(operation.complete(b"done")),
                _ => drop(operation.release()),
            }
        }
    }
    let closed = store.close();
    drop(store);
    let again = judging(Recovery::Refuse).open_simulated(disk);
    assert!(closed.is_err() || again.is_ok(), "closed, then {again:?}");
}
