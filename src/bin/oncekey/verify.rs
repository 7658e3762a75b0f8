//! Reading everything, and saying what is wrong.

use oncekey::Corruption;
use serde_json::json;

use crate::json;
use crate::look::{self, Store};
use crate::output::{Exit, Failure, Output};

pub(crate) fn verify(arguments: &Store, output: &mut Output) -> Result<(), Failure> {
    let directory = arguments.directory.display();
    let reader = look::open(&arguments.directory, true, output)?;
    let health = reader.health();
    for corruption in &health.corruptions {
        let mut object = of(corruption);
        let mut text = text(corruption);
        if let Some(key) = reader.suspect(corruption) {
            object["probably"] = json::key(key).into();
            text = format!("{text}; probably of {}", key.display_raw());
        }
        output.show(&object, text)?;
    }
    let mut note = |kind: &str, file: &str, offset: u64, bytes: u64, meaning: String| {
        let object = json!({
            "kind": kind, "file": file, "offset": offset, "bytes": bytes, "meaning": meaning,
        });
        output.show(
            &object,
            format_args!("{kind}: {file}, byte {offset}: {meaning}"),
        )
    };
    if let Some(damage) = health.meta_copy {
        let meaning = format!("{damage}; the other copy is good, and the next open repairs it");
        note("meta_copy", "META", 0, 0, meaning)?;
    }
    for bad in &health.side_cars_bad {
        let meaning = format!(
            "{}; no key is lost, and the next open makes it anew",
            bad.damage
        );
        note("side_car", &bad.file, 0, 0, meaning)?;
    }
    if let Some(tail) = &health.tail {
        let meaning = String::from(
            "the end of the log is being written, or was cut off by a crash; nothing that was \
             acknowledged as durable is in it",
        );
        note("tail", &tail.file, tail.offset, tail.bytes, meaning)?;
    }
    let damaged = health.corruptions.len()
        + health.side_cars_bad.len()
        + usize::from(health.meta_copy.is_some());
    let summary = json!({
        "kind": "summary",
        "damaged": damaged,
        "corruptions": health.corruptions.len(),
        "records": health.records,
        "segments": health.segments,
        "bytes": health.bytes,
        "side_cars": health.side_cars,
        "unfinished": health.holes,
        "seen": look::freshness(&reader),
    });
    let text = format!(
        "{} records in {} files ({} bytes) and {} side-cars are good",
        health.records, health.segments, health.bytes, health.side_cars
    );
    output.show(&summary, text)?;
    output.flush()?;
    match (damaged, health.corruptions.len()) {
        (0, _) => Ok(()),
        (_, 0) => Err(Failure::new(
            Exit::Damaged,
            format!(
                "{directory}: {damaged} damaged; the store opens and repairs it, but watch the disk"
            ),
        )),
        (_, lost) => Err(Failure::new(
            Exit::Damaged,
            format!(
                "{directory}: {lost} places of durable records are lost: restore a backup, or run \
                 `oncekey salvage {directory}` to go on without them"
            ),
        )),
    }
}

fn of(corruption: &Corruption) -> serde_json::Value {
    json!({
        "kind": "corruption",
        "file": corruption.file,
        "offset": corruption.offset,
        "bytes": corruption.bytes,
        "damage": corruption.damage.to_string(),
        "first_sequence": corruption.first_sequence.to_string(),
        "last_sequence": corruption.last_sequence.to_string(),
        "records_at_most": records_at_most(corruption),
        "meaning": MEANING,
    })
}

/// How many records can have stood there: none is smaller than its head and an id of one byte, 16
/// words of the log.
fn records_at_most(corruption: &Corruption) -> u64 {
    let words = corruption
        .last_sequence
        .saturating_sub(corruption.first_sequence)
        + 1;
    words.div_ceil(16)
}

const MEANING: &str = "keys whose newest record stood there answer from an older one, or as absent, \
    after a salvage; until then the store does not open over it";

fn text(corruption: &Corruption) -> String {
    format!(
        "corruption: {}, byte {}, {} bytes: {} (sequences {:#x} to {:#x}, at most {} \
         records); {MEANING}",
        corruption.file,
        corruption.offset,
        corruption.bytes,
        corruption.damage,
        corruption.first_sequence,
        corruption.last_sequence,
        records_at_most(corruption),
    )
}
