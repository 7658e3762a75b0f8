//! What becomes of a key, by the status of the handler's answer.

use std::ops::RangeInclusive;

use http::StatusCode;

/// What becomes of a key when its handler has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusAction {
    /// The answer is final: it is stored, and every retry gets it.
    Store,
    /// Nothing happened: the key is free again and a retry runs the handler.
    ///
    /// In a second or later attempt this status says nothing about the attempts before, so the key
    /// stays interrupted then. A handler that knows says so with
    /// [`IdempotentOperation::release`](super::IdempotentOperation::release).
    Release,
    /// Something may have happened: the key is interrupted, and a retry is treated as decided with
    /// [`OnInterrupted`](super::OnInterrupted).
    Interrupt,
}

/// Which statuses are final, which mean that nothing happened, and which leave it open.
///
/// | status | [`new`](Self::new) | [`stripe`](Self::stripe) | [`successes_only`](Self::successes_only) |
/// |---|---|---|---|
/// | 1xx | release | release | release |
/// | 2xx, 3xx | store | store | store |
/// | 401, 403, 408, 409, 425, 429 | release | release | release |
/// | other 4xx | store | store | release |
/// | 500 | interrupt | store | interrupt |
/// | other 5xx | interrupt | interrupt | interrupt |
///
/// A failed handler may have acted before it failed: that is why a 5xx does not free the key. 1xx
/// (an upgrade, to the layer) is never stored, whatever is set.
///
/// ```
/// use oncekey::http::{StatusAction, StatusPolicy};
///
/// // A wrong one-time password may be corrected under the same key; a 502 is as final as a 200.
/// let policy = StatusPolicy::new()
///     .on(400, StatusAction::Release)
///     .on(502, StatusAction::Store);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPolicy {
    /// The last that fits counts.
    rules: Vec<(RangeInclusive<u16>, StatusAction)>,
}

impl StatusPolicy {
    /// The default: see the table.
    #[allow(
        clippy::new_without_default,
        reason = "there are several, each with a name"
    )]
    pub fn new() -> Self {
        let mut policy = Self {
            rules: vec![
                (200..=499, StatusAction::Store),
                (500..=999, StatusAction::Interrupt),
            ],
        };
        for status in [401, 403, 408, 409, 425, 429] {
            policy = policy.on(status, StatusAction::Release);
        }
        policy
    }

    /// Stores a 500 as well, as Stripe does once a request began to run.
    pub fn stripe() -> Self {
        Self::new().on(500, StatusAction::Store)
    }

    /// Stores 2xx and 3xx only.
    pub fn successes_only() -> Self {
        Self::new().on_range(400..=499, StatusAction::Release)
    }

    /// Decides one status.
    #[must_use]
    pub fn on(self, status: u16, action: StatusAction) -> Self {
        self.on_range(status..=status, action)
    }

    /// Decides a range of them, such as `500..=599`. What is decided later counts.
    #[must_use]
    pub fn on_range(mut self, statuses: RangeInclusive<u16>, action: StatusAction) -> Self {
        self.rules.push((statuses, action));
        self
    }

    /// What a status leads to.
    #[must_use]
    pub fn action(&self, status: StatusCode) -> StatusAction {
        if status.is_informational() {
            return StatusAction::Release;
        }
        self.rules
            .iter()
            .rev()
            .find(|(statuses, _)| statuses.contains(&status.as_u16()))
            .map_or(StatusAction::Interrupt, |(_, action)| *action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StatusAction::{Interrupt, Release, Store};

    /// Status, and the action of the default, of `stripe` and of `successes_only`.
    const TABLE: &[(u16, [StatusAction; 3])] = &[
        (100, [Release, Release, Release]),
        (101, [Release, Release, Release]),
        (200, [Store, Store, Store]),
        (204, [Store, Store, Store]),
        (303, [Store, Store, Store]),
        (400, [Store, Store, Release]),
        (401, [Release, Release, Release]),
        (402, [Store, Store, Release]),
        (403, [Release, Release, Release]),
        (404, [Store, Store, Release]),
        (406, [Store, Store, Release]),
        (408, [Release, Release, Release]),
        (409, [Release, Release, Release]),
        (422, [Store, Store, Release]),
        (425, [Release, Release, Release]),
        (429, [Release, Release, Release]),
        (499, [Store, Store, Release]),
        (500, [Interrupt, Store, Interrupt]),
        (502, [Interrupt, Interrupt, Interrupt]),
        (503, [Interrupt, Interrupt, Interrupt]),
        (504, [Interrupt, Interrupt, Interrupt]),
        (599, [Interrupt, Interrupt, Interrupt]),
        (999, [Interrupt, Interrupt, Interrupt]),
    ];

    #[test]
    fn every_policy_decides_every_status() {
        let policies = [
            StatusPolicy::new(),
            StatusPolicy::stripe(),
            StatusPolicy::successes_only(),
        ];
        for (status, expected) in TABLE {
            let status = StatusCode::from_u16(*status).unwrap();
            for (policy, expected) in policies.iter().zip(expected) {
                assert_eq!(policy.action(status), *expected, "{status}");
            }
        }
    }

    #[test]
    fn what_is_decided_later_counts_but_an_upgrade_is_never_stored() {
        let policy = StatusPolicy::new()
            .on_range(100..=999, Store)
            .on(504, Release);
        let action = |status| policy.action(StatusCode::from_u16(status).unwrap());
        assert_eq!(
            [action(101), action(503), action(504)],
            [Release, Store, Release]
        );
    }
}
