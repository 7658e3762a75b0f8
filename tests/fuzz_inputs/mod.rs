//! What one fuzz input does, for libFuzzer (`fuzz/`) and for the replay of the corpus on a stable
//! toolchain (`tests/fuzz_corpus.rs`). The first byte says whether checksums are made true after
//! the change: without that, a fuzzer never gets behind them.

#![allow(dead_code, reason = "every fuzz target uses its own part")]

use oncekey::testing::{SimulatedDisk, internals};
use oncekey::{Claim, Durability, Fingerprint, Key, KeyState, Options, Recovery, Ticket};

const PAGE_BYTES: usize = 4096;
const KEYS: u8 = 12;

/// A record alone, and its first word.
pub fn record_decode(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if let Some(word) = bytes.first_chunk() {
        internals::first_word(u64::from_le_bytes(*word), u64::from(*mode));
    }
    if mode & 1 == 1 {
        internals::seal_record(&mut bytes);
    }
    internals::record(&bytes);
}

/// A ticket from a queue that anybody may have written to; a key of the same bytes.
pub fn ticket_decode(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if mode & 1 == 1 {
        let crc = crc32(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    if let Ok(ticket) = Ticket::decode(&bytes) {
        assert_eq!(ticket.encode(), bytes, "one ticket has one encoding");
        assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
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
}

/// The two slots of META: 64 bytes for the fields of each, over a true META.
pub fn meta(input: &[u8]) {
    let Some((mode, bytes)) = input.split_first() else {
        return;
    };
    let disk = written();
    let mut file = disk.contents("META").expect("META");
    for (slot, change) in bytes.chunks(128).take(2).enumerate() {
        let page = &mut file[slot * PAGE_BYTES..][..PAGE_BYTES];
        // Bytes are added, so that zeros change nothing.
        for (byte, change) in page.iter_mut().zip(change) {
            *byte = byte.wrapping_add(*change);
        }
        if mode & (1 << slot) != 0 {
            internals::seal_page(page);
        }
    }
    if mode & 4 != 0 {
        file.truncate(usize::from(*mode >> 3) * 300);
    }
    disk.put("META", &file);
    internals::meta(&disk);
    open(&disk, Recovery::Refuse);
}

/// Edits of the files of a true store: 6 bytes each, file, kind, offset (2), length, value.
pub fn segment_recovery(input: &[u8]) {
    let Some((mode, edits)) = input.split_first() else {
        return;
    };
    let disk = written();
    let mut names = disk.names();
    names.retain(|name| name != "META");
    names.sort();
    for edit in edits.chunks_exact(6).take(16) {
        let name = &names[usize::from(edit[0]) % names.len()];
        let Some(mut file) = disk.contents(name) else {
            continue;
        };
        let at = usize::from(u16::from_le_bytes([edit[2], edit[3]])) % file.len().max(1);
        let end = (at + usize::from(edit[4])).min(file.len());
        match edit[1] % 4 {
            0 => file[at..end].fill(edit[5]),
            1 => file.truncate(at),
            2 => {
                let to = usize::from(edit[5]) * 64 % file.len().max(1);
                let end = end.min(at + (file.len() - to));
                file.copy_within(at..end, to);
            }
            _ => file[at..end].iter_mut().for_each(|byte| *byte ^= edit[5]),
        }
        if mode & 1 == 1 {
            internals::seal_segment(&mut file);
        }
        disk.put(name, &file);
    }
    open(&disk, Recovery::Refuse);
    if let Some(store) = open(&disk, Recovery::Salvage) {
        drop(store);
        assert!(
            open(&disk, Recovery::Refuse).is_some(),
            "what was salvaged opens"
        );
    }
}

fn key(number: u8) -> Key {
    Key::new("scope", "operation", [number]).expect("a key")
}

fn options() -> Options {
    Options::new()
        .durability(Durability::Sync)
        .segment_size(64 << 10)
        .stripes(1)
}

/// A closed store with open, completed and released keys.
fn written() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let store = options().open_simulated(&disk).expect("a new store");
    for number in 0..KEYS {
        let claim = store.claim(&key(number), Fingerprint::none());
        let Ok(Claim::Started(operation)) = claim else {
            panic!("a new key is not free");
        };
        match number % 3 {
            0 => drop(operation),
            1 => operation.release().expect("a release"),
            _ => drop(operation.complete([number; 40]).expect("a completion")),
        }
    }
    store.close().expect("a store that closes");
    drop(store);
    disk
}

/// Opens a store; one that opens answers for every key, and takes a new one.
fn open(disk: &SimulatedDisk, recovery: Recovery) -> Option<oncekey::Store> {
    let store = options().recovery(recovery).open_simulated(disk).ok()?;
    for number in 0..KEYS {
        if let Ok(KeyState::Completed(saved)) = store.get(&key(number)) {
            drop(saved.by_scope());
        }
    }
    drop(store.claim(&key(KEYS), Fingerprint::none()));
    Some(store)
}

/// CRC-32 (IEEE), bit by bit: the fuzz crate should need no further dependency.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
