//! Room: who waits for it is told when there is some, when there is none to be had, and when the log
//! is closed; what is prepared can be found before it is used; and what is written down of the
//! watermark is true.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use loom::thread;

use super::*;
use crate::block::block_on;
use crate::clock::{Clock, StoreTime};
use crate::domain::Domain;
use crate::fingerprint::Fingerprint;
use crate::log::Log;
use crate::log::commit::Lead;
use crate::log::meta::META;
use crate::log::prepare::NoRoom;
use crate::log::record::{Contents, Kind};
use crate::sync::explore;

/// Words of a record of a key of one byte.
const RECORD_WORDS: u64 = 16;
/// Words in a segment: it counts for one record less, the largest there is.
const ROOM: u64 = 2 * RECORD_WORDS;

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn wall_ms(&self) -> u64 {
        1_000
    }

    fn monotonic_ms(&self) -> u64 {
        0
    }
}

/// A directory whose new files are as long as they are asked to be, unless the disk is full; and
/// that looks at what is written into META.
#[derive(Debug, Default)]
struct Directory {
    is_full: AtomicBool,
    /// Holds the records that a watermark must not be above.
    platter: OnceLock<Arc<Platter>>,
}

#[derive(Debug)]
struct Blank(usize);

#[derive(Debug)]
struct Ledger(Arc<Directory>);

/// A handle, as stores have it.
#[derive(Debug)]
struct Shelf(Arc<Directory>);

impl Storage for Shelf {
    fn list(&self) -> io::Result<Vec<FileEntry>> {
        Ok(Vec::new())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StorageFile>> {
        if name.starts_with(META) {
            return Ok(Arc::new(Ledger(Arc::clone(&self.0))));
        }
        if self.0.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(Arc::new(Blank(len as usize / 8)))
    }

    fn open(&self, _name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! file_that_takes_everything {
    ($file:ty) => {
        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn set_len(&self, _len: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
    };
}

impl StorageFile for Blank {
    file_that_takes_everything!(Blank);

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn map(&self, _populate: bool) -> io::Result<Memory> {
        Ok(Memory::heap_from(FIRST_RECORD as usize, self.0))
    }
}

impl StorageFile for Ledger {
    file_that_takes_everything!(Ledger);

    /// Whatever is written down of the watermark is already durable.
    fn write_at(&self, _offset: u64, bytes: &[u8]) -> io::Result<()> {
        let watermark = crate::log::meta::watermark_in(bytes);
        if let Some(platter) = self.0.platter.get() {
            let durable = platter.durable_up_to();
            assert!(
                watermark <= durable,
                "{watermark} written down, {durable} durable"
            );
        }
        Ok(())
    }

    fn map(&self, _populate: bool) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A log over a segment of which one record is promised, and where others come from.
fn log() -> (Arc<Log>, Arc<Directory>, Arc<Platter>) {
    log_of(2)
}

/// The same over one of so many records, all but one of which are promised.
fn log_of(records: u64) -> (Arc<Log>, Arc<Directory>, Arc<Platter>) {
    let directory = Arc::new(Directory::default());
    let (segments, mut platters) = segments(&[records * RECORD_WORDS]);
    let time = Arc::new(StoreTime::start(Arc::new(Stopped), 0));
    let storage = Arc::new(Shelf(Arc::clone(&directory)));
    let log = Log::modelled_on(storage, segments, (RECORD_WORDS, 0), &time, ROOM);
    (Arc::new(log), directory, platters.remove(0))
}

/// Appends a record that was promised, and says which segment it is in.
fn append(log: &Log) -> Appended {
    let contents = Contents {
        kind: Kind::Release,
        domain: Domain::Operations,
        is_dead: false,
        fingerprint: Fingerprint::none(),
        token: BASE,
        ticket: 0,
        attempt: 1,
        created_ms: 0,
        started_ms: 0,
        ended_ms: 0,
        deadline_ms: 0,
        key: b"k",
        key_lengths: (0, 0, 1),
        principal: None,
        checkpoint: &[],
        response: None,
        attached: &[],
    };
    assert_eq!(contents.words(), RECORD_WORDS);
    let appended = log.append(&contents).expect("it was promised");
    let segment = log.segments().load(appended.segment);
    let segment = segment.as_ref().expect("it is in the table");
    assert!(segment.record_bytes(appended.offset).is_some());
    appended
}

fn room(log: &Log) -> Result<(), NoRoom> {
    block_on(log.room(RECORD_WORDS))
}

/// Runs the preparing thread while `body` runs.
fn with_preparer(log: &Arc<Log>, body: impl FnOnce()) {
    let preparer = {
        let log = Arc::clone(log);
        thread::spawn(move || log.prepare())
    };
    body();
    log.stop();
    preparer.join().expect("stopped");
}

#[test]
fn who_waits_for_room_gets_a_segment_that_can_be_found() {
    explore(3, || {
        let (log, ..) = log();
        with_preparer(&log, || {
            for _ in 0..3 {
                room(&log).expect("there is always more");
                append(&log);
            }
        });
    });
}

#[test]
fn two_wait_for_room() {
    explore(2, || {
        let (log, ..) = log();
        with_preparer(&log, || {
            room(&log).expect("the first segment");
            append(&log);
            let other = {
                let log = Arc::clone(&log);
                thread::spawn(move || {
                    room(&log).expect("there is always more");
                    append(&log);
                })
            };
            room(&log).expect("there is always more");
            append(&log);
            other.join().expect("appended");
        });
    });
}

/// The disk is full: who asks is told, once for every try, and who asks when there is space gets it.
#[test]
fn who_waits_for_room_is_told_that_there_is_none() {
    explore(2, || {
        let (log, directory, _) = log();
        directory.is_full.store(true, Ordering::Relaxed);
        with_preparer(&log, || {
            room(&log).expect("the first segment");
            append(&log);
            assert!(matches!(room(&log), Err(NoRoom::Failed(_))));
            directory.is_full.store(false, Ordering::Relaxed);
            room(&log).expect("a failure is forgotten");
            append(&log);
        });
    });
}

#[test]
fn a_close_ends_the_wait_for_room() {
    explore(3, || {
        let (log, ..) = log();
        room(&log).expect("the first segment");
        append(&log);
        let waiter = {
            let log = Arc::clone(&log);
            thread::spawn(move || room(&log))
        };
        // Nobody prepares any more.
        log.stop();
        assert!(matches!(waiter.join().expect("told"), Err(NoRoom::Stopped)));
    });
}

/// The watermark is written down while records are appended and synced.
#[test]
fn no_watermark_is_written_down_that_is_not_durable() {
    explore(3, || {
        let (log, directory, platter) = log_of(3);
        directory.platter.set(platter).expect("once");
        let write = |log: &Log| {
            room(log).expect("promised");
            let appended = append(log);
            block_on(log.durable(appended.end, Lead::Allowed)).expect("no sync fails");
        };
        let writer = {
            let log = Arc::clone(&log);
            thread::spawn(move || write(&log))
        };
        log.persist_progress();
        write(&log);
        log.persist_progress();
        writer.join().expect("durable");
        log.persist_progress();
    });
}
