//! Throw-away directories, what they take, and what this process takes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

use super::Fault;

/// Removed when dropped.
pub(super) fn directory(parent: &Path) -> Result<TempDir, Fault> {
    tempfile::Builder::new()
        .prefix("oncekey-bench-")
        .tempdir_in(parent)
        .map_err(|error| format!("{}: {error}", parent.display()).into())
}

/// Bytes on the disk of all files below.
pub(super) fn disk_bytes(directory: &Path) -> Result<u64, Fault> {
    let mut bytes = 0;
    each_file(directory, &mut |path| {
        bytes += fs::metadata(path)?.blocks() * 512;
        Ok(())
    })?;
    Ok(bytes)
}

/// Drops what the system's cache has of all files below.
pub(super) fn drop_from_cache(directory: &Path) -> Result<(), Fault> {
    each_file(directory, &mut |path| {
        let file = File::open(path)?;
        // What was written must be on the disk before it can be dropped.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    })
}

fn each_file(
    directory: &Path,
    visit: &mut impl FnMut(&Path) -> Result<(), Fault>,
) -> Result<(), Fault> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => each_file(&entry.path(), visit)?,
            false => visit(&entry.path())?,
        }
    }
    Ok(())
}

/// Memory of this process that no file stands behind; `None` where the system does not tell.
pub(super) fn anonymous_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}
