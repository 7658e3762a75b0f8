//! Backups of an open store: what [`Store::snapshot`](crate::Store::snapshot) gives and how it fails.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::block::block_on;
use crate::engine::Engine;
use crate::error::Unavailable;
use crate::fs::Storage;
use crate::fs::lock::{DirectoryLock, LOCK_NAME, LockError};
use crate::fs::os::OsStorage;
use crate::log::commit::Lead;
use crate::log::meta::META;
use crate::log::repair;
use crate::log::snapshot::CopyError;

/// What a snapshot took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Files that are hard links of the store's: nothing was copied for them.
    pub files_linked: u64,
    /// Files that were copied.
    pub files_copied: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
}

/// Why there is no snapshot. The store is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The directory holds something already: name another one, or empty it.
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// Something that is in it.
        found: String,
    },
    /// The directory is the store's own or lies in it, where everything belongs to the store.
    InsideStore {
        /// The directory.
        path: PathBuf,
    },
    /// A store has been opened in the directory, or another snapshot is being written there.
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The system reported an error.
    Io {
        /// The file, or the directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store refuses: a poisoned or closed store gives no snapshot.
    Unavailable(Unavailable),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty { path, found } => write!(
                f,
                "{} is not empty ({found} is in it): a snapshot needs a directory of its own",
                path.display()
            ),
            Self::InsideStore { path } => write!(
                f,
                "{} is within the store's own directory: name one outside of it",
                path.display()
            ),
            Self::InUse { path } => write!(
                f,
                "{} is in use by an open store or another snapshot",
                path.display()
            ),
            Self::Io { path, source } => write!(
                f,
                "the snapshot could not be written: {}: {source}",
                path.display()
            ),
            Self::Unavailable(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Unavailable(error) => Some(error),
            Self::NotEmpty { .. } | Self::InsideStore { .. } | Self::InUse { .. } => None,
        }
    }
}

/// Takes a snapshot into a directory of the system.
pub(crate) fn take(engine: &Engine, path: &Path) -> Result<Snapshot, SnapshotError> {
    let io = |source| SnapshotError::Io {
        path: path.to_path_buf(),
        source,
    };
    if let Some(store) = engine.log().storage().system_directory()
        && is_inside(path, store).map_err(io)?
    {
        return Err(SnapshotError::InsideStore {
            path: path.to_path_buf(),
        });
    }
    let target = OsStorage::open(path, true).map_err(io)?;
    let lock = DirectoryLock::acquire(path, Duration::ZERO).map_err(|error| match error {
        LockError::Held { .. } => SnapshotError::InUse {
            path: path.to_path_buf(),
        },
        LockError::Io { path, source } => SnapshotError::Io { path, source },
    })?;
    let taken = take_into(engine, &target, path);
    drop(lock);
    taken
}

/// Takes a snapshot into a directory that nobody else uses; `path` is for messages.
pub(crate) fn take_into(
    engine: &Engine,
    target: &dyn Storage,
    path: &Path,
) -> Result<Snapshot, SnapshotError> {
    let span = tracing::info_span!("snapshot", path = %path.display());
    let _entered = span.enter();
    let at = |error: CopyError| SnapshotError::Io {
        path: path.join(error.file),
        source: error.source,
    };
    let listed = target.list().map_err(|source| SnapshotError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    if let Some(entry) = listed.into_iter().find(|entry| entry.name != LOCK_NAME) {
        return Err(SnapshotError::NotEmpty {
            path: path.to_path_buf(),
            found: entry.name,
        });
    }
    // What is copied must count until it is, and together.
    let _members = engine.log().hold_members();
    let flushed = block_on(engine.flush(Lead::Allowed));
    let end = flushed.map_err(SnapshotError::Unavailable)?;
    match engine.log().copy_to(target, end) {
        Ok(copied) => {
            tracing::info!(?copied, "taken");
            Ok(Snapshot {
                files_linked: copied.shared,
                files_copied: copied.copied,
                bytes_copied: copied.bytes_copied,
            })
        }
        Err(error) => {
            clear(target);
            Err(at(error))
        }
    }
}

/// Removes what a snapshot that failed has left. META goes first: without it nothing opens.
fn clear(target: &dyn Storage) {
    let removed = target.list().and_then(|mut listed| {
        listed.retain(|entry| entry.name != LOCK_NAME);
        listed.sort_by_key(|entry| entry.name != META);
        let names = listed.iter().map(|entry| entry.name.as_str());
        repair::remove_in_order(target, names)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "a snapshot that failed was not removed");
    }
}

/// Whether a directory, which may not exist yet, is this one or would lie in it.
fn is_inside(path: &Path, directory: &File) -> io::Result<bool> {
    let directory = directory.metadata()?;
    let absolute = std::path::absolute(path)?;
    let existing = absolute.ancestors().find(|path| path.exists());
    let Some(existing) = existing else {
        return Ok(false);
    };
    for ancestor in existing.canonicalize()?.ancestors() {
        let found = fs::metadata(ancestor)?;
        if (found.dev(), found.ino()) == (directory.dev(), directory.ino()) {
            return Ok(true);
        }
    }
    Ok(false)
}
