//! Stores for the contest: always with room enough, never more on the disk than a few segments.

use std::ops::Range;
use std::sync::Arc;

use oncekey::Durability;
use tempfile::TempDir;

use super::contestants::Contestant;
use super::place::directory;

/// Gives out stores with room for the next lap, and the numbers of keys that are free in them.
pub struct Host<C> {
    durability: Durability,
    capacity: usize,
    used: usize,
    // Dropped in this order: the store before its directory.
    current: Option<(Arc<C>, TempDir)>,
}

impl<C: Contestant> Host<C> {
    /// Stores that are replaced after `capacity` lifecycles.
    pub fn new(durability: Durability, capacity: usize) -> Self {
        Self {
            durability,
            capacity,
            used: 0,
            current: None,
        }
    }

    /// A store with room for `lifecycles`, all of it prepared.
    pub fn room(&mut self, lifecycles: usize) -> (Arc<C>, Range<usize>) {
        assert!(lifecycles <= self.capacity);
        if self.used + lifecycles > self.capacity {
            self.current = None;
        }
        if self.current.is_none() {
            self.used = 0;
        }
        let (store, _) = self.current.get_or_insert_with(|| {
            let directory = directory();
            let opened = C::open(directory.path(), self.durability, self.capacity);
            (Arc::new(opened.expect("a store")), directory)
        });
        store.settle();
        let range = self.used..self.used + lifecycles;
        self.used = range.end;
        (Arc::clone(store), range)
    }
}
