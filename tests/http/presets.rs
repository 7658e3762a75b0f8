//! The presets, side by side, and how problems are written.

use bytes::Bytes;
use http::{Response, StatusCode};
use oncekey::http::{KeyRule, ProblemFormat, ProblemKind};

use crate::world::{Builder, Served, World, post, request, text};

fn both(world: &World) -> [(Builder, bool); 2] {
    [
        (world.builder().ietf(), false),
        (world.builder().stripe(), true),
    ]
}

#[tokio::test]
async fn presets_differ_in_what_they_say_they_do() {
    let world = World::new();
    for (number, (builder, is_stripe)) in both(&world).into_iter().enumerate() {
        let served = Served::counting(&builder.build().unwrap());
        let key = format!("k{number}");

        let mut bare = post(&key);
        bare.headers_mut().remove("idempotency-key");
        let missing = served.send(bare).await;
        assert_eq!(missing.status, if is_stripe { 200 } else { 400 });

        let first = served.send(post(&key)).await;
        let replay = served.send(post(&key)).await;
        assert!(replay.is_replay());
        for answer in [&first, &replay] {
            let echoed = is_stripe.then_some(&key[..]);
            assert_eq!(answer.header("idempotency-key"), echoed);
            assert_eq!(answer.header("idempotency-expires").is_some(), !is_stripe);
        }

        let other = served
            .send(request("POST", "/payments", &key, "other"))
            .await;
        if is_stripe {
            let body: serde_json::Value = serde_json::from_slice(&other.body).unwrap();
            assert_eq!(other.status, 400);
            assert_eq!(body["error"]["type"], "idempotency_error");
            assert_eq!(body["error"]["code"], "KeyReused");
            assert!(body["error"]["message"].is_string());
        } else {
            other.assert_problem(422, "KeyReused");
        }

        let patch = || request("PATCH", "/payments", &key, "");
        served.send(patch()).await;
        assert_eq!(served.send(patch()).await.is_replay(), !is_stripe);
    }
}

#[tokio::test]
async fn a_500_is_stored_for_stripes_clients_who_are_told_not_to_retry() {
    let world = World::new();
    for (number, (builder, is_stripe)) in both(&world).into_iter().enumerate() {
        let served = Served::with_status(&builder.build().unwrap(), 500);
        let key = format!("k{number}");
        let first = served.send(post(&key)).await;
        assert_eq!(first.header("stripe-should-retry"), None);
        let second = served.send(post(&key)).await;
        assert_eq!(second.status, 500);
        assert_eq!(second.is_replay(), is_stripe);
        let hint = is_stripe.then_some("false");
        assert_eq!(second.header("stripe-should-retry"), hint);
    }
    let served = Served::with_status(&world.builder().stripe().build().unwrap(), 503);
    served.send(post("k503")).await.assert_ran(1);
    served.send(post("k503")).await.assert_ran(2);
}

#[tokio::test]
async fn problems_are_written_as_one_likes() {
    let world = World::new();
    let custom = ProblemFormat::custom(|problem| {
        assert_eq!(problem.kind(), ProblemKind::KeyMissing);
        let body = format!("{} {}", problem.status().as_u16(), problem.title());
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let bare = || {
        let mut bare = post("k");
        bare.headers_mut().remove("idempotency-key");
        bare
    };
    let layer = world.builder().problems(custom).build().unwrap();
    let answer = Served::counting(&layer).send(bare()).await;
    assert_eq!(answer.status, 418);
    assert_eq!(answer.text(), "400 The idempotency key is missing");

    let format = ProblemFormat::problem_json_at("https://api.example/problems/")
        .described_by("https://api.example/keys")
        .unwrap();
    let layer = world.builder().problems(format).build().unwrap();
    let answer = Served::counting(&layer).send(bare()).await;
    answer.assert_problem(400, "example/problems/KeyMissing");
    let link = "<https://api.example/keys>; rel=\"describedby\"";
    assert_eq!(answer.header("link"), Some(link));
    assert!(ProblemFormat::stripe().described_by("a\nb").is_err());
}

#[tokio::test]
async fn a_preset_keeps_the_decisions() {
    let world = World::new();
    let layer = world
        .builder()
        .stripe()
        .key(KeyRule::Required)
        .build()
        .unwrap();
    let served = Served::new(&layer, async |_, _| text(200, ""));
    let mut nobody = post("k");
    nobody.headers_mut().remove("account");
    assert_eq!(served.send(nobody).await.status, 403);
    let mut bare = post("k");
    bare.headers_mut().remove("idempotency-key");
    assert_eq!(served.send(bare).await.status, 400);
}
