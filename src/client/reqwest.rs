//! The policy as a middleware of reqwest, and answers read whole.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware};

use super::policy::{GaveUp, Next, RetryPolicy, now};
use super::verdict::{Failure, Verdict};

/// A [`RetryPolicy`] as a middleware for `reqwest_middleware`.
///
/// It never makes a key: the request has one already, or is not repeated (but for methods that are
/// idempotent by themselves). A body that is a stream is sent once. Where an answer that is not
/// final is handed out, its extensions hold a [`GaveUp`]; where there is no answer, the error is a
/// [`NoAnswer`] inside [`reqwest_middleware::Error::Middleware`].
///
/// Add it before middlewares that must run for every attempt, such as one that signs requests. Give
/// the client a time-out, or an attempt that hangs is never noticed.
///
/// ```
/// use std::time::Duration;
///
/// use oncekey::client::{RetryMiddleware, RetryPolicy};
/// use reqwest_middleware::ClientBuilder;
///
/// let client = reqwest::Client::builder()
///     .timeout(Duration::from_secs(10))
///     .build()?;
/// let client = ClientBuilder::new(client)
///     .with(RetryMiddleware::new(RetryPolicy::new()))
///     .build();
/// # Ok::<(), reqwest::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RetryMiddleware {
    policy: RetryPolicy,
}

impl RetryMiddleware {
    /// The policy as a middleware.
    #[must_use]
    pub fn new(policy: RetryPolicy) -> Self {
        Self { policy }
    }
}

#[async_trait]
impl Middleware for RetryMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: reqwest_middleware::Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let mut retries = self.policy.begin();
        let (method, headers) = (request.method().clone(), request.headers().clone());
        loop {
            let again = request.try_clone();
            let result = next.clone().run(request, extensions).await;
            let verdict = match &result {
                Ok(answer) => Verdict::of(answer.status(), answer.headers(), now()),
                Err(error) => Verdict::of_failure(failure(error)),
            };
            let decided = retries.next(&method, &headers, again.is_some(), verdict);
            request = match (decided, again, result) {
                (Next::Wait(delay), Some(again), _) => {
                    tokio::time::sleep(delay).await;
                    again
                }
                (Next::Stop(why), _, Ok(mut answer)) => {
                    answer.extensions_mut().insert(why);
                    return Ok(answer);
                }
                (Next::Stop(why), _, Err(source)) => {
                    return Err(Error::middleware(NoAnswer {
                        attempts: retries.made(),
                        why,
                        source,
                    }));
                }
                (Next::Done | Next::Wait(_), _, result) => return result,
            };
        }
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Reqwest(error) if error.is_timeout() => Failure::TimeOut,
        Error::Reqwest(error) if error.is_connect() || error.is_request() || error.is_body() => {
            Failure::Connection
        }
        Error::Reqwest(_) | Error::Middleware(_) => Failure::Other,
    }
}

/// A request that got no answer in any of its attempts. **Whether it was carried out is unknown.**
#[derive(Debug)]
#[non_exhaustive]
pub struct NoAnswer {
    /// Attempts that were made.
    pub attempts: u32,
    /// Why there are no more.
    pub why: GaveUp,
    /// What the last one met.
    pub source: Error,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attempts,
            why,
            source,
        } = self;
        write!(f, "no answer after {attempts} attempts ({why}): {source}")
    }
}

impl StdError for NoAnswer {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.source)
    }
}

/// Reads an answer whole, for [`JournaledOperation::send`](super::JournaledOperation::send): with
/// a body of `bytes_max` at most.
///
/// # Errors
///
/// [`BodyError`]. An operation whose answer broke off stays in the journal and can be sent again.
pub async fn whole(
    mut answer: Response,
    bytes_max: usize,
) -> Result<http::Response<Bytes>, BodyError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await.map_err(BodyError::Broken)? {
        if chunk.len() > bytes_max.saturating_sub(body.len()) {
            return Err(BodyError::TooLarge { max: bytes_max });
        }
        body.extend_from_slice(&chunk);
    }
    let mut whole = http::Response::new(body.freeze());
    *whole.status_mut() = answer.status();
    *whole.headers_mut() = answer.headers().clone();
    Ok(whole)
}

/// Why the body of an answer is not there.
#[derive(Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// It broke off.
    Broken(reqwest::Error),
    /// It is over the limit: read it in parts, and end the operation with
    /// [`JournaledOperation::complete_without_answer`](super::JournaledOperation::complete_without_answer).
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => write!(f, "the answer broke off: {error}"),
            Self::TooLarge { max } => write!(f, "the answer's body is over {max} bytes"),
        }
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Broken(error) => Some(error),
            Self::TooLarge { .. } => None,
        }
    }
}
