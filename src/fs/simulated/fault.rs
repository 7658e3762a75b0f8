//! Operations of a simulated disk: counting them, and making them fail.

use std::fmt;
use std::io;
use std::ops::Range;

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
    fn is_sync(self) -> bool {
        matches!(self, Self::Sync | Self::SyncDirectory)
    }

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
    /// None for all of them.
    kind: Option<OperationKind>,
    fault: Fault,
    file: Option<String>,
    byte: Option<u64>,
    short: Option<usize>,
    succeed_first: u64,
    sticky: bool,
    happens_anyway: bool,
    drops_pages: bool,
    lies: bool,
    spent: bool,
}

impl FaultPlan {
    /// The next operation of this kind fails, and later ones succeed again.
    pub fn new(kind: OperationKind, fault: Fault) -> Self {
        Self::of(Some(kind), fault)
    }

    /// The next operation fails, whatever it is: also one that is not counted. With
    /// [`FaultPlan::after`] for every number up to where it is not met any more, every call of a
    /// scenario fails once; [`SimulatedDisk::struck`](super::SimulatedDisk::struck) tells which.
    pub fn any(fault: Fault) -> Self {
        Self::of(None, fault)
    }

    fn of(kind: Option<OperationKind>, fault: Fault) -> Self {
        Self {
            kind,
            fault,
            file: None,
            byte: None,
            short: None,
            succeed_first: 0,
            sticky: false,
            happens_anyway: false,
            drops_pages: false,
            lies: false,
            spent: false,
        }
    }

    /// Only for a file whose name begins like this.
    pub fn on(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Only for reads and writes of a range in which this byte of the file lies, as a bad sector
    /// does.
    pub fn at_byte(mut self, offset: u64) -> Self {
        self.byte = Some(offset);
        self
    }

    /// For [`OperationKind::Write`]: the first `bytes` are written before it fails.
    pub fn short(mut self, bytes: usize) -> Self {
        self.short = Some(bytes);
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

    /// For [`OperationKind::Sync`] and [`OperationKind::SyncDirectory`]: reports success and does
    /// nothing, as a disk with a cache that it hides. No store can be safe on it; it is there to see
    /// whether a test would notice.
    pub fn lies(mut self) -> Self {
        self.lies = true;
        self
    }

    /// Whether the pages of a failed sync are lost for later ones.
    pub(super) fn is_dropping_pages(&self) -> bool {
        self.drops_pages
    }

    /// How much of a failing write is done.
    pub(super) fn short_bytes(&self) -> Option<usize> {
        self.short
    }

    /// Counts an operation; whether it fails.
    fn meets(&mut self, asked: &Asked<'_>) -> bool {
        let named = |prefix: &String| asked.file.starts_with(prefix.as_str());
        let covers = |byte| {
            asked
                .bytes
                .as_ref()
                .is_some_and(|range| range.contains(byte))
        };
        let concerned = self.kind.is_none_or(|kind| kind == asked.kind)
            && self.file.as_ref().is_none_or(named)
            && self.byte.as_ref().is_none_or(covers);
        if self.spent || !concerned {
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

/// An operation as it is asked for.
#[derive(Debug, Clone)]
pub(super) struct Asked<'a> {
    kind: OperationKind,
    file: &'a str,
    /// What of the file is read or written.
    bytes: Option<Range<u64>>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(kind: OperationKind, file: &'a str) -> Self {
        let bytes = None;
        Self { kind, file, bytes }
    }

    pub(super) fn bytes(self, offset: u64, len: usize) -> Self {
        let bytes = Some(offset..offset.saturating_add(len as u64));
        Self { bytes, ..self }
    }

    fn done(&self, succeeded: bool) -> Operation {
        Operation {
            kind: self.kind,
            file: self.file.to_owned(),
            succeeded,
        }
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
    pub(super) fn ask(&mut self, asked: &Asked<'_>) -> io::Result<()> {
        match self.due_fault(asked) {
            Some(plan) => Err(plan.fault.error()),
            None => Ok(()),
        }
    }

    /// Does something that changes the disk, unless the power was cut or a fault is due.
    pub(super) fn act<T: Default>(
        &mut self,
        asked: &Asked<'_>,
        action: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        self.act_or_fail(asked, action, |_, _| Ok(()))
    }

    /// The same, with something more that happens when a fault strikes.
    pub(super) fn act_or_fail<T: Default>(
        &mut self,
        asked: &Asked<'_>,
        action: impl FnOnce(&mut Self) -> io::Result<T>,
        damage: impl FnOnce(&mut Self, &FaultPlan) -> io::Result<()>,
    ) -> io::Result<T> {
        let kind = asked.kind;
        debug_assert!(kind.changes_the_disk());
        if self.at_power_loss.is_none() {
            self.write_back_some();
            if self.crash_at == Some(self.log.len() as u64) {
                self.at_power_loss = Some(Box::new(self.deep_copy()));
            }
        }
        if self.at_power_loss.is_some() {
            return Err(io::Error::other(PowerLoss));
        }
        if self.keeps_states {
            let state = self.deep_copy();
            self.states.push((self.log.len() as u64, state));
        }
        let outcome = match self.due_fault(asked) {
            None => action(self),
            Some(plan) if plan.lies && kind.is_sync() => Ok(T::default()),
            Some(plan) => {
                if plan.happens_anyway && kind != OperationKind::Create {
                    action(self)?;
                }
                damage(self, &plan)?;
                Err(plan.fault.error())
            }
        };
        self.log.push(asked.done(outcome.is_ok()));
        outcome
    }

    /// Lets every plan count the operation, and gives the first that makes it fail.
    fn due_fault(&mut self, asked: &Asked<'_>) -> Option<FaultPlan> {
        let mut due = None;
        for plan in &mut self.faults {
            if plan.meets(asked) && due.is_none() {
                due = Some(plan.clone());
            }
        }
        self.faults.retain(|plan| !plan.spent);
        if due.is_some() {
            self.struck.push(asked.done(false));
        }
        due
    }
}
