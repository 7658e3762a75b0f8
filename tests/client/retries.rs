//! What is sent again, and what is not.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use oncekey::client::{Failure, GaveUp, RetryMiddleware, SendError};
use reqwest_middleware::ClientBuilder;
use tower::retry::RetryLayer;
use tower::retry::budget::TpsBudget;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{Book, Server, Spoil, client, execute, no_answer, plain, policy};

fn answer(status: u16, headers: &[(&'static str, &str)]) -> Spoil {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Spoil::Answer(status, headers.collect())
}

#[tokio::test]
async fn an_answer_that_was_lost_after_execution_is_got_by_a_retry_and_runs_once() {
    let server = Server::start(vec![Spoil::CutAfter, Spoil::CutAfter]).await;
    let book = Book::new();
    let operation = book.begin("order-17", server.request("paid")).await;
    let client = client(policy());
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    let answer = sent.await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), &answer.body[..]),
        (201, &b"paid 1"[..])
    );
    assert_eq!((server.runs(), server.requests_with_one_key()), (1, 3));
    assert!(book.journal.unfinished().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_conflict_in_progress_is_waited_for() {
    let server = Server::start(Vec::new()).await;
    let post = || {
        let request = client(policy()).post(server.url());
        request
            .header("idempotency-key", "\"k\"")
            .body("slow")
            .send()
    };
    let first = tokio::spawn(post());
    while server.runs() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = tokio::spawn(post());
    // The layer has told the second to come again.
    while server.seen().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.app.gate.add_permits(1);
    let first = first.await.unwrap().unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(first.text().await.unwrap(), "slow 1");
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    assert_eq!(second.text().await.unwrap(), "slow 1");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_key_that_was_used_for_another_request_is_not_tried_again() {
    let server = Server::start(Vec::new()).await;
    for (body, status) in [("one", 201), ("two", 422)] {
        let request = client(policy()).post(server.url());
        let answer = request.header("idempotency-key", "\"k\"").body(body).send();
        assert_eq!(answer.await.unwrap().status().as_u16(), status);
    }
    assert_eq!(server.requests_with_one_key(), 2);
}

#[tokio::test]
async fn a_date_in_retry_after_is_waited_for() {
    let now = SystemTime::now();
    let date = httpdate::fmt_http_date(now);
    let later = httpdate::fmt_http_date(now + Duration::from_secs(1));
    let busy = answer(503, &[("date", &date), ("retry-after", &later)]);
    let server = Server::start(vec![busy]).await;
    let begin = Instant::now();
    let request = client(policy()).post(server.url());
    let sent = request
        .header("idempotency-key", "\"k\"")
        .body("paid")
        .send();
    assert_eq!(sent.await.unwrap().status(), StatusCode::CREATED);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.requests_with_one_key(), 2);
}

#[tokio::test]
async fn with_the_budget_used_up_the_answer_is_handed_out_and_says_so() {
    let server = Server::start(vec![answer(503, &[]); 9]).await;
    let budget = TpsBudget::new(Duration::from_secs(60), 0, 1.0);
    let client = client(policy().budget(Arc::new(budget)));
    let request = client.post(server.url()).header("idempotency-key", "\"k\"");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 503);
    assert_eq!(answer.extensions().get(), Some(&GaveUp::BudgetUsedUp));
    assert_eq!((server.runs(), server.seen().len()), (0, 1));
}

#[tokio::test]
async fn attempts_end_and_the_operation_stays_in_the_journal() {
    let server = Server::start(vec![answer(502, &[]); 4]).await;
    let book = Book::new();
    let operation = book.begin("order-17", server.request("paid")).await;
    let client = client(policy());
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    let Err(SendError::NotFinal { answer, operation }) = sent.await else {
        panic!("it was answered 502")
    };
    assert_eq!(
        (answer.status.as_u16(), server.requests_with_one_key()),
        (502, 4)
    );
    // At once, with the operation that came back.
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    assert_eq!(sent.await.unwrap().body, "paid 1");
    assert_eq!((server.runs(), server.requests_with_one_key()), (1, 5));
}

#[tokio::test]
async fn a_post_without_a_key_is_sent_once() {
    let server = Server::start(vec![Spoil::CutAfter, answer(503, &[])]).await;
    let client = client(policy());
    let error = client.post(server.url()).send().await.unwrap_err();
    let error = no_answer(error);
    assert_eq!((error.attempts, error.why), (1, GaveUp::NoKey));
    let answer = client.post(server.url()).send().await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&GaveUp::NoKey));
    assert_eq!(server.seen(), [None, None]);
}

#[tokio::test]
async fn a_body_that_is_a_stream_is_sent_once_and_says_so() {
    let server = Server::start(vec![answer(503, &[("retry-after", "0")])]).await;
    // Of no known length and not to be rewound.
    let frames = http_body_util::Full::new(Bytes::from("streamed"));
    let request = client(policy()).post(server.url());
    let request = request.header("idempotency-key", "\"k\"");
    let answer = request
        .body(reqwest::Body::wrap(frames))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 503);
    assert_eq!(answer.extensions().get(), Some(&GaveUp::BodyNotReplayable));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_as_often_as_one_that_fails() {
    let server = Server::start(Vec::new()).await;
    let url = server.url();
    // A port that nobody listens at any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}/payments", closed.local_addr().unwrap());
    drop(closed);
    assert_ne!(url, nobody);
    let request = client(policy().attempts(3)).post(nobody);
    let error = request.header("idempotency-key", "\"k\"").send().await;
    let error = no_answer(error.unwrap_err());
    assert_eq!((error.attempts, error.why), (3, GaveUp::AttemptsUsedUp));
}

/// However many layers retry, none of them makes a key.
#[tokio::test]
async fn nested_retries_have_one_key() {
    let server = Server::start(vec![answer(502, &[]); 5]).await;
    let book = Book::new();
    let operation = book.begin("order-17", server.request("paid")).await;
    let client = ClientBuilder::new(plain())
        .with(RetryMiddleware::new(policy().attempts(3)))
        .with(RetryMiddleware::new(policy().attempts(2)))
        .build();
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    assert_eq!(sent.await.unwrap().body, "paid 1");
    assert_eq!(server.requests_with_one_key(), 6);
}

#[tokio::test]
async fn towers_retry_layer_decides_the_same() {
    let busy = answer(429, &[("retry-after", "0")]);
    let server = Server::start(vec![Spoil::CutAfter, busy]).await;
    let book = Book::new();
    let operation = book.begin("order-17", server.request("paid")).await;
    let plain = plain();
    let client = service_fn(move |request: http::Request<Bytes>| {
        let plain = plain.clone();
        async move {
            let answer = plain.execute(request.try_into()?).await?;
            let status = answer.status();
            let headers = answer.headers().clone();
            let mut whole = http::Response::new(answer.bytes().await?);
            *whole.status_mut() = status;
            *whole.headers_mut() = headers;
            Ok::<_, reqwest::Error>(whole)
        }
    });
    let failure = |error: &reqwest::Error| match error.is_builder() {
        true => Failure::Other,
        false => Failure::Connection,
    };
    let client = RetryLayer::new(policy().tower_with(failure)).layer(client);
    let sent = operation.send(async |attempt| client.clone().oneshot(attempt.request()).await);
    assert_eq!(sent.await.unwrap().body, "paid 1");
    assert_eq!((server.runs(), server.requests_with_one_key()), (1, 3));

    // Without a key once, and with what came of it.
    let server = Server::start(vec![answer(503, &[])]).await;
    let answer = client.oneshot(server.request("paid")).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&GaveUp::NoKey));
    assert_eq!(server.seen(), [None]);
}
