//! The `Idempotency-Key` header in both forms clients send it.
//!
//! The IETF draft makes it a structured-field string, `"abc"`; nearly everybody sends the bare
//! token `abc`. Both are the same key here. What is wrong is told in a fixed order: missing, more
//! than one line, empty, too long, bad characters. Lengths count after unquoting.

use axum::http::{HeaderMap, HeaderName};

use crate::problem::Problem;

pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const KEY_BYTES_MAX: usize = 255;

pub fn from_headers(headers: &HeaderMap) -> Result<String, Problem> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let line = lines.next().ok_or_else(Problem::missing_key)?;
    if lines.next().is_some() {
        return Err(Problem::invalid_key("The header is sent more than once."));
    }
    parse(line.as_bytes().trim_ascii())
}

fn parse(value: &[u8]) -> Result<String, Problem> {
    let key = match value.split_first() {
        Some((b'"', quoted)) => unquote(quoted).ok_or_else(|| {
            Problem::invalid_key("The value starts with a quote but is no structured-field string.")
        })?,
        _ => value.to_vec(),
    };
    if key.trim_ascii().is_empty() {
        return Err(Problem::invalid_key("The key is empty."));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Problem::invalid_key(format!(
            "The key is over {KEY_BYTES_MAX} bytes."
        )));
    }
    // A bare comma is how intermediaries join two header lines into one.
    let bare = value.first() != Some(&b'"');
    if key
        .iter()
        .any(|&byte| !is_visible_or_space(byte) || (bare && byte == b','))
    {
        return Err(Problem::invalid_key(
            "The key has a character that is not allowed.",
        ));
    }
    String::from_utf8(key).map_err(|_| Problem::invalid_key("The key is not ASCII."))
}

/// The text of a structured-field string whose opening quote is already taken, with nothing but
/// parameters behind it, which have no meaning here. `None` if it is no such thing.
fn unquote(quoted: &[u8]) -> Option<Vec<u8>> {
    let (text, mut rest) = quoted_text(quoted)?;
    while !rest.is_empty() {
        rest = skip_parameter(rest)?;
    }
    Some(text)
}

/// The text up to the closing quote and what follows that. Characters other than escapes are judged
/// by the caller, after the length.
fn quoted_text(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::with_capacity(bytes.len());
    loop {
        bytes = match bytes {
            [b'"', rest @ ..] => return Some((text, rest)),
            [b'\\', escaped @ (b'"' | b'\\'), rest @ ..] => {
                text.push(*escaped);
                rest
            }
            [] | [b'\\', ..] => return None,
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        }
    }
}

/// What follows one `;name` or `;name=value`.
fn skip_parameter(bytes: &[u8]) -> Option<&[u8]> {
    let name = bytes.strip_prefix(b";")?.trim_ascii_start();
    if !name
        .first()
        .is_some_and(|&byte| byte.is_ascii_lowercase() || byte == b'*')
    {
        return None;
    }
    let rest = skip_while(name, |byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
    });
    let Some(value) = rest.strip_prefix(b"=") else {
        return Some(rest);
    };
    if let Some(quoted) = value.strip_prefix(b"\"") {
        return quoted_text(quoted).map(|(_, rest)| rest);
    }
    let rest = skip_while(value, |byte| {
        byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/?=".contains(&byte)
    });
    (rest.len() < value.len()).then_some(rest)
}

fn skip_while(bytes: &[u8], belongs: impl Fn(u8) -> bool) -> &[u8] {
    let end = bytes
        .iter()
        .position(|&byte| !belongs(byte))
        .unwrap_or(bytes.len());
    bytes.split_at(end).1
}

fn is_visible_or_space(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_one_key() {
        for value in [
            "abc",
            "\"abc\"",
            "\"abc\";v=1",
            "\"abc\"; a=\"x;y\";b;*c=?1",
        ] {
            assert_eq!(parse(value.as_bytes()).unwrap(), "abc", "{value}");
        }
        assert_eq!(parse(br#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(parse(b"two words").unwrap(), "two words");
        assert_eq!(parse(br#""a,b""#).unwrap(), "a,b");
    }

    #[test]
    fn the_length_counts_after_unquoting() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        assert_eq!(parse(longest.as_bytes()).unwrap(), longest);
        assert_eq!(parse(format!("\"{longest}\"").as_bytes()).unwrap(), longest);
        assert!(parse(format!("{longest}k").as_bytes()).is_err());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let bad: &[&[u8]] = &[
            b"",
            b"\"\"",
            b"\"  \"",
            b"\"abc",
            b"\"abc\"d",
            b"\"abc\" ;v",
            b"\"abc\";",
            b"\"abc\";V=1",
            b"\"abc\";v=",
            br#""a\nb""#,
            b"a, b",
            "schl\u{fc}ssel".as_bytes(),
            "\"schl\u{fc}ssel\"".as_bytes(),
            b"a\tb",
        ];
        for value in bad {
            assert!(parse(value).is_err(), "{}", value.escape_ascii());
        }
    }
}
