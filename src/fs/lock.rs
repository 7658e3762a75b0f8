//! One store, one process, one opening.
//!
//! A directory is held by a `flock` on its `LOCK` file, which the kernel gives up when its holder
//! dies, however it dies: there is nothing to clean up after a kill, and no time after which a lock
//! counts as stale. A registry within the process, keyed by the directory itself and not by its
//! path, refuses a second opening even on file systems where `flock` means nothing. The file is
//! never removed, since a lock on a file without a name excludes no one; what it holds is for
//! people only.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

use super::os::open_directory;

/// Name of the lock file.
pub(crate) const LOCK_NAME: &str = "LOCK";

/// First and longest pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// More than what a holder writes about itself.
const NOTE_BYTES_MAX: u64 = 4096;

/// Which directory, whatever path leads there: device and inode.
type Identity = (u64, u64);

/// Directories held by this process, with the process that registered them: a forked child starts
/// with a copy of its parent's entries, which mean nothing for it.
static HELD: LazyLock<Mutex<HashMap<Identity, u32>>> = LazyLock::new(Mutex::default);

fn held() -> MutexGuard<'static, HashMap<Identity, u32>> {
    // No step under this mutex can leave the map half changed.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a directory could not be locked.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Someone else has it open.
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, as it wrote there; none if that can't be read.
        pid: Option<u32>,
    },
    /// The lock file could not be opened or locked.
    Io {
        /// The lock file, or the directory where that is what failed.
        path: PathBuf,
        /// What the system reported.
        source: io::Error,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held {
                path,
                pid: Some(pid),
            } => {
                write!(formatter, "{} is held by process {pid}", path.display())
            }
            Self::Held { path, pid: None } => {
                write!(formatter, "{} is held by another process", path.display())
            }
            Self::Io { path, .. } => write!(formatter, "cannot lock {}", path.display()),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Held { .. } => None,
            Self::Io { source, .. } => Some(source),
        }
    }
}

/// Keeps everyone else out of a directory until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
    path: PathBuf,
    identity: Identity,
    process: u32,
}

impl DirectoryLock {
    /// Locks the directory at `path`, waiting up to `wait` for a holder to let go; zero tries once.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] when it is still held after that, by another process or by this one;
    /// [`LockError::Io`] when the lock file cannot be opened for writing or locked.
    pub(crate) fn acquire(path: &Path, wait: Duration) -> Result<Self, LockError> {
        let lock_path = path.join(LOCK_NAME);
        let failed = |source| LockError::Io {
            path: lock_path.clone(),
            source,
        };
        let directory = open_directory(path).map_err(|source| LockError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let status = directory.metadata().map_err(failed)?;
        let identity = (status.dev(), status.ino());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = retry_on_intr(|| rustix::fs::openat(&directory, LOCK_NAME, flags, mode))
            .map(File::from)
            .map_err(|error| failed(error.into()))?;

        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            let pid = match try_acquire(&file, identity).map_err(failed)? {
                Outcome::Acquired => {
                    let lock = Self {
                        file,
                        path: lock_path,
                        identity,
                        process: process::id(),
                    };
                    lock.write_note();
                    return Ok(lock);
                }
                Outcome::HeldHere => Some(process::id()),
                Outcome::HeldElsewhere => noted_process(&file),
            };
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(LockError::Held {
                    path: lock_path,
                    pid,
                });
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Says who holds the lock. Nothing depends on it, so a full disk must not stand in the way of
    /// opening.
    fn write_note(&self) {
        let note = describe_this_process();
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(note.as_bytes(), 0));
        if let Err(error) = written {
            tracing::debug!(path = %self.path.display(), %error, "cannot note who holds the lock");
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // In a forked child both belong to the parent: unlocking would take the lock away from it,
        // and the registry's mutex may have been copied while a thread held it.
        if self.process != process::id() {
            return;
        }
        if let Err(error) = self.file.set_len(0) {
            tracing::debug!(path = %self.path.display(), %error, "a stale note stays behind");
        }
        // Closing is not enough: a child may still share the descriptor.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(path = %self.path.display(), %error, "cannot unlock, closing instead");
        }
        held().remove(&self.identity);
    }
}

enum Outcome {
    Acquired,
    HeldHere,
    HeldElsewhere,
}

/// One try. Leaves the registry as it was unless it succeeds.
fn try_acquire(file: &File, identity: Identity) -> io::Result<Outcome> {
    let this_process = process::id();
    // Held across the try, which does not block, so that of two threads one sees the other.
    let mut held = held();
    if held.get(&identity) == Some(&this_process) {
        return Ok(Outcome::HeldHere);
    }
    match file.try_lock() {
        Ok(()) => {
            held.insert(identity, this_process);
            Ok(Outcome::Acquired)
        }
        Err(TryLockError::WouldBlock) => Ok(Outcome::HeldElsewhere),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The process that a lock file names.
fn noted_process(file: &File) -> Option<u32> {
    let mut note = vec![0; usize::try_from(file.metadata().ok()?.len().min(NOTE_BYTES_MAX)).ok()?];
    file.read_exact_at(&mut note, 0).ok()?;
    let note = String::from_utf8(note).ok()?;
    note.lines()
        .find_map(|line| line.strip_prefix("pid="))?
        .trim()
        .parse()
        .ok()
}

/// Process id, and what tells it from another process that got the same id: the boot, and when in
/// it the process started (in clock ticks).
fn describe_this_process() -> String {
    let mut note = format!("pid={}\n", process::id());
    if let Ok(boot) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        note.push_str(&format!("boot={}\n", boot.trim()));
    }
    if let Some(started) = start_time() {
        note.push_str(&format!("started={started}\n"));
    }
    note
}

fn start_time() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything. Behind it come
    // the third field and the rest; the start time is the twenty-second.
    let (_, fields) = status.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::mpsc;

    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;
    /// More than any test needs: a wait that ends earlier proves that it was woken by the event.
    const LONG: Duration = Duration::from_secs(60);
    const CHILD_DIRECTORY: &str = "ONCEKEY_TEST_LOCK_DIRECTORY";

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    fn acquire(path: &Path) -> DirectoryLock {
        DirectoryLock::acquire(path, NO_WAIT).expect("free")
    }

    fn holder(path: &Path) -> Option<u32> {
        match DirectoryLock::acquire(path, NO_WAIT).expect_err("held") {
            LockError::Held {
                path: lock_path,
                pid,
            } => {
                assert_eq!(lock_path, path.join("LOCK"));
                pid
            }
            error => panic!("{error}"),
        }
    }

    /// Not a test of its own: the other process of those below.
    #[test]
    #[ignore = "run by other tests, in a process of its own"]
    fn child_holds_until_its_input_ends() {
        let Some(path) = env::var_os(CHILD_DIRECTORY) else {
            return;
        };
        let lock = acquire(Path::new(&path));
        println!("\nholding");
        io::stdin().lines().for_each(drop);
        drop(lock);
    }

    /// The output is to be kept: without a reader the child would fail at its next line.
    fn child_holding(path: &Path) -> (Child, BufReader<ChildStdout>) {
        let (_, module) = module_path!()
            .split_once("::")
            .expect("a module of the crate");
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--ignored", "--nocapture", "--exact"])
            .arg(format!("{module}::child_holds_until_its_input_ends"))
            .env(CHILD_DIRECTORY, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        assert!(
            output
                .by_ref()
                .lines()
                .any(|line| line.expect("text") == "holding")
        );
        (child, output)
    }

    #[test]
    fn one_holder_at_a_time() {
        let directory = directory();
        let lock = acquire(directory.path());
        assert_eq!(holder(directory.path()), Some(process::id()));
        assert_eq!(
            holder(directory.path()),
            Some(process::id()),
            "the first refusal freed nothing"
        );
        drop(lock);
        drop(acquire(directory.path()));
        assert!(directory.path().join(LOCK_NAME).exists(), "the file stays");
    }

    #[test]
    fn other_paths_to_the_same_directory_are_held_too() {
        let directory = directory();
        let store = directory.path().join("store");
        std::fs::create_dir(&store).expect("made");
        let _lock = acquire(&store);
        assert_eq!(holder(&store.join(".")), Some(process::id()));
        assert_eq!(holder(&store.join("../store")), Some(process::id()));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&store, &link).expect("linked");
        assert_eq!(holder(&link), Some(process::id()));
        let moved = directory.path().join("moved");
        std::fs::rename(&store, &moved).expect("renamed");
        assert_eq!(holder(&moved), Some(process::id()));
        // A directory that took the old name is another one.
        std::fs::create_dir(&store).expect("made");
        drop(acquire(&store));
    }

    #[test]
    fn the_registry_holds_where_flock_means_nothing() {
        let directory = directory();
        let lock = acquire(directory.path());
        lock.file.unlock().expect("unlocked");
        assert_eq!(holder(directory.path()), Some(process::id()));
    }

    #[test]
    fn flock_holds_where_the_registry_knows_nothing() {
        let directory = directory();
        let file = File::create(directory.path().join(LOCK_NAME)).expect("made");
        file.lock().expect("locked");
        assert_eq!(holder(directory.path()), None, "an empty note names no one");
        std::fs::write(directory.path().join(LOCK_NAME), "boot=x\npid=4711\n").expect("written");
        assert_eq!(holder(directory.path()), Some(4711));
        std::fs::write(directory.path().join(LOCK_NAME), [0xFF; 10_000]).expect("written");
        assert_eq!(holder(directory.path()), None);
        // Not by closing: a child that another test is starting may share the descriptor.
        file.unlock().expect("unlocked");
        drop(acquire(directory.path()));
    }

    #[test]
    fn a_forked_parents_entry_means_nothing() {
        let directory = directory();
        let status = std::fs::metadata(directory.path()).expect("there");
        let identity = (status.dev(), status.ino());
        held().insert(identity, process::id().wrapping_add(1));
        let lock = acquire(directory.path());
        assert_eq!(held().get(&identity), Some(&process::id()));
        drop(lock);
        assert_eq!(held().get(&identity), None);
    }

    #[test]
    fn the_note_tells_who_and_is_gone_afterwards() {
        let directory = directory();
        let read = || std::fs::read_to_string(directory.path().join(LOCK_NAME)).expect("a note");
        let lock = acquire(directory.path());
        let note = read();
        assert!(
            note.starts_with(&format!("pid={}\n", process::id())),
            "{note}"
        );
        if cfg!(target_os = "linux") {
            assert!(
                note.contains("\nboot=") && note.contains("\nstarted="),
                "{note}"
            );
        }
        drop(lock);
        assert_eq!(read(), "");
    }

    #[test]
    fn another_process_holds_and_hands_over() {
        let directory = directory();
        let (mut child, _output) = child_holding(directory.path());
        assert_eq!(holder(directory.path()), Some(child.id()));
        let started = Instant::now();
        let error = DirectoryLock::acquire(directory.path(), Duration::from_millis(20));
        assert!(matches!(error, Err(LockError::Held { .. })));
        assert!(started.elapsed() >= Duration::from_millis(20), "it waited");
        drop(child.stdin.take());
        drop(DirectoryLock::acquire(directory.path(), LONG).expect("handed over"));
        assert!(child.wait().expect("ended").success());
    }

    #[test]
    fn a_killed_holder_leaves_nothing_to_clean_up() {
        let directory = directory();
        let (mut child, _output) = child_holding(directory.path());
        child.kill().expect("killed");
        child.wait().expect("ended");
        drop(acquire(directory.path()));
    }

    #[test]
    fn a_thread_waits_for_a_holder_in_the_same_process() {
        let directory = directory();
        let lock = acquire(directory.path());
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let lock = DirectoryLock::acquire(directory.path(), LONG);
                sender.send(lock.is_ok()).expect("sent");
            });
            assert!(
                receiver.recv_timeout(Duration::from_millis(20)).is_err(),
                "held"
            );
            drop(lock);
            assert!(receiver.recv().expect("an answer"));
        });
    }

    /// Of many threads that try over and over, never two hold.
    #[test]
    fn threads_exclude_each_other() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let directory = directory();
        let is_held = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let lock = DirectoryLock::acquire(directory.path(), LONG).expect("a turn");
                        assert!(!is_held.swap(true, Ordering::SeqCst));
                        thread::yield_now();
                        assert!(is_held.swap(false, Ordering::SeqCst));
                        drop(lock);
                    }
                });
            }
        });
    }

    #[test]
    #[expect(
        unsafe_code,
        reason = "the standard library forks only to run a program"
    )]
    fn a_forked_childs_drop_leaves_the_parents_lock() {
        use std::os::unix::process::CommandExt;

        let directory = directory();
        let mut in_child = Some(acquire(directory.path()));
        let mut command = Command::new("true");
        // SAFETY: the closure runs in the forked child, where dropping the lock asks for the process
        // id, closes a descriptor and frees memory, which the allocator allows after a fork.
        unsafe {
            command.pre_exec(move || {
                drop(in_child.take());
                Ok(())
            });
        }
        assert!(command.status().expect("run").success());
        assert_eq!(holder(directory.path()), Some(process::id()));
        let file = File::open(directory.path().join(LOCK_NAME)).expect("there");
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        drop(command);
        drop(acquire(directory.path()));
    }

    #[test]
    fn what_cannot_be_locked_is_named() {
        let directory = directory();
        let missing = directory.path().join("missing");
        match DirectoryLock::acquire(&missing, LONG) {
            Err(LockError::Io { path, source }) => {
                assert_eq!(path, missing);
                assert_eq!(source.kind(), io::ErrorKind::NotFound);
            }
            other => panic!("{other:?}"),
        }
        // Not even root can open a directory for writing: as good as a file that is read-only.
        let lock_path = directory.path().join(LOCK_NAME);
        std::fs::create_dir(&lock_path).expect("made");
        match DirectoryLock::acquire(directory.path(), LONG) {
            Err(error @ LockError::Io { .. }) => {
                assert_eq!(
                    error.to_string(),
                    format!("cannot lock {}", lock_path.display())
                );
                assert!(std::error::Error::source(&error).is_some());
            }
            other => panic!("{other:?}"),
        }
    }
}
