//! The bytes a request is journaled as.
//!
//! ```text
//! version      1 byte, 1
//! begun        8 bytes, little-endian, ms since the Unix epoch: which operation of its name it is of
//! send until   8 bytes, little-endian, ms since the Unix epoch
//! method       length and bytes
//! URI          length and bytes
//! headers      count, then for each: length and name (lower case), length and value
//! body         the rest
//! ```
//!
//! Counts and lengths are LEB128 numbers in their shortest form, as in stored answers.

use std::fmt;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Method, Request, Uri};

use crate::stored_response::{FIELDS_MAX, fields, put, put_number, take};

const VERSION: u8 = 1;

/// A request with its key's header in it, and until when it may be sent.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) begun_ms: u64,
    pub(super) send_until_ms: u64,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Record {
    /// `None` for more headers than may be.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        if self.headers.len() > FIELDS_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(128 + 64 * self.headers.len() + self.body.len());
        bytes.push(VERSION);
        bytes.extend(self.begun_ms.to_le_bytes());
        bytes.extend(self.send_until_ms.to_le_bytes());
        put(&mut bytes, self.method.as_str().as_bytes());
        put(&mut bytes, self.uri.to_string().as_bytes());
        put_number(&mut bytes, self.headers.len());
        for (name, value) in &self.headers {
            put(&mut bytes, name.as_str().as_bytes());
            put(&mut bytes, value.as_bytes());
        }
        bytes.extend_from_slice(&self.body);
        Some(bytes)
    }

    /// `None` for anything that [`encode`](Self::encode) would not have written.
    pub(super) fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.try_get_u8() != Ok(VERSION) {
            return None;
        }
        Some(Self {
            begun_ms: bytes.try_get_u64_le().ok()?,
            send_until_ms: bytes.try_get_u64_le().ok()?,
            method: Method::from_bytes(&take(&mut bytes)?).ok()?,
            uri: Uri::from_maybe_shared(take(&mut bytes)?).ok()?,
            headers: fields(&mut bytes)?,
            body: bytes,
        })
    }

    pub(super) fn request(&self) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// What is shown ends up in logs, where neither the key nor the request belongs.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("method", &self.method)
            .field("host", &self.uri.host())
            .field("path", &self.uri.path())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.append("accept", "a/b".parse().unwrap());
        headers.append("accept", "c/d".parse().unwrap());
        headers.append("idempotency-key", "\"k\"".parse().unwrap());
        Record {
            begun_ms: 1_699_999_999_123,
            send_until_ms: 1_700_000_000_123,
            method: Method::POST,
            uri: Uri::from_static("https://api.example:8443/v1/payments?dry=1"),
            headers,
            body: Bytes::from_static(b"\x00\xffbody"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = Bytes::from(record().encode().unwrap());
        let read = Record::decode(bytes.clone()).unwrap();
        let (read, written) = (read.request(), record().request());
        assert_eq!(read.uri(), written.uri());
        assert_eq!(read.method(), written.method());
        assert_eq!(read.headers(), written.headers());
        assert_eq!(read.body(), written.body());
        let head = bytes.len() - written.body().len();
        for len in 0..head {
            assert!(Record::decode(bytes.slice(..len)).is_none(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(at in 0..200_usize, byte: u8, tail: Vec<u8>) {
            let mut bytes = record().encode().unwrap();
            if let Some(changed) = bytes.get_mut(at) {
                *changed = byte;
            }
            for bytes in [bytes, [&b"\x01"[..], &tail].concat()] {
                if let Some(read) = Record::decode(bytes.into()) {
                    prop_assert!(read.encode().is_some());
                }
            }
        }
    }
}
