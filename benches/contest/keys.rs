//! Keys and responses, made before the clock starts and shared by all contestants.

use std::sync::Arc;

use oncekey::Key;

/// Bytes of a key: 19 of scope, 17 of operation, 20 of id.
pub const KEY_BYTES: usize = 56;
/// Bytes of a response.
pub const RESPONSE_BYTES: usize = 512;
/// Accounts that the keys are spread over.
const ACCOUNTS: u64 = 10_000;

/// The same keys in the shape that each contestant takes. Cloning either counts a reference.
pub struct Keys {
    pub oncekey: Vec<Key>,
    pub bytes: Vec<Arc<[u8]>>,
}

impl Keys {
    /// `count` different keys.
    pub fn new(count: usize) -> Self {
        let mut keys = Self {
            oncekey: Vec::with_capacity(count),
            bytes: Vec::with_capacity(count),
        };
        for index in 0..count as u64 {
            let [scope, operation, id] = parts(index);
            let key = Key::new(&scope, &operation, &id).expect("a key");
            keys.oncekey.push(key);
            let bytes = [scope.as_bytes(), operation.as_bytes(), id.as_bytes()].concat();
            assert_eq!(bytes.len(), KEY_BYTES);
            keys.bytes.push(bytes.into());
        }
        keys
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The parts of the key of this number.
pub fn parts(index: u64) -> [String; 3] {
    [
        format!("acct_{:014x}", scramble(index % ACCOUNTS) >> 8),
        "POST /v1/payments".to_owned(),
        format!("pay_{:016x}", scramble(index + ACCOUNTS)),
    ]
}

/// The response that every operation completes with.
pub fn response() -> Vec<u8> {
    (0..RESPONSE_BYTES)
        .map(|at| b' ' + (at % 90) as u8)
        .collect()
}

/// The place of the `step`-th look-up among `count` keys: every key once in `count` steps, in an
/// order that no prefetcher follows.
pub fn shuffled(step: usize, count: usize) -> usize {
    // Coprime to every power of two, and to any count that is not a multiple of it.
    (step * 7_368_787) % count
}

/// A bijection that looks random (the finaliser of SplitMix64).
fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
