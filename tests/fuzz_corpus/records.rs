//! Records, side-cars and tickets alone, from hostile bytes. The first byte says whether the checksum is made
//! true: without that, a fuzzer never gets behind it.

#![allow(dead_code, reason = "every fuzz target uses its own part")]

use oncekey::testing::internals;
use oncekey::{Key, Ticket};

/// A record, and its first word at the position that the first byte says. Whether the record parses.
pub fn record(input: &[u8]) -> bool {
    let Some((mode, bytes)) = input.split_first() else {
        return false;
    };
    let mut bytes = bytes.to_vec();
    if let Some(word) = bytes.first_chunk() {
        internals::first_word(u64::from_le_bytes(*word), u64::from(*mode));
    }
    if mode & 1 == 1 {
        internals::seal_record(&mut bytes);
    }
    internals::record(&bytes)
}

/// A side-car. Whether it would be believed.
///
/// The first byte says whether the checksums are made true, the second which of the true ones is
/// changed, where not all of it is the input's. Each six bytes behind are one change: a place of two
/// bytes and four bytes for it.
pub fn side_car(input: &[u8]) -> bool {
    let Some(([mode, which], changes)) = input.split_first_chunk() else {
        return false;
    };
    let mut bytes = match internals::side_cars().into_iter().nth(usize::from(*which)) {
        Some(side_car) => side_car,
        None => return internals::side_car(changes),
    };
    for change in changes.as_chunks::<6>().0 {
        let [low, high, new @ ..] = change;
        // Half of the places are within the fields, where every byte counts.
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        let at = if at & 1 == 0 {
            at / 2 % 104
        } else {
            4_096 + at / 2
        };
        for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
            *byte = *new;
        }
    }
    if mode & 2 == 2 {
        bytes.truncate(bytes.len() - usize::from(mode >> 2));
    }
    if mode & 1 == 1 {
        bytes = internals::seal_side_car(bytes);
    }
    internals::side_car(&bytes)
}

/// A ticket from a queue that anybody may have written to; a key of the same bytes. Whether the
/// ticket decodes.
pub fn ticket(input: &[u8]) -> bool {
    let Some((mode, bytes)) = input.split_first() else {
        return false;
    };
    let mut bytes = bytes.to_vec();
    if mode & 1 == 1 {
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (scope, operation, id) = (part(), part(), part());
    if let Ok(key) = Key::new(scope, operation, id) {
        assert_eq!(
            (key.scope(), key.operation(), key.id()),
            (scope, operation, id)
        );
    }
    let Ok(ticket) = Ticket::decode(&bytes) else {
        return false;
    };
    assert_eq!(ticket.encode(), bytes, "one ticket has one encoding");
    assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
    true
}
