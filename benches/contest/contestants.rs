//! Who competes: oncekey, the bare floor, and a concurrent map that forgets everything.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use oncekey::{
    Claim, ClaimOptions, Durability, Fingerprint, Key, Operation, Options, Replay, Store,
};

use crate::floor::{Claimed, Floor, Guard, lifecycle_bytes};

use super::keys::{KEY_BYTES, Keys, RESPONSE_BYTES};

/// What every request is fingerprinted as.
const REQUEST: &[u8] = br#"{"amount":1200,"currency":"eur","card":"tok_visa"}"#;

/// A store as the contest sees it.
pub trait Contestant: Send + Sync + Sized + 'static {
    /// A key in its shape.
    type Key: Send + Sync;
    /// The right to complete a key.
    type Guard: Send;

    const NAME: &'static str;

    /// Opens one in `directory` with room for `lifecycles` of this shape, prepared to the end.
    fn open(directory: &Path, durability: Durability, lifecycles: usize) -> io::Result<Self>;

    /// Its keys among all.
    fn keys(keys: &Keys) -> &[Self::Key];

    /// Waits until all the room it asked for is prepared.
    fn settle(&self) {}

    /// Starts the operation of a key that is free.
    fn claim(&self, key: &Self::Key) -> Self::Guard;

    /// Completes it.
    fn complete(&self, guard: Self::Guard, response: &[u8]);

    /// Claims a completed key and reads both ends of its response.
    fn replay(&self, key: &Self::Key) -> u8;

    /// Completes keys as fast as it can, then makes them as durable as the store's level asks.
    fn fill(&self, keys: &[Self::Key], response: &[u8]);

    /// Claim and complete.
    fn lifecycle(&self, key: &Self::Key, response: &[u8]) {
        let guard = self.claim(key);
        self.complete(guard, response);
    }
}

fn ends(response: &[u8]) -> u8 {
    match response {
        [first, .., last] => first ^ last,
        _ => panic!("a response of {RESPONSE_BYTES} bytes"),
    }
}

/// The crate.
pub struct Oncekey {
    pub store: Store,
    fingerprint: Fingerprint,
    prepared: u64,
}

/// Bytes of a segment, the default.
const SEGMENT_BYTES: usize = 64 << 20;
/// Room set aside for each completion: what the contest's responses take.
const RESERVED_BYTES: usize = 1_024;

impl Oncekey {
    /// With segments of another size.
    pub fn with_segments(
        directory: &Path,
        durability: Durability,
        segment_bytes: usize,
        prepared: usize,
    ) -> io::Result<Self> {
        let store = Options::new()
            .durability(durability)
            .segment_size(segment_bytes as u64)
            .prepared_segments(prepared)
            .reserved_response(RESERVED_BYTES)
            .open(directory)
            .map_err(io::Error::other)?;
        let contestant = Self {
            store,
            fingerprint: Fingerprint::of(REQUEST),
            prepared: prepared as u64,
        };
        contestant.settle();
        Ok(contestant)
    }
}

impl Contestant for Oncekey {
    type Key = Key;
    type Guard = Operation;

    const NAME: &'static str = "oncekey";

    fn open(directory: &Path, durability: Durability, lifecycles: usize) -> io::Result<Self> {
        let bytes = lifecycles * lifecycle_bytes(KEY_BYTES, RESPONSE_BYTES);
        let prepared = bytes.div_ceil(SEGMENT_BYTES).clamp(1, 64);
        Self::with_segments(directory, durability, SEGMENT_BYTES, prepared)
    }

    fn keys(keys: &Keys) -> &[Key] {
        &keys.oncekey
    }

    fn settle(&self) {
        let patience = Instant::now();
        while self.store.stats().segments_prepared < self.prepared {
            assert!(
                patience.elapsed() < Duration::from_secs(120),
                "no segments are prepared"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn claim(&self, key: &Key) -> Operation {
        match self.store.claim(key, self.fingerprint) {
            Ok(Claim::Started(operation)) => operation,
            other => panic!("{other:?}"),
        }
    }

    fn complete(&self, guard: Operation, response: &[u8]) {
        guard.complete(response).expect("it is held");
    }

    fn replay(&self, key: &Key) -> u8 {
        match self.store.claim(key, self.fingerprint) {
            Ok(Claim::Completed(saved)) => match saved.by_scope() {
                Ok(Replay::Response(response)) => ends(&response),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn fill(&self, keys: &[Key], response: &[u8]) {
        let options = ClaimOptions::new().durability(Durability::Buffered);
        for key in keys {
            match self
                .store
                .claim_with(key, self.fingerprint, options.clone())
            {
                Ok(Claim::Started(operation)) => operation.complete(response).expect("it is held"),
                other => panic!("{other:?}"),
            };
        }
        self.store.flush().expect("a sync");
        self.settle();
    }
}

impl Contestant for Floor {
    type Key = Arc<[u8]>;
    type Guard = Guard;

    const NAME: &'static str = "floor";

    fn open(directory: &Path, durability: Durability, lifecycles: usize) -> io::Result<Self> {
        let bytes = (lifecycles + 1) * lifecycle_bytes(KEY_BYTES, RESPONSE_BYTES);
        let durable = durability == Durability::Sync;
        Floor::create(&directory.join("floor.log"), bytes as u64, durable)
    }

    fn keys(keys: &Keys) -> &[Arc<[u8]>] {
        &keys.bytes
    }

    fn claim(&self, key: &Arc<[u8]>) -> Guard {
        match Floor::claim(self, key, FINGERPRINT) {
            Claimed::Started(guard) => guard,
            _ => panic!("the key is free"),
        }
    }

    fn complete(&self, guard: Guard, response: &[u8]) {
        Floor::complete(self, guard, response);
    }

    fn replay(&self, key: &Arc<[u8]>) -> u8 {
        match Floor::claim(self, key, FINGERPRINT) {
            Claimed::Completed(response) => ends(&response),
            _ => panic!("the key is completed"),
        }
    }

    fn fill(&self, keys: &[Arc<[u8]>], response: &[u8]) {
        self.buffered(|floor| {
            for key in keys {
                floor.lifecycle(key, response);
            }
        });
        self.flush();
    }
}

/// The fingerprint of those that take a plain number.
const FINGERPRINT: u128 = 0x5EED_0000_1234_5678_9ABC_DEF0_1357_9BDF;

/// A `DashMap` with its default hasher: what a service writes that needs no result to outlive it.
pub struct Volatile {
    map: DashMap<Arc<[u8]>, State>,
}

enum State {
    Pending {
        fingerprint: u128,
    },
    Completed {
        fingerprint: u128,
        response: Arc<[u8]>,
    },
}

impl Contestant for Volatile {
    type Key = Arc<[u8]>;
    type Guard = Arc<[u8]>;

    const NAME: &'static str = "DashMap";

    fn open(_: &Path, _: Durability, _: usize) -> io::Result<Self> {
        Ok(Self {
            map: DashMap::new(),
        })
    }

    fn keys(keys: &Keys) -> &[Arc<[u8]>] {
        &keys.bytes
    }

    fn claim(&self, key: &Arc<[u8]>) -> Arc<[u8]> {
        match self.map.entry(Arc::clone(key)) {
            Entry::Vacant(free) => {
                free.insert(State::Pending {
                    fingerprint: FINGERPRINT,
                });
            }
            Entry::Occupied(_) => panic!("the key is free"),
        }
        Arc::clone(key)
    }

    fn complete(&self, guard: Arc<[u8]>, response: &[u8]) {
        let response = Arc::from(response);
        let mut state = self.map.get_mut(&guard).expect("it is held");
        match *state {
            State::Pending { fingerprint } => {
                *state = State::Completed {
                    fingerprint,
                    response,
                };
            }
            State::Completed { .. } => panic!("it is held"),
        }
    }

    fn replay(&self, key: &Arc<[u8]>) -> u8 {
        let found = self.map.get(key).expect("the key is completed");
        match &*found {
            State::Completed {
                fingerprint,
                response,
            } if *fingerprint == FINGERPRINT => {
                let response = Arc::clone(response);
                drop(found);
                ends(&response)
            }
            _ => panic!("the key is completed"),
        }
    }

    fn fill(&self, keys: &[Arc<[u8]>], response: &[u8]) {
        for key in keys {
            self.lifecycle(key, response);
        }
    }
}
