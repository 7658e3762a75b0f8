//! One byte of one file, or one end of one file: every one of them.

use crate::judge::{Case, Effort, Expected};
use crate::layout::{COVERED, PAGE, Place, Record, Segment};
use crate::medium::Medium;
use crate::stores::Subject;
use crate::table::Table;

/// How a byte is changed.
const KINDS: usize = 10;

pub fn changed(byte: u8, kind: usize) -> u8 {
    match kind {
        bit @ 0..8 => byte ^ 1 << bit,
        8 => byte ^ 0xFF,
        _ => 0,
    }
}

/// Whether all kinds of all bytes are to be tried, and not one kind of each byte that is in use.
pub fn is_long() -> bool {
    std::env::var_os("ONCEKEY_BYTES").is_some_and(|value| value == "all")
}

/// How much to do with the `number`-th case: everything with some, and over all bytes of a word.
fn effort(number: usize) -> Effort {
    let (word, byte) = (number / 8, number % 8);
    match (word + byte) % 64 {
        0 => Effort::GoOn,
        _ if is_long() || word % 8 == byte => Effort::Salvage,
        _ => Effort::Open,
    }
}

/// What a byte is part of.
enum Part {
    /// Nothing that is read, or that a copy could not replace.
    Spare,
    /// The page at the head of a segment.
    Header,
    /// A range of a segment at this position.
    Range(u64),
}

fn part(segment: &Segment, byte: usize) -> Part {
    if byte < COVERED {
        return Part::Header;
    }
    let mut places = segment.places.iter();
    match places.find(|place| place.bytes.contains(&byte)) {
        // Of padding only the first word counts.
        Some(place) if place.record.is_some() || byte < place.bytes.start + 8 => {
            Part::Range(place.position)
        }
        _ => Part::Spare,
    }
}

/// Whether a byte is in the middle of a large response, one of thousands that are alike.
fn is_deep(segment: &Segment, byte: usize) -> bool {
    let mut places = segment.places.iter();
    let place = places.find(|place| place.bytes.contains(&byte));
    place.is_some_and(|place| byte > place.bytes.start + 400 && byte + 64 < place.bytes.end)
}

/// What must come of it when the range at `position`, and maybe all records from `lost` on, can't be
/// read.
fn bad_range(subject: &Subject, position: u64, lost: impl Fn(&Record) -> bool) -> Expected {
    if position < subject.layout.watermark_without(lost) {
        Expected::Refused
    } else {
        Expected::Torn(position)
    }
}

/// Every byte of a file changed.
pub fn flips(subject: &Subject, name: &str, table: &mut Table) {
    let original = &subject.files[name];
    let segment = subject.layout.segment(name);
    for (byte, was) in original.iter().copied().enumerate() {
        let part = segment.map_or(Part::Spare, |segment| part(segment, byte));
        let in_use = match part {
            Part::Header | Part::Range(_) => true,
            Part::Spare => name == "META" && byte % PAGE < COVERED,
        };
        let is_first = byte < PAGE + 256 || name == "META";
        let is_deep = segment.is_some_and(|segment| is_deep(segment, byte));
        let kinds: &[usize] = match (is_long(), in_use) {
            (true, true) if is_first => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            (true, true) => &[byte % 8, 8, 9],
            (true, false) => &[byte % 9],
            (false, true) if subject.chosen(byte) && (!is_deep || byte % 13 == 0) => {
                &[byte % KINDS]
            }
            (false, _) if byte % 97 == 0 => &[byte % 9],
            (false, _) => &[],
        };
        for kind in kinds {
            let mut value = changed(was, *kind);
            if value == was {
                value ^= 1 << (byte % 8);
            }
            let hit = |record: &Record| match part {
                Part::Range(position) => record.sequence == position,
                Part::Spare | Part::Header => false,
            };
            let expected = match part {
                Part::Spare => Expected::Same,
                Part::Header => Expected::Refused,
                Part::Range(position) => bad_range(subject, position, hit),
            };
            let mut files = subject.files.clone();
            files.get_mut(name).expect("a file")[byte] = value;
            Case {
                subject,
                files,
                what: format!("{name}, byte {byte} from {was} to {value}"),
                expected,
                lost: Some(&hit),
                effort: effort(byte),
                medium: Medium::Simulated,
            }
            .judge(table);
        }
    }
}

/// A file cut off at every length.
pub fn truncations(subject: &Subject, name: &str, table: &mut Table) {
    let original = &subject.files[name];
    let segment = subject.layout.segment(name);
    for len in 0..original.len() {
        let in_use = match segment {
            Some(segment) => len < segment.end() + 16 && !is_deep(segment, len),
            None => name == "META" && len % PAGE < COVERED,
        };
        let chosen = match (is_long(), in_use) {
            (true, true) => true,
            // Every word, and every third an odd length.
            (false, true) => subject.chosen(len / 8) && (len % 8 == 0 || len % 24 == 5),
            (true, false) => len % 8 == 0 || len % 64 == 5,
            (false, false) => len % 1_024 == 0 || len % 4_096 == 5,
        };
        if !chosen {
            continue;
        }
        let lost = |record: &Record| {
            let here = |place: &&Place| place.position == record.sequence;
            let stands_in = segment.and_then(|segment| segment.places.iter().find(here));
            stands_in.is_some_and(|place| len < PAGE || len / 8 * 8 < place.bytes.end)
        };
        let expected = match segment {
            None if name == "META" && len < PAGE => Expected::Refused,
            None => Expected::Same,
            Some(_) if len < PAGE || len % 8 != 0 => Expected::Refused,
            Some(segment) => match segment.places.iter().find(|place| len < place.bytes.end) {
                Some(place) => bad_range(subject, place.position, |record| {
                    lost(record) || record.sequence >= place.position
                }),
                None => Expected::Same,
            },
        };
        let mut files = subject.files.clone();
        files.get_mut(name).expect("a file").truncate(len);
        Case {
            subject,
            files,
            what: format!("{name} cut at {len}"),
            expected,
            lost: Some(&lost),
            effort: effort(len / 3),
            medium: Medium::Simulated,
        }
        .judge(table);
    }
}

/// A file made longer by zeros and by noise.
pub fn extensions(subject: &Subject, name: &str, table: &mut Table) {
    let mut noise = 1_u64;
    for more in [1, 7, 8, 9, 64, 512, 4_096, 65_536, 100_000] {
        for with_noise in [false, true] {
            let mut files = subject.files.clone();
            let file = files.get_mut(name).expect("a file");
            for _ in 0..more {
                noise = noise
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                file.push(if with_noise { (noise >> 56) as u8 } else { 0 });
            }
            let is_segment = name.ends_with(".log");
            Case {
                subject,
                files,
                what: format!("{name} longer by {more}, noise: {with_noise}"),
                expected: if is_segment && more % 8 != 0 {
                    Expected::Refused
                } else {
                    Expected::Same
                },
                lost: Some(&|_| false),
                effort: Effort::GoOn,
                medium: Medium::Simulated,
            }
            .judge(table);
        }
    }
}

/// A file that is gone.
pub fn removals(subject: &Subject, name: &str, table: &mut Table) {
    let segment = subject.layout.segment(name);
    let lost = |record: &Record| {
        let mut places = segment.iter().flat_map(|segment| &segment.places);
        places.any(|place| place.position == record.sequence)
    };
    let holds_records = subject.layout.records().any(lost);
    // An empty one is missed by the next, which names it.
    let last = subject.layout.segments.last().expect("a segment");
    let is_missed = segment.is_some_and(|segment| segment.name != last.name);
    let mut files = subject.files.clone();
    files.remove(name);
    Case {
        subject,
        files,
        what: format!("{name} removed"),
        expected: if holds_records || is_missed || name == "META" {
            Expected::Refused
        } else {
            Expected::Same
        },
        lost: Some(&lost),
        effort: Effort::GoOn,
        medium: Medium::Simulated,
    }
    .judge(table);
}
