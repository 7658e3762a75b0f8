//! What to do about an event whose earlier attempt ended without a word.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use crate::reconcile::{Interrupted, Verdict};

type Ask = Arc<dyn Fn(Interrupted) -> Pin<Box<dyn Future<Output = Verdict> + Send>> + Send + Sync>;

/// What happens to an event whose earlier attempt was interrupted: by a crash, a panic, a failure that
/// [may have acted](super::Failure::may_have_acted).
///
/// What that attempt did is unknown, and only the consumer can know whether its handler may run again:
/// so there is no default.
#[derive(Clone)]
pub struct OnInterrupted(pub(super) Kind);

#[derive(Clone)]
pub(super) enum Kind {
    Rerun,
    DeadLetter,
    Reconcile(Ask),
}

impl OnInterrupted {
    /// The handler runs again, and finds in its [`Event`](super::Event) what went before: the number
    /// of the run, the checkpoint, the keys for other systems. It must be safe to repeat.
    pub fn rerun() -> Self {
        Self(Kind::Rerun)
    }

    /// The handler never runs again: the event is a dead letter, and its key stays interrupted until
    /// it is [reconciled](crate::Store::reconcile).
    pub fn dead_letter() -> Self {
        Self(Kind::DeadLetter)
    }

    /// Your own code finds out what happened, and decides: completed or done, the message is
    /// acknowledged; released, the handler runs; kept, the event has to come again, which counts as
    /// one of its [attempts](super::InboxBuilder::max_attempts).
    ///
    /// The same function serves [`Store::reconcile`](crate::Store::reconcile). It runs on the thread
    /// or in the task that processes the event: let it block only where that may block.
    ///
    /// ```
    /// use oncekey::inbox::OnInterrupted;
    /// use oncekey::reconcile::{Interrupted, Verdict};
    /// # fn find_charge(_key: &str) -> Result<Option<&'static str>, std::io::Error> { Ok(None) }
    ///
    /// fn ask(interrupted: &Interrupted) -> Verdict {
    ///     match find_charge(&interrupted.downstream_key("charge")) {
    ///         Ok(Some(_)) => Verdict::Done,
    ///         Ok(None) => Verdict::Release,
    ///         Err(_) => Verdict::Keep,
    ///     }
    /// }
    /// let on_interrupted = OnInterrupted::reconcile(ask);
    /// ```
    pub fn reconcile(ask: impl Fn(&Interrupted) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Kind::Reconcile(Arc::new(move |interrupted| {
            Box::pin(ready(ask(&interrupted)))
        })))
    }

    /// [`reconcile`](Self::reconcile) with a future.
    pub fn reconcile_async<F, Decision>(ask: F) -> Self
    where
        F: Fn(Interrupted) -> Decision + Send + Sync + 'static,
        Decision: Future<Output = Verdict> + Send + 'static,
    {
        Self(Kind::Reconcile(Arc::new(move |interrupted| {
            Box::pin(ask(interrupted))
        })))
    }
}

impl fmt::Debug for OnInterrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Rerun => "OnInterrupted::rerun",
            Kind::DeadLetter => "OnInterrupted::dead_letter",
            Kind::Reconcile(_) => "OnInterrupted::reconcile",
        })
    }
}
