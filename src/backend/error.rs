//! A backend that can't be reached, or that answers what it should not.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A shared backend failed: its server, the way there, or what it answered.
///
/// Whether the step was done is unknown, unless the source says so: what was asked for may have been
/// done and the answer lost. Nothing is stuck by that. A claim in nobody's name is interrupted when
/// its lease is over, and a completion may be repeated.
#[derive(Clone, Debug)]
pub struct BackendError {
    step: &'static str,
    source: Arc<dyn Error + Send + Sync>,
}

impl BackendError {
    /// `step` says what was being done: "claiming a key".
    pub fn new(step: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            step,
            source: Arc::from(source.into()),
        }
    }

    /// What was being done.
    pub fn step(&self) -> &'static str {
        self.step
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} failed ({}); whether it was done is unknown, so repeat it once the backend answers",
            self.step, self.source
        )
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
