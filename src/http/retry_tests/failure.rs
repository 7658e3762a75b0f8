//! What failed, in plain words.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Bytes of an answer that are shown.
const SHOWN_MAX: usize = 200;

/// One of the three tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryTest {
    /// A request, and the same again when it is done.
    SameKeyTwice,
    /// Ten equal requests together.
    TenAtOnce,
    /// A request whose answer never reaches the client, and the same again.
    AnswerLost,
}

impl fmt::Display for RetryTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameKeyTwice => "same key twice",
            Self::TenAtOnce => "ten at once",
            Self::AnswerLost => "answer lost",
        })
    }
}

/// What a service did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryFault {
    /// One key, several effects: the work was done more than once.
    Repeated {
        /// How often.
        effects: u64,
    },
    /// An answer for the same key was another.
    Different {
        /// The status, the body or a header.
        what: String,
        /// As it was in one answer.
        first: String,
        /// As it was in the other.
        later: String,
    },
    /// A repetition does not say that it is one.
    NotMarked,
    /// The first answer says that it is a repetition.
    FirstIsMarked,
    /// A request with another key was taken for a repetition.
    OtherKeySwallowed,
    /// The service kept saying "ask again", or nothing.
    NeverAnswered {
        /// How long that was waited for.
        patience: Duration,
        /// What it said last.
        last: Option<String>,
    },
    /// The request, which should succeed, was refused with this answer.
    Refused(String),
    /// The request was answered and no effect was counted: the count is of something else.
    NoEffect,
    /// The service failed, or could not be reached.
    NoAnswer(String),
    /// The URL can't be used.
    BadUrl(String),
}

impl fmt::Display for RetryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { effects } => {
                write!(f, "the work was done {effects} times for one key")
            }
            Self::Different { what, first, later } => write!(
                f,
                "two answers for one key differ in {what}: one had {first}, another {later}"
            ),
            Self::NotMarked => f.write_str(
                "a repetition got an answer that is not marked as a replay: \
                 the handler ran again, or the marker is another (`replay_marker`)",
            ),
            Self::FirstIsMarked => {
                f.write_str("the first answer for a new key is marked as a replay")
            }
            Self::OtherKeySwallowed => f.write_str(
                "a request with another key was not carried out: it was taken for a repetition",
            ),
            Self::NeverAnswered { patience, last } => {
                write!(f, "there was no answer within {patience:?}")?;
                match last {
                    Some(last) => write!(f, "; the last said: {last}"),
                    None => Ok(()),
                }
            }
            Self::Refused(answer) => write!(
                f,
                "the request was refused with {answer}; these tests need one that succeeds"
            ),
            Self::NoEffect => f.write_str(
                "the request was answered, but `count_effects` counted nothing: \
                 does it count what this request does?",
            ),
            Self::NoAnswer(why) => write!(f, "there was no answer: {why}"),
            Self::BadUrl(why) => write!(f, "the URL can't be used: {why}"),
        }
    }
}

/// The first of the tests that failed, and why.
#[derive(Clone, PartialEq, Eq)]
pub struct RetryFailure {
    pub(super) test: RetryTest,
    pub(super) fault: RetryFault,
}

impl RetryFailure {
    /// Which test.
    pub fn test(&self) -> RetryTest {
        self.test
    }

    /// Why.
    pub fn fault(&self) -> &RetryFault {
        &self.fault
    }
}

impl fmt::Display for RetryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.test, self.fault)
    }
}

/// The same words, since a test that ends with an error shows this form.
impl fmt::Debug for RetryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for RetryFailure {}

/// Bytes of an answer as they are shown.
pub(super) fn text(bytes: &[u8]) -> String {
    let shown = String::from_utf8_lossy(bytes.get(..SHOWN_MAX).unwrap_or(bytes));
    let more = if bytes.len() > SHOWN_MAX { "…" } else { "" };
    format!("`{}{more}`", shown.trim_end())
}
