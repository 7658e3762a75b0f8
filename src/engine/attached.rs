//! What is stored with a completion: versions of entities, and messages for the [outbox](super::outbox).
//!
//! Their keys are of domains of their own. Such a key is changed like any other: it is marked under its
//! stripe's lock, its record is read and the new one appended without it, and the new place is
//! published under it. A completion marks its own key first, then the entities in the order of their
//! hashes, so no two wait for each other in a circle. Nothing is appended unless all versions are as
//! expected; a mark that is dropped leaves its key as it was.

use crate::domain::Domain;
use crate::engine::lookup::{Examined, Found, Located, check_open};
use crate::engine::outbox::Listed;
use crate::engine::{Engine, Grant, Level, Look, RoomError};
use crate::error::{AdminError, ClaimError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::index::live::Waiters;
use crate::index::{Live, Slot};
use crate::key::{Key, KeyError};
use crate::limits::ATTACHED_MAX;
use crate::log::append::Appended;
use crate::log::record::{Contents, Kind, Record, words_for};
use crate::log::segment::Segment;
use crate::sync::{self, Ordering};
use crate::version::{AttachmentError, Expected, StaleVersion, VersionGap};

/// What is stored with a completion, all or nothing.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) versions: Vec<VersionChange>,
}

impl Attachments {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.versions.is_empty()
    }
}

/// A message to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) topic: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// A version to be set.
#[derive(Debug)]
pub(crate) struct VersionChange {
    pub(crate) entity: Vec<u8>,
    pub(crate) expected: Expected,
    pub(crate) new: u64,
}

/// Attachments with their keys, within their limits.
#[derive(Default)]
pub(super) struct Prepared<'a> {
    pub(super) messages: Vec<(Key, u64, &'a Outgoing)>,
    /// In the order of their hashes.
    versions: Vec<(Key, u64, &'a VersionChange, [u8; 8])>,
    /// Words of all their records.
    pub(super) words: u64,
}

/// Why versions could not be marked. Nothing is marked any more.
pub(super) struct Unmarked {
    pub(super) error: WriteError,
    /// What must be durable before the error is told.
    pub(super) end: Option<u64>,
    /// To be woken when the operation is not marked either.
    pub(super) waiters: Vec<Waiters>,
}

impl Unmarked {
    fn new(error: WriteError, end: Option<u64>, marks: Vec<Mark<'_>>) -> Self {
        let waiters = marks.into_iter().map(Mark::undo).collect();
        Self {
            error,
            end,
            waiters,
        }
    }
}

/// What a completion led to beside its own result.
#[derive(Default)]
pub(super) struct Published {
    /// Its messages.
    pub(super) listed: Vec<Listed>,
    /// To be woken when nothing is marked any more.
    pub(super) waiters: Vec<Waiters>,
}

/// A message's or entity's key that this call has marked as changing, with what it was.
#[must_use]
pub(super) struct Mark<'a> {
    engine: &'a Engine,
    key: Key,
    hash: u64,
    /// Its newest record, expired or not.
    pub(super) found: Option<Found>,
    is_expired: bool,
    ended: bool,
}

/// The key of an entity.
pub(crate) fn entity_key(entity: &[u8]) -> Result<Key, KeyError> {
    Ok(Key::new("", "", entity)?.within(Domain::Versions))
}

/// The version in an entity's record.
pub(crate) fn version_in(response: &[u8]) -> u64 {
    let bytes = response.first_chunk().copied();
    bytes.map_or(0, u64::from_le_bytes)
}

impl<'a> Contents<'a> {
    /// A record of a key that nobody owns any more or ever did, created and ended at these times.
    pub(super) fn unowned(kind: Kind, key: &'a Key, created_ms: u64, ended_ms: u64) -> Self {
        Self {
            kind,
            domain: key.domain(),
            is_dead: false,
            fingerprint: Fingerprint::none(),
            token: 0,
            ticket: 0,
            attempt: 1,
            created_ms,
            started_ms: created_ms,
            ended_ms,
            deadline_ms: 0,
            key: key.as_bytes(),
            key_lengths: key.lengths(),
            principal: None,
            checkpoint: &[],
            response: None,
            attached: &[],
        }
    }
}

impl Engine {
    /// The hash of the key of a record; `None` for bytes that are no key.
    pub(crate) fn hash_of(&self, record: &Record<'_>) -> Option<u64> {
        let secret = self.secret.bytes();
        Key::hash_of(record.domain, record.key, record.key_lengths, secret)
    }

    /// Makes the keys of what is attached to the completion of `grant`.
    pub(super) fn prepare<'a>(
        &self,
        grant: &Grant,
        attachments: &'a Attachments,
    ) -> Result<Prepared<'a>, AttachmentError> {
        let (messages, versions) = (&attachments.messages, &attachments.versions);
        let count = messages.len() + versions.len();
        if count > ATTACHED_MAX {
            return Err(AttachmentError::TooMany {
                count,
                max: ATTACHED_MAX,
            });
        }
        let mut prepared = Prepared::default();
        for (number, message) in messages.iter().enumerate() {
            let (len, max) = (message.payload.len(), self.settings.response_bytes_max);
            if len > max {
                return Err(AttachmentError::PayloadTooLarge { len, max });
            }
            // An owner completes once, so no two messages have one key.
            let mut id = grant.token.to_le_bytes().to_vec();
            id.extend_from_slice(&(number as u16).to_le_bytes());
            let key = Key::new(&message.topic, &message.key, id)?.within(Domain::Messages);
            key.check(self.settings.key_part_bytes_max)?;
            prepared.words += words_for(key.as_bytes().len(), 0, 0, len);
            let hash = self.hash(&key);
            prepared.messages.push((key, hash, message));
        }
        for change in versions {
            let least = match change.expected {
                Expected::Exactly(expected) => expected,
                Expected::Older => 0,
            };
            if change.new <= least {
                return Err(AttachmentError::VersionNotAbove {
                    expected: least,
                    new: change.new,
                });
            }
            let key = entity_key(&change.entity)?;
            key.check(self.settings.key_part_bytes_max)?;
            prepared.words += words_for(key.as_bytes().len(), 0, 0, 8);
            let hash = self.hash(&key);
            prepared
                .versions
                .push((key, hash, change, change.new.to_le_bytes()));
        }
        let order = |one: &(Key, u64, &VersionChange, [u8; 8])| (one.1, one.0.clone());
        prepared.versions.sort_by_key(order);
        let twice = |pair: &[(Key, u64, &VersionChange, [u8; 8])]| match pair {
            [one, other] if one.0 == other.0 => Some(one.2.entity.clone()),
            _ => None,
        };
        if let Some(entity) = prepared.versions.windows(2).find_map(twice) {
            return Err(AttachmentError::EntityTwice { entity });
        }
        Ok(prepared)
    }

    /// A record with all that is attached to it takes half a segment at most.
    pub(super) fn check_whole(
        &self,
        words: u64,
        prepared: &Prepared<'_>,
    ) -> Result<(), AttachmentError> {
        let (len, max) = (words * 8, self.settings.segment_bytes / 2);
        if prepared.words > 0 && len > max {
            return Err(AttachmentError::TooLarge { len, max });
        }
        Ok(())
    }

    /// Marks a key of the store's own, once nobody else has, and reads its newest record.
    pub(super) fn mark(&self, key: &Key, hash: u64) -> Result<Mark<'_>, WriteError> {
        let mut live = Some(Box::new(Live::claiming(
            hash,
            key.clone(),
            Fingerprint::none(),
            0,
        )));
        let mut round = 0;
        let located = loop {
            let mut stripe = self.index.lock(hash);
            check_open(&stripe)?;
            if stripe.live(hash, key).is_some() {
                // Another one's transition: a few hundred nanoseconds.
                drop(stripe);
                round += 1;
                sync::relax(round);
                continue;
            }
            let located = self.locate(&stripe.candidates(hash));
            if let Some(live) = live.take() {
                stripe.insert_live(live);
            }
            break located;
        };
        let mut mark = Mark {
            engine: self,
            key: key.clone(),
            hash,
            found: None,
            is_expired: false,
            ended: false,
        };
        match self.examine(&located, key, self.time.now_ms()) {
            Ok(Examined::Found(found)) => mark.found = Some(found),
            Ok(Examined::Expired(found)) => {
                mark.found = Some(found);
                mark.is_expired = true;
            }
            Ok(Examined::NotFound) => {}
            Err(damaged) => return Err(WriteError::Damaged(damaged)),
        }
        Ok(mark)
    }

    /// Marks the entities, if all of them have the versions that are expected.
    pub(super) fn mark_versions(&self, prepared: &Prepared<'_>) -> Result<Vec<Mark<'_>>, Unmarked> {
        let mut marks = Vec::with_capacity(prepared.versions.len());
        for (key, hash, change, _) in &prepared.versions {
            let mark = match self.mark(key, *hash) {
                Ok(mark) => mark,
                Err(error) => return Err(Unmarked::new(error, None, marks)),
            };
            if let Some(error) = mark.contradiction(change) {
                // A removal that a power loss takes back would bring a version back.
                let end = mark.live().map(|found| found.stored.end);
                let end = end.unwrap_or(self.log.tail());
                marks.push(mark);
                return Err(Unmarked::new(error, Some(end), marks));
            }
            marks.push(mark);
        }
        Ok(marks)
    }

    /// The records to be attached to a completion at this time.
    pub(super) fn attached_contents<'a>(
        &self,
        prepared: &'a Prepared<'_>,
        marks: &[Mark<'_>],
        now_ms: u64,
    ) -> Vec<Contents<'a>> {
        let of = |key, response, deadline_ms| Contents {
            deadline_ms,
            response: Some(response),
            ..Contents::unowned(Kind::Complete, key, now_ms, now_ms)
        };
        let messages = prepared.messages.iter();
        let messages =
            messages.map(|(key, _, message)| of(key, message.payload.as_slice(), u64::MAX));
        let until_ms = now_ms.saturating_add(self.settings.version_retention_ms);
        let versions = prepared.versions.iter().zip(marks);
        let versions = versions.map(|((key, _, _, value), mark)| {
            // What it hides must not outlive it.
            let before_ms = mark
                .found
                .as_ref()
                .map_or(0, |found| found.stored.expires_ms);
            of(key, value, until_ms.max(before_ms))
        });
        messages.chain(versions).collect()
    }

    /// Lets what was attached to the completion at `appended` be found.
    pub(super) fn publish_attached(
        &self,
        prepared: &Prepared<'_>,
        marks: Vec<Mark<'_>>,
        contents: &Contents<'_>,
        appended: &Appended,
        segment: &Segment,
    ) -> Published {
        let mut offset = appended.offset + contents.body_words();
        let mut places = contents.attached.iter().map(|attached| {
            let place = offset;
            let words = attached.body_words();
            segment.worth().add(attached.deadline_ms, words);
            offset += words;
            place
        });
        let mut listed = Vec::with_capacity(prepared.messages.len());
        for ((key, hash, _), offset) in prepared.messages.iter().zip(&mut places) {
            let slot = Slot::new(*hash, appended.segment, offset);
            self.index.lock(*hash).insert_completed(slot);
            listed.push(Listed {
                position: segment.base + offset,
                hash: *hash,
                lane: key.lane(self.secret.bytes()),
                attempt: 1,
                is_dead: false,
            });
        }
        let waiters = marks.into_iter().zip(places).map(|(mark, offset)| {
            let slot = Slot::new(mark.hash, appended.segment, offset);
            mark.publish(Some(slot))
        });
        let waiters = waiters.collect();
        Published { listed, waiters }
    }

    /// The version of an entity, as durable as the level asks.
    pub(crate) async fn version(&self, entity: &[u8], level: Level) -> Result<Look, ClaimError> {
        self.look(&entity_key(entity)?, level).await
    }

    /// Removes the version of an entity; whether there was one.
    pub(crate) async fn forget_version(
        &self,
        entity: &[u8],
        level: Level,
    ) -> Result<bool, AdminError> {
        let claim = |error: WriteError| match error {
            WriteError::Damaged(damaged) => ClaimError::Damaged(damaged),
            WriteError::Unavailable(error) => ClaimError::Unavailable(error),
            _ => unreachable!("a mark fails for no other reason"),
        };
        self.check_process().map_err(ClaimError::from)?;
        let key = entity_key(entity).map_err(ClaimError::from)?;
        key.check(self.settings.key_part_bytes_max)
            .map_err(ClaimError::from)?;
        self.check_writable().map_err(ClaimError::from)?;
        let promised = self.promise(words_for(key.as_bytes().len(), 0, 0, 0)).await;
        let mut promise =
            promised.map_err(|error| AdminError::Claim(RoomError::into::<ClaimError>(error)))?;
        let mark = self.mark(&key, self.hash(&key)).map_err(claim)?;
        let was_there = mark.live().is_some();
        let end = match mark.found {
            Some(_) => mark.remove(&mut promise),
            // It may have been removed a moment ago.
            None => {
                drop(mark);
                self.log.tail()
            }
        };
        self.reach(end, level)
            .await
            .map_err(ClaimError::OutcomeUnknown)?;
        Ok(was_there)
    }

    /// An expired record has left the index; whether it was a user's result.
    pub(super) fn uncount(&self, located: &Located) -> bool {
        if located.domain() == Some(Domain::Versions) {
            self.versions.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        located.with_scope(|scope| self.places.give_back(scope));
        true
    }
}

impl Mark<'_> {
    /// What still answers.
    pub(super) fn live(&self) -> Option<&Found> {
        self.found.as_ref().filter(|_| !self.is_expired)
    }

    /// Why this change does not follow what is there.
    fn contradiction(&self, change: &VersionChange) -> Option<WriteError> {
        let value = |found: &Found| {
            found
                .stored
                .replay
                .response()
                .map(|value| version_in(value))
        };
        let current = self.live().and_then(value).unwrap_or(0);
        let new = change.new;
        let (is_stale, is_gap) = match change.expected {
            Expected::Exactly(expected) => (current > expected, current < expected),
            Expected::Older => (current >= new, false),
        };
        let entity = || change.entity.clone();
        if is_stale {
            return Some(WriteError::StaleVersion(StaleVersion {
                entity: entity(),
                current,
                new,
            }));
        }
        is_gap.then(|| {
            WriteError::VersionGap(VersionGap {
                entity: entity(),
                current,
                new,
            })
        })
    }

    /// Publishes what the key is now; who waited for that is to be woken.
    pub(super) fn publish(mut self, slot: Option<Slot>) -> Waiters {
        self.end(slot, true)
    }

    /// Leaves the key as it was; who waited for that is to be woken.
    pub(super) fn undo(mut self) -> Waiters {
        self.end(None, false)
    }

    /// Appends the removal of what was found, on this promise, and publishes it; where it ends.
    pub(super) fn remove(self, promise: &mut super::Promise<'_>) -> u64 {
        let engine = self.engine;
        let now_ms = engine.time.now_ms();
        let stored = self.found.as_ref().map(|found| &found.stored);
        let created_ms = stored.map_or(now_ms, |stored| stored.created_ms);
        let contents = Contents {
            token: stored.map_or(0, |stored| stored.token),
            deadline_ms: stored.map_or(u64::MAX, |stored| stored.expires_ms),
            ..Contents::unowned(Kind::Forget, &self.key, created_ms, now_ms)
        };
        let (appended, segment) = engine.append_removal(&contents, promise);
        // Needed as long as a copy exists, and nobody knows how long that is.
        segment.worth().keep_removals_until(u64::MAX);
        self.publish(None).wake();
        appended.end
    }

    fn end(&mut self, slot: Option<Slot>, is_changed: bool) -> Waiters {
        self.ended = true;
        let old = self.found.as_ref().map(|found| found.slot);
        let old = old.filter(|_| is_changed);
        let waiters = {
            let mut stripe = self.engine.index.lock(self.hash);
            let live = stripe.remove_live(self.hash, &self.key);
            if let Some(old) = old {
                stripe.remove_completed(old);
            }
            if let Some(slot) = slot {
                stripe.insert_completed(slot);
            }
            live.map_or_else(Waiters::default, |mut live| live.take_waiters())
        };
        if let Some(found) = self.found.as_ref().filter(|_| is_changed) {
            self.engine.discount(found.slot, found.stored.expires_ms);
        }
        if is_changed && self.key.domain() == Domain::Versions {
            let versions = &self.engine.versions;
            match (old, slot) {
                (None, Some(_)) => drop(versions.fetch_add(1, Ordering::Relaxed)),
                (Some(_), None) => drop(versions.fetch_sub(1, Ordering::Relaxed)),
                _ => {}
            }
        }
        waiters
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end(None, false).wake();
        }
    }
}
