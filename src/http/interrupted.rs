//! What to do about a key whose earlier attempt ended without a word.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};

use super::operation::IdempotentOperation;
use super::options::BoxFuture;

type Reconcile = Arc<dyn Fn(Interrupted) -> BoxFuture<Reconciled> + Send + Sync>;

/// What happens to a request whose earlier attempt was interrupted: by a crash, a panic, an answer
/// that [left it open](super::StatusAction::Interrupt).
///
/// What that attempt did is unknown, and only the service can know whether its handler may run
/// again: so there is no default.
#[derive(Clone)]
pub struct OnInterrupted(Kind);

#[derive(Clone)]
enum Kind {
    Rerun,
    Fail,
    Reconcile(Reconcile),
}

impl OnInterrupted {
    /// The handler runs again, and finds attempt, checkpoint and downstream keys in its
    /// [`IdempotentOperation`]. It must be safe to repeat.
    pub fn rerun() -> Self {
        Self(Kind::Rerun)
    }

    /// The request is answered 500, [`OutcomeUnknown`](super::ProblemKind::OutcomeUnknown), and the
    /// handler never runs: somebody has to look at
    /// [`Store::interrupted`](crate::Store::interrupted).
    pub fn fail() -> Self {
        Self(Kind::Fail)
    }

    /// Your own code finds out what happened, and decides.
    ///
    /// It runs in the handler's place, and a client that hangs up does not stop it
    /// either. A panic leaves the key interrupted.
    ///
    /// ```
    /// use oncekey::http::{OnInterrupted, Reconciled};
    /// # use bytes::Bytes;
    /// # use http::Response;
    /// # async fn find_charge(_key: &str) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
    ///
    /// let on_interrupted = OnInterrupted::reconcile(async |interrupted| {
    ///     let charge_key = interrupted.operation.downstream_key("charge");
    ///     match find_charge(&charge_key).await {
    ///         Ok(Some(charge)) => Reconciled::Answer(Response::new(Bytes::from(charge))),
    ///         Ok(None) => Reconciled::Run,
    ///         Err(_) => Reconciled::Unknown,
    ///     }
    /// });
    /// ```
    pub fn reconcile<F, Decision>(reconcile: F) -> Self
    where
        F: Fn(Interrupted) -> Decision + Send + Sync + 'static,
        Decision: Future<Output = Reconciled> + Send + 'static,
    {
        Self(Kind::Reconcile(Arc::new(move |interrupted| {
            Box::pin(reconcile(interrupted))
        })))
    }

    /// What to do about one request; nothing at all for a first attempt.
    pub(super) async fn decide(
        &self,
        operation: IdempotentOperation,
        request: &Request<Bytes>,
    ) -> Reconciled {
        match &self.0 {
            Kind::Rerun => Reconciled::Run,
            Kind::Fail => Reconciled::Unknown,
            Kind::Reconcile(reconcile) => {
                let request = request.clone();
                reconcile(Interrupted { operation, request }).await
            }
        }
    }
}

impl fmt::Debug for OnInterrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Rerun => "OnInterrupted::rerun",
            Kind::Fail => "OnInterrupted::fail",
            Kind::Reconcile(_) => "OnInterrupted::reconcile",
        })
    }
}

/// A request whose earlier attempt was interrupted, for [`OnInterrupted::reconcile`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Interrupted {
    /// The new attempt, with what the earlier one left.
    pub operation: IdempotentOperation,
    /// The request, with what the layers before have put into its extensions.
    pub request: Request<Bytes>,
}

/// What became of an interrupted operation.
#[derive(Debug)]
pub enum Reconciled {
    /// The handler may run, again or at last.
    Run,
    /// It was carried out, and this is its answer: treated as one of the handler's.
    Answer(Response<Bytes>),
    /// Nobody knows yet: the request is answered 500,
    /// [`OutcomeUnknown`](super::ProblemKind::OutcomeUnknown), and the key stays interrupted.
    Unknown,
}
