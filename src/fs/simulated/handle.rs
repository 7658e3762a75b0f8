//! An open file of a simulated disk.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::fault::{Asked, OperationKind};
use super::{Disk, FileId, SimulatedDisk};
use crate::fs::StorageFile;
use crate::mem::Memory;

impl SimulatedDisk {
    pub(super) fn handle(&self, id: FileId) -> Arc<dyn StorageFile> {
        if let Some(file) = self.disk.lock().files.get_mut(&id) {
            file.opened();
        }
        Arc::new(SimulatedFile {
            disk: self.clone(),
            id,
        })
    }
}

/// The file, whatever it is called by now.
struct SimulatedFile {
    disk: SimulatedDisk,
    id: FileId,
}

impl StorageFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.disk.lock().file(self.id)?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.disk.lock();
        let name = disk.name(self.id);
        disk.ask(&Asked::new(OperationKind::Read, &name).bytes(offset, buffer.len()))?;
        disk.file(self.id)?.read(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.disk.lock();
        let name = disk.name(self.id);
        let asked = Asked::new(OperationKind::Write, &name).bytes(offset, bytes.len());
        let write = |disk: &mut Disk| disk.write(self.id, offset, bytes);
        disk.act_or_fail(&asked, write, |disk, plan| match plan.short_bytes() {
            Some(short) => disk.write(self.id, offset, &bytes[..short.min(bytes.len())]),
            None => Ok(()),
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.disk.lock();
        let name = disk.name(self.id);
        let asked = Asked::new(OperationKind::SetLen, &name);
        disk.act(&asked, |disk| disk.resize(self.id, len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.disk.lock();
        let (name, granule) = (disk.name(self.id), disk.granule);
        let sync = |disk: &mut Disk| {
            disk.file(self.id)?.sync(granule);
            Ok(())
        };
        let asked = Asked::new(OperationKind::Sync, &name);
        disk.act_or_fail(&asked, sync, |disk, plan| {
            if plan.is_dropping_pages() {
                disk.file(self.id)?.take_for_clean(granule);
            }
            Ok(())
        })
    }

    fn map(&self, _populate: bool) -> io::Result<Memory> {
        let mut disk = self.disk.disk.lock();
        let name = disk.name(self.id);
        disk.ask(&Asked::new(OperationKind::Map, &name))?;
        Ok(disk.file(self.id)?.map())
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut disk = self.disk.disk.lock();
        if let Some(file) = disk.files.get_mut(&self.id) {
            file.closed();
        }
        disk.forget_unreachable();
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.disk.disk.lock().name(self.id);
        formatter
            .debug_struct("SimulatedFile")
            .field("name", &name)
            .finish_non_exhaustive()
    }
}
