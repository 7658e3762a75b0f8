//! The final answer to a payment: what the store keeps and every duplicate gets.
//!
//! Only what must be the same for all of them is stored: status, `Content-Type`, `Location` and the
//! body. `Date`, `Content-Length` and the marker of a replay belong to one message and are made new
//! each time. The first caller is answered from the same value, so nobody can tell the difference
//! but by the marker.
//!
//! The bytes: version 1, status (2 bytes, little-endian), then `Content-Type` and `Location`, each
//! as length (2 bytes) and text, then the body to the end.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::{Buf, Bytes};

/// Tells a replay from a first answer; absent on first ones.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Which attempt at the payment gave the answer: above 1 after an interruption.
pub const PAYMENT_ATTEMPT: HeaderName = HeaderName::from_static("payment-attempt");

const VERSION: u8 = 1;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub content_type: HeaderValue,
    pub location: Option<HeaderValue>,
    pub body: Bytes,
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.status.as_u16().to_le_bytes());
        let no_value = HeaderValue::from_static("");
        for value in [
            &self.content_type,
            self.location.as_ref().unwrap_or(&no_value),
        ] {
            // Both are made by this service and far below 64 KiB.
            let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
            bytes.extend(length.to_le_bytes());
            bytes.extend(&value.as_bytes()[..usize::from(length)]);
        }
        bytes.extend(&self.body);
        bytes
    }

    /// `None` if the bytes are not an answer this version of the service can read. The body is not
    /// copied: it stays the store's mapped memory until the connection has sent it.
    pub fn decode(mut stored: Bytes) -> Option<Self> {
        if stored.try_get_u8().ok()? != VERSION {
            return None;
        }
        let status = StatusCode::from_u16(stored.try_get_u16_le().ok()?).ok()?;
        let content_type = decode_header(&mut stored)?;
        let location = decode_header(&mut stored)?;
        let location = (!location.is_empty()).then_some(location);
        Some(Self {
            status,
            content_type,
            location,
            body: stored,
        })
    }

    pub fn into_response(self, attempt: u32, replayed: bool) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type);
        if let Some(location) = self.location {
            headers.insert(LOCATION, location);
        }
        headers.insert(PAYMENT_ATTEMPT, HeaderValue::from(attempt));
        if replayed {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

fn decode_header(stored: &mut Bytes) -> Option<HeaderValue> {
    let length = usize::from(stored.try_get_u16_le().ok()?);
    if stored.remaining() < length {
        return None;
    }
    HeaderValue::from_bytes(&stored.split_to(length)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(location: Option<&'static str>) -> Answer {
        Answer {
            status: StatusCode::CREATED,
            content_type: HeaderValue::from_static("application/json"),
            location: location.map(HeaderValue::from_static),
            body: Bytes::from_static(b"{}"),
        }
    }

    #[test]
    fn what_is_stored_comes_back() {
        for answer in [answer(None), answer(Some("/v1/payments/pay_1"))] {
            assert_eq!(Answer::decode(answer.encode().into()), Some(answer));
        }
    }

    #[test]
    fn cut_or_foreign_bytes_are_no_answer() {
        let answer = answer(Some("/v1/payments/pay_1"));
        let whole = answer.encode();
        let headers = whole.len() - answer.body.len();
        for length in 0..headers {
            assert_eq!(
                Answer::decode(Bytes::copy_from_slice(&whole[..length])),
                None
            );
        }
        let mut foreign = whole;
        foreign[0] = VERSION + 1;
        assert_eq!(Answer::decode(foreign.into()), None);
    }
}
