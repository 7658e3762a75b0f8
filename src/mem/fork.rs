//! Tells a forked child from the process that opened the store, at the price of one load.
//!
//! A child inherits the maps, the locked descriptor and half of the threads' state, and must not
//! append through any of them. Asking the kernel for the process id at every call costs a system
//! call; a page that the kernel wipes in the child costs nothing.

use std::process;

use super::Memory;
use crate::sync::Ordering;

/// What the marked page holds in the process that made it; a child reads zero.
const PARENT: u64 = 1;

/// Remembers the process in which it was made.
#[derive(Debug)]
pub(crate) struct ForkMark {
    /// A page that reads zero in a child; none where the kernel cannot do that (Linux before 4.14,
    /// other systems, loom).
    page: Option<Memory>,
    process: u32,
}

impl ForkMark {
    /// Marks the calling process.
    pub(crate) fn new() -> Self {
        let page = Memory::wiped_on_fork();
        if let Some(page) = &page {
            page.word(0).store(PARENT, Ordering::Relaxed);
        }
        Self {
            page,
            process: process::id(),
        }
    }

    /// Whether the caller is a forked child of the process that made the mark.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        match &self.page {
            Some(page) => page.word(0).load(Ordering::Relaxed) != PARENT,
            None => self.process != process::id(),
        }
    }
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_no_child() {
        assert!(!ForkMark::new().is_child());
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    #[expect(
        unsafe_code,
        reason = "the standard library forks only to run a program"
    )]
    fn a_forked_child_is_one() {
        use std::os::unix::process::CommandExt;

        let process = process::id();
        for page in [Memory::wiped_on_fork(), None] {
            if let Some(page) = &page {
                page.word(0).store(PARENT, Ordering::Relaxed);
            }
            let mark = std::sync::Arc::new(ForkMark { page, process });
            let in_child = std::sync::Arc::clone(&mark);
            let mut command = process::Command::new("true");
            // SAFETY: the closure runs in the forked child; it loads a word, asks for the process
            // id, and neither locks nor allocates.
            unsafe {
                command.pre_exec(move || {
                    if in_child.is_child() {
                        Ok(())
                    } else {
                        Err(rustix::io::Errno::XDEV.into())
                    }
                });
            }
            let status = command.status().expect("the child knew what it was");
            assert!(status.success());
            assert!(!mark.is_child(), "the parent is still none");
        }
    }

    #[test]
    fn a_wiped_page_means_child() {
        let mark = ForkMark::new();
        if let Some(page) = &mark.page {
            page.word(0).store(0, Ordering::Relaxed);
            assert!(mark.is_child());
        }
    }

    #[test]
    fn without_a_page_the_process_id_decides() {
        let mark = ForkMark {
            page: None,
            process: process::id(),
        };
        assert!(!mark.is_child());
        let mark = ForkMark {
            page: None,
            process: process::id().wrapping_add(1),
        };
        assert!(mark.is_child());
    }
}
