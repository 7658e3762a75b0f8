//! Whole files and records in the wrong place: swapped, doubled, from another store, from another
//! life of the same store, from an earlier moment.

use crate::answers::Keys;
use crate::judge::{Case, Effort, Expected};
use crate::layout::{Files, Layout, Record};
use crate::medium::Medium;
use crate::stores::{Making, Subject, options};
use crate::support::kinds::every_kind;
use crate::support::{START_MS, key, ms, request, started};
use crate::table::Table;
use oncekey::ManualClock;

/// Judges one set of files, and goes on with the store.
fn judge(subject: &Subject, files: Files, what: String, expected: Expected, table: &mut Table) {
    Case {
        subject,
        files,
        what,
        expected,
        lost: None,
        effort: Effort::GoOn,
        medium: Medium::Simulated,
    }
    .judge(table);
}

/// Two segments in each other's place, all of them moved by one, one twice.
pub fn misplaced(subject: &Subject, table: &mut Table) {
    let names = subject.segment_names();
    for (at, from) in names.iter().enumerate() {
        for to in &names[at + 1..] {
            let mut files = subject.files.clone();
            files.insert(to.clone(), subject.files[from].clone());
            files.insert(from.clone(), subject.files[to].clone());
            let what = format!("{from} and {to} swapped");
            judge(subject, files, what, Expected::Refused, table);
        }
        for to in names.iter().filter(|to| *to != from) {
            let mut files = subject.files.clone();
            files.insert(to.clone(), subject.files[from].clone());
            let what = format!("{from} also in place of {to}");
            judge(subject, files, what, Expected::Refused, table);
        }
        let base = u64::from_str_radix(&from[8..24], 16).expect("a name");
        for next in [base + 1, base + 8_192, base + (1 << 36), base - 1] {
            let mut files = subject.files.clone();
            let to = format!("segment-{next:016x}.log");
            if files.contains_key(&to) {
                continue;
            }
            files.insert(to.clone(), subject.files[from].clone());
            let what = format!("{from} also as {to}");
            judge(subject, files, what, Expected::Refused, table);
        }
    }
    let mut files = subject.files.clone();
    for (at, to) in names.iter().enumerate() {
        let from = &names[(at + 1) % names.len()];
        files.insert(to.clone(), subject.files[from].clone());
    }
    let what = "all moved by one".to_owned();
    judge(subject, files, what, Expected::Refused, table);
}

/// Segments of a store with other secrets.
pub fn foreign(subject: &Subject, other: &Subject, table: &mut Table) {
    for from in other.segment_names() {
        let targets = subject.segment_names().into_iter().chain([from.clone()]);
        for to in targets {
            let mut files = subject.files.clone();
            files.insert(to.clone(), other.files[&from].clone());
            let what = format!("{to} from another store");
            judge(subject, files, what, Expected::Refused, table);
        }
    }
    let mut files = subject.files.clone();
    files.insert("META".to_owned(), other.files["META"].clone());
    let what = "META of another store".to_owned();
    judge(subject, files, what, Expected::Refused, table);
}

/// A copy of a closed store lived on as `restored`; the store lived on, too. Then a segment of the
/// one comes to lie among those of the other.
pub fn another_life(table: &mut Table) {
    let making = Making::new();
    let store = making.open();
    every_kind(&store, &making.clock, "a");
    store.close().expect("closes");
    let copy = Making {
        disk: crate::stores::disk_of(&making.closed()),
        clock: ManualClock::new(START_MS + 1_000),
    };
    let other = copy.open_with(options(&copy.clock).restored(true));
    every_kind(&other, &copy.clock, "other");
    other.close().expect("closes");
    let store = making.open();
    every_kind(&store, &making.clock, "b");
    store.close().expect("closes");
    let mut subject = Subject::new("two lives", making.closed());
    let theirs = copy.closed();
    // Of two branches a salvage keeps the one with the higher positions, and names the other.
    subject.keys = subject.keys.beside(&Keys::read(&Layout::read(&theirs)));
    let new = theirs
        .keys()
        .filter(|name| !subject.files.contains_key(*name));
    for name in new {
        let mut files = subject.files.clone();
        files.insert(name.clone(), theirs[name].clone());
        let what = format!("{name} of another life");
        judge(&subject, files, what, Expected::Refused, table);
    }
    let own = subject.segment_names().pop().expect("a segment");
    let newest = Layout::read(&theirs).segments.pop().expect("a segment");
    let mut files = subject.files.clone();
    files.insert(own, theirs[&newest.name].clone());
    let what = "the newest segment from another life".to_owned();
    judge(&subject, files, what, Expected::Refused, table);
}

/// A store as a kill at its end leaves it and as a proper close does, and its files at earlier
/// moments of the same life.
struct Moments {
    killed: Subject,
    closed: Subject,
    earlier: Vec<Files>,
}

fn moments() -> Moments {
    let making = Making::new();
    let mut earlier = Vec::new();
    let store = making.open();
    every_kind(&store, &making.clock, "a");
    earlier.push(making.killed());
    store.close().expect("closes");
    earlier.push(making.closed());
    let store = making.open();
    for number in 0..12_u8 {
        let key = key(&format!("n-{number}"));
        started(store.claim(&key, request()).expect("a claim"))
            .complete(vec![number; 9_000])
            .expect("completes");
        making.clock.advance(ms(1));
        if number % 3 == 0 {
            earlier.push(making.killed());
        }
    }
    let killed = Subject::new("killed, earlier files", making.killed());
    store.close().expect("closes");
    Moments {
        killed,
        closed: Subject::new("closed, earlier files", making.closed()),
        earlier,
    }
}

/// What must come of it when of segment `name` there is only what an older copy holds.
fn older_copy(subject: &Subject, name: &str, older: &[u8]) -> Expected {
    let segment = subject.layout.segment(name).expect("a segment");
    let same = |place: &&crate::layout::Place| {
        let range = place.bytes.clone();
        older.get(range.clone()) != subject.files[name].get(range)
    };
    let Some(first) = segment.places.iter().find(same) else {
        return Expected::Same;
    };
    let gone = |record: &Record| {
        let mut places = segment.places.iter();
        record.sequence >= first.position && places.any(|place| place.position == record.sequence)
    };
    if first.position < subject.layout.watermark_without(gone) {
        Expected::Refused
    } else {
        Expected::Torn(first.position)
    }
}

/// One file from an earlier moment, and all but META from an earlier moment.
pub fn from_earlier(table: &mut Table) {
    let Moments {
        killed,
        closed,
        earlier,
    } = moments();
    for (moment, earlier) in earlier.iter().enumerate() {
        for subject in [&killed, &closed] {
            let mut files = subject.files.clone();
            files.insert("META".to_owned(), earlier["META"].clone());
            let what = format!("META of moment {moment}");
            judge(subject, files, what, Expected::Same, table);

            for name in subject.segment_names() {
                let Some(older) = earlier.get(&name) else {
                    continue;
                };
                let mut files = subject.files.clone();
                files.insert(name.clone(), older.clone());
                let expected = older_copy(subject, &name, older);
                let what = format!("{name} of moment {moment}");
                judge(subject, files, what, expected, table);
            }
        }
        // A proper close vouches for all that there was.
        let mut files = earlier.clone();
        files.insert("META".to_owned(), closed.files["META"].clone());
        let what = format!("all but META of moment {moment}");
        judge(&closed, files, what, Expected::Refused, table);
    }
}

/// Records copied to where others stand, and to where nothing does.
pub fn copied_records(subject: &Subject, table: &mut Table) {
    for segment in &subject.layout.segments {
        let records: Vec<_> = segment.places.iter().collect();
        for (number, from) in records.iter().enumerate() {
            let source = subject.files[&segment.name][from.bytes.clone()].to_vec();
            let starts = records.iter().map(|place| place.bytes.start);
            let targets: Vec<_> = starts.chain([segment.end()]).collect();
            // Not every pair: a few of each.
            for to in targets.into_iter().skip(number % 3).step_by(3) {
                let mut files = subject.files.clone();
                let file = files.get_mut(&segment.name).expect("a file");
                let end = (to + source.len()).min(file.len());
                if to == from.bytes.start || end == to {
                    continue;
                }
                file[to..end].copy_from_slice(&source[..end - to]);
                let hit = |record: &Record| {
                    let mut places = segment.places.iter();
                    places.any(|place| {
                        place.position == record.sequence
                            && place.bytes.start < end
                            && to < place.bytes.end
                    })
                };
                let first = segment.places.iter().find(|place| place.bytes.end > to);
                let expected = match first {
                    None => Expected::Same,
                    Some(first) if first.position < subject.layout.watermark_without(hit) => {
                        Expected::Refused
                    }
                    Some(first) => Expected::Torn(first.position),
                };
                let what = format!("{}: {:?} copied to {to}", segment.name, from.bytes);
                judge(subject, files, what, expected, table);
            }
        }
    }
}

/// Responses that hold the bytes of true records, at every alignment. The length of the record that
/// holds them is then made unreadable, so that the next true record is searched for within them.
pub fn records_in_responses(table: &mut Table) {
    let making = Making::new();
    let store = making.open();
    let claim = |name: &str| started(store.claim(&key(name), request()).expect("a claim"));
    claim("victim").complete(b"true").expect("completes");
    store.flush().expect("synced");
    let files = making.killed();
    let bytes = files.values().find(|bytes| bytes.starts_with(b"ONCEKEYS"));
    let layout = Layout::read(&files);
    let bytes = bytes.expect("a segment");
    for (number, place) in layout.segments[0].places.iter().enumerate() {
        for shift in 0..8 {
            let mut response = vec![0; shift];
            response.extend_from_slice(&bytes[place.bytes.clone()]);
            response.extend_from_slice(&bytes[place.bytes.clone()]);
            claim(&format!("carrier-{number}-{shift}"))
                .complete(response)
                .expect("completes");
        }
    }
    claim("last").complete(b"last").expect("completes");
    store.close().expect("closes");
    let subject = Subject::new("records in responses", making.closed());
    let segment = &subject.layout.segments[0];
    for place in &segment.places {
        for byte in 0..8 {
            let mut files = subject.files.clone();
            files.get_mut(&segment.name).expect("a file")[place.bytes.start + byte] ^= 0xFF;
            let hit = |record: &Record| record.sequence == place.position;
            Case {
                subject: &subject,
                files,
                what: format!("byte {byte} of the length at {}", place.bytes.start),
                expected: Expected::Refused,
                lost: Some(&hit),
                effort: if byte == 0 {
                    Effort::GoOn
                } else {
                    Effort::Salvage
                },
                medium: Medium::Simulated,
            }
            .judge(table);
        }
    }
    assert!(Keys::read(&subject.layout).iter().count() > 16);
}
