//! Patterns of names, as `SCAN MATCH` takes them: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before what is
//! meant as it stands.

/// Whether a name matches. Takes time in proportion to the product of the lengths at worst: the last
/// `*` is the only one ever tried again.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Where to go on if what follows the last `*` does not match here.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', rest)) = pattern.split_first() {
            again = Some((rest, name));
            pattern = rest;
            continue;
        }
        let Some((byte, name_rest)) = name.split_first() else {
            return pattern.is_empty();
        };
        if let Some(pattern_rest) = one(pattern, *byte) {
            (pattern, name) = (pattern_rest, name_rest);
            continue;
        }
        let Some((after_star, from)) = again else {
            return false;
        };
        let from = from.get(1..).unwrap_or_default();
        again = Some((after_star, from));
        (pattern, name) = (after_star, from);
    }
}

/// What is left of a pattern whose first part matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (first, rest) = pattern.split_first()?;
    let (is_match, rest) = match (first, rest.split_first()) {
        (b'?', _) => (true, rest),
        (b'[', _) => class(rest, byte),
        (b'\\', Some((plain, rest))) => (*plain == byte, rest),
        _ => (*first == byte, rest),
    };
    is_match.then_some(rest)
}

/// Whether a byte is in a class, whose opening bracket is gone, and what follows the class. One without an
/// end ends with the pattern.
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let is_negated = pattern.first() == Some(&b'^');
    if is_negated {
        pattern = pattern.get(1..).unwrap_or_default();
    }
    let mut is_in = false;
    while let Some((first, rest)) = pattern.split_first() {
        pattern = match (first, rest) {
            (b']', _) => return (is_in != is_negated, rest),
            (b'\\', [plain, rest @ ..]) => {
                is_in |= *plain == byte;
                rest
            }
            (from, [b'-', to, rest @ ..]) => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            (plain, rest) => {
                is_in |= *plain == byte;
                rest
            }
        };
    }
    (is_in != is_negated, pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_redis_matches() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("idem:*", "idem:1", true),
            ("idem:*", "lock:1", false),
            ("*:1", "idem:1", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            (r"h\*llo", "h*llo", true),
            (r"h\*llo", "hello", false),
            (r"[\]]", "]", true),
            ("[ab", "a", true),
            ("a\\", "a\\", true),
            ("**", "anything", true),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = b"*a".repeat(200);
        assert!(!matches(&pattern, &[b'a'; 199]));
        assert!(!matches(&[&pattern[..], b"b"].concat(), &[b'a'; 10_000]));
    }
}
