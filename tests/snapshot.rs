//! Snapshots: a copy that opens, taken while the store goes on.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use oncekey::{
    ClaimOptions, Durability, KeyState, OpenError, Options, Recovery, SnapshotError, Store,
    Unavailable,
};

use support::*;

fn numbered(number: usize) -> oncekey::Key {
    key(&format!("n-{number}"))
}

fn response(number: usize) -> Vec<u8> {
    format!("response {number} ").repeat(60).into_bytes()
}

/// A store of several segments, each key completed.
fn filled(durability: Durability, keys: usize) -> (tempfile::TempDir, Store) {
    let directory = directory();
    let store = small(durability)
        .open(directory.path().join("store"))
        .expect("a new store");
    for number in 0..keys {
        finish(&store, &numbered(number), response(number));
    }
    (directory, store)
}

fn open(path: &Path) -> Store {
    small(Durability::Sync).open(path).expect("opens")
}

fn assert_holds(store: &Store, keys: std::ops::Range<usize>) {
    for number in keys {
        let saved = completed(
            store
                .claim(&numbered(number), request())
                .expect("an answer"),
        );
        assert_eq!(bytes(&saved), response(number));
    }
}

#[test]
fn a_snapshot_answers_as_the_store_did_and_both_go_on() {
    for durability in DURABILITIES {
        let (directory, store) = filled(durability, 300);
        let held = started(store.claim(&key("held"), request()).expect("a claim"));
        let path = directory.path().join("backups/first");
        let taken = store.snapshot(&path).expect("a snapshot");
        assert!(taken.files_linked >= 3, "{taken:?}");
        assert_eq!(taken.files_copied, 1, "{taken:?}");
        assert!(taken.bytes_copied <= 64 << 10, "{taken:?}");

        finish(&store, &key("later"), "later");
        held.complete("held").expect("a completion");

        let copy = open(&path);
        assert!(copy.recovery_report().clean);
        assert_holds(&copy, 0..300);
        assert!(matches!(copy.get(&key("later")), Ok(KeyState::Absent)));
        let again = interrupted(copy.claim(&key("held"), request()).expect("a claim"));
        again.complete("again").expect("a completion");
        finish(&copy, &key("later"), "another");

        assert_holds(&store, 0..300);
        let saved = completed(store.claim(&key("held"), request()).expect("an answer"));
        assert_eq!(bytes(&saved), b"held");
        drop((store, copy));
        assert_holds(&open(&directory.path().join("store")), 0..300);
        assert_holds(&open(&path), 0..300);
    }
}

#[test]
fn tokens_of_a_snapshot_are_above_all_that_the_original_gives() {
    let (directory, store) = filled(Durability::Buffered, 3);
    let path = directory.path().join("backup");
    store.snapshot(&path).expect("a snapshot");
    let copy = open(&path);
    let of_copy = started(copy.claim(&key("new"), request()).expect("a claim"));
    drop(store);
    for round in 0..5 {
        let store = open(&directory.path().join("store"));
        let claim = store.claim(&key(&format!("new-{round}")), request());
        let of_store = started(claim.expect("a claim"));
        assert!(of_copy.token() > of_store.token());
    }
    drop(of_copy);
    drop(copy);
    // Only its first open is one of a copy.
    let token =
        |id: &str| started(open(&path).claim(&key(id), request()).expect("a claim")).token();
    let (high, higher) = (token("a").as_u64(), token("b").as_u64());
    assert!(high < higher && higher - high < 1 << 40);
}

#[test]
fn what_was_first_sent_before_the_snapshot_is_opened_may_be_too_late() {
    let (directory, store) = filled(Durability::Buffered, 1);
    let path = directory.path().join("backup");
    store.snapshot(&path).expect("a snapshot");
    let sent = std::time::SystemTime::now() - ms(1_000);
    let first_sent = ClaimOptions::new().first_sent(sent);
    drop(started(
        store
            .claim_with(&key("lost"), request(), first_sent.clone())
            .expect("a claim"),
    ));
    let claim = open(&path).claim_with(&key("lost"), request(), first_sent);
    assert!(matches!(claim, Ok(oncekey::Claim::TooLate(_))), "{claim:?}");
}

/// What was completed before the call is in the copy, whatever goes on meanwhile; what is in it is
/// whole.
#[test]
fn snapshots_of_a_busy_store_hold_all_that_was_acknowledged_before() {
    let directory = directory();
    let store = small(Durability::Buffered)
        .open(directory.path().join("store"))
        .expect("a new store");
    let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                finish(&store, &numbered(number), response(number));
                number += 1;
                done.store(number, Ordering::SeqCst);
            }
        });
        for round in 0..6 {
            eventually("some keys", || done.load(Ordering::SeqCst) > round * 80);
            let before = done.load(Ordering::SeqCst);
            let path = directory.path().join(format!("backup-{round}"));
            store.snapshot(&path).expect("a snapshot");
            let after = done.load(Ordering::SeqCst);
            let copy = open(&path);
            assert!(copy.recovery_report().clean, "{}", copy.recovery_report());
            assert_holds(&copy, 0..before);
            let held = copy.stats().completed_keys as usize;
            assert!(
                (before..=after + 1).contains(&held),
                "{before} {held} {after}"
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn on_another_file_system_everything_is_copied() {
    let (_directory, store) = filled(Durability::Buffered, 200);
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        println!("SKIPPED: there is no /dev/shm");
        return;
    };
    let device = |path: &Path| fs::metadata(path).expect("metadata").dev();
    if device(other.path()) == device(store.path()) {
        println!("SKIPPED: /dev/shm and the temporary directory are one file system");
        return;
    }
    let path = other.path().join("backup");
    let taken = store.snapshot(&path).expect("a snapshot");
    assert_eq!(taken.files_linked, 0);
    assert!(taken.files_copied > 3, "{taken:?}");
    assert_holds(&open(&path), 0..200);
}

#[test]
fn the_stores_own_directory_and_used_ones_are_refused() {
    let (directory, store) = filled(Durability::Buffered, 3);
    let outside = directory.path().join("link");
    symlink(store.path(), &outside).expect("a link");
    for inside in [
        store.path().to_path_buf(),
        store.path().join("backup"),
        store.path().join("a/b"),
        outside.join("backup"),
        store.path().join("../store/backup"),
    ] {
        let refused = store.snapshot(&inside);
        assert!(
            matches!(refused, Err(SnapshotError::InsideStore { .. })),
            "{inside:?}: {refused:?}"
        );
    }
    let used = directory.path().join("used");
    fs::create_dir(&used).expect("a directory");
    fs::write(used.join("notes"), "mine").expect("a file");
    match store.snapshot(&used) {
        Err(SnapshotError::NotEmpty { found, .. }) => assert_eq!(found, "notes"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(used.join("notes")).expect("a file"), b"mine");
    let backup = directory.path().join("backup");
    store.snapshot(&backup).expect("a snapshot");
    let copy = open(&backup);
    let refused = store.snapshot(&backup);
    assert!(
        matches!(refused, Err(SnapshotError::InUse { .. })),
        "{refused:?}"
    );
    drop(copy);
    let refused = store.snapshot(&backup);
    assert!(
        matches!(refused, Err(SnapshotError::NotEmpty { .. })),
        "{refused:?}"
    );

    store.close().expect("closes");
    let closed = store.snapshot(directory.path().join("closed"));
    let is_closed = matches!(closed, Err(SnapshotError::Unavailable(Unavailable::Closed)));
    assert!(is_closed, "{closed:?}");
    // Nothing of all that is in the store's directory.
    assert_holds(&open(store.path()), 0..3);
}

/// A salvage of the store changes bytes that the snapshot shares; it must not change the snapshot.
#[test]
fn a_salvage_of_the_store_leaves_its_snapshots_alone() {
    let (directory, store) = filled(Durability::Buffered, 200);
    let path = directory.path().join("backup");
    store.snapshot(&path).expect("a snapshot");
    drop(store);
    let store = directory.path().join("store");
    let name = fs::read_dir(&store)
        .expect("a list")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().ends_with(".log"))
        .min()
        .expect("a segment");
    // One inode under two names: both are damaged.
    let mut damaged = fs::read(store.join(&name)).expect("a segment");
    damaged[9_000] ^= 1;
    fs::write(store.join(&name), &damaged).expect("written");
    assert_eq!(fs::read(path.join(&name)).expect("the link"), damaged);

    let salvaged = Options::new().recovery(Recovery::Salvage).open(&store);
    let salvaged = salvaged.expect("opens");
    assert_eq!(salvaged.recovery_report().losses.len(), 1);
    assert_eq!(fs::read(path.join(&name)).expect("the link"), damaged);
    let refused = Options::new().open(&path).map(drop);
    assert!(
        matches!(refused, Err(OpenError::Corrupt { .. })),
        "{refused:?}"
    );
}

#[cfg(feature = "testing")]
mod on_simulated_disks {
    use oncekey::testing::{Fault, FaultPlan, OperationKind, SimulatedDisk};

    use super::*;

    fn store() -> (SimulatedDisk, Store) {
        let disk = SimulatedDisk::new();
        let store = small(Durability::Sync)
            .open_simulated(&disk)
            .expect("opens");
        for number in 0..60 {
            finish(&store, &numbered(number), response(number));
        }
        (disk, store)
    }

    fn operations(store: &Store) -> u64 {
        let target = SimulatedDisk::new();
        store.snapshot_simulated(&target).expect("a snapshot");
        target.operations()
    }

    #[test]
    fn a_snapshot_survives_the_power_once_it_is_acknowledged_and_is_none_before() {
        let (_disk, store) = store();
        let mut outcomes = [0; 2];
        for cut in 0..=operations(&store) {
            for seed in 0..12 {
                let target = SimulatedDisk::with_granule(512);
                target.crash_at(cut);
                let taken = store.snapshot_simulated(&target);
                let crashed = match seed {
                    0 => target.crash_all_lost(),
                    1 => target.crash_none_lost(),
                    _ => target.crash_random(seed),
                };
                let is_whole = crashed.names().iter().any(|name| name == "META");
                assert!(is_whole || taken.is_err(), "cut at {cut}, seed {seed}");
                outcomes[usize::from(is_whole)] += 1;
                let opened = small(Durability::Sync).open_simulated(&crashed);
                match opened {
                    Ok(copy) if is_whole => assert_holds(&copy, 0..60),
                    // Nothing of it was there yet.
                    Ok(copy) => assert!(copy.recovery_report().created, "cut at {cut}"),
                    Err(OpenError::MetaMissing { .. }) => assert!(!is_whole),
                    Err(error) => panic!("cut at {cut}, seed {seed}: {error}"),
                }
            }
        }
        assert!(outcomes.iter().all(|count| *count > 10), "{outcomes:?}");
    }

    #[test]
    fn a_snapshot_that_fails_leaves_nothing_and_the_store_goes_on() {
        let (_disk, store) = store();
        let mut failed = 0;
        for kind in [
            OperationKind::Create,
            OperationKind::Write,
            OperationKind::Sync,
            OperationKind::Rename,
            OperationKind::SyncDirectory,
        ] {
            for fault in [Fault::InputOutput, Fault::NoSpace] {
                for skipped in 0..20 {
                    let target = SimulatedDisk::new();
                    target.fail(FaultPlan::new(kind, fault).after(skipped));
                    match store.snapshot_simulated(&target) {
                        Ok(_) => break,
                        Err(SnapshotError::Io { .. }) => failed += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                    assert_eq!(target.names(), [""; 0], "{kind:?} {skipped}");
                    target.heal();
                    store.snapshot_simulated(&target).expect("a snapshot");
                    assert!(!store.stats().poisoned);
                }
            }
        }
        assert!(failed > 20, "{failed}");
    }

    #[test]
    fn a_poisoned_store_gives_none() {
        let (disk, store) = store();
        let held = started(store.claim(&key("held"), request()).expect("a claim"));
        disk.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput));
        held.complete("lost").expect_err("the sync fails");
        let target = SimulatedDisk::new();
        let refused = store.snapshot_simulated(&target);
        let poisoned = matches!(
            refused,
            Err(SnapshotError::Unavailable(Unavailable::Poisoned { .. }))
        );
        assert!(poisoned, "{refused:?}");
        assert_eq!(target.names(), [""; 0]);
    }
}
