//! reqwest through a network that breaks: each key is charged once, and all its answers are one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oncekey::http::HttpStats;
use reqwest::{Client, StatusCode};

use crate::payments::{Payments, Setup};
use crate::proxy::{FATES, Fate, Proxy};

const KEYS: usize = 120;
/// Clients that send one key at the same time, as two tabs or two workers do.
const CLIENTS_OF_A_KEY: usize = 2;
/// More than any request needs.
const ATTEMPTS_MAX: usize = 400;

/// What a client was told in the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    status: u16,
    location: Option<String>,
    attempt: Option<String>,
    body: String,
}

fn client() -> Client {
    Client::builder()
        .no_proxy()
        .retry(reqwest::retry::never())
        .timeout(Duration::from_secs(5))
        .build()
        .unwrap()
}

/// Repeats until there is an answer, as a client has to. The answer, and how often it asked.
async fn pay(client: &Client, url: &str, key: &str, amount: usize) -> (Told, usize) {
    let card = if amount.is_multiple_of(7) {
        "tok_refused"
    } else {
        "tok_visa"
    };
    let body = format!(r#"{{"amount":{amount},"currency":"eur","card":"{card}"}}"#);
    for attempt in 1..=ATTEMPTS_MAX {
        let request = client
            .post(format!("{url}/v1/payments"))
            .bearer_auth("acct_1")
            .header("idempotency-key", key)
            .body(body.clone());
        let Ok(answer) = request.send().await else {
            continue;
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let Ok(body) = answer.text().await else {
            continue;
        };
        if status == StatusCode::CONFLICT || status == StatusCode::SERVICE_UNAVAILABLE {
            assert!(headers.contains_key("retry-after"), "{body}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let header = |name: &str| Some(headers.get(name)?.to_str().unwrap().to_owned());
        let told = Told {
            status: status.as_u16(),
            location: header("location"),
            attempt: header("payment-attempt"),
            body,
        };
        return (told, attempt);
    }
    panic!("no answer to {key} after {ATTEMPTS_MAX} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_charged_once_and_has_one_answer() {
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    let seed = std::env::var("ONCEKEY_NETWORK_SEED").map_or(seed, |seed| seed.parse().unwrap());
    println!("ONCEKEY_NETWORK_SEED={seed}");
    let payments = Payments::start(Setup {
        charge: Duration::from_millis(2),
        ..Setup::default()
    })
    .await;
    let proxy = Proxy::start(payments.address, seed).await;
    let url = Arc::new(format!("http://{}", proxy.address));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..KEYS * CLIENTS_OF_A_KEY {
        let url = Arc::clone(&url);
        let key = number % KEYS;
        clients.spawn(async move {
            let (told, asked) = pay(&client(), &url, &format!("order-{key}"), key + 1).await;
            (key, told, asked)
        });
    }
    let mut answers: BTreeMap<usize, BTreeSet<Told>> = BTreeMap::new();
    let mut asked_in_all = 0;
    while let Some(done) = clients.join_next().await {
        let (key, told, asked) = done.unwrap();
        asked_in_all += asked;
        answers.entry(key).or_default().insert(told);
    }

    // Long after: whoever asks directly, and asks again, is told the same.
    payments.layer.idle().await;
    let direct = format!("http://{}", payments.address);
    let client = client();
    for key in 0..KEYS {
        let (told, _) = pay(&client, &direct, &format!("order-{key}"), key + 1).await;
        answers.entry(key).or_default().insert(told);
    }
    for (key, told) in &answers {
        assert_eq!(told.len(), 1, "seed {seed}, order-{key}: {told:#?}");
        let told = told.first().unwrap();
        let is_refused = (key + 1).is_multiple_of(7);
        assert_eq!(told.status, if is_refused { 402 } else { 201 });
        assert_eq!(
            told.attempt.as_deref(),
            Some("1"),
            "seed {seed}, order-{key}"
        );
        let charged = payments.books.charged(&format!("order-{key}"));
        assert_eq!(
            charged,
            usize::from(!is_refused),
            "seed {seed}, order-{key}"
        );
    }
    let met: Vec<_> = FATES.iter().map(|&fate| (fate, proxy.met(fate))).collect();
    println!(
        "{asked_in_all} requests of {} clients: {met:?}",
        KEYS * CLIENTS_OF_A_KEY
    );
    for (fate, count) in met {
        assert!(count > 0, "seed {seed}: {fate:?} never happened");
    }
    let stats = payments.layer.stats();
    println!("{stats:?}");
    assert_eq!((stats.started, stats.stored), (KEYS as u64, KEYS as u64));
    let HttpStats {
        interrupted,
        mismatched,
        store_failures,
        running,
        ..
    } = stats;
    assert_eq!([interrupted, mismatched, store_failures, running], [0; 4]);
}

/// The proxy is not kinder than it says.
#[tokio::test]
async fn without_retries_and_a_key_the_network_does_harm() {
    let payments = Payments::start(Setup::default()).await;
    let mut lost_or_doubled = 0;
    let mut seed = 0;
    while lost_or_doubled < 3 {
        seed += 1;
        assert!(seed < 1_000, "the proxy never does harm");
        let proxy = Proxy::start(payments.address, seed).await;
        let sent = client()
            .post(format!("http://{}/v1/payments", proxy.address))
            .bearer_auth("acct_1")
            .header("idempotency-key", format!("once-{seed}"))
            .body(r#"{"amount":1,"currency":"eur","card":"tok_visa"}"#)
            .send()
            .await;
        let is_cut = [Fate::CutBefore, Fate::CutAfter, Fate::HangsUp]
            .into_iter()
            .any(|fate| proxy.met(fate) > 0);
        assert_eq!(sent.is_err(), is_cut, "seed {seed}");
        lost_or_doubled += usize::from(is_cut);
    }
}
