//! The segment files of a directory: whose they are, and in which order they follow each other.
//!
//! A header says which segment comes before and where that one ends, so a file that is missing, was
//! renamed, copied, swapped or brought from elsewhere is noticed before a single record is read.
//! When salvaging, a file that cannot belong is set aside, and a header that is damaged is made up:
//! all words of a segment are bound to its name and the store, so they prove themselves.

use crate::corruption::{Corruption, Damage};
use crate::fs::Storage;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::log::header::{FORMAT_VERSION, Header, PAGE_BYTES, PageFault};
use crate::log::members::Members;
use crate::log::meta::Meta;
use crate::log::position;
use crate::log::prepare::{compacted_name, segment_name};
use crate::log::recover::RecoverError;
use crate::log::segment::FIRST_RECORD;

/// A segment's file.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) name: String,
    /// By its name; the header says the same.
    pub(super) base: u64,
    /// Bytes of the file now.
    pub(super) len: u64,
    pub(super) header: Header,
    /// The header is not the one in the file: that one is damaged, or names a segment that is gone.
    pub(super) new_header: bool,
    /// Where the chain ends, in words, if the next segment tells.
    pub(super) expected_end: Option<u64>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Whether they are compacted files, and no chain.
    compacted: bool,
    /// As found: header and fault, in the order of their names.
    raw: Vec<(SegmentFile, Option<Damage>)>,
    /// Those that belong, in the order of their bases.
    pub(super) segments: Vec<SegmentFile>,
    /// Names of those that do not.
    pub(super) aside: Vec<String>,
    /// What salvage has given up.
    pub(super) losses: Vec<Corruption>,
}

impl SegmentFile {
    /// Damage to a range of words.
    pub(super) fn corruption(&self, damage: Damage, from: u64, to: u64) -> Corruption {
        Corruption::of_words(damage, &self.name, self.base, from, to)
    }

    /// Damage to the file as a whole, whose records may have stood before `end`.
    fn whole(&self, damage: Damage, end: u64) -> Corruption {
        let words = (end - self.base).max(FIRST_RECORD + 1);
        let mut corruption = self.corruption(damage, 0, words);
        corruption.bytes = self.len;
        corruption
    }

    /// Position behind the last that a segment of this name can have held, if the file that is there
    /// now does not tell: as far as a segment may reach, but not into the next one whose header is true.
    fn end_of_name(&self, next_true: Option<u64>) -> u64 {
        let end = self.base.saturating_add(SEGMENT_BYTES_MAX / 8);
        next_true.map_or(end, |next| end.min(next))
    }

    /// Position behind the last that it can have held, where the segment at `next` does not tell: as
    /// far as it was made.
    pub(super) fn end_at_most(&self, next: u64) -> u64 {
        if self.new_header {
            return self.end_of_name(Some(next));
        }
        next.min(self.base.saturating_add(self.header.file_bytes / 8))
    }

    /// The word behind the last one that may belong to a record.
    pub(super) fn limit(&self) -> u64 {
        self.expected_end
            .unwrap_or(u64::MAX)
            .min(self.header.file_bytes / 8)
    }
}

impl Files {
    /// Opens all segments of the log and reads their headers.
    ///
    /// # Errors
    ///
    /// I/O errors, and a header of another format version.
    pub(super) fn read(storage: &dyn Storage, bases: &[u64]) -> Result<Self, RecoverError> {
        Self::read_kind(storage, bases, false)
    }

    /// The same for compacted files.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub(super) fn read_compacted(
        storage: &dyn Storage,
        bases: &[u64],
    ) -> Result<Self, RecoverError> {
        Self::read_kind(storage, bases, true)
    }

    fn read_kind(
        storage: &dyn Storage,
        bases: &[u64],
        compacted: bool,
    ) -> Result<Self, RecoverError> {
        let mut files = Self {
            compacted,
            ..Self::default()
        };
        for base in bases {
            let name = if compacted {
                compacted_name(*base)
            } else {
                segment_name(*base)
            };
            let (len, header) = (|| {
                let file = storage.open(&name)?;
                let len = file.len()?;
                let mut page = [0; PAGE_BYTES];
                let bytes = usize::try_from(len).map_or(PAGE_BYTES, |len| len.min(PAGE_BYTES));
                let (page, _) = page.split_at_mut(bytes);
                file.read_at(0, page)?;
                Ok((len, Header::decode(page)))
            })()
            .map_err(RecoverError::io(&name))?;
            let (header, fault) = match header {
                Ok(header) => (Some(header), None),
                Err(PageFault::Damaged(damage)) => (None, Some(damage)),
                Err(PageFault::Version(found)) => {
                    let supported = FORMAT_VERSION;
                    return Err(RecoverError::Version {
                        file: name,
                        found,
                        supported,
                    });
                }
            };
            let new_header = header.is_none();
            let header = header.unwrap_or_else(|| made_up(*base, len, compacted));
            let base = *base;
            let expected_end = (compacted && !new_header).then_some(header.copies_end);
            let file = SegmentFile {
                name,
                base,
                len,
                header,
                new_header,
                expected_end,
            };
            files.raw.push((file, fault));
        }
        Ok(files)
    }

    /// Names of all that were found.
    pub(super) fn names(&self) -> Vec<String> {
        self.raw.iter().map(|(file, _)| file.name.clone()).collect()
    }

    /// Bytes of those that belong.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|file| file.len).sum()
    }

    /// Whether none were found.
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// META as far as headers tell it, from the newest that matches its file's name.
    pub(super) fn meta(&self) -> Option<Meta> {
        let true_headers = || {
            let whole = self.raw.iter().filter(|(_, fault)| fault.is_none());
            whole
                .map(|(file, _)| file)
                .filter(|file| file.header.base == file.base)
        };
        let newest = &true_headers().next_back()?.header;
        let created_ms = true_headers().map(|file| file.header.created_ms).min()?;
        Some(Meta {
            store_id: newest.store_id,
            secret: newest.secret,
            epoch: position::epoch_of(newest.base),
            high_water_ms: 0,
            watermark: 0,
            clean: false,
            snapshot: false,
            restored_at_ms: 0,
            created_ms,
            members: Members::default(),
        })
    }

    /// Sorts out what is damaged or does not belong to the store.
    ///
    /// # Errors
    ///
    /// The first such file, unless `salvage`.
    pub(super) fn vet(&mut self, meta: &Meta, salvage: bool) -> Result<(), RecoverError> {
        let raw = std::mem::take(&mut self.raw);
        let is_own =
            |header: &Header| header.store_id == meta.store_id && header.secret == meta.secret;
        let true_bases: Vec<_> = raw
            .iter()
            .filter(|(file, fault)| {
                fault.is_none() && is_own(&file.header) && file.header.base == file.base
            })
            .map(|(file, _)| file.base)
            .collect();
        for (mut file, fault) in raw {
            let next_true = true_bases.iter().copied().find(|base| *base > file.base);
            let end_at_most = file.end_of_name(next_true);
            if let Some(damage) = fault {
                if file.len <= PAGE_BYTES as u64 || file.header.fault().is_some() {
                    // Nothing in it could be told to be ours.
                    self.lose(file.whole(damage, end_at_most), salvage)?;
                    self.aside.push(file.name);
                    continue;
                }
                let mut corruption = file.corruption(damage, 0, FIRST_RECORD);
                corruption.bytes = file.len.min(PAGE_BYTES as u64);
                self.lose(corruption, salvage)?;
                file.header.store_id = meta.store_id;
                file.header.secret = meta.secret;
            } else if !is_own(&file.header) {
                self.lose(file.whole(Damage::ForeignSegment, end_at_most), salvage)?;
                self.aside.push(file.name);
                continue;
            } else if file.header.base != file.base || file.header.is_compacted() != self.compacted
            {
                self.lose(file.whole(Damage::Misnamed, end_at_most), salvage)?;
                self.aside.push(file.name);
                continue;
            }
            if !file.len.is_multiple_of(8) {
                // No write leaves such a length: something cut the file, and what stood behind the
                // cut is not there to be counted.
                let words = file.len / 8;
                let end = if file.new_header {
                    end_at_most - file.base
                } else {
                    file.header.file_bytes / 8
                };
                let end = end.max(words + 1);
                let mut corruption = file.corruption(Damage::Truncated, words, end);
                corruption.bytes = file.len % 8;
                self.lose(corruption, salvage)?;
            }
            self.segments.push(file);
        }
        Ok(())
    }

    /// Checks that each segment follows the one before, the first of which begins at `log_start` (0
    /// where none was given up), and notes where that one ends.
    ///
    /// # Errors
    ///
    /// The first break of the chain, unless `salvage`.
    pub(super) fn link(&mut self, log_start: u64, salvage: bool) -> Result<(), RecoverError> {
        let mut linked: Vec<SegmentFile> = Vec::with_capacity(self.segments.len());
        for mut file in std::mem::take(&mut self.segments) {
            if !file.new_header {
                let (previous_base, previous_end) =
                    (file.header.previous_base, file.header.previous_end);
                while let Some(stray) = linked.pop_if(|last| last.base > previous_base) {
                    let end = stray.base + (stray.len / 8).max(FIRST_RECORD + 1);
                    self.lose(stray.whole(Damage::Unlinked, end), salvage)?;
                    self.aside.push(stray.name);
                }
                match linked.last_mut() {
                    Some(last) if last.base == previous_base => {
                        last.expect_end(previous_end - previous_base);
                    }
                    None if file.base == log_start || log_start == 0 && previous_base == 0 => {}
                    None if log_start > 0 => {
                        self.lose(missing(log_start, file.base), salvage)?;
                        file.new_header = true;
                    }
                    _ => {
                        self.lose(missing(previous_base, previous_end), salvage)?;
                        file.new_header = true;
                    }
                }
            } else if file.base == log_start {
                // What stood before it was given up.
            } else if let Some(gap) = gap_before(&file, linked.last()) {
                self.lose(gap, salvage)?;
            }
            linked.push(file);
        }
        self.segments = linked;
        Ok(())
    }

    /// Takes over what another set has given up and set aside.
    pub(super) fn take_losses(&mut self, other: &mut Self) {
        self.losses.append(&mut other.losses);
        self.aside.append(&mut other.aside);
    }

    pub(super) fn lose(
        &mut self,
        corruption: Corruption,
        salvage: bool,
    ) -> Result<(), RecoverError> {
        if !salvage {
            return Err(RecoverError::Corrupt(corruption));
        }
        self.losses.push(corruption);
        Ok(())
    }
}

impl SegmentFile {
    /// The next segment says that this one ends at word `end`.
    fn expect_end(&mut self, end: u64) {
        self.expected_end = Some(end);
        if self.new_header {
            self.header.file_bytes = self.header.file_bytes.max(end * 8);
        }
    }
}

/// A header for a segment whose own is damaged. Links and identity are filled in later.
fn made_up(base: u64, len: u64, compacted: bool) -> Header {
    let file_bytes = (len / 8 * 8).max(PAGE_BYTES as u64 + 8);
    Header {
        file_bytes,
        store_id: 0,
        base,
        previous_base: 0,
        previous_end: 0,
        watermark: 0,
        created_ms: 0,
        secret: [0; 32],
        copies_end: if compacted { file_bytes / 8 } else { 0 },
    }
}

/// What must have stood before a segment whose header is gone and tells of none: within an epoch
/// each segment begins where the one before was made to end.
fn gap_before(file: &SegmentFile, previous: Option<&SegmentFile>) -> Option<Corruption> {
    let first = position::first_position(position::epoch_of(file.base));
    let end = previous.map_or(0, |previous| {
        previous.base.saturating_add(previous.header.file_bytes / 8)
    });
    let from = end.max(first);
    (from < file.base).then(|| missing(from, file.base))
}

/// A segment that another one names.
fn missing(base: u64, end: u64) -> Corruption {
    let last = (end - base).max(FIRST_RECORD + 1);
    let damage = Damage::MissingSegment;
    let mut corruption =
        Corruption::of_words(damage, &segment_name(base), base, FIRST_RECORD, last);
    corruption.offset = 0;
    corruption.bytes = 0;
    corruption
}
