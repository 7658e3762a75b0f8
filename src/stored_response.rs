//! The bytes an answer is kept as.
//!
//! ```text
//! version   1 byte, 1
//! status    2 bytes, little-endian, 100 to 999
//! headers   count, then for each: length and name (lower case), length and value
//! trailers  the same
//! body      the rest
//! ```
//!
//! Counts and lengths are LEB128 numbers in their shortest form, so that an answer has one encoding.
//! The reader takes nothing for granted: a key may have been completed by other code.

use std::fmt;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const VERSION: u8 = 1;

/// Headers, and trailers, that an answer is kept with: 1,024 values each.
pub(crate) const FIELDS_MAX: usize = 1_024;

/// A stored answer: what [`Replay::Response`](crate::Replay::Response) holds for a key that the
/// layer completed.
///
/// For code that reads the store beside the layer, such as a page that shows a payment. The body is
/// not copied.
///
/// ```
/// use oncekey::http::StoredResponse;
/// # use bytes::Bytes;
/// # use http::StatusCode;
/// let stored = StoredResponse {
///     status: StatusCode::CREATED,
///     headers: [("location", "/v1/payments/7")]
///         .into_iter()
///         .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
///         .collect(),
///     trailers: Default::default(),
///     body: Bytes::from_static(b"paid"),
/// };
/// let bytes = stored.encode().expect("it is small");
/// assert_eq!(StoredResponse::decode(bytes)?, stored);
/// # Ok::<(), oncekey::http::NotAResponse>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers that are replayed.
    pub headers: HeaderMap,
    /// What followed the body.
    pub trailers: HeaderMap,
    /// The body, encoded as `Content-Encoding` says.
    pub body: Bytes,
}

/// Bytes that are not an answer stored by the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAResponse {
    what: &'static str,
}

impl fmt::Display for NotAResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the stored bytes are no HTTP response of this version: {} is wrong",
            self.what
        )
    }
}

impl std::error::Error for NotAResponse {}

impl StoredResponse {
    /// The bytes; `None` for more than 1,024 headers or trailers.
    pub fn encode(&self) -> Option<Bytes> {
        let mut bytes = Vec::with_capacity(64 * (1 + self.headers.len()) + self.body.len());
        bytes.push(VERSION);
        bytes.extend(self.status.as_u16().to_le_bytes());
        for fields in [&self.headers, &self.trailers] {
            if fields.len() > FIELDS_MAX {
                return None;
            }
            put_number(&mut bytes, fields.len());
            for (name, value) in fields {
                put(&mut bytes, name.as_str().as_bytes());
                put(&mut bytes, value.as_bytes());
            }
        }
        bytes.extend_from_slice(&self.body);
        Some(bytes.into())
    }

    /// Reads an answer.
    ///
    /// # Errors
    ///
    /// [`NotAResponse`] for anything that [`encode`](Self::encode) would not have written.
    pub fn decode(mut bytes: Bytes) -> Result<Self, NotAResponse> {
        let wrong = |what| NotAResponse { what };
        if bytes.try_get_u8() != Ok(VERSION) {
            return Err(wrong("the version"));
        }
        let status = bytes.try_get_u16_le().map_err(|_| wrong("the status"))?;
        let status = StatusCode::from_u16(status).map_err(|_| wrong("the status"))?;
        let headers = fields(&mut bytes).ok_or(wrong("a header"))?;
        let trailers = fields(&mut bytes).ok_or(wrong("a trailer"))?;
        Ok(Self {
            status,
            headers,
            trailers,
            body: bytes,
        })
    }
}

pub(crate) fn fields(bytes: &mut Bytes) -> Option<HeaderMap> {
    let count = number(bytes)?;
    if count > FIELDS_MAX {
        return None;
    }
    let mut fields = HeaderMap::new();
    let mut last = None;
    for _ in 0..count {
        let name = HeaderName::from_lowercase(&take(bytes)?).ok()?;
        // The values of one name stand together.
        if last.as_ref() != Some(&name) && fields.contains_key(&name) {
            return None;
        }
        last = Some(name.clone());
        let value = HeaderValue::from_maybe_shared(take(bytes)?).ok()?;
        fields.try_append(name, value).ok()?;
    }
    Some(fields)
}

pub(crate) fn put(bytes: &mut Vec<u8>, field: &[u8]) {
    put_number(bytes, field.len());
    bytes.extend_from_slice(field);
}

pub(crate) fn take(bytes: &mut Bytes) -> Option<Bytes> {
    let len = number(bytes)?;
    (len <= bytes.remaining()).then(|| bytes.split_to(len))
}

pub(crate) fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A number in at most four bytes, the last of which is not zero but for zero itself.
pub(crate) fn number(bytes: &mut Bytes) -> Option<usize> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let byte = bytes.try_get_u8().ok()?;
        number |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response() -> StoredResponse {
        let field = |(name, value): &(&'static str, &[u8])| {
            let value = HeaderValue::from_bytes(value).unwrap();
            (HeaderName::from_static(name), value)
        };
        let headers: &[(&str, &[u8])] = &[
            ("content-type", b"text/plain"),
            ("link", b"<b>"),
            ("link", b"<a>"),
            ("x-latin-1", b"schl\xfcssel"),
            ("x-long", &[b'x'; 300]),
            ("x-empty", b""),
        ];
        let trailers: &[(&str, &[u8])] = &[("grpc-status", b"0")];
        StoredResponse {
            status: StatusCode::CREATED,
            headers: headers.iter().map(field).collect(),
            trailers: trailers.iter().map(field).collect(),
            body: Bytes::from_static(b"\x00\xffbody"),
        }
    }

    #[test]
    fn every_status_comes_back() {
        for status in 100..=999 {
            let mut response = response();
            response.status = StatusCode::from_u16(status).unwrap();
            let bytes = response.encode().unwrap();
            assert_eq!(StoredResponse::decode(bytes), Ok(response));
        }
    }

    /// The bytes of version 1, which later versions must go on reading.
    #[test]
    fn the_first_version_is_these_bytes() {
        let stored = StoredResponse {
            status: StatusCode::OK,
            headers: [(
                HeaderName::from_static("etag"),
                HeaderValue::from_static("1"),
            )]
            .into_iter()
            .collect(),
            trailers: HeaderMap::new(),
            body: Bytes::from_static(b"{}"),
        };
        let bytes = b"\x01\xc8\x00\x01\x04etag\x011\x00{}";
        assert_eq!(&stored.encode().unwrap()[..], bytes);
        let empty = StoredResponse {
            status: StatusCode::NO_CONTENT,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            ..stored
        };
        assert_eq!(&empty.encode().unwrap()[..], b"\x01\xcc\x00\x00\x00");
    }

    #[test]
    fn cut_and_foreign_bytes_are_refused() {
        let whole = response().encode().unwrap();
        let head = whole.len() - response().body.len();
        for len in 0..head {
            assert!(StoredResponse::decode(whole.slice(..len)).is_err(), "{len}");
        }
        let foreign: &[&[u8]] = &[
            b"",
            b"paid",
            b"\x00\xc8\x00\x00\x00",
            b"\x02\xc8\x00\x00\x00",
            // Statuses 99 and 1,000.
            b"\x01\x63\x00\x00\x00",
            b"\x01\xe8\x03\x00\x00",
            // A count not in its shortest form, and one that is too large.
            b"\x01\xc8\x00\x80\x00\x00",
            b"\x01\xc8\x00\x81\x08\x00",
            b"\x01\xc8\x00\xff\xff\xff\xff\x7f\x00",
            // An upper-case name, no name, a name torn apart, a control character.
            b"\x01\xc8\x00\x01\x01A\x011\x00",
            b"\x01\xc8\x00\x01\x00\x011\x00",
            b"\x01\xc8\x00\x03\x01a\x011\x01b\x011\x01a\x011\x00",
            b"\x01\xc8\x00\x01\x01a\x01\n\x00",
        ];
        for bytes in foreign {
            let decoded = StoredResponse::decode(Bytes::from_static(bytes));
            assert!(decoded.is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn too_many_headers_are_not_stored() {
        let mut response = response();
        for _ in response.headers.len()..FIELDS_MAX {
            response
                .headers
                .append("x-more", HeaderValue::from_static("1"));
        }
        let bytes = response.encode().unwrap();
        assert_eq!(StoredResponse::decode(bytes).as_ref(), Ok(&response));
        response
            .headers
            .append("x-more", HeaderValue::from_static("1"));
        assert_eq!(response.encode(), None);
    }

    proptest! {
        /// Whatever is read has one encoding, and it is the one that was read.
        #[test]
        fn any_bytes_are_refused_or_written_again(
            at in 0..400_usize, byte: u8, tail in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            let mut bytes = response().encode().unwrap().to_vec();
            if let Some(changed) = bytes.get_mut(at) {
                *changed = byte;
            }
            for bytes in [bytes, [&b"\x01\xc8\x00"[..], &tail].concat()] {
                let bytes = Bytes::from(bytes);
                if let Ok(read) = StoredResponse::decode(bytes.clone()) {
                    prop_assert_eq!(read.encode(), Some(bytes));
                }
            }
        }
    }
}
