//! The layer, and what all its requests share.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use tower_layer::Layer;
use tracing::{debug, warn};

use crate::backend::{AnyBackend, Backend, BackendLimits};
use crate::error::WriteError;

use super::body::KeptBody;
use super::builder::{LayerBuilder, Undecided};
use super::interrupted::OnInterrupted;
use super::metrics::{Counters, HttpStats, Tasks};
use super::options::Settings;
use super::problem::{Problem, ProblemKind};
use super::scope::Scope;
use super::service::IdempotencyService;

/// A tower layer that makes handlers safe to retry. See the [module](super).
///
/// A handle: cloning it is cheap.
#[derive(Clone)]
pub struct IdempotencyLayer {
    pub(super) shared: Arc<Shared>,
}

/// What all requests share.
pub(super) struct Shared {
    pub(super) backend: AnyBackend,
    pub(super) limits: BackendLimits,
    pub(super) settings: Settings,
    pub(super) scope: Scope,
    pub(super) on_interrupted: OnInterrupted,
    pub(super) counters: Arc<Counters>,
    pub(super) tasks: Arc<Tasks>,
}

impl IdempotencyLayer {
    /// Starts a layer over a [`Store`](crate::Store) or any other backend, with the preset
    /// [`ietf`](LayerBuilder::ietf).
    ///
    /// Two decisions have no default: who the caller is ([`LayerBuilder::scope`]), and what happens
    /// to interrupted requests ([`LayerBuilder::on_interrupted`]). Without both there is no
    /// [`build`](LayerBuilder::build):
    ///
    /// ```compile_fail
    /// # fn layer(store: oncekey::Store) {
    /// use oncekey::http::{IdempotencyLayer, OnInterrupted};
    ///
    /// IdempotencyLayer::new(store).on_interrupted(OnInterrupted::fail()).build();
    /// # }
    /// ```
    ///
    /// ```compile_fail
    /// # fn layer(store: oncekey::Store) {
    /// use oncekey::http::{IdempotencyLayer, Scope};
    ///
    /// IdempotencyLayer::new(store).scope(Scope::global()).build();
    /// # }
    /// ```
    ///
    /// ```
    /// # fn layer(store: oncekey::Store) -> Result<(), oncekey::http::LayerError> {
    /// use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
    ///
    /// let layer = IdempotencyLayer::new(store)
    ///     .scope(Scope::global())
    ///     .on_interrupted(OnInterrupted::fail())
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        clippy::new_ret_no_self,
        reason = "the layer exists once everything is decided"
    )]
    pub fn new(backend: impl Backend) -> LayerBuilder<Undecided, Undecided> {
        LayerBuilder::new(AnyBackend::new(backend))
    }

    /// What happened to requests so far.
    pub fn stats(&self) -> HttpStats {
        self.shared.counters.read(&self.shared.tasks)
    }

    /// Hands what [`stats`](Self::stats) shows to the recorder of the `metrics` crate that this
    /// service installed (or to the thread's own), with the label `layer` set to `name`. To be called
    /// when the service is scraped: nothing is exported in between, and counts begin when the layer
    /// is made. No key and no scope is exported.
    ///
    /// The series are listed in [the guide to metrics](crate::documentation::metrics).
    ///
    /// ```
    /// # fn scraped(layer: &oncekey::http::IdempotencyLayer) {
    /// // Once, after the recorder is installed.
    /// oncekey::http::describe_metrics();
    /// // At each scrape.
    /// layer.export_metrics("payments");
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn export_metrics(&self, name: &str) {
        super::exported::export_layer(&self.stats(), name);
    }

    /// Waits until no handler is at work.
    ///
    /// Handlers whose clients are gone go on in tasks of their own, so at the end of a graceful
    /// shutdown the server may be done and they not: wait here, with a time limit, before the store
    /// is closed. What is cut off then is interrupted, as after a crash.
    pub async fn idle(&self) {
        self.shared.tasks.idle().await;
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.shared))
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl Shared {
    pub(super) fn problem(&self, problem: &Problem) -> Response<KeptBody> {
        self.whole(self.settings.problems.render(problem))
    }

    fn whole(&self, response: Response<Bytes>) -> Response<KeptBody> {
        response.map(|body| KeptBody::whole(body, HeaderMap::new()))
    }

    /// The headers that only the layer may set.
    pub(super) fn own_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let Settings {
            replay_marker,
            expiry,
            ..
        } = &self.settings;
        replay_marker.iter().chain(expiry)
    }

    pub(super) fn add_expiry(&self, headers: &mut HeaderMap, expires_at: SystemTime) {
        if let Some(name) = &self.settings.expiry
            && let Some(date) = http_date(expires_at)
        {
            headers.insert(name, date);
        }
    }

    /// A write that failed after the handler had run, and what to tell the client.
    pub(super) fn failed(&self, error: &WriteError) -> Problem {
        self.counters.store_failures.add();
        if let WriteError::LeaseLost { .. } = error {
            warn!(%error, "another attempt took over while the handler ran");
            self.counters.in_progress.add();
            let detail = "Another attempt at this request took over. Ask for its answer.";
            return Problem::new(ProblemKind::InProgress, detail).retry_after(1);
        }
        warn!(%error, "the store did not take the handler's answer");
        Problem::unavailable()
    }

    /// Tells and counts that a request was not taken.
    pub(super) fn refused(&self, kind: ProblemKind) {
        debug!(?kind, "refused");
        match kind {
            ProblemKind::KeyMissing
            | ProblemKind::KeyInvalid
            | ProblemKind::BodyTooLarge
            | ProblemKind::BodyUnreadable
            | ProblemKind::CallerUnknown => self.counters.refused.add(),
            // Counted where they are found out.
            _ => {}
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("scope", &self.scope)
            .field("on_interrupted", &self.on_interrupted)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// `None` for a time that HTTP's dates don't reach, from the year 10000 on.
fn http_date(time: SystemTime) -> Option<HeaderValue> {
    const END_SECS: u64 = 253_402_300_800;
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    (since_epoch.as_secs() < END_SECS)
        .then(|| HeaderValue::try_from(httpdate::fmt_http_date(time)).ok())
        .flatten()
}
