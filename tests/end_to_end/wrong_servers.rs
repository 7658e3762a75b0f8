//! Servers that are wrong on purpose, each in one way that has been seen: the three tests must say
//! so, and say what.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::Request;
use oncekey::testing::{RetryFailure, RetryFault, RetryTest, RetryTests};

use crate::payments::serve;
use crate::support::LONG;

/// What a server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// It knows no keys.
    NoDedupe,
    /// It runs the handler, then looks and gives the stored answer.
    RunsAndReplays,
    /// It looks, works, and only then writes the key down.
    CheckThenInsert,
    /// The key is forgotten when the client hangs up while the handler is at work.
    CancelledWithItsClient,
    /// It takes every request for the first one.
    OneKeyForAll,
    OtherBody,
    OtherStatus,
    WithoutLocation,
    NotMarked,
    MarksTheFirst,
    /// A finished request is answered like one at work, for ever.
    StaysInProgress,
    /// Refused from the start.
    Refuses,
    /// Nothing is done.
    NoEffect,
    Fails,
}

#[derive(Clone)]
struct Server {
    wrong: Wrong,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    effects: u64,
    /// `None` while it is being worked on.
    answers: HashMap<String, Option<u64>>,
}

/// Frees the key of a handler that was cancelled.
struct Working {
    server: Server,
    key: String,
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.server.state.lock().unwrap();
        if let Some(None) = state.answers.get(&self.key) {
            state.answers.remove(&self.key);
        }
    }
}

impl Server {
    fn new(wrong: Wrong) -> Self {
        Self {
            wrong,
            state: Arc::default(),
        }
    }

    fn routes(&self) -> Router {
        let server = self.clone();
        let handler = move |headers: HeaderMap| server.clone().handle(headers);
        Router::new().route("/orders", post(handler))
    }

    fn tests(&self) -> RetryTests {
        let state = Arc::clone(&self.state);
        RetryTests::new(|| {
            Request::post("/orders")
                .body(Bytes::from_static(b"{}"))
                .unwrap()
        })
        .patience(LONG)
        .count_effects(move || state.lock().unwrap().effects)
    }

    async fn handle(self, headers: HeaderMap) -> Response {
        let key = match self.wrong {
            Wrong::OneKeyForAll => String::new(),
            _ => headers["idempotency-key"].to_str().unwrap().to_owned(),
        };
        match self.wrong {
            Wrong::Refuses => return (StatusCode::BAD_REQUEST, "no such field").into_response(),
            Wrong::Fails => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            _ => {}
        }
        let known = {
            let mut state = self.state.lock().unwrap();
            let known = state.answers.get(&key).copied();
            let is_atomic = self.wrong != Wrong::CheckThenInsert;
            if known.is_none() && is_atomic {
                state.answers.insert(key.clone(), None);
            }
            known
        };
        match known {
            Some(None) => return again(),
            Some(Some(run)) if self.wrong != Wrong::NoDedupe => return self.replay(run),
            _ => {}
        }
        let work = self.clone().work(key);
        let run = match self.wrong {
            Wrong::CancelledWithItsClient => work.await,
            _ => tokio::spawn(work).await.unwrap(),
        };
        let mut response = answer(run);
        if self.wrong == Wrong::MarksTheFirst {
            response
                .headers_mut()
                .insert("idempotent-replayed", "true".parse().unwrap());
        }
        response
    }

    async fn work(self, key: String) -> u64 {
        let working = Working {
            server: self.clone(),
            key: key.clone(),
        };
        if self.wrong == Wrong::CheckThenInsert {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if self.wrong != Wrong::NoEffect {
            self.state.lock().unwrap().effects += 1;
        }
        // Long enough for its client to hang up on it.
        let is_cancelled = self.wrong == Wrong::CancelledWithItsClient;
        let work_ms = if is_cancelled { 300 } else { 40 };
        tokio::time::sleep(Duration::from_millis(work_ms)).await;
        let mut state = self.state.lock().unwrap();
        let run = state.effects;
        state.answers.insert(key, Some(run));
        drop(state);
        drop(working);
        run
    }

    fn replay(&self, run: u64) -> Response {
        let mut response = match self.wrong {
            Wrong::OtherBody => answer(run + 100),
            Wrong::StaysInProgress => return again(),
            _ => answer(run),
        };
        let headers = response.headers_mut();
        if !matches!(self.wrong, Wrong::NotMarked) {
            headers.insert("idempotent-replayed", "true".parse().unwrap());
        }
        match self.wrong {
            Wrong::WithoutLocation => drop(headers.remove("location")),
            Wrong::OtherStatus => *response.status_mut() = StatusCode::OK,
            Wrong::RunsAndReplays => self.state.lock().unwrap().effects += 1,
            _ => {}
        }
        response
    }
}

fn answer(run: u64) -> Response {
    let location = [
        ("location", format!("/orders/{run}")),
        ("x-request-id", "1".to_owned()),
    ];
    (StatusCode::CREATED, location, format!("order {run}")).into_response()
}

fn again() -> Response {
    (StatusCode::CONFLICT, [("retry-after", "1")], "in progress").into_response()
}

/// The failure through tower, which must be the one over a socket too.
async fn failure(wrong: Wrong) -> Result<(), RetryFailure> {
    let server = Server::new(wrong);
    let result = server.tests().run(server.routes()).await;
    let server = Server::new(wrong);
    let url = format!("http://{}", serve(server.routes()).await);
    let over_socket = server.tests().run_at(&url).await;
    let place = |result: &Result<(), RetryFailure>| {
        let failure = result.as_ref().err();
        failure.map(|failure| (failure.test(), std::mem::discriminant(failure.fault())))
    };
    assert_eq!(
        place(&result),
        place(&over_socket),
        "{wrong:?}: {result:?} {over_socket:?}"
    );
    result
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_right_passes() -> Result<(), RetryFailure> {
    failure(Wrong::Nothing).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_server_fails_for_what_it_does() {
    use RetryTest::{AnswerLost, SameKeyTwice, TenAtOnce};
    let table = [
        (
            Wrong::NoDedupe,
            SameKeyTwice,
            "the work was done 2 times for one key",
        ),
        (
            Wrong::RunsAndReplays,
            SameKeyTwice,
            "the work was done 2 times for one key",
        ),
        (Wrong::CheckThenInsert, TenAtOnce, "times for one key"),
        (
            Wrong::CancelledWithItsClient,
            AnswerLost,
            "the work was done 2 times for one key",
        ),
        (
            Wrong::OneKeyForAll,
            SameKeyTwice,
            "a request with another key was not carried out",
        ),
        (
            Wrong::OtherBody,
            SameKeyTwice,
            "differ in the body: one had `order 1`, another `order 101`",
        ),
        (
            Wrong::OtherStatus,
            SameKeyTwice,
            "differ in the status: one had 201 Created `order 1`",
        ),
        (
            Wrong::WithoutLocation,
            SameKeyTwice,
            "differ in the header `location`: one had `/orders/1`",
        ),
        (Wrong::NotMarked, SameKeyTwice, "not marked as a replay"),
        (
            Wrong::MarksTheFirst,
            SameKeyTwice,
            "the first answer for a new key is marked",
        ),
        (
            Wrong::StaysInProgress,
            SameKeyTwice,
            "another 409 Conflict `in progress`",
        ),
        (
            Wrong::Refuses,
            SameKeyTwice,
            "refused with 400 Bad Request `no such field`",
        ),
        (
            Wrong::NoEffect,
            SameKeyTwice,
            "does it count what this request does?",
        ),
        (
            Wrong::Fails,
            SameKeyTwice,
            "refused with 500 Internal Server Error",
        ),
    ];
    for (wrong, test, words) in table {
        let failure = failure(wrong)
            .await
            .expect_err(&format!("{wrong:?} passed"));
        assert_eq!(failure.test(), test, "{wrong:?}: {failure}");
        let told = failure.to_string();
        assert!(told.contains(words), "{wrong:?}: {told}");
        assert!(told.starts_with(&test.to_string()));
        // What a test that returns it shows.
        assert_eq!(format!("{failure:?}"), told);
    }
}

/// Ten at once and the lost answer find by themselves what the first test would find before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_test_finds_a_server_that_knows_no_keys() {
    for test in [
        RetryTest::SameKeyTwice,
        RetryTest::TenAtOnce,
        RetryTest::AnswerLost,
    ] {
        let server = Server::new(Wrong::NoDedupe);
        let failure = server
            .tests()
            .only(test)
            .run(server.routes())
            .await
            .unwrap_err();
        assert_eq!(failure.test(), test);
        assert!(
            matches!(failure.fault(), RetryFault::Repeated { .. }),
            "{failure}"
        );
    }
}

/// Without a count the answers tell, where they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_alone_show_most_of_it() {
    let tests =
        || RetryTests::new(|| Request::post("/orders").body(Bytes::new()).unwrap()).patience(LONG);
    let run = async |wrong| tests().run(Server::new(wrong).routes()).await;
    for wrong in [
        Wrong::NoDedupe,
        Wrong::CheckThenInsert,
        Wrong::OneKeyForAll,
        Wrong::OtherBody,
    ] {
        assert!(run(wrong).await.is_err(), "{wrong:?} passed");
    }
    assert_eq!(run(Wrong::RunsAndReplays).await, Ok(()));
    assert_eq!(run(Wrong::Nothing).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_differ_and_what_marks_a_replay_is_chosen() {
    let server = Server::new(Wrong::NotMarked);
    let unmarked = server.tests().replay_marker(None);
    assert_eq!(unmarked.run(server.routes()).await, Ok(()));
    let server = Server::new(Wrong::WithoutLocation);
    let ignoring = server
        .tests()
        .ignore_header(HeaderName::from_static("location"));
    assert_eq!(ignoring.run(server.routes()).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_of() {
    let tests = || RetryTests::new(|| Request::post("/").body(Bytes::new()).unwrap());
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let failure = tests()
        .run_at(&format!("http://{closed}"))
        .await
        .unwrap_err();
    assert!(
        matches!(failure.fault(), RetryFault::NoAnswer(_)),
        "{failure}"
    );
    let failure = tests().run_at("https://127.0.0.1").await.unwrap_err();
    assert!(
        matches!(failure.fault(), RetryFault::BadUrl(_)),
        "{failure}"
    );
}
