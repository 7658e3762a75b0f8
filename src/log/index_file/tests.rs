//! Side-cars as they are written, and what becomes of them when their bytes change.

use super::*;
use crate::domain::Domain;
use crate::sync::Ordering;

fn summary() -> Summary {
    Summary {
        store_id: 5,
        base: 3 << 36,
        segment_crc: 77,
        end: 2048,
        records: 9,
        records_end: 2000,
        watermark: (3 << 36) + 512,
        high_water_ms: 1234,
    }
}

fn entries(count: u64) -> Vec<Entry> {
    let kinds = [Kind::Complete, Kind::Claim, Kind::Forget];
    (0..count)
        .map(|number| Entry {
            reversed_hash: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            place: Place::new(
                FIRST_RECORD + 24 * number,
                kinds[number as usize % 3],
                Domain::Operations,
            ),
        })
        .collect()
}

fn map(bytes: &[u8]) -> Memory {
    let memory = Memory::heap(bytes.len().div_ceil(8));
    memory.copy_in(0, bytes);
    memory
}

fn read(file: &IndexFile) -> Vec<Entry> {
    (0..).map_while(|at| file.entry(at)).collect()
}

/// Changes a file and makes its checksums true again.
fn forged(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Result<IndexFile, Damage> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    IndexFile::of_map(map(&sealed(bytes)))
}

#[test]
fn what_was_written_is_read_back_in_order() {
    for count in [0, 1, 2, 7, 8] {
        let made = encode(summary(), entries(count));
        let file = IndexFile::of_map(map(made.bytes())).expect("whole");
        assert_eq!((file.summary(), made.summary()), (&summary(), &summary()));
        let mut expected = entries(count);
        expected.sort_unstable();
        assert_eq!(
            (read(&file), read(&made)),
            (expected.clone(), expected.clone())
        );
        for least in [0, 1, 1 << 63, u64::MAX] {
            let first = expected
                .iter()
                .position(|entry| entry.reversed_hash >= least);
            assert_eq!(file.first_from(least), first.unwrap_or(expected.len()));
        }
    }
}

#[test]
fn every_changed_byte_of_a_field_or_an_entry_is_noticed() {
    let made = encode(summary(), entries(7));
    for byte in 0..made.bytes().len() {
        for bit in 0..8 {
            let memory = map(made.bytes());
            let word = memory.word(byte / 8);
            word.fetch_xor(1 << (byte % 8 * 8 + bit), Ordering::Relaxed);
            let found = IndexFile::of_map(memory);
            // Behind the fields the page means nothing.
            let is_spare = (FIELD_BYTES..PAGE_BYTES).contains(&byte);
            assert_eq!(found.is_ok(), is_spare, "bit {bit} of byte {byte}");
        }
    }
}

#[test]
fn every_other_length_is_noticed() {
    let made = encode(summary(), entries(7));
    let bytes = made.bytes();
    for words in 0..bytes.len() / 8 {
        assert!(
            IndexFile::of_map(map(&bytes[..words * 8])).is_err(),
            "{words} words"
        );
    }
    for more in [8, 16, 4096] {
        let longer = [bytes, &vec![0; more]].concat();
        assert_eq!(
            IndexFile::of_map(map(&longer)).unwrap_err(),
            Damage::Truncated
        );
    }
}

#[test]
fn no_field_is_trusted_even_under_true_checksums() {
    let made = encode(summary(), entries(7));
    let put = |offset: usize, value: u64| {
        forged(made.bytes(), |bytes| {
            bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        })
        .unwrap_err()
    };
    for (offset, value, field) in [
        (at::ENTRIES, 6, "number of entries"),
        (at::ENTRIES, u64::MAX, "number of entries"),
        (at::ENTRIES, u64::MAX / 12, "number of entries"),
        (at::END, FIRST_RECORD - 1, "end"),
        (at::END, SEGMENT_BYTES_MAX / 8 + 1, "end"),
        (at::END, u64::MAX, "end"),
        (at::BASE, u64::MAX, "end"),
        (at::RECORDS_END, 2049, "end of the records"),
        (at::RECORDS_END, 511, "end of the records"),
        (at::RECORDS, 6, "number of records"),
        (at::RECORDS, u64::MAX, "number of records"),
        (
            at::RECORDS_END,
            FIRST_RECORD + 9 * RECORD_WORDS_MIN,
            "place",
        ),
        (PAGE_BYTES, u64::MAX, "order"),
    ] {
        assert_eq!(
            put(offset, value),
            Damage::Field(field),
            "{value} at {offset}"
        );
    }
    assert_eq!(put(at::FILE_BYTES, 0), Damage::Truncated);
    let places = PAGE_BYTES + 7 * HASH_BYTES;
    for place in [
        0,
        u32::MAX,
        511 | 3 << 23,
        1990 | 3 << 23,
        600,
        600 | 6 << 23,
        // A domain that there is not, and a bit behind it.
        600 | 27 << 23,
        600 | 35 << 23,
    ] {
        let found = forged(made.bytes(), |bytes| {
            bytes[places..places + 4].copy_from_slice(&place.to_le_bytes());
        });
        assert_eq!(found.unwrap_err(), Damage::Field("place"), "{place:#x}");
    }
    let padding = places + 7 * PLACE_BYTES;
    let found = forged(made.bytes(), |bytes| bytes[padding] = 1);
    assert_eq!(found.unwrap_err(), Damage::Field("padding"));
    let found = forged(made.bytes(), |bytes| bytes[8] = 2);
    assert_eq!(found.unwrap_err(), Damage::Field("version"));
}
