//! All access to files goes through here.
//!
//! [`Storage`] is one directory and [`StorageFile`] an open file in it: [`os`] is the real thing,
//! `simulated` keeps everything in memory, loses what was not synced when told to, and fails on
//! demand. What both promise:
//! * a file that `create` returned has its full length, backed by real blocks, so that storing to
//!   its map meets no full disk; after an error no file of that name was left behind;
//! * contents survive a loss of power after `sync_data`, names after `sync_directory`, and nothing
//!   else does;
//! * an interrupted call is repeated, a short one continued: a caller sees all or an error.
//!
//! Names are plain file names. `log` and the opening of a store are the callers; `lock` and `kind`
//! are used by the latter only.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::mem::Memory;

pub(crate) mod kind;
pub(crate) mod lock;
pub(crate) mod os;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod simulated;

/// What a directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Name within the directory. Bytes that are not UTF-8 are replaced: such a name is for
    /// messages only, since none of ours looks like that.
    pub(crate) name: String,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Whether it is a regular file, and not a directory, a link or a device.
    pub(crate) is_file: bool,
}

/// One directory.
pub(crate) trait Storage: Send + Sync + Debug {
    /// What it holds, in no order.
    fn list(&self) -> io::Result<Vec<FileEntry>>;

    /// Makes a file of `len` zero bytes with real blocks behind them.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a name that is taken, `StorageFull` when there is no room. After any
    /// error but `AlreadyExists` there is no file of that name.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens a file to read and to write it.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Gives a file another name, in one step; one that has it already is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a name away. Open files and maps stay usable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives the target the file under the same name, without copying its bytes, where both are on a
    /// file system that can: `false` where not, and nothing has happened then. The file must not
    /// change any more, since the bytes may be the same ones for good. Contents survive a loss of
    /// power, the new name does after the target's `sync_directory`.
    fn share(&self, _name: &str, _target: &dyn Storage) -> io::Result<bool> {
        Ok(false)
    }

    /// The directory itself, if it is one of the system's.
    fn system_directory(&self) -> Option<&File> {
        None
    }

    /// Makes all creations, renames and removals so far survive a loss of power.
    fn sync_directory(&self) -> io::Result<()>;
}

/// One open file.
pub(crate) trait StorageFile: Send + Sync + Debug {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset` on; `UnexpectedEof` where the file ends before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`, lengthening the file where needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros that no blocks stand behind. A mapped file may only
    /// be cut behind the last byte that anybody still reads: reaching behind its end kills the
    /// process.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes contents and length survive a loss of power, stores through maps included.
    ///
    /// After an error it is unknown what did; a later success says nothing about what was written
    /// before the error.
    fn sync_data(&self) -> io::Result<()>;

    /// Maps the whole file; with `populate` its pages are made present and writable now.
    fn map(&self, populate: bool) -> io::Result<Memory>;
}
