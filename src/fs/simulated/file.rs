//! One file of a simulated disk: what the page cache holds of it, and what the platter does.

use std::collections::BTreeMap;
use std::io;

use crate::mem::{Memory, WORD};
use crate::sync::Ordering;

/// A file. Pages are numbered from 0 and have the disk's granule.
pub(super) struct FileImage {
    /// Live contents, shared with everyone who mapped the file; may be longer than `live_len`, with
    /// zeros behind.
    live: Memory,
    live_len: usize,
    /// Contents at the last sync.
    durable: Vec<u8>,
    /// Pages that a failed sync left unwritten, though the kernel took them for clean; with what
    /// they held. Until that changes, or they are written again, no sync will touch them.
    taken_for_clean: BTreeMap<usize, Vec<u8>>,
    handles: usize,
}

impl Default for FileImage {
    fn default() -> Self {
        Self::durable(Vec::new())
    }
}

impl FileImage {
    /// A file that holds `contents`, synced.
    pub(super) fn durable(contents: Vec<u8>) -> Self {
        let live = Memory::heap(contents.len().div_ceil(WORD));
        live.copy_in(0, &contents);
        Self {
            live,
            live_len: contents.len(),
            durable: contents,
            taken_for_clean: BTreeMap::new(),
            handles: 0,
        }
    }

    /// The same file with memory of its own, which no one has open.
    pub(super) fn deep_copy(&self) -> Self {
        let live = Memory::heap(self.live.words());
        live.copy_in(0, &self.live_bytes());
        Self {
            live,
            live_len: self.live_len,
            durable: self.durable.clone(),
            taken_for_clean: self.taken_for_clean.clone(),
            handles: 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.live_len as u64
    }

    pub(super) fn durable_len(&self) -> u64 {
        self.durable.len() as u64
    }

    pub(super) fn opened(&mut self) {
        self.handles += 1;
    }

    pub(super) fn closed(&mut self) {
        self.handles -= 1;
    }

    /// Whether it occupies the disk even without a name.
    pub(super) fn is_in_use(&self) -> bool {
        self.handles > 0 || self.is_mapped()
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.live.is_shared()
    }

    pub(super) fn map(&self) -> Memory {
        self.live.share(self.live_len / WORD)
    }

    pub(super) fn live_bytes(&self) -> Vec<u8> {
        self.live_range(0, self.live_len)
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        match start.checked_add(buffer.len()) {
            Some(end) if end <= self.live_len => {
                buffer.copy_from_slice(&self.live_range(start, end));
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes within the file's length.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], granule: usize) {
        let start = offset as usize;
        let end = start + bytes.len();
        assert!(end <= self.live_len, "resized before");
        self.live.copy_in(start, bytes);
        self.taken_for_clean
            .retain(|page, _| end <= page * granule || (page + 1) * granule <= start);
    }

    /// Changes the length of a file that is not mapped; what is new is zero.
    pub(super) fn resize(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let needed = len.div_ceil(WORD);
        if needed > self.live.words() {
            // Doubling, so that a file which grows by appending is not copied each time.
            let first = self.live.words() == 0;
            let grown = Memory::heap(if first {
                needed
            } else {
                needed.max(2 * self.live.words())
            });
            grown.copy_in(0, &self.live_bytes());
            self.live = grown;
        } else if len < self.live_len {
            self.live.copy_in(len, &vec![0; self.live_len - len]);
        }
        self.live_len = len;
        Ok(())
    }

    /// Pages whose live contents a sync would have to write.
    pub(super) fn dirty_pages(&self, granule: usize) -> Vec<usize> {
        let is_dirty = |page: &usize| {
            let live = self.live_page(*page, granule);
            !self.durable_matches(*page * granule, &live)
                && self
                    .taken_for_clean
                    .get(page)
                    .is_none_or(|clean| *clean != live)
        };
        (0..self.live_len.div_ceil(granule))
            .filter(is_dirty)
            .collect()
    }

    /// Makes live what is durable.
    pub(super) fn sync(&mut self, granule: usize) {
        let dirty = self.dirty_pages(granule);
        self.durable.resize(self.live_len, 0);
        for page in dirty {
            self.write_back(page, granule);
        }
    }

    /// Writes one page, as the kernel does at any time it likes.
    pub(super) fn write_back(&mut self, page: usize, granule: usize) {
        let live = self.live_page(page, granule);
        let start = page * granule;
        let end = start + live.len();
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[start..end].copy_from_slice(&live);
        self.taken_for_clean.remove(&page);
    }

    /// Remembers all dirty pages as ones that no later sync writes.
    pub(super) fn take_for_clean(&mut self, granule: usize) {
        for page in self.dirty_pages(granule) {
            self.taken_for_clean
                .insert(page, self.live_page(page, granule));
        }
    }

    /// The file after a crash in which the live contents of these pages survived, and this length.
    pub(super) fn survivor(&self, len: u64, pages: &[usize], granule: usize) -> Self {
        let mut contents = self.durable.clone();
        for page in pages {
            let live = self.live_page(*page, granule);
            let start = page * granule;
            let end = start + live.len();
            if contents.len() < end {
                contents.resize(end, 0);
            }
            contents[start..end].copy_from_slice(&live);
        }
        contents.resize(len as usize, 0);
        Self::durable(contents)
    }

    /// Contents of a page, up to the end of the file.
    fn live_page(&self, page: usize, granule: usize) -> Vec<u8> {
        let start = page * granule;
        self.live_range(start, (start + granule).min(self.live_len))
    }

    /// Reads word by word: other threads may be storing through a map.
    fn live_range(&self, start: usize, end: usize) -> Vec<u8> {
        let first = start / WORD;
        let mut bytes = vec![0; (end.div_ceil(WORD)).saturating_sub(first) * WORD];
        for (index, target) in (first..).zip(bytes.chunks_exact_mut(WORD)) {
            let word = self.live.word(index).load(Ordering::Relaxed);
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(end - first * WORD);
        bytes.drain(..start - first * WORD);
        bytes
    }

    /// Whether the platter holds `bytes` at `start`, zeros standing for what lies behind its end.
    fn durable_matches(&self, start: usize, bytes: &[u8]) -> bool {
        let start = start.min(self.durable.len());
        let end = (start + bytes.len()).min(self.durable.len());
        let (present, missing) = bytes.split_at(end - start);
        self.durable[start..end] == *present && missing.iter().all(|byte| *byte == 0)
    }
}
