//! What a builder refuses.

use http::{Method, StatusCode};
use oncekey::http::LayerError;
use oncekey::{ClaimOptions, Durability, Lease, Options};
use std::time::Duration;

use crate::world::{World, builder};

#[test]
fn methods_that_need_no_key_are_refused() {
    let world = World::new();
    for method in [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ] {
        let layer = world.builder().methods([Method::POST, method.clone()]);
        assert_eq!(layer.build().unwrap_err(), LayerError::SafeMethod(method));
    }
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let world = World::new();
    let builder = || world.builder();
    let cases = [
        (builder().max_key(0), "max_key is 0 bytes"),
        (builder().max_key(256), "max_key is 256 bytes"),
        (
            builder().max_response((1 << 20) + 1),
            "max_response is 1048577",
        ),
        (builder().wait(Duration::from_secs(61)), "wait for 61s"),
        (builder().mismatch_status(StatusCode::OK), "choose a 4xx"),
        (
            builder().claim(ClaimOptions::new().lease(Lease::For(Duration::ZERO))),
            "the lease is zero",
        ),
    ];
    for (builder, said) in cases {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    for layer in [
        builder().max_key(1),
        builder().max_key(255),
        builder().max_response(0),
    ] {
        layer.build().unwrap();
    }
}

#[test]
fn limits_follow_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let open = |key_part| {
        let options = Options::new().durability(Durability::Buffered);
        options
            .max_key_part(key_part)
            .open(directory.path())
            .unwrap()
    };
    let store = open(1_024);
    builder(&store).max_key(1_024).build().unwrap();
    store.close().unwrap();
    let store = open(63);
    let error = builder(&store).max_key(63).build().unwrap_err();
    assert!(
        matches!(error, LayerError::OutOfRange { min: 64, .. }),
        "{error}"
    );
}

#[test]
fn what_is_shown_of_a_layer_names_its_decisions() {
    let world = World::new();
    let shown = format!("{:?} {:?}", world.builder(), world.layer());
    for part in ["Scope::from_request", "OnInterrupted::rerun", "KeyRule"] {
        let is_there = shown.contains(part) || part == "KeyRule" && shown.contains("Required");
        assert!(is_there, "{part} in {shown}");
    }
}
