//! Which of an answer's headers are stored.

use http::header::{self, HeaderMap, HeaderName};

/// Headers of one message, one connection, one caller or one moment: never stored.
///
/// Everything else is, with all its values in their order: `Content-Type`, `Content-Encoding`,
/// `Location`, `ETag`, `Link` and what a service made up.
static NEVER: [HeaderName; 27] = [
    // Of one connection.
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-authentication-info"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::ALT_SVC,
    // Of one message: made anew for each.
    header::CONTENT_LENGTH,
    header::DATE,
    header::AGE,
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    // Of one caller: the next who has the key may be another session.
    header::SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    header::AUTHORIZATION,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    // Of one moment.
    header::RETRY_AFTER,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
];

/// Whole families of one moment.
const NEVER_PREFIXES: &[&str] = &["ratelimit-", "x-ratelimit-", "x-rate-limit-"];

/// The headers to store: without those above, those that `Connection` names, and `also`.
pub(super) fn stored(headers: &HeaderMap, also: &[HeaderName]) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    let is_kept = |name: &HeaderName| {
        !NEVER.contains(name)
            && !also.contains(name)
            && !named.contains(name)
            && !NEVER_PREFIXES
                .iter()
                .any(|prefix| name.as_str().starts_with(prefix))
    };
    headers
        .iter()
        .filter(|(name, _)| is_kept(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn what_belongs_to_one_message_is_dropped_and_the_rest_is_kept_in_order() {
        let mut headers = HeaderMap::new();
        let mut add = |name: &str, value: &[u8]| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        };
        for name in &NEVER {
            add(name.as_str(), b"x");
        }
        for name in [
            "x-ratelimit-remaining",
            "ratelimit-reset",
            "x-rate-limit-limit",
        ] {
            add(name, b"x");
        }
        add("connection", b"close, X-Of-This-Hop");
        add("connection", b"X-Too");
        add("x-of-this-hop", b"1");
        add("x-too", b"1");
        add("idempotent-replayed", b"true");
        let kept: &[(&str, &[u8])] = &[
            ("content-type", b"text/plain"),
            ("content-encoding", b"br"),
            ("content-language", b"de"),
            ("content-location", b"/x"),
            ("location", b"/y"),
            ("etag", b"\"1\""),
            ("last-modified", b"Tue, 01 Dec 2026 00:00:00 GMT"),
            ("link", b"<a>"),
            ("link", b"<b>"),
            ("link", b"<a>"),
            ("x-latin-1", b"schl\xfcssel"),
            ("x-empty", b""),
        ];
        for (name, value) in kept {
            add(name, value);
        }
        let stored = stored(&headers, &[HeaderName::from_static("idempotent-replayed")]);
        let stored: Vec<_> = stored
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(stored, kept);
    }
}
