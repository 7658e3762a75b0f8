//! What a request is compared by.
//!
//! Method, path, query, content type and body, and nothing that clients, proxies or tracing change
//! from one attempt to the next. Both ways of taking the body have an algorithm id of their own, so
//! that a service can change from one to the other: what was stored before is then not compared,
//! instead of looking like a mismatch.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use crate::fingerprint::Fingerprint;

use super::canonical_json;

type Custom = Arc<dyn Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync>;

/// How two requests under one key are told apart.
///
/// Both built-in ways compare method, path, query, content type without its parameters, and body.
#[derive(Clone, Default)]
pub struct RequestFingerprint(Way);

#[derive(Clone, Default)]
enum Way {
    #[default]
    Raw,
    CanonicalJson,
    Custom(Custom),
}

impl RequestFingerprint {
    /// The body byte for byte. The default: right for clients that send the same bytes again, and
    /// where it matters what exactly was sent.
    pub fn raw() -> Self {
        Self(Way::Raw)
    }

    /// A JSON body by its value: keys of objects in any order, at every depth, and any white space.
    /// Arrays are compared in order, numbers as they are written (`1.0` is not `1`).
    ///
    /// A body of another content type (not `application/json`, not `…+json`), one that is no JSON,
    /// that has a key twice in one object, or is nested deeper than 64 levels, is compared byte for
    /// byte.
    pub fn canonical_json() -> Self {
        Self(Way::CanonicalJson)
    }

    /// Your own: from the request's head and its whole body.
    ///
    /// It has to be the same for every attempt of a client. Use it where a body differs each time
    /// (the boundary of `multipart/form-data`), or to compare selected fields.
    pub fn custom(
        fingerprint: impl Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        Self(Way::Custom(Arc::new(fingerprint)))
    }

    pub(super) fn of(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let canonical = match &self.0 {
            Way::Custom(custom) => return custom(parts, body),
            Way::Raw => None,
            Way::CanonicalJson if is_json(&parts.headers) => canonical_json::digest(body),
            Way::CanonicalJson => None,
        };
        let head = Fingerprint::builder()
            .part(parts.method.as_str())
            .part(parts.uri.path())
            .part(parts.uri.query().unwrap_or_default())
            .part(content_type(&parts.headers));
        let whole = match &canonical {
            Some(digest) => head.part("json").part(digest),
            None => head.part("raw").part(body),
        };
        match &self.0 {
            Way::CanonicalJson => whole.finish_http_json(),
            _ => whole.finish_http_raw(),
        }
    }
}

impl fmt::Debug for RequestFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Way::Raw => "RequestFingerprint::raw",
            Way::CanonicalJson => "RequestFingerprint::canonical_json",
            Way::Custom(_) => "RequestFingerprint::custom",
        })
    }
}

/// Type and subtype in lower case, without parameters.
fn content_type(headers: &HeaderMap) -> Vec<u8> {
    let value = headers
        .get(CONTENT_TYPE)
        .map_or(&[][..], |value| value.as_bytes());
    let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
    essence.trim_ascii().to_ascii_lowercase()
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = content_type(headers);
    essence == b"application/json" || essence.ends_with(b"+json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Comparison;
    use http::Request;

    type Sent = (&'static str, &'static str, &'static str, &'static str);

    fn of(way: &RequestFingerprint, (method, uri, content_type, body): Sent) -> Fingerprint {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(CONTENT_TYPE, content_type)
            .header("x-request-id", body.len())
            .header("user-agent", uri);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        way.of(&parts, body.as_bytes())
    }

    const JSON: &str = "application/json";
    const FIRST: Sent = ("POST", "/a?x=1", JSON, r#"{"a":1,"b":2}"#);

    #[test]
    fn every_part_of_a_request_counts() {
        for way in [
            RequestFingerprint::raw(),
            RequestFingerprint::canonical_json(),
        ] {
            let first = of(&way, FIRST);
            for other in [
                ("PATCH", "/a?x=1", JSON, FIRST.3),
                ("POST", "/b?x=1", JSON, FIRST.3),
                ("POST", "/a?x=2", JSON, FIRST.3),
                ("POST", "/a", JSON, FIRST.3),
                ("POST", "/a?x=1", "text/plain", FIRST.3),
                ("POST", "/a?x=1", JSON, r#"{"a":2,"b":1}"#),
                ("POST", "/a?x=1", JSON, r#"{"a":1,"b":2"#),
                ("POST", "/a?x=1", JSON, ""),
            ] {
                let other_of = of(&way, other);
                assert_eq!(first.compare(other_of), Comparison::Different, "{other:?}");
            }
            let parameters = ("POST", "/a?x=1", "Application/JSON; charset=utf-8", FIRST.3);
            assert_eq!(first, of(&way, parameters));
        }
    }

    #[test]
    fn the_order_of_keys_counts_only_byte_for_byte() {
        let other = ("POST", "/a?x=1", JSON, r#"{"b":2,"a":1}"#);
        let raw = RequestFingerprint::raw();
        assert_ne!(of(&raw, FIRST), of(&raw, other));
        let json = RequestFingerprint::canonical_json();
        assert_eq!(of(&json, FIRST), of(&json, other));
        // What is not JSON by its type is not read as JSON.
        let text = |body| of(&json, ("POST", "/", "text/plain", body));
        assert_ne!(text(FIRST.3), text(other.3));
        let patch = |body| of(&json, ("POST", "/", "application/merge-patch+json", body));
        assert_eq!(patch(FIRST.3), patch(other.3));
    }

    #[test]
    fn a_change_of_the_way_makes_no_false_mismatch() {
        let raw = of(&RequestFingerprint::raw(), FIRST);
        let json = of(&RequestFingerprint::canonical_json(), FIRST);
        assert_eq!(raw.compare(json), Comparison::NotComparable);
    }

    /// Algorithms 3 and 4 must give these digests for ever: they stand in the log. The values are
    /// those of the reference implementation of XXH3-128, in C.
    #[test]
    fn the_digests_are_part_of_the_format() {
        let raw = of(&RequestFingerprint::raw(), FIRST).to_string();
        let json = of(&RequestFingerprint::canonical_json(), FIRST).to_string();
        assert_eq!(raw, "3:635594874a577e6ef38698d9c621efb0");
        assert_eq!(json, "4:c672da4d7efa807b76df73a7d317fac5");
    }
}
