//! The bare floor: what a mapped log under a striped index costs at the very least.
//!
//! A prototype of the crate's design without what makes it a store: no leases, no expiry, no
//! recovery, no roll-over, no limits, no clocks, no errors to come back from. What is left is done
//! as the design asks and writes the same bytes, so that the ratio of the two tells what the
//! semantics cost and nothing else:
//!
//! * cache-padded stripes, each a mutex over a table of 8-byte slots and a side table of pending
//!   keys; a transition marks the key under the lock, appends without it, and publishes under it;
//! * one file, allocated and populated before the clock starts; a record is reserved with a
//!   compare-and-swap in the map, copied in, checksummed and committed;
//! * responses are handed out in place, by a handle that keeps the map;
//! * for `Sync` a leader syncs once for all who wait behind it. [`BareSync`] is the least that two
//!   durable steps of one thread can cost: store, `fdatasync`, store, `fdatasync`.
#![allow(dead_code, reason = "each bench uses its part")]

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::{Condvar, Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Words of a record's head, as many as oncekey's.
const HEAD_WORDS: usize = 15;
/// Bytes of a record before what the checksum covers.
const COVERED_FROM: usize = 12;
/// Bits of a slot that hold the location; the rest is of the hash.
const LOCATION_BITS: u32 = 39;
const STRIPES: usize = 1_024;

const LENGTH_MASK: u64 = (1 << 24) - 1;
const RESERVED: u64 = 1 << 32;
const COMMITTED: u64 = 2 << 32;

/// Bytes that the log takes for one lifecycle.
pub const fn lifecycle_bytes(key: usize, response: usize) -> usize {
    record_bytes(key, 0) + record_bytes(key, response)
}

const fn record_bytes(key: usize, response: usize) -> usize {
    (HEAD_WORDS * 8 + key + response).next_multiple_of(8)
}

/// A file of fixed size, mapped, with every page present.
pub struct Mapped {
    map: MmapRaw,
    file: File,
    words: u64,
    tail: CachePadded<AtomicU64>,
}

// SAFETY-relevant contract of the three accessors below: a range belongs to the thread whose
// compare-and-swap reserved it until that thread stores the committed word, and is never written
// again afterwards.
impl Mapped {
    /// Allocates, maps and populates. With `zeroed_ahead` the empty pages are written to the disk
    /// first, so that a later sync writes only what was stored since.
    pub fn create(path: &Path, bytes: u64, zeroed_ahead: bool) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(4_096);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        allocate(&file, bytes)?;
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file)?;
        #[cfg(target_os = "linux")]
        match map.advise(memmap2::Advice::PopulateWrite) {
            // Linux before 5.14 leaves it to the first store.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
            _ => {}
        }
        if zeroed_ahead {
            file.sync_data()?;
        }
        Ok(Self {
            map,
            file,
            words: bytes / 8,
            tail: CachePadded::new(AtomicU64::new(0)),
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset < self.words);
        // SAFETY: in range and aligned, since a map begins on a page; first words of records are
        // only ever reached through this.
        unsafe {
            &*self
                .map
                .as_mut_ptr()
                .cast::<AtomicU64>()
                .add(offset as usize)
        }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.words as usize * 8);
        // SAFETY: in range; the caller reserved the target and has not committed it.
        unsafe {
            let target = self.map.as_mut_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.words as usize * 8);
        // SAFETY: in range; the caller reserved the range, or saw it committed.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at), len) }
    }

    fn reserve(&self, words: u64) -> u64 {
        let mut offset = self.tail.load(Ordering::Acquire);
        loop {
            assert!(offset + words <= self.words, "the floor's file is full");
            match self.word(offset).compare_exchange(
                0,
                RESERVED | words,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    // A hint: where it lags, the lengths lead on.
                    self.tail.store(offset + words, Ordering::Release);
                    return offset;
                }
                Err(found) => offset += found & LENGTH_MASK,
            }
        }
    }

    /// Appends a record; its offset and its end, in words.
    fn append(&self, record: &Record<'_>) -> (u64, u64) {
        let words = record_bytes(record.key.len(), record.response.len()) as u64 / 8;
        let offset = self.reserve(words);
        let start = offset as usize * 8;
        let head = record.head(offset);
        self.copy_in(start + 8, &head[8..]);
        self.copy_in(start + HEAD_WORDS * 8, record.key);
        let response_at = start + HEAD_WORDS * 8 + record.key.len();
        self.copy_in(response_at, record.response);
        let covered = self.bytes(start + COVERED_FROM, words as usize * 8 - COVERED_FROM);
        let crc = crc32fast::hash(covered);
        self.copy_in(start + 8, &crc.to_le_bytes());
        self.word(offset)
            .store(COMMITTED | words, Ordering::Release);
        (offset, offset + words)
    }

    /// How far records are committed, waiting for those below `target`.
    fn committed_prefix(&self, from: u64, target: u64) -> u64 {
        let mut offset = from;
        while offset < self.words {
            let word = self.word(offset).load(Ordering::Acquire);
            if word & COMMITTED != 0 {
                offset += word & LENGTH_MASK;
            } else if offset < target {
                std::thread::yield_now();
            } else {
                break;
            }
        }
        offset
    }
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    Ok(fallocate(file, FallocateFlags::empty(), 0, bytes)?)
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

/// What a record says.
struct Record<'a> {
    kind: u8,
    token: u64,
    fingerprint: u128,
    key: &'a [u8],
    response: &'a [u8],
}

impl Record<'_> {
    fn head(&self, sequence: u64) -> [u8; HEAD_WORDS * 8] {
        let mut head = [0; HEAD_WORDS * 8];
        head[12] = self.kind;
        head[16..24].copy_from_slice(&sequence.to_le_bytes());
        head[24..32].copy_from_slice(&self.token.to_le_bytes());
        head[72..88].copy_from_slice(&self.fingerprint.to_le_bytes());
        head[104..106].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        head[112..116].copy_from_slice(&(self.response.len() as u32).to_le_bytes());
        head
    }
}

/// A key that is not completed.
struct Pending {
    hash: u64,
    key: Arc<[u8]>,
    fingerprint: u128,
    token: u64,
    changing: bool,
}

#[derive(Default)]
struct Stripe {
    completed: HashTable<u64>,
    pending: HashTable<Pending>,
}

impl Stripe {
    fn pending(&mut self, hash: u64, key: &[u8]) -> Option<&mut Pending> {
        self.pending.find_mut(mix(hash), |pending| {
            pending.hash == hash && *pending.key == *key
        })
    }

    /// Where the record of a key with this hash may stand: the first place, and the rest of the
    /// few that share the bits a slot keeps.
    fn locations(&self, hash: u64) -> (Option<u64>, Vec<u64>) {
        let tag = hash >> LOCATION_BITS;
        let mut found = self
            .completed
            .iter_hash(mix(tag))
            .filter(|slot| **slot >> LOCATION_BITS == tag)
            .map(|slot| slot & ((1 << LOCATION_BITS) - 1));
        (found.next(), found.collect())
    }
}

/// The prototype.
pub struct Floor {
    stripes: Box<[CachePadded<Mutex<Stripe>>]>,
    log: Arc<Mapped>,
    commit: Commit,
    secret: [u8; 192],
    durable: AtomicBool,
}

/// The right to complete a key.
pub struct Guard {
    key: Arc<[u8]>,
    hash: u64,
    fingerprint: u128,
    token: u64,
}

/// A stored response, in place.
pub struct Response {
    log: Arc<Mapped>,
    at: usize,
    len: usize,
}

impl std::ops::Deref for Response {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.log.bytes(self.at, self.len)
    }
}

/// What a claim led to.
pub enum Claimed {
    Started(Guard),
    InProgress,
    Completed(Response),
    Mismatch,
}

impl Floor {
    /// A floor with a log of `bytes` at `path`; `durable` ones sync every step.
    pub fn create(path: &Path, bytes: u64, durable: bool) -> io::Result<Self> {
        let mut secret = [0; 192];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        Ok(Self {
            stripes: (0..STRIPES)
                .map(|_| CachePadded::new(Mutex::new(Stripe::default())))
                .collect(),
            log: Arc::new(Mapped::create(path, bytes, durable)?),
            commit: Commit::default(),
            secret,
            durable: AtomicBool::new(durable),
        })
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Stripe> {
        self.stripes[hash as usize & (STRIPES - 1)].lock()
    }

    /// Starts the operation of a key, or tells what became of it.
    pub fn claim(&self, key: &Arc<[u8]>, fingerprint: u128) -> Claimed {
        let hash = xxh3_64_with_secret(key, &self.secret);
        {
            let mut stripe = self.lock(hash);
            if let Some(pending) = stripe.pending(hash, key) {
                return if pending.fingerprint == fingerprint {
                    Claimed::InProgress
                } else {
                    Claimed::Mismatch
                };
            }
            if let (Some(first), more) = stripe.locations(hash) {
                drop(stripe);
                for offset in std::iter::once(first).chain(more) {
                    if let Some(claimed) = self.completed(offset, key, fingerprint) {
                        return claimed;
                    }
                }
                stripe = self.lock(hash);
            }
            let pending = Pending {
                hash,
                key: Arc::clone(key),
                fingerprint,
                token: 0,
                changing: true,
            };
            stripe
                .pending
                .insert_unique(mix(hash), pending, |pending| mix(pending.hash));
        }
        let (token, end) = self.log.append(&Record {
            kind: 1,
            token: 0,
            fingerprint,
            key,
            response: &[],
        });
        if let Some(pending) = self.lock(hash).pending(hash, key) {
            pending.token = token;
            pending.changing = false;
        }
        self.reach(end);
        Claimed::Started(Guard {
            key: Arc::clone(key),
            hash,
            fingerprint,
            token,
        })
    }

    /// What the record at `offset` answers, if it is this key's.
    fn completed(&self, offset: u64, key: &[u8], fingerprint: u128) -> Option<Claimed> {
        let words = self.log.word(offset).load(Ordering::Acquire);
        assert!(words & COMMITTED != 0);
        let words = words & LENGTH_MASK;
        let start = offset as usize * 8;
        let record = self.log.bytes(start, words as usize * 8);
        let key_end = HEAD_WORDS * 8 + key.len();
        let key_len = u16::from_le_bytes([record[104], record[105]]);
        if usize::from(key_len) != key.len() || record[HEAD_WORDS * 8..key_end] != *key {
            return None;
        }
        if record[72..88] != fingerprint.to_le_bytes() {
            return Some(Claimed::Mismatch);
        }
        self.reach(offset + words);
        let len = u32::from_le_bytes([record[112], record[113], record[114], record[115]]);
        Some(Claimed::Completed(Response {
            log: Arc::clone(&self.log),
            at: start + key_end,
            len: len as usize,
        }))
    }

    /// Ends an operation.
    pub fn complete(&self, guard: Guard, response: &[u8]) {
        {
            let mut stripe = self.lock(guard.hash);
            let pending = stripe.pending(guard.hash, &guard.key).expect("it is held");
            assert!(pending.token == guard.token && !pending.changing);
            pending.changing = true;
        }
        let (offset, end) = self.log.append(&Record {
            kind: 3,
            token: guard.token,
            fingerprint: guard.fingerprint,
            key: &guard.key,
            response,
        });
        let tag = guard.hash >> LOCATION_BITS;
        let ended = {
            let mut stripe = self.lock(guard.hash);
            let ended = stripe
                .pending
                .find_entry(mix(guard.hash), |pending| {
                    pending.hash == guard.hash && pending.key == guard.key
                })
                .ok()
                .map(|entry| entry.remove().0);
            stripe
                .completed
                .insert_unique(mix(tag), tag << LOCATION_BITS | offset, |slot| {
                    mix(slot >> LOCATION_BITS)
                });
            ended
        };
        drop(ended);
        self.reach(end);
    }

    fn reach(&self, end: u64) {
        if self.durable.load(Ordering::Relaxed) {
            self.commit.reach(&self.log, end);
        }
    }

    /// Runs `work` without syncing.
    pub fn buffered(&self, work: impl FnOnce(&Self)) {
        let durable = self.durable.swap(false, Ordering::Relaxed);
        work(self);
        self.durable.store(durable, Ordering::Relaxed);
    }

    /// Makes everything appended so far durable.
    pub fn flush(&self) {
        let end = self.log.tail.load(Ordering::Acquire);
        self.commit.reach(&self.log, end);
    }
}

/// Group commit at its simplest: whoever finds nobody at it syncs for all.
#[derive(Default)]
struct Commit {
    watermark: CachePadded<AtomicU64>,
    leading: Mutex<bool>,
    synced: Condvar,
}

impl Commit {
    fn reach(&self, log: &Mapped, target: u64) {
        if self.watermark.load(Ordering::Acquire) >= target {
            return;
        }
        let mut leading = self.leading.lock();
        while self.watermark.load(Ordering::Acquire) < target {
            if *leading {
                self.synced.wait(&mut leading);
                continue;
            }
            *leading = true;
            MutexGuard::unlocked(&mut leading, || {
                let from = self.watermark.load(Ordering::Acquire);
                let end = log.committed_prefix(from, target);
                log.file.sync_data().expect("a sync");
                self.watermark.store(end, Ordering::Release);
            });
            *leading = false;
            self.synced.notify_all();
        }
    }
}

/// Two durable steps and nothing else.
pub struct BareSync {
    log: Mapped,
    at: usize,
    claim: Vec<u8>,
    completion: Vec<u8>,
}

impl BareSync {
    /// Over a file of `bytes`, with records for a key and a response of these sizes.
    pub fn create(path: &Path, bytes: u64, key: usize, response: usize) -> io::Result<Self> {
        Ok(Self {
            log: Mapped::create(path, bytes, true)?,
            at: 0,
            claim: vec![1; record_bytes(key, 0)],
            completion: vec![3; record_bytes(key, response)],
        })
    }

    /// Stores and syncs twice.
    pub fn lifecycle(&mut self) {
        for bytes in [&self.claim, &self.completion] {
            self.log.copy_in(self.at, bytes);
            self.at += bytes.len();
            self.log.file.sync_data().expect("a sync");
        }
    }
}

/// The finaliser of SplitMix64, to spread what a slot kept of a hash.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
