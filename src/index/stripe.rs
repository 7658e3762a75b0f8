//! The stripes and their two tables.

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;

use crate::index::live::{Live, Phase};
use crate::index::slot::{self, Slot};
use crate::key::Key;
use crate::log::word::mix;
use crate::sync::{Mutex, MutexGuard, mutation};

/// All stripes.
#[derive(Debug)]
pub(crate) struct Index {
    stripes: Box<[CachePadded<Mutex<Stripe>>]>,
}

impl Index {
    /// `stripes` is a power of two.
    pub(crate) fn new(stripes: usize) -> Self {
        assert!(stripes.is_power_of_two());
        let stripes = (0..stripes)
            .map(|_| CachePadded::new(Mutex::new(Stripe::default())))
            .collect();
        Self { stripes }
    }

    /// Locks the stripe of a hash. Its low bits choose; the slot keeps the high ones.
    #[inline]
    pub(crate) fn lock(&self, hash: u64) -> MutexGuard<'_, Stripe> {
        self.stripes[hash as usize & (self.stripes.len() - 1)].lock()
    }

    /// Every stripe in turn, each to be locked by itself.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = &Mutex<Stripe>> {
        self.stripes.iter().map(|stripe| &**stripe)
    }
}

/// One lock's worth of keys.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    completed: HashTable<Slot>,
    live: HashTable<Box<Live>>,
    /// The store is closed: every transition that looks here stops.
    pub(crate) closed: bool,
}

/// The slots that may be a key's, as found under the lock: usually none or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    first: Option<Slot>,
    more: Vec<Slot>,
}

impl Candidates {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<Slot> {
        self.first
    }

    #[inline]
    pub(crate) fn more(&self) -> &[Slot] {
        &self.more
    }
}

impl Stripe {
    /// The slots that may be of a key with this hash, in a fixed order as long as none changes.
    #[inline]
    pub(crate) fn candidates(&self, hash: u64) -> Candidates {
        let mut found = Candidates::default();
        let table_hash = slot::table_hash(hash);
        for slot in self
            .completed
            .iter_hash(table_hash)
            .filter(|slot| slot.may_be(hash))
        {
            match found.first {
                None => found.first = Some(*slot),
                Some(_) => found.more.push(*slot),
            }
        }
        found
    }

    /// Makes room for so many more slots at once.
    pub(crate) fn reserve_completed(&mut self, count: usize) {
        self.completed.reserve(count, |slot| slot.table_hash());
    }

    /// Whether exactly this slot is there.
    pub(crate) fn has_completed(&self, slot: Slot) -> bool {
        let same = |found: &Slot| *found == slot;
        self.completed.find(slot.table_hash(), same).is_some()
    }

    /// Lets a result be found in another place, if it still is in the old one.
    pub(crate) fn move_completed(&mut self, old: Slot, new: Slot) -> bool {
        let same = |found: &Slot| *found == old;
        match self.completed.find_mut(old.table_hash(), same) {
            Some(slot) => {
                *slot = new;
                true
            }
            None => false,
        }
    }

    /// Whether a transition of a key with this hash is under way.
    pub(crate) fn is_changing_at(&self, hash: u64) -> bool {
        let found = self.live.iter_hash(mix(hash));
        found
            .filter(|live| live.hash == hash)
            .any(|live| live.phase == Phase::Changing)
    }

    /// Gives memory back that the tables have not needed since a peak.
    pub(crate) fn shrink(&mut self) {
        let is_large = |capacity: usize, len: usize| capacity > 64 && len < capacity / 4;
        if is_large(self.completed.capacity(), self.completed.len()) {
            let len = self.completed.len();
            self.completed
                .shrink_to(len + len / 2, |slot| slot.table_hash());
        }
        if is_large(self.live.capacity(), self.live.len()) {
            let len = self.live.len();
            self.live.shrink_to(len + len / 2, |live| mix(live.hash));
        }
    }

    /// Adds the slot of a key that has none.
    pub(crate) fn insert_completed(&mut self, slot: Slot) {
        self.completed
            .insert_unique(slot.table_hash(), slot, |slot| {
                if mutation("grown_by_another_hash") {
                    return mix(slot.table_hash());
                }
                slot.table_hash()
            });
    }

    /// Removes exactly this slot; `false` when it is not there.
    pub(crate) fn remove_completed(&mut self, slot: Slot) -> bool {
        match self
            .completed
            .find_entry(slot.table_hash(), |found| *found == slot)
        {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// The entry of a key that is not completed.
    #[inline]
    pub(crate) fn live(&mut self, hash: u64, key: &Key) -> Option<&mut Live> {
        // Most keys are looked up when they are done: that spares them a line of memory.
        if self.live.is_empty() {
            return None;
        }
        self.live
            .find_mut(mix(hash), |live| live.hash == hash && live.key == *key)
            .map(|live| &mut **live)
    }

    /// Adds the entry of a key that has none.
    pub(crate) fn insert_live(&mut self, live: Box<Live>) {
        self.live
            .insert_unique(mix(live.hash), live, |live| mix(live.hash));
    }

    /// Takes the entry of a key out.
    pub(crate) fn remove_live(&mut self, hash: u64, key: &Key) -> Option<Box<Live>> {
        self.live
            .find_entry(mix(hash), |live| live.hash == hash && live.key == *key)
            .ok()
            .map(|entry| entry.remove().0)
    }

    /// The entries of this stripe.
    pub(crate) fn live_entries(&self) -> impl Iterator<Item = &Live> {
        self.live.iter().map(|live| &**live)
    }

    /// The entries of this stripe, to be changed.
    pub(crate) fn live_entries_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.live.iter_mut().map(|live| &mut **live)
    }

    /// Whether a transition is under way.
    pub(crate) fn is_changing(&self) -> bool {
        self.live.iter().any(|live| live.phase == Phase::Changing)
    }

    /// The slots of this stripe.
    pub(crate) fn completed(&self) -> impl Iterator<Item = Slot> {
        self.completed.iter().copied()
    }

    /// How many keys have a result, expired ones that were not reclaimed included.
    pub(crate) fn completed_count(&self) -> usize {
        self.completed.len()
    }

    /// Bytes of both tables.
    pub(crate) fn table_bytes(&self) -> usize {
        self.completed.allocation_size() + self.live.allocation_size()
    }
}
