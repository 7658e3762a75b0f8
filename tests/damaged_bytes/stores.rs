//! Small stores of every kind, made through the public interface on a simulated disk.

use std::sync::Arc;

use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};
use oncekey::{Claim, ClaimOptions, Durability, Key, ManualClock, Options, Recovery, Store};

use crate::answers::Keys;
use crate::layout::{Files, Layout};
use crate::support::kinds::every_kind;
use crate::support::{START_MS, key, ms, request};

/// When stores are opened to see what they answer, in ms.
pub const JUDGED_MS: u64 = START_MS + 3_600_000;

/// A store's files, and what they hold.
pub struct Subject {
    pub name: &'static str,
    pub files: Files,
    pub layout: Layout,
    pub keys: Keys,
    /// How many bytes share a case in the short version, where stores are alike.
    stride: usize,
}

impl Subject {
    pub fn new(name: &'static str, files: Files) -> Self {
        let layout = Layout::read(&files);
        let keys = Keys::read(&layout);
        Self {
            name,
            files,
            layout,
            keys,
            stride: 1,
        }
    }

    /// In the short version only every third byte: another store has much the same.
    fn thin(mut self) -> Self {
        self.stride = 3;
        self
    }

    /// Whether the short version has a case for this byte.
    pub fn chosen(&self, byte: usize) -> bool {
        byte.is_multiple_of(self.stride)
    }

    pub fn segment_names(&self) -> Vec<String> {
        let segments = self.layout.segments.iter();
        segments.map(|segment| segment.name.clone()).collect()
    }
}

pub fn options(clock: &ManualClock) -> Options {
    Options::new()
        .durability(Durability::Sync)
        .segment_size(64 << 10)
        .stripes(1)
        // What is on the disk is known byte by byte, and damaged where it is.
        .maintenance(false)
        .clock(Arc::new(clock.clone()))
}

/// As the stores are opened to be judged.
pub fn judging(recovery: Recovery) -> Options {
    options(&ManualClock::new(JUDGED_MS)).recovery(recovery)
}

pub fn disk_of(files: &Files) -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    for (name, bytes) in files {
        disk.put(name, bytes);
    }
    disk
}

/// All files but side-cars: when those are written is chance, and without them an open reads every
/// record.
pub fn files_of(disk: &SimulatedDisk) -> Files {
    let mut files = all_files_of(disk);
    files.retain(|name, _| !name.contains(SIDE_CAR));
    files
}

/// In the names of side-cars, finished or not.
pub const SIDE_CAR: &str = ".idx";

pub fn all_files_of(disk: &SimulatedDisk) -> Files {
    let contents = |name: String| {
        let bytes = disk.contents(&name)?;
        Some((name, bytes))
    };
    disk.names().into_iter().filter_map(contents).collect()
}

/// A store being made.
pub struct Making {
    pub disk: SimulatedDisk,
    pub clock: ManualClock,
}

impl Making {
    pub fn new() -> Self {
        Self {
            disk: SimulatedDisk::new(),
            clock: ManualClock::new(START_MS),
        }
    }

    pub fn open(&self) -> Store {
        self.open_with(options(&self.clock))
    }

    pub fn open_with(&self, options: Options) -> Store {
        self.clock.advance(ms(10));
        let store = options.open_simulated(&self.disk).expect("a store");
        crate::support::prepared(store)
    }

    /// The files as a process that is killed now leaves them.
    pub fn killed(&self) -> Files {
        files_of(&self.disk.crash_none_lost())
    }

    /// The files of a store that nobody has open.
    pub fn closed(&self) -> Files {
        files_of(&self.disk)
    }
}

fn owned(claim: Result<Claim, oncekey::ClaimError>) -> oncekey::Operation {
    crate::support::owned(claim.expect("a claim"))
}

/// Some records that are written at the speed of memory: in a killed store they are above every
/// watermark.
fn buffered(store: &Store, prefix: &str) {
    let options = || ClaimOptions::new().durability(Durability::Buffered);
    for number in 0..6 {
        let key = key(&format!("{prefix}-{number}"));
        let operation = owned(store.claim_with(&key, request(), options()));
        if number % 3 != 2 {
            operation
                .complete(vec![number; 10 * usize::from(number)])
                .expect("completes");
        }
    }
}

/// Closed properly, three times: three small segments.
pub fn closed() -> Subject {
    closed_on(Making::new())
}

pub fn closed_on(making: Making) -> Subject {
    write_closed(&making);
    Subject::new("closed", making.closed())
}

/// The same with a side-car beside each segment: nothing but those need be read.
pub fn closed_with_side_cars() -> Subject {
    let making = Making::new();
    write_closed(&making);
    Subject::new("closed, with side-cars", all_files_of(&making.disk))
}

fn write_closed(making: &Making) {
    for (prefix, kinds) in [("a", true), ("b", false), ("c", false)] {
        let store = making.open();
        if kinds {
            every_kind(&store, &making.clock, prefix);
        } else {
            buffered(&store, prefix);
            // What the life before left pending, taken over.
            let key = key("a-pending");
            owned(store.claim(&key, request()))
                .checkpoint(prefix)
                .expect("a note");
        }
        store.close().expect("closes");
    }
}

/// Killed while it was open, with records that no watermark vouches for.
pub fn killed() -> Subject {
    killed_on(Making::new())
}

pub fn killed_on(making: Making) -> Subject {
    let store = making.open();
    buffered(&store, "a");
    store.close().expect("closes");
    let store = making.open();
    every_kind(&store, &making.clock, "b");
    buffered(&store, "c");
    let files = making.killed();
    drop(store);
    Subject::new("killed", files)
}

/// Killed, recovered, and killed right after that.
pub fn recovered() -> Subject {
    let making = Making {
        disk: disk_of(&killed().files),
        clock: ManualClock::new(START_MS + 1_000),
    };
    let store = making.open();
    let files = making.killed();
    drop(store);
    Subject::new("recovered", files).thin()
}

/// A sync failed; then it was closed.
pub fn poisoned() -> Subject {
    let making = Making::new();
    let store = making.open();
    every_kind(&store, &making.clock, "a");
    making
        .disk
        .fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).on("segment-"));
    assert!(store.claim(&key("unknown"), request()).is_err());
    assert!(store.stats().poisoned);
    assert!(store.close().is_err(), "what failed stays failed");
    drop(store);
    Subject::new("poisoned", making.killed()).thin()
}

/// A copy that was put back and opened with `restored`.
pub fn restored() -> Subject {
    let making = Making {
        disk: disk_of(&closed().files),
        clock: ManualClock::new(START_MS + 1_000),
    };
    let store = making.open_with(options(&making.clock).restored(true));
    buffered(&store, "r");
    store.close().expect("closes");
    Subject::new("restored", making.closed()).thin()
}

/// Segments that were filled up, so that one ends in padding.
pub fn rolled_over() -> Subject {
    let making = Making::new();
    write_rolled_over(&making);
    Subject::new("rolled over", making.closed())
}

/// The same with side-cars.
pub fn rolled_over_with_side_cars() -> Subject {
    let making = Making::new();
    write_rolled_over(&making);
    Subject::new("rolled over, with side-cars", all_files_of(&making.disk))
}

fn write_rolled_over(making: &Making) {
    let store = making.open();
    for number in 0..9_u8 {
        let key = key(&format!("big-{number}"));
        owned(store.claim(&key, request()))
            .complete(vec![number; 12_000 + usize::from(number)])
            .expect("completes");
    }
    store.close().expect("closes");
}

/// Damaged, salvaged and closed: there are copies of what was damaged, and padding in its place.
pub fn salvaged() -> Subject {
    let whole = closed();
    let mut files = whole.files.clone();
    let segment = &whole.layout.segments[0];
    let place = &segment.places[5];
    files.get_mut(&segment.name).expect("a segment")[place.bytes.start + 40] ^= 1;
    let making = Making {
        disk: disk_of(&files),
        clock: ManualClock::new(START_MS + 1_000),
    };
    let store = making.open_with(options(&making.clock).recovery(Recovery::Salvage));
    assert_eq!(store.recovery_report().losses.len(), 1);
    buffered(&store, "s");
    store.close().expect("closes");
    let mut files = making.closed();
    // What a crash in the middle of preparing a segment leaves.
    files.insert(
        "segment-0000fff000000000.log.tmp".to_owned(),
        whole.files[&segment.name].clone(),
    );
    Subject::new("salvaged", files).thin()
}

/// A key that no store has seen.
pub fn new_key() -> Key {
    key("written after the damage")
}
