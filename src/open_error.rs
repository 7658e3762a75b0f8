//! Why a store does not open.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::corruption::{Corruption, Damage};
use crate::fs::lock::LockError;
use crate::log::recover::RecoverError;
use crate::options::OptionsError;

/// Why a store does not open. Each variant says what is in the way and what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// An option is out of range.
    Options(OptionsError),
    /// The path names a file.
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another open store holds the directory.
    InUse {
        /// The path.
        path: PathBuf,
        /// The process that holds it, where it could be read.
        pid: Option<u32>,
    },
    /// The directory is on a network file system, where neither locks nor maps can be relied on.
    NetworkFileSystem {
        /// The path.
        path: PathBuf,
        /// Its kind.
        file_system: &'static str,
    },
    /// Something in the directory is not the store's.
    ForeignFile {
        /// The path of the directory.
        path: PathBuf,
        /// Name of the file.
        name: String,
    },
    /// A file was written by another version of the format.
    FormatVersion {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this library reads.
        supported: u32,
    },
    /// There are segments but no META.
    MetaMissing {
        /// The path of the directory.
        path: PathBuf,
        /// How many segments there are.
        segments: usize,
    },
    /// META is there but neither of its two copies can be read.
    MetaDamaged {
        /// The path of the directory.
        path: PathBuf,
        /// What is wrong with each copy.
        copies: [Damage; 2],
    },
    /// Durable records can't be read. With `Recovery::Refuse` the store doesn't open over them.
    Corrupt {
        /// The path of the directory.
        path: PathBuf,
        /// What is wrong and where.
        corruption: Corruption,
    },
    /// The wall clock is further ahead of the store's time than is plausible: opening would expire
    /// results early.
    ClockJumped {
        /// Wall clock, in ms since the Unix epoch.
        wall_ms: u64,
        /// The latest time the store knows of, in ms since the Unix epoch.
        high_water_ms: u64,
        /// How far ahead is allowed, in ms.
        max_clock_jump_ms: u64,
    },
    /// The store was opened 2^28 times.
    EpochsExhausted,
    /// The system refused.
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        if source.kind() == io::ErrorKind::NotADirectory {
            return Self::NotADirectory { path };
        }
        Self::Io { path, source }
    }

    pub(crate) fn from_lock(path: &Path, error: LockError) -> Self {
        match error {
            LockError::Held { pid, .. } => Self::InUse {
                path: path.to_path_buf(),
                pid,
            },
            LockError::Io { path, source } => Self::Io { path, source },
        }
    }

    pub(crate) fn from_recovery(path: &Path, error: RecoverError) -> Self {
        let directory = path.to_path_buf();
        match error {
            RecoverError::Io { file, source } => Self::Io {
                path: path.join(file),
                source,
            },
            RecoverError::Corrupt(corruption) => Self::Corrupt {
                path: directory,
                corruption,
            },
            RecoverError::ForeignFile { name } => Self::ForeignFile {
                path: directory,
                name,
            },
            RecoverError::Version {
                file,
                found,
                supported,
            } => Self::FormatVersion {
                file: path.join(file),
                found,
                supported,
            },
            RecoverError::MetaMissing { segments } => Self::MetaMissing {
                path: directory,
                segments,
            },
            RecoverError::MetaDamaged { slots } => Self::MetaDamaged {
                path: directory,
                copies: slots,
            },
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::NotADirectory { path } => write!(
                f,
                "{} is a file; name a directory, which may be new or empty",
                path.display()
            ),
            Self::InUse { path, pid } => {
                write!(f, "{} is held by another open store", path.display())?;
                if let Some(pid) = pid {
                    write!(f, " of process {pid}")?;
                }
                f.write_str(
                    "; stop that one, or wait for it with Options::lock_wait (the lock goes with \
                     its process and is never broken)",
                )
            }
            Self::NetworkFileSystem { path, file_system } => write!(
                f,
                "{} is on {file_system}, where locks and mapped files can't be relied on; use a \
                 local disk, or Options::allow_network_file_system if you know better",
                path.display()
            ),
            Self::ForeignFile { path, name } => write!(
                f,
                "{} holds {name:?}, which is not the store's; name a directory of its own",
                path.display()
            ),
            Self::FormatVersion {
                file,
                found,
                supported,
            } => write!(
                f,
                "{} is of format version {found}, and this version of the library reads \
                 {supported}; open it with the version that wrote it",
                file.display()
            ),
            Self::MetaMissing { path, segments } => write!(
                f,
                "{} holds {segments} segments but no META; restore META from a copy, or open with \
                 Recovery::Salvage, which makes it anew from a segment whose header can be read",
                path.display()
            ),
            Self::MetaDamaged {
                path,
                copies: [first, second],
            } => write!(
                f,
                "both copies of META in {} are bad ({first}; {second}); restore it, or open with \
                 Recovery::Salvage, which keeps a copy of it and makes it anew from the segments",
                path.display()
            ),
            Self::Corrupt { path, corruption } => write!(f, "in {}: {corruption}", path.display()),
            Self::ClockJumped {
                wall_ms,
                high_water_ms,
                max_clock_jump_ms,
            } => write!(
                f,
                "the wall clock is {} ms ahead of the latest time in the store, more than the {} \
                 ms allowed; if the clock is right, open once with Options::allow_clock_jump",
                wall_ms.saturating_sub(*high_water_ms),
                max_clock_jump_ms
            ),
            Self::EpochsExhausted => {
                f.write_str("the store was opened 2^28 times; start a new directory")
            }
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Options(error) => Some(error),
            Self::Corrupt { corruption, .. } => Some(corruption),
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
