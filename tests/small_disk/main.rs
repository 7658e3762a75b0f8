//! Real file systems with hardly any room: ext4 in a file, and tmpfs, filled to the last block.
//!
//! `mounts` makes and removes them, `child` is what happens on them. That runs in a process of its
//! own, so that a SIGBUS is an answer and not the end of the tests, and whatever happens the file
//! system is unmounted.
//!
//! All of it needs root, and `mkfs.ext4`, `mount` and `umount`. Where they are missing it says so;
//! with `ONCEKEY_REQUIRE_SERVERS` set it fails instead.

#[path = "../support/mod.rs"]
mod support;

mod book;
mod child;
mod mounts;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use oncekey::Durability;

use crate::child::Plan;
use crate::mounts::{Mount, Size};
use crate::support::DURABILITIES;

/// Where the child works, and what it does there.
const PLAN: &str = "ONCEKEY_SMALL_DISK_PLAN";

/// The child: nothing of its own.
#[test]
fn child() {
    if let Ok(plan) = std::env::var(PLAN) {
        Plan::decode(&plan).run();
    }
}

fn start(plan: &Plan) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture"])
        .env(PLAN, plan.encode())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Reads what the child tells, up to the line that `stops`.
fn listen(child: &mut Child, stops: impl Fn(&str) -> bool) {
    let out = child.stdout.as_mut().expect("piped");
    let mut lines = BufReader::new(out).lines();
    while let Some(Ok(line)) = lines.next() {
        if let Some(told) = line.strip_prefix('@') {
            println!("    {told}");
            if stops(told) {
                return;
            }
        }
    }
}

/// Runs a child to its end, which must be a good one.
#[track_caller]
fn run(plan: &Plan) {
    let mut child = start(plan);
    listen(&mut child, |_| false);
    let status = child.wait().expect("gone");
    assert_eq!(status.signal(), None, "{plan:?} was ended by a signal");
    assert!(status.success(), "{plan:?}: {status}");
}

/// A plan below the root of a file system.
fn plan(scenario: &str, mount: &Mount, durability: Durability) -> Plan {
    Plan {
        scenario: scenario.to_owned(),
        root: mount.path().to_owned(),
        directory: mount.path().join("store"),
        durability,
    }
}

/// Each of these file systems, new, for each durability; nothing where they can't be had.
#[track_caller]
fn on_each(test: &str, sizes: &[Size], work: impl Fn(&Mount, Durability)) {
    for size in sizes {
        for durability in DURABILITIES {
            let Some(mount) = Mount::new(test, size) else {
                return;
            };
            println!("  {size}, {durability:?}");
            work(&mount, durability);
            mount.end();
        }
    }
}

#[test]
fn a_disk_filled_to_the_last_block_keeps_its_promises() {
    let sizes = [Size::ext4(64), Size::tmpfs(24 << 10)];
    on_each("last_block", &sizes, |mount, durability| {
        run(&plan("fill", mount, durability));
    });
}

/// The last block is one of a segment, of META, of a directory, of the file system's own.
#[test]
fn disks_of_many_sizes_keep_their_promises() {
    let ext4 = |kib: u64, block| Size::Ext4 {
        kib,
        block,
        inodes: None,
    };
    let sizes = [
        ext4(12 << 10, 4_096),
        ext4((13 << 10) + 4, 4_096),
        ext4((14 << 10) + 516, 4_096),
        ext4((12 << 10) + 77, 1_024),
        ext4((15 << 10) + 1_023, 1_024),
        Size::tmpfs((6 << 10) + 4),
        Size::tmpfs((7 << 10) + 1_020),
    ];
    on_each("many_sizes", &sizes, |mount, durability| {
        run(&plan("fill", mount, durability));
    });
}

#[test]
fn a_store_is_made_on_what_room_there_is_or_says_that_there_is_none() {
    let sizes = [Size::ext4(24), Size::tmpfs(12 << 10)];
    on_each("tight", &sizes, |mount, durability| {
        run(&plan("tight", mount, durability));
    });
}

#[test]
fn a_process_that_is_killed_on_a_full_disk_is_recovered_on_it() {
    let sizes = [Size::ext4(20), Size::tmpfs(10 << 10)];
    on_each("killed", &sizes, |mount, durability| {
        for round in ["killed-full", "killed-after-completions"] {
            let mut child = start(&plan(round, mount, durability));
            listen(&mut child, |told| told.starts_with("waits"));
            assert!(child.try_wait().expect("a look").is_none(), "{round}: gone");
            child.kill().expect("killed");
            child.wait().expect("gone");
            run(&plan("recover", mount, durability));
            remove(&mount.path().join("store"));
        }
    });
}

/// Room for one compaction was set aside when the store began to have something to compact.
#[test]
fn a_disk_full_of_dead_records_is_freed_by_maintenance_alone() {
    let sizes = [Size::ext4(24), Size::tmpfs(12 << 10)];
    on_each("dead", &sizes, |mount, durability| {
        run(&plan("dead", mount, durability));
    });
}

fn remove(directory: &Path) {
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_file_system_without_inodes_is_full_like_any_other() {
    let sizes = [Size::Ext4 {
        kib: 32 << 10,
        block: 4_096,
        inodes: Some(32),
    }];
    on_each("inodes", &sizes, |mount, durability| {
        run(&plan("inodes", mount, durability));
    });
}

/// ext4 puts a directory `lost+found` into the root of each of its file systems.
#[test]
fn the_root_of_a_file_system_can_be_the_stores_directory() {
    on_each("root", &[Size::ext4(16)], |mount, durability| {
        assert!(mount.path().join("lost+found").is_dir());
        let mut plan = plan("root", mount, durability);
        plan.directory = mount.path().to_owned();
        run(&plan);
    });
}

#[test]
fn of_several_stores_on_a_disk_one_fills_it_and_the_others_are_told() {
    let sizes = [Size::ext4(24), Size::tmpfs(14 << 10)];
    on_each("several", &sizes, |mount, durability| {
        run(&plan("several", mount, durability));
    });
}
