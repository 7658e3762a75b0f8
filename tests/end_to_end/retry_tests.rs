//! The three tests that users run, against services that pass them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::{BodyExt, Full};
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
use oncekey::testing::{RetryFailure, RetryTest, RetryTests};

use crate::payments::{Payments, Setup, serve, store};

fn payment() -> Request<Bytes> {
    Request::post("/v1/payments")
        .header("authorization", "Bearer acct_1")
        .header("content-type", "application/json")
        .body(Bytes::from_static(
            br#"{"amount":1200,"currency":"eur","card":"tok_visa"}"#,
        ))
        .unwrap()
}

fn tests_of(payments: &Payments) -> RetryTests {
    let books = payments.books.clone();
    RetryTests::new(payment).count_effects(move || books.charged_in_all() as u64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_passes_as_a_router() -> Result<(), RetryFailure> {
    // Slow enough that a client can hang up while the card is being charged.
    for charge in [0, 30].map(Duration::from_millis) {
        let payments = Payments::start(Setup {
            charge,
            ..Setup::default()
        })
        .await;
        tests_of(&payments).run(payments.routes.clone()).await?;
        payments.layer.idle().await;
        assert_eq!(payments.layer.stats().interrupted, 0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_passes_over_sockets() -> Result<(), RetryFailure> {
    for (charge, wait) in [(0, 0), (30, 0), (30, 200)] {
        let payments = Payments::start(Setup {
            charge: Duration::from_millis(charge),
            wait: Duration::from_millis(wait),
            ..Setup::default()
        })
        .await;
        let url = format!("http://{}/", payments.address);
        tests_of(&payments).run_at(&url).await?;
        // Once more: it takes new keys. And by their answers alone.
        RetryTests::new(payment).run_at(&url).await?;
        assert_eq!(payments.layer.stats().interrupted, 0);
    }
    Ok(())
}

/// The preset for Stripe's clients, and answers that are passed on while they are made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_presets_and_bodies_pass() -> Result<(), RetryFailure> {
    let directory = tempfile::tempdir().unwrap();
    let name = HeaderName::from_static("x-payout-idempotency");
    let layer = IdempotencyLayer::new(store(&directory))
        .scope(Scope::global())
        .on_interrupted(OnInterrupted::fail())
        .stripe()
        .header(name.clone())
        .build()
        .unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let handler = async move || {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        let body = Full::new(Bytes::from(format!("run {run}")));
        let frames = body.into_data_stream();
        (
            StatusCode::ACCEPTED,
            [("etag", "\"1\""), ("x-many", "a")],
            Body::from_stream(frames),
        )
    };
    let routes = Router::new().route("/payouts", post(handler)).layer(layer);
    let tests = RetryTests::new(|| Request::post("/payouts").body(Bytes::new()).unwrap())
        .header(name)
        .count_effects(move || runs.load(Ordering::SeqCst));
    tests.run(routes.clone()).await?;
    let address = serve(routes).await;
    tests.run_at(&format!("http://{address}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_test_can_be_run_alone() -> Result<(), RetryFailure> {
    let payments = Payments::start(Setup::default()).await;
    let tests = tests_of(&payments).only(RetryTest::TenAtOnce);
    tests.run(payments.routes.clone()).await?;
    assert_eq!(payments.books.charged_in_all(), 1);
    Ok(())
}
