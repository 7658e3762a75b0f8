//! Rebuilding the index at an open, from side-cars.
//!
//! A segment whose side-car vouches for it is not read. Of one that has none, the side-car is made
//! from the records in memory first, so that there is one way from here on. The entries of a stripe
//! stand together in every side-car, so each stripe is built by itself, on all processors at once:
//! gather its entries, sort them by hash, reserve the table, fill it.
//!
//! A hash that stands in one segment only is one key with one record that counts: its slot is made
//! without looking at the log. Where several entries share a hash, and for keys that are not
//! completed, the records are read: the highest token counts, then the highest sequence, whatever
//! file it stands in. A record that cannot be read there refuses the open, since nobody can tell
//! whose it is.

use std::sync::Arc;

use crate::corruption::{Corruption, Damage};
use crate::domain::Domain;
use crate::engine::outbox::Listed;
use crate::index::{Index, Live, Phase, Slot};
use crate::key::Key;
use crate::log::append::Appended;
use crate::log::index_file::{IndexFile, Place};
use crate::log::record::{Kind, Record};
use crate::log::recover::RecoverError;
use crate::log::segment::Segment;
use crate::log::side_cars;
use crate::parallel;
use crate::secret::HashSecret;

/// What an index holds that is not a user's key.
#[derive(Debug, Default)]
pub(super) struct Rebuilt {
    /// How many entities have a version.
    pub(super) versions: usize,
    pub(super) messages: Vec<Listed>,
}

impl Rebuilt {
    fn add(&mut self, other: Self) {
        self.versions += other.versions;
        self.messages.extend(other.messages);
    }

    /// Counts the record of a key that counts. What a message says of itself is read: one that can't
    /// be read would be lost without a word.
    fn count(
        &mut self,
        found: &Found,
        domain: Domain,
        sources: &[Source<'_>],
        secret: &HashSecret,
    ) -> Result<(), RecoverError> {
        match domain {
            Domain::Operations => {}
            Domain::Messages => {
                let Newest { key, record, .. } = found.read(sources)?;
                self.messages.push(Listed {
                    position: record.token,
                    hash: found.hash(),
                    lane: key.lane(secret.bytes()),
                    attempt: record.attempt,
                    is_dead: record.is_dead,
                });
            }
            Domain::Versions => self.versions += 1,
        }
        Ok(())
    }
}

/// How many stripes a thread takes at once.
const STRIPES_AT_ONCE: usize = 16;

/// Fills an empty index with what the segments hold. `side_cars` has for each segment its side-car,
/// if it vouches for it.
///
/// # Errors
///
/// [`RecoverError::Corrupt`] for a record that has to be read and cannot be.
pub(super) fn rebuild(
    index: &Index,
    secret: &HashSecret,
    segments: &[Arc<Segment>],
    side_cars: Vec<Option<IndexFile>>,
) -> Result<Rebuilt, RecoverError> {
    let made = parallel::each(segments.len(), |at| {
        match (side_cars.get(at), segments.get(at)) {
            (Some(None) | None, Some(segment)) => side_cars::make(segment, secret).map(Some),
            _ => Ok(None),
        }
    });
    let mut sources = Vec::with_capacity(segments.len());
    let known = side_cars.into_iter().chain(std::iter::repeat_with(|| None));
    for ((segment, made), known) in segments.iter().zip(made).zip(known) {
        if let Some(side_car) = known.or(made?) {
            sources.push(Source { segment, side_car });
        }
    }
    let stripes = index.stripes().count();
    let parts = stripes.div_ceil(STRIPES_AT_ONCE);
    let built = parallel::each(parts, |part| {
        let first = part * STRIPES_AT_ONCE;
        let last = stripes.min(first + STRIPES_AT_ONCE);
        build(index, secret, &sources, first..last)
    });
    let mut rebuilt = Rebuilt::default();
    for part in built {
        rebuilt.add(part?);
    }
    Ok(rebuilt)
}

/// A segment and what stands in it.
struct Source<'a> {
    segment: &'a Arc<Segment>,
    side_car: IndexFile,
}

/// An entry of some segment: small, since a stripe's are sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    reversed_hash: u64,
    source: u16,
    place: Place,
}

/// Builds the stripes that come in this range when the bits of their numbers are reversed, which is
/// the order of the entries.
fn build(
    index: &Index,
    secret: &HashSecret,
    sources: &[Source<'_>],
    range: std::ops::Range<usize>,
) -> Result<Rebuilt, RecoverError> {
    let mut rebuilt = Rebuilt::default();
    let bits = index.stripes().count().trailing_zeros();
    // The last reversed hash of a stripe.
    let last_of = |at: usize| match bits {
        0 => u64::MAX,
        bits => ((at as u64) << (64 - bits)) | (u64::MAX >> bits),
    };
    let least = match range.start {
        0 => 0,
        start => last_of(start - 1) + 1,
    };
    let first = |source: &Source<'_>| source.side_car.first_from(least);
    let mut cursors: Vec<_> = sources.iter().map(first).collect();
    let mut found = Vec::new();
    for at in range {
        found.clear();
        let last = last_of(at);
        for (number, (source, cursor)) in sources.iter().zip(&mut cursors).enumerate() {
            while let Some(entry) = source.side_car.entry(*cursor)
                && entry.reversed_hash <= last
            {
                if entry.place.domain() != Some(Domain::Operations) {
                    source.segment.set_holds_attached();
                }
                found.push(Found {
                    reversed_hash: entry.reversed_hash,
                    source: number as u16,
                    place: entry.place,
                });
                *cursor += 1;
            }
        }
        found.sort_unstable();
        fill(
            index,
            secret,
            last.reverse_bits(),
            sources,
            &found,
            &mut rebuilt,
        )?;
    }
    Ok(rebuilt)
}

/// Fills the stripe of this hash with its entries.
fn fill(
    index: &Index,
    secret: &HashSecret,
    hash: u64,
    sources: &[Source<'_>],
    found: &[Found],
    rebuilt: &mut Rebuilt,
) -> Result<(), RecoverError> {
    let mut slots = Vec::with_capacity(found.len());
    let mut live = Vec::new();
    for same in found.chunk_by(|one, other| one.reversed_hash == other.reversed_hash) {
        match same {
            [one] if one.place.kind() == Some(Kind::Complete) => {
                let slot = one.slot(sources);
                if let Some(domain) = one.place.domain() {
                    rebuilt.count(one, domain, sources, secret)?;
                }
                slots.extend(slot);
            }
            [one] if matches!(one.place.kind(), Some(Kind::Release | Kind::Forget)) => {}
            several => {
                for newest in newest_of_each(sources, several)? {
                    match newest.record.kind {
                        Kind::Complete => {
                            let slot = newest.found.slot(sources);
                            let domain = newest.record.domain;
                            rebuilt.count(&newest.found, domain, sources, secret)?;
                            slots.extend(slot);
                        }
                        Kind::Claim | Kind::Checkpoint => live.push(Box::new(newest.interrupted())),
                        Kind::Release | Kind::Forget => {}
                    }
                }
            }
        }
    }
    let mut stripe = index.lock(hash);
    stripe.reserve_completed(slots.len());
    slots
        .into_iter()
        .for_each(|slot| stripe.insert_completed(slot));
    live.into_iter().for_each(|live| stripe.insert_live(live));
    Ok(())
}

/// The record that counts of a key, read.
struct Newest<'a> {
    found: Found,
    key: Key,
    segment: &'a Segment,
    record: Record<'a>,
    words: u64,
}

/// The one that counts of each key among entries with one hash: nearly always they are all of one
/// key.
fn newest_of_each<'a>(
    sources: &'a [Source<'_>],
    several: &[Found],
) -> Result<Vec<Newest<'a>>, RecoverError> {
    let mut newest: Vec<Newest<'a>> = Vec::with_capacity(1);
    for one in several {
        let read = one.read(sources)?;
        match newest.iter_mut().find(|known| known.key == read.key) {
            Some(known) if known.rank() < read.rank() => *known = read,
            Some(_) => {}
            None => newest.push(read),
        }
    }
    Ok(newest)
}

impl Found {
    fn hash(&self) -> u64 {
        self.reversed_hash.reverse_bits()
    }

    fn segment<'a>(&self, sources: &'a [Source<'_>]) -> Option<&'a Arc<Segment>> {
        sources
            .get(usize::from(self.source))
            .map(|source| source.segment)
    }

    fn slot(&self, sources: &[Source<'_>]) -> Option<Slot> {
        let segment = self.segment(sources)?;
        Some(Slot::new(self.hash(), segment.number, self.place.offset()))
    }

    /// Its record, verified.
    fn read<'a>(&self, sources: &'a [Source<'_>]) -> Result<Newest<'a>, RecoverError> {
        let damaged = |damage| self.damaged(sources, damage);
        let segment = self.segment(sources);
        let segment = segment.ok_or_else(|| damaged(Damage::Misplaced))?;
        let (record, words) = segment
            .verified_record(self.place.offset())
            .ok_or_else(|| damaged(Damage::Checksum))?;
        let key = Key::from_parts(record.key, record.key_lengths)
            .map_err(|_| damaged(Damage::Field("key")))?
            .within(record.domain);
        Ok(Newest {
            found: *self,
            key,
            segment,
            record,
            words,
        })
    }

    fn damaged(&self, sources: &[Source<'_>], damage: Damage) -> RecoverError {
        let offset = self.place.offset();
        let (name, base) = self
            .segment(sources)
            .map_or(("", 0), |segment| (&segment.name, segment.base));
        let corruption = Corruption::of_words(damage, name, base, offset, offset + 1);
        RecoverError::Corrupt(corruption)
    }
}

impl Newest<'_> {
    fn rank(&self) -> (u64, u64) {
        (self.record.token, self.record.sequence)
    }

    /// The entry of a key whose owner is gone.
    fn interrupted(self) -> Live {
        let Self {
            found,
            key,
            segment,
            record,
            words,
        } = self;
        let offset = found.place.offset();
        let hash = found.hash();
        let mut live = Live::claiming(hash, key, record.fingerprint, record.created_ms);
        live.phase = Phase::Interrupted;
        live.token = record.token;
        live.ticket = record.ticket;
        live.attempt = record.attempt;
        live.started_ms = record.started_ms;
        live.newest = Some(Appended {
            segment: segment.number,
            offset,
            sequence: record.sequence,
            end: segment.base + offset + words,
        });
        live.checkpoint_bytes = record.checkpoint.len();
        live
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests;
