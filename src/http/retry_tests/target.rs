//! Who is tested: something that answers requests, and can lose an answer.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::failure;

/// How often it is looked whether the work has begun.
pub(super) const GLANCE: Duration = Duration::from_millis(1);
/// When a client hangs up that sees nothing of the work, or sees none begin.
pub(super) const BLIND: Duration = Duration::from_millis(20);
pub(super) const WATCHED: Duration = Duration::from_millis(500);

pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether the effect has happened, where somebody counts.
pub(super) type HasHappened = Box<dyn Fn() -> Option<bool> + Send + Sync>;

/// How an answer gets lost.
#[derive(Clone, Copy)]
pub(super) enum Loss {
    /// It is on its way, and nobody reads it.
    Unread,
    /// The client is gone when the effect has happened, or soon after it asked.
    HungUp,
}

pub(super) trait Target: Send + Sync {
    fn ask(&self, request: Request<Bytes>) -> Boxed<'_, Result<Answer, String>>;

    fn lose(
        &self,
        request: Request<Bytes>,
        loss: Loss,
        has_happened: HasHappened,
    ) -> Boxed<'_, Result<(), String>>;
}

#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.status, failure::text(&self.body))
    }
}

/// When to hang up.
pub(super) fn is_time(begun: Instant, has_happened: &HasHappened) -> bool {
    match has_happened() {
        Some(true) => true,
        Some(false) => begun.elapsed() >= WATCHED,
        None => begun.elapsed() >= BLIND,
    }
}

/// A tower service.
pub(super) struct Routes<S>(pub(super) S);

impl<S, B> Routes<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Send + 'static,
{
    fn call(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<Response<B>, String>> + Send + use<S, B> {
        let mut service = self.0.clone();
        async move {
            let ready = std::future::poll_fn(|context| service.poll_ready(context));
            ready.await.map_err(told)?;
            service.call(request.map(Full::new)).await.map_err(told)
        }
    }
}

impl<S, B> Target for Routes<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn ask(&self, request: Request<Bytes>) -> Boxed<'_, Result<Answer, String>> {
        Box::pin(async move {
            let (head, body) = self.call(request).await?.into_parts();
            let body = body.collect().await.map_err(told)?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        })
    }

    fn lose(
        &self,
        request: Request<Bytes>,
        loss: Loss,
        has_happened: HasHappened,
    ) -> Boxed<'_, Result<(), String>> {
        Box::pin(async move {
            let mut answer = std::pin::pin!(self.call(request));
            match loss {
                Loss::Unread => drop(answer.await?),
                Loss::HungUp => {
                    let begun = Instant::now();
                    while timeout(GLANCE, answer.as_mut()).await.is_err() {
                        if is_time(begun, &has_happened) {
                            break;
                        }
                    }
                }
            }
            Ok(())
        })
    }
}

/// An error with its causes.
fn told(error: impl Into<Box<dyn Error + Send + Sync>>) -> String {
    let error = error.into();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
