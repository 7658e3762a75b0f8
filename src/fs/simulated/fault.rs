//! Operations of a simulated disk: counting them, and making them fail.

use std::fmt;
use std::io;

use super::Disk;

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Listing the directory. Changes nothing, so it is not counted.
    List,
    /// Making a file.
    Create,
    /// Opening a file. Not counted.
    Open,
    /// Reading from a file. Not counted.
    Read,
    /// Writing to a file, other than through a map.
    Write,
    /// Syncing a file.
    Sync,
    /// Syncing the directory.
    SyncDirectory,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Changing a file's length.
    SetLen,
    /// Mapping a file. Not counted.
    Map,
}

impl OperationKind {
    /// Whether it is counted, logged, and a point at which the power may be cut.
    fn changes_the_disk(self) -> bool {
        !matches!(self, Self::List | Self::Open | Self::Read | Self::Map)
    }
}

/// One operation that would change the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// What was asked for.
    pub kind: OperationKind,
    /// The file's name at that time; empty for the directory.
    pub file: String,
    /// Whether it was reported as done.
    pub succeeded: bool,
}

/// What a failing operation reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// EIO, the disk does not answer.
    InputOutput,
    /// ENOSPC, the disk is full.
    NoSpace,
    /// Another error number of the system.
    Errno(i32),
    /// An error without a number.
    Kind(io::ErrorKind),
}

impl Fault {
    pub(super) fn error(self) -> io::Error {
        match self {
            Self::InputOutput => rustix::io::Errno::IO.into(),
            Self::NoSpace => rustix::io::Errno::NOSPC.into(),
            Self::Errno(number) => io::Error::from_raw_os_error(number),
            Self::Kind(kind) => kind.into(),
        }
    }
}

/// Which operations are to fail, and how.
#[derive(Debug, Clone)]
#[must_use = "a plan does nothing until it is given to a disk"]
pub struct FaultPlan {
    kind: OperationKind,
    fault: Fault,
    file: Option<String>,
    succeed_first: u64,
    sticky: bool,
    happens_anyway: bool,
    drops_pages: bool,
    spent: bool,
}

impl FaultPlan {
    /// The next operation of this kind fails, and later ones succeed again.
    pub fn new(kind: OperationKind, fault: Fault) -> Self {
        Self {
            kind,
            fault,
            file: None,
            succeed_first: 0,
            sticky: false,
            happens_anyway: false,
            drops_pages: false,
            spent: false,
        }
    }

    /// Only for a file whose name begins like this.
    pub fn on(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Lets `count` operations succeed before.
    pub fn after(mut self, count: u64) -> Self {
        self.succeed_first = count;
        self
    }

    /// Fails every later one, too.
    pub fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    /// The operation takes effect, and reports the error all the same. Not for
    /// [`OperationKind::Create`], which promises to leave nothing behind.
    pub fn happens_anyway(mut self) -> Self {
        self.happens_anyway = true;
        self
    }

    /// For [`OperationKind::Sync`]: does as Linux does, which after a failed sync takes the unwritten
    /// pages for clean. They go on being read as they are, but no later sync makes them durable
    /// unless they are written again.
    pub fn drops_pages(mut self) -> Self {
        self.drops_pages = true;
        self
    }

    /// Whether the pages of a failed sync are lost for later ones.
    pub(super) fn is_dropping_pages(&self) -> bool {
        self.drops_pages
    }

    /// Counts an operation; whether it fails.
    fn meets(&mut self, kind: OperationKind, file: &str) -> bool {
        let concerned = self
            .file
            .as_ref()
            .is_none_or(|prefix| file.starts_with(prefix.as_str()));
        if self.spent || kind != self.kind || !concerned {
            return false;
        }
        if self.succeed_first > 0 {
            self.succeed_first -= 1;
            return false;
        }
        self.spent = !self.sticky;
        true
    }
}

/// The error of all that comes after the power was cut.
#[derive(Debug)]
struct PowerLoss;

impl fmt::Display for PowerLoss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the simulated disk lost power")
    }
}

impl std::error::Error for PowerLoss {}

/// Whether an error comes from [`SimulatedDisk::crash_at`](super::SimulatedDisk::crash_at).
#[must_use]
pub fn is_power_loss(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<PowerLoss>())
}

impl Disk {
    /// Does something that leaves the disk as it is, unless a fault is due.
    pub(super) fn ask(&mut self, kind: OperationKind, file: &str) -> io::Result<()> {
        match self.due_fault(kind, file) {
            Some(plan) => Err(plan.fault.error()),
            None => Ok(()),
        }
    }

    /// Does something that changes the disk, unless the power was cut or a fault is due.
    pub(super) fn act<T>(
        &mut self,
        kind: OperationKind,
        file: &str,
        action: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        self.act_or_fail(kind, file, action, |_, _| Ok(()))
    }

    /// The same, with something more that happens when a fault strikes.
    pub(super) fn act_or_fail<T>(
        &mut self,
        kind: OperationKind,
        file: &str,
        action: impl FnOnce(&mut Self) -> io::Result<T>,
        damage: impl FnOnce(&mut Self, &FaultPlan) -> io::Result<()>,
    ) -> io::Result<T> {
        debug_assert!(kind.changes_the_disk());
        if self.at_power_loss.is_none() && self.crash_at == Some(self.log.len() as u64) {
            self.at_power_loss = Some(Box::new(self.deep_copy()));
        }
        if self.at_power_loss.is_some() {
            return Err(io::Error::other(PowerLoss));
        }
        let outcome = match self.due_fault(kind, file) {
            None => action(self),
            Some(plan) => {
                if plan.happens_anyway && kind != OperationKind::Create {
                    action(self)?;
                }
                damage(self, &plan)?;
                Err(plan.fault.error())
            }
        };
        self.log.push(Operation {
            kind,
            file: file.to_owned(),
            succeeded: outcome.is_ok(),
        });
        outcome
    }

    /// Lets every plan count the operation, and gives the first that makes it fail.
    fn due_fault(&mut self, kind: OperationKind, file: &str) -> Option<FaultPlan> {
        let mut due = None;
        for plan in &mut self.faults {
            if plan.meets(kind, file) && due.is_none() {
                due = Some(plan.clone());
            }
        }
        self.faults.retain(|plan| !plan.spent);
        due
    }
}
