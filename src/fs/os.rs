//! The operating system's files.
//!
//! The directory is opened once and everything in it is reached relative to that descriptor, so a
//! store goes on working when its directory is renamed, and never wanders off to another one that
//! took the old name. Directories are made for their owner only (0700), files too (0600); links are
//! not followed; a program that the process starts inherits no descriptor.
//!
//! Linux is the target. On Apple systems the standard library's sync calls ask for `F_FULLFSYNC`.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::kind::FileSystemKind;
use super::{FileEntry, Storage, StorageFile};
use crate::mem::Memory;

/// How much is written at once where a file system cannot allocate. Small, so that the page cache
/// builds no large folios: a store through the map would then make a whole one dirty.
const ZERO_CHUNK: usize = 64 * 1024;

/// A directory of the operating system.
#[derive(Debug)]
pub(crate) struct OsStorage {
    directory: File,
    /// How files are opened: to read, and to write unless the store is only looked at.
    access: OFlags,
}

impl OsStorage {
    /// Opens the directory at `path`; with `create`, makes it and its parents where they are
    /// missing, durably.
    ///
    /// # Errors
    ///
    /// What the system reports: `NotFound` without `create`, `NotADirectory`, `PermissionDenied`…
    pub(crate) fn open(path: &Path, create: bool) -> io::Result<Self> {
        if create {
            create_directory(path)?;
        }
        Ok(Self {
            directory: open_directory(path)?,
            access: OFlags::RDWR,
        })
    }

    /// Opens the directory at `path` to read what is in it: files are opened without the right to
    /// write, and nobody needs it.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub(crate) fn open_read_only(path: &Path) -> io::Result<Self> {
        Ok(Self {
            directory: open_directory(path)?,
            access: OFlags::RDONLY,
        })
    }

    /// What kind of file system the directory is on.
    pub(crate) fn kind(&self) -> io::Result<FileSystemKind> {
        FileSystemKind::of(&self.directory)
    }

    /// Syncs the directory, to learn whether the file system can.
    ///
    /// # Errors
    ///
    /// `Unsupported` where it cannot, which is not a failure of the disk; else what the system
    /// reports.
    pub(crate) fn probe_sync(&self) -> io::Result<()> {
        self.sync_directory().map_err(|error| {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    io::Error::new(io::ErrorKind::Unsupported, error)
                }
                _ => error,
            }
        })
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        check_name(name)?;
        let flags = flags | self.access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = retry_on_intr(|| rustix::fs::openat(&self.directory, name, flags, mode))?;
        Ok(File::from(file))
    }
}

impl Storage for OsStorage {
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let mut entries = Vec::new();
        // Opens the directory anew: a reading position is not shared with other calls.
        for entry in retry_on_intr(|| Dir::read_from(&self.directory))? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let look = || rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let status = match retry_on_intr(look) {
                Ok(status) => status,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            entries.push(FileEntry {
                name: name.to_string_lossy().into_owned(),
                len: u64::try_from(status.st_size).unwrap_or(0),
                is_file: FileType::from_raw_mode(status.st_mode) == FileType::RegularFile,
            });
        }
        Ok(entries)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        let file = self.open_file(name, OFlags::CREATE | OFlags::EXCL)?;
        if let Err(error) = allocate(&file, len) {
            // Closed first: some file systems keep the blocks of an open file, or a name for it.
            drop(file);
            if let Err(second) = self.remove(name) {
                tracing::warn!(name, %second, "a file that could not be allocated stays behind");
            }
            return Err(error);
        }
        Ok(Arc::new(OsFile { file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(OsFile {
            file: self.open_file(name, OFlags::empty())?,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let directory = &self.directory;
        Ok(retry_on_intr(|| {
            rustix::fs::renameat(directory, from, directory, to)
        })?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(retry_on_intr(|| {
            rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
        })?)
    }

    fn share(&self, name: &str, target: &dyn Storage) -> io::Result<bool> {
        check_name(name)?;
        let Some(directory) = target.system_directory() else {
            return Ok(false);
        };
        let link = || {
            let flags = AtFlags::empty();
            rustix::fs::linkat(&self.directory, name, directory, name, flags)
        };
        match retry_on_intr(link) {
            Ok(()) => Ok(true),
            // Another file system, one without hard links, or no more of them for this file.
            Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn system_directory(&self) -> Option<&File> {
        Some(&self.directory)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

/// A file of the operating system.
#[derive(Debug)]
struct OsFile {
    file: File,
}

impl StorageFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Repeats after EINTR, continues after a short write, and ends in `WriteZero` when the
        // system takes nothing.
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // On Linux this covers what was stored through maps: msync(MS_SYNC) is itself a ranged
        // fdatasync.
        self.file.sync_data()
    }

    fn map(&self, populate: bool) -> io::Result<Memory> {
        Memory::map(&self.file, self.len()?, populate)
    }
}

/// Names come from our own code, except where a listing is walked; none may lead out of the
/// directory.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let message = format!("{name:?} is no file name");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Gives an empty file `len` zero bytes that have blocks.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, len),
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &File, len: u64) -> io::Result<()> {
    let zeros = [0; ZERO_CHUNK];
    let mut offset = 0;
    while offset < len {
        let chunk = usize::try_from(len - offset)
            .unwrap_or(ZERO_CHUNK)
            .min(ZERO_CHUNK);
        file.write_all_at(&zeros[..chunk], offset)?;
        offset += chunk as u64;
    }
    Ok(())
}

/// Opens a directory to sync it and to reach what is in it.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(File::from(retry_on_intr(|| {
        rustix::fs::openat(CWD, path, flags, Mode::empty())
    })?))
}

/// Makes a directory and the parents it lacks. Each new one is synced into its parent, else the
/// store could vanish whole.
fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(io::ErrorKind::NotFound.into()),
    };
    create_directory(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        // Someone else made it meanwhile; whether it is a directory shows when it is opened.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => open_directory(parent)?.sync_all(),
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::sync::Ordering;

    fn storage() -> (tempfile::TempDir, OsStorage) {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = OsStorage::open(directory.path(), false).expect("opened");
        (directory, storage)
    }

    fn names(storage: &OsStorage) -> Vec<String> {
        let mut names: Vec<_> = storage
            .list()
            .expect("a list")
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        names.sort();
        names
    }

    #[test]
    fn directories_are_made_for_their_owner_only() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("one/two");
        let error = OsStorage::open(&path, false).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for _ in 0..2 {
            drop(OsStorage::open(&path, true).expect("made, or there"));
        }
        for made in [base.path().join("one"), path] {
            let mode = fs::metadata(made).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        let file = base.path().join("file");
        fs::write(&file, "").expect("written");
        let error = OsStorage::open(&file, true).expect_err("a file");
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        OsStorage::open(&file.join("below"), true).expect_err("below a file");
    }

    #[test]
    fn a_created_file_is_whole_and_has_blocks() {
        let (directory, storage) = storage();
        let file = storage.create("segment", 1 << 20).expect("made");
        assert_eq!(file.len().expect("a length"), 1 << 20);
        let status = fs::metadata(directory.path().join("segment")).expect("there");
        assert!(
            status.blocks() * 512 >= 1 << 20,
            "{} blocks",
            status.blocks()
        );
        assert_eq!(status.permissions().mode() & 0o777, 0o600);
        let mut end = [1; 8];
        file.read_at((1 << 20) - 8, &mut end).expect("read");
        assert_eq!(end, [0; 8]);
        assert_eq!(
            storage
                .create("empty", 0)
                .expect("made")
                .len()
                .expect("a length"),
            0
        );
    }

    #[test]
    fn zeros_stand_in_for_an_allocation() {
        let file = tempfile::tempfile().expect("a file");
        for len in [1, 65_535, 65_536, 65_537, 200_000] {
            file.set_len(0).expect("cut");
            write_zeros(&file, len).expect("written");
            assert_eq!(file.metadata().expect("there").len(), len);
        }
    }

    #[test]
    fn a_taken_name_is_left_alone() {
        let (_directory, storage) = storage();
        storage
            .create("name", 3)
            .expect("made")
            .write_at(0, b"old")
            .expect("written");
        let error = storage.create("name", 0).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let mut contents = [0; 3];
        storage
            .open("name")
            .expect("opened")
            .read_at(0, &mut contents)
            .expect("read");
        assert_eq!(&contents, b"old");
    }

    #[test]
    fn what_cannot_be_allocated_leaves_no_name() {
        let (_directory, storage) = storage();
        // No file system takes a file of this length: the error stands for a full disk.
        storage
            .create("huge", i64::MAX as u64)
            .expect_err("too long");
        storage
            .create("overflowing", u64::MAX)
            .expect_err("no length at all");
        assert!(names(&storage).is_empty());
    }

    #[test]
    fn reads_and_writes_are_whole() {
        let (_directory, storage) = storage();
        let file = storage.create("file", 4).expect("made");
        file.write_at(2, b"longer").expect("written");
        assert_eq!(file.len().expect("a length"), 8);
        let mut contents = [0; 8];
        file.read_at(0, &mut contents).expect("read");
        assert_eq!(&contents, b"\0\0longer");
        let error = file.read_at(1, &mut contents).expect_err("short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(3).expect("cut");
        file.sync_data().expect("synced");
        assert_eq!(file.len().expect("a length"), 3);
    }

    #[test]
    fn a_map_and_the_file_are_one_also_after_removal() {
        let (_directory, storage) = storage();
        let file = storage.create("file", 8192).expect("made");
        let memory = file.map(true).expect("mapped");
        storage.remove("file").expect("removed");
        memory
            .word(600)
            .store(u64::from_le_bytes(*b"12345678"), Ordering::Relaxed);
        file.sync_data().expect("synced");
        let mut word = [0; 8];
        file.read_at(4800, &mut word).expect("read");
        assert_eq!(&word, b"12345678");
        drop(file);
        assert_eq!(memory.bytes(4800, 8), b"12345678");
    }

    #[test]
    fn renaming_replaces_and_listing_tells_files_from_others() {
        let (directory, storage) = storage();
        storage.create("temporary", 10).expect("made");
        storage.create("final", 20).expect("made");
        storage.rename("temporary", "final").expect("renamed");
        storage.sync_directory().expect("synced");
        storage.probe_sync().expect("supported here");
        fs::create_dir(directory.path().join("below")).expect("made");
        symlink("final", directory.path().join("link")).expect("linked");
        let mut entries = storage.list().expect("a list");
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        let brief: Vec<_> = entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.is_file))
            .collect();
        assert_eq!(brief, [("below", false), ("final", true), ("link", false)]);
        assert_eq!(entries[1].len, 10);
        assert_eq!(
            storage.list().expect("a list").len(),
            3,
            "listing again starts again"
        );
        storage.open("link").expect_err("links are not followed");
        let error = storage.remove("absent").expect_err("absent");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_renamed_directory_goes_on_working() {
        let base = tempfile::tempdir().expect("a directory");
        let (old, new) = (base.path().join("old"), base.path().join("new"));
        let storage = OsStorage::open(&old, true).expect("made");
        fs::rename(&old, &new).expect("renamed");
        fs::create_dir(&old).expect("made");
        storage.create("file", 1).expect("made");
        assert!(new.join("file").exists());
        assert!(!old.join("file").exists());
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let (_directory, storage) = storage();
        for name in ["", ".", "..", "../escaped", "/escaped", "a/b", "nul\0"] {
            let error = storage.create(name, 0).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
            storage.open(name).expect_err(name);
            storage.remove(name).expect_err(name);
            storage.rename(name, "name").expect_err(name);
            storage.rename("name", name).expect_err(name);
        }
    }
}
