//! Settling a key whose outcome is unknown: looking at it without claiming it, and taking it up to
//! write down what became of it.
//!
//! Unlike a claim, this begins no new attempt, and is allowed however old the operation is: nothing is
//! run again by it.

use bytes::Bytes;

use crate::engine::claim::{Grant, Handover, Outcome, Request, Step};
use crate::engine::lookup::{Located, check_open};
use crate::engine::{Engine, Level, RoomError};
use crate::error::{ClaimError, Unavailable};
use crate::fingerprint::Fingerprint;
use crate::index::{Live, Phase, Slot};
use crate::key::Key;

/// A key whose outcome is unknown and that nobody holds.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) attempt: u32,
    pub(crate) token: u64,
    pub(crate) created_ms: u64,
    pub(crate) started_ms: u64,
    pub(crate) is_abandoned: bool,
    pub(crate) checkpoint: Option<Bytes>,
}

impl Engine {
    /// The keys of each stripe that nobody holds and that are not completed, one list after the
    /// other.
    pub(crate) fn unsettled_keys(&self) -> impl Iterator<Item = Result<Vec<Key>, Unavailable>> {
        let list = |monotonic_ms, stripe: &crate::sync::Mutex<crate::index::Stripe>| {
            let stripe = stripe.lock();
            check_open(&stripe)?;
            let keys = stripe
                .live_entries()
                .filter(|live| !live.is_held(monotonic_ms))
                .map(|live| live.key.clone());
            Ok(keys.collect())
        };
        self.index.stripes().map(move |stripe| {
            self.check_process()?;
            list(self.time.monotonic_ms(), stripe)
        })
    }

    /// Looks at a key without claiming it; `None` where it is not one to be settled.
    pub(crate) async fn unsettled(
        &self,
        key: &Key,
        level: Level,
    ) -> Result<Option<Unsettled>, ClaimError> {
        self.check_process()?;
        let Some((mut unsettled, noted, end)) = self.glance_unsettled(key)? else {
            return Ok(None);
        };
        let record = noted.as_ref().map(Located::record).transpose()?;
        unsettled.checkpoint =
            record.map(|(_, record, _)| Bytes::copy_from_slice(record.checkpoint));
        drop(noted);
        self.reach(end, level).await?;
        Ok(Some(unsettled))
    }

    fn glance_unsettled(
        &self,
        key: &Key,
    ) -> Result<Option<(Unsettled, Option<Located>, u64)>, Unavailable> {
        let hash = self.hash(key);
        let (now_ms, monotonic_ms) = (self.time.now_ms(), self.time.monotonic_ms());
        let mut stripe = self.index.lock(hash);
        check_open(&stripe)?;
        let Some(live) = stripe.live(hash, key) else {
            return Ok(None);
        };
        if live.is_held(monotonic_ms) {
            return Ok(None);
        }
        let noted = live.newest.filter(|_| live.checkpoint_bytes > 0);
        let unsettled = Unsettled {
            fingerprint: live.fingerprint,
            attempt: live.attempt,
            token: live.token,
            created_ms: live.created_ms,
            started_ms: live.started_ms,
            is_abandoned: live.is_too_old(now_ms, self.settings.abandon_after_ms),
            checkpoint: None,
        };
        let end = live.newest.map_or(0, |newest| newest.end);
        let located = noted.map(|at| self.locate_slot(Slot::new(hash, at.segment, at.offset)));
        Ok(Some((unsettled, located, end)))
    }

    /// Takes a key up to settle it, in the attempt that was interrupted and under a new token; `None`
    /// where it is not as it was seen under `token` any more.
    pub(crate) async fn take_up(
        &self,
        request: &Request<'_>,
        token: u64,
    ) -> Result<Option<Grant>, ClaimError> {
        self.check_process()?;
        let hash = self.hash(&request.key);
        let mut promise = None;
        loop {
            let step = {
                let mut stripe = self.index.lock(hash);
                check_open(&stripe)?;
                match stripe.live(hash, &request.key) {
                    Some(live) if live.phase == Phase::Changing => Step::Settle,
                    Some(live) if self.is_unsettled(live, token) => {
                        // A grant without a ticket, dropped unseen, would be released.
                        let ticket = if live.ticket == 0 { token } else { live.ticket };
                        let handover = Handover::SameAttempt { ticket };
                        self.take_over(stripe, request, hash, &mut promise, handover)?
                    }
                    _ => return Ok(None),
                }
            };
            match step {
                Step::Answer(outcome, end) => {
                    let outcome = self.unconfirmed(outcome);
                    return match self.confirm(outcome, end, request.level).await? {
                        Some(Outcome::Started(grant)) => Ok(Some(grant)),
                        _ => Ok(None),
                    };
                }
                Step::Settle => self.settled(hash, &request.key).await?,
                Step::Room(words) => {
                    drop(promise.take());
                    let promised = self.promise(words).await;
                    promise = Some(promised.map_err(RoomError::into::<ClaimError>)?);
                }
                Step::Abandoned(..) | Step::Uncover | Step::Again => {}
            }
        }
    }

    fn is_unsettled(&self, live: &Live, token: u64) -> bool {
        live.token == token && !live.is_held(self.time.monotonic_ms())
    }
}
