//! What senders do, done to this receiver: events are delivered several times, at the same moment,
//! out of order, by somebody else, and to a receiver that is killed meanwhile.
//!
//! The receiver is a process of its own, which is killed with SIGKILL and started again on the same
//! directory. In the end its book and its store are read from outside: each event must be there
//! once, each object must have the state of its newest event, and nothing that was not signed may
//! have left a trace.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::{Client, StatusCode};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::book::Book;
use crate::host::{book_path, demonstration, store_options};
use crate::receiver::{
    GITHUB_DELIVERY, GITHUB_SIGNATURE, Kind, STRIPE_SIGNATURE, TOLERANCE, now_s,
};
use crate::signatures::{sign_github, sign_stripe};

/// How many deliveries are under way at once.
const SENDERS: usize = 12;
/// Changes that each object goes through.
const VERSIONS: usize = 5;
const STATES: [&str; VERSIONS] = ["trialing", "active", "past_due", "paused", "canceled"];
const START_MAX: Duration = Duration::from_secs(30);
/// More than any delivery needs.
const ATTEMPTS_MAX: usize = 2_000;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Of each sender.
    pub events: usize,
    pub kills: usize,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Verdict {
    seed: u64,
    events: usize,
    deliveries: usize,
    requests: usize,
    forged: usize,
    kills: usize,
    after_a_crash: u64,
    pub faults: Vec<String>,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    fn expect(&mut self, is_so: bool, fault: impl FnOnce() -> String) {
        if !is_so {
            self.faults.push(fault());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed               {}", self.seed)?;
        writeln!(f, "events             {}", self.events)?;
        writeln!(f, "deliveries         {}", self.deliveries)?;
        writeln!(f, "requests           {}", self.requests)?;
        writeln!(f, "forged, refused    {}", self.forged)?;
        writeln!(f, "kills              {}", self.kills)?;
        writeln!(
            f,
            "events taken up again after a crash {}",
            self.after_a_crash
        )?;
        for fault in &self.faults {
            writeln!(f, "FAULT: {fault}")?;
        }
        match self.faults.len() {
            0 => writeln!(f, "PASSED: every event was handled once"),
            faults => writeln!(f, "FAILED: {faults} faults"),
        }
    }
}

/// One event, as its sender delivers it.
struct Message {
    sender: &'static str,
    kind: Kind,
    id: String,
    object: String,
    version: usize,
    body: String,
}

/// Runs the plan against receivers that `start` makes: on a directory, at a port that they print.
pub async fn run(plan: Plan, start: impl Fn(&Path) -> Command) -> Result<Verdict, Box<dyn Error>> {
    let directory = TempDir::with_prefix("oncekey-webhooks-")?;
    let mut random = Random(plan.seed | 1);
    let messages: Arc<Vec<Message>> = Arc::new(messages(plan.events));
    let deliveries = shuffled(&messages, &mut random);
    let mut verdict = Verdict {
        seed: plan.seed,
        events: messages.len(),
        deliveries: deliveries.len(),
        ..Verdict::default()
    };

    let (mut receiver, url) = started(&start, directory.path()).await?;
    let (address, seen) = watch::channel(url);
    let (requests, forged) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let left = Arc::new(AtomicUsize::new(deliveries.len()));
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let mine: Vec<_> = deliveries
            .iter()
            .copied()
            .skip(sender)
            .step_by(SENDERS)
            .collect();
        let (messages, seen, left) = (Arc::clone(&messages), seen.clone(), Arc::clone(&left));
        let delivery = Delivery {
            client: client()?,
            seen,
            requests: Arc::clone(&requests),
            forged: Arc::clone(&forged),
        };
        senders.spawn(async move {
            let mut faults = Vec::new();
            for (at, index) in mine.into_iter().enumerate() {
                let message = &messages[index];
                faults.extend(delivery.until_taken(message).await.err());
                if at.is_multiple_of(4) {
                    faults.extend(delivery.forged(message, at).await.err());
                }
                left.fetch_sub(1, Ordering::Relaxed);
            }
            faults
        });
    }

    // Kills spread over the deliveries, each at a moment that nobody chose.
    let all = deliveries.len();
    for kill in 1..=plan.kills {
        let due = all - all * kill / (plan.kills + 1);
        while left.load(Ordering::Relaxed) > due {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_micros(random.below(8_000) as u64)).await;
        receiver.kill().await?;
        let url;
        (receiver, url) = started(&start, directory.path()).await?;
        address.send_replace(url);
        verdict.kills += 1;
    }
    while let Some(faults) = senders.join_next().await {
        verdict.faults.extend(faults?);
    }

    // Everything once more: all of it is known.
    let delivery = Delivery {
        client: client()?,
        seen,
        requests: Arc::clone(&requests),
        forged: Arc::clone(&forged),
    };
    for message in messages.iter() {
        let replayed = delivery.until_taken(message).await;
        verdict.expect(replayed == Ok(true), || {
            format!(
                "{} was delivered again and not replayed: {replayed:?}",
                message.id
            )
        });
    }
    receiver.kill().await?;
    verdict.requests = requests.load(Ordering::Relaxed);
    verdict.forged = forged.load(Ordering::Relaxed);
    verdict.expect(verdict.forged > 0, || {
        "nothing forged was refused".to_owned()
    });
    audit(&mut verdict, directory.path(), &messages)?;
    Ok(verdict)
}

/// Reads what the receiver has left behind.
fn audit(verdict: &mut Verdict, data: &Path, messages: &[Message]) -> Result<(), Box<dyn Error>> {
    let book = Book::open(&book_path(data))?;
    let mut lines: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for event in book.events() {
        *lines.entry((&event.sender, &event.id)).or_default() += 1;
    }
    for message in messages {
        let count = lines.remove(&(message.sender, &message.id)).unwrap_or(0);
        verdict.expect(count == 1, || {
            format!(
                "{} of {} was handled {count} times",
                message.id, message.sender
            )
        });
        if message.version + 1 == VERSIONS {
            let state = book.state(message.sender, &message.object);
            verdict.expect(state == Some(STATES[message.version]), || {
                format!(
                    "{} is {state:?} and not as its newest event says",
                    message.object
                )
            });
        }
    }
    for (sender, id) in lines.into_keys() {
        verdict
            .faults
            .push(format!("{id} of {sender} was handled and never sent"));
    }

    let store = store_options().open(data.join("store"))?;
    let stats = store.stats();
    let known = stats.completed_keys;
    verdict.expect(known == messages.len() as u64, || {
        format!("the store has {known} finished events: a forged one, or one too few")
    });
    let open = stats.pending_keys + stats.interrupted_keys;
    verdict.expect(open == 0, || format!("{open} events are unfinished"));
    for message in messages {
        let Some(attempt) = attempt_of(&store, message)? else {
            verdict
                .faults
                .push(format!("{} is not in the store", message.id));
            continue;
        };
        verdict.after_a_crash += u64::from(attempt > 1);
    }
    Ok(store.close()?)
}

/// The attempt that finished an event.
fn attempt_of(store: &oncekey::Store, message: &Message) -> Result<Option<u32>, Box<dyn Error>> {
    let scope = format!("webhook/{}", message.sender);
    let operation = format!("POST /hooks/{}", message.sender);
    let key = oncekey::Key::new(scope, operation, &message.id)?;
    Ok(match store.get(&key)? {
        oncekey::KeyState::Completed(saved) => Some(saved.attempt()),
        _ => None,
    })
}

/// Both senders use the same ids.
fn messages(events: usize) -> Vec<Message> {
    let stripe = (0..events).map(|number| {
        let (object, version) = (format!("sub_{}", number / VERSIONS), number % VERSIONS);
        let id = format!("evt_{number}");
        let body = json!({
            "id": id,
            "created": 1_700_000_000 + version,
            "type": "customer.subscription.updated",
            "data": { "object": { "id": object, "status": STATES[version] } },
        });
        Message {
            sender: "shop",
            kind: Kind::Stripe,
            id,
            object,
            version,
            body: body.to_string(),
        }
    });
    let github = (0..events).map(|number| {
        let (issue, version) = (number / VERSIONS, number % VERSIONS);
        let body = json!({
            "action": "edited",
            "issue": {
                "number": issue,
                "state": STATES[version],
                "updated_at": format!("2026-12-01T10:00:0{version}Z"),
            },
        });
        let (id, object) = (format!("evt_{number}"), format!("issue {issue}"));
        Message {
            sender: "code",
            kind: Kind::GitHub,
            id,
            object,
            version,
            body: body.to_string(),
        }
    });
    stripe.chain(github).collect()
}

/// Each event one to four times, in any order.
fn shuffled(messages: &[Message], random: &mut Random) -> Vec<usize> {
    let mut deliveries: Vec<usize> = (0..messages.len())
        .flat_map(|index| std::iter::repeat_n(index, 1 + random.below(4)))
        .collect();
    for at in (1..deliveries.len()).rev() {
        deliveries.swap(at, random.below(at + 1));
    }
    deliveries
}

struct Delivery {
    client: Client,
    seen: watch::Receiver<String>,
    requests: Arc<AtomicUsize>,
    forged: Arc<AtomicUsize>,
}

impl Delivery {
    /// Delivers until the receiver has said yes, as a sender does. Whether that was a replay.
    async fn until_taken(&self, message: &Message) -> Result<bool, String> {
        let endpoints = demonstration();
        let secrets = &endpoints[message.sender].secrets;
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let header = match message.kind {
                // Signed anew each time, with both secrets or the older one.
                Kind::Stripe if message.version.is_multiple_of(2) => {
                    sign_stripe(secrets, message.body.as_bytes(), now_s())
                }
                Kind::Stripe => sign_stripe(&secrets[1..], message.body.as_bytes(), now_s()),
                Kind::GitHub => sign_github(&secrets[0], message.body.as_bytes()),
            };
            match self.send(message, header, &message.body).await {
                Ok((status, replayed)) if status.is_success() => return Ok(replayed),
                Ok((status, _)) if status.is_client_error() && status != StatusCode::CONFLICT => {
                    return Err(format!("{} was refused with {status}", message.id));
                }
                Ok((status, _)) => last = status.to_string(),
                // The receiver was killed, or is not there yet.
                Err(error) => last = error.to_string(),
            }
            sleep(Duration::from_millis(10)).await;
        }
        Err(format!(
            "{} was never taken; the last was {last}",
            message.id
        ))
    }

    /// Delivers under a signature that must not be believed, with an id that nobody else uses.
    async fn forged(&self, message: &Message, number: usize) -> Result<(), String> {
        let endpoints = demonstration();
        let secrets = &endpoints[message.sender].secrets;
        let forged = Message {
            id: format!("forged_{number}"),
            object: message.object.clone(),
            body: message.body.replace("evt_", "forged_"),
            ..*message
        };
        let body = forged.body.as_bytes();
        let header = match (message.kind, number % 8) {
            (Kind::Stripe, 0) => sign_stripe(&["whsec_other".to_owned()], body, now_s()),
            // Recorded long ago.
            (Kind::Stripe, _) => sign_stripe(secrets, body, now_s() - TOLERANCE.as_secs() - 60),
            // Of another body.
            (Kind::GitHub, 0) => sign_github(&secrets[0], b"{}"),
            (Kind::GitHub, _) => sign_github("another secret", body),
        };
        match self.send(&forged, header, &forged.body).await {
            Ok((StatusCode::UNAUTHORIZED, _)) => {
                self.forged.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            // The receiver was killed.
            Err(_) => Ok(()),
            Ok((status, _)) => Err(format!("{} was answered {status}", forged.id)),
        }
    }

    async fn send(
        &self,
        message: &Message,
        signature: String,
        body: &str,
    ) -> reqwest::Result<(StatusCode, bool)> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}/hooks/{}", *self.seen.borrow(), message.sender);
        let request = self.client.post(url).body(body.to_owned());
        let request = match message.kind {
            Kind::Stripe => request.header(STRIPE_SIGNATURE, signature),
            Kind::GitHub => request
                .header(GITHUB_SIGNATURE, signature)
                .header(GITHUB_DELIVERY, &message.id),
        };
        let answer = request.send().await?;
        let is_replay = answer.headers().contains_key("idempotent-replayed");
        Ok((answer.status(), is_replay))
    }
}

fn client() -> reqwest::Result<Client> {
    Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(5))
        .retry(reqwest::retry::never())
        .build()
}

/// A receiver on the directory, and its URL.
async fn started(
    start: &impl Fn(&Path) -> Command,
    data: &Path,
) -> Result<(Child, String), Box<dyn Error>> {
    let mut child = start(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no standard output")?;
    let mut lines = BufReader::new(stdout).lines();
    let url = timeout(START_MAX, async {
        while let Some(line) = lines.next_line().await? {
            if let Some((_, url)) = line.split_once("listening on ") {
                return Ok(url.to_owned());
            }
        }
        Err::<_, Box<dyn Error>>("the receiver did not start".into())
    })
    .await??;
    // Read on, or it would be stopped by a full pipe.
    tokio::spawn(async move { lines.into_inner().read_to_end(&mut Vec::new()).await });
    Ok((child, url))
}

pub fn seed_from_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64)
}

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}
