//! `Retry-After` in both of its forms.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

/// How long the server asks to wait; `None` where it does not, or says something that is neither a
/// number of seconds nor a date.
///
/// A date is measured from the answer's own `Date`, so that the client's clock does not matter,
/// and from `now` only without one. One in the past is no wait.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let mut lines = headers.get_all(RETRY_AFTER).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let value = line.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than fits is for ever, which no limit allows.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let begin = headers
        .get(DATE)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        .unwrap_or(now);
    Some(until.duration_since(begin).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_nothing_else() {
        // 1994-11-06 08:49:37.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let table: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("120", Some(120)),
            (" 5 ", Some(5)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10)),
            ("Sun Nov  6 08:49:47 1994", Some(10)),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("abc", None),
            ("", None),
            ("1, 2", None),
        ];
        for (value, secs) in table {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            let expected = secs.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, now), expected, "{value:?}");
        }
    }

    #[test]
    fn a_date_counts_from_the_servers_own() {
        let mut headers = HeaderMap::new();
        let date = |text: &str| text.parse().unwrap();
        headers.insert(RETRY_AFTER, date("Sun, 06 Nov 1994 08:49:47 GMT"));
        headers.insert(DATE, date("Sun, 06 Nov 1994 08:49:44 GMT"));
        let wrong_clock = SystemTime::UNIX_EPOCH;
        let wait = retry_after(&headers, wrong_clock);
        assert_eq!(wait, Some(Duration::from_secs(3)));
        headers.append(RETRY_AFTER, date("5"));
        assert_eq!(retry_after(&headers, wrong_clock), None);
    }
}
