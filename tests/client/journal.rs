//! What the journal holds, and what it refuses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, StatusCode};
use oncekey::client::{Journal, JournalError, Journaled, KeyFormat, SendError};
use oncekey::{Clock, ManualClock};

use crate::world::{Book, HOUR, options, ready, request};

const URL: &str = "https://api.example/v1/payments";

fn answered(status: u16, body: &'static str) -> http::Response<Bytes> {
    let answer = http::Response::builder().status(status);
    let answer = answer.header("set-cookie", "session=1").header("x-id", "7");
    answer.body(Bytes::from(body)).unwrap()
}

fn answer(status: u16, body: &'static str) -> Result<http::Response<Bytes>, std::io::Error> {
    Ok(answered(status, body))
}

#[tokio::test]
async fn a_name_has_one_key_for_one_request_and_one_answer() {
    let book = Book::new();
    let first = book.begin("order-17", request(URL, "1200")).await;
    let key = first.key().as_str().to_owned();
    assert!(!first.is_resumed());
    let sent = first.attempt().unwrap().request();
    assert_eq!(sent.headers()["idempotency-key"], format!("\"{key}\""));
    assert_eq!(
        (sent.uri(), &sent.body()[..]),
        (&URL.parse().unwrap(), &b"1200"[..])
    );

    // Somebody has it.
    let again = book.journal.begin("order-17", request(URL, "1200")).await;
    assert!(matches!(again, Ok(Journaled::InHand)));
    assert!(book.journal.unfinished().await.unwrap().is_empty());
    drop(first);

    // Nobody has it.
    let other = book.journal.begin("order-17", request(URL, "9900")).await;
    assert!(matches!(other, Err(JournalError::OtherRequest)));
    let second = book.begin("order-17", request(URL, "1200")).await;
    assert!(second.is_resumed());
    assert_eq!(second.key().as_str(), key);
    let sent = second.send(async |_| answer(201, "paid")).await.unwrap();
    assert!(!sent.headers.contains_key("set-cookie"));

    // It is done, and after a restart too.
    let book = book.restart();
    let Journaled::Done(Some(kept)) = book
        .journal
        .begin("order-17", request(URL, "1200"))
        .await
        .unwrap()
    else {
        panic!("it is done")
    };
    assert_eq!(kept, sent);
    assert_eq!(
        (kept.status, &kept.body[..]),
        (StatusCode::CREATED, &b"paid"[..])
    );
    assert_eq!(book.store.stats().completed_keys, 1, "the request is gone");
}

#[tokio::test]
async fn operations_have_keys_of_their_own() {
    let book = Book::new();
    let mut keys = Vec::new();
    for name in ["a", "b"] {
        let operation = book.begin(name, request(URL, "1200")).await;
        keys.push(operation.key().as_str().to_owned());
    }
    for _ in 0..2 {
        let unnamed = book.journal.begin_unnamed(request(URL, "1200")).await;
        keys.push(ready(unnamed.unwrap()).key().as_str().to_owned());
    }
    let scoped = book.journal.clone().scope("other");
    let scoped = scoped.begin("a", request(URL, "1200")).await;
    keys.push(ready(scoped.unwrap()).key().as_str().to_owned());
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 5);
    assert!(keys.iter().all(|key| key.len() == 36));
    assert_eq!(book.journal.unfinished().await.unwrap().len(), 4);
}

#[tokio::test]
async fn header_and_form_of_a_key_are_kept_with_the_operation() {
    let book = Book::new();
    let name = HeaderName::from_static("paypal-request-id");
    let journal = book
        .journal
        .clone()
        .header(name.clone())
        .format(KeyFormat::Raw);
    let operation = ready(journal.begin("a", request(URL, "")).await.unwrap());
    let key = operation.key().as_str().to_owned();
    drop(operation);
    let operation = ready(book.resume().await);
    assert_eq!(operation.attempt().unwrap().request().headers()[name], key);
}

#[tokio::test]
async fn what_must_not_or_cannot_be_kept_is_refused_and_leaves_nothing() {
    let book = Book::new();
    for name in ["authorization", "cookie", "proxy-authorization"] {
        let mut secret = request(URL, "");
        secret.headers_mut().insert(name, "secret".parse().unwrap());
        let error = book.journal.begin("a", secret).await.unwrap_err();
        assert!(matches!(&error, JournalError::Credentials(found) if found == name));
        assert!(!error.to_string().contains("secret"));
    }
    let in_uri = "https://shop:secret@api.example/v1/payments";
    let error = book.journal.begin("a", request(in_uri, "")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, JournalError::CredentialsInUri));
    assert!(!error.to_string().contains("secret"));
    let mut keyed = request(URL, "");
    keyed
        .headers_mut()
        .insert("idempotency-key", "k".parse().unwrap());
    let error = book.journal.begin("a", keyed).await.unwrap_err();
    assert!(matches!(error, JournalError::HasKey(_)));
    let large = request(URL, "").map(|_| Bytes::from(vec![0; 2 << 20]));
    let error = book.journal.begin("a", large).await.unwrap_err();
    assert!(matches!(error, JournalError::RequestTooLarge { .. }));
    let mut many = request(URL, "");
    for _ in 0..1_024 {
        many.headers_mut().append("x-a", "1".parse().unwrap());
    }
    let error = book.journal.begin("a", many).await.unwrap_err();
    assert!(matches!(error, JournalError::TooManyHeaders));
    let error = book.journal.begin("", request(URL, "")).await.unwrap_err();
    assert!(matches!(error, JournalError::Name(_)));
    assert!(book.journal.unfinished().await.unwrap().is_empty());
    assert_eq!(book.store.stats().pending_keys, 0);
}

/// Two who go through the list: one ends what the other is about to take up.
#[tokio::test]
async fn an_operation_that_ended_since_it_was_listed_does_not_come_back() {
    let book = Book::new();
    drop(book.begin("order-17", request(URL, "")).await);
    let listed = book.journal.unfinished().await.unwrap();
    ready(book.resume().await).discard().await.unwrap();
    let resumed = book.journal.resume(&listed[0]).await.unwrap();
    assert!(matches!(resumed, Journaled::Done(None)), "{resumed:?}");
    assert!(book.journal.unfinished().await.unwrap().is_empty());
    assert_eq!(book.store.stats().pending_keys, 0);
}

/// As the guide's own loop prints what is not ready.
#[tokio::test]
async fn what_is_shown_of_an_operation_has_neither_key_nor_request() {
    let book = Book::new();
    let operation = book.begin("order-17", request(URL, "card 4242")).await;
    let key = operation.key().as_str().to_owned();
    let attempt = format!("{:?}", operation.attempt());
    let shown = format!("{attempt} {:?}", Journaled::Ready(operation));
    assert!(!shown.contains(&key), "{shown}");
    assert!(!shown.contains("4242"), "{shown}");
}

#[tokio::test]
async fn an_answer_is_final_or_the_operation_goes_on() {
    let book = Book::new();
    for status in [307, 308, 401, 409, 429, 500, 503] {
        let operation = book.begin("a", request(URL, "")).await;
        let sent = operation.send(async |_| answer(status, "")).await;
        let Err(SendError::NotFinal { answer, .. }) = sent else {
            panic!("{status} decides nothing")
        };
        assert_eq!(answer.status.as_u16(), status);
    }
    let operation = book.begin("a", request(URL, "")).await;
    let lost = operation.send(async |_| Err::<http::Response<Bytes>, _>("reset"));
    assert!(matches!(
        lost.await,
        Err(SendError::NoAnswer {
            source: "reset",
            ..
        })
    ));
    let operation = book.begin("a", request(URL, "")).await;
    let refused = operation.send(async |_| answer(422, "no")).await.unwrap();
    assert_eq!(refused.body, "no");
    let done = book.journal.begin("a", request(URL, "")).await.unwrap();
    assert!(matches!(done, Journaled::Done(Some(kept)) if kept == refused));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_given_out_and_not_kept() {
    let book = Book::new();
    let operation = book.begin("a", request(URL, "")).await;
    let large = Bytes::from(vec![7; 2 << 20]);
    let sent =
        operation.send(async |_| Ok::<_, std::io::Error>(http::Response::new(large.clone())));
    assert_eq!(sent.await.unwrap().body, large);
    let done = book.journal.begin("a", request(URL, "")).await;
    assert!(matches!(done, Ok(Journaled::Done(None))));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_who_begin_at_once_one_has_the_operation() {
    let book = Book::new();
    let barrier = Arc::new(tokio::sync::Barrier::new(10));
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let (journal, barrier) = (book.journal.clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                journal.begin("a", request(URL, "")).await.unwrap()
            })
        })
        .collect();
    let mut begun = Vec::new();
    for task in tasks {
        begun.push(task.await.unwrap());
    }
    let is_in_hand = |begun: &&Journaled| matches!(begun, Journaled::InHand);
    assert_eq!(begun.iter().filter(is_in_hand).count(), 9);
    assert!(
        begun
            .iter()
            .any(|begun| matches!(begun, Journaled::Ready(_)))
    );
}

/// Sending can be spawned on a runtime that moves tasks.
#[tokio::test(flavor = "multi_thread")]
async fn every_future_can_move_between_threads() {
    let book = Book::new();
    let journal = book.journal.clone();
    let task = tokio::spawn(async move {
        let begun = journal.begin("a", request(URL, "")).await.unwrap();
        let sent = ready(begun).send(async |_| answer(503, "")).await;
        assert!(matches!(&sent, Err(SendError::NotFinal { .. })));
        drop(sent);
        let unfinished = journal.unfinished().await.unwrap().remove(0);
        let operation = ready(journal.resume(&unfinished).await.unwrap());
        operation.discard().await.unwrap();
        let begun = journal.begin_unnamed(request(URL, "")).await.unwrap();
        ready(begun).complete_without_answer().await.unwrap();
    });
    task.await.unwrap();
}

/// The server's retention is over: sent again, it could be carried out twice.
#[tokio::test]
async fn an_operation_that_is_too_old_is_not_sent() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let clock_of_store: Arc<dyn Clock> = clock.clone();
    let store = options()
        .clock(clock_of_store)
        .open(directory.path())
        .unwrap();
    let journal = Journal::new(store.clone(), HOUR);
    let begin = || journal.begin("a", request(URL, "1200"));
    let operation = ready(begin().await.unwrap());
    let key = operation.key().as_str().to_owned();
    clock.advance(HOUR - Duration::from_millis(1));
    assert!(operation.attempt().is_some());
    clock.advance(Duration::from_millis(1));
    assert!(operation.attempt().is_none());
    let sent = operation.send(async |_| -> Result<_, std::io::Error> { panic!("not sent") });
    assert!(matches!(sent.await, Err(SendError::TooOld(_))));

    // Neither by its name nor from the list, whatever the journal is set to since.
    assert!(matches!(begin().await.unwrap(), Journaled::TooOld(_)));
    let longer = Journal::new(store, HOUR * 9);
    let [unfinished] = &longer.unfinished().await.unwrap()[..] else {
        panic!("one is unfinished")
    };
    let Journaled::TooOld(operation) = longer.resume(unfinished).await.unwrap() else {
        panic!("it is too old")
    };
    assert_eq!(operation.key().as_str(), key);
    assert_eq!(operation.request().unwrap().body(), "1200");
    // Somebody looked: it was not carried out.
    operation.discard().await.unwrap();
    let operation = ready(begin().await.unwrap());
    assert!(!operation.is_resumed() && operation.attempt().is_some());
}
