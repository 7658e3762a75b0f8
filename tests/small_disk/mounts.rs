//! Small file systems: made, mounted, and unmounted whatever happens.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::needs;

/// How large, and of what kind.
#[derive(Clone, Debug)]
pub enum Size {
    Ext4 {
        kib: u64,
        block: u32,
        inodes: Option<u32>,
    },
    Tmpfs {
        kib: u64,
    },
}

impl Size {
    pub fn ext4(mib: u64) -> Self {
        Self::Ext4 {
            kib: mib << 10,
            block: 4_096,
            inodes: None,
        }
    }

    pub fn tmpfs(kib: u64) -> Self {
        Self::Tmpfs { kib }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ext4 { kib, block, inodes } => {
                write!(f, "ext4 of {kib} KiB in blocks of {block}")?;
                inodes.map_or(Ok(()), |inodes| write!(f, " with {inodes} inodes"))
            }
            Self::Tmpfs { kib } => write!(f, "tmpfs of {kib} KiB"),
        }
    }
}

/// A mounted file system. Dropped, it is unmounted, busy or not.
pub struct Mount {
    /// With the mount point and, for ext4, the file that the file system is in.
    directory: TempDir,
    mount_point: PathBuf,
    mounted: bool,
}

impl Mount {
    /// A new one; `None`, loudly, where this machine can't.
    #[track_caller]
    pub fn new(test: &str, size: &Size) -> Option<Self> {
        let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        let missing: Vec<_> = ["mkfs.ext4", "mount", "umount"]
            .into_iter()
            .filter(|program| Command::new(program).arg("-V").output().is_err())
            .collect();
        if !is_root || !missing.is_empty() {
            skip(test, &format!("root: {is_root}, missing: {missing:?}"));
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let mut mount = Self {
            mount_point: directory.path().join("mounted"),
            directory,
            mounted: false,
        };
        fs::create_dir(mount.path()).expect("a mount point");
        let mounted = match size {
            Size::Ext4 { .. } => mount.ext4(size),
            Size::Tmpfs { kib } => mount.tmpfs(*kib, None),
        };
        match (mounted, size) {
            (Ok(()), _) => {}
            // Some sandboxes have no loop devices.
            (Err(error), Size::Ext4 { kib, inodes, .. }) => {
                needs::say(&format!(
                    "small_disk: no ext4 here ({error}); {test} takes tmpfs instead"
                ));
                if let Err(error) = mount.tmpfs(*kib, *inodes) {
                    skip(test, &error);
                    return None;
                }
                fs::create_dir(mount.path().join("lost+found")).expect("as ext4 has it");
            }
            (Err(error), _) => {
                skip(test, &error);
                return None;
            }
        }
        Some(mount)
    }

    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    fn ext4(&mut self, size: &Size) -> Result<(), String> {
        let Size::Ext4 { kib, block, inodes } = size else {
            unreachable!("of another kind");
        };
        let image = self.directory.path().join("image");
        let file = File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(kib << 10).map_err(|error| error.to_string())?;
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-m", "0", "-b", &block.to_string()]);
        if let Some(inodes) = inodes {
            make.args(["-N", &inodes.to_string()]);
        }
        call(make.arg(&image))?;
        call(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&self.mount_point),
        )?;
        self.mounted = true;
        Ok(())
    }

    fn tmpfs(&mut self, kib: u64, inodes: Option<u32>) -> Result<(), String> {
        let mut size = format!("size={kib}k");
        if let Some(inodes) = inodes {
            size.push_str(&format!(",nr_inodes={inodes}"));
        }
        call(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "oncekey-test"])
                .arg(&self.mount_point),
        )?;
        self.mounted = true;
        Ok(())
    }

    /// Unmounts it as a machine does that goes down: nobody may have it open any more.
    #[track_caller]
    pub fn end(mut self) {
        let unmounted = call(Command::new("umount").arg(&self.mount_point));
        if unmounted.is_ok() {
            self.mounted = false;
        }
        unmounted.expect("nobody has it open");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily: whoever holds a file in it keeps it alive and nobody sees it any more. The
            // loop device goes with it.
            let unmounted = call(Command::new("umount").arg("-l").arg(&self.mount_point));
            if let Err(error) = unmounted {
                needs::say(&format!(
                    "small_disk: {} stays mounted: {error}",
                    self.mount_point.display()
                ));
            }
        }
    }
}

fn call(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program}: {}: {}", output.status, told.trim()))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

#[track_caller]
fn skip(test: &str, why: &str) {
    let needs = "root and e2fsprogs (apt-get install e2fsprogs mount)";
    needs::skip(&format!("small_disk: {test}"), needs, why);
}
