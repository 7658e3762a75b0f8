//! A client that dies: before it sent, before it got the answer, before it marked it.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use oncekey::client::{Journal, Journaled};
use oncekey::testing::SimulatedDisk;
use oncekey::{Durability, Options};

use crate::world::{Book, HOUR, Server, client, execute, options, plain, policy, ready, request};

const DIRECTORY: &str = "ONCEKEY_CLIENT_DIRECTORY";
const URL: &str = "ONCEKEY_CLIENT_URL";
const STEP: &str = "ONCEKEY_CLIENT_STEP";

/// Runs `dies` in a child, up to a step, and kills it there.
fn kill_at(step: &str, book: &Book, url: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashes::a_child_that_is_killed", "--nocapture"])
        .env(DIRECTORY, book.directory.path())
        .env(URL, url)
        .env(STEP, step)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says that it is there, and waits.
    let mut said = [0; 2];
    child.stderr.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ok");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Says that it came to `step`, if it is the one to die at.
fn reached(step: &str) {
    if std::env::var(STEP).unwrap() == step {
        std::io::stderr().write_all(b"ok").unwrap();
        loop {
            std::thread::park();
        }
    }
}

/// Only in a child.
#[tokio::test]
async fn a_child_that_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let url = std::env::var(URL).unwrap();
    let store = options().open(directory).unwrap();
    let journal = Journal::new(store, HOUR);
    let operation = ready(
        journal
            .begin("order-17", request(&url, "paid"))
            .await
            .unwrap(),
    );
    reached("journaled");
    let client = client(policy());
    let answer = execute(&client, operation.attempt().unwrap()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.body(), "paid 1");
    reached("answered");
    unreachable!("it is killed")
}

/// The journal of a process that was killed is the next one's.
async fn next_process(step: &str, server: &Server) -> Book {
    let book = Book::new();
    book.store.close().unwrap();
    kill_at(step, &book, &server.url());
    book.restart()
}

/// Resumes and sends it, to the one answer.
async fn resume(book: &Book, server: &Server) {
    let operation = ready(book.resume().await);
    assert!(operation.is_resumed());
    assert_eq!(operation.name(), b"order-17");
    let client = client(policy());
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    assert_eq!(sent.await.unwrap().body, "paid 1");
    assert_eq!(server.runs(), 1);
    assert!(book.journal.unfinished().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_journal_and_send_it_is_sent_by_the_next() {
    let server = Server::start(Vec::new()).await;
    let book = next_process("journaled", &server).await;
    assert_eq!(server.runs(), 0);
    resume(&book, &server).await;
    assert_eq!(server.requests_with_one_key(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_answer_and_mark_it_gets_the_same_answer() {
    let server = Server::start(Vec::new()).await;
    let book = next_process("answered", &server).await;
    assert_eq!(server.runs(), 1);
    resume(&book, &server).await;
    assert_eq!(server.requests_with_one_key(), 2);
}

/// The request arrives, and nobody is there for the answer.
#[tokio::test(flavor = "multi_thread")]
async fn dead_between_send_and_answer_it_gets_what_was_carried_out() {
    let server = Server::start(Vec::new()).await;
    let book = Book::new();
    let operation = book.begin("order-17", server.request("slow")).await;
    let sent = tokio::spawn({
        let request = operation.attempt().unwrap().request();
        async move { plain().execute(request.try_into().unwrap()).await }
    });
    while server.runs() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    sent.abort();
    drop(operation);
    let book = book.restart();
    server.app.gate.add_permits(1);
    let operation = ready(book.resume().await);
    let client = client(policy());
    let sent = operation.send(async |attempt| execute(&client, attempt).await);
    assert_eq!(sent.await.unwrap().body, "slow 1");
    assert_eq!(server.runs(), 1);
    assert!(server.requests_with_one_key() >= 2);
}

/// Dead before the journal returned: nothing was sent, and the name is as good as new.
#[tokio::test]
async fn an_operation_without_its_request_was_never_sent() {
    use oncekey::{Claim, Fingerprint, Key};

    let book = Book::new();
    let first = book.begin("order-17", request("http://a/", "paid")).await;
    let key = first.key().as_str().to_owned();
    drop(first);
    // As if the second record had not been written.
    let stored = Key::new("client-journal", "request", "order-17").unwrap();
    book.store
        .forget(&stored, oncekey::Forget::IfCompleted)
        .unwrap();
    let Journaled::NeverSent(operation) = book.resume().await else {
        panic!("it has no request")
    };
    assert!(operation.request().is_none());
    drop(operation);
    let again = book.begin("order-17", request("http://a/", "paid")).await;
    assert_eq!(again.key().as_str(), key);
    drop(again);
    assert_eq!(ready(book.resume().await).key().as_str(), key);

    // A request that an earlier operation left behind, or half-written, is not this one's.
    for is_whole in [true, false] {
        let book = Book::new();
        let Claim::Started(left) = book.store.claim(&stored, Fingerprint::none()).unwrap() else {
            panic!("it is free")
        };
        match is_whole {
            true => drop(left.complete(b"old").unwrap()),
            false => drop(left),
        }
        let operation = book.begin("order-17", request("http://a/", "new")).await;
        assert_eq!(operation.attempt().unwrap().request().body(), "new");
        drop(operation);
        drop(ready(book.resume().await));
    }
}

/// Two crashes: one between the end of an operation and the removal of its request, one between the
/// next operation of that name and its own request.
#[tokio::test]
async fn a_request_that_was_left_behind_is_not_sent_for_another_operation() {
    use oncekey::{Claim, Fingerprint, Forget, Key};

    let url = "http://a/";
    let name = Key::new("client-journal", "operation", "order-17").unwrap();
    for (next, is_same) in [("new", false), ("old", true)] {
        let book = Book::new();
        let old = book.begin("order-17", request(url, "old")).await;
        let until = old.send_until();
        drop(old);
        book.store.forget(&name, Forget::Force).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        // As far as `begin` came.
        let parts = ["POST", url, "text/plain", next];
        let fingerprint = parts
            .iter()
            .fold(Fingerprint::builder(), |all, part| all.part(part));
        let Claim::Started(died) = book.store.claim(&name, fingerprint.finish()).unwrap() else {
            panic!("the name is new")
        };
        drop(died);
        let Journaled::NeverSent(operation) = book.resume().await else {
            panic!("its request was not written")
        };
        drop(operation);
        let operation = book.begin("order-17", request(url, next)).await;
        assert_eq!(operation.attempt().unwrap().request().body(), next);
        assert!(
            operation.send_until() > until,
            "the same request: {is_same}"
        );
        drop(operation);
        assert_eq!(
            ready(book.resume().await)
                .attempt()
                .unwrap()
                .request()
                .body(),
            next
        );
    }
}

/// Whatever a loss of power takes, it takes nothing of an operation that was begun.
#[tokio::test]
async fn an_operation_survives_a_loss_of_power() {
    let options = Options::new()
        .durability(Durability::Sync)
        .segment_size(256 << 10);
    for seed in 0..20 {
        let disk = SimulatedDisk::new();
        let store = options.open_simulated(&disk).unwrap();
        let journal = Journal::new(store, HOUR);
        let operation = journal
            .begin("order-17", request("http://a/", "paid"))
            .await;
        let key = ready(operation.unwrap()).key().as_str().to_owned();
        let image = match seed {
            0 => disk.crash_all_lost(),
            _ => disk.crash_random(seed),
        };
        let store = options.open_simulated(&image).unwrap();
        let journal = Journal::new(store, HOUR);
        let [unfinished] = &journal.unfinished().await.unwrap()[..] else {
            panic!("it was begun")
        };
        let operation = ready(journal.resume(unfinished).await.unwrap());
        assert_eq!(operation.key().as_str(), key);
        assert_eq!(operation.attempt().unwrap().request().body(), "paid");
    }
}

/// Somebody has decided that it is not sent: it does not come back.
#[tokio::test]
async fn an_operation_that_was_discarded_stays_out_of_the_journal_after_a_loss_of_power() {
    let options = Options::new()
        .durability(Durability::Sync)
        .segment_size(64 << 10);
    let disk = SimulatedDisk::new();
    let journal = Journal::new(options.open_simulated(&disk).unwrap(), HOUR);
    let begun = journal.begin("order-17", request("http://a/", "paid"));
    ready(begun.await.unwrap()).discard().await.unwrap();
    let store = options.open_simulated(&disk.crash_all_lost()).unwrap();
    let journal = Journal::new(store, HOUR);
    assert!(journal.unfinished().await.unwrap().is_empty());
}

/// Power is lost at every step of the disk, from the first claim to the removal of the request.
#[tokio::test]
async fn whatever_step_power_is_lost_at_an_operation_is_never_taken_for_one_that_was_not_sent() {
    let options = Options::new()
        .durability(Durability::Sync)
        .segment_size(64 << 10);
    let begin = async |journal: &Journal| {
        let begun = journal.begin("order-17", request("http://a/", "paid"));
        begun.await
    };
    let (mut resumed, mut done) = (0, 0);
    let mut first = 1;
    for pass in 1.. {
        assert!(pass < 1_000, "the disk has an end");
        let number = pass - first + 1;
        let disk = SimulatedDisk::new();
        disk.crash_at(number);
        let mut key = None;
        let mut is_marked = false;
        if let Ok(store) = options.open_simulated(&disk) {
            let journal = Journal::new(store, HOUR);
            if let Ok(begun) = begin(&journal).await {
                let operation = ready(begun);
                key = Some(operation.key().as_str().to_owned());
                let sent = operation.send(async |_| {
                    let answer = http::Response::new(bytes::Bytes::from("paid"));
                    Ok::<_, std::io::Error>(answer)
                });
                is_marked = sent.await.is_ok();
            }
        }
        let has_ended = !disk.has_lost_power();
        let images = [
            disk.crash_all_lost(),
            disk.crash_random(number),
            disk.crash_random(number + 1_000),
        ];
        for image in images {
            let store = options.open_simulated(&image).unwrap();
            let journal = Journal::new(store, HOUR);
            match begin(&journal).await.unwrap() {
                Journaled::Ready(operation) => {
                    assert!(!is_marked, "step {number}");
                    if let Some(key) = &key {
                        assert!(operation.is_resumed(), "step {number}");
                        assert_eq!(operation.key().as_str(), key);
                        resumed += 1;
                    }
                    assert_eq!(operation.attempt().unwrap().request().body(), "paid");
                }
                Journaled::Done(Some(answer)) => {
                    assert!(key.is_some() && answer.body == "paid");
                    done += 1;
                }
                other => panic!("step {number}: {other:?}"),
            }
        }
        if has_ended {
            // Steps of the background fall in between as they like: once more where none was met that
            // leaves the operation open.
            if resumed > 0 && done > 0 {
                return;
            }
            first = pass + 1;
        }
    }
}
