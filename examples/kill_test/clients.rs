//! The clients: each takes the next delivery and repeats it, with the same key, to a final answer.
//!
//! 201 and 402 are final. 409, 5xx, a broken connection and a timeout mean: again. Now and then a
//! client loses patience in the middle of a request, so that answers are lost on this side too.
//! Unlike a good client these ignore `Retry-After`, since the test wants many requests in a short
//! time.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use reqwest::header::AUTHORIZATION;
use reqwest::{Client, RequestBuilder, Response};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::plan::{Operation, Plan, Random};

const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How long one client tries for a final answer.
const DELIVERY_MAX: Duration = Duration::from_secs(60);
const BACKOFF_MS_MAX: u64 = 100;

/// A final answer, as one client got it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
    pub replayed: bool,
    /// Which attempt at the payment gave it.
    pub attempt: u32,
    /// Wall clock when it was there in full, in microseconds since the Unix epoch.
    pub received_us: u64,
}

/// What the clients saw besides final answers.
#[derive(Default)]
pub struct Tally {
    pub requests: AtomicU64,
    pub conflicts: AtomicU64,
    pub unavailable: AtomicU64,
    pub connections_lost: AtomicU64,
    pub abandoned: AtomicU64,
}

pub struct Shared {
    pub plan: Plan,
    pub url: String,
    pub tally: Tally,
    next: AtomicUsize,
    finished: AtomicUsize,
    /// By operation.
    answers: Mutex<Vec<Vec<Answer>>>,
}

enum Outcome {
    Final(Answer),
    Again,
}

impl Shared {
    pub fn new(plan: Plan, url: String) -> Self {
        let answers = Mutex::new(vec![Vec::new(); plan.operations.len()]);
        Self {
            plan,
            url,
            tally: Tally::default(),
            next: 0.into(),
            finished: 0.into(),
            answers,
        }
    }

    /// Deliveries that have come to an end.
    pub fn finished(&self) -> usize {
        self.finished.load(Ordering::Relaxed)
    }

    pub fn answers(&self) -> Vec<Vec<Answer>> {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Starts `count` clients, which end when all deliveries are done. Dropping the set stops them.
pub fn start(shared: &Arc<Shared>, count: usize, random: &mut Random) -> JoinSet<io::Result<()>> {
    let mut clients = JoinSet::new();
    for _ in 0..count {
        clients.spawn(run(Arc::clone(shared), Random::new(random.next())));
    }
    clients
}

async fn run(shared: Arc<Shared>, mut random: Random) -> io::Result<()> {
    let http = http_client().map_err(io::Error::other)?;
    loop {
        let delivery = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(&index) = shared.plan.deliveries.get(delivery) else {
            return Ok(());
        };
        let operation = &shared.plan.operations[index];
        if let Some(answer) = deliver(&http, &shared, operation, &mut random).await {
            shared
                .answers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)[index]
                .push(answer);
        }
        shared.finished.fetch_add(1, Ordering::Relaxed);
    }
}

/// The final answer; `None` if there was none in all the time.
async fn deliver(
    http: &Client,
    shared: &Shared,
    operation: &Operation,
    random: &mut Random,
) -> Option<Answer> {
    let deadline = Instant::now() + DELIVERY_MAX;
    let mut backoff_ms = 5;
    while Instant::now() < deadline {
        // Both forms of the header name the same key.
        let quoted = random.one_in(2);
        let request = payment_request(http, &shared.url, operation, operation.body(), quoted);
        let impatient = random.one_in(20);
        let patience = if impatient {
            Duration::from_micros(random.below(5_000))
        } else {
            REQUEST_MAX
        };
        match send(request.timeout(patience), &shared.tally, impatient).await {
            Outcome::Final(answer) => return Some(answer),
            Outcome::Again => {
                tokio::time::sleep(Duration::from_millis(1 + random.below(backoff_ms))).await;
                backoff_ms = (backoff_ms * 2).min(BACKOFF_MS_MAX);
            }
        }
    }
    None
}

async fn send(request: RequestBuilder, tally: &Tally, impatient: bool) -> Outcome {
    tally.requests.fetch_add(1, Ordering::Relaxed);
    let result = match request.send().await {
        Ok(response) => read(response).await,
        Err(error) => Err(error),
    };
    let counter = match result {
        Ok(answer) if answer.status == 409 => &tally.conflicts,
        Ok(answer) if answer.status >= 500 => &tally.unavailable,
        // Anything else ends the delivery; the checks tell right from wrong.
        Ok(answer) => return Outcome::Final(answer),
        Err(error) if impatient && error.is_timeout() => &tally.abandoned,
        Err(_) => &tally.connections_lost,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    Outcome::Again
}

async fn read(response: Response) -> reqwest::Result<Answer> {
    let header = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let replayed = header("idempotent-replayed") == Some("true");
    let attempt = header("payment-attempt")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let status = response.status().as_u16();
    let body = response.bytes().await?;
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let received_us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
    Ok(Answer {
        status,
        body,
        replayed,
        attempt,
        received_us,
    })
}

/// Asks once more for everything, after the last restart: each key must still give its answer, a
/// payment must be readable by its account and nobody else, and a key must refuse another payment.
/// Returns what was wrong.
pub async fn audit(shared: &Shared, answers: &[Vec<Answer>]) -> reqwest::Result<Vec<String>> {
    let http = http_client()?;
    let mut wrong = Vec::new();
    for (operation, answers) in shared.plan.operations.iter().zip(answers) {
        // A key without an answer is a violation already; asking would make it one.
        let Some(known) = answers.first() else {
            continue;
        };
        let url = &shared.url;
        let again = payment_request(&http, url, operation, operation.body(), false);
        let again = read(again.send().await?).await?;
        if (again.status, &again.body, again.replayed) != (known.status, &known.body, true) {
            wrong.push(format!(
                "{operation}: another answer after the last restart: {again:?}"
            ));
        }
        let other = payment_request(&http, url, operation, operation.other_body(), false);
        let other = other.send().await?.status();
        if other != 422 {
            wrong.push(format!(
                "{operation}: another payment under its key got {other}"
            ));
        }

        let read_as = async |account: &str| {
            let url = format!("{url}/v1/payments/{}", operation.payment_id());
            read(
                http.get(url)
                    .header(AUTHORIZATION, bearer(account))
                    .send()
                    .await?,
            )
            .await
        };
        let owner = read_as(&operation.account).await?;
        let expected = if known.status == 201 { 200 } else { 404 };
        if owner.status != expected || (expected == 200 && owner.body != known.body) {
            wrong.push(format!("{operation}: cannot be read back: {owner:?}"));
        }
        let stranger = read_as("stranger").await?;
        if stranger.status != 404 {
            wrong.push(format!("{operation}: a stranger can read it: {stranger:?}"));
        }
    }
    Ok(wrong)
}

pub fn http_client() -> reqwest::Result<Client> {
    Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .timeout(REQUEST_MAX)
        // Every repetition is made, and counted, here.
        .retry(reqwest::retry::never())
        .build()
}

fn payment_request(
    http: &Client,
    url: &str,
    operation: &Operation,
    body: String,
    quoted: bool,
) -> RequestBuilder {
    let key = &operation.key;
    http.post(format!("{url}/v1/payments"))
        .header(AUTHORIZATION, bearer(&operation.account))
        .header(
            "idempotency-key",
            if quoted {
                format!("\"{key}\"")
            } else {
                key.clone()
            },
        )
        .body(body)
}

fn bearer(account: &str) -> String {
    format!("Bearer {account}")
}
