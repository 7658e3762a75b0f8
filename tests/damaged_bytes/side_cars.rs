//! Damage to side-cars, and to segments whose side-car is read instead of their records.
//!
//! A side-car that is not whole, or not that of the segment beside it, is told, and the segment is
//! read as if there were none. One that is good stands for its segment: damage there is told to
//! whoever asks for a key that it hit.

use oncekey::{ClaimError, Recovery};

use crate::answers::{Answer, answers};
use crate::judge::{Case, Effort, Expected};
use crate::layout::{COVERED, Files, PAGE, Record};
use crate::medium::{Medium, Opened};
use crate::single::changed;
use crate::stores::{SIDE_CAR, Subject, closed_with_side_cars};
use crate::support::request;
use crate::table::Table;

fn names(subject: &Subject) -> Vec<String> {
    let names = subject.files.keys();
    names
        .filter(|name| name.ends_with(SIDE_CAR))
        .cloned()
        .collect()
}

fn judge(subject: &Subject, files: Files, what: String, effort: Effort, table: &mut Table) {
    Case {
        subject,
        files,
        what,
        expected: Expected::Same,
        lost: None,
        effort,
        medium: Medium::Simulated,
    }
    .judge(table);
}

/// The side-cars that an open did not believe.
fn not_believed(files: &Files) -> Vec<String> {
    let store = Medium::Simulated.put(files).open(Recovery::Refuse);
    let store = store.expect("side-cars are no reason to refuse");
    let report = store.recovery_report();
    let bad: Vec<_> = report
        .side_cars_bad
        .iter()
        .map(|bad| bad.file.clone())
        .collect();
    let read = report.side_cars + report.side_cars_missing + bad.len() as u64;
    assert_eq!(read, report.segments);
    assert_eq!(
        report.bytes_scanned == 0,
        bad.is_empty() && report.side_cars_missing == 0
    );
    bad
}

/// Every byte of every side-car changed, and every length.
pub fn changed_and_cut(subject: &Subject, table: &mut Table) {
    assert!(not_believed(&subject.files).is_empty());
    for name in names(subject) {
        let original = &subject.files[&name];
        let in_use = |byte: usize| !(COVERED..PAGE).contains(&byte);
        for byte in (0..original.len()).filter(|byte| in_use(*byte) || byte.is_multiple_of(97)) {
            let mut files = subject.files.clone();
            let file = files.get_mut(&name).expect("a file");
            file[byte] = changed(file[byte], byte % 9);
            let bad = not_believed(&files);
            assert_eq!(bad.contains(&name), in_use(byte), "{name}, byte {byte}");
            let effort = if byte % 64 == 0 {
                Effort::GoOn
            } else {
                Effort::Open
            };
            judge(
                subject,
                files,
                format!("{name}, byte {byte}"),
                effort,
                table,
            );
        }
        let chosen = |len: &usize| {
            len.is_multiple_of(if in_use(*len) { 13 } else { 1_009 }) || len % 512 == 8
        };
        for len in (0..original.len()).filter(chosen) {
            let mut files = subject.files.clone();
            files.get_mut(&name).expect("a file").truncate(len);
            assert_eq!(
                not_believed(&files),
                std::slice::from_ref(&name),
                "{name} cut at {len}"
            );
            judge(
                subject,
                files,
                format!("{name} cut at {len}"),
                Effort::Open,
                table,
            );
        }
        for more in [1, 4, 8, 12, 4_096] {
            let mut files = subject.files.clone();
            let file = files.get_mut(&name).expect("a file");
            file.resize(original.len() + more, 7);
            assert_eq!(
                not_believed(&files),
                std::slice::from_ref(&name),
                "{name} longer by {more}"
            );
            judge(
                subject,
                files,
                format!("{name} longer by {more}"),
                Effort::GoOn,
                table,
            );
        }
        let mut files = subject.files.clone();
        files.remove(&name);
        assert!(not_believed(&files).is_empty());
        judge(
            subject,
            files,
            format!("{name} removed"),
            Effort::GoOn,
            table,
        );
    }
}

/// A byte of a segment changed: its records are not read at the open.
pub fn segments_changed(subject: &Subject, table: &mut Table) {
    for segment in &subject.layout.segments {
        let name = &segment.name;
        for place in &segment.places {
            let deep = place.bytes.start + 400..place.bytes.end.saturating_sub(64);
            let chosen = |byte: &usize| !deep.contains(byte) || byte.is_multiple_of(997);
            for byte in place.bytes.clone().filter(chosen) {
                let mut files = subject.files.clone();
                let file = files.get_mut(name).expect("a file");
                let value = changed(file[byte], byte % 8);
                file[byte] = value;
                let hit = |record: &Record| record.sequence == place.position;
                if place.record.is_none() {
                    // Nobody reads padding, but to make a side-car.
                    let what = format!("{name}, byte {byte} of padding");
                    judge(subject, files, what, Effort::Open, table);
                    continue;
                }
                Case {
                    subject,
                    files,
                    what: format!("{name}, byte {byte} to {value}"),
                    expected: Expected::Told,
                    lost: Some(&hit),
                    effort: if byte % 32 == 0 {
                        Effort::GoOn
                    } else {
                        Effort::Open
                    },
                    medium: Medium::Simulated,
                }
                .judge(table);
            }
        }
    }
}

/// Side-cars in each other's place, and those of other stores.
pub fn misplaced(subject: &Subject, others: &[Subject], table: &mut Table) {
    let own = names(subject);
    let theirs = others.iter().flat_map(|other| {
        let of = move |name| (name, other);
        names(other).into_iter().map(of)
    });
    let all = own.iter().cloned().map(|name| (name, subject));
    for (from, of) in all.chain(theirs).collect::<Vec<_>>() {
        for to in own
            .iter()
            .filter(|to| **to != from || !std::ptr::eq(of, subject))
        {
            let mut files = subject.files.clone();
            files.insert(to.clone(), of.files[&from].clone());
            assert_eq!(
                not_believed(&files),
                std::slice::from_ref(to),
                "{from} as {to}"
            );
            judge(
                subject,
                files,
                format!("{from} as {to}"),
                Effort::GoOn,
                table,
            );
        }
    }
    // One whose segment is not there is removed.
    let mut files = subject.files.clone();
    let lonely = "segment-0000fff000000000.idx".to_owned();
    files.insert(lonely.clone(), subject.files[&own[0]].clone());
    let disk = Medium::Simulated.put(&files);
    drop(disk.open(Recovery::Refuse).expect("opens"));
    let Opened::Simulated(disk) = disk else {
        unreachable!("that is what was asked for");
    };
    assert_eq!(disk.contents(&lonely), None);
}

/// A salvage gives up a record; then the side-car that still knows of it is put back. Whoever asks
/// for the key is told: it is not absent because its record is gone.
pub fn from_before_a_salvage() {
    let subject = closed_with_side_cars();
    let segment = &subject.layout.segments[0];
    let side_car = segment.name.replace(".log", SIDE_CAR);
    let completed =
        |record: &Record| record.kind == 3 && record.deadline_ms > crate::stores::JUDGED_MS;
    let is_hit = |place: &&crate::layout::Place| place.record.as_ref().is_some_and(completed);
    let place = segment.places.iter().find(is_hit).expect("a result");
    let mut files = subject.files.clone();
    files.get_mut(&segment.name).expect("a segment")[place.bytes.start + 40] ^= 1;
    let disk = Medium::Simulated.put(&files);
    let store = disk.open(Recovery::Salvage).expect("salvaged");
    let salvaged = answers(&store, &subject.keys);
    store.close().expect("closes");
    drop(store);
    let Opened::Simulated(disk) = disk else {
        unreachable!("that is what was asked for");
    };
    assert_ne!(
        disk.contents(&side_car).as_ref(),
        Some(&subject.files[&side_car])
    );
    disk.put(&side_car, &subject.files[&side_car]);
    let store = Opened::Simulated(disk)
        .open(Recovery::Refuse)
        .expect("opens");
    let found = answers(&store, &subject.keys);
    let hit = |record: &Record| record.sequence == place.position;
    let hit = subject.keys.newest_are(hit);
    for (((key, found), before), hit) in subject.keys.iter().zip(found).zip(salvaged).zip(hit) {
        match found {
            Answer::Damaged => {
                assert!(hit, "{key:?}");
                let claim = store.claim(key, request());
                assert!(matches!(claim, Err(ClaimError::Damaged(_))));
            }
            found => assert_eq!((found, hit), (before, false), "{key:?}"),
        }
    }
}
