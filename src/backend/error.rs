//! A backend that can't be reached, or that answers what it should not.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A shared backend failed: its server, the way there, or what it answered.
///
/// [`is_outcome_unknown`](Self::is_outcome_unknown) tells whether the step may have been done and only
/// its answer was lost. Nothing is stuck by that. A claim in nobody's name is interrupted when its
/// lease is over, and a completion or a release may be repeated.
#[derive(Clone, Debug)]
pub struct BackendError {
    step: &'static str,
    is_outcome_unknown: bool,
    source: Arc<dyn Error + Send + Sync>,
}

/// What a server has for a key, where that is not what this crate wrote there.
///
/// The key is refused to everybody, never taken for absent: whether its operation ran can't be read.
/// Repair the field, or remove the key with [`Forget::Force`](crate::Forget::Force).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MalformedRecord {
    /// The row or the name that it stands under. The key's id is there as a digest only.
    pub place: String,
    /// The column or the field of a hash; empty where it is the whole.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl BackendError {
    /// A step that may have been done. `step` says which: "claiming a key".
    pub fn new(step: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            step,
            is_outcome_unknown: true,
            source: Arc::from(source.into()),
        }
    }

    /// A step that was certainly not done: the server refused it, or never heard of it.
    pub fn refused(step: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            is_outcome_unknown: false,
            ..Self::new(step, source)
        }
    }

    /// What was being done.
    pub fn step(&self) -> &'static str {
        self.step
    }

    /// Whether it may have been done. `false` where it certainly was not.
    pub fn is_outcome_unknown(&self) -> bool {
        self.is_outcome_unknown
    }

    /// What can't be read, where that is why it failed. Nothing was changed then.
    pub fn malformed(&self) -> Option<&MalformedRecord> {
        self.source.downcast_ref()
    }
}

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
impl MalformedRecord {
    pub(crate) fn new(place: String, field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            place,
            field,
            problem: problem.into(),
        }
    }
}

impl From<(&'static str, MalformedRecord)> for BackendError {
    /// The step found what it can't read, and changed nothing.
    fn from((step, malformed): (&'static str, MalformedRecord)) -> Self {
        Self::refused(step, malformed)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, source, .. } = self;
        if self.is_outcome_unknown {
            return write!(
                f,
                "{step} failed ({source}); whether it was done is unknown, so repeat it once the \
                 backend answers"
            );
        }
        write!(f, "{step} failed, and was not done: {source}")
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl fmt::Display for MalformedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        if !self.field.is_empty() {
            write!(f, " has in {}", self.field)?;
        } else {
            f.write_str(" has")?;
        }
        write!(
            f,
            " {}; repair it, or remove the key with a forced forget",
            self.problem
        )
    }
}

impl Error for MalformedRecord {}
