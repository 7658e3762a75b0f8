//! [`Memory`] over a mapped file or over the heap.
//!
//! Which of the two it is matters only when it is made and when it is dropped: in between there is
//! a base pointer and a length. The heap serves simulated storage, tests and Miri, which cannot map
//! a file.

use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use super::WORD;
use crate::sync::AtomicU64;
#[cfg(any(test, miri, feature = "testing"))]
use crate::sync::Ordering;

/// A range of words, shared between threads.
pub(crate) struct Memory {
    /// First word. Points into what `owner` keeps alive, or dangles where there are no words.
    base: NonNull<AtomicU64>,
    words: usize,
    owner: Owner,
}

/// Keeps the words of a [`Memory`] where they are.
#[allow(dead_code, reason = "held for their drop")]
enum Owner {
    Map(MmapRaw),
    Heap(Arc<[AtomicU64]>),
}

// SAFETY: `base` is the only field that is not `Send` by itself. It points to memory that `owner`
// keeps alive whichever thread holds it, and that is tied to no thread.
unsafe impl Send for Memory {}

// SAFETY: through a shared `Memory` words are reached as `&AtomicU64`, which is `Sync`; and through
// `copy_in` and `bytes`, whose contracts leave a range to one writer before it is published and to
// readers only afterwards.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of the process.
    pub(crate) fn heap(words: usize) -> Self {
        Self::of_heap((0..words).map(|_| AtomicU64::new(0)).collect(), words)
    }

    /// The first `len` bytes of `file`, shared with it; bytes behind the last whole word are left
    /// out.
    ///
    /// With `populate`, pages are made present and writable now, so that the first store to them
    /// neither faults nor meets a full disk. Kernels that cannot (Linux before 5.14, other systems)
    /// leave that to the first store.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file is shorter than `len`, since touching what lies behind its end
    /// would kill the process; else what the system reports.
    pub(crate) fn map(file: &File, len: u64, populate: bool) -> io::Result<Self> {
        if file.metadata()?.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let words = len / WORD;
        if words == 0 {
            return Ok(Self::heap(0));
        }
        let map = MmapOptions::new().len(len).map_raw(file)?;
        if populate {
            populate_for_writing(&map)?;
        }
        Ok(Self::of_map(map, words))
    }

    /// One page that the kernel fills with zeros in a forked child; none where it cannot.
    pub(super) fn wiped_on_fork() -> Option<Self> {
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            // Maps and advice are rounded up to whole pages.
            let map = MmapRaw::from(MmapOptions::new().len(WORD).map_anon().ok()?);
            // SAFETY: the range is the whole of a private anonymous map that was made above and
            // that nothing else knows of. The advice changes what a forked child finds there, which
            // is one bit pattern of the atomic words for another.
            unsafe {
                rustix::mm::madvise(
                    map.as_mut_ptr().cast(),
                    map.len(),
                    rustix::mm::Advice::LinuxWipeOnFork,
                )
            }
            .ok()?;
            let words = map.len() / WORD;
            Some(Self::of_map(map, words))
        }
        #[cfg(not(all(target_os = "linux", not(miri))))]
        None
    }

    fn of_heap(heap: Arc<[AtomicU64]>, words: usize) -> Self {
        assert!(
            words <= heap.len(),
            "{words} words of a heap of {}",
            heap.len()
        );
        // A pointer from `as_ptr` may reach the whole slice, and was never narrowed to a reference.
        let first = Arc::as_ptr(&heap).cast::<AtomicU64>().cast_mut();
        let base = NonNull::new(first).unwrap_or(NonNull::dangling());
        Self {
            base,
            words,
            owner: Owner::Heap(heap),
        }
    }

    fn of_map(map: MmapRaw, words: usize) -> Self {
        let first = map.as_mut_ptr().cast::<AtomicU64>();
        assert!(
            words <= map.len() / WORD,
            "{words} words of a map of {} bytes",
            map.len()
        );
        assert!(first.is_aligned(), "a map starts on a page");
        let base = NonNull::new(first).unwrap_or(NonNull::dangling());
        Self {
            base,
            words,
            owner: Owner::Map(map),
        }
    }

    /// How many words there are.
    #[inline]
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// One word.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`Memory::words`].
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the index is in range, so the pointer is into what `owner` keeps alive for as
        // long as `self` is borrowed. It is 8-byte aligned (a page, or an allocation of AtomicU64),
        // any bit pattern is an AtomicU64, and all access to a word that may be written is atomic
        // or, in `copy_in`, left to a range that no one else touches.
        unsafe { self.base.add(index).as_ref() }
    }

    /// Copies `bytes` to `byte_offset`.
    ///
    /// # Contract
    ///
    /// The caller owns all *words* that the range touches, having reserved them: until it publishes
    /// the range (with a releasing store to a word outside of it) no other thread reads or writes
    /// there. `log::segment` gets that from the reservation; no other module may call this on
    /// shared memory.
    ///
    /// # Panics
    ///
    /// If the range does not lie within the memory.
    #[inline]
    pub(crate) fn copy_in(&self, byte_offset: usize, bytes: &[u8]) {
        self.assert_range(byte_offset, bytes.len());
        #[cfg(not(any(test, miri, feature = "testing")))]
        self.copy_raw(byte_offset, bytes);
        // Simulated storage reads words while they are written, as a kernel does when it writes a
        // page back. Between threads of one program that has to be atomic.
        #[cfg(any(test, miri, feature = "testing"))]
        match &self.owner {
            Owner::Map(_) => self.copy_raw(byte_offset, bytes),
            Owner::Heap(_) => self.copy_by_words(byte_offset, bytes),
        }
    }

    /// The bytes of a published range.
    ///
    /// # Contract
    ///
    /// The range was published, the caller has seen that with an acquiring load (or has exclusive
    /// use of the store, as during recovery), and no one writes there as long as the slice lives.
    /// A committed record is such a range: it is never written again while its segment is mapped.
    ///
    /// # Panics
    ///
    /// If the range does not lie within the memory.
    #[inline]
    pub(crate) fn bytes(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.assert_range(byte_offset, len);
        // SAFETY: the range lies within what `owner` keeps alive for as long as `self` is borrowed,
        // bytes need no alignment and are initialised (a file's, or zeroed words), and by contract
        // nothing writes them while the slice lives.
        unsafe { slice::from_raw_parts(self.base.as_ptr().cast::<u8>().add(byte_offset), len) }
    }

    #[inline]
    fn assert_range(&self, byte_offset: usize, len: usize) {
        let end = byte_offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.words * WORD),
            "{len} bytes at {byte_offset} of {}",
            self.words * WORD,
        );
    }

    /// The copy that ships.
    #[inline]
    fn copy_raw(&self, byte_offset: usize, bytes: &[u8]) {
        self.assert_range(byte_offset, bytes.len());
        // SAFETY: the target lies within what `owner` keeps alive while `self` is borrowed, bytes
        // need no alignment, and `base` allows writing (a writable map, or `UnsafeCell` contents).
        // By the contract of `copy_in` no other thread reads or writes the target meanwhile, so
        // there is no race; and the source, a shared slice, does not overlap it, since `bytes` may
        // not be borrowed from a range that is still written.
        unsafe {
            let target = self.base.as_ptr().cast::<u8>().add(byte_offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// The same with one relaxed store a word.
    #[cfg(any(test, miri, feature = "testing"))]
    fn copy_by_words(&self, byte_offset: usize, bytes: &[u8]) {
        super::for_each_word(byte_offset, bytes, |index, mask, value| {
            let word = self.word(index);
            let kept = if mask == u64::MAX {
                0
            } else {
                word.load(Ordering::Relaxed) & !mask
            };
            word.store(kept | value, Ordering::Relaxed);
        });
    }
}

/// What simulated storage does with the memory of its files.
#[cfg(any(test, feature = "testing"))]
impl Memory {
    /// Another handle to the first `words` words of the same heap memory.
    ///
    /// # Panics
    ///
    /// If there are not as many, or the memory is a map.
    pub(crate) fn share(&self, words: usize) -> Self {
        match &self.owner {
            Owner::Heap(heap) => Self::of_heap(Arc::clone(heap), words),
            Owner::Map(_) => panic!("only heap memory is shared"),
        }
    }

    /// Whether other handles to the same memory live.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.owner {
            Owner::Heap(heap) => Arc::strong_count(heap) > 1,
            Owner::Map(_) => false,
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.owner {
            Owner::Map(_) => "map",
            Owner::Heap(_) => "heap",
        };
        formatter
            .debug_struct("Memory")
            .field("kind", &kind)
            .field("words", &self.words)
            .finish()
    }
}

/// Bytes that are populated in one call. A kernel without preemption does nothing else on this
/// processor meanwhile, and bringing in a page of a file takes some 3 us.
const POPULATED_AT_ONCE: usize = 512 * 1024;

/// Makes all pages of a map present and writable, in pieces between which others may run; whether
/// the kernel knows how to.
fn populate_for_writing(map: &MmapRaw) -> io::Result<bool> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        for start in (0..map.len()).step_by(POPULATED_AT_ONCE) {
            let len = POPULATED_AT_ONCE.min(map.len() - start);
            match map.advise_range(memmap2::Advice::PopulateWrite, start, len) {
                Ok(()) => std::thread::yield_now(),
                // Linux before 5.14.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    {
        let _: (&MmapRaw, usize) = (map, POPULATED_AT_ONCE);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn mapped(len: u64, populate: bool) -> (File, Memory) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len).expect("a length");
        let memory = Memory::map(&file, len, populate).expect("a map");
        (file, memory)
    }

    #[test]
    fn heap_starts_zeroed_and_takes_words_and_bytes() {
        let memory = Memory::heap(4);
        assert_eq!(memory.words(), 4);
        assert_eq!(memory.bytes(0, 32), [0; 32]);
        memory
            .word(1)
            .store(0x0807_0605_0403_0201, Ordering::Release);
        memory.copy_in(16, b"abcdefgh");
        assert_eq!(
            memory.bytes(8, 16),
            *b"\x01\x02\x03\x04\x05\x06\x07\x08abcdefgh"
        );
        assert_eq!(
            memory.word(2).load(Ordering::Acquire),
            u64::from_le_bytes(*b"abcdefgh")
        );
    }

    /// Both ways to copy, at every alignment and every length up to a few words, change exactly
    /// the range.
    #[test]
    fn copies_touch_exactly_their_range() {
        let source: Vec<u8> = (1..=40).collect();
        for offset in 0..16 {
            for len in 0..=40 {
                let mut expected = vec![0xEE; 64];
                expected[offset..offset + len].copy_from_slice(&source[..len]);
                let copies: [fn(&Memory, usize, &[u8]); 2] =
                    [Memory::copy_raw, Memory::copy_by_words];
                for copy in copies {
                    let memory = Memory::heap(8);
                    memory.copy_in(0, &[0xEE; 64]);
                    copy(&memory, offset, &source[..len]);
                    assert_eq!(memory.bytes(0, 64), expected, "{len} bytes at {offset}");
                }
            }
        }
    }

    #[test]
    fn the_end_is_in_reach_and_no_further() {
        let memory = Memory::heap(2);
        memory.copy_in(16, b"");
        memory.copy_in(15, b"x");
        assert_eq!(memory.bytes(16, 0), b"");
        type Reach = fn(&Memory);
        let reaches: [(&str, Reach); 6] = [
            ("word", |memory| memory.word(2).store(1, Ordering::Relaxed)),
            ("copy", |memory| memory.copy_in(9, b"12345678")),
            ("copy of nothing", |memory| memory.copy_in(17, b"")),
            ("copy that overflows", |memory| {
                memory.copy_in(usize::MAX, b"x")
            }),
            ("bytes", |memory| assert!(memory.bytes(9, 8).is_empty())),
            ("bytes that overflow", |memory| {
                assert!(memory.bytes(1, usize::MAX).is_empty())
            }),
        ];
        for (name, reach) in reaches {
            let outcome = std::panic::catch_unwind(|| reach(&Memory::heap(2)));
            let message = *outcome
                .expect_err(name)
                .downcast::<String>()
                .expect("a message");
            assert!(message.contains(" of "), "{name}: {message}");
        }
    }

    #[test]
    fn no_words_at_all() {
        let memory = Memory::heap(0);
        assert_eq!(memory.words(), 0);
        assert_eq!(memory.bytes(0, 0), b"");
        memory.copy_in(0, b"");
    }

    #[test]
    fn handles_of_one_heap_see_each_other() {
        let memory = Memory::heap(3);
        assert!(!memory.is_shared());
        let other = memory.share(2);
        assert!(memory.is_shared());
        assert_eq!(other.words(), 2);
        memory.word(1).store(7, Ordering::Relaxed);
        assert_eq!(other.word(1).load(Ordering::Relaxed), 7);
        drop(other);
        assert!(!memory.is_shared());
    }

    #[test]
    fn threads_write_ranges_of_their_own() {
        let memory = Memory::heap(64);
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let memory = &memory;
                scope.spawn(move || memory.copy_in(thread * 128, &[thread as u8 + 1; 128]));
            }
        });
        for thread in 0..4 {
            assert_eq!(memory.bytes(thread * 128, 128), [thread as u8 + 1; 128]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_map_and_its_file_are_one() {
        use std::os::unix::fs::FileExt;
        for populate in [false, true] {
            let (file, memory) = mapped(8192, populate);
            assert_eq!(memory.words(), 1024);
            memory.copy_in(4090, b"across the page");
            let mut read = [0; 15];
            file.read_exact_at(&mut read, 4090).expect("read");
            assert_eq!(&read, b"across the page");
            file.write_all_at(b"back", 100).expect("written");
            assert_eq!(memory.bytes(100, 4), b"back");
        }
    }

    /// Also behind the first piece, and in the last, which is none of a whole number of pages.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_store_to_a_populated_page_meets_no_fault() {
        let faults = || -> u64 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
            // The name, which may hold spaces, ends with the last parenthesis.
            let behind_name = stat.rsplit(')').next().expect("a name");
            let minor = behind_name.split_whitespace().nth(7).expect("minor faults");
            minor.parse().expect("a number")
        };
        let len = 2 * POPULATED_AT_ONCE + 3 * 4096 + 800;
        let met = |populate| {
            let (_file, memory) = mapped(len as u64, populate);
            let before = faults();
            for word in (0..memory.words()).step_by(512) {
                memory.word(word).store(1, Ordering::Relaxed);
            }
            faults() - before
        };
        let (faulting, populated) = (met(false), met(true));
        // A sanitizer meets a fault of its own for every eight pages or so. A piece that is left out
        // costs half of all.
        let most = if cfg!(oncekey_sanitizers) {
            faulting / 4
        } else {
            20
        };
        assert!(
            faulting > 200 && populated < most,
            "{faulting}, {populated}"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_map_keeps_an_unlinked_and_closed_file() {
        let (file, memory) = mapped(4096, false);
        drop(file);
        memory.word(511).store(9, Ordering::Relaxed);
        assert_eq!(memory.word(511).load(Ordering::Relaxed), 9);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_map_never_reaches_behind_the_file() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[1; 100]).expect("written");
        let error = Memory::map(&file, 101, false).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let memory = Memory::map(&file, 100, false).expect("a map");
        assert_eq!(memory.words(), 12, "whole words only");
        let empty = Memory::map(&file, 7, true).expect("no words");
        assert_eq!(empty.words(), 0);
    }
}
