//! Writing to files that a crash left: so that everything that is kept is durable, and the next
//! open finds nothing to judge any more.
//!
//! Every step can be cut off anywhere and be done again: what is written again are the bytes that
//! were read, what is turned into padding or zeros held no record, and files go newest first, each
//! durably before the next. [`recover`](crate::log::recover) decides; nothing in here does.

use std::io;

use crate::fs::{Storage, StorageFile};
use crate::log::header::{Header, PAGE_BYTES};
use crate::log::prepare::preparing_name;
use crate::log::recover::listing::copy_name;
use crate::log::segment::FIRST_RECORD;
use crate::log::word::{self, State};

/// How much is read and written at once; whole pages.
const CHUNK_BYTES: usize = 16 * PAGE_BYTES;
/// Words of the longest padding that is written; a word could say more.
const PADDING_WORDS_MAX: u64 = 1 << 20;

/// What to do to one segment. Its map must be gone: the file may get another length.
#[derive(Debug)]
pub(crate) struct Mend<'a> {
    pub(crate) file: &'a dyn StorageFile,
    pub(crate) base: u64,
    pub(crate) seed: u64,
    /// A header to put in place of the one there.
    pub(crate) header: Option<&'a Header>,
    /// The first word that may not be durable; from its page on everything is written again.
    pub(crate) from: u64,
    /// The word behind the last range. What stands behind it in its page is wiped.
    pub(crate) tail: u64,
    /// Ranges of words, in order, to be turned into padding.
    pub(crate) fills: &'a [(u64, u64)],
    /// Whether to cut the file behind the tail's page.
    pub(crate) cut: bool,
}

impl Mend<'_> {
    /// Does it.
    ///
    /// # Errors
    ///
    /// What the storage says. To be begun anew then, from a new scan.
    pub(crate) fn run(&self) -> io::Result<()> {
        let end = self
            .tail
            .max(FIRST_RECORD)
            .saturating_mul(8)
            .next_multiple_of(PAGE_BYTES as u64);
        let len = self.file.len()?;
        if len < end {
            self.file.set_len(end)?;
        }
        if let Some(header) = self.header {
            self.file.write_at(0, &header.encode())?;
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        let first_fill = self.fills.first().map_or(self.tail, |(from, _)| *from);
        let mut offset = page_of(self.from.min(first_fill).min(self.tail));
        while offset < end {
            let bytes =
                usize::try_from(end - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            let (chunk, _) = buffer.split_at_mut(bytes);
            self.file.read_at(offset, chunk)?;
            self.edit(offset, chunk);
            self.file.write_at(offset, chunk)?;
            offset += bytes as u64;
        }
        self.file.sync_data()?;
        if self.cut && len > end {
            self.file.set_len(end)?;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Brings a piece of the file, from byte `offset` on, into the state it shall have.
    fn edit(&self, offset: u64, chunk: &mut [u8]) {
        let first = offset / 8;
        let last = first + (chunk.len() / 8) as u64;
        let mut put = |from: u64, to: u64, byte_at: &dyn Fn(u64) -> [u8; 8]| {
            for at in from.max(first)..to.min(last) {
                let start = (at - first) as usize * 8;
                if let Some(target) = chunk.get_mut(start..start + 8) {
                    target.copy_from_slice(&byte_at(at));
                }
            }
        };
        for &(from, to) in self.fills {
            put(from, to, &|_| [0; 8]);
            let mut at = from;
            while at < to {
                let words = (to - at).min(PADDING_WORDS_MAX);
                let padding = word::encode(words, State::Padding, self.base + at, self.seed);
                put(at, at + 1, &|_| padding.to_le_bytes());
                at += words;
            }
        }
        put(self.tail, u64::MAX, &|_| [0; 8]);
    }
}

/// Byte offset of the page in which a word stands.
fn page_of(word: u64) -> u64 {
    let byte = word.saturating_mul(8);
    byte - byte % PAGE_BYTES as u64
}

/// Removes files, each durably before the next, and the first durably after whatever a process that
/// was killed had removed before.
pub(crate) fn remove_in_order<'a>(
    storage: &dyn Storage,
    names: impl IntoIterator<Item = &'a str>,
) -> io::Result<()> {
    let mut names = names.into_iter().peekable();
    if names.peek().is_some() {
        storage.sync_directory()?;
    }
    for name in names {
        storage.remove(name)?;
        storage.sync_directory()?;
    }
    Ok(())
}

/// Keeps a durable copy of a file under a name of its own, which it returns; one that is already
/// there with the same contents is enough.
pub(crate) fn keep_copy(storage: &dyn Storage, name: &str) -> io::Result<String> {
    let original = storage.open(name)?;
    let mut number = 1;
    let copy = loop {
        let copy = copy_name(name, number);
        match storage.open(&copy) {
            Ok(earlier) if same_contents(original.as_ref(), earlier.as_ref())? => {
                // Whoever made it may have been killed before its name was durable.
                storage.sync_directory()?;
                return Ok(copy);
            }
            Ok(_) => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break copy,
            Err(error) => return Err(error),
        }
    };
    copy_whole(storage, original.as_ref(), &copy)?;
    Ok(copy)
}

/// Puts a copy in a file's place, durably. Snapshots may share the file's bytes: whatever changes it
/// must not change them.
pub(crate) fn unshare(storage: &dyn Storage, name: &str) -> io::Result<()> {
    copy_whole(storage, storage.open(name)?.as_ref(), name)
}

/// Gives the directory a durable copy of a file, in place of one of that name.
fn copy_whole(storage: &dyn Storage, original: &dyn StorageFile, name: &str) -> io::Result<()> {
    let preparing = preparing_name(name);
    remove_if_there(storage, &preparing)?;
    copy_file(original, original.len()?, storage, &preparing)?.sync_data()?;
    storage.rename(&preparing, name)?;
    storage.sync_directory()
}

/// Makes a file of the first `len` bytes of another one, and syncs neither it nor its name.
pub(crate) fn copy_file(
    source: &dyn StorageFile,
    len: u64,
    storage: &dyn Storage,
    name: &str,
) -> io::Result<std::sync::Arc<dyn StorageFile>> {
    let copy = storage.create(name, len)?;
    for_each_chunk(source, len, |offset, chunk| copy.write_at(offset, chunk))?;
    Ok(copy)
}

/// Gives a file that is no part of the log the name of a copy, durably; returns the name.
pub(crate) fn set_aside(storage: &dyn Storage, name: &str) -> io::Result<String> {
    let mut number = 1;
    let copy = loop {
        let copy = copy_name(name, number);
        match storage.open(&copy) {
            Ok(_) => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break copy,
            Err(error) => return Err(error),
        }
    };
    storage.rename(name, &copy)?;
    storage.sync_directory()?;
    Ok(copy)
}

/// Removes a file unless it is gone already.
pub(crate) fn remove_if_there(storage: &dyn Storage, name: &str) -> io::Result<()> {
    match storage.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Reads a file from start to end and throws the bytes away. An error of the disk is found here,
/// where it can be told: met through a map it would end the process.
pub(crate) fn read_through(file: &dyn StorageFile, len: u64) -> io::Result<()> {
    for_each_chunk(file, len, |_, _| Ok(()))
}

fn same_contents(left: &dyn StorageFile, right: &dyn StorageFile) -> io::Result<bool> {
    let len = left.len()?;
    if right.len()? != len {
        return Ok(false);
    }
    let mut same = true;
    let mut other = vec![0; CHUNK_BYTES];
    for_each_chunk(left, len, |offset, chunk| {
        let (other, _) = other.split_at_mut(chunk.len());
        right.read_at(offset, other)?;
        same &= chunk == other;
        Ok(())
    })?;
    Ok(same)
}

fn for_each_chunk(
    file: &dyn StorageFile,
    len: u64,
    mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < len {
        let bytes = usize::try_from(len - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let (chunk, _) = buffer.split_at_mut(bytes);
        file.read_at(offset, chunk)?;
        visit(offset, chunk)?;
        offset += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::simulated::SimulatedDisk;
    use crate::log::scan::scan;

    const BASE: u64 = 1 << 36;

    /// A fill longer than a padding word can say, and one across the border of two chunks.
    #[test]
    fn fills_of_any_length_become_padding() {
        let words = PADDING_WORDS_MAX + 4096;
        let fills = [(FIRST_RECORD, 520), (520, 9000), (9000, words - 3)];
        let disk = SimulatedDisk::new();
        disk.put("file", &vec![0xAB; words as usize * 8 + 40_000]);
        let file = disk.open("file").expect("a file");
        Mend {
            file: file.as_ref(),
            base: BASE,
            seed: 5,
            header: None,
            from: u64::MAX,
            tail: words - 3,
            fills: &fills,
            cut: true,
        }
        .run()
        .expect("a repair");
        let memory = file.map(false).expect("a map");
        assert_eq!(memory.words() as u64, words);
        let found = scan(&memory, BASE, 5, u64::MAX);
        assert_eq!((found.end, found.written_end), (words - 3, words - 3));
        assert_eq!((found.spots.len(), found.records), (0, 0));
        assert_eq!(memory.bytes(0, 4096), [0xAB; 4096], "not the header");
    }

    #[test]
    fn what_is_before_the_first_page_in_doubt_is_not_written() {
        let disk = SimulatedDisk::new();
        disk.put("file", &[1; 5 * 4096]);
        let file = disk.open("file").expect("a file");
        Mend {
            file: file.as_ref(),
            base: BASE,
            seed: 5,
            header: None,
            from: 3 * 512 + 1,
            tail: 4 * 512 + 2,
            fills: &[],
            cut: false,
        }
        .run()
        .expect("a repair");
        let mut expected = vec![1; 5 * 4096];
        expected[4 * 4096 + 16..].fill(0);
        assert_eq!(disk.contents("file"), Some(expected));
    }

    #[test]
    fn a_copy_is_kept_once_for_the_same_contents() {
        let disk = SimulatedDisk::new();
        let name = "segment-0000001000000000.log";
        let first = "segment-0000001000000000.damaged";
        disk.put(name, b"one");
        assert_eq!(keep_copy(&disk, name).expect("a copy"), first);
        assert_eq!(keep_copy(&disk, name).expect("the same"), first);
        disk.rename(first, "lost").expect("a rename");
        disk.sync_directory().expect("a sync");
        disk.rename("lost", first)
            .expect("as by a process that was killed then");
        assert_eq!(keep_copy(&disk, name).expect("the same"), first);
        assert!(
            disk.crash_all_lost().contents(first).is_some(),
            "by name, too"
        );
        disk.put(name, b"two");
        let second = keep_copy(&disk, name).expect("another");
        assert_eq!(second, "segment-0000001000000000.2.damaged");
        assert_eq!(disk.contents(first), Some(b"one".to_vec()));
        assert_eq!(
            disk.crash_all_lost().contents(&second),
            Some(b"two".to_vec())
        );
        assert_eq!(
            set_aside(&disk, name).expect("a name"),
            "segment-0000001000000000.3.damaged"
        );
        assert_eq!(disk.crash_all_lost().contents(name), None);
    }
}
