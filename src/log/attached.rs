//! What is attached to a completion: whole records of their own, in its extension.
//!
//! A completion and the messages and versions that belong to it are one range of the log: one
//! reservation, one checksum over all, one word that commits it. So all of it is there or none.
//! Each attached record is complete all the same, with a first word, a checksum and its own position
//! as its sequence. Slots point straight at it, and compaction copies it by itself.
//!
//! Its first word says [`State::Attached`]: a scan that looks for the next true range after damage
//! does not take a part of a damaged whole for one.

use crate::domain::Domain;
use crate::log::record::{Kind, Malformed, Record};
use crate::log::word::{self, Decoded, State};

/// A record within another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached<'a> {
    /// Words from the start of the whole.
    pub(crate) offset: u64,
    pub(crate) words: u64,
    pub(crate) record: Record<'a>,
}

/// The records that are attached to `record`, whose bytes these are and which stands at `position`
/// in the segment of `seed`. Each is verified; the first that is not as a writer makes it is the
/// last that is shown.
pub(crate) fn attached<'a>(
    record: &Record<'_>,
    bytes: &'a [u8],
    position: u64,
    seed: u64,
) -> impl Iterator<Item = Result<Attached<'a>, Malformed>> + use<'a> {
    let mut offset = record.body_words();
    let mut is_over = false;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset as usize * 8..).unwrap_or_default();
        if is_over || rest.is_empty() {
            return None;
        }
        let next = next(rest, offset, position, seed);
        match &next {
            Ok(attached) => offset += attached.words,
            Err(_) => is_over = true,
        }
        Some(next)
    })
}

fn next(rest: &[u8], offset: u64, position: u64, seed: u64) -> Result<Attached<'_>, Malformed> {
    let fault = Malformed::Field("extension");
    let raw = rest.first_chunk().ok_or(fault)?;
    let position = position.checked_add(offset).ok_or(fault)?;
    let Decoded::Word {
        words,
        state: State::Attached,
    } = word::decode(u64::from_le_bytes(*raw), position, seed)
    else {
        return Err(fault);
    };
    let own = rest.get(..words as usize * 8).ok_or(fault)?;
    let record = Record::parse(own, seed)?;
    let is_attachment = record.kind == Kind::Complete
        && record.domain != Domain::Operations
        && !record.is_copy
        && record.sequence == position
        && record.token == position;
    if !is_attachment {
        return Err(fault);
    }
    Ok(Attached {
        offset,
        words,
        record,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::{contents, encode};
    use crate::log::record::{CRC_OFFSET, Contents, checksum, make_copy};

    const SEED: u64 = 77;
    const POSITION: u64 = 700;

    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let crc = checksum(&bytes[CRC_OFFSET + 4..], SEED);
        bytes[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// A completion with these records attached, as a writer makes it.
    fn whole(attached: &[Contents<'_>]) -> Vec<u8> {
        let outer = Contents {
            attached,
            ..contents(b"operation", b"response")
        };
        let mut bytes = encode(&outer, POSITION, SEED);
        let mut at = outer.body_words();
        for one in attached {
            let words = one.body_words();
            let mut own = encode(one, POSITION + at, SEED);
            let word = word::encode(words, State::Attached, POSITION + at, SEED);
            own[..8].copy_from_slice(&word.to_le_bytes());
            let start = at as usize * 8;
            bytes[start..start + own.len()].copy_from_slice(&own);
            at += words;
        }
        resealed(bytes)
    }

    fn of_domain<'a>(domain: Domain, key: &'a [u8], response: &'a [u8]) -> Contents<'a> {
        Contents {
            domain,
            token: 0,
            principal: None,
            ..contents(key, response)
        }
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Domain, Vec<u8>)>, Malformed> {
        let record = Record::parse(bytes, SEED)?;
        let all = attached(&record, bytes, POSITION, SEED);
        all.map(|one| one.map(|one| (one.record.domain, one.record.key.to_vec())))
            .collect()
    }

    #[test]
    fn what_is_attached_reads_back_and_is_left_out_of_a_copy() {
        let message = of_domain(Domain::Messages, b"message 1", b"a payload of some length");
        let version = of_domain(Domain::Versions, b"entity 22", &[1, 0, 0, 0, 0, 0, 0, 0]);
        let bytes = whole(&[message, version]);
        let expected = vec![
            (Domain::Messages, b"message 1".to_vec()),
            (Domain::Versions, b"entity 22".to_vec()),
        ];
        assert_eq!(read(&bytes), Ok(expected));
        let record = Record::parse(&bytes, SEED).expect("whole");
        assert_eq!(record.response, Some(&b"response"[..]));
        let own = record.body_words() as usize * 8;
        assert_eq!(own + record.extension_bytes, bytes.len());
        let mut copy = bytes[..own].to_vec();
        make_copy(&mut copy, SEED);
        let copy = Record::parse(&copy, SEED).expect("a whole copy");
        assert_eq!((copy.extension_bytes, copy.response), (0, record.response));
    }

    #[test]
    fn every_flipped_bit_is_noticed_even_under_a_true_outer_checksum() {
        let version = of_domain(Domain::Versions, b"entity 22", &[1, 0, 0, 0, 0, 0, 0, 0]);
        let bytes = whole(&[version]);
        let first = Record::parse(&bytes, SEED).expect("whole").body_words() as usize * 8;
        for bit in first * 8..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).is_err(), "bit {bit}");
            assert!(read(&resealed(flipped)).is_err(), "bit {bit}, resealed");
        }
    }

    #[test]
    fn only_what_a_completion_can_carry_is_taken() {
        let good = of_domain(Domain::Versions, b"entity 22", b"12345678");
        assert!(read(&whole(&[good])).is_ok());
        let operation = of_domain(Domain::Operations, b"entity 22", b"12345678");
        let removal = Contents {
            kind: Kind::Forget,
            response: None,
            ..good
        };
        let other_token = Contents { token: 5, ..good };
        for bad in [operation, removal, other_token] {
            assert!(read(&whole(&[bad])).is_err(), "{bad:?}");
        }
        // Neither can anything else carry it.
        for kind in [Kind::Forget, Kind::Release] {
            let mut bytes = whole(&[good]);
            bytes[12] = kind as u8;
            assert!(Record::parse(&resealed(bytes), SEED).is_err());
        }
        // A length that cuts it off.
        let mut bytes = whole(&[good, good]);
        bytes.truncate(bytes.len() - 8);
        assert!(read(&resealed(bytes)).is_err());
    }
}
