//! Knowing a key gives no right to read another's result; and a result that was handed out stays
//! readable.

mod support;

use std::fs;

use bytes::Bytes;
use oncekey::{AccessDenied, ClaimOptions, Durability, Key, Replay, Response, Saved, Store};

use support::*;

fn stored_for(mode: Mode, store: &Store, id: &str, principal: Option<&[u8]>) -> Saved {
    let operation = started(mode.claim(store, &key(id), request()));
    let mut completion = operation.complete_with(id.to_owned());
    if let Some(principal) = principal {
        completion = completion.principal(principal);
    }
    match mode.style {
        Style::Blocking => completion.commit(),
        Style::Async => block_on(completion.commit_async()),
    }
    .expect("a completion")
}

#[test]
fn a_result_for_a_principal_is_given_to_that_principal_only() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let longest = vec![b'p'; 255];
        let principals: [&[u8]; 5] = [b"alice", b"alic", b"alicf", b"\0", &longest];
        for (number, principal) in principals.iter().enumerate() {
            stored_for(mode, &store, &number.to_string(), Some(principal));
        }
        let check = |store: &Store| {
            for (number, principal) in principals.iter().enumerate() {
                let id = number.to_string();
                let saved = completed(mode.claim(store, &key(&id), request()));
                assert_eq!(saved.by_scope(), Err(AccessDenied::PrincipalRequired));
                for other in principals.iter().chain([&&b""[..]]) {
                    match saved.for_principal(other) {
                        Ok(Replay::Response(response)) => {
                            assert_eq!((other, &response[..]), (principal, id.as_bytes()));
                        }
                        Err(AccessDenied::OtherPrincipal) => assert_ne!(other, principal),
                        other => panic!("{mode:?}: {other:?}"),
                    }
                }
            }
        };
        check(&store);
        drop(store);
        check(&mode.options().open(directory.path()).expect("reopens"));
    }
}

#[test]
fn a_result_for_no_principal_is_given_by_scope_only() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        stored_for(mode, &store, "k-1", None);
        let saved = completed(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(
            saved.for_principal(b"alice"),
            Err(AccessDenied::NoPrincipal)
        );
        assert_eq!(saved.for_principal(b""), Err(AccessDenied::NoPrincipal));
        assert_eq!(bytes(&saved), b"k-1");
    }
}

#[test]
fn a_result_for_a_principal_with_an_empty_name_is_not_open_to_everybody() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let own = stored_for(mode, &store, "k-1", Some(b""));
        let check = |saved: &Saved| {
            assert_eq!(saved.by_scope(), Err(AccessDenied::PrincipalRequired));
            assert_eq!(
                saved.for_principal(b"alice"),
                Err(AccessDenied::OtherPrincipal)
            );
            assert!(saved.for_principal(b"").is_ok());
        };
        check(&own);
        check(&completed(mode.claim(&store, &key("k-1"), request())));
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        check(&completed(mode.claim(&store, &key("k-1"), request())));
    }
}

#[test]
fn without_a_response_too_the_principal_is_checked() {
    let (_directory, store) = buffered();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let empty: &[u8] = b"";
    let saved = operation.complete_with(empty).principal("alice").commit();
    let saved = saved.expect("a completion");
    assert!(saved.by_scope().is_err());
    let replay = saved.for_principal("alice").expect("hers");
    assert_eq!(replay.response().map(|response| response.len()), Some(0));
}

#[test]
fn another_scope_with_the_same_key_sees_nothing() {
    let (_directory, store) = buffered();
    let of = |scope: &str| Key::new(scope, "POST /v1/payments", "k-1").expect("a key");
    finish(&store, &of("acct_1"), b"of the first");
    let operation = started(store.claim(&of("acct_2"), request()).expect("a claim"));
    operation.complete(b"of the second").expect("a completion");
    for (scope, expected) in [
        ("acct_1", &b"of the first"[..]),
        ("acct_2", b"of the second"),
    ] {
        let saved = completed(store.claim(&of(scope), request()).expect("a claim"));
        assert_eq!(bytes(&saved), expected);
    }
}

fn response(saved: &Saved) -> Response {
    match saved.by_scope().expect("stored for no principal") {
        Replay::Response(response) => response,
        Replay::NotStored => panic!("it was stored"),
    }
}

#[test]
fn a_response_stays_readable_when_the_store_is_closed_dropped_and_deleted() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let text = vec![b'x'; 10_000];
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        let own = mode.complete(operation, &text).expect("a completion");
        let replayed = completed(mode.claim(&store, &key("k-1"), request()));
        let (one, two) = (response(&own), response(&replayed));
        let shared = Bytes::from(two.clone());
        let part = shared.slice(100..200);
        store.close().expect("closes");
        assert_eq!(one[..], text[..]);
        drop((store, own, replayed));
        fs::remove_dir_all(directory.path()).expect("removed");
        assert_eq!(one[..], text[..]);
        assert_eq!(two, one);
        drop((one, two));
        assert_eq!(shared[..], text[..]);
        let elsewhere = std::thread::spawn(move || part.to_vec()).join();
        assert_eq!(elsewhere.expect("no panic"), text[100..200]);
    }
}

#[test]
fn a_response_stays_readable_while_the_log_goes_on_and_on() {
    let (_directory, store) = buffered();
    let operation = started(store.claim(&key("k-1"), request()).expect("a claim"));
    let saved = operation.complete(b"the first").expect("a completion");
    let response = response(&saved);
    // Some fifty segments.
    for number in 0..500 {
        finish(&store, &key(&format!("n-{number}")), vec![7; 4_000]);
    }
    assert!(store.stats().segments > 20);
    assert_eq!(&response[..], b"the first");
    drop(store);
    assert_eq!(&response[..], b"the first");
}

#[test]
fn a_response_is_handed_out_without_a_copy() {
    let (_directory, store) = buffered();
    finish(&store, &key("k-1"), vec![7; 10_000]);
    let at = |replayed: &Response| replayed.as_ptr();
    let one = response(&completed(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
    let two = response(&completed(
        store.claim(&key("k-1"), request()).expect("a claim"),
    ));
    assert_eq!(at(&one), at(&two));
    assert_eq!(at(&one.clone()), at(&one));
    let first = at(&one);
    assert_eq!(Bytes::from(one).as_ptr(), first);
}

#[test]
fn nothing_shows_a_stored_result_or_a_raw_id_by_accident() {
    let (_directory, store) = buffered();
    let key = Key::new("acct_1", "charge", "very-secret-id").expect("a key");
    let options = ClaimOptions::new().durability(Durability::Buffered);
    let claim = store.claim_with(&key, request(), options).expect("a claim");
    let mut shown = format!("{claim:?}");
    let operation = started(claim);
    shown += &format!("{operation:?}");
    let saved = operation.complete("very-secret-response");
    shown += &format!("{saved:?}");
    shown += &format!("{:?}", store.claim(&key, request()));
    shown += &format!("{:?} {store:?}", store.get(&key));
    assert!(!shown.contains("very-secret"), "{shown}");
}
