//! A digest of a JSON text that does not depend on the order of keys in objects, on white space, or
//! on how a string is escaped.
//!
//! The order of an array counts, and numbers count as they are written: `1.0` is not `1`, and an
//! amount beyond the range of a float is not rounded to its neighbour. A text that is not JSON, has
//! the same key twice in an object, or is nested deeper than [`DEPTH_MAX`] has no such digest.
//!
//! Every value is digested alone and stands in its parent as a digest, so the work is linear in the
//! text and nothing but the stack grows with its depth.

use serde::de::IgnoredAny;
use xxhash_rust::xxh3::xxh3_128;

/// How deep arrays and objects may be nested.
pub(crate) const DEPTH_MAX: usize = 64;

type Digest = [u8; 16];

/// The digest; `None` where there is none.
pub(crate) fn digest(text: &[u8]) -> Option<Digest> {
    // Checked as a whole first: the walk below has only to find where things begin and end.
    serde_json::from_slice::<IgnoredAny>(text).ok()?;
    let mut walk = Walk { rest: text };
    walk.value(0)
}

struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    fn value(&mut self, depth: usize) -> Option<Digest> {
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => Some(tagged(b'"', self.string()?.as_bytes())),
            _ => Some(tagged(b'#', self.literal())),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Digest> {
        let mut members = Vec::new();
        self.members(b'}', depth, |walk| {
            let key = walk.string()?;
            walk.take(b':')?;
            members.push((key, walk.value(depth + 1)?));
            Some(())
        })?;
        members.sort_unstable();
        let is_twice = |pair: &[(String, Digest)]| matches!(pair, [(a, _), (b, _)] if a == b);
        if members.windows(2).any(is_twice) {
            return None;
        }
        let mut bytes = Vec::new();
        for (key, value) in &members {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend(value);
        }
        Some(tagged(b'{', &bytes))
    }

    fn array(&mut self, depth: usize) -> Option<Digest> {
        let mut bytes = Vec::new();
        self.members(b']', depth, |walk| {
            bytes.extend(walk.value(depth + 1)?);
            Some(())
        })?;
        Some(tagged(b'[', &bytes))
    }

    /// From the opening bracket to the closing one.
    fn members(
        &mut self,
        end: u8,
        depth: usize,
        mut member: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        if depth >= DEPTH_MAX {
            return None;
        }
        self.step(1);
        if self.peek()? != end {
            member(self)?;
            while self.peek()? == b',' {
                self.step(1);
                member(self)?;
            }
        }
        self.take(end)
    }

    /// A string, unescaped. `None` where it is no Unicode.
    fn string(&mut self) -> Option<String> {
        self.peek()?;
        let mut is_escaped = true;
        let len = self.rest.iter().position(|&byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })? + 1;
        serde_json::from_slice(self.step(len)).ok()
    }

    /// A number, `true`, `false` or `null`.
    fn literal(&mut self) -> &'a [u8] {
        let is_end = |&byte: &u8| byte.is_ascii_whitespace() || b",]}".contains(&byte);
        let len = self.rest.iter().position(is_end).unwrap_or(self.rest.len());
        self.step(len)
    }

    /// What comes next, white space skipped.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| {
            self.step(1);
        })
    }

    fn step(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }
}

fn tagged(tag: u8, bytes: &[u8]) -> Digest {
    let mut all = Vec::with_capacity(1 + bytes.len());
    all.push(tag);
    all.extend(bytes);
    xxh3_128(&all).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_value_has_the_same_digest() {
        for (one, same) in [
            (
                r#"{"a":1,"b":{"c":2,"d":3}}"#,
                r#"{"b":{"d":3,"c":2},"a":1}"#,
            ),
            (
                r#"[{"a":1,"b":[]}]"#,
                "\t[ { \"b\" : [ ] ,\n\"a\" : 1 } ] \r\n",
            ),
            (
                r#"{"a\"b":"A\n\\"}"#,
                r#"{"\u0061\"\u0062":"\u0041\u000a\\"}"#,
            ),
            (r#""😀""#, r#""\ud83d\ude00""#),
            ("null", " null "),
            ("{}", "{ }"),
            ("-1.50e3", "-1.50e3\n"),
        ] {
            let digest = |text: &str| digest(text.as_bytes()).unwrap();
            assert_eq!(digest(one), digest(same), "{one} {same}");
        }
    }

    #[test]
    fn other_values_have_other_digests() {
        let texts = [
            r#"{}"#,
            r#"[]"#,
            r#"null"#,
            r#""null""#,
            r#""""#,
            r#"0"#,
            r#"1"#,
            r#"1.0"#,
            r#"true"#,
            r#"[1,2]"#,
            r#"[2,1]"#,
            r#"[[1],2]"#,
            r#"[[1,2]]"#,
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
            r#"{"a":{}}"#,
            r#"{"a":[]}"#,
            r#"{"a":1,"b":2}"#,
            r#"{"a":2,"b":1}"#,
            r#"["a",1,"b",2]"#,
            r#"{"A":1}"#,
            "18446744073709551617",
            "18446744073709551618",
            "0.12345678901234567890",
            "0.12345678901234567891",
        ];
        let mut digests: Vec<_> = texts.map(|text| digest(text.as_bytes()).unwrap()).into();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), texts.len());
    }

    #[test]
    fn what_is_ambiguous_or_no_json_has_none() {
        let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "1 2",
            "nul",
            "'a'",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a":1,"a":2}}]"#,
            r#""\ud800""#,
            &deep(DEPTH_MAX + 1),
            &deep(100_000),
        ] {
            assert_eq!(digest(text.as_bytes()), None, "{:.40}", text);
        }
        assert_eq!(digest(b"\"\xff\""), None);
        assert!(digest(deep(DEPTH_MAX).as_bytes()).is_some());
    }

    proptest::proptest! {
        #[test]
        fn any_text_ends(text in r#"[\[\]{}:,"\\a1 u]{0,40}"#) {
            digest(text.as_bytes());
        }
    }
}
