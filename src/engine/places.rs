//! The places that keys take, counted where a limit on them is set.
//!
//! A key takes its place when its first claim begins and keeps it while it is claimed, pending,
//! interrupted or completed. It is free again when the key is released or forgotten, and when the
//! slot of an expired result is taken out of the index. A claim that meets the expired result of its
//! own key takes over that one's place.
//!
//! A place is taken under the stripe's lock, in one step with the check, so the limits are exact:
//! of any number who come for the last place one gets it. A scope is known by a keyed hash of 64
//! bits; two that share one, which no client can bring about, share a limit. An entry is 16 bytes
//! and the table's own byte, 39 bytes at most, and is there only while the scope has keys.
//!
//! Locks: a stripe's, then one of these, never the other way round.

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use crate::engine::Engine;
use crate::index::Slot;
use crate::limit_reached::{Limit, LimitReached};
use crate::options::Settings;
use crate::secret::{HashSecret, SCOPES};
use crate::sync::{AtomicUsize, Mutex, Ordering, mutation};

const SHARDS: usize = 64;
/// Tables with fewer places are not worth shrinking.
const SHRINK_FROM: usize = 64;

/// What is counted; nothing where no limit is set.
#[derive(Debug)]
pub(crate) struct Places {
    keys: Option<Keys>,
    scopes: Option<Scopes>,
}

#[derive(Debug)]
struct Keys {
    limit: usize,
    taken: AtomicUsize,
}

#[derive(Debug)]
struct Scopes {
    limit: u32,
    secret: HashSecret,
    shards: Box<[CachePadded<Mutex<HashTable<Scope>>>]>,
}

/// A scope that has keys.
#[derive(Clone, Copy, Debug)]
struct Scope {
    hash: u64,
    keys: u32,
}

const _: () = assert!(size_of::<Scope>() == 16);

impl Places {
    /// With nothing counted yet.
    pub(crate) fn new(settings: &Settings, secret: &[u8; 32]) -> Self {
        let keys = settings.keys_max.map(|limit| Keys {
            limit,
            taken: AtomicUsize::new(0),
        });
        let scopes = settings.keys_per_scope_max.map(|limit| Scopes {
            limit,
            secret: HashSecret::derive(secret, SCOPES),
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        });
        Self { keys, scopes }
    }

    /// Takes a place for a key of this scope, or none.
    pub(crate) fn take(&self, scope: &[u8]) -> Result<(), LimitReached> {
        // The scope first: where it is full nobody else's limit is touched.
        if let Some(scopes) = &self.scopes {
            scopes.take(scope)?;
        }
        if let Some(keys) = &self.keys {
            keys.take().inspect_err(|_| {
                if let Some(scopes) = &self.scopes {
                    scopes.give_back(scope);
                }
            })?;
        }
        Ok(())
    }

    /// Counts a key that exists, over the limit or not.
    fn add(&self, scope: &[u8]) {
        if let Some(keys) = &self.keys {
            keys.taken.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(scopes) = &self.scopes {
            scopes.add(scope);
        }
    }

    /// Gives back the place of a key that is no more.
    pub(crate) fn give_back(&self, scope: &[u8]) {
        if let Some(keys) = &self.keys {
            keys.taken.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(scopes) = &self.scopes {
            scopes.give_back(scope);
        }
    }

    /// Scopes that have keys, as far as they are counted.
    #[cfg(all(test, not(any(oncekey_loom, oncekey_shuttle))))]
    fn scopes(&self) -> usize {
        let shards = self.scopes.iter().flat_map(|scopes| scopes.shards.iter());
        shards.map(|shard| shard.lock().len()).sum()
    }
}

impl Keys {
    fn take(&self) -> Result<(), LimitReached> {
        let reached =
            |taken: usize| LimitReached::new(Limit::Keys, self.limit as u64, taken as u64);
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            if taken >= self.limit {
                return Err(reached(taken));
            }
            if mutation("keys_counted_in_two_steps") {
                self.taken.store(taken + 1, Ordering::Relaxed);
                return Ok(());
            }
            match self.taken.compare_exchange_weak(
                taken,
                taken + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(newer) => taken = newer,
            }
        }
    }
}

impl Scopes {
    fn shard(&self, hash: u64) -> &Mutex<HashTable<Scope>> {
        // The table places its entries by the lowest and the highest bits.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    fn hash(&self, scope: &[u8]) -> u64 {
        xxh3_64_with_secret(scope, self.secret.bytes())
    }

    fn take(&self, scope: &[u8]) -> Result<(), LimitReached> {
        let hash = self.hash(scope);
        let limit = self.limit;
        let mut shard = self.shard(hash).lock();
        if mutation("scope_counted_in_two_steps") {
            let keys = shard
                .find(hash, |found| found.hash == hash)
                .map_or(0, |found| found.keys);
            drop(shard);
            if keys < limit {
                self.add(scope);
                return Ok(());
            }
            shard = self.shard(hash).lock();
        }
        match shard.entry(hash, |found| found.hash == hash, |found| found.hash) {
            Entry::Occupied(entry) => {
                let found = entry.into_mut();
                if found.keys >= limit {
                    let used = u64::from(found.keys);
                    return Err(LimitReached::new(Limit::KeysPerScope, limit.into(), used));
                }
                found.keys += 1;
            }
            Entry::Vacant(entry) => {
                entry.insert(Scope { hash, keys: 1 });
            }
        }
        Ok(())
    }

    fn add(&self, scope: &[u8]) {
        let hash = self.hash(scope);
        let mut shard = self.shard(hash).lock();
        let found = shard
            .entry(hash, |found| found.hash == hash, |found| found.hash)
            .or_insert(Scope { hash, keys: 0 })
            .into_mut();
        found.keys = found.keys.saturating_add(1);
    }

    fn give_back(&self, scope: &[u8]) {
        let hash = self.hash(scope);
        let mut shard = self.shard(hash).lock();
        let Ok(mut entry) = shard.find_entry(hash, |found| found.hash == hash) else {
            return;
        };
        entry.get_mut().keys -= 1;
        if entry.get().keys > 0 {
            return;
        }
        entry.remove();
        // Memory is given back after a peak.
        if shard.capacity() > SHRINK_FROM && shard.len() * 8 < shard.capacity() {
            let len = shard.len();
            shard.shrink_to(len * 2, |found| found.hash);
        }
    }
}

impl Engine {
    /// Counts the keys that the index holds. To find the scopes of completed ones their records are
    /// read, in the order they stand on the disk.
    pub(super) fn count_places(&self) {
        let Places { keys, scopes } = &self.places;
        if let (Some(keys), None) = (keys, scopes) {
            let stripes = self.index.stripes().map(|stripe| {
                let stripe = stripe.lock();
                stripe.completed_count() + stripe.live_entries().count()
            });
            let others = self.version_count() + self.message_count();
            let keys_taken = stripes.sum::<usize>().saturating_sub(others);
            keys.taken.store(keys_taken, Ordering::Relaxed);
        }
        if scopes.is_none() {
            return;
        }
        let mut completed: Vec<Slot> = Vec::new();
        for stripe in self.index.stripes() {
            let stripe = stripe.lock();
            completed.extend(stripe.completed());
            for live in stripe.live_entries() {
                self.places.add(live.key.scope());
            }
        }
        completed.sort_unstable_by_key(|slot| (slot.segment(), slot.offset()));
        for slot in completed {
            self.locate_slot(slot)
                .with_scope(|scope| self.places.add(scope));
        }
    }
}

#[cfg(all(test, not(any(oncekey_loom, oncekey_shuttle))))]
mod tests {
    use super::*;
    use crate::options::Options;

    fn places(keys: Option<usize>, per_scope: Option<usize>) -> Places {
        let mut options = Options::new();
        if let Some(limit) = keys {
            options = options.max_keys(limit);
        }
        if let Some(limit) = per_scope {
            options = options.max_keys_per_scope(limit);
        }
        Places::new(&options.validate().expect("good options"), &[7; 32])
    }

    #[test]
    fn a_scope_that_is_full_takes_nothing_from_the_others() {
        let places = places(Some(3), Some(2));
        places.take(b"a").unwrap();
        places.take(b"a").unwrap();
        let reached = places.take(b"a").unwrap_err();
        assert_eq!(reached, LimitReached::new(Limit::KeysPerScope, 2, 2));
        places.take(b"b").unwrap();
        let reached = places.take(b"b").unwrap_err();
        assert_eq!(reached, LimitReached::new(Limit::Keys, 3, 3));
        // What was refused left nothing behind.
        places.give_back(b"a");
        places.take(b"b").unwrap();
        assert_eq!(places.scopes(), 2);
        for scope in [b"a", b"b", b"b"] {
            places.give_back(scope);
        }
        assert_eq!(places.scopes(), 0);
    }

    #[test]
    fn what_exists_counts_though_it_is_over_the_limit() {
        let places = places(Some(2), Some(1));
        for _ in 0..3 {
            places.add(b"a");
        }
        let reached = places.take(b"a").unwrap_err();
        assert_eq!(reached, LimitReached::new(Limit::KeysPerScope, 1, 3));
        let reached = places.take(b"b").unwrap_err();
        assert_eq!(reached, LimitReached::new(Limit::Keys, 2, 3));
    }

    #[test]
    fn scopes_without_keys_take_no_memory() {
        let places = places(None, Some(9));
        let names: Vec<_> = (0..100_000_u32).map(u32::to_le_bytes).collect();
        let bytes = || -> usize {
            let scopes = places.scopes.as_ref().expect("counted");
            let shards = scopes.shards.iter();
            shards.map(|shard| shard.lock().allocation_size()).sum()
        };
        for name in &names {
            places.take(name).unwrap();
        }
        assert!(bytes() <= names.len() * 39, "{} bytes", bytes());
        for name in &names {
            places.give_back(name);
        }
        assert_eq!(places.scopes(), 0);
        assert!(bytes() <= SHARDS * SHRINK_FROM * 39, "{} bytes", bytes());
    }
}
