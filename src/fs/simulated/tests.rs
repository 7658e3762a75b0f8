use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::sync::Ordering;

fn create(disk: &SimulatedDisk, name: &str, len: u64) -> Arc<dyn StorageFile> {
    disk.create(name, len).expect("made")
}

/// A file that is there for good.
fn create_durably(disk: &SimulatedDisk, name: &str, contents: &[u8]) -> Arc<dyn StorageFile> {
    let file = create(disk, name, contents.len() as u64);
    file.write_at(0, contents).expect("written");
    file.sync_data().expect("synced");
    disk.sync_directory().expect("synced");
    file
}

fn page(file: &str, offset: u64) -> Difference {
    Difference::Page {
        file: file.to_owned(),
        offset,
    }
}

/// All outcomes of a crash: one disk for each combination of answers.
fn every_crash(disk: &SimulatedDisk) -> Vec<SimulatedDisk> {
    let questions = disk.differences().len();
    assert!(questions < 12, "{questions} questions");
    (0..1_u32 << questions)
        .map(|answers| {
            let mut question = 0;
            disk.crash(&mut |_| {
                question += 1;
                answers >> (question - 1) & 1 == 1
            })
        })
        .collect()
}

#[test]
fn behaves_like_a_directory() {
    let disk = SimulatedDisk::new();
    let file = create(&disk, "b", 10);
    create(&disk, "a", 0);
    let kind = |error: io::Error| error.kind();
    assert_eq!(
        disk.create("a", 0).map_err(kind).err(),
        Some(io::ErrorKind::AlreadyExists)
    );
    assert_eq!(
        disk.open("c").map_err(kind).err(),
        Some(io::ErrorKind::NotFound)
    );
    assert_eq!(disk.remove("c").map_err(kind), Err(io::ErrorKind::NotFound));
    assert_eq!(
        disk.rename("c", "d").map_err(kind),
        Err(io::ErrorKind::NotFound)
    );
    assert_eq!(disk.names(), ["a", "b"]);
    file.write_at(8, b"wxyz").expect("written");
    assert_eq!(disk.list().expect("a list")[1].len, 12);
    disk.rename("b", "a").expect("renamed");
    assert_eq!(disk.names(), ["a"]);
    assert_eq!(disk.contents("a").expect("there"), *b"\0\0\0\0\0\0\0\0wxyz");
    let mut buffer = [0; 4];
    assert_eq!(
        file.read_at(9, &mut buffer).map_err(kind),
        Err(io::ErrorKind::UnexpectedEof)
    );
    file.read_at(8, &mut buffer).expect("read");
    assert_eq!(&buffer, b"wxyz");
    disk.remove("a").expect("removed");
    file.write_at(0, b"still open").expect("written");
    assert_eq!(file.len().expect("a length"), 12);
}

#[test]
fn lengths_change_in_both_directions() {
    let disk = SimulatedDisk::new();
    let file = create(&disk, "file", 0);
    let mut model = Vec::new();
    for (len, byte) in [(5, 1), (20, 2), (3, 3), (9, 4), (1000, 5), (0, 6), (17, 7)] {
        file.set_len(len).expect("resized");
        model.resize(len as usize, 0);
        assert_eq!(disk.contents("file").expect("there"), model, "{len} bytes");
        if let Some(last) = model.last_mut() {
            *last = byte;
            file.write_at(len - 1, &[byte]).expect("written");
        }
    }
}

#[test]
fn maps_share_with_the_file_and_hold_its_length() {
    let disk = SimulatedDisk::new();
    let file = create(&disk, "file", 20);
    let memory = file.map(true).expect("mapped");
    assert_eq!(memory.words(), 2, "whole words only");
    memory
        .word(1)
        .store(u64::from_le_bytes(*b"by store"), Ordering::Relaxed);
    file.write_at(0, b"by write").expect("written");
    assert_eq!(memory.bytes(0, 16), b"by writeby store");
    assert_eq!(
        &disk.contents("file").expect("there")[..16],
        b"by writeby store"
    );
    let error = file.set_len(4096).expect_err("mapped");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    file.set_len(20).expect("no change");
    file.write_at(19, b"xx").expect_err("mapped");
    file.set_len(8)
        .expect("cut behind what the map is used for");
    assert_eq!(memory.bytes(0, 8), b"by write");
    drop(memory);
    file.set_len(4096).expect("free to grow");
}

#[test]
fn what_is_synced_survives_and_nothing_else() {
    let disk = SimulatedDisk::new();
    let file = create_durably(&disk, "kept", b"old");
    file.write_at(0, b"new").expect("written");
    create(&disk, "lost", 3)
        .sync_data()
        .expect("synced, but not its name");
    let after = disk.crash_all_lost();
    assert_eq!(after.names(), ["kept"]);
    assert_eq!(after.contents("kept").expect("there"), b"old");
    file.sync_data().expect("synced");
    disk.sync_directory().expect("synced");
    let after = disk.crash_all_lost();
    assert_eq!(after.names(), ["kept", "lost"]);
    assert_eq!(after.contents("kept").expect("there"), b"new");
    assert!(disk.differences().is_empty());
}

#[test]
fn every_subset_of_pages_can_survive() {
    for granule in [512, 4096] {
        let disk = SimulatedDisk::with_granule(granule);
        let file = create_durably(&disk, "file", &vec![b'a'; 4 * granule]);
        let memory = file.map(false).expect("mapped");
        for index in [0, 2, 3] {
            memory.copy_in(index * granule + 100, b"b");
        }
        let granule = granule as u64;
        let expected = [
            page("file", 0),
            page("file", 2 * granule),
            page("file", 3 * granule),
        ];
        assert_eq!(disk.differences(), expected);
        let outcomes: BTreeSet<_> = every_crash(&disk)
            .iter()
            .map(|after| {
                let contents = after.contents("file").expect("there");
                contents
                    .chunks(granule as usize)
                    .map(|page| page[100])
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(outcomes.len(), 8);
        assert!(
            outcomes.iter().all(|pages| pages[1] == b'a'),
            "an untouched page stays"
        );
        assert!(outcomes.contains(b"baab".as_slice()), "{outcomes:?}");
    }
}

#[test]
fn a_length_can_survive_without_its_pages_but_no_page_without_the_length() {
    let disk = SimulatedDisk::with_granule(512);
    let file = create_durably(&disk, "file", &[1; 512]);
    file.write_at(512, &[2; 512]).expect("written");
    let length = Difference::Length {
        file: "file".to_owned(),
        old: 512,
        new: 1024,
    };
    assert_eq!(disk.differences(), [length, page("file", 512)]);
    let outcomes: BTreeSet<_> = every_crash(&disk)
        .iter()
        .map(|after| after.contents("file").expect("there"))
        .collect();
    let short = vec![1; 512];
    let zeros = [vec![1; 512], vec![0; 512]].concat();
    let whole = [vec![1; 512], vec![2; 512]].concat();
    assert_eq!(outcomes, BTreeSet::from([short, zeros, whole]));
}

#[test]
fn a_cut_can_be_lost() {
    let disk = SimulatedDisk::with_granule(512);
    let file = create_durably(&disk, "file", &[1; 1024]);
    file.set_len(600).expect("cut");
    let outcomes: Vec<_> = every_crash(&disk)
        .iter()
        .map(|after| after.contents("file").expect("there"))
        .collect();
    assert_eq!(outcomes, [vec![1; 1024], vec![1; 600]]);
    file.set_len(1024).expect("lengthened");
    assert_eq!(
        disk.differences(),
        [page("file", 512)],
        "zeros in place of the old end"
    );
}

#[test]
fn steps_of_the_directory_survive_one_by_one() {
    let disk = SimulatedDisk::new();
    create_durably(&disk, "old", b"1");
    create_durably(&disk, "gone", b"2");
    create(&disk, "temporary", 0);
    disk.rename("temporary", "old").expect("renamed");
    disk.remove("gone").expect("removed");
    let outcomes: BTreeSet<_> = every_crash(&disk)
        .iter()
        .map(|after| {
            let is_old = after.contents("old").expect("one or the other") == b"1";
            (after.names().join(" "), is_old)
        })
        .collect();
    let expected = [
        // (names, whether "old" is still the old file)
        ("gone old", true),
        ("old", true),
        ("gone old temporary", true),
        ("old temporary", true),
        ("gone old", false),
        ("old", false),
    ];
    let expected = expected.map(|(names, is_old)| (names.to_owned(), is_old));
    assert_eq!(outcomes, BTreeSet::from(expected));
}

#[test]
fn a_removed_name_that_is_used_again_keeps_its_own_file() {
    let disk = SimulatedDisk::new();
    create_durably(&disk, "name", b"first");
    disk.remove("name").expect("removed");
    create(&disk, "name", 6)
        .write_at(0, b"second")
        .expect("written");
    for after in every_crash(&disk) {
        let contents = after.contents("name");
        let possible: [Option<&[u8]>; 5] = [
            None,
            Some(b"first"),
            Some(b""),
            Some(&[0; 6]),
            Some(b"second"),
        ];
        assert!(possible.contains(&contents.as_deref()), "{contents:?}");
    }
}

#[test]
fn disks_after_a_crash_are_independent_and_synced() {
    let disk = SimulatedDisk::new();
    let file = create(&disk, "file", 16);
    let memory = file.map(false).expect("mapped");
    memory.copy_in(0, b"before");
    let after = disk.crash(&mut |_| true);
    memory.copy_in(0, b"behind");
    assert_eq!(&after.contents("file").expect("there")[..6], b"before");
    assert!(after.differences().is_empty());
    assert_eq!(after.operations(), 0);
    after.remove("file").expect("removed");
    assert_eq!(disk.names(), ["file"]);
}

#[test]
fn a_killed_process_loses_nothing_but_what_is_unsynced_can_still_be_lost() {
    let disk = SimulatedDisk::new();
    let file = create_durably(&disk, "file", b"durable");
    file.write_at(0, b"written").expect("written");
    create(&disk, "other", 0);
    let after = disk.crash_none_lost();
    assert_eq!(after.contents("file").expect("there"), b"written");
    assert_eq!(after.names(), ["file", "other"]);
    let after = after.crash_all_lost();
    assert_eq!(after.contents("file").expect("there"), b"durable");
    assert_eq!(after.names(), ["file"]);
}

#[test]
fn chance_is_repeatable_and_reaches_every_outcome() {
    let disk = SimulatedDisk::with_granule(8);
    let file = create_durably(&disk, "file", &[0; 24]);
    file.write_at(0, &[1; 24]).expect("written");
    let contents = |seed| disk.crash_random(seed).contents("file").expect("there");
    let outcomes: BTreeSet<_> = (0..200).map(contents).collect();
    assert_eq!(outcomes.len(), 8);
    assert_eq!(
        (0..50).map(contents).collect::<Vec<_>>(),
        (0..50).map(contents).collect::<Vec<_>>()
    );
}

#[test]
fn pages_written_back_early_survive_in_their_state_of_then() {
    let disk = SimulatedDisk::with_granule(512);
    let file = create_durably(&disk, "file", &[b'0'; 1024]);
    file.write_at(0, &[b'1'; 1024]).expect("written");
    disk.write_back(&mut |difference| *difference == page("file", 512));
    file.write_at(0, &[b'2'; 1024]).expect("written");
    let contents = disk.crash_all_lost().contents("file").expect("there");
    assert_eq!((contents[0], contents[512]), (b'0', b'1'));
}

#[test]
fn the_power_can_be_cut_before_any_operation() {
    let scenario = |disk: &SimulatedDisk| -> io::Result<()> {
        let file = disk.create("temporary", 8)?;
        file.write_at(0, b"contents")?;
        file.sync_data()?;
        disk.rename("temporary", "final")?;
        disk.sync_directory()
    };
    let whole = SimulatedDisk::new();
    scenario(&whole).expect("no fault");
    let kinds: Vec<_> = whole.log().iter().map(|operation| operation.kind).collect();
    use OperationKind::*;
    assert_eq!(kinds, [Create, Write, Sync, Rename, SyncDirectory]);
    assert_eq!(whole.count(Sync), 1);
    for number in 0..whole.operations() {
        let disk = SimulatedDisk::new();
        disk.crash_at(number);
        let error = scenario(&disk).expect_err("no power");
        assert!(is_power_loss(&error));
        assert_eq!(disk.operations(), number);
        // Whatever survives, the final name only ever leads to the whole contents.
        for after in every_crash(&disk) {
            if let Some(contents) = after.contents("final") {
                assert_eq!(contents, b"contents", "cut at {number}");
            }
        }
    }
}

#[test]
fn after_the_power_was_cut_nothing_counts_any_more() {
    let disk = SimulatedDisk::new();
    let file = create_durably(&disk, "file", &[0; 8]);
    let memory = file.map(false).expect("mapped");
    memory.copy_in(0, b"then");
    disk.crash_at(disk.operations());
    assert!(is_power_loss(&file.sync_data().expect_err("no power")));
    memory.copy_in(0, b"late");
    for after in [disk.crash(&mut |_| true), disk.crash_none_lost()] {
        assert_eq!(&after.contents("file").expect("there")[..4], b"then");
    }
    assert!(is_power_loss(&disk.remove("file").expect_err("no power")));
    assert!(!is_power_loss(
        &disk.open("absent").map(drop).expect_err("absent")
    ));
}

#[test]
fn a_full_disk_refuses_and_takes_again() {
    let disk = SimulatedDisk::new();
    disk.capacity(100);
    let file = create(&disk, "first", 60);
    let full = |result: io::Result<()>| {
        assert_eq!(result.expect_err("full").kind(), io::ErrorKind::StorageFull);
    };
    full(disk.create("second", 41).map(drop));
    assert_eq!(disk.names(), ["first"], "nothing left behind");
    let second = create(&disk, "second", 40);
    full(second.set_len(41));
    full(second.write_at(40, b"x"));
    second.write_at(39, b"x").expect("in place");
    disk.remove("first").expect("removed");
    full(second.set_len(41));
    let memory = file.map(false).expect("mapped");
    drop(file);
    full(second.set_len(41));
    drop(memory);
    second
        .set_len(41)
        .expect("the last user of the space is gone");
    full(disk.crash_none_lost().create("third", 60).map(drop));
    disk.capacity(None);
    create(&disk, "third", 1000);
}

#[test]
fn faults_strike_when_told() {
    let disk = SimulatedDisk::new();
    let file = create(&disk, "segment-1", 8);
    create(&disk, "META", 0);
    disk.fail(
        FaultPlan::new(OperationKind::Write, Fault::InputOutput)
            .on("segment")
            .after(1),
    );
    file.write_at(0, b"1").expect("the first is let through");
    disk.open("META")
        .expect("there")
        .write_at(0, b"1")
        .expect("another file");
    let error = file.write_at(0, b"2").expect_err("the second fails");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    assert_eq!(
        &disk.contents("segment-1").expect("there")[..1],
        b"1",
        "without effect"
    );
    file.write_at(0, b"3").expect("once only");

    disk.fail(FaultPlan::new(OperationKind::Create, Fault::NoSpace).sticky());
    for _ in 0..3 {
        let error = disk.create("new", 1).map(drop).expect_err("sticky");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!(disk.names(), ["META", "segment-1"]);
    disk.heal();
    create(&disk, "new", 1);

    disk.fail(FaultPlan::new(OperationKind::Rename, Fault::InputOutput).happens_anyway());
    disk.rename("new", "renamed").expect_err("reported");
    assert!(disk.names().contains(&"renamed".to_owned()), "and done");
}

#[test]
fn every_kind_of_operation_can_fail() {
    use OperationKind::*;
    let disk = SimulatedDisk::new();
    let file = create(&disk, "file", 8);
    let kinds = [
        List,
        Create,
        Open,
        Read,
        Write,
        Sync,
        SyncDirectory,
        Rename,
        Remove,
        SetLen,
        Map,
    ];
    for kind in kinds {
        disk.fail(FaultPlan::new(kind, Fault::Kind(io::ErrorKind::TimedOut)));
        let result = match kind {
            List => disk.list().map(drop),
            Create => disk.create("new", 0).map(drop),
            Open => disk.open("file").map(drop),
            Read => file.read_at(0, &mut [0]),
            Write => file.write_at(0, &[0]),
            Sync => file.sync_data(),
            SyncDirectory => disk.sync_directory(),
            Rename => disk.rename("file", "new"),
            Remove => disk.remove("file"),
            SetLen => file.set_len(0),
            Map => file.map(false).map(drop),
        };
        assert_eq!(
            result.expect_err("a fault").kind(),
            io::ErrorKind::TimedOut,
            "{kind:?}"
        );
    }
    assert_eq!(disk.names(), ["file"]);
    assert_eq!(
        disk.log()
            .iter()
            .filter(|operation| !operation.succeeded)
            .count(),
        7
    );
}

/// After a failed sync Linux takes the pages for clean: they are read as written, a later sync
/// succeeds, and they are on no disk.
#[test]
fn a_failed_sync_can_drop_pages_for_good() {
    let disk = SimulatedDisk::with_granule(512);
    let file = create_durably(&disk, "file", &[b'0'; 2048]);
    let memory = file.map(false).expect("mapped");
    let letters = |disk: &SimulatedDisk| -> Vec<u8> {
        disk.contents("file")
            .expect("there")
            .chunks(512)
            .map(|page| page[0])
            .collect()
    };
    for page in 0..3 {
        memory.copy_in(page * 512, b"1");
    }
    disk.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput).drops_pages());
    file.sync_data().expect_err("failed");
    file.sync_data().expect("the next one succeeds");
    assert_eq!(letters(&disk), b"1110", "in the cache");
    assert_eq!(letters(&disk.crash(&mut |_| true)), b"0000", "on no disk");

    // A new process finds the cache, and is fooled in the same way.
    let reopened = disk.crash_none_lost();
    assert_eq!(letters(&reopened), b"1110");
    reopened
        .open("file")
        .expect("there")
        .sync_data()
        .expect("synced");
    assert_eq!(letters(&reopened.crash_all_lost()), b"0000");

    // Writing a page again, or changing it, is what helps.
    file.write_at(0, b"1").expect("written");
    memory.copy_in(512, b"2");
    file.sync_data().expect("synced");
    assert_eq!(letters(&disk.crash_all_lost()), b"1200");
}

#[test]
fn a_failed_sync_that_drops_nothing_can_be_repeated() {
    let disk = SimulatedDisk::new();
    let file = create_durably(&disk, "file", b"0");
    file.write_at(0, b"1").expect("written");
    disk.fail(FaultPlan::new(OperationKind::Sync, Fault::InputOutput));
    file.sync_data().expect_err("failed");
    assert_eq!(disk.crash_all_lost().contents("file").expect("there"), b"0");
    file.sync_data().expect("synced");
    assert_eq!(disk.crash_all_lost().contents("file").expect("there"), b"1");
}

#[test]
fn contents_put_are_there_for_good() {
    let disk = SimulatedDisk::new();
    let file = create_durably(&disk, "file", b"old");
    disk.rename("file", "renamed").expect("renamed");
    disk.put("file", b"put");
    disk.put("renamed", b"too");
    assert_eq!(file.len().expect("still open"), 3);
    for after in [
        disk.clone(),
        disk.crash_all_lost(),
        disk.crash(&mut |_| true),
    ] {
        assert_eq!(after.contents("file").expect("there"), b"put");
        assert_eq!(after.contents("renamed").expect("there"), b"too");
    }
}

#[test]
fn syncing_while_threads_store_is_sound() {
    let disk = SimulatedDisk::with_granule(512);
    let file = create_durably(&disk, "file", &[0; 4096]);
    let memory = file.map(true).expect("mapped");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..32 {
                    memory.copy_in(thread * 2048 + round * 64, &[7; 61]);
                }
            });
        }
        for _ in 0..8 {
            file.sync_data().expect("synced");
            drop(disk.crash_random(1));
        }
    });
    file.sync_data().expect("synced");
    assert_eq!(
        disk.crash_all_lost().contents("file"),
        disk.contents("file")
    );
}
