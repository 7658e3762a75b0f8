//! The sequential specification: one key as the documentation describes it, as a function from a
//! state, a call and its answer to the states that may follow. No state means that the answer is
//! wrong there.
//!
//! ```text
//!   Absent ──claim──▶ Live { owned | detached | interrupted } ──complete──▶ Completed
//! ```
//!
//! Where a call's outcome is unknown more than one state may follow.

use crate::history::{Answer, Call, End, Operation, Seen, What, Window};
use crate::state::{Completed, Key, Live, Phase, Range, State};

/// One state, or none.
type Next = Option<State>;

impl Key {
    /// The states in which `operation` may leave the key if it takes effect now.
    pub fn step(&self, operation: &Operation, with_power: bool) -> Vec<Self> {
        let (call, window) = (&operation.call, operation.window);
        let states = match operation.answer {
            None | Some(Answer::Cut) => {
                let mut states = self.unknown(call, operation.id, window);
                states.push(self.state.clone());
                states
            }
            // A grant that it still holds would be its answer.
            Some(_) if is_claim(call.what) && self.is_granted_to(operation.id) => Vec::new(),
            Some(answer) => self.answered(call, answer, window),
        };
        let acknowledged = operation.answer.is_some_and(|answer| {
            call.sync && is_durable(call.what, answer) && answer != Answer::Cut
        });
        let granted = match operation.answer {
            Some(Answer::Started { token, .. } | Answer::Interrupted { token, .. }) => token,
            _ => 0,
        };
        states
            .into_iter()
            .filter(|_| granted == 0 || granted > self.highest_token)
            .map(|state| self.followed_by(state, acknowledged, with_power))
            .collect()
    }

    /// The states in which a call leaves the key that is granted it and is not answered by that, but
    /// loses it again: to an operator, so that no call can do so for ever.
    pub fn granted_in_vain(&self, operation: &Operation, with_power: bool) -> Vec<Self> {
        if !operation.call.may_lose_its_grant() || self.is_granted_to(operation.id) {
            return Vec::new();
        }
        self.unknown(&operation.call, operation.id, operation.window)
            .into_iter()
            .map(|state| self.followed_by(state, false, with_power))
            .collect()
    }

    fn followed_by(&self, state: State, acknowledged: bool, with_power: bool) -> Self {
        let token = match &state {
            State::Live(live) => live.token.unwrap_or(0),
            State::Completed(done) => done.token,
            State::Absent => 0,
        };
        let mut older = Vec::new();
        if with_power && !acknowledged {
            older.clone_from(&self.older);
            if record_of(&self.state) != record_of(&state) {
                let before = recovered(&self.state);
                if !older.contains(&before) {
                    older.push(before);
                }
            }
        }
        Self {
            state,
            highest_token: self.highest_token.max(token),
            older,
        }
    }

    /// The states in which the next open may find the key.
    pub fn ended(&self, end: End) -> Vec<Self> {
        let mut found = vec![recovered(&self.state)];
        if end == End::Power {
            found.extend(self.older.iter().cloned());
        }
        found
            .into_iter()
            .map(|state| Self {
                state,
                highest_token: self.highest_token,
                older: Vec::new(),
            })
            .collect()
    }

    /// The states that follow if a call without an answer took effect.
    fn unknown(&self, call: &Call, id: u64, window: Window) -> Vec<State> {
        let to_nobody_yet = |mut live: Live| {
            live.token = None;
            live.token_above = self.highest_token;
            live.lost_grant = Some(id);
            State::Live(live)
        };
        let next: Next = match call.what {
            What::Claim { request, lease_ms } => self
                .started(request, granted(call, lease_ms, window), window)
                .or_else(|| self.taken_over(request, None, granted(call, lease_ms, window), window))
                .map(to_nobody_yet),
            What::Resume {
                ticket, lease_ms, ..
            } => {
                let end = granted(call, lease_ms, window);
                // Which of both it was depends on when it was.
                return [
                    self.resumed(ticket, end, window),
                    self.resumed_late(ticket, end, window),
                ]
                .into_iter()
                .flatten()
                .map(to_nobody_yet)
                .collect();
            }
            What::Complete {
                token,
                response,
                retention_ms,
            } => self.completed(token, response, Range::after(window, retention_ms)),
            What::Release { token } => self.owned(token).map(|_| State::Absent),
            What::Checkpoint { token, note } => self.noted(token, note),
            What::Renew { token, lease_ms } => self.renewed(token, lease(lease_ms, window)),
            What::Drop { token } => self
                .owned(token)
                .map(|live| State::Live(live.interrupted())),
            What::Detach { token } => self.detached(token),
            What::Interrupt { token } => self.interrupted(token),
            What::Forget { force } => match &self.state {
                State::Live(_) if !force => None,
                _ => Some(State::Absent),
            },
            What::Get | What::Flush | What::Undo { .. } | What::HandOut { .. } => None,
        };
        next.into_iter().collect()
    }

    fn answered(&self, call: &Call, answer: Answer, window: Window) -> Vec<State> {
        let next: Next = match (call.what, answer) {
            (What::Claim { request, lease_ms }, Answer::Started { attempt: 1, token }) => self
                .started(request, granted(call, lease_ms, window), window)
                .map(|live| with_token(live, token)),
            (
                What::Claim { request, lease_ms },
                Answer::Interrupted {
                    attempt,
                    token,
                    note,
                },
            ) => self
                .taken_over(request, None, granted(call, lease_ms, window), window)
                .filter(|live| (live.attempt, live.note) == (attempt, note))
                .map(|live| with_token(live, token)),
            (What::Claim { request, .. }, Answer::InProgress { attempt }) => self
                .live()
                .filter(|live| (live.request, live.attempt) == (request, attempt))
                .and_then(|live| live.held(window))
                .map(State::Live),
            (
                What::Claim { request, .. } | What::Resume { request, .. },
                Answer::Completed(seen),
            ) => self.replayed(Some(request), seen, window),
            (What::Claim { request, .. }, Answer::Mismatch { attempt, completed }) => {
                self.mismatched(request, attempt, completed, window)
            }
            (
                What::Resume {
                    ticket, lease_ms, ..
                },
                Answer::Started { attempt, token },
            ) => self
                .resumed(ticket, granted(call, lease_ms, window), window)
                .filter(|live| live.attempt == attempt)
                .map(|live| with_token(live, token)),
            (
                What::Resume {
                    ticket, lease_ms, ..
                },
                Answer::Interrupted {
                    attempt,
                    token,
                    note,
                },
            ) => self
                .resumed_late(ticket, granted(call, lease_ms, window), window)
                .filter(|live| (live.attempt, live.note) == (attempt, note))
                .map(|live| with_token(live, token)),
            (What::Resume { ticket, .. }, Answer::InProgress { attempt }) => self
                .live()
                .filter(|live| live.attempt == attempt && live.is_of_ticket(ticket))
                .filter(|live| live.phase != Phase::Detached || live.token != Some(ticket))
                .and_then(|live| live.held(window))
                .map(State::Live),
            (
                What::Resume {
                    ticket, request, ..
                },
                Answer::LeaseLost { new_attempt },
            ) => self.ticket_lost(ticket, request, new_attempt, window),
            (
                What::Complete {
                    token,
                    response,
                    retention_ms,
                },
                Answer::Completed(seen),
            ) => match self.completed(token, response, Range::after(window, retention_ms)) {
                Some(State::Completed(done)) => done.seen(seen).map(State::Completed),
                _ => None,
            },
            (What::Release { token }, Answer::Done) => self.owned(token).map(|_| State::Absent),
            (What::Checkpoint { token, note }, Answer::Done) => self.noted(token, note),
            (What::Renew { token, lease_ms }, Answer::Done) => {
                self.renewed(token, lease(lease_ms, window))
            }
            (What::Detach { token }, Answer::Done) => self.detached(token),
            (
                What::Complete { token, .. }
                | What::Release { token }
                | What::Checkpoint { token, .. }
                | What::Renew { token, .. }
                | What::Detach { token },
                Answer::LeaseLost { new_attempt },
            ) => self.guard_lost(token, new_attempt),
            (What::Drop { token }, Answer::Done) => Some(match self.owned(token) {
                Some(live) => State::Live(live.interrupted()),
                None => self.state.clone(),
            }),
            (What::Interrupt { token }, Answer::Done) => self.interrupted(token),
            (What::Interrupt { token }, Answer::NotHeld) => {
                let is_held = self.interrupted(token).is_some();
                let is_unsure = self.live().is_some_and(|live| live.token.is_none());
                (!is_held || is_unsure).then(|| self.state.clone())
            }
            (What::Forget { force }, Answer::Removed(true)) => match &self.state {
                State::Live(_) => force.then_some(State::Absent),
                State::Completed(done) => done.alive(window).map(|_| State::Absent),
                State::Absent => None,
            },
            (What::Forget { .. }, Answer::Removed(false)) => {
                self.is_free(window).then_some(State::Absent)
            }
            (What::Forget { force: false }, Answer::Pending { attempt }) => self
                .live()
                .filter(|live| live.attempt == attempt)
                .map(|live| State::Live(live.clone())),
            (What::Get, Answer::Absent) => self.is_free(window).then(|| self.expired(window)),
            (What::Get, Answer::Held { attempt, token }) => {
                self.looked(attempt, token, |live| live.held(window))
            }
            (What::Get, Answer::Waiting { attempt, token }) => {
                self.looked(attempt, token, |live| live.unheld(window))
            }
            (What::Get, Answer::Completed(seen)) => self.replayed(None, seen, window),
            (What::Flush, Answer::Done)
            | (What::Claim { .. } | What::Resume { .. }, Answer::Refused) => {
                Some(self.state.clone())
            }
            (What::Undo { claim }, Answer::Done) => return self.undone(claim),
            (
                What::HandOut {
                    claim,
                    token,
                    lease_ms,
                },
                Answer::Done,
            ) => self.handed_out(claim, token, lease(lease_ms, window)),
            _ => None,
        };
        next.into_iter().collect()
    }

    fn live(&self) -> Option<&Live> {
        match &self.state {
            State::Live(live) => Some(live),
            _ => None,
        }
    }

    /// Whether this may be the owner's token. A grant whose answer was lost shows it to others first.
    fn may_have(live: &Live, token: u64) -> bool {
        match live.token {
            Some(known) => known == token,
            None => token > live.token_above,
        }
    }

    /// The key in the hand of this guard.
    fn owned(&self, token: u64) -> Option<Live> {
        let live = self.live()?;
        (live.phase == Phase::Owned && Self::may_have(live, token)).then(|| Live {
            token: Some(token),
            token_above: 0,
            ..live.clone()
        })
    }

    /// Whether the key may be free.
    fn is_free(&self, window: Window) -> bool {
        match &self.state {
            State::Absent => true,
            State::Completed(done) => done.is_expired(window),
            State::Live(_) => false,
        }
    }

    /// The state, known to be over if it was a result. What has expired does not come back.
    fn expired(&self, window: Window) -> State {
        match &self.state {
            State::Completed(done) => match done.expires.reached(window) {
                Some(expires) => State::Completed(Completed {
                    expires,
                    ..done.clone()
                }),
                None => self.state.clone(),
            },
            other => other.clone(),
        }
    }

    fn started(&self, request: u8, lease_end: Option<Range>, window: Window) -> Option<Live> {
        self.is_free(window).then_some(Live {
            request,
            attempt: 1,
            token: None,
            token_above: 0,
            lost_grant: None,
            ticket: None,
            phase: Phase::Owned,
            lease_end,
            note: 0,
        })
    }

    fn taken_over(
        &self,
        request: u8,
        ticket: Option<u64>,
        lease_end: Option<Range>,
        window: Window,
    ) -> Option<Live> {
        let live = self.live().filter(|live| live.request == request)?;
        let late = live.unheld(window)?;
        Some(late.next_attempt(ticket, lease_end))
    }

    /// A ticket handed the same attempt on.
    fn resumed(&self, ticket: u64, lease_end: Option<Range>, window: Window) -> Option<Live> {
        let live = self.live()?;
        if live.phase != Phase::Detached || live.token != Some(ticket) {
            return None;
        }
        Some(Live {
            token: None,
            token_above: 0,
            ticket: Some(ticket),
            phase: Phase::Owned,
            lease_end,
            ..live.held(window)?
        })
    }

    fn resumed_late(&self, ticket: u64, lease_end: Option<Range>, window: Window) -> Option<Live> {
        let live = self.live().filter(|live| live.is_of_ticket(ticket))?;
        self.taken_over(live.request, Some(ticket), lease_end, window)
    }

    fn ticket_lost(
        &self,
        ticket: u64,
        request: u8,
        new_attempt: Option<u32>,
        window: Window,
    ) -> Next {
        let is_right = match &self.state {
            State::Live(live) => !live.is_of_ticket(ticket) && new_attempt == Some(live.attempt),
            State::Completed(done) if done.request != request => new_attempt.is_none(),
            _ => self.is_free(window) && new_attempt.is_none(),
        };
        is_right.then(|| self.expired(window))
    }

    fn guard_lost(&self, token: u64, new_attempt: Option<u32>) -> Next {
        let is_right = match &self.state {
            State::Live(live) if live.is_owned_by(token) => false,
            State::Live(live) if live.token == Some(token) => new_attempt.is_none(),
            State::Live(live) => new_attempt == Some(live.attempt),
            _ => new_attempt.is_none(),
        };
        is_right.then(|| self.state.clone())
    }

    fn completed(&self, token: u64, response: u64, expires: Range) -> Next {
        let live = self.owned(token)?;
        Some(State::Completed(Completed {
            request: live.request,
            attempt: live.attempt,
            token,
            response,
            expires,
        }))
    }

    fn noted(&self, token: u64, note: u64) -> Next {
        let live = self.owned(token)?;
        Some(State::Live(Live { note, ..live }))
    }

    fn renewed(&self, token: u64, lease_end: Option<Range>) -> Next {
        let live = self.owned(token)?;
        Some(State::Live(Live { lease_end, ..live }))
    }

    fn detached(&self, token: u64) -> Next {
        let live = self.owned(token)?;
        Some(State::Live(Live {
            phase: Phase::Detached,
            ..live
        }))
    }

    fn interrupted(&self, token: u64) -> Next {
        let live = self.live()?;
        (Self::may_have(live, token) && live.phase != Phase::Interrupted).then(|| {
            State::Live(Live {
                token: Some(token),
                token_above: 0,
                ..live.interrupted()
            })
        })
    }

    fn replayed(&self, request: Option<u8>, seen: Seen, window: Window) -> Next {
        match &self.state {
            State::Completed(done) if request.is_none_or(|request| request == done.request) => {
                let seen = done.seen(seen)?;
                seen.alive(window).map(State::Completed)
            }
            _ => None,
        }
    }

    fn mismatched(&self, request: u8, attempt: u32, completed: bool, window: Window) -> Next {
        match &self.state {
            State::Live(live) => (!completed && live.request != request && live.attempt == attempt)
                .then(|| self.state.clone()),
            State::Completed(done) => {
                (completed && done.request != request && done.attempt == attempt)
                    .then(|| done.alive(window).map(State::Completed))?
            }
            State::Absent => None,
        }
    }

    fn looked(&self, attempt: u32, token: u64, judge: impl FnOnce(&Live) -> Option<Live>) -> Next {
        let live = self.live().filter(|live| live.attempt == attempt)?;
        let mut live = Self::may_have(live, token).then(|| judge(live))??;
        live.token = Some(token);
        live.token_above = 0;
        Some(State::Live(live))
    }

    fn is_granted_to(&self, claim: u64) -> bool {
        self.live()
            .is_some_and(|live| live.lost_grant == Some(claim) && live.phase == Phase::Owned)
    }

    /// The guard is handed out, if it still holds the key, and its lease begins.
    fn handed_out(&self, claim: u64, token: u64, lease_end: Option<Range>) -> Next {
        let live = self.live()?;
        let is_its = live.token == Some(token) || live.lost_grant == Some(claim);
        (is_its && live.phase == Phase::Owned).then(|| {
            State::Live(Live {
                lease_end,
                ..live.clone()
            })
        })
    }

    /// A claim that nobody saw is taken back: nothing ran under it.
    fn undone(&self, claim: u64) -> Vec<State> {
        match self.live() {
            Some(live) if live.lost_grant == Some(claim) && live.phase == Phase::Owned => {
                let interrupted = State::Live(live.interrupted());
                if live.attempt == 1 && live.ticket.is_none() {
                    // Where the release can't be written the key is interrupted.
                    vec![State::Absent, interrupted]
                } else {
                    vec![interrupted]
                }
            }
            _ => vec![self.state.clone()],
        }
    }
}

fn is_claim(what: What) -> bool {
    matches!(what, What::Claim { .. } | What::Resume { .. })
}

/// What tells a key's newest record from the one before.
fn record_of(state: &State) -> Option<(bool, u32, Option<u64>, u64)> {
    match state {
        State::Absent => None,
        State::Live(live) => Some((false, live.attempt, live.token, live.note)),
        State::Completed(done) => Some((true, done.attempt, Some(done.token), done.response)),
    }
}

/// What the next open makes of this state: nobody owns anything any more.
fn recovered(state: &State) -> State {
    match state {
        State::Live(live) => State::Live(live.interrupted()),
        other => other.clone(),
    }
}

fn with_token(mut live: Live, token: u64) -> State {
    live.token = Some(token);
    live.token_above = 0;
    State::Live(live)
}

/// The lease that comes with a grant. Where the claim waits for the disk it begins later.
fn granted(call: &Call, lease_ms: u64, window: Window) -> Option<Range> {
    if call.sync {
        None
    } else {
        lease(lease_ms, window)
    }
}

fn lease(lease_ms: u64, window: Window) -> Option<Range> {
    (lease_ms != 0).then(|| Range::after(window, lease_ms))
}

/// Whether this answer rests on the key's newest record being durable, if its caller asks for that.
fn is_durable(what: What, answer: Answer) -> bool {
    let is_written = !matches!(
        what,
        What::Renew { .. }
            | What::Drop { .. }
            | What::Detach { .. }
            | What::Interrupt { .. }
            | What::Undo { .. }
            | What::HandOut { .. }
    );
    is_written && !matches!(answer, Answer::LeaseLost { .. } | Answer::Pending { .. })
}
