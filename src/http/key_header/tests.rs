//! The rules as a table: a value, the key in lenient parsing, the key in strict parsing.

use http::HeaderValue;

use super::*;

const MAX: usize = 12;
const TOO_LONG: InvalidKey = InvalidKey::TooLong { max: MAX };

/// Both parsings agree.
type Both = Result<&'static str, InvalidKey>;

const ANY: &[(&[u8], Both)] = &[
    (b"\"abc\"", Ok("abc")),
    (b"  \"abc\"\t", Ok("abc")),
    (b"\"abc\";v=1", Ok("abc")),
    (b"\"abc\"; v=1;w", Ok("abc")),
    (b"\"abc\";a=\"x;y\";b=?1;*c=:YQ==:", Ok("abc")),
    (b"\"a b\"", Ok("a b")),
    (b"\" ab \"", Ok(" ab ")),
    (b"\"a,b\"", Ok("a,b")),
    (br#""a\"b""#, Ok("a\"b")),
    (br#""a\\b""#, Ok("a\\b")),
    (b"\"123456789012\"", Ok("123456789012")),
    // Twelve after unquoting, eighteen before.
    (br#""\"\"\"\"789012";p"#, Ok("\"\"\"\"789012")),
    (b"", Err(InvalidKey::Empty)),
    (b" ", Err(InvalidKey::Empty)),
    (b" \t ", Err(InvalidKey::Empty)),
    (b"\"\"", Err(InvalidKey::Empty)),
    (b"\"   \"", Err(InvalidKey::Empty)),
    (b"\"               \"", Err(InvalidKey::Empty)),
    (b"\"1234567890123\"", Err(TOO_LONG)),
    (b"\"1234567890123", Err(TOO_LONG)),
    (
        b"\"\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\\n\"",
        Err(TOO_LONG),
    ),
    (b"\"", Err(InvalidKey::Malformed)),
    (b"\"abc", Err(InvalidKey::Malformed)),
    (b"\"abc\\", Err(InvalidKey::Malformed)),
    (b"\"abc\\\"", Err(InvalidKey::Malformed)),
    (b"\"abc\"d", Err(InvalidKey::Malformed)),
    (b"\"abc\" d", Err(InvalidKey::Malformed)),
    (b"\"abc\" ;v", Err(InvalidKey::Malformed)),
    (b"\"abc\";", Err(InvalidKey::Malformed)),
    (b"\"abc\";V=1", Err(InvalidKey::Malformed)),
    (b"\"abc\";v=", Err(InvalidKey::Malformed)),
    (b"\"abc\", \"def\"", Err(InvalidKey::Malformed)),
    (br#""a\nb""#, Err(InvalidKey::Malformed)),
    (b"\"a\tb\"", Err(InvalidKey::Malformed)),
    (b"\"a\x7fb\"", Err(InvalidKey::Malformed)),
    (b"\"a\x00b\"", Err(InvalidKey::Malformed)),
    (b"\"schl\xfcssel\"", Err(InvalidKey::Malformed)),
    ("\"schlüssel\"".as_bytes(), Err(InvalidKey::Malformed)),
];

/// Strict parsing refuses all of them, as not quoted.
const BARE: &[(&[u8], Both)] = &[
    (b"abc", Ok("abc")),
    (b"  abc\t", Ok("abc")),
    (b"a b", Ok("a b")),
    (b"a  b", Ok("a  b")),
    (b"abc\"", Ok("abc\"")),
    (b"a\\b", Ok("a\\b")),
    (b"abc;v=1", Ok("abc;v=1")),
    (b"'abc'", Ok("'abc'")),
    (b":YWJj:", Ok(":YWJj:")),
    (b"?1", Ok("?1")),
    (b"42", Ok("42")),
    (b"../../etc", Ok("../../etc")),
    (b"123456789012", Ok("123456789012")),
    (b"1234567890123", Err(TOO_LONG)),
    // Too long comes before bad characters.
    (b"12345678901\x00\x00", Err(TOO_LONG)),
    (b"a,b", Err(InvalidKey::Characters)),
    (b"abc, abc", Err(InvalidKey::Characters)),
    (b"a\tb", Err(InvalidKey::Characters)),
    (b"a\x00b", Err(InvalidKey::Characters)),
    (b"a\x7fb", Err(InvalidKey::Characters)),
    (b"schl\xfcssel", Err(InvalidKey::Characters)),
    ("schlüssel".as_bytes(), Err(InvalidKey::Characters)),
];

#[test]
fn the_table_of_values_holds() {
    let parse = |value, syntax| parse(value, syntax, MAX);
    for (value, expected) in ANY {
        let expected = expected.map(str::to_owned);
        let shown = value.escape_ascii();
        assert_eq!(parse(value, KeySyntax::Lenient), expected, "{shown}");
        assert_eq!(parse(value, KeySyntax::Strict), expected, "{shown}, strict");
    }
    for (value, expected) in BARE {
        let shown = value.escape_ascii();
        let expected = expected.map(str::to_owned);
        assert_eq!(parse(value, KeySyntax::Lenient), expected, "{shown}");
        assert_eq!(
            parse(value, KeySyntax::Strict),
            Err(InvalidKey::NotQuoted),
            "{shown}, strict"
        );
    }
}

#[test]
fn every_vendors_length_is_a_limit_that_holds() {
    for max in [1, 36, 38, 45, 64, 108, 128, 255, 1_024] {
        let longest = "k".repeat(max);
        for value in [longest.clone(), format!("\"{longest}\"")] {
            let parsed = parse(value.as_bytes(), KeySyntax::Lenient, max);
            assert_eq!(parsed.as_ref(), Ok(&longest));
        }
        for over in [max + 1, 64 << 10] {
            for value in ["k".repeat(over), format!("\"{}\"", "k".repeat(over))] {
                let parsed = parse(value.as_bytes(), KeySyntax::Lenient, max);
                assert_eq!(parsed, Err(InvalidKey::TooLong { max }));
            }
        }
    }
}

#[test]
fn one_line_under_any_of_the_names_is_the_key() {
    let names = [
        HeaderName::from_static("idempotency-key"),
        HeaderName::from_static("paypal-request-id"),
    ];
    let read = |lines: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        super::read(&headers, &names, KeySyntax::Lenient, MAX)
    };
    assert_eq!(read(&[]), Ok(None));
    assert_eq!(read(&[("x-idempotency-key", "abc")]), Ok(None));
    for name in ["idempotency-key", "paypal-request-id"] {
        assert_eq!(read(&[(name, "abc")]), Ok(Some("abc".to_owned())));
    }
    // More than one comes before everything else that is wrong with them, and equal ones are two.
    for (first, second) in [("abc", "def"), ("abc", "abc"), ("", "abc"), ("", "")] {
        for name in ["idempotency-key", "paypal-request-id"] {
            let lines = [("idempotency-key", first), (name, second)];
            assert_eq!(read(&lines), Err(InvalidKey::Duplicate), "{first} {second}");
        }
    }
    assert_eq!(read(&[("idempotency-key", "")]), Err(InvalidKey::Empty));
}

#[test]
fn what_is_said_about_a_key_does_not_repeat_it() {
    let secret = "secret,secret";
    let error = parse(secret.as_bytes(), KeySyntax::Lenient, 255).unwrap_err();
    assert!(!error.detail().contains("secret"));
}
