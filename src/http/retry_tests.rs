//! The three classic tests of an idempotent service, for users to run against their own.
//!
//! They know nothing of the layer: a service is asked as its clients ask it, through tower or over a
//! socket, and judged by its answers and, where somebody counts them, by its effects. So they hold
//! for a service whose keys are handled anywhere in front of it, and they fail for one that only
//! seems to handle them.

mod failure;
mod target;
mod wire;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::headers;

pub use self::failure::{RetryFailure, RetryFault, RetryTest};
use self::target::{Answer, Loss, Routes, Target};
use self::wire::Site;

/// How many requests are sent at once.
const AT_ONCE: usize = 10;
/// Between two requests for an answer that is not there yet.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);

type Count = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Three tests that every service with idempotency keys has to pass: the **same key twice**, **ten
/// at once**, and an **answer lost** after the work was done.
///
/// | test | what is sent | what must hold |
/// |---|---|---|
/// | same key twice | one request twice, then one with another key | one effect and one answer, the second marked as a replay; the other key is another operation |
/// | ten at once | ten equal requests together, those told to wait again until they have an answer | one effect, ten equal answers, one of them not a replay |
/// | answer lost | a request whose answer nobody reads, and one whose client hangs up while it is worked on; then both again | one effect each, and an answer that stays |
///
/// Answers are equal if status, body and headers are, but for those that belong to one message (as
/// in the [guide](crate::documentation::http)) and the replay marker. 409, 425, 429 and 503 mean
/// "ask again" where a request may still be at work.
///
/// They run against a tower service ([`run`](Self::run): an axum `Router`, or what stands in your
/// tests) or against an address ([`run_at`](Self::run_at)). Each run takes new keys, so a service
/// can be tested again and again. Without [`count_effects`](Self::count_effects) work that is done
/// twice is only noticed where the answers show it.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use axum::{Router, routing::post};
/// use bytes::Bytes;
/// use http::Request;
/// use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
/// use oncekey::testing::RetryTests;
///
/// # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let store = oncekey::Options::new().segment_size(1 << 20).open(directory.path())?;
/// let charges = Arc::new(AtomicU64::new(0));
/// let charge = Arc::clone(&charges);
/// let layer = IdempotencyLayer::new(store)
///     .scope(Scope::global())
///     .on_interrupted(OnInterrupted::rerun())
///     .build()?;
/// let routes = Router::new()
///     .route("/payments", post(move || async move {
///         format!("charge {}", charge.fetch_add(1, Ordering::SeqCst))
///     }))
///     .layer(layer);
///
/// RetryTests::new(|| {
///     let request = Request::post("/payments").header("content-type", "application/json");
///     request.body(Bytes::from_static(br#"{"amount":12}"#)).expect("a request")
/// })
/// .count_effects(move || charges.load(Ordering::SeqCst))
/// .run(routes)
/// .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is tested until it is run"]
pub struct RetryTests {
    request: Box<dyn Fn() -> Request<Bytes> + Send + Sync>,
    header: HeaderName,
    effects: Option<Count>,
    marker: Option<HeaderName>,
    ignored: Vec<HeaderName>,
    patience: Duration,
    only: Option<RetryTest>,
}

impl RetryTests {
    /// Tests with the request that `request` makes: one that succeeds (2xx or 3xx) and has an effect
    /// each time it has a new key. The key's header is added to it. It has all others that your
    /// service needs, such as `Authorization`.
    pub fn new(request: impl Fn() -> Request<Bytes> + Send + Sync + 'static) -> Self {
        Self {
            request: Box::new(request),
            header: HeaderName::from_static("idempotency-key"),
            effects: None,
            marker: Some(HeaderName::from_static("idempotent-replayed")),
            ignored: [
                HeaderName::from_static("idempotency-expires"),
                super::problem::STRIPE_SHOULD_RETRY,
            ]
            .into(),
            patience: PATIENCE,
            only: None,
        }
    }

    /// Another header than `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// How often the effect has happened so far, in all: charges at the provider, rows in a table.
    /// It is called often and must not block; nothing else may cause effects meanwhile.
    pub fn count_effects(mut self, effects: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.effects = Some(Arc::new(effects));
        self
    }

    /// Another header than `Idempotent-Replayed: true` marks a replay, or, with `None`, none does.
    pub fn replay_marker(mut self, name: Option<HeaderName>) -> Self {
        self.marker = name;
        self
    }

    /// A header that may differ from answer to answer.
    pub fn ignore_header(mut self, name: HeaderName) -> Self {
        self.ignored.push(name);
        self
    }

    /// How long one answer is waited for, asking again included. 10 seconds unless set.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs one of the three.
    pub fn only(mut self, test: RetryTest) -> Self {
        self.only = Some(test);
        self
    }

    /// Runs them against a tower service, such as an axum `Router`. A service with another request
    /// body is adapted with tower's `ServiceExt::map_request`.
    ///
    /// Call it in a tokio runtime with timers; one of several threads finds more.
    ///
    /// # Errors
    ///
    /// [`RetryFailure`]: which test failed first, and why, in plain words.
    pub async fn run<S, B>(&self, service: S) -> Result<(), RetryFailure>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.run_on(Arc::new(Routes(service))).await
    }

    /// Runs them against the server at `url`, `http://127.0.0.1:3000`: its path goes before that of
    /// the request. One connection a request, HTTP/1.1, without TLS.
    ///
    /// Call it in a tokio runtime with timers.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub async fn run_at(&self, url: &str) -> Result<(), RetryFailure> {
        let site = Site::parse(url, self.patience).map_err(|why| RetryFailure {
            test: self.only.unwrap_or(RetryTest::SameKeyTwice),
            fault: RetryFault::BadUrl(why),
        })?;
        self.run_on(Arc::new(site)).await
    }

    async fn run_on(&self, target: Arc<dyn Target>) -> Result<(), RetryFailure> {
        for test in [
            RetryTest::SameKeyTwice,
            RetryTest::TenAtOnce,
            RetryTest::AnswerLost,
        ] {
            if self.only.is_some_and(|only| only != test) {
                continue;
            }
            let result = match test {
                RetryTest::SameKeyTwice => self.same_key_twice(&*target).await,
                RetryTest::TenAtOnce => self.ten_at_once(&target).await,
                RetryTest::AnswerLost => self.answer_lost(&*target).await,
            };
            result.map_err(|fault| RetryFailure { test, fault })?;
        }
        Ok(())
    }

    async fn same_key_twice(&self, target: &dyn Target) -> Result<(), RetryFault> {
        let key = new_key()?;
        let before = self.count();
        let first = succeeded(self.ask(target, &key).await?)?;
        self.expect_one_effect(before)?;
        let second = self.ask(target, &key).await?;
        self.expect_one_effect(before)?;
        self.expect_equal(&first, &second)?;
        if self.is_replay(&first) {
            return Err(RetryFault::FirstIsMarked);
        }
        if !self.is_replay(&second) && self.marker.is_some() {
            return Err(RetryFault::NotMarked);
        }
        // Whoever takes every request for a repetition passes all but this.
        let before = self.count();
        let other = succeeded(self.ask(target, &new_key()?).await?)?;
        match before.zip(self.count()) {
            Some((before, after)) if after == before => Err(RetryFault::OtherKeySwallowed),
            _ if self.is_replay(&other) => Err(RetryFault::OtherKeySwallowed),
            _ => self.expect_one_effect(before),
        }
    }

    async fn ten_at_once(&self, target: &Arc<dyn Target>) -> Result<(), RetryFault> {
        let key = new_key()?;
        let before = self.count();
        let start = Arc::new(Barrier::new(AT_ONCE));
        let mut clients = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (target, start) = (Arc::clone(target), Arc::clone(&start));
            let request = self.request(&key);
            let patience = self.patience;
            clients.spawn(async move {
                start.wait().await;
                settled(&*target, &request, patience).await
            });
        }
        let mut answers = Vec::new();
        while let Some(answer) = clients.join_next().await {
            match answer {
                Ok(answer) => answers.push(answer?),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(error) => return Err(RetryFault::NoAnswer(error.to_string())),
            }
        }
        self.expect_one_effect(before)?;
        let mut first: Option<&Answer> = None;
        for answer in &answers {
            let first = *first.get_or_insert(answer);
            self.expect_equal(first, answer)?;
        }
        first.map_or(Ok(()), |first| succeeded(first.clone()).map(drop))?;
        let is_new = |answer: &&Answer| !self.is_replay(answer);
        match answers.iter().filter(is_new).count() {
            0 => Err(RetryFault::FirstIsMarked),
            1 => Ok(()),
            _ if self.marker.is_none() => Ok(()),
            _ => Err(RetryFault::NotMarked),
        }
    }

    async fn answer_lost(&self, target: &dyn Target) -> Result<(), RetryFault> {
        for loss in [Loss::Unread, Loss::HungUp] {
            let key = new_key()?;
            let before = self.count();
            let effects = self.effects.clone();
            let has_happened = move || match (&effects, before) {
                (Some(effects), Some(before)) => Some(effects() > before),
                _ => None,
            };
            let lost = target.lose(self.request(&key), loss, Box::new(has_happened));
            lost.await.map_err(RetryFault::NoAnswer)?;
            let request = self.request(&key);
            let found = succeeded(settled(target, &request, self.patience).await?)?;
            self.expect_one_effect(before)?;
            let again = self.ask(target, &key).await?;
            self.expect_one_effect(before)?;
            self.expect_equal(&found, &again)?;
        }
        Ok(())
    }

    fn request(&self, key: &str) -> Request<Bytes> {
        let mut request = (self.request)();
        if let Ok(key) = HeaderValue::from_str(key) {
            request.headers_mut().insert(&self.header, key);
        }
        request
    }

    /// One request, one answer, whatever it is.
    async fn ask(&self, target: &dyn Target, key: &str) -> Result<Answer, RetryFault> {
        let answer = target.ask(self.request(key));
        match tokio::time::timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(RetryFault::NoAnswer),
            Err(_) => Err(RetryFault::NeverAnswered {
                patience: self.patience,
                last: None,
            }),
        }
    }

    fn count(&self) -> Option<u64> {
        self.effects.as_ref().map(|effects| effects())
    }

    fn expect_one_effect(&self, before: Option<u64>) -> Result<(), RetryFault> {
        let Some((before, after)) = before.zip(self.count()) else {
            return Ok(());
        };
        match after.saturating_sub(before) {
            0 => Err(RetryFault::NoEffect),
            1 => Ok(()),
            effects => Err(RetryFault::Repeated { effects }),
        }
    }

    fn expect_equal(&self, first: &Answer, later: &Answer) -> Result<(), RetryFault> {
        let differ = |what: &str, first: String, later: String| RetryFault::Different {
            what: what.to_owned(),
            first,
            later,
        };
        if first.status != later.status {
            let (first, later) = (first.shown(), later.shown());
            return Err(differ("the status", first, later));
        }
        if first.body != later.body {
            let (first, later) = (failure::text(&first.body), failure::text(&later.body));
            return Err(differ("the body", first, later));
        }
        let ignored: Vec<_> = self.marker.iter().chain(&self.ignored).cloned().collect();
        let kept = |answer: &Answer| headers::stored(&answer.headers, &ignored);
        let (first, later) = (kept(first), kept(later));
        for name in first.keys().chain(later.keys()) {
            let values = |headers: &http::HeaderMap| {
                let values = headers.get_all(name).iter();
                let shown: Vec<_> = values
                    .map(|value| failure::text(value.as_bytes()))
                    .collect();
                shown.join(", ")
            };
            if !first.get_all(name).iter().eq(later.get_all(name)) {
                let what = format!("the header `{name}`");
                return Err(differ(&what, values(&first), values(&later)));
            }
        }
        Ok(())
    }

    fn is_replay(&self, answer: &Answer) -> bool {
        let marker = self.marker.as_ref();
        let value = marker.and_then(|name| answer.headers.get(name));
        value.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"false"))
    }
}

impl fmt::Debug for RetryTests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryTests")
            .field("header", &self.header)
            .field("counts_effects", &self.effects.is_some())
            .field("only", &self.only)
            .finish_non_exhaustive()
    }
}

/// Asks again for as long as the service says so.
async fn settled(
    target: &dyn Target,
    request: &Request<Bytes>,
    patience: Duration,
) -> Result<Answer, RetryFault> {
    let end = Instant::now() + patience;
    let mut last = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(answer) = tokio::time::timeout(left, target.ask(request.clone())).await else {
            return Err(RetryFault::NeverAnswered { patience, last });
        };
        let answer = answer.map_err(RetryFault::NoAnswer)?;
        let is_not_yet = matches!(
            answer.status,
            StatusCode::CONFLICT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
        );
        if !is_not_yet {
            return Ok(answer);
        }
        last = Some(answer.shown());
        sleep(PAUSE).await;
    }
}

fn succeeded(answer: Answer) -> Result<Answer, RetryFault> {
    if answer.status.is_success() || answer.status.is_redirection() {
        Ok(answer)
    } else {
        Err(RetryFault::Refused(answer.shown()))
    }
}

/// 32 hexadecimal digits, which every service takes for a key.
fn new_key() -> Result<String, RetryFault> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        RetryFault::NoAnswer(format!("the system gives no randomness: {error}"))
    })?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
