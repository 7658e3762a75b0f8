//! What one key can be, and what an answer at a known time tells of it.
//!
//! Times are ranges: a lease that was granted within a window ends within a window, and an answer
//! that shows that it is over, or not, narrows the range.

use crate::history::{Seen, Window};

/// A key, with what must be remembered beside its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Key {
    pub state: State,
    /// The highest token so far. None is given twice, not even after it was lost.
    pub highest_token: u64,
    /// Older records of the key that a loss of power may bring back; kept where power is lost.
    pub older: Vec<State>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum State {
    #[default]
    Absent,
    Live(Live),
    Completed(Completed),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Live {
    pub request: u8,
    pub attempt: u32,
    /// `None` where the grant's answer was lost.
    pub token: Option<u64>,
    /// Where the token is unknown: it is higher than this.
    pub token_above: u64,
    /// The call that was granted the key, where its answer was lost.
    pub lost_grant: Option<u64>,
    pub ticket: Option<u64>,
    pub phase: Phase,
    /// When the lease is over; `None` for never.
    pub lease_end: Option<Range>,
    pub note: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Owned,
    Detached,
    Interrupted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Completed {
    pub request: u8,
    pub attempt: u32,
    pub token: u64,
    pub response: u64,
    pub expires: Range,
}

/// A moment that is known to lie between two, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    pub from_ms: u64,
    pub to_ms: u64,
}

impl Range {
    /// `after_ms` after a moment in the window.
    pub fn after(window: Window, after_ms: u64) -> Self {
        Self {
            from_ms: window.from_ms + after_ms,
            to_ms: window.to_ms.saturating_add(after_ms),
        }
    }

    /// Narrowed by: it was not reached at a moment in the window.
    pub fn not_reached(self, window: Window) -> Option<Self> {
        let from_ms = self.from_ms.max(window.from_ms + 1);
        (from_ms <= self.to_ms).then_some(Self { from_ms, ..self })
    }

    /// Narrowed by: it was reached at a moment in the window.
    pub fn reached(self, window: Window) -> Option<Self> {
        let to_ms = self.to_ms.min(window.to_ms);
        (self.from_ms <= to_ms).then_some(Self { to_ms, ..self })
    }
}

impl Live {
    /// As it is if its owner is presumed alive.
    pub fn held(&self, window: Window) -> Option<Self> {
        if self.phase == Phase::Interrupted {
            return None;
        }
        let lease_end = match self.lease_end {
            Some(end) => Some(end.not_reached(window)?),
            None => None,
        };
        Some(Self {
            lease_end,
            ..self.clone()
        })
    }

    /// As it is if its owner is gone or late.
    pub fn unheld(&self, window: Window) -> Option<Self> {
        if self.phase == Phase::Interrupted {
            return Some(self.clone());
        }
        let lease_end = Some(self.lease_end?.reached(window)?);
        Some(Self {
            lease_end,
            ..self.clone()
        })
    }

    pub fn is_owned_by(&self, token: u64) -> bool {
        self.token == Some(token) && self.phase == Phase::Owned
    }

    pub fn is_of_ticket(&self, ticket: u64) -> bool {
        self.token == Some(ticket) || self.ticket == Some(ticket)
    }

    /// The next attempt, with a token that is still to be filled in.
    pub fn next_attempt(&self, ticket: Option<u64>, lease_end: Option<Range>) -> Self {
        Self {
            attempt: self.attempt + 1,
            token: None,
            token_above: 0,
            lost_grant: None,
            ticket,
            phase: Phase::Owned,
            lease_end,
            ..self.clone()
        }
    }

    pub fn interrupted(&self) -> Self {
        Self {
            phase: Phase::Interrupted,
            lease_end: None,
            lost_grant: None,
            ..self.clone()
        }
    }
}

impl Completed {
    pub fn alive(&self, window: Window) -> Option<Self> {
        let expires = self.expires.not_reached(window)?;
        Some(Self {
            expires,
            ..self.clone()
        })
    }

    pub fn is_expired(&self, window: Window) -> bool {
        self.expires.reached(window).is_some()
    }

    /// As it is if this is what a caller saw of it.
    pub fn seen(&self, seen: Seen) -> Option<Self> {
        let is_same =
            (self.attempt, self.token, self.response) == (seen.attempt, seen.token, seen.response);
        let expires = match seen.expires_ms {
            0 => self.expires,
            at_ms => Range {
                from_ms: at_ms,
                to_ms: at_ms,
            },
        };
        let is_within =
            self.expires.from_ms <= expires.from_ms && expires.to_ms <= self.expires.to_ms;
        (is_same && is_within).then(|| Self {
            expires,
            ..self.clone()
        })
    }
}
