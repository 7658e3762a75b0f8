//! Requests: an array of bulk strings, or a line of words, cut out of what a client has sent so far.
//!
//! The library that writes our answers reads any frame, nested as deep as its sender likes, and begins
//! anew with every piece that arrives. A request is flat, and comes from anybody, so it is read here:
//! each byte is looked at once, no length is believed before its bytes are there, and what a client can
//! make us keep is bounded by [`RequestLimits`]. Bad bytes end the connection, as with Redis.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of a line: the sign, a number, CR and LF.
const NUMBER_LINE_BYTES_MAX: usize = 32;
/// Bytes of a request in one line.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Reads all requests in bytes that arrive in pieces of a size, and checks what the reader promises: for
/// a fuzzer. The requests, or what ended them.
#[cfg(feature = "testing")]
pub(crate) fn read_all(bytes: &[u8], piece: usize) -> Result<Vec<Vec<Bytes>>, String> {
    let limits = RequestLimits {
        arguments: 16,
        argument_bytes: 256,
        bytes: 512,
    };
    let (mut parser, mut input, mut requests) = (Parser::default(), BytesMut::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        loop {
            let request = parser.next(&mut input, &limits);
            assert!(
                parser.bytes <= limits.bytes || request.is_err(),
                "it keeps too much"
            );
            let Some(request) = request.map_err(|error| error.to_string())? else {
                break;
            };
            assert!((1..=limits.arguments).contains(&request.len()));
            requests.push(request);
        }
        assert!(
            input.len() <= INLINE_BYTES_MAX + piece.len(),
            "it waits for too much"
        );
    }
    Ok(requests)
}

/// What a request may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestLimits {
    /// Arguments, the command included.
    pub(super) arguments: usize,
    /// Bytes of one argument.
    pub(super) argument_bytes: usize,
    /// Bytes of all of them.
    pub(super) bytes: usize,
}

/// Bytes that are no request, or too large a one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolError {
    ArrayLength,
    BulkLength,
    NotBulk(u8),
    LineTooLong,
    BulkEnd,
    Quotes,
    TooLarge,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR Protocol error: ")?;
        match self {
            Self::ArrayLength => f.write_str("invalid multibulk length"),
            Self::BulkLength => f.write_str("invalid bulk length"),
            Self::NotBulk(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::LineTooLong => f.write_str("too big inline request"),
            Self::BulkEnd => f.write_str("expected CR and LF behind a bulk string"),
            Self::Quotes => f.write_str("quotes have no meaning in an inline request"),
            Self::TooLarge => f.write_str("the request is over the limit of its size"),
        }
    }
}

/// The request under way.
#[derive(Debug, Default)]
pub(super) struct Parser {
    arguments: Vec<Bytes>,
    /// Bytes of them.
    bytes: usize,
    /// How many are still to come; 0 between two requests.
    missing: usize,
    /// Length of the one whose bytes are coming.
    bulk_bytes: Option<usize>,
}

impl Parser {
    /// Whether a request has begun and is not whole.
    pub(super) fn is_within(&self) -> bool {
        self.missing > 0
    }

    /// Takes the next request out of `input`: never an empty one. `None` where it is not whole yet.
    pub(super) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: &RequestLimits,
    ) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        while self.missing == 0 {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => match number_line(input, ProtocolError::ArrayLength)? {
                    None => return Ok(None),
                    // Redis passes over empty requests.
                    Some(..=0) => {}
                    Some(count) => {
                        self.missing =
                            at_most(count, limits.arguments).ok_or(ProtocolError::ArrayLength)?
                    }
                },
                Some(_) => match inline(input)? {
                    None => return Ok(None),
                    Some(words) if words.is_empty() => {}
                    Some(words) if words.len() > limits.arguments => {
                        return Err(ProtocolError::ArrayLength);
                    }
                    Some(words) => return Ok(Some(words)),
                },
            }
        }
        while self.missing > 0 {
            let Some(argument) = self.argument(input, limits)? else {
                return Ok(None);
            };
            self.arguments.push(argument);
            self.missing -= 1;
        }
        self.bytes = 0;
        Ok(Some(std::mem::take(&mut self.arguments)))
    }

    fn argument(
        &mut self,
        input: &mut BytesMut,
        limits: &RequestLimits,
    ) -> Result<Option<Bytes>, ProtocolError> {
        let bulk_bytes = match (self.bulk_bytes, input.first()) {
            (Some(bulk_bytes), _) => bulk_bytes,
            (None, None) => return Ok(None),
            (None, Some(b'$')) => {
                let Some(length) = number_line(input, ProtocolError::BulkLength)? else {
                    return Ok(None);
                };
                let length = at_most(length, limits.argument_bytes);
                let length = length.ok_or(ProtocolError::BulkLength)?;
                self.bytes += length;
                if self.bytes > limits.bytes {
                    return Err(ProtocolError::TooLarge);
                }
                *self.bulk_bytes.insert(length)
            }
            (None, Some(other)) => return Err(ProtocolError::NotBulk(*other)),
        };
        if input.len() < bulk_bytes + 2 {
            return Ok(None);
        }
        let argument = input.split_to(bulk_bytes).freeze();
        if !input.starts_with(b"\r\n") {
            return Err(ProtocolError::BulkEnd);
        }
        input.advance(2);
        self.bulk_bytes = None;
        Ok(Some(argument))
    }
}

fn at_most(length: i64, max: usize) -> Option<usize> {
    usize::try_from(length).ok().filter(|length| *length <= max)
}

/// Takes a line of a sign and a number.
fn number_line(input: &mut BytesMut, error: ProtocolError) -> Result<Option<i64>, ProtocolError> {
    let head = input.get(..NUMBER_LINE_BYTES_MAX).unwrap_or(input);
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
        return match head.len() {
            NUMBER_LINE_BYTES_MAX => Err(error),
            _ => Ok(None),
        };
    };
    let line = head.get(1..end).and_then(|line| line.strip_suffix(b"\r"));
    let number = line.and_then(integer).ok_or(error)?;
    input.advance(end + 1);
    Ok(Some(number))
}

/// A number as Redis takes it: as it would write it, so without zeros before it or a plus.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Takes a line of words.
fn inline(input: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let head = input.get(..INLINE_BYTES_MAX).unwrap_or(input);
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
        return match head.len() {
            INLINE_BYTES_MAX => Err(ProtocolError::LineTooLong),
            _ => Ok(None),
        };
    };
    if head
        .iter()
        .take(end)
        .any(|byte| matches!(byte, b'"' | b'\''))
    {
        return Err(ProtocolError::Quotes);
    }
    let line = input.split_to(end + 1).freeze();
    let words = line.split(u8::is_ascii_whitespace);
    let words = words.filter(|word| !word.is_empty());
    Ok(Some(words.map(|word| line.slice_ref(word)).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis_protocol::resp2::types::BytesFrame;

    use super::*;

    const LIMITS: RequestLimits = RequestLimits {
        arguments: 8,
        argument_bytes: 64,
        bytes: 128,
    };

    type Parsed = Result<Vec<Vec<Bytes>>, ProtocolError>;

    /// All requests in bytes that arrive in pieces of this size.
    fn parsed(bytes: &[u8], piece: usize) -> Parsed {
        let (mut parser, mut input) = (Parser::default(), BytesMut::new());
        let mut requests = Vec::new();
        for piece in bytes.chunks(piece.max(1)) {
            input.extend_from_slice(piece);
            while let Some(request) = parser.next(&mut input, &LIMITS)? {
                requests.push(request);
            }
        }
        Ok(requests)
    }

    #[test]
    fn requests_are_cut_out_whatever_pieces_they_come_in() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\n*-1\r\nPING  a\n*1\r\n$0\r\n\r\n";
        let expected: Vec<Vec<Bytes>> = [&[&b"GET"[..], b"k"][..], &[b"PING", b"a"], &[b""]]
            .iter()
            .map(|words| {
                words
                    .iter()
                    .map(|word| Bytes::copy_from_slice(word))
                    .collect()
            })
            .collect();
        for piece in 1..bytes.len() {
            assert_eq!(parsed(bytes, piece), Ok(expected.clone()), "{piece}");
        }
    }

    #[test]
    fn hostile_lengths_are_refused_before_anything_is_kept() {
        for (bytes, error) in [
            (&b"*9\r\n"[..], ProtocolError::ArrayLength),
            (b"*99999999999999999999\r\n", ProtocolError::ArrayLength),
            (b"*1000000000\r\n", ProtocolError::ArrayLength),
            (b"*\r\n", ProtocolError::ArrayLength),
            (b"*+1\r\n", ProtocolError::ArrayLength),
            (b"*1\n", ProtocolError::ArrayLength),
            (
                b"*00000000000000000000000000000000000001",
                ProtocolError::ArrayLength,
            ),
            (b"*1\r\n$65\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$9223372036854775807\r\n", ProtocolError::BulkLength),
            (b"*1\r\n*1\r\n", ProtocolError::NotBulk(b'*')),
            (b"*1\r\n:1\r\n", ProtocolError::NotBulk(b':')),
            (b"*1\r\n$1\r\nab\r\n", ProtocolError::BulkEnd),
            (b"SET \"a b\" c\r\n", ProtocolError::Quotes),
            (b"a b c d e f g h i\r\n", ProtocolError::ArrayLength),
        ] {
            for piece in [1, 2, 7, bytes.len()] {
                assert_eq!(parsed(bytes, piece), Err(error), "{}", bytes.escape_ascii());
            }
        }
        let large = [
            &b"*3\r\n"[..],
            b"$60\r\n",
            &[b'x'; 60],
            b"\r\n$60\r\n",
            &[b'x'; 60],
            b"\r\n$60\r\n",
        ]
        .concat();
        assert_eq!(parsed(&large, 5), Err(ProtocolError::TooLarge));
        assert_eq!(
            parsed(&[b'x'; INLINE_BYTES_MAX], 1 << 20),
            Err(ProtocolError::LineTooLong)
        );
    }

    proptest! {
        /// Where the library reads an array of bulk strings within the limits, this reads the same.
        #[test]
        fn a_request_is_what_the_library_reads(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..4),
            piece in 1_usize..80,
        ) {
            let words: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
            let frame = BytesFrame::Array(words.iter().cloned().map(BytesFrame::BulkString).collect());
            let mut bytes = BytesMut::new();
            redis_protocol::resp2::encode::extend_encode(&mut bytes, &frame, false).unwrap();
            prop_assert_eq!(parsed(&bytes, piece), Ok(vec![words]));
        }

        #[test]
        fn pieces_change_nothing(bytes in "[*$:0-9a-c \r\n]{0,60}", piece in 1_usize..30) {
            prop_assert_eq!(parsed(bytes.as_bytes(), piece), parsed(bytes.as_bytes(), 100));
        }
    }
}
