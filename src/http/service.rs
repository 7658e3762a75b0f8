//! The way of a request: key, caller, body, claim, and then the handler or an answer.
//!
//! Whatever can be wrong with a request is found before its key is claimed, so that a bad one leaves
//! no trace.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::Either;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;
use tracing::{Instrument, Span, debug, error, warn};

use crate::backend::{AnyBackend, AnyGuard, Backend, Guard, Outcome};
use crate::claim::Saved;
use crate::error::ClaimError;
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::limits::PRINCIPAL_BYTES_MAX;
use crate::listing::KeyState;
use crate::options::ClaimOptions;

use super::attended::Attended;
use super::body::{self, BoxError, KeptBody, RequestBody, ResponseBody};
use super::claimed::Claimed;
use super::key_header;
use super::layer::Shared;
use super::operation::Owner;
use super::options::{KeyRule, RESPONSE_BYTES_DEFAULT, RouteOptions, StoreFailure};
use super::problem::{Problem, ProblemKind};
use super::replay;
use super::scope::{operation_name, shortened};
use super::work::{self, Work};

/// A service behind an [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// It takes requests with any body of `Bytes` and hands them on with a [`RequestBody`]; its answers
/// have a [`ResponseBody`]. It must be called within a tokio runtime, where handlers
/// go on whose clients are gone.
/// A panic of the handler goes on in the caller of this service.
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> IdempotencyService<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("layer", &self.shared)
            .finish()
    }
}

impl<S, B, A> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes with the request.
        let clone = self.inner.clone();
        let handler = mem::replace(&mut self.inner, clone);
        Box::pin(handle(Arc::clone(&self.shared), handler, request))
    }
}

/// A request that may be claimed.
struct Ready {
    key: Key,
    fingerprint: Fingerprint,
    principal: Option<Vec<u8>>,
    request: Request<Bytes>,
    options: RouteOptions,
}

/// What to do with a request when its claim is decided.
enum Decided {
    Own {
        guard: AnyGuard,
        is_interrupted: bool,
    },
    Replay(Saved),
    Answer(Problem),
    Unprotected,
}

async fn handle<S, B, A>(
    shared: Arc<Shared>,
    mut handler: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<A>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<A>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let (options, id) = match identify(&shared, &parts) {
        Identified::Key(options, id) => (options, id),
        Identified::None => {
            shared.counters.passed.add();
            let request = Request::from_parts(parts, Either::Right(body));
            let answer = handler.call(request).await?;
            return Ok(answer.map(Either::Left));
        }
        Identified::Refused(problem) => return Ok(refuse(&shared, &problem)),
    };
    let echo = shared.echo(&parts);
    let ready = match prepare(&shared, parts, body, options, &id).await {
        Ok(ready) => ready,
        Err(problem) => return Ok(echoed(refuse(&shared, &problem), echo)),
    };
    let answer = match claim(&shared, &ready).await {
        Decided::Own {
            guard,
            is_interrupted,
        } => own(&shared, handler, ready, guard, is_interrupted).await?,
        Decided::Replay(saved) => {
            let (parts, _) = ready.request.into_parts();
            let principal = ready.principal.as_deref();
            match replay::answer(&shared, &parts, principal, &saved).await {
                Ok(answer) => answer.map(Either::Right),
                Err(problem) => refuse(&shared, &problem),
            }
        }
        Decided::Answer(problem) => refuse(&shared, &problem),
        Decided::Unprotected => {
            let request = ready.request.map(|body| Either::Left(body.into()));
            handler.call(request).await?.map(Either::Left)
        }
    };
    Ok(echoed(answer, echo))
}

enum Identified {
    /// The layer has nothing to do with the request.
    None,
    Key(RouteOptions, String),
    Refused(Problem),
}

/// Whether the request is the layer's, and the key it has.
fn identify(shared: &Shared, parts: &Parts) -> Identified {
    let settings = &shared.settings;
    if !settings.methods.contains(&parts.method) {
        return Identified::None;
    }
    let options = settings
        .route
        .as_ref()
        .map_or_else(RouteOptions::new, |route| route(parts));
    if options.is_skipped {
        return Identified::None;
    }
    let max = settings.key_bytes_max;
    match key_header::read(&parts.headers, &settings.names, settings.syntax, max) {
        Ok(Some(id)) => Identified::Key(options, id),
        Ok(None) if options.key.unwrap_or(settings.key) == KeyRule::Optional => Identified::None,
        Ok(None) => {
            let name = settings.names.first().map_or("", HeaderName::as_str);
            let detail = format!("Send the header `{name}`, the same in every retry.");
            Identified::Refused(Problem::new(ProblemKind::KeyMissing, detail))
        }
        Err(error) => Identified::Refused(Problem::new(ProblemKind::KeyInvalid, error.detail())),
    }
}

/// Finds the caller, reads the body, and makes the key and the fingerprint.
async fn prepare<B>(
    shared: &Shared,
    parts: Parts,
    body: B,
    options: RouteOptions,
    id: &str,
) -> Result<Ready, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let settings = &shared.settings;
    let unknown = |detail| Problem::new(ProblemKind::CallerUnknown, detail);
    let scope = shared
        .scope
        .of(&parts)
        // An empty name is what is left where somebody forgot to look whether there is one.
        .filter(|scope| !scope.is_empty() || shared.scope.is_global())
        .ok_or_else(|| unknown("Nobody is authenticated."))?;
    let principal = match &settings.principal {
        None => None,
        Some(find) => Some(
            find(&parts)
                .filter(|principal| (1..=PRINCIPAL_BYTES_MAX).contains(&principal.len()))
                .ok_or_else(|| unknown("Nobody is authenticated."))?,
        ),
    };
    let part_max = shared.limits.key_part_bytes;
    let operation = match &settings.operation {
        Some(name) => shortened(name(&parts), part_max),
        None => operation_name(&parts.method, parts.uri.path(), part_max),
    };
    let key = Key::new(scope, operation, id)
        .and_then(|key| key.check(part_max).map(|()| key))
        .map_err(|error| {
            error!(%error, "the caller's scope makes no key");
            unknown("The caller's identity is too long.")
        })?;

    let bytes_max = options
        .request_bytes_max
        .unwrap_or(settings.request_bytes_max);
    let body = body::read(body, bytes_max).await?;
    let fingerprint = options
        .fingerprint
        .as_ref()
        .unwrap_or(&settings.fingerprint);
    Ok(Ready {
        key,
        fingerprint: fingerprint.of(&parts, &body),
        principal,
        request: Request::from_parts(parts, body),
        options,
    })
}

/// Claims the key, and waits for whoever has it as long as may be.
async fn claim(shared: &Shared, ready: &Ready) -> Decided {
    let settings = &shared.settings;
    let counters = &shared.counters;
    let options: ClaimOptions = ready
        .options
        .claim
        .clone()
        .unwrap_or_else(|| settings.claim.clone());
    let key = &ready.key;
    let wait = ready.options.wait.unwrap_or(settings.wait);
    let mut claim = Claimed::by(&shared.backend, key, ready.fingerprint, options).await;
    let mut deadline = None;
    loop {
        claim = match claim {
            Ok(Claimed::Waiting(waiting)) => {
                let retry_after = shared.retry_after(waiting.lease_left());
                if wait.is_zero() {
                    return in_progress(shared, key, retry_after);
                }
                let until = *deadline.get_or_insert_with(|| {
                    counters.waited.add();
                    Instant::now() + wait
                });
                match timeout_at(until, waiting.wait()).await {
                    Ok(claim) => claim,
                    Err(_) => return in_progress(shared, key, retry_after),
                }
            }
            Ok(Claimed::Decided(outcome)) => return decided(shared, key, outcome),
            Err(ClaimError::TooManyWaiters { .. }) => {
                return in_progress(shared, key, settings.retry_after.as_secs().max(1));
            }
            Err(ClaimError::Abandoned(abandoned)) => {
                debug!(%key, attempt = abandoned.attempt, "interrupted too long ago");
                counters.outcome_unknown.add();
                return Decided::Answer(work::outcome_unknown());
            }
            Err(error) => return failed(shared, key, &error).await,
        };
    }
}

fn decided(shared: &Shared, key: &Key, outcome: Outcome<AnyGuard>) -> Decided {
    let counters = &shared.counters;
    match outcome {
        Outcome::Started(guard) => {
            debug!(%key, "started");
            Decided::Own {
                guard,
                is_interrupted: false,
            }
        }
        Outcome::Interrupted(guard) => {
            debug!(%key, attempt = guard.attempt(), "an earlier attempt was interrupted");
            Decided::Own {
                guard,
                is_interrupted: true,
            }
        }
        Outcome::Completed(saved) => {
            debug!(%key, "completed");
            Decided::Replay(saved)
        }
        Outcome::Mismatch(_) => {
            debug!(%key, "used for another request");
            counters.mismatched.add();
            let detail = "Another request came with this key. Take a new key for a new request.";
            let problem = Problem::new(ProblemKind::KeyReused, detail);
            Decided::Answer(problem.with_status(shared.settings.mismatch))
        }
        Outcome::TooLate(_) => {
            debug!(%key, "first sent too long ago");
            counters.too_late.add();
            let detail = "The answer to this request may have been forgotten. \
                          Look what became of it before you start a new one.";
            Decided::Answer(Problem::new(ProblemKind::TooLate, detail))
        }
        Outcome::InProgress(progress) => {
            in_progress(shared, key, shared.retry_after(progress.lease_left))
        }
    }
}

fn in_progress(shared: &Shared, key: &Key, retry_after_secs: u64) -> Decided {
    debug!(%key, "in progress");
    shared.counters.in_progress.add();
    let detail = "The first request with this key is still being worked on. \
                  Ask again with the same key.";
    Decided::Answer(Problem::new(ProblemKind::InProgress, detail).retry_after(retry_after_secs))
}

async fn failed(shared: &Shared, key: &Key, error: &ClaimError) -> Decided {
    shared.counters.store_failures.add();
    if shared.settings.store_failure == StoreFailure::PassThrough
        && may_pass(shared, key, error).await
    {
        warn!(%key, %error, "the store did not take the claim: running without protection");
        shared.counters.unprotected.add();
        return Decided::Unprotected;
    }
    warn!(%key, %error, "the store did not take the claim");
    Decided::Answer(Problem::unavailable())
}

/// Whether nothing was claimed, and nothing is known of the key: an interrupted one can't be taken up
/// on a full disk either, and is not to run again as if it were new.
async fn may_pass(shared: &Shared, key: &Key, error: &ClaimError) -> bool {
    let nothing_was_claimed = matches!(
        error,
        ClaimError::OutOfSpace(_)
            | ClaimError::LimitReached(_)
            | ClaimError::TooManyPending { .. }
            | ClaimError::Unavailable(_)
    );
    nothing_was_claimed
        && match is_absent(&shared.backend, key).await {
            Ok(is_absent) => is_absent,
            // A closed store knows nothing of any key.
            Err(error) => matches!(error, ClaimError::Unavailable(_)),
        }
}

async fn is_absent(backend: &AnyBackend, key: &Key) -> Result<bool, ClaimError> {
    match backend.embedded() {
        Some(store) => store.is_absent(key).await,
        None => Ok(matches!(backend.look(key).await?, KeyState::Absent)),
    }
}

/// Runs the handler, which a client that hangs up does not stop.
async fn own<S, B, A>(
    shared: &Arc<Shared>,
    handler: S,
    ready: Ready,
    guard: AnyGuard,
    is_interrupted: bool,
) -> Result<Response<ResponseBody<A>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<A>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Send + 'static,
    A: Body<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    let backend = shared.backend.clone();
    let owner = Owner::new(backend, guard, Arc::clone(&shared.counters));
    let default = shared.settings.response_bytes_max;
    let work = Work {
        shared: Arc::clone(shared),
        owner,
        is_interrupted,
        principal: ready.principal,
        response_bytes_max: (ready.options.response_bytes_max.or(default))
            .unwrap_or(RESPONSE_BYTES_DEFAULT)
            .min(shared.limits.response_bytes),
    };
    let (answer_to, mut answer) = oneshot::channel();
    let running = shared.tasks.begin();
    let request = ready.request;
    let work = async move {
        work.run(handler, request, answer_to).await;
        drop(running);
    };
    let mut attended = Attended::new(work.instrument(Span::current()));
    let answer = poll_fn(|context| {
        let is_done = attended.poll(context).is_ready();
        match answer.try_recv() {
            Ok(answer) => Poll::Ready(Some(answer)),
            Err(_) if is_done => Poll::Ready(None),
            Err(_) => Poll::Pending,
        }
    });
    let Some(answer) = answer.await else {
        return Ok(refuse(shared, &Problem::unavailable()));
    };
    Ok(answer?.map(|body| {
        Either::Right(match attended.detach() {
            Some(task) => body.made_by(task),
            None => body,
        })
    }))
}

fn refuse<A>(shared: &Shared, problem: &Problem) -> Response<ResponseBody<A>> {
    shared.refused(problem.kind());
    shared.problem(problem).map(Either::Right)
}

type Echo = Option<(HeaderName, HeaderValue)>;

fn echoed<A>(mut answer: Response<A>, echo: Echo) -> Response<A> {
    if let Some((name, value)) = echo {
        answer.headers_mut().insert(name, value);
    }
    answer
}

impl Shared {
    /// The key's header, to be sent back.
    fn echo(&self, parts: &Parts) -> Echo {
        if !self.settings.echoes_key {
            return None;
        }
        let mut names = self.settings.names.iter();
        names.find_map(|name| Some((name.clone(), parts.headers.get(name)?.clone())))
    }

    /// Whole seconds, at least 1, and no longer than the owner's lease lasts.
    fn retry_after(&self, lease_left: Option<Duration>) -> u64 {
        let lease_left = lease_left.unwrap_or(Duration::MAX);
        self.settings.retry_after.min(lease_left).as_secs().max(1)
    }
}

/// The answer is the layer's own, or passed on by its task.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<KeptBody>();
};
