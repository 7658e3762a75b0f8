//! What kind of file system a directory is on.
//!
//! A store needs coherent maps, a lock that other hosts respect, and syncs that mean it. Local
//! disks give all three; network file systems may give none, and memory file systems nothing that
//! survives. Opening refuses or warns by what is found here.

use std::io;
use std::os::fd::AsFd;

/// A file system, as far as a store cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystemKind {
    /// On a local disk, overwriting in place: ext4, XFS and their like.
    Local,
    /// Lives in memory: nothing survives a restart of the machine.
    Memory,
    /// Overwriting takes new space, so a full disk can be met even where blocks were allocated.
    CopyOnWrite,
    /// Other hosts may reach it, or a process in user space serves it: maps and locks may not hold.
    Network(&'static str),
    /// Not in the table.
    Unknown,
}

impl FileSystemKind {
    /// The kind of file system that an open file or directory is on.
    ///
    /// # Errors
    ///
    /// What the system reports.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let status = rustix::io::retry_on_intr(|| rustix::fs::fstatfs(&file))?;
        // The numbers are 32 bits wide, in a signed field of which some systems fill the upper half
        // with the sign.
        Ok(Self::of_magic(status.f_type as u32))
    }

    /// Other systems name their file systems differently; all pass for unknown.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_file: impl AsFd) -> io::Result<Self> {
        Ok(Self::Unknown)
    }

    /// From the number that `statfs` gives.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn of_magic(magic: u32) -> Self {
        match magic {
            0x0000_EF53 // ext2, ext3, ext4
            | 0x5846_5342 // xfs
            | 0xF2F5_2010 // f2fs
            | 0x3153_464A // jfs
            | 0x5265_4973 // reiserfs
            | 0x0000_3434 // nilfs2
            | 0x0000_4D44 // vfat
            | 0x2011_BAB0 // exfat
            | 0x5346_544E // ntfs
            | 0x7366_746E // ntfs3
            | 0x794C_7630 // overlayfs: syncs and locks go to the upper layer
            => Self::Local,
            0x0102_1994 // tmpfs
            | 0x8584_58F6 // ramfs
            | 0x9584_58F6 // hugetlbfs
            => Self::Memory,
            0x9123_683E // btrfs
            | 0x2FC1_2FC1 // zfs
            | 0xCA45_1A4E // bcachefs
            => Self::CopyOnWrite,
            0x0000_6969 => Self::Network("nfs"),
            0x0000_517B => Self::Network("smb"),
            0xFE53_4D42 => Self::Network("smb2"),
            0xFF53_4D42 => Self::Network("cifs"),
            0x0000_564C => Self::Network("ncp"),
            0x6573_5546 => Self::Network("fuse"),
            0x0102_1997 => Self::Network("9p"),
            0x00C3_6400 => Self::Network("ceph"),
            0x5346_414F | 0x6B41_4653 => Self::Network("afs"),
            0x7375_7245 => Self::Network("coda"),
            0x0116_1970 => Self::Network("gfs2"),
            0x7461_636F => Self::Network("ocfs2"),
            0x0BD0_0BD0 => Self::Network("lustre"),
            0x4750_4653 => Self::Network("gpfs"),
            0x1983_0326 => Self::Network("beegfs"),
            0xAAD7_AAEA => Self::Network("panfs"),
            0x786F_4256 => Self::Network("vboxsf"),
            0xBACB_ACBC => Self::Network("vmhgfs"),
            _ => Self::Unknown,
        }
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn numbers_and_kinds() {
        let table = [
            (0x0000_EF53, FileSystemKind::Local),
            (0x0102_1994, FileSystemKind::Memory),
            (0x9123_683E, FileSystemKind::CopyOnWrite),
            (0x0000_6969, FileSystemKind::Network("nfs")),
            (0xFF53_4D42, FileSystemKind::Network("cifs")),
            (0x6573_5546, FileSystemKind::Network("fuse")),
            (0, FileSystemKind::Unknown),
        ];
        for (magic, kind) in table {
            assert_eq!(FileSystemKind::of_magic(magic), kind, "{magic:#x}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn the_root_is_no_network_and_shared_memory_is_memory() {
        let root = File::open("/").expect("a root");
        let kind = FileSystemKind::of(&root).expect("a kind");
        assert!(!matches!(kind, FileSystemKind::Network(_)), "{kind:?}");
        if cfg!(target_os = "linux")
            && let Ok(memory) = File::open("/dev/shm")
        {
            assert_eq!(
                FileSystemKind::of(&memory).expect("a kind"),
                FileSystemKind::Memory
            );
        }
    }
}
