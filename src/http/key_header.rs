//! The key's header in both forms clients send it.
//!
//! The IETF draft makes it a structured-field string, `"abc"`; nearly everybody sends the bare token
//! `abc`. Both are the same key. What is wrong is told in a fixed order: missing, more than one,
//! empty, too long, malformed. Lengths count after unquoting.

use http::{HeaderMap, HeaderName};
use sfv::Item;

/// Which forms of the key's header are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KeySyntax {
    /// A value that begins with a quote is a structured-field string; any other is taken as it is.
    /// `"abc"` and `abc` are the same key. The default.
    #[default]
    Lenient,
    /// Structured-field strings only, as in the IETF draft.
    Strict,
}

/// What is wrong with a key, for the client's eyes. The value itself is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidKey {
    Duplicate,
    Empty,
    TooLong { max: usize },
    NotQuoted,
    Malformed,
    Characters,
}

impl InvalidKey {
    pub(super) fn detail(self) -> String {
        match self {
            Self::Duplicate => "Send the header of the key once.".to_owned(),
            Self::Empty => "The key is empty.".to_owned(),
            Self::TooLong { max } => format!("The key is over {max} bytes."),
            Self::NotQuoted => {
                "The key must be a structured-field string: put it in double quotes.".to_owned()
            }
            Self::Malformed => {
                "The value begins with a quote but is no structured-field string.".to_owned()
            }
            Self::Characters => {
                "The key may have visible ASCII characters and spaces; a comma only in quotes."
                    .to_owned()
            }
        }
    }
}

/// The key a request carries, under any of the names it may have; `None` for none at all.
pub(super) fn read(
    headers: &HeaderMap,
    names: &[HeaderName],
    syntax: KeySyntax,
    bytes_max: usize,
) -> Result<Option<String>, InvalidKey> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name));
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(InvalidKey::Duplicate);
    }
    parse(line.as_bytes(), syntax, bytes_max).map(Some)
}

/// The key in a header's value.
pub(crate) fn parse(
    value: &[u8],
    syntax: KeySyntax,
    bytes_max: usize,
) -> Result<String, InvalidKey> {
    let value = trim(value);
    let max = bytes_max;
    let key = match value.split_first() {
        None => return Err(InvalidKey::Empty),
        Some((b'"', quoted)) => match unquote(value) {
            Some(key) => key,
            None if quoted_len(quoted) > max => return Err(InvalidKey::TooLong { max }),
            None => return Err(InvalidKey::Malformed),
        },
        Some(_) if syntax == KeySyntax::Strict => return Err(InvalidKey::NotQuoted),
        Some(_) if value.len() > max => return Err(InvalidKey::TooLong { max }),
        // A bare comma is how an intermediary joins two lines into one.
        Some(_)
            if value
                .iter()
                .any(|&byte| !is_visible_or_space(byte) || byte == b',') =>
        {
            return Err(InvalidKey::Characters);
        }
        Some(_) => value.iter().copied().map(char::from).collect(),
    };
    if key.bytes().all(|byte| byte == b' ') {
        return Err(InvalidKey::Empty);
    }
    if key.len() > max {
        return Err(InvalidKey::TooLong { max });
    }
    Ok(key)
}

/// The string of a structured-field item; its parameters have no meaning here.
fn unquote(value: &[u8]) -> Option<String> {
    let item = sfv::Parser::new(value).parse::<Item>().ok()?;
    Some(item.bare_item.as_string()?.as_str().to_owned())
}

/// How long the text behind an opening quote is, whatever else is wrong with it.
fn quoted_len(quoted: &[u8]) -> usize {
    let mut len = 0;
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
        len += 1;
    }
    len
}

/// Without the spaces and tabs that HTTP allows around a value.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_visible_or_space(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte == b' '
}

#[cfg(test)]
mod tests;
