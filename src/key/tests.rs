use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

const SECRET: [u8; 192] = {
    let mut secret = [0; 192];
    let mut at = 0;
    while at < secret.len() {
        secret[at] = mix(at as u64 + 1) as u8;
        at += 1;
    }
    secret
};

fn std_hash(key: &Key) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(key)
}

/// Every way to cut `text` into scope, operation and a non-empty id.
fn all_cuts(text: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    for first in 0..text.len() {
        for second in first..text.len() {
            let (scope, operation) = (&text[..first], &text[first..second]);
            keys.push(Key::new(scope, operation, &text[second..]).unwrap());
        }
    }
    keys
}

#[test]
fn the_parts_come_back_as_they_were() {
    let key = Key::new("acct_1", "POST /v1/payments", b"\0\xff").unwrap();
    assert_eq!(key.scope(), b"acct_1");
    assert_eq!(key.operation(), b"POST /v1/payments");
    assert_eq!(key.id(), b"\0\xff");
    assert_eq!(key.as_bytes(), b"acct_1POST /v1/payments\0\xff");
    assert_eq!(key.lengths(), (6, 17, 2));
    assert!(Arc::ptr_eq(&key.bytes, &key.clone().bytes));
}

#[test]
fn every_limit_is_exact_and_names_its_part() {
    let max = vec![b'x'; KEY_PART_BYTES_MAX];
    let over = vec![b'x'; KEY_PART_BYTES_MAX + 1];
    let longest = Key::new(&max, &max, &max).unwrap();
    assert_eq!(longest.lengths(), (1_024, 1_024, 1_024));
    assert_eq!(longest.id(), max);
    for (scope, operation, id, part) in [
        (&over[..], &b""[..], &b"k"[..], KeyPart::Scope),
        (b"", &over, b"k", KeyPart::Operation),
        (b"", b"", &over, KeyPart::Id),
    ] {
        let (len, max) = (KEY_PART_BYTES_MAX + 1, KEY_PART_BYTES_MAX);
        assert_eq!(
            Key::new(scope, operation, id).unwrap_err(),
            KeyError::TooLong { part, len, max }
        );
    }
    for (scope, operation) in [("", ""), ("s", ""), ("", "o"), ("s", "o")] {
        let empty = KeyError::Empty { part: KeyPart::Id };
        assert_eq!(Key::new(scope, operation, "").unwrap_err(), empty);
    }
    assert!(Key::new("", "", vec![b'x'; 64 << 10]).is_err());
}

#[test]
fn a_store_may_have_a_lower_limit() {
    for len in [1, 254, 255] {
        let part = vec![b'x'; len];
        let key = Key::new(&part, &part, &part).unwrap();
        assert_eq!(key.check(255), Ok(()));
    }
    let key = Key::new("s", vec![b'x'; 256], "i").unwrap();
    let part = KeyPart::Operation;
    let (len, max) = (256, 255);
    assert_eq!(key.check(255), Err(KeyError::TooLong { part, len, max }));
    assert_eq!(key.check(256), Ok(()));
}

#[test]
fn errors_say_what_to_do() {
    let part = KeyPart::Scope;
    let (len, max) = (300, 255);
    let store_limit = KeyError::TooLong { part, len, max }.to_string();
    assert!(store_limit.contains("scope has 300 bytes, over the limit of 255"));
    assert!(store_limit.contains("raise Options::max_key_part (up to 1024)"));
    let (len, max) = (1_025, 1_024);
    let hard_limit = KeyError::TooLong { part, len, max }.to_string();
    assert!(!hard_limit.contains("raise") && hard_limit.contains("digest"));
    assert!(Key::new("", "", "").unwrap_err().to_string().contains("id"));
}

#[test]
fn one_concatenation_cut_differently_is_another_key() {
    let keys = all_cuts("abcabcabc");
    let bytes: HashSet<_> = keys.iter().map(Key::as_bytes).collect();
    assert_eq!(bytes.len(), 1);
    let distinct: HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    let hashes: HashSet<_> = keys.iter().map(|key| key.hash_with(&SECRET)).collect();
    assert_eq!(hashes.len(), keys.len());
    for one in &keys {
        let alike = keys
            .iter()
            .filter(|key| key.matches(one.lengths(), b"abcabcabc"));
        assert_eq!(alike.count(), 1);
    }
}

#[test]
fn the_hash_depends_on_the_secret_and_spreads_counters_evenly() {
    let mut top = vec![0_u32; 1_024];
    let mut low = vec![0_u32; 1_024];
    for number in 0..65_536 {
        let hash = Key::new("acct", "pay", format!("{number}"))
            .unwrap()
            .hash_with(&SECRET);
        top[(hash >> 54) as usize] += 1;
        low[(hash & 1_023) as usize] += 1;
    }
    // 64 a bucket on average, standard deviation 8: six of them either way.
    assert!(
        top.iter()
            .chain(&low)
            .all(|count| (16..=112).contains(count))
    );
    let key = Key::new("acct", "pay", "1").unwrap();
    assert_ne!(key.hash_with(&SECRET), key.hash_with(&[7; 192]));
}

#[test]
fn neither_display_nor_debug_shows_the_id() {
    let key = Key::new("acct\n1", "POST /\u{7f}", "very-secret").unwrap();
    let shown = key.to_string();
    assert_eq!(format!("{key:?}"), format!("Key({shown})"));
    assert!(!shown.contains("secret"));
    let digest = shown.strip_prefix(r"acct\n1/POST /\x7f/#").unwrap();
    assert_eq!(digest.len(), 8);
    assert!(digest.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let other = Key::new("acct\n1", "POST /\u{7f}", "very-secret2").unwrap();
    assert_ne!(other.to_string(), shown);
    let raw = r"acct\n1/POST /\x7f/very-secret";
    assert_eq!(key.display_raw().to_string(), raw);
}

#[test]
fn bytes_and_lengths_that_disagree_are_no_key() {
    for (bytes, lengths) in [
        (&b"abc"[..], (1, 1, 2)),
        (b"abc", (1, 1, 0)),
        (b"abc", (1, 0, 1)),
        (b"ab", (1, 1, 0)),
        (b"", (0, 0, 0)),
        (b"abc", (u16::MAX, u16::MAX, 5)),
        (&[0; 1_026], (0, 1, 1_025)),
    ] {
        assert_eq!(Key::from_parts(bytes, lengths), Err(MalformedKey));
    }
}

/// Few different bytes and short parts, so that equal concatenations and equal keys are common.
fn parts() -> impl Strategy<Value = [Vec<u8>; 3]> {
    prop::array::uniform3(prop::collection::vec(0..2_u8, 0..4))
        .prop_filter("the id is not empty", |parts| !parts[2].is_empty())
}

fn key_of([scope, operation, id]: &[Vec<u8>; 3]) -> Key {
    Key::new(scope, operation, id).unwrap()
}

proptest! {
    #[test]
    fn two_keys_are_equal_exactly_when_their_parts_are(left in parts(), right in parts()) {
        let (one, other) = (key_of(&left), key_of(&right));
        let same = left == right;
        prop_assert_eq!(one == other, same);
        prop_assert_eq!(one.cmp(&other), left.cmp(&right));
        prop_assert_eq!(std_hash(&one) == std_hash(&other), same);
        prop_assert_eq!(one.hash_with(&SECRET) == other.hash_with(&SECRET), same);
        prop_assert_eq!(one.matches(other.lengths(), other.as_bytes()), same);
        let encoded = (one.lengths(), one.as_bytes());
        prop_assert_eq!(encoded == (other.lengths(), other.as_bytes()), same);
    }

    #[test]
    fn keys_of_any_bytes_survive_the_log(
        scope in prop::collection::vec(any::<u8>(), 0..=KEY_PART_BYTES_MAX),
        operation in prop::collection::vec(any::<u8>(), 0..=KEY_PART_BYTES_MAX),
        id in prop::collection::vec(any::<u8>(), 1..=KEY_PART_BYTES_MAX),
    ) {
        let key = Key::new(&scope, &operation, &id).unwrap();
        let read = Key::from_parts(key.as_bytes(), key.lengths()).unwrap();
        prop_assert_eq!(read.scope(), scope);
        prop_assert_eq!(read.operation(), operation);
        prop_assert_eq!(read.id(), id);
        prop_assert_eq!(read, key);
    }

    #[test]
    fn reading_a_key_of_wrong_lengths_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        scope_len in 0..64_u16,
        operation_len in 0..64_u16,
        id_len in any::<u16>(),
    ) {
        let lengths = (scope_len, operation_len, id_len);
        if let Ok(key) = Key::from_parts(&bytes, lengths) {
            prop_assert_eq!(key.lengths(), lengths);
            prop_assert_eq!(key.as_bytes(), &bytes[..]);
            prop_assert!(!key.id().is_empty());
        }
    }
}
