//! A copy of the log that can be opened, taken while the log goes on.
//!
//! All below one position is in it and nothing above. Segments that end there or before are never
//! written again, so the copy shares their bytes where the file system can; of the one in which the
//! position lies, the part before it is copied. Side-cars stay behind: the first open of the copy
//! reads its records and makes its own. META comes last: without it the copy does not open, so one
//! that was cut off passes for none.

use std::io;

use crate::fs::Storage;
use crate::log::header::PAGE_BYTES;
use crate::log::meta::{META, MetaFile};
use crate::log::repair;
use crate::log::segment::Segment;
use crate::log::workers::Log;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Files whose bytes the copy shares with the original.
    pub(crate) shared: u64,
    /// Files that were copied.
    pub(crate) copied: u64,
    /// Bytes that were copied.
    pub(crate) bytes_copied: u64,
}

/// What could not be done, and to which file.
#[derive(Debug)]
pub(crate) struct CopyError {
    pub(crate) file: String,
    pub(crate) source: io::Error,
}

impl CopyError {
    fn at(file: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self {
            file: file.to_owned(),
            source,
        }
    }
}

impl Log {
    /// Copies everything below `end` into an empty directory. All of it must be durable, and the
    /// caller [holds](Self::hold_members) the files that count since before it learnt of `end`.
    ///
    /// # Errors
    ///
    /// What either storage says. There is no META in the copy then.
    pub(crate) fn copy_to(&self, target: &dyn Storage, end: u64) -> Result<Copied, CopyError> {
        let mut copied = Copied::default();
        let mut meta = self.meta();
        let mut segments = self.segments().all();
        segments.retain(|segment| {
            if segment.is_compacted() {
                // One that is done but does not count yet lies behind that.
                segment.base < meta.members.compacted_end
            } else {
                segment.base < end
            }
        });
        for segment in segments {
            copied.add(self.storage(), &segment, target, end)?;
        }
        target.sync_directory().map_err(CopyError::at("."))?;
        meta.clean = true;
        meta.watermark = end;
        meta.high_water_ms = meta.high_water_ms.max(self.now_ms());
        meta.snapshot = true;
        MetaFile::create(target, meta).map_err(CopyError::at(META))?;
        Ok(copied)
    }
}

impl Copied {
    fn add(
        &mut self,
        storage: &dyn Storage,
        segment: &Segment,
        target: &dyn Storage,
        end: u64,
    ) -> Result<(), CopyError> {
        let name = &segment.name;
        let is_whole = segment.is_compacted() || segment.end() <= end;
        if is_whole && storage.share(name, target).map_err(CopyError::at(name))? {
            self.shared += 1;
            return Ok(());
        }
        let used = if is_whole {
            segment.words()
        } else {
            end - segment.base
        };
        let used_bytes = used * 8;
        let bytes = copy_until(storage, name, target, used_bytes).map_err(CopyError::at(name))?;
        self.copied += 1;
        self.bytes_copied += bytes;
        Ok(())
    }
}

/// Copies whole pages, with nothing behind `used_bytes`: those who append may be at work there.
fn copy_until(
    storage: &dyn Storage,
    name: &str,
    target: &dyn Storage,
    used_bytes: u64,
) -> io::Result<u64> {
    let source = storage.open(name)?;
    let len = used_bytes.next_multiple_of(PAGE_BYTES as u64);
    let len = source.len()?.min(len);
    let copy = repair::copy_file(source.as_ref(), len, target, name)?;
    let rest = usize::try_from(len.saturating_sub(used_bytes)).unwrap_or(0);
    copy.write_at(used_bytes, &vec![0; rest.min(PAGE_BYTES)])?;
    copy.sync_data()?;
    Ok(len)
}
