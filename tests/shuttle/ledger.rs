//! What the callers of a store were told, and what they may be told after that.
//!
//! Notes are taken without a scheduling point, so a note is one step with the call before it or the
//! call after it: what gives a key away is noted before it happens, what gets one after.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oncekey::{Key, KeyState, Replay, Saved, Token};

/// A stored response, or that there is none.
pub type Stored = Option<Vec<u8>>;

/// What is known of every key at a moment.
pub type Snapshot = BTreeMap<Key, Entry>;

/// What is known of a key.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Tokens of all guards that were handed out.
    granted: BTreeSet<Token>,
    /// The guard that holds the key for sure, where leases do not run out.
    holder: Option<Token>,
    /// The newest guard ended without saying that nothing happened.
    abandoned: bool,
    /// Responses that completion was tried with.
    tried: BTreeMap<Token, Vec<Stored>>,
    release_tried: BTreeSet<Token>,
    released: BTreeSet<Token>,
    /// The result that somebody was told.
    settled: Option<(Token, Stored)>,
    /// Somebody may have removed it.
    forgotten: bool,
    /// Somebody was told that it was removed, up to this token.
    removed: Option<Token>,
}

/// How much is certain about the owners of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Nobody is robbed of a key: there are neither leases that end nor operators.
    Exclusive,
    /// An owner may have lost its key without knowing.
    Robbed,
}

/// What everybody was told so far.
#[derive(Debug)]
pub struct Ledger {
    owners: Owners,
    keys: Mutex<Snapshot>,
}

impl Ledger {
    pub fn new(owners: Owners) -> Self {
        Self {
            owners,
            keys: Mutex::default(),
        }
    }

    pub fn owners(&self) -> Owners {
        self.owners
    }

    pub fn snapshot(&self) -> Snapshot {
        self.keys().clone()
    }

    /// How many guards were handed out.
    pub fn guards(&self) -> u64 {
        self.keys()
            .values()
            .map(|entry| entry.granted.len() as u64)
            .sum()
    }

    /// A caller got a guard; `afresh` if it was told that nobody had the key before.
    pub fn granted(&self, key: &Key, token: Token, afresh: bool) {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        assert!(entry.granted.insert(token), "{token} was handed out twice");
        if entry.forgotten {
            return;
        }
        if let Some((settled, _)) = &entry.settled {
            assert!(token < *settled, "{token} of a key completed by {settled}");
        }
        if self.owners == Owners::Exclusive {
            assert_eq!(entry.holder, None, "{token} came on top");
            assert_eq!(entry.settled, None, "{token} of a completed key");
            assert!(
                !(afresh && entry.abandoned),
                "{token} was not told of the attempt before it"
            );
            entry.holder = Some(token);
        }
        entry.abandoned = true;
    }

    /// The caller is about to drop its guard.
    pub fn gives_up(&self, key: &Key, token: Token) {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        entry.let_go(token);
        entry.abandoned = true;
    }

    /// The caller is about to complete with this response. Gives the newest token that anybody has
    /// been told of by now: if it is another one, that completion must fail.
    pub fn completes(&self, key: &Key, token: Token, response: &Stored) -> Token {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        entry.let_go(token);
        entry.abandoned = true;
        entry.tried.entry(token).or_default().push(response.clone());
        entry.newest().max(token)
    }

    /// The caller is about to release the key; the newest token, as for `completes`.
    pub fn releases(&self, key: &Key, token: Token) -> Token {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        entry.let_go(token);
        entry.abandoned = false;
        entry.release_tried.insert(token);
        entry.newest().max(token)
    }

    /// The release was acknowledged.
    pub fn released(&self, key: &Key, token: Token) {
        self.keys()
            .entry(key.clone())
            .or_default()
            .released
            .insert(token);
    }

    /// Somebody is about to remove the key; the newest token that anybody has been told of by now.
    pub fn forgets(&self, key: &Key) -> Token {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        entry.forgotten = true;
        entry.newest()
    }

    /// The removal was acknowledged: nothing up to this token may answer any more.
    pub fn forgot(&self, key: &Key, newest: Token) {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        entry.removed = entry.removed.max(Some(newest));
    }

    /// Nobody but the caller uses the store, which says this of a key.
    pub fn check_removed(&self, key: &Key, token: Token) {
        let keys = self.keys();
        keys.get(key).inspect(|entry| entry.check_removed(token));
    }

    /// Whether a result was told that stays.
    pub fn is_settled(&self, key: &Key) -> bool {
        let keys = self.keys();
        keys.get(key)
            .is_some_and(|entry| entry.settled.is_some() && !entry.forgotten)
    }

    /// Somebody was told a result.
    pub fn told(&self, key: &Key, saved: &Saved) {
        let mut keys = self.keys();
        let entry = keys.entry(key.clone()).or_default();
        let result = (saved.token(), response(saved));
        entry.check_result(&result);
        entry.settled = Some(result);
    }

    fn keys(&self) -> MutexGuard<'_, Snapshot> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks what a reopened store says of a key. `known` is what callers had been told when the
    /// store ended, all of which must have survived.
    pub fn check_reopened(&self, known: &Snapshot, key: &Key, state: &KeyState) {
        let all = self.snapshot();
        let nothing = Entry::default();
        let (known, all) = (
            known.get(key).unwrap_or(&nothing),
            all.get(key).unwrap_or(&nothing),
        );
        match state {
            KeyState::Completed(saved) => {
                all.check_result(&(saved.token(), response(saved)));
                known.check_removed(saved.token());
            }
            KeyState::Interrupted { token, .. } => known.check_removed(*token),
            _ => {}
        }
        if all.forgotten {
            return;
        }
        let newest = known.newest();
        match state {
            KeyState::Absent => {
                assert_eq!(known.settled, None, "a result is lost");
                let is_released = all.release_tried.iter().any(|token| *token >= newest);
                assert!(
                    known.granted.is_empty() || is_released,
                    "the claim of {newest} is lost"
                );
            }
            KeyState::Interrupted { token, .. } => {
                assert_eq!(known.settled, None, "a result is lost");
                assert!(!known.released.contains(token), "{token} is back");
                assert!(
                    *token >= newest || known.released.contains(&newest),
                    "{newest} is lost, {token} is back"
                );
            }
            KeyState::Completed(saved) => {
                let result = (saved.token(), response(saved));
                assert!(
                    !known.released.contains(&result.0),
                    "a released key is back"
                );
                if let Some(settled) = &known.settled {
                    assert_eq!(&result, settled, "the result is another one");
                }
            }
            KeyState::InProgress { token, .. } => panic!("{token} holds a key of a dead process"),
            other => panic!("{other:?}"),
        }
    }
}

impl Entry {
    fn let_go(&mut self, token: Token) {
        if self.holder == Some(token) {
            self.holder = None;
        }
    }

    fn newest(&self) -> Token {
        self.granted.last().copied().unwrap_or(Token::from_u64(0))
    }

    fn check_removed(&self, token: Token) {
        assert!(
            self.removed.is_none_or(|removed| removed < token),
            "{token} is back, of a key that was removed"
        );
    }

    fn check_result(&self, result: &(Token, Stored)) {
        let (token, stored) = result;
        let was_tried = self
            .tried
            .get(token)
            .is_some_and(|tried| tried.contains(stored));
        assert!(was_tried, "nobody completed {token} like that");
        assert!(!self.released.contains(token), "{token} was released");
        if let Some(settled) = &self.settled
            && !self.forgotten
        {
            assert_eq!(result, settled, "a result changed");
        }
    }
}

fn response(saved: &Saved) -> Stored {
    match saved.by_scope().expect("stored for no principal") {
        Replay::Response(response) => Some(response.to_vec()),
        Replay::NotStored => None,
    }
}
