//! Who gets what.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};

use crate::world::{Sent, Served, World, post};

fn of(account: &str, key: &str) -> Sent {
    let mut request = post(key);
    let account = HeaderValue::try_from(account).unwrap();
    request.headers_mut().insert("account", account);
    request
}

fn as_user(user: &str) -> Sent {
    let mut request = post("k");
    request
        .headers_mut()
        .insert("user", HeaderValue::try_from(user).unwrap());
    request
}

#[tokio::test]
async fn callers_never_see_each_others_keys() {
    let world = World::new();
    let served = Served::counting(&world.layer());
    served.send(of("alice", "k")).await.assert_ran(1);
    served.send(of("bob", "k")).await.assert_ran(2);
    served.send(of("alice", "k")).await.assert_replayed(1);
    served.send(of("bob", "k")).await.assert_replayed(2);
}

#[tokio::test]
async fn nobody_is_refused_and_shares_no_scope() {
    let world = World::new();
    let layer = world.layer();
    let served = Served::counting(&layer);
    let mut nobody = post("k");
    nobody.headers_mut().remove("account");
    for request in [nobody, of("", "k"), of(&"x".repeat(256), "k")] {
        served
            .send(request)
            .await
            .assert_problem(403, "CallerUnknown");
    }
    assert_eq!((served.runs(), layer.stats().refused), (0, 3));
    assert_eq!(world.store.stats().claims_started, 0);
}

#[tokio::test]
async fn a_global_scope_is_one_for_all() {
    let world = World::new();
    let layer = IdempotencyLayer::new(world.store.clone())
        .scope(Scope::global())
        .on_interrupted(OnInterrupted::fail());
    let served = Served::counting(&layer.build().unwrap());
    served.send(of("alice", "k")).await.assert_ran(1);
    served.send(of("bob", "k")).await.assert_replayed(1);
}

#[tokio::test]
async fn an_answer_is_for_the_principal_it_was_made_for() {
    let world = World::new();
    let layer = world.builder().principal(|request| {
        let user = request.headers.get("user")?;
        Some(user.as_bytes().to_vec())
    });
    let layer = layer.build().unwrap();
    let served = Served::counting(&layer);
    served.send(as_user("ann")).await.assert_ran(1);
    served.send(as_user("ann")).await.assert_replayed(1);
    let refused = served.send(as_user("ben")).await;
    refused.assert_problem(403, "ReplayRefused");
    served
        .send(post("k"))
        .await
        .assert_problem(403, "CallerUnknown");
    for user in ["", &"x".repeat(256)] {
        let refused = served.send(as_user(user)).await;
        refused.assert_problem(403, "CallerUnknown");
    }
    assert_eq!((served.runs(), layer.stats().replays_refused), (1, 1));
    // A layer that asks for no principal gives nothing out that was made for one.
    let served = Served::counting(&world.layer());
    served
        .send(post("k"))
        .await
        .assert_problem(403, "ReplayRefused");
}

#[tokio::test]
async fn a_principal_is_checked_before_anything_is_told_of_a_large_answer() {
    let world = World::new();
    let layer = world.builder().max_response(1).principal(|request| {
        let user = request.headers.get("user")?;
        Some(user.as_bytes().to_vec())
    });
    let served = Served::counting(&layer.build().unwrap());
    served.send(as_user("ann")).await.assert_ran(1);
    let gone = served.send(as_user("ann")).await;
    gone.assert_problem(410, "NotReplayable");
    let refused = served.send(as_user("ben")).await;
    refused.assert_problem(403, "ReplayRefused");
}

#[tokio::test]
async fn a_replay_is_refused_after_rights_were_withdrawn() {
    let world = World::new();
    let may = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&may);
    let layer = world.builder().authorize_replay(move |replaying| {
        let may = asked.load(Ordering::SeqCst);
        async move {
            assert_eq!(replaying.request.headers["account"], "alice");
            assert_eq!(replaying.attempt, 1);
            tokio::task::yield_now().await;
            may
        }
    });
    let layer = layer.build().unwrap();
    let served = Served::counting(&layer);
    served.send(post("k")).await.assert_ran(1);
    served.send(post("k")).await.assert_replayed(1);
    may.store(false, Ordering::SeqCst);
    let refused = served.send(post("k")).await;
    refused.assert_problem(403, "ReplayRefused");
    assert!(!refused.text().contains("run 1"));
    may.store(true, Ordering::SeqCst);
    served.send(post("k")).await.assert_replayed(1);
    assert_eq!((served.runs(), layer.stats().replays_refused), (1, 1));
}
