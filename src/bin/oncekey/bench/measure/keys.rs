//! Keys and responses, made before the clock starts and the same for everybody.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use oncekey::Key;

use super::Fault;

/// Letters of an id that tell keys apart.
const ID_BYTES: usize = 20;
const OPERATION: &str = "POST /v1/payments";
const PART_BYTES_MAX: usize = 255;

/// What the request behind every key is known by, where no digest of our own is taken.
pub(crate) const FINGERPRINT: [u8; 16] = *b"of all requests.";

/// A key, for us and as the bytes that everybody else takes. Cloning it counts references.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) key: Key,
    pub(crate) bytes: Arc<[u8]>,
}

/// The bytes of a key's smallest and largest size.
pub(crate) const KEY_BYTES_MIN: i64 = ID_BYTES as i64;
pub(crate) const KEY_BYTES_MAX: i64 = (3 * PART_BYTES_MAX) as i64;

/// So many different keys of so many bytes; those of another lap are different again.
pub(super) fn samples(lap: u64, count: usize, bytes: usize) -> Result<Vec<Sample>, Fault> {
    (0..count as u64)
        .map(|number| sample(lap << 40 | number, bytes))
        .collect()
}

pub(super) fn sample(number: u64, bytes: usize) -> Result<Sample, Fault> {
    let id = format!("pay_{:016x}", scramble(number));
    let rest = bytes.saturating_sub(id.len());
    let operation = &OPERATION[..OPERATION.len().min(rest / 2)];
    let rest = rest - operation.len();
    let scope_bytes = rest.min(PART_BYTES_MAX);
    let scope = padded(
        &format!("acct_{:013x}", scramble(number % 10_000)),
        scope_bytes,
    );
    let rest = rest - scope_bytes;
    let id_bytes = id.len() + rest.min(PART_BYTES_MAX - id.len());
    let id = padded(&id, id_bytes);
    let left = bytes - scope.len() - operation.len() - id.len();
    let operation = padded(operation, operation.len() + left);
    Ok(Sample {
        bytes: [&scope, &operation, &id]
            .map(String::as_bytes)
            .concat()
            .into(),
        key: Key::new(&scope, &operation, &id)?,
    })
}

fn padded(text: &str, bytes: usize) -> String {
    let mut text: String = text.chars().take(bytes).collect();
    text.extend(std::iter::repeat_n('_', bytes - text.len()));
    text
}

/// The response that every operation completes with. Not one byte over and over: some stores compress.
pub(super) fn response(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64)
        .flat_map(|word| scramble(word).to_le_bytes())
        .take(bytes)
        .collect()
}

/// The place of the `step`-th look-up among `count` keys: each once in `count` steps, in an order that
/// no prefetcher follows.
pub(super) fn shuffled(step: usize, count: usize) -> usize {
    // A prime that is greater than any count is coprime to it.
    const STRIDE: u64 = 4_294_967_311;
    (step as u64 % count as u64 * (STRIDE % count as u64) % count as u64) as usize
}

/// A bijection that looks random (the finaliser of SplitMix64).
pub(super) fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A number for a name that nobody else has.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
