//! What stands in the way of opening is named, with what to do about it; a refused open changes
//! nothing.

mod support;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use oncekey::{Claim, Durability, KeyState, OpenError, Options, Recovery, Store};

use support::*;

const DIRECTORY: &str = "ONCEKEY_TEST_DIRECTORY";
const NOBODY: u32 = 65_534;

fn options() -> Options {
    small(Durability::Buffered)
}

/// Not a test of its own: the other process of those below.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn child_that_holds_a_store() {
    let Some(path) = env::var_os(DIRECTORY) else {
        return;
    };
    let path = PathBuf::from(path);
    match options().open(&path) {
        Ok(store) => {
            finish(&store, &key("done"), b"paid");
            let _held = started(store.claim(&key("held"), request()).expect("a claim"));
            println!("\nholding");
            std::io::stdin().lines().for_each(drop);
        }
        Err(OpenError::Io {
            path: named,
            source,
        }) => {
            println!("\n{:?} {named:?}", source.kind());
        }
        Err(other) => println!("\n{other:?}"),
    }
}

struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(path: &Path, uid: Option<u32>) -> std::io::Result<Self> {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command
            .args(["--ignored", "--nocapture", "--exact"])
            .arg("child_that_holds_a_store")
            .env(DIRECTORY, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self {
            child,
            input,
            output,
        })
    }

    /// The first thing it says that is not the test harness's.
    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).expect("output");
            assert!(read > 0, "the child said nothing");
            let text = line.trim();
            if !text.is_empty() && !text.starts_with("running") && !text.starts_with("test ") {
                return text.to_owned();
            }
        }
    }

    fn holding(path: &Path) -> Self {
        let mut other = Self::start(path, None).expect("a child");
        assert_eq!(other.says(), "holding");
        other
    }

    fn let_go(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        while self.output.read_line(&mut rest).expect("output") > 0 {}
        assert!(self.child.wait().expect("it ends").success());
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("it ends");
    }
}

#[track_caller]
fn in_use(result: Result<Store, OpenError>, path: &Path, pid: u32) {
    match result {
        Err(
            ref error @ OpenError::InUse {
                path: ref named,
                pid: holder,
            },
        ) => {
            assert_eq!(named, path);
            assert_eq!(holder, Some(pid));
            let message = error.to_string();
            for part in [&path.display().to_string(), &pid.to_string(), "lock_wait"] {
                assert!(message.contains(part), "{message}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_open_in_the_same_process_is_in_use_and_names_path_and_pid() {
    let directory = directory();
    let store = options().open(directory.path()).expect("a store");
    for _ in 0..2 {
        in_use(
            options().open(directory.path()),
            directory.path(),
            process::id(),
        );
    }
    finish(&store, &key("k-1"), b"unharmed");
    drop(store);
    let store = options().open(directory.path()).expect("free");
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}

#[test]
fn a_second_open_by_another_name_of_the_directory_is_in_use() {
    let parent = directory();
    let real = parent.path().join("store");
    let store = options().open(&real).expect("a store");
    let link = parent.path().join("link");
    symlink(&real, &link).expect("a link");
    let aliases = [
        link.clone(),
        link.join("."),
        parent.path().join("store/../store"),
        parent.path().join("./store/"),
        fs::canonicalize(&real).expect("a path"),
    ];
    for alias in aliases {
        in_use(options().open(&alias), &alias, process::id());
    }
    drop(store);
    // The other way round.
    let _store = options().open(&link).expect("free");
    in_use(options().open(&real), &real, process::id());
}

#[test]
fn a_second_open_in_another_process_is_in_use_and_names_path_and_pid() {
    let directory = directory();
    let other = Other::holding(directory.path());
    in_use(
        options().open(directory.path()),
        directory.path(),
        other.child.id(),
    );
    other.let_go();
    let store = options().open(directory.path()).expect("free");
    assert!(store.recovery_report().clean);
    completed(store.claim(&key("done"), request()).expect("a claim"));
    drop(interrupted(
        store.claim(&key("held"), request()).expect("a claim"),
    ));
}

#[test]
fn another_process_is_refused_while_this_one_holds_the_directory() {
    let directory = directory();
    let _store = options().open(directory.path()).expect("a store");
    let mut other = Other::start(directory.path(), None).expect("a child");
    let said = other.says();
    assert!(said.starts_with("InUse"), "{said}");
    assert!(said.contains(&process::id().to_string()), "{said}");
    other.let_go();
}

#[test]
fn a_killed_process_holds_nothing_and_what_it_acknowledged_is_there() {
    let directory = directory();
    for round in 1..=3 {
        let other = Other::holding(directory.path());
        other.kill();
        // At once: no lease, no time-out, no stale lock.
        let store = options().open(directory.path()).expect("free");
        assert!(!store.recovery_report().clean);
        let saved = completed(store.claim(&key("done"), request()).expect("a claim"));
        assert_eq!(bytes(&saved), b"paid");
        let operation = interrupted(store.claim(&key("held"), request()).expect("a claim"));
        assert_eq!(operation.attempt(), 2, "round {round}");
        operation.release().expect("a release");
        store
            .forget(&key("done"), oncekey::Forget::IfCompleted)
            .expect("forgotten");
    }
}

#[test]
fn an_open_that_waits_gets_the_directory_when_the_other_process_lets_go() {
    let directory = directory();
    let other = Other::holding(directory.path());
    let patient = options().lock_wait(LONG);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.open(directory.path()).expect("handed over"));
        other.let_go();
        let store = waiting.join().expect("no panic");
        completed(store.claim(&key("done"), request()).expect("a claim"));
    });
}

#[test]
fn an_open_that_waits_gets_the_directory_when_this_process_closes_its_store() {
    let directory = directory();
    let store = options().open(directory.path()).expect("a store");
    let patient = options().lock_wait(LONG);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.open(directory.path()).expect("handed over"));
        finish(&store, &key("k-1"), b"paid");
        store.close().expect("closes");
        let after = waiting.join().expect("no panic");
        completed(after.claim(&key("k-1"), request()).expect("a claim"));
    });
}

#[test]
fn an_open_that_waited_in_vain_is_in_use() {
    let directory = directory();
    let _store = options().open(directory.path()).expect("a store");
    let impatient = options().lock_wait(ms(5));
    in_use(
        impatient.open(directory.path()),
        directory.path(),
        process::id(),
    );
}

#[test]
fn missing_directories_are_made_for_their_owner_only() {
    let parent = directory();
    let path = parent.path().join("a/b/c");
    let store = options().open(&path).expect("a store");
    assert_eq!(store.path(), path);
    let mode = |path: &Path| fs::metadata(path).expect("it").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in fs::read_dir(&path).expect("a list") {
        let file = entry.expect("an entry").path();
        assert_eq!(mode(&file), 0o600, "{file:?}");
    }
}

#[test]
fn a_file_in_the_directorys_place_is_named() {
    let parent = directory();
    let file = parent.path().join("file");
    fs::write(&file, "not a store").expect("written");
    for path in [file.clone(), file.join("below")] {
        match options().open(&path) {
            Err(ref error @ OpenError::NotADirectory { path: ref named }) => {
                assert_eq!(*named, path);
                assert!(error.to_string().contains("name a directory"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fs::read(&file).expect("still there"), b"not a store");
}

#[test]
fn a_place_where_nobody_can_make_a_directory_is_named() {
    // Not even root can.
    let path = Path::new("/proc/self/oncekey-store");
    match options().open(path) {
        Err(
            ref error @ OpenError::Io {
                path: ref named, ..
            },
        ) => {
            assert_eq!(named, path);
            assert!(error.to_string().contains("/proc/self/oncekey-store"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_without_permission_is_named() {
    let parent = directory();
    let (closed, read_only) = (
        parent.path().join("closed"),
        parent.path().join("read-only"),
    );
    drop(options().open(&read_only).expect("a store"));
    fs::create_dir(&closed).expect("made");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    };
    set(&closed, 0o000);
    set(&read_only, 0o555);
    set(parent.path(), 0o755);
    for path in [&closed, &read_only] {
        let before = contents_if_readable(path);
        match options().open(path) {
            Err(OpenError::Io {
                path: named,
                source,
            }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
                assert!(named.starts_with(path), "{named:?}");
            }
            // Root may do everything: let a process of nobody's try.
            Ok(store) => {
                drop(store);
                let Ok(mut other) = Other::start(path, Some(NOBODY)) else {
                    continue; // It may not even run this program.
                };
                let said = other.says();
                assert!(said.starts_with("PermissionDenied"), "{said}");
                assert!(said.contains(&*path.to_string_lossy()), "{said}");
                other.let_go();
            }
            other => panic!("{other:?}"),
        }
        let after = contents_if_readable(path);
        assert!(after.len() <= before.len() + 3);
    }
    set(&closed, 0o700);
    set(&read_only, 0o700);
}

fn contents_if_readable(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).map_or(Vec::new(), |list| {
        list.filter_map(|entry| Some(entry.ok()?.path())).collect()
    })
}

#[test]
fn a_foreign_file_is_named_and_nothing_is_touched() {
    type Put = fn(&Path);
    let foreign: [(&str, Put); 5] = [
        ("photo.jpg", |path| fs::write(path, "a photo").expect("put")),
        (".hidden", |path| fs::write(path, "").expect("put")),
        ("subdirectory", |path| fs::create_dir(path).expect("put")),
        ("segment-1.log", |path| fs::write(path, "").expect("put")),
        ("link", |path| symlink("/etc/passwd", path).expect("put")),
    ];
    for (name, put) in foreign {
        for with_store in [false, true] {
            let directory = directory();
            if with_store {
                let store = options().open(directory.path()).expect("a store");
                finish(&store, &key("k-1"), b"paid");
            }
            put(&directory.path().join(name));
            let before = contents(directory.path());
            for recovery in [Recovery::Refuse, Recovery::Salvage] {
                match options().recovery(recovery).open(directory.path()) {
                    Err(
                        ref error @ OpenError::ForeignFile {
                            ref path,
                            name: ref found,
                        },
                    ) => {
                        assert_eq!((path.as_path(), &found[..]), (directory.path(), name));
                        assert!(error.to_string().contains("name a directory"), "{error}");
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
            assert_eq!(contents(directory.path()), before, "{name}");
            let path = directory.path().join(name);
            if path.is_dir() {
                fs::remove_dir(path).expect("removed");
            } else {
                fs::remove_file(path).expect("removed");
            }
            let store = options().open(directory.path()).expect("in order again");
            if with_store {
                completed(store.claim(&key("k-1"), request()).expect("a claim"));
            }
        }
    }
}

/// A directory with a completed and an interrupted key, closed.
fn filled() -> tempfile::TempDir {
    let directory = directory();
    let store = options().open(directory.path()).expect("a store");
    finish(&store, &key("done"), b"paid");
    drop(started(
        store.claim(&key("gone"), request()).expect("a claim"),
    ));
    store.close().expect("closes");
    directory
}

#[track_caller]
fn is_whole(store: &Store) {
    let saved = completed(store.claim(&key("done"), request()).expect("a claim"));
    assert_eq!(bytes(&saved), b"paid");
    assert!(matches!(
        store.get(&key("gone")),
        Ok(KeyState::Interrupted { .. })
    ));
}

const PAGE: usize = 4_096;

/// Makes a page one of another format version, with a checksum that is right.
fn with_version(page: &mut [u8], version: u32) {
    page[8..12].copy_from_slice(&version.to_le_bytes());
    page[12..16].fill(0);
    let crc = crc32fast::hash(&page[..512]);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn segment(directory: &Path) -> PathBuf {
    let mut segments: Vec<_> = contents_if_readable(directory)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect();
    segments.sort();
    segments.remove(0)
}

#[test]
fn a_future_format_version_is_told_and_nothing_is_touched() {
    for version in [0, 2, 3, u32::MAX] {
        for place in ["both slots", "first slot", "second slot", "segment"] {
            let directory = filled();
            let (file, pages): (PathBuf, &[usize]) = match place {
                "both slots" => (directory.path().join("META"), &[0, 1]),
                "first slot" => (directory.path().join("META"), &[0]),
                "second slot" => (directory.path().join("META"), &[1]),
                _ => (segment(directory.path()), &[0]),
            };
            let original = fs::read(&file).expect("read");
            let mut changed = original.clone();
            for page in pages {
                with_version(&mut changed[page * PAGE..(page + 1) * PAGE], version);
            }
            fs::write(&file, &changed).expect("written");
            let before = contents(directory.path());
            for recovery in [Recovery::Refuse, Recovery::Salvage] {
                match options().recovery(recovery).open(directory.path()) {
                    Err(
                        ref error @ OpenError::FormatVersion {
                            file: ref named,
                            found,
                            supported,
                        },
                    ) => {
                        assert_eq!((named, found, supported), (&file, version, 1), "{place}");
                        assert!(error.to_string().contains("the version that wrote it"));
                    }
                    other => panic!("{place}, version {version}: {other:?}"),
                }
            }
            assert_eq!(contents(directory.path()), before, "{place}");
            fs::write(&file, &original).expect("written");
            is_whole(&options().open(directory.path()).expect("in order again"));
        }
    }
}

#[test]
fn a_truncated_meta_is_told_and_nothing_is_touched() {
    for len in [0, 1, 16, 511, PAGE - 1] {
        let directory = filled();
        let meta = directory.path().join("META");
        let original = fs::read(&meta).expect("read");
        fs::write(&meta, &original[..len]).expect("written");
        let before = contents(directory.path());
        match options().open(directory.path()) {
            Err(ref error @ OpenError::MetaDamaged { ref path, .. }) => {
                assert_eq!(path, directory.path());
                let message = error.to_string();
                assert!(message.contains("truncated"), "{message}");
                assert!(message.contains("Recovery::Salvage"), "{message}");
            }
            other => panic!("{len} bytes: {other:?}"),
        }
        assert_eq!(contents(directory.path()), before, "{len} bytes");
        // What to do about it is said, and works.
        let salvage = options().recovery(Recovery::Salvage);
        let store = salvage.open(directory.path()).expect("salvages");
        assert!(store.recovery_report().meta_rebuilt);
        is_whole(&store);
        drop(store);
        is_whole(&options().open(directory.path()).expect("in order again"));
    }
}

#[test]
fn a_meta_that_lost_one_of_its_two_copies_opens_and_says_so() {
    for len in [PAGE, PAGE + 1, 2 * PAGE - 1] {
        let directory = filled();
        let before = {
            let store = options().open(directory.path()).expect("a store");
            started(store.claim(&key("token"), request()).expect("a claim")).token()
        };
        let meta = directory.path().join("META");
        let original = fs::read(&meta).expect("read");
        fs::write(&meta, &original[..len]).expect("written");
        let store = options().open(directory.path()).expect("opens");
        assert!(store.recovery_report().meta_slot.is_some(), "{len} bytes");
        is_whole(&store);
        // It may have been the newer one that was lost: tokens grow all the same.
        let operation = interrupted(store.claim(&key("token"), request()).expect("a claim"));
        assert!(operation.token() > before);
        drop((operation, store));
        let store = options().open(directory.path()).expect("opens");
        assert!(store.recovery_report().meta_slot.is_none(), "made good");
    }
}

#[test]
fn a_meta_of_garbage_is_damaged_and_one_that_is_missing_is_missing() {
    let directory = filled();
    let meta = directory.path().join("META");
    fs::write(&meta, vec![0xA5; 2 * PAGE]).expect("written");
    match options().open(directory.path()) {
        Err(OpenError::MetaDamaged { .. }) => {}
        other => panic!("{other:?}"),
    }
    fs::remove_file(&meta).expect("removed");
    match options().open(directory.path()) {
        Err(ref error @ OpenError::MetaMissing { segments: 1, .. }) => {
            assert!(error.to_string().contains("Recovery::Salvage"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        !meta.exists(),
        "a store is not made over another's segments"
    );
    let salvage = options().recovery(Recovery::Salvage);
    is_whole(&salvage.open(directory.path()).expect("salvages"));
}

#[test]
fn names_of_the_stores_that_are_no_files_are_errors_and_no_panic() {
    for name in ["META", "LOCK", "segment-0000001000000000.log"] {
        for link in [false, true] {
            let directory = directory();
            let elsewhere = support::directory();
            let target = elsewhere.path().join("target");
            fs::write(&target, "precious").expect("put");
            let path = directory.path().join(name);
            if link {
                symlink(&target, &path).expect("put");
            } else {
                fs::create_dir(&path).expect("put");
            }
            let refused = options().open(directory.path());
            assert!(refused.is_err(), "{name}: {refused:?}");
            assert_eq!(fs::read(&target).expect("still there"), b"precious");
        }
    }
}

#[test]
fn what_a_crash_leaves_half_made_is_cleared_away() {
    let directory = filled();
    for name in ["META.tmp", "segment-0000005000000000.log.tmp"] {
        let mut file = fs::File::create(directory.path().join(name)).expect("put");
        file.write_all(b"half made").expect("put");
    }
    let store = options().open(directory.path()).expect("opens");
    is_whole(&store);
    drop(store);
    assert!(
        contents(directory.path())
            .iter()
            .all(|(name, ..)| !name.ends_with(".tmp"))
    );
}

#[test]
fn a_segment_cut_below_what_was_durable_is_corrupt_and_salvage_says_what_is_lost() {
    let directory = filled();
    let segment = segment(directory.path());
    let original = fs::read(&segment).expect("read");
    // The first record is gone but for a few words.
    fs::write(&segment, &original[..PAGE + 24]).expect("written");
    let before = contents(directory.path());
    match options().open(directory.path()) {
        Err(ref error @ OpenError::Corrupt { ref path, .. }) => {
            assert_eq!(path, directory.path());
            let name = segment.file_name().expect("a name").to_string_lossy();
            assert!(error.to_string().contains(&*name), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(contents(directory.path()), before);
    let salvage = options().recovery(Recovery::Salvage);
    let store = salvage.open(directory.path()).expect("salvages");
    assert!(!store.recovery_report().losses.is_empty());
    assert!(!store.recovery_report().kept_copies.is_empty());
    assert!(matches!(
        store.claim(&key("done"), request()),
        Ok(Claim::Started(_))
    ));
}

#[test]
fn a_refused_open_leaves_the_lock_free() {
    let directory = directory();
    drop(options().open(directory.path()).expect("a store"));
    let foreign = directory.path().join("foreign");
    fs::write(&foreign, "").expect("put");
    for _ in 0..3 {
        assert!(options().open(directory.path()).is_err());
    }
    fs::remove_file(&foreign).expect("removed");
    let mut other = Other::start(directory.path(), None).expect("a child");
    assert_eq!(other.says(), "holding");
    other.kill();
}

#[test]
fn a_store_goes_on_when_its_directory_is_renamed() {
    let parent = directory();
    let (old, new) = (parent.path().join("old"), parent.path().join("new"));
    let store = options().open(&old).expect("a store");
    finish(&store, &key("before"), b"paid");
    fs::rename(&old, &new).expect("renamed");
    // Some new segments are made in the meantime.
    for number in 0..60 {
        finish(&store, &key(&number.to_string()), vec![7; 4_000]);
    }
    assert!(!old.exists());
    drop(store);
    let store = options().open(&new).expect("opens");
    completed(store.claim(&key("before"), request()).expect("a claim"));
    completed(store.claim(&key("59"), request()).expect("a claim"));
}

#[test]
fn the_defaults_open_a_store() {
    let directory = directory();
    let store = Store::open(directory.path()).expect("a store");
    assert!(store.recovery_report().created);
    finish(&store, &key("k-1"), vec![7; 1 << 20]);
    drop(store);
    let store = Store::open(directory.path()).expect("reopens");
    completed(store.claim(&key("k-1"), request()).expect("a claim"));
}
