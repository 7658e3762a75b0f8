//! The operation as an argument of axum's handlers.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response};
use http_body_util::BodyExt;
use oncekey::http::{IdempotencyLayer, IdempotentOperation, KeyRule};
use tower::ServiceExt;

use crate::world::World;

fn routes(layer: IdempotencyLayer) -> Router {
    let attempt = async |operation: IdempotentOperation| operation.attempt().to_string();
    Router::new()
        .route("/must", post(attempt))
        .route(
            "/may",
            post(async |operation: Option<IdempotentOperation>| operation.is_some().to_string()),
        )
        .layer(layer)
        .route("/outside", post(attempt))
}

async fn send(routes: &Router, path: &str, key: Option<&str>) -> (u16, String) {
    let mut request = Request::post(path).header("account", "alice");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Body::from("x")).unwrap();
    let answer: Response<Body> = routes.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn handlers_take_their_operation() {
    let world = World::new();
    let layer = world.builder().key(KeyRule::Optional).build().unwrap();
    let routes = routes(layer);
    let some = |status, text: &str| (status, text.to_owned());
    assert_eq!(send(&routes, "/must", Some("k")).await, some(200, "1"));
    assert_eq!(send(&routes, "/may", Some("k")).await, some(200, "true"));
    assert_eq!(send(&routes, "/may", None).await, some(200, "false"));
    // A route that wants an operation and has none says so at once, instead of running unprotected.
    assert_eq!(send(&routes, "/must", None).await, some(500, ""));
    assert_eq!(send(&routes, "/outside", Some("k")).await, some(500, ""));
}

#[tokio::test]
async fn a_router_that_cuts_the_path_needs_a_name_for_the_operation() {
    use axum::extract::OriginalUri;
    let world = World::new();
    let builder = world.builder().operation(|request| {
        let uri = request.extensions.get::<OriginalUri>();
        let path = uri.map_or(request.uri.path(), |uri| uri.path());
        format!("{} {path}", request.method)
    });
    let inner = |name: &'static str| {
        let layer = builder.clone().build().unwrap();
        Router::new()
            .route("/items", post(async move || name))
            .layer(layer)
    };
    let routes = Router::new().nest("/a", inner("a")).nest("/b", inner("b"));
    for name in ["a", "b", "a", "b"] {
        let answer = send(&routes, &format!("/{name}/items"), Some("k")).await;
        assert_eq!(answer, (200, name.to_owned()));
    }
}
