//! When an attempt is followed by another: one state machine for every client.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use http::{HeaderMap, HeaderName, Method};
use tower::retry::budget::{Budget, TpsBudget};
use tracing::debug;

use super::verdict::Verdict;

/// Attempts of one request by default, the first among them: 4.
pub const ATTEMPTS_DEFAULT: u32 = 4;
/// Attempts that a request can be given: 10.
pub const ATTEMPTS_MAX: u32 = 10;
/// How long after the first attempt began another may begin by default: 60 seconds.
pub const TOTAL_TIME_DEFAULT: Duration = Duration::from_secs(60);
/// The longest `Retry-After` that is waited for by default: 60 seconds.
pub const RETRY_AFTER_MAX_DEFAULT: Duration = Duration::from_secs(60);

const FIRST_DELAY_DEFAULT: Duration = Duration::from_millis(500);
const DELAY_MAX_DEFAULT: Duration = Duration::from_secs(8);

type SharedBudget = Arc<dyn Budget + Send + Sync>;

/// What is retried, how often and how fast.
///
/// * **What**: see [`Verdict`]. Requests with a key, and methods that are idempotent by themselves
///   (GET, HEAD, OPTIONS, TRACE, PUT, DELETE). **Never POST, PATCH or an unknown method without a
///   key**, whatever the failure.
/// * **How often**: [`attempts`](Self::attempts), within [`total_time`](Self::total_time), and as
///   long as the [`budget`](Self::budget) that all requests of the policy share has something left.
/// * **How fast**: a random part of a delay that doubles each time (full jitter), and after
///   `Retry-After` if the server sent one: its time first and the random part on top, so that clients
///   that were told the same do not come back together.
///
/// An attempt that hangs is not cut off: give the client a time-out for each.
///
/// Cloning shares the budget.
#[derive(Clone)]
pub struct RetryPolicy {
    attempts: u32,
    first_delay: Duration,
    delay_max: Duration,
    total_time: Duration,
    retry_after_max: Duration,
    key_headers: Vec<HeaderName>,
    budget: SharedBudget,
}

/// Why a request that came to nothing final is not sent again.
///
/// It stands in the extensions of the answer that is handed out instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GaveUp {
    /// Sending it again at once does not help.
    NotRetryable,
    /// Its method is not idempotent and it has no key: sent again it may act twice.
    NoKey,
    /// Its body is a stream that was used up.
    BodyNotReplayable,
    /// All attempts were made.
    AttemptsUsedUp,
    /// The next attempt would begin after the total time.
    TimeUsedUp,
    /// Too many of all requests are retries already: the server needs fewer, not more.
    BudgetUsedUp,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRetryable => "another attempt would not help",
            Self::NoKey => "without an idempotency key another attempt may act twice",
            Self::BodyNotReplayable => "the body is a stream, which can be sent once only",
            Self::AttemptsUsedUp => "all attempts were made",
            Self::TimeUsedUp => "the time for attempts is over",
            Self::BudgetUsedUp => "the retry budget is used up",
        })
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryPolicy {
    /// 4 attempts in 60 seconds, first delays of up to 0.5, 1 and 2 seconds, header
    /// `Idempotency-Key`, and tower's default budget: one retry to five requests, and ten a second.
    #[must_use]
    pub fn new() -> Self {
        Self {
            attempts: ATTEMPTS_DEFAULT,
            first_delay: FIRST_DELAY_DEFAULT,
            delay_max: DELAY_MAX_DEFAULT,
            total_time: TOTAL_TIME_DEFAULT,
            retry_after_max: RETRY_AFTER_MAX_DEFAULT,
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            budget: Arc::new(TpsBudget::default()),
        }
    }

    /// Attempts of one request, the first among them: 1 (no retries) to [`ATTEMPTS_MAX`]; 3 to 5
    /// are usual. What is outside is brought inside.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.clamp(1, ATTEMPTS_MAX);
        self
    }

    /// The longest delay before the first retry, which doubles with each, and what it doubles up
    /// to. Default: 0.5 and 8 seconds. The delay is chosen evenly between nothing and that.
    #[must_use]
    pub fn delays(mut self, first: Duration, max: Duration) -> Self {
        self.first_delay = first;
        self.delay_max = max.max(first);
        self
    }

    /// How long after the first attempt began another may begin. It must be well below the time for
    /// which the server keeps keys.
    #[must_use]
    pub fn total_time(mut self, total: Duration) -> Self {
        self.total_time = total;
        self
    }

    /// The longest `Retry-After` to wait for. A longer one is not believed: the policy's own delay
    /// is taken.
    #[must_use]
    pub fn retry_after_max(mut self, max: Duration) -> Self {
        self.retry_after_max = max;
        self
    }

    /// One more header that makes a request safe to repeat, beside `Idempotency-Key`.
    #[must_use]
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key_headers.push(name);
        self
    }

    /// The retries that all requests of this policy and its clones share. A request that needs none
    /// pays in, each retry takes out.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use oncekey::client::RetryPolicy;
    /// use tower::retry::budget::TpsBudget;
    ///
    /// // One retry to ten requests, and two a second whatever comes.
    /// let budget = TpsBudget::new(Duration::from_secs(10), 2, 0.1);
    /// let policy = RetryPolicy::new().budget(Arc::new(budget));
    /// ```
    #[must_use]
    pub fn budget(mut self, budget: Arc<impl Budget + Send + Sync + 'static>) -> Self {
        self.budget = budget;
        self
    }

    fn is_repeatable(&self, method: &Method, headers: &HeaderMap) -> bool {
        // RFC 9110, 9.2.2. Of any other nobody knows.
        method.is_idempotent()
            || self
                .key_headers
                .iter()
                .any(|name| headers.contains_key(name))
    }

    /// A request begins.
    pub(super) fn begin(&self) -> Retries {
        let delays = ExponentialBuilder::new()
            .with_min_delay(self.first_delay)
            .with_max_delay(self.delay_max)
            .with_max_times(self.attempts.saturating_sub(1) as usize);
        Retries {
            policy: self.clone(),
            delays: delays.build(),
            begin: Instant::now(),
            made: 0,
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("attempts", &self.attempts)
            .field("first_delay", &self.first_delay)
            .field("delay_max", &self.delay_max)
            .field("total_time", &self.total_time)
            .field("retry_after_max", &self.retry_after_max)
            .field("key_headers", &self.key_headers)
            .finish_non_exhaustive()
    }
}

/// The attempts of one request.
pub(super) struct Retries {
    policy: RetryPolicy,
    /// The upper limits of the delays to come.
    delays: <ExponentialBuilder as BackoffBuilder>::Backoff,
    begin: Instant,
    made: u32,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Hand out what there is: it is final.
    Done,
    /// Send the request again after this time.
    Wait(Duration),
    /// Hand out what there is, although it is not final.
    Stop(GaveUp),
}

impl Retries {
    /// Attempts made so far.
    #[cfg_attr(not(feature = "reqwest"), expect(dead_code))]
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    /// The policy, for a request of its own.
    pub(super) fn policy(&self) -> &RetryPolicy {
        &self.policy
    }

    /// An attempt has ended: the decision that every client shares.
    pub(super) fn next(
        &mut self,
        method: &Method,
        headers: &HeaderMap,
        has_body_left: bool,
        verdict: Verdict,
    ) -> Next {
        self.made = self.made.saturating_add(1);
        let next = self.decide(method, headers, has_body_left, verdict);
        match next {
            Next::Done => self.policy.budget.deposit(),
            Next::Wait(delay) => debug!(made = self.made, ?delay, "the request is sent again"),
            Next::Stop(why) => debug!(made = self.made, %why, "the request is not sent again"),
        }
        next
    }

    fn decide(
        &mut self,
        method: &Method,
        headers: &HeaderMap,
        has_body_left: bool,
        verdict: Verdict,
    ) -> Next {
        let retry_after = match verdict {
            Verdict::Final => return Next::Done,
            Verdict::Open => return Next::Stop(GaveUp::NotRetryable),
            Verdict::Again { retry_after } => retry_after,
        };
        if !self.policy.is_repeatable(method, headers) {
            return Next::Stop(GaveUp::NoKey);
        }
        if !has_body_left {
            return Next::Stop(GaveUp::BodyNotReplayable);
        }
        let Some(delay_max) = self.delays.next() else {
            return Next::Stop(GaveUp::AttemptsUsedUp);
        };
        let asked = retry_after.filter(|asked| *asked <= self.policy.retry_after_max);
        // Full jitter: backon's own goes from the delay to its double.
        let jitter = delay_max.mul_f64(fastrand::f64());
        let delay = asked.unwrap_or_default().saturating_add(jitter);
        if self.begin.elapsed().saturating_add(delay) > self.policy.total_time {
            return Next::Stop(GaveUp::TimeUsedUp);
        }
        if !self.policy.budget.withdraw() {
            return Next::Stop(GaveUp::BudgetUsedUp);
        }
        Next::Wait(delay)
    }
}

/// The client's clock, for a `Retry-After` without the server's.
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests;
