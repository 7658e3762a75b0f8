//! Which requests are the layer's, and what it finds wrong with them.

use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use oncekey::http::{KeyRule, KeySyntax, RouteOptions};

use crate::world::{Served, World, post, request};

#[tokio::test]
async fn other_methods_go_to_the_handler_untouched() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    for (number, method) in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"]
        .into_iter()
        .enumerate()
    {
        for twice in 1..=2 {
            let answer = served.send(request(method, "/payments", "k", "")).await;
            answer.assert_ran(2 * number + twice);
            assert_eq!(answer.header("idempotency-expires"), None);
        }
    }
    assert_eq!(world.store.stats().claims_started, 0);
}

#[tokio::test]
async fn methods_are_chosen() {
    let world = World::new();
    let layer = world.builder().methods([Method::PUT, Method::DELETE]);
    let served = Served::counting(&layer.build().unwrap());
    for (method, is_covered) in [("PUT", true), ("DELETE", true), ("POST", false)] {
        served.send(request(method, "/", "k", "")).await;
        let again = served.send(request(method, "/", "k", "")).await;
        assert_eq!(again.is_replay(), is_covered, "{method}");
    }
}

#[tokio::test]
async fn a_missing_key_is_refused_where_it_is_required() {
    let world = World::new();
    let bare = || {
        let request = Request::post("/payments").header("account", "alice");
        request.body(Full::from("body")).unwrap()
    };
    let layer = world.layer();
    let served = Served::counting(&layer);
    served.send(bare()).await.assert_problem(400, "KeyMissing");
    assert_eq!((served.runs(), layer.stats().refused), (0, 1));

    let layer = world.builder().key(KeyRule::Optional).build().unwrap();
    let served = Served::counting(&layer);
    for run in 1..=2 {
        served.send(bare()).await.assert_ran(run);
    }
    // Empty is not missing.
    served
        .send(post(""))
        .await
        .assert_problem(400, "KeyInvalid");
    assert_eq!(layer.stats().passed, 2);
    assert_eq!(world.store.stats().claims_started, 0);
}

#[tokio::test]
async fn a_bad_key_is_refused_and_not_repeated() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    let long = "k".repeat(256);
    for key in [
        "",
        "  ",
        "\"\"",
        "\"open",
        "SECRET,SECRET",
        "SECRET\tx",
        &long,
    ] {
        let answer = served.send(post(key)).await;
        answer.assert_problem(400, "KeyInvalid");
        assert!(!answer.text().contains("SECRET"));
    }
    let mut twice = post("same");
    twice
        .headers_mut()
        .append("idempotency-key", HeaderValue::from_static("same"));
    served.send(twice).await.assert_problem(400, "KeyInvalid");
    assert_eq!(served.runs(), 0);
    assert_eq!(world.store.stats().claims_started, 0);

    let strict = world.builder().syntax(KeySyntax::Strict).build().unwrap();
    let served = Served::counting(&strict);
    served
        .send(post("bare"))
        .await
        .assert_problem(400, "KeyInvalid");
    served.send(post("\"quoted\"")).await.assert_ran(1);
}

#[tokio::test]
async fn both_forms_and_all_names_are_one_key() {
    let world = World::new();
    let alias = HeaderName::from_static("paypal-request-id");
    let layer = world.builder().alias(alias.clone()).build().unwrap();
    let served = Served::counting(&layer);
    served.send(post("abc")).await.assert_ran(1);
    served.send(post("\"abc\";v=1")).await.assert_replayed(1);
    let mut aliased = post("abc");
    let value = aliased.headers_mut().remove("idempotency-key").unwrap();
    aliased.headers_mut().insert(&alias, value.clone());
    served.send(aliased.clone()).await.assert_replayed(1);
    aliased.headers_mut().insert("idempotency-key", value);
    served.send(aliased).await.assert_problem(400, "KeyInvalid");
}

#[tokio::test]
async fn the_key_belongs_to_one_method_and_path() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    served
        .send(request("POST", "/tickets/1", "k", "x"))
        .await
        .assert_ran(1);
    served
        .send(request("POST", "/tickets/2", "k", "x"))
        .await
        .assert_ran(2);
    served
        .send(request("PATCH", "/tickets/1", "k", "x"))
        .await
        .assert_ran(3);
    served
        .send(request("POST", "/tickets/1", "k", "x"))
        .await
        .assert_replayed(1);
    // The query is compared, and no part of the key.
    let answer = served
        .send(request("POST", "/tickets/1?a=1", "k", "x"))
        .await;
    answer.assert_problem(422, "KeyReused");
}

#[tokio::test]
async fn a_path_of_any_length_is_told_apart() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    let path = |end| format!("/{}{end}", "x".repeat(5_000));
    served
        .send(request("POST", &path('a'), "k", "x"))
        .await
        .assert_ran(1);
    served
        .send(request("POST", &path('b'), "k", "x"))
        .await
        .assert_ran(2);
    served
        .send(request("POST", &path('a'), "k", "x"))
        .await
        .assert_replayed(1);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused_in_every_state() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::new(&layer, async |run, call| {
        if call.uri().path() == "/fails" {
            return crate::world::text(500, "");
        }
        crate::world::text(200, format!("run {run}"))
    });
    for path in ["/works", "/fails"] {
        served.send(request("POST", path, "k", "one")).await;
        let other = served.send(request("POST", path, "k", "two")).await;
        other.assert_problem(422, "KeyReused");
    }
    // The first is untouched.
    let first = served.send(request("POST", "/works", "k", "one")).await;
    first.assert_replayed(1);
    assert_eq!(layer.stats().mismatched, 2);
    // And so it is after the store was opened again.
    drop((served, layer));
    let world = world.restart();
    let served = Served::counting(&world.layer());
    for path in ["/works", "/fails"] {
        let other = served.send(request("POST", path, "k", "two")).await;
        other.assert_problem(422, "KeyReused");
    }
}

#[tokio::test]
async fn the_status_of_a_mismatch_is_chosen() {
    let world = World::new();
    let layer = world.builder().mismatch_status(StatusCode::CONFLICT);
    let served = Served::counting(&layer.build().unwrap());
    served.send(request("POST", "/", "k", "one")).await;
    let other = served.send(request("POST", "/", "k", "two")).await;
    other.assert_problem(409, "KeyReused");
    // Not to be repeated, unlike one in progress.
    assert_eq!(other.header("retry-after"), None);
}

#[tokio::test]
async fn what_changes_from_attempt_to_attempt_is_not_compared() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    served.send(post("k")).await.assert_ran(1);
    let mut retry = post("k");
    for name in [
        "x-request-id",
        "traceparent",
        "user-agent",
        "date",
        "forwarded",
    ] {
        let value = HeaderValue::from_static("other");
        retry.headers_mut().insert(name, value);
    }
    served.send(retry).await.assert_replayed(1);
}

#[tokio::test]
async fn options_go_by_route() {
    let world = World::new();
    let layer = world.builder().route(|request| match request.uri.path() {
        "/events" => RouteOptions::new().skip(),
        "/search" => RouteOptions::new().key(KeyRule::Optional),
        "/small" => RouteOptions::new().max_request(2),
        _ => RouteOptions::new(),
    });
    let served = Served::counting(&layer.build().unwrap());
    for _ in 0..2 {
        let answer = served.send(request("POST", "/events", "k", "x")).await;
        assert!(!answer.is_replay());
    }
    let mut bare = request("POST", "/search", "k", "x");
    bare.headers_mut().remove("idempotency-key");
    assert_eq!(served.send(bare.clone()).await.status, 200);
    *bare.uri_mut() = "/payments".parse().unwrap();
    served.send(bare).await.assert_problem(400, "KeyMissing");
    let answer = served.send(request("POST", "/small", "k", "xxx")).await;
    answer.assert_problem(413, "BodyTooLarge");
}
