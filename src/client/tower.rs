//! The policy for tower's retry layer.

use std::fmt;
use std::pin::Pin;

use http::{Request, Response};
use tokio::time::{Sleep, sleep};
use tower::retry::Policy;

use super::policy::{Next, Retries, RetryPolicy, now};
use super::verdict::{Failure, Verdict};

impl RetryPolicy {
    /// The policy for [`tower::retry::RetryLayer`], over a service of `http` requests and responses.
    ///
    /// The body has to be `Clone`, so one that can't be sent again does not compile. Where an answer
    /// that is not final is handed out, its extensions hold a [`GaveUp`](super::GaveUp).
    ///
    /// Needs tokio's timer.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use oncekey::client::RetryPolicy;
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower::retry::RetryLayer;
    ///
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// # static CALLS: AtomicU32 = AtomicU32::new(0);
    /// let client = service_fn(async |_request: Request<Bytes>| {
    ///     // Whatever sends requests.
    ///     # if CALLS.fetch_add(1, Ordering::SeqCst) == 0 { return Err(std::io::Error::other("reset")) }
    ///     Ok::<_, std::io::Error>(Response::new(Bytes::from("paid")))
    /// });
    /// let client = RetryLayer::new(RetryPolicy::new().tower()).layer(client);
    /// let request = Request::post("/v1/payments")
    ///     .header("idempotency-key", "\"8e03978e\"")
    ///     .body(Bytes::from("1200 eur"))?;
    /// assert_eq!(client.oneshot(request).await?.body(), "paid");
    /// # assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tower<E>(self) -> TowerRetry<E> {
        self.tower_with(|_| Failure::Connection)
    }

    /// As [`tower`](Self::tower), with errors told apart: by default every error of the service is a
    /// failed connection.
    #[must_use]
    pub fn tower_with<E>(self, failure: fn(&E) -> Failure) -> TowerRetry<E> {
        TowerRetry {
            retries: self.begin(),
            failure,
        }
    }
}

/// A [`RetryPolicy`] as a policy of tower's, made by [`RetryPolicy::tower`]. Each clone, of which
/// tower makes one for every request, begins anew and shares the budget.
pub struct TowerRetry<E> {
    retries: Retries,
    failure: fn(&E) -> Failure,
}

impl<E> Clone for TowerRetry<E> {
    fn clone(&self) -> Self {
        Self {
            retries: self.retries.policy().begin(),
            failure: self.failure,
        }
    }
}

impl<E> fmt::Debug for TowerRetry<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TowerRetry")
            .field(self.retries.policy())
            .finish()
    }
}

impl<B: Clone, A, E> Policy<Request<B>, Response<A>, E> for TowerRetry<E> {
    type Future = Pin<Box<Sleep>>;

    fn retry(
        &mut self,
        request: &mut Request<B>,
        result: &mut Result<Response<A>, E>,
    ) -> Option<Self::Future> {
        let verdict = match result {
            Ok(answer) => Verdict::of(answer.status(), answer.headers(), now()),
            Err(error) => Verdict::of_failure((self.failure)(error)),
        };
        let next = self
            .retries
            .next(request.method(), request.headers(), true, verdict);
        match (next, result) {
            (Next::Wait(delay), _) => Some(Box::pin(sleep(delay))),
            (Next::Stop(why), Ok(answer)) => {
                answer.extensions_mut().insert(why);
                None
            }
            (Next::Stop(_), Err(_)) | (Next::Done, _) => None,
        }
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}
