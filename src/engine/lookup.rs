//! Reading records back: which record is a key's, and what it says.
//!
//! The slots that may be a key's are taken under the stripe's lock together with their segments;
//! the records are read without it. Records never change and a loaded segment stays mapped, so what
//! is read is what was there when the lock was held. A decision that changes state locks again and
//! goes on only if the same slots are still there.

use std::sync::Arc;

use arc_swap::Guard;

use crate::domain::Domain;
use crate::engine::{Engine, Level};
use crate::error::{ClaimError, Damaged};
use crate::fingerprint::Fingerprint;
use crate::index::stripe::Candidates;
use crate::index::{Live, Phase, Slot, Stripe};
use crate::key::Key;
use crate::log::append::Appended;
use crate::log::record::{Contents, Kind, Record};
use crate::log::segment::Segment;
use crate::response::{Replay, Response};

/// A slot with its segment held.
pub(crate) struct Located {
    pub(crate) slot: Slot,
    segment: Guard<Option<Arc<Segment>>>,
}

/// The slots that may be a key's, with their segments: usually none or one.
#[derive(Default)]
pub(crate) struct LocatedSlots {
    first: Option<Located>,
    more: Vec<Located>,
}

/// A completed operation as it stands in the log.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) replay: Replay,
    pub(crate) principal: Option<Response>,
    pub(crate) attempt: u32,
    pub(crate) token: u64,
    pub(crate) sequence: u64,
    pub(crate) created_ms: u64,
    pub(crate) completed_ms: u64,
    pub(crate) expires_ms: u64,
    /// Position behind the record: what must be durable before anybody acts on it.
    pub(crate) end: u64,
}

/// What a key is, without claiming it.
#[derive(Debug)]
pub(crate) enum Look {
    Absent,
    Held {
        attempt: u32,
        token: u64,
        started_ms: u64,
        lease_left_ms: Option<u64>,
    },
    Interrupted {
        attempt: u32,
        token: u64,
        started_ms: u64,
        is_abandoned: bool,
    },
    Completed(Stored),
}

/// A message as it stands in the log.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) key: Key,
    pub(crate) stored: Stored,
}

impl Message {
    pub(crate) fn payload(&self) -> &[u8] {
        self.stored
            .replay
            .response()
            .map_or(&[], |response| response)
    }
}

/// What the log says about the slots that may be a key's.
pub(crate) enum Examined {
    /// None of them is.
    NotFound,
    /// This one is, and its time is over.
    Expired(Found),
    /// This one is.
    Found(Found),
}

/// A key's completed record, read.
pub(crate) struct Found {
    pub(crate) slot: Slot,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) started_ms: u64,
    /// Until when an older result would answer if this one were not there; 0 for none.
    pub(crate) hides_until_ms: u64,
    pub(crate) stored: Stored,
}

impl Located {
    /// The record in the slot, with its segment and its length in words. Its checksum is verified:
    /// what the disk gives back now is what was written.
    #[inline]
    pub(crate) fn record(&self) -> Result<(&Arc<Segment>, Record<'_>, u64), Damaged> {
        let segment = self.segment.as_ref().ok_or_else(|| self.damaged())?;
        let (record, words) = segment
            .verified_record(self.slot.offset())
            .ok_or_else(|| self.damaged())?;
        Ok((segment, record, words))
    }

    /// The record, whose checksum is not verified.
    fn parsed(&self) -> Option<Record<'_>> {
        let bytes = self.segment.as_ref()?.record_bytes(self.slot.offset())?;
        Record::parse_verified(bytes).ok()
    }

    /// Whose key the record is about, unless it can't be read. The checksum is not verified.
    pub(crate) fn domain(&self) -> Option<Domain> {
        self.parsed().map(|record| record.domain)
    }

    /// Shows the scope of a user's key, unless it can't be read. The checksum is not verified.
    pub(crate) fn with_scope(&self, show: impl FnOnce(&[u8])) {
        if let Some(record) = self.parsed()
            && record.domain == Domain::Operations
            && let Some(scope) = record.key.get(..usize::from(record.key_lengths.0))
        {
            show(scope);
        }
    }

    /// The message in the slot; `None` where it is of something else.
    pub(crate) fn message(&self) -> Result<Option<Message>, Damaged> {
        let (segment, record, words) = self.record()?;
        if record.domain != Domain::Messages || record.kind != Kind::Complete {
            return Ok(None);
        }
        let key = Key::from_parts(record.key, record.key_lengths).map_err(|_| self.damaged())?;
        Ok(Some(Message {
            key: key.within(Domain::Messages),
            stored: Stored::read(segment, self.slot, &record, words),
        }))
    }

    /// What the slot is to this key.
    fn examine(&self, key: &Key, now_ms: u64) -> Result<Examined, Damaged> {
        let (segment, record, words) = self.record()?;
        let is_key = key.domain() == record.domain && key.matches(record.key_lengths, record.key);
        if !is_key {
            return Ok(Examined::NotFound);
        }
        if record.kind != Kind::Complete {
            return Err(self.damaged());
        }
        let found = Found {
            slot: self.slot,
            fingerprint: record.fingerprint,
            started_ms: record.started_ms,
            hides_until_ms: record.hides_until_ms(),
            stored: Stored::read(segment, self.slot, &record, words),
        };
        Ok(if record.is_live(now_ms) {
            Examined::Found(found)
        } else {
            Examined::Expired(found)
        })
    }

    #[cold]
    fn damaged(&self) -> Damaged {
        let file = self.segment.as_ref().map_or_else(
            || format!("segment number {}", self.slot.segment()),
            |segment| segment.name.clone(),
        );
        Damaged {
            file,
            offset: self.slot.offset() * 8,
        }
    }
}

impl LocatedSlots {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Located> {
        self.first.iter().chain(&self.more)
    }
}

impl Stored {
    /// A completed record as it was read, `words` long, at this slot of the segment.
    #[inline]
    fn read(segment: &Arc<Segment>, slot: Slot, record: &Record<'_>, words: u64) -> Self {
        let start = slot.offset() as usize * 8;
        let handle =
            |offset: usize, len: usize| Response::new(Arc::clone(segment), start + offset, len);
        let replay = match record.response {
            Some(response) => Replay::Response(handle(record.response_offset, response.len())),
            None => Replay::NotStored,
        };
        let principal = record.principal.map(|principal| {
            let end = record.response_offset - record.checkpoint.len();
            handle(end - principal.len(), principal.len())
        });
        Self {
            replay,
            principal,
            attempt: record.attempt,
            token: record.token,
            sequence: record.sequence,
            created_ms: record.created_ms,
            completed_ms: record.ended_ms,
            expires_ms: record.deadline_ms,
            // A copy counts only once it is durable: nobody waits for it.
            end: if record.is_copy {
                0
            } else {
                segment.base + slot.offset() + words
            },
        }
    }

    /// A completed record as it was just written.
    #[inline]
    pub(crate) fn written(
        contents: &Contents<'_>,
        appended: &Appended,
        segment: Arc<Segment>,
    ) -> Self {
        let start = appended.offset as usize * 8;
        let principal = contents.principal.map(|principal| {
            let offset = start + contents.principal_offset();
            Response::new(Arc::clone(&segment), offset, principal.len())
        });
        let replay = match contents.response {
            Some(response) => {
                let offset = start + contents.response_offset();
                Replay::Response(Response::new(segment, offset, response.len()))
            }
            None => Replay::NotStored,
        };
        Self {
            replay,
            principal,
            attempt: contents.attempt,
            token: contents.token,
            sequence: appended.sequence,
            created_ms: contents.created_ms,
            completed_ms: contents.ended_ms,
            expires_ms: contents.deadline_ms,
            end: appended.end,
        }
    }
}

impl Engine {
    /// Takes the slots that may be a key's, with their segments. Called under the stripe's lock.
    #[inline]
    pub(crate) fn locate(&self, candidates: &Candidates) -> LocatedSlots {
        LocatedSlots {
            first: candidates.first().map(|slot| self.locate_slot(slot)),
            more: match candidates.more() {
                [] => Vec::new(),
                more => more.iter().map(|slot| self.locate_slot(*slot)).collect(),
            },
        }
    }

    /// Takes one slot with its segment. Called under the stripe's lock.
    #[inline]
    pub(crate) fn locate_slot(&self, slot: Slot) -> Located {
        Located {
            slot,
            segment: self.log.segments().load(slot.segment()),
        }
    }

    /// Finds the key's own record among the located ones.
    pub(crate) fn examine(
        &self,
        located: &LocatedSlots,
        key: &Key,
        now_ms: u64,
    ) -> Result<Examined, Damaged> {
        let Some(first) = &located.first else {
            return Ok(Examined::NotFound);
        };
        let mut found = first.examine(key, now_ms)?;
        for one in &located.more {
            if !matches!(found, Examined::NotFound) {
                break;
            }
            found = one.examine(key, now_ms)?;
        }
        Ok(found)
    }

    /// Looks at a key without claiming it. The answer is as durable as the level asks.
    pub(crate) async fn look(&self, key: &Key, level: Level) -> Result<Look, ClaimError> {
        let (look, end) = self.look_written(key).await?;
        self.reach(end, level).await?;
        Ok(look)
    }

    /// Whether there is nothing of a key, be it durable or not.
    #[cfg(feature = "http")]
    pub(crate) async fn is_absent(&self, key: &Key) -> Result<bool, ClaimError> {
        let (look, _) = self.look_written(key).await?;
        Ok(matches!(look, Look::Absent))
    }

    /// [`look`](Self::look) without waiting for durability: the answer, and the position that it rests
    /// on.
    pub(crate) async fn look_written(&self, key: &Key) -> Result<(Look, u64), ClaimError> {
        self.check_process()?;
        key.check(self.settings.key_part_bytes_max)?;
        let hash = self.hash(key);
        loop {
            match self.glance(hash, key)? {
                Glance::Answer(look, end) => return Ok((look, end)),
                // What is not written yet is nothing to tell anybody.
                Glance::Settle => self.settled(hash, key).await?,
            }
        }
    }

    fn glance(&self, hash: u64, key: &Key) -> Result<Glance, ClaimError> {
        let located = {
            let mut stripe = self.index.lock(hash);
            check_open(&stripe)?;
            if let Some(live) = stripe.live(hash, key) {
                if live.phase == Phase::Changing {
                    return Ok(Glance::Settle);
                }
                let end = live.newest.map_or(0, |newest| newest.end);
                return Ok(Glance::Answer(self.look_at(live), end));
            }
            self.locate(&stripe.candidates(hash))
        };
        match self.examine(&located, key, self.time.now_ms())? {
            Examined::Found(found) => {
                let end = found.stored.end;
                Ok(Glance::Answer(Look::Completed(found.stored), end))
            }
            // A removal that a power loss takes back would bring the key back.
            Examined::NotFound | Examined::Expired(_) => {
                Ok(Glance::Answer(Look::Absent, self.log.tail()))
            }
        }
    }

    fn look_at(&self, live: &Live) -> Look {
        let monotonic_ms = self.time.monotonic_ms();
        let (attempt, token, started_ms) = (live.attempt, live.token, live.started_ms);
        if live.is_held(monotonic_ms) {
            return Look::Held {
                attempt,
                token,
                started_ms,
                lease_left_ms: live.lease_left_ms(monotonic_ms),
            };
        }
        Look::Interrupted {
            attempt,
            token,
            started_ms,
            is_abandoned: live.is_too_old(self.time.now_ms(), self.settings.abandon_after_ms),
        }
    }
}

/// What one look at a key led to.
enum Glance {
    /// The answer, and the position that it rests on.
    Answer(Look, u64),
    /// A transition is under way: look again when it is over.
    Settle,
}

/// Refuses on a closed store.
#[inline]
pub(crate) fn check_open(stripe: &Stripe) -> Result<(), crate::error::Unavailable> {
    if stripe.closed {
        Err(crate::error::Unavailable::Closed)
    } else {
        Ok(())
    }
}
