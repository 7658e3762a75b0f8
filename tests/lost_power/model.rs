//! The oracle: what a store may say of each key after a crash, given what its callers were told.
//!
//! For each key it keeps the states that its records stand for, oldest first. The first one is known
//! to be durable, so no crash may show an older one; from `told` on a caller knows of them, so the
//! death of the process alone may not show one before. What was begun and never acknowledged stands
//! at the end: it may be there or not. Nothing that is not in the list may ever be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

use oncekey::{Key, KeyState, Replay, Saved, Store};

/// What is known of one key.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum State {
    Absent,
    /// Claimed and not ended: interrupted, once the owner is gone.
    Pending {
        attempt: u32,
        /// None where the claim was not acknowledged, so that nobody knows its token.
        token: Option<u64>,
        /// The checkpoints that may have been kept.
        notes: Vec<Option<Body>>,
        /// Token of the ticket from which it was resumed.
        ticket: Option<u64>,
    },
    Completed {
        attempt: u32,
        token: Option<u64>,
        response: Option<Body>,
        principal: bool,
        expires_ms: u64,
    },
}

/// A response or a checkpoint, short enough for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    len: usize,
    crc: u32,
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Self {
        Self {
            len: bytes.len(),
            crc: crc32fast::hash(bytes),
        }
    }
}

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// It was killed, or closed the store: what was written is there.
    Kill,
    /// The power went: what was synced is there.
    Power,
}

/// The states of one key that may be found; never empty.
#[derive(Clone, Debug, Hash)]
struct History {
    states: Vec<State>,
    /// The newest that a caller was told of.
    told: usize,
}

/// All keys.
#[derive(Clone, Debug, Default, Hash)]
pub struct Model {
    keys: BTreeMap<u8, History>,
    /// The tokens that somebody holds or held.
    given: BTreeSet<u64>,
}

/// To whom results that carry a principal belong.
pub const PRINCIPAL: &[u8] = b"principal";

pub fn name(key: u8) -> Key {
    Key::new("scope", "operation", [b'k', key]).expect("a key")
}

impl State {
    /// What is left of it at this time.
    pub fn at(&self, now_ms: u64) -> Self {
        match self {
            Self::Completed { expires_ms, .. } if *expires_ms <= now_ms => Self::Absent,
            state => state.clone(),
        }
    }

    pub fn completed(saved: &Saved, with_principal: bool) -> Result<Self, String> {
        let replay = if with_principal {
            saved.for_principal(PRINCIPAL)
        } else {
            saved.by_scope()
        };
        let response = match replay.map_err(|error| error.to_string())? {
            Replay::Response(response) => Some(Body::from(&response[..])),
            Replay::NotStored => None,
        };
        let expires = saved.expires_at().duration_since(UNIX_EPOCH);
        Ok(Self::Completed {
            attempt: saved.attempt(),
            token: Some(saved.token().as_u64()),
            response,
            principal: with_principal,
            expires_ms: expires.map_or(0, |since| since.as_millis() as u64),
        })
    }

    fn token(&self) -> Option<u64> {
        match self {
            Self::Absent => None,
            Self::Pending { token, .. } | Self::Completed { token, .. } => *token,
        }
    }

    fn set_token(&mut self, new: u64) {
        if let Self::Pending { token, .. } | Self::Completed { token, .. } = self {
            *token = Some(new);
        }
    }

    /// Whether a look that shows `seen` may mean this state. The checkpoints are not compared: only
    /// a claim shows them.
    fn shows(&self, seen: &Self, now_ms: u64, given: &BTreeSet<u64>) -> bool {
        let same_but_for_token = match (self.at(now_ms), seen) {
            (Self::Absent, Self::Absent) => return true,
            (Self::Pending { attempt, .. }, Self::Pending { attempt: found, .. }) => {
                attempt == *found
            }
            (mut state @ Self::Completed { .. }, found @ Self::Completed { .. }) => {
                state.set_token(found.token().unwrap_or(0));
                state == *found
            }
            _ => false,
        };
        let token_fits = match (self.token(), seen.token()) {
            (Some(known), Some(found)) => known == found,
            // Its owner never had it, but it must not be one that somebody else has.
            (None, Some(found)) => !given.contains(&found),
            (_, None) => false,
        };
        same_but_for_token && token_fits
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            states: vec![State::Absent],
            told: 0,
        }
    }
}

impl Model {
    /// The greatest token that anybody holds or held.
    pub fn greatest_token(&self) -> u64 {
        self.given.last().copied().unwrap_or(0)
    }

    /// Where the key stands, for those who live.
    pub fn now(&self, key: u8, now_ms: u64) -> State {
        self.keys.get(&key).map_or(State::Absent, |history| {
            history.states[history.told].at(now_ms)
        })
    }

    /// A record is about to be written, and may be there from now on.
    pub fn may(&mut self, key: u8, state: State) {
        self.keys.entry(key).or_default().states.push(state);
    }

    /// It was not written after all.
    pub fn withdraw(&mut self, key: u8) {
        let history = self.keys.entry(key).or_default();
        assert!(history.told + 1 < history.states.len(), "nothing was begun");
        history.states.pop();
    }

    /// The caller was told of the newest state.
    pub fn told(&mut self, key: u8) {
        let history = self.keys.entry(key).or_default();
        history.told = history.states.len() - 1;
    }

    /// The caller was given this token with the newest state.
    pub fn granted(&mut self, key: u8, token: u64) {
        assert!(
            token > self.greatest_token(),
            "key {key}: token {token} after {}",
            self.greatest_token()
        );
        self.given.insert(token);
        let history = self.keys.entry(key).or_default();
        if let Some(newest) = history.states.last_mut() {
            newest.set_token(token);
        }
        self.told(key);
    }

    /// What a caller knows of the key survives from now on.
    pub fn durable(&mut self, key: u8) {
        let history = self.keys.entry(key).or_default();
        history.states.drain(..history.told);
        history.told = 0;
    }

    /// What anybody knows survives from now on.
    pub fn all_durable(&mut self) {
        let keys: Vec<u8> = self.keys.keys().copied().collect();
        keys.into_iter().for_each(|key| self.durable(key));
    }

    /// The power went: nothing counts but what is durable.
    pub fn lose_power(&mut self) {
        for history in self.keys.values_mut() {
            history.told = 0;
        }
    }

    /// The checkpoint that the newest state turned out to have.
    pub fn noted(&mut self, key: u8, note: Option<Body>) -> Result<(), String> {
        let history = self.keys.entry(key).or_default();
        match history.states.last_mut() {
            Some(State::Pending { notes, .. }) if notes.contains(&note) => {
                *notes = vec![note];
                Ok(())
            }
            other => Err(format!("key {key}: checkpoint {note:?} in {other:?}")),
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = u8> + '_ {
        self.keys.keys().copied()
    }

    /// What the store says of all keys.
    pub fn look(&self, store: &Store) -> Result<BTreeMap<u8, State>, String> {
        self.keys()
            .map(|key| Ok((key, self.look_at(store, key)?)))
            .collect()
    }

    /// The same of one key.
    pub fn look_at(&self, store: &Store, key: u8) -> Result<State, String> {
        match store.get(&name(key)) {
            Ok(KeyState::Absent) => Ok(State::Absent),
            Ok(KeyState::Interrupted { attempt, token, .. }) => Ok(State::Pending {
                attempt,
                token: Some(token.as_u64()),
                notes: Vec::new(),
                ticket: None,
            }),
            Ok(KeyState::Completed(saved)) => State::completed(&saved, saved.by_scope().is_err()),
            other => Err(format!("key {key}: {other:?} after an open")),
        }
    }

    /// Compares what is seen after an open with what may be.
    ///
    /// # Errors
    ///
    /// The complaint.
    pub fn check(
        &self,
        seen: &BTreeMap<u8, State>,
        crash: Crash,
        now_ms: u64,
    ) -> Result<(), String> {
        let mut owners: BTreeMap<u64, u8> = BTreeMap::new();
        for (key, history) in &self.keys {
            let seen = seen
                .get(key)
                .ok_or(format!("key {key} was not looked at"))?;
            let allowed = history.allowed(crash);
            if !allowed
                .iter()
                .any(|state| state.shows(seen, now_ms, &self.given))
            {
                return Err(format!("key {key} is {seen:?}, and may be {allowed:?}"));
            }
            if let Some(other) = seen.token().and_then(|token| owners.insert(token, *key)) {
                return Err(format!("keys {other} and {key} have one token: {seen:?}"));
            }
        }
        Ok(())
    }

    /// Compares the checkpoint of a key that is pending with what it may be.
    ///
    /// # Errors
    ///
    /// The complaint.
    pub fn check_note(
        &self,
        key: u8,
        seen: &State,
        crash: Crash,
        now_ms: u64,
        note: &Option<Body>,
    ) -> Result<(), String> {
        let history = self.keys.get(&key);
        let allowed = history.map_or(&[][..], |history| history.allowed(crash));
        let may_be = allowed
            .iter()
            .filter(|state| state.shows(seen, now_ms, &self.given))
            .any(|state| matches!(state, State::Pending { notes, .. } if notes.contains(note)));
        if may_be {
            return Ok(());
        }
        Err(format!(
            "key {key} has the checkpoint {note:?}, and may be {allowed:?}"
        ))
    }

    /// The answers were given by an open store: from now on they count.
    pub fn settle(&mut self, seen: &BTreeMap<u8, State>, crash: Crash, now_ms: u64) {
        for (key, seen) in seen {
            let history = self.keys.entry(*key).or_default();
            let given = &self.given;
            let fitting: Vec<State> = history
                .allowed(crash)
                .iter()
                .filter(|state| state.shows(seen, now_ms, given))
                .cloned()
                .collect();
            *history = History {
                states: vec![merged(fitting, seen)],
                told: 0,
            };
            self.given.extend(seen.token());
        }
    }
}

impl History {
    fn allowed(&self, crash: Crash) -> &[State] {
        match crash {
            Crash::Kill => &self.states[self.told..],
            Crash::Power => &self.states,
        }
    }
}

/// One state of all that look like `seen`: with every checkpoint that it may have.
fn merged(fitting: Vec<State>, seen: &State) -> State {
    let mut result = seen.clone();
    for state in fitting {
        if let (
            State::Pending { notes, ticket, .. },
            State::Pending {
                notes: more,
                ticket: from,
                ..
            },
        ) = (&mut result, state)
        {
            notes.extend(more);
            *ticket = ticket.or(from);
        }
    }
    result
}
