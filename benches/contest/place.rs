//! Where benchmarks put their stores.

use std::path::PathBuf;

use tempfile::TempDir;

/// A directory for one store, under the target directory: removed when dropped.
pub fn directory() -> TempDir {
    let parent = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&parent).expect("the target directory can be written");
    tempfile::Builder::new()
        .prefix("oncekey-bench-")
        .tempdir_in(parent)
        .expect("the target directory can be written")
}
