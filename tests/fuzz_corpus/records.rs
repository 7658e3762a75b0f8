//! Records and tickets alone, from hostile bytes. The first byte says whether the checksum is made
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
