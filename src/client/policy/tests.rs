//! Every answer and failure against every kind of request.

use std::sync::Arc;

use http::StatusCode;

use super::*;
use crate::client::Failure;

/// What came back: a status with headers, or no answer.
#[derive(Clone, Copy, Debug)]
enum Came {
    Status(u16, &'static [(&'static str, &'static str)]),
    No(Failure),
}

/// What is decided for a request with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Done,
    /// Sent again, not before so many seconds.
    After(u64),
    Stop,
}

use Came::{No, Status};
use Decision::{After, Done, Stop};

const TABLE: &[(Came, Decision)] = &[
    (No(Failure::Connection), After(0)),
    (No(Failure::TimeOut), After(0)),
    (No(Failure::Other), Stop),
    (Status(100, &[]), Stop),
    (Status(200, &[]), Done),
    (Status(201, &[("retry-after", "5")]), Done),
    (Status(200, &[("x-should-retry", "true")]), Done),
    (Status(303, &[]), Done),
    (Status(304, &[]), Done),
    // Not carried out here: the request is to be sent to another place.
    (Status(307, &[]), Stop),
    (Status(308, &[]), Stop),
    (Status(400, &[]), Done),
    (Status(400, &[("retry-after", "5")]), Done),
    (Status(401, &[]), Stop),
    (Status(402, &[]), Done),
    (Status(403, &[]), Stop),
    (Status(404, &[]), Done),
    (Status(408, &[]), Stop),
    // In progress, as oncekey's layer says it; too late, a conflict of the service's own.
    (Status(409, &[("retry-after", "1")]), After(1)),
    (
        Status(409, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]),
        After(0),
    ),
    (Status(409, &[]), Stop),
    (Status(409, &[("retry-after", "soon")]), Stop),
    (Status(409, &[("stripe-should-retry", "true")]), After(0)),
    (
        Status(409, &[("retry-after", "1"), ("x-should-retry", "false")]),
        Stop,
    ),
    (Status(410, &[]), Done),
    (Status(413, &[("retry-after", "1")]), Done),
    (Status(422, &[]), Done),
    (Status(422, &[("retry-after", "1")]), Done),
    (Status(425, &[]), Stop),
    (Status(429, &[]), After(0)),
    (Status(429, &[("retry-after", "3")]), After(3)),
    (Status(429, &[("x-should-retry", "false")]), Stop),
    (Status(500, &[]), Stop),
    (Status(500, &[("x-should-retry", "true")]), After(0)),
    (
        Status(
            500,
            &[("stripe-should-retry", "True"), ("retry-after", "2")],
        ),
        After(2),
    ),
    (Status(500, &[("stripe-should-retry", "false")]), Stop),
    (Status(500, &[("x-should-retry", "perhaps")]), Stop),
    (Status(501, &[]), Stop),
    (Status(502, &[]), After(0)),
    (Status(503, &[]), After(0)),
    (Status(503, &[("retry-after", "7")]), After(7)),
    // The same date as the answer's, ten seconds later, and nothing that counts.
    (
        Status(
            503,
            &[
                ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"),
            ],
        ),
        After(10),
    ),
    (Status(503, &[("retry-after", "1.5")]), After(0)),
    (Status(503, &[("retry-after", "60")]), After(60)),
    // Over the cap: not believed.
    (Status(503, &[("retry-after", "61")]), After(0)),
    (Status(503, &[("x-should-retry", "false")]), Stop),
    (Status(504, &[]), After(0)),
    (Status(599, &[]), Stop),
];

fn verdict(came: Came) -> Verdict {
    match came {
        No(failure) => Verdict::of_failure(failure),
        Status(status, fields) => {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, value.parse().unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            Verdict::of(status, &headers, SystemTime::now())
        }
    }
}

fn keyed() -> HeaderMap {
    let name = HeaderName::from_static("idempotency-key");
    [(name, "k".parse().unwrap())].into_iter().collect()
}

fn policy() -> RetryPolicy {
    RetryPolicy::new()
        .total_time(Duration::from_secs(3_600))
        .budget(Arc::new(Endless))
}

#[derive(Debug)]
struct Endless;

impl Budget for Endless {
    fn deposit(&self) {}

    fn withdraw(&self) -> bool {
        true
    }
}

#[test]
fn every_answer_and_failure_is_decided() {
    let first_delay = FIRST_DELAY_DEFAULT;
    for &(came, expected) in TABLE {
        let next = policy()
            .begin()
            .next(&Method::POST, &keyed(), true, verdict(came));
        match (expected, next) {
            (Done, Next::Done) | (Stop, Next::Stop(GaveUp::NotRetryable)) => {}
            (After(secs), Next::Wait(delay)) => {
                let secs = Duration::from_secs(secs);
                assert!(
                    (secs..=secs + first_delay).contains(&delay),
                    "{came:?}: {delay:?}"
                );
            }
            (expected, next) => panic!("{came:?}: {next:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn only_what_is_safe_to_repeat_is_repeated_whatever_came() {
    let own = Method::from_bytes(b"CHARGE").unwrap();
    for &(came, expected) in TABLE {
        for method in [Method::POST, Method::PATCH, own.clone(), Method::CONNECT] {
            let next = policy()
                .begin()
                .next(&method, &HeaderMap::new(), true, verdict(came));
            assert!(!matches!(next, Next::Wait(_)), "{method} after {came:?}");
            if let After(_) = expected {
                assert_eq!(next, Next::Stop(GaveUp::NoKey));
            }
        }
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE] {
            let next = policy()
                .begin()
                .next(&method, &HeaderMap::new(), true, verdict(came));
            assert_eq!(matches!(next, Next::Wait(_)), matches!(expected, After(_)));
            let next = policy()
                .begin()
                .next(&method, &HeaderMap::new(), false, verdict(came));
            if let After(_) = expected {
                assert_eq!(next, Next::Stop(GaveUp::BodyNotReplayable));
            }
        }
    }
}

#[test]
fn another_header_counts_as_a_key_when_it_is_named() {
    let name = HeaderName::from_static("paypal-request-id");
    let headers: HeaderMap = [(name.clone(), "k".parse().unwrap())].into_iter().collect();
    let lost = verdict(No(Failure::TimeOut));
    let next = |policy: RetryPolicy| policy.begin().next(&Method::POST, &headers, true, lost);
    assert_eq!(next(policy()), Next::Stop(GaveUp::NoKey));
    assert!(matches!(next(policy().key_header(name)), Next::Wait(_)));
}

#[test]
fn attempts_are_bounded() {
    for (asked, made) in [(0, 1), (1, 1), (3, 3), (4, 4), (10, 10), (11, 10)] {
        let mut retries = policy().attempts(asked).begin();
        let mut next = || retries.next(&Method::POST, &keyed(), true, verdict(Status(503, &[])));
        for _ in 1..made {
            assert!(matches!(next(), Next::Wait(_)));
        }
        assert_eq!(next(), Next::Stop(GaveUp::AttemptsUsedUp));
    }
    assert_eq!(policy().attempts, ATTEMPTS_DEFAULT);
}

/// The whole width is used: no two clients come back at the same time.
#[test]
fn delays_double_up_to_the_largest_and_have_full_jitter() {
    let (first, max) = (Duration::from_millis(100), Duration::from_millis(350));
    let mut seen = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..200 {
        let mut retries = policy().attempts(5).delays(first, max).begin();
        for seen in &mut seen {
            let lost = verdict(No(Failure::Connection));
            let Next::Wait(delay) = retries.next(&Method::PUT, &HeaderMap::new(), true, lost)
            else {
                panic!("an attempt is left")
            };
            seen.push(delay);
        }
    }
    for (mut seen, limit_ms) in seen.into_iter().zip([100, 200, 350, 350]) {
        let limit = Duration::from_millis(limit_ms);
        seen.sort_unstable();
        assert!(seen[199] <= limit);
        assert!(seen[0] < limit / 5 && seen[199] > limit * 4 / 5, "{seen:?}");
    }
}

#[test]
fn no_attempt_begins_after_the_total_time() {
    let policy = policy().total_time(Duration::from_secs(5));
    let next = |secs| {
        let retry_after = Some(Duration::from_secs(secs));
        let verdict = Verdict::Again { retry_after };
        policy.begin().next(&Method::POST, &keyed(), true, verdict)
    };
    assert!(matches!(next(2), Next::Wait(_)));
    assert_eq!(next(6), Next::Stop(GaveUp::TimeUsedUp));
}

/// From a server that means harm, to a client that believes everything.
#[test]
fn a_time_without_end_is_waited_for_and_no_overflow() {
    let policy = policy()
        .total_time(Duration::MAX)
        .retry_after_max(Duration::MAX);
    let asked = verdict(Status(503, &[("retry-after", "99999999999999999999999")]));
    for _ in 0..50 {
        let next = policy.begin().next(&Method::POST, &keyed(), true, asked);
        assert!(matches!(next, Next::Wait(delay) if delay.as_secs() == u64::MAX));
    }
}

#[test]
fn requests_of_one_policy_share_a_budget() {
    // Two retries in two seconds, and one more for each request that needs none.
    let budget = TpsBudget::new(Duration::from_secs(2), 1, 1.0);
    let policy = RetryPolicy::new().budget(Arc::new(budget));
    let next = |came| {
        policy
            .clone()
            .begin()
            .next(&Method::POST, &keyed(), true, verdict(came))
    };
    for _ in 0..2 {
        assert!(matches!(next(Status(502, &[])), Next::Wait(_)));
    }
    assert_eq!(next(Status(502, &[])), Next::Stop(GaveUp::BudgetUsedUp));
    assert_eq!(next(Status(200, &[])), Next::Done);
    assert!(matches!(next(Status(502, &[])), Next::Wait(_)));
}
