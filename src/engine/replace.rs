//! `replace`: a result is stored, changed or removed in one step, without an owner.
//!
//! For values that others set and overwrite, where a claim and a completion would be two steps with a
//! crash in between. One record does it: a completion under the token of the result whose place it
//! takes, or under its own. A crash leaves the old result or the new one, never neither.
//!
//! What is written depends on what is there, so it is decided between a look and a second one under
//! the lock: [`Engine::replace`] asks again where the key changed meanwhile. All calls on one key are
//! therefore one after the other, in the order of their records.
//!
//! **What a shorter life hides.** A result may have been copied by maintenance, and a copy counts until
//! its own deadline. One that took its place and ends earlier has to outlast it, or the old one would
//! answer again; so it says until when ([`Record::hides_until_ms`](crate::log::record::Record)), is
//! kept that long, and a key is removed for good before anybody claims it.

use bytes::Bytes;

use crate::engine::finish::Removed;
use crate::engine::lookup::{Examined, Found, Stored, check_open};
use crate::engine::{Engine, Promise, RoomError};
use crate::error::ClaimError;
use crate::fingerprint::Fingerprint;
use crate::index::stripe::Candidates;
use crate::index::{Live, Phase, Slot};
use crate::key::Key;
use crate::log::append::NoSpace;
use crate::log::record::{Contents, Kind, words_for};
use crate::sync::Ordering;

/// What is to become of a key.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// It stays as it is.
    #[cfg_attr(
        not(any(feature = "serve", feature = "redis")),
        allow(dead_code, reason = "the tests always change something")
    )]
    Keep,
    /// It is completed with this response, until this store time in ms.
    Store { response: Bytes, deadline_ms: u64 },
    /// It is absent.
    #[cfg_attr(
        not(any(test, feature = "serve")),
        allow(dead_code, reason = "an import removes nothing")
    )]
    Remove,
}

/// Why nothing was replaced.
#[cfg_attr(
    not(any(feature = "serve", feature = "redis")),
    allow(dead_code, reason = "the tests only look whether something was")
)]
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// The key is pending or interrupted: it belongs to whoever claimed it.
    Claimed { attempt: u32 },
    /// The response is over the store's limit.
    TooLarge { len: usize, max: usize },
    /// Key limits, room, damage, availability.
    Claim(ClaimError),
}

impl<E: Into<ClaimError>> From<E> for ReplaceError {
    fn from(error: E) -> Self {
        Self::Claim(error.into())
    }
}

/// A key that nobody has claimed, as it was seen.
struct Seen {
    hash: u64,
    candidates: Candidates,
    found: Option<Found>,
    is_expired: bool,
}

/// What one look led to.
enum Sight {
    Seen(Box<Seen>),
    /// A transition is under way.
    Changing,
    /// An expired result hides an older one that has not expired.
    Covers,
}

impl Seen {
    /// The result that answers.
    fn live(&self) -> Option<&Found> {
        self.found.as_ref().filter(|_| !self.is_expired)
    }
}

impl Engine {
    /// Lets `decide` say what becomes of a key, given the result that it has and the store time in ms,
    /// and does it in one step. It may be asked several times, never under a lock; what it said last
    /// was done.
    ///
    /// Returns the position that must be durable before anybody acts on the answer, and does not wait
    /// for it.
    pub(crate) async fn replace(
        &self,
        key: &Key,
        mut decide: impl FnMut(Option<&Stored>, u64) -> Next,
    ) -> Result<u64, ReplaceError> {
        self.check_process()?;
        key.check(self.settings.key_part_bytes_max)
            .map_err(ClaimError::from)?;
        let (mut promise, mut rest) = (None, None);
        loop {
            let now_ms = self.time.now_ms();
            let seen = self.seen(key, now_ms).await?;
            let next = decide(seen.live().map(|found| &found.stored), now_ms);
            let end = seen.live().map(|found| found.stored.end);
            let words = match (&next, end) {
                (Next::Keep, Some(end)) => return Ok(end),
                // What was removed a moment ago must not come back.
                (Next::Keep | Next::Remove, None) => return Ok(self.log.tail()),
                (Next::Remove, Some(_)) => words_for(key.as_bytes().len(), 0, 0, 0),
                (Next::Store { response, .. }, _) => self.words_of(key, response)?,
            };
            self.check_writable()?;
            if !self.hold_room(&mut promise, words) {
                drop(promise.take());
                promise = Some(self.room_for(words).await?);
                // What there was a room for may not be what there is.
                continue;
            }
            let written = match &next {
                Next::Store {
                    response,
                    deadline_ms,
                } => self.store(
                    key,
                    &seen,
                    response,
                    *deadline_ms,
                    now_ms,
                    &mut promise,
                    &mut rest,
                ),
                Next::Remove | Next::Keep => self.remove(key, &seen, now_ms, &mut promise),
            };
            match written? {
                Written::Ending(end) => return Ok(end),
                Written::Not => {}
                Written::Rest(words) => rest = Some(self.room_for(words).await?),
            }
        }
    }

    async fn room_for(&self, words: u64) -> Result<Promise<'_>, ClaimError> {
        self.promise(words)
            .await
            .map_err(RoomError::into::<ClaimError>)
    }

    /// The key once no transition of it is under way.
    async fn seen(&self, key: &Key, now_ms: u64) -> Result<Seen, ReplaceError> {
        let hash = self.hash(key);
        loop {
            match self.see(hash, key, now_ms)? {
                Sight::Seen(seen) => return Ok(*seen),
                Sight::Changing => self.settled(hash, key).await?,
                Sight::Covers => self.uncover(key).await?,
            }
        }
    }

    fn see(&self, hash: u64, key: &Key, now_ms: u64) -> Result<Sight, ReplaceError> {
        let (candidates, located) = {
            let mut stripe = self.index.lock(hash);
            check_open(&stripe)?;
            match stripe.live(hash, key) {
                Some(live) if live.phase == Phase::Changing => return Ok(Sight::Changing),
                Some(live) => {
                    let attempt = live.attempt;
                    return Err(ReplaceError::Claimed { attempt });
                }
                None => {
                    let candidates = stripe.candidates(hash);
                    let located = self.locate(&candidates);
                    (candidates, located)
                }
            }
        };
        let (found, is_expired) = match self.examine(&located, key, now_ms)? {
            Examined::Expired(found) if now_ms < found.hides_until_ms => return Ok(Sight::Covers),
            Examined::Expired(found) => (Some(found), true),
            Examined::Found(found) => (Some(found), false),
            Examined::NotFound => (None, false),
        };
        Ok(Sight::Seen(Box::new(Seen {
            hash,
            candidates,
            found,
            is_expired,
        })))
    }

    fn words_of(&self, key: &Key, response: &Bytes) -> Result<u64, ReplaceError> {
        let (len, max) = (response.len(), self.settings.response_bytes_max);
        if len > max {
            return Err(ReplaceError::TooLarge { len, max });
        }
        // With the note of what it hides, should there be one.
        Ok(words_for(key.as_bytes().len(), 0, 8, len))
    }

    /// Marks a key as changing if it still is as it was seen.
    fn begin(&self, key: &Key, seen: &Seen, now_ms: u64) -> Result<bool, ClaimError> {
        let mut stripe = self.index.lock(seen.hash);
        check_open(&stripe)?;
        if stripe.live(seen.hash, key).is_some() || stripe.candidates(seen.hash) != seen.candidates
        {
            return Ok(false);
        }
        if seen.found.is_none() {
            self.places
                .take(key.scope())
                .inspect_err(|reached| self.counters.count_limit(reached.limit))?;
        }
        let mut live = Live::claiming(seen.hash, key.clone(), Fingerprint::none(), now_ms);
        live.attempt = seen.found.as_ref().map_or(1, |found| found.stored.attempt);
        stripe.insert_live(Box::new(live));
        self.pending.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    #[expect(clippy::too_many_arguments, reason = "two of them are room")]
    fn store<'a>(
        &'a self,
        key: &Key,
        seen: &Seen,
        response: &Bytes,
        deadline_ms: u64,
        now_ms: u64,
        promise: &mut Option<Promise<'a>>,
        rest: &mut Option<Promise<'a>>,
    ) -> Result<Written, ReplaceError> {
        if !self.begin(key, seen, now_ms)? {
            return Ok(Written::Not);
        }
        let change = self.change(seen.hash, key);
        let old = seen.live();
        let hidden_ms = old.map_or(0, |old| old.stored.expires_ms.max(old.hides_until_ms));
        let note = hidden_ms.to_le_bytes();
        let created_ms = old.map_or(now_ms, |old| old.stored.created_ms);
        let ended_ms = now_ms.max(created_ms);
        let contents = Contents {
            token: old.map_or(0, |old| old.stored.token),
            attempt: old.map_or(1, |old| old.stored.attempt),
            started_ms: ended_ms,
            deadline_ms,
            checkpoint: if hidden_ms > deadline_ms { &note } else { &[] },
            response: Some(response),
            ..Contents::unowned(Kind::Complete, key, created_ms, ended_ms)
        };
        drop(rest.take());
        let (appended, segment) = match self.log.append_held(&contents) {
            Ok(appended) => appended,
            Err(NoSpace { words }) => {
                // The rest of the segment is too small, and to be given up it must be paid for.
                change.retire(|_| seen.found.is_none());
                return Ok(Written::Rest(words));
            }
        };
        if let Some(promise) = promise {
            promise.spend(contents.words());
        }
        segment.worth().add(deadline_ms, contents.words());
        if let Some(old) = old {
            self.discount(old.slot, old.stored.expires_ms);
        } else if seen.is_expired {
            self.counters.expired.add();
        }
        self.counters.count_finish(true);
        change.retire(|stripe| {
            if let Some(old) = &seen.found {
                stripe.remove_completed(old.slot);
            }
            let slot = Slot::new(seen.hash, appended.segment, appended.offset);
            stripe.insert_completed(slot);
            false
        });
        Ok(Written::Ending(appended.end))
    }

    fn remove(
        &self,
        key: &Key,
        seen: &Seen,
        now_ms: u64,
        promise: &mut Option<Promise<'_>>,
    ) -> Result<Written, ReplaceError> {
        let (Some(found), Some(promise)) = (seen.live(), promise) else {
            return Ok(Written::Not);
        };
        if !self.begin(key, seen, now_ms)? {
            return Ok(Written::Not);
        }
        let removed = Removed::of_result(found);
        let end = self.write_removal(key, seen.hash, &removed, now_ms, Some(found.slot), promise);
        Ok(Written::Ending(end))
    }
}

/// What came of trying to write.
enum Written {
    /// A record was appended that ends at this position.
    Ending(u64),
    /// The key is not as it was seen.
    Not,
    /// So many words at the end of the segment must be free to be left unused.
    Rest(u64),
}

#[cfg(all(test, not(any(oncekey_loom, oncekey_shuttle))))]
mod tests;
