//! Making and writing side-cars: in the background, never on a claim's path.
//!
//! A segment gets its side-car once all of it is durable and nobody appends to it any more. Order:
//! write the file under another name, sync it, rename it, sync the directory; so whoever finds the
//! name finds the whole, and knows the segment to be durable. A failure costs a slower open and no
//! more: it is logged, and tried again later.

use std::io;
use std::time::Duration;

use crate::fs::Storage;
use crate::key::Key;
use crate::log::header::{Header, PAGE_BYTES};
use crate::log::index_file::{Entry, IndexFile, Place, Summary, encode};
use crate::log::prepare::preparing_name;
use crate::log::record::Record;
use crate::log::recover::listing::side_car_name;
use crate::log::recover::{RecoverError, walk};
use crate::log::repair::remove_if_there;
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::secret::HashSecret;
use crate::sync::{Condvar, Mutex};

/// How soon the indexer looks again for a sealed segment to become durable.
const SOON: Duration = Duration::from_millis(50);
/// How soon it tries again what failed.
const LATER: Duration = Duration::from_secs(30);

/// The side-car of a segment, from its records, which are verified once more: what was damaged since
/// they were written must not be vouched for. A segment without a header of its own gets a side-car
/// that nobody would believe.
///
/// # Errors
///
/// [`RecoverError::Corrupt`] if the file changed behind the store's back.
pub(crate) fn make(segment: &Segment, secret: &HashSecret) -> Result<IndexFile, RecoverError> {
    let header = Header::decode(segment.bytes(0, PAGE_BYTES)).ok();
    let mut summary = Summary {
        store_id: header.as_ref().map_or(0, |header| header.store_id),
        base: segment.base,
        segment_crc: header.as_ref().map_or(0, Header::checksum),
        end: segment.tail() - segment.base,
        records: 0,
        records_end: FIRST_RECORD,
        watermark: 0,
        high_water_ms: 0,
    };
    let mut newest = hashbrown::HashTable::<(u64, Place)>::new();
    walk(segment, &mut |offset, words, record| {
        summary.records += 1;
        summary.records_end = summary.records_end.max(offset + words);
        summary.watermark = summary.watermark.max(record.watermark);
        summary.high_water_ms = summary.high_water_ms.max(record.latest_ms());
        let hash = Key::hash_of(
            record.domain,
            record.key,
            record.key_lengths,
            secret.bytes(),
        );
        let Some(hash) = hash else {
            return;
        };
        let new = (hash, Place::new(offset, record.kind, record.domain));
        let of_key = |place: Place| {
            let bytes = segment.record_bytes(place.offset())?;
            let known = Record::parse_verified(bytes).ok()?;
            let is_same = known.key == record.key
                && known.key_lengths == record.key_lengths
                && known.domain == record.domain;
            is_same.then_some(known)
        };
        let mut rank = (0, 0);
        let known = newest.find_mut(hash, |(other, place)| {
            let found = (*other == hash).then(|| of_key(*place)).flatten();
            rank = found.map_or(rank, |known| (known.token, known.sequence));
            found.is_some()
        });
        match known {
            Some(known) if rank < (record.token, record.sequence) => *known = new,
            Some(_) => {}
            None => drop(newest.insert_unique(hash, new, |(hash, _)| *hash)),
        }
    })?;
    let entry = |(hash, place): (u64, Place)| Entry {
        reversed_hash: hash.reverse_bits(),
        place,
    };
    Ok(encode(summary, newest.into_iter().map(entry).collect()))
}

/// Makes and writes the side-car of a segment all of which is durable.
///
/// # Errors
///
/// Whatever the storage says. A file that is half made is left under the name of one.
pub(crate) fn write(
    storage: &dyn Storage,
    segment: &Segment,
    secret: &HashSecret,
) -> io::Result<()> {
    let index = make(segment, secret)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error:?}")))?;
    let name = side_car_name(&segment.name);
    let preparing = preparing_name(&name);
    remove_if_there(storage, &preparing)?;
    let written = (|| {
        let file = storage.create(&preparing, index.bytes().len() as u64)?;
        file.write_at(0, index.bytes())?;
        file.sync_data()?;
        storage.rename(&preparing, &name)?;
        storage.sync_directory()
    })();
    if written.is_err() {
        drop(remove_if_there(storage, &preparing));
    }
    written
}

/// Tells the indexing thread when to look.
#[derive(Debug, Default)]
pub(crate) struct Indexer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    poked: bool,
}

/// What is left to do after the indexer looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing until it is told.
    Nothing,
    /// A sealed segment is not durable yet.
    NotDurable,
    /// A side-car could not be written.
    Failed,
}

impl Indexer {
    /// Tells the thread that a segment may be sealed.
    pub(crate) fn poke(&self) {
        self.state.lock().poked = true;
        self.wake.notify_one();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_one();
    }

    /// Whether it is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Blocks the thread until it should look again; `false` when it is to end.
    pub(crate) fn wait(&self, left: Left) -> bool {
        let mut state = self.state.lock();
        while !state.stopped && !state.poked {
            let wait = match left {
                Left::Nothing => {
                    self.wake.wait(&mut state);
                    continue;
                }
                Left::NotDurable => SOON,
                Left::Failed => LATER,
            };
            if self.wake.wait_for(&mut state, wait).timed_out() {
                break;
            }
        }
        state.poked = false;
        !state.stopped
    }
}
