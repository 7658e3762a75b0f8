//! What the HTTP layer reads of others: the key's header, which any client sends, and stored
//! answers, which other code may have stored.

#![allow(dead_code, reason = "every fuzz target uses its own part")]

use bytes::Bytes;
use oncekey::http::{KeySyntax, StoredResponse};
use oncekey::testing::internals;

/// A header's value; the first byte is the limit of the key's length. Whether it is a key.
pub fn key_header(input: &[u8]) -> bool {
    let Some((max, value)) = input.split_first() else {
        return false;
    };
    let max = usize::from(*max);
    let parse = |value: &[u8], syntax| internals::http_key(value, syntax, max);
    let strict = parse(value, KeySyntax::Strict);
    let Some(key) = parse(value, KeySyntax::Lenient) else {
        assert_eq!(strict, None, "strict parsing takes less");
        return false;
    };
    assert!((1..=max).contains(&key.len()));
    assert!(key.bytes().all(|byte| matches!(byte, b' '..=b'~')));
    assert!(key.bytes().any(|byte| byte != b' '));
    let is_quoted = value.trim_ascii_start().starts_with(b"\"");
    assert_eq!(strict.as_deref(), is_quoted.then_some(&key[..]));
    // Quoted it is the same key, in both.
    let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
    for syntax in [KeySyntax::Strict, KeySyntax::Lenient] {
        assert_eq!(parse(quoted.as_bytes(), syntax).as_ref(), Some(&key));
    }
    true
}

/// A stored answer. Whether it is one; then it is written again byte for byte.
pub fn response(input: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(response) = StoredResponse::decode(bytes.clone()) else {
        return false;
    };
    assert!((100..=999).contains(&response.status.as_u16()));
    assert_eq!(
        response.encode(),
        Some(bytes),
        "one answer has one encoding"
    );
    true
}
