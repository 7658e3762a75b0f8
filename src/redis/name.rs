//! What a key is called on the server.

use crate::key::Key;

/// `prefix:{scope:operation:id}`: readable, and no two keys have one name.
///
/// Every script touches this one name, so it is in one slot of a cluster. The braces make the slot
/// depend on the key alone: what a service keeps under the same `{…}` is in the same slot.
pub(super) fn encode(prefix: &str, key: &Key) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + key.as_bytes().len() + 8);
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":{");
    for (index, part) in [key.scope(), key.operation(), key.id()].iter().enumerate() {
        if index > 0 {
            name.push(b':');
        }
        for byte in part.iter() {
            if byte.is_ascii_alphanumeric() || b"_-./ ".contains(byte) {
                name.push(*byte);
            } else {
                name.extend_from_slice(format!("%{byte:02x}").as_bytes());
            }
        }
    }
    name.push(b'}');
    name
}

/// The key of a name that [`encode`] made.
pub(super) fn decode(prefix: &str, name: &[u8]) -> Option<Key> {
    let rest = name.strip_prefix(prefix.as_bytes())?;
    let inner = rest.strip_prefix(b":{")?.strip_suffix(b"}")?;
    let parts: Option<Vec<Vec<u8>>> = inner.split(|byte| *byte == b':').map(part).collect();
    let [scope, operation, id] = <[Vec<u8>; 3]>::try_from(parts?).ok()?;
    Key::new(scope, operation, id).ok()
}

fn part(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (digits, after) = after.split_first_chunk::<2>()?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_are_apart() {
        let all: Vec<u8> = (0..=255).collect();
        let keys = [
            Key::new("acct_1", "POST /v1/payments", "order-17").unwrap(),
            Key::new("", "", "}").unwrap(),
            Key::new("a:b", "", "c").unwrap(),
            Key::new("a", "b", ":c").unwrap(),
            Key::new("a%3ab", "", "c").unwrap(),
            Key::new(&all[..200], &all[100..], &all[..1]).unwrap(),
        ];
        let names: Vec<_> = keys.iter().map(|key| encode("oncekey", key)).collect();
        assert_eq!(names[0], b"oncekey:{acct_1:POST /v1/payments:order-17}");
        for (index, (key, name)) in keys.iter().zip(&names).enumerate() {
            assert_eq!(decode("oncekey", name).as_ref(), Some(key));
            assert_eq!(names.iter().position(|other| other == name), Some(index));
            let braces = name.iter().filter(|byte| b"{}".contains(byte)).count();
            assert_eq!(braces, 2, "one hash tag");
        }
    }

    #[test]
    fn other_names_are_no_keys() {
        for name in [
            "other:{a:b:c}",
            "oncekey:{a:b}",
            "oncekey:{a:b:}",
            "oncekey:{a:b:%}",
            "x",
        ] {
            assert_eq!(decode("oncekey", name.as_bytes()), None, "{name}");
        }
    }
}
