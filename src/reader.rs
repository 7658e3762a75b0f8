//! Looking into a store from outside: [`Reader`].

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, SystemClock, time};
use crate::corruption::{Corruption, Damage};
use crate::domain::Domain;
use crate::fingerprint::Fingerprint;
use crate::fs::os::OsStorage;
use crate::key::Key;
use crate::log::position;
use crate::log::record::{Kind, Record};
use crate::log::recover::survey::{Survey, survey};
use crate::open_error::OpenError;
use crate::report::{BadSideCar, TornTail};
use crate::secret::{HashSecret, INDEX};
use crate::token::Token;

/// A look at the records of a store, from outside: also beside the process that has it open.
///
/// It takes no lock, writes nothing and maps nothing, and needs no right to write. What it shows is
/// the log as it stood when it was opened, as far as records had been written; a segment that is
/// rolled over, compacted or unlinked meanwhile stays readable. [`seen`](Self::seen) tells how fresh
/// that is; open another one to see what came later.
///
/// It reads every record, at opening and again for each question, and so takes time in proportion
/// to the files. In memory are one segment at a time (64 MiB at most) and, for
/// [`keys`](Self::keys), 40 to 80 bytes for each key asked for, more for a moment while the table grows. It keeps one descriptor a segment
/// open.
///
/// What it cannot know is what is only in the owner's memory: whether an owner is still at work. A
/// key that an earlier process left is interrupted for sure; one that was claimed since the store was
/// opened last is told as [`Recorded::Pending`], though its guard may have been dropped, or the
/// process may have died without the store having been opened again.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use std::ops::ControlFlow;
/// use oncekey::{Claim, Fingerprint, Key, Reader, Recorded, Store};
///
/// let store = Store::open(dir.path())?;
/// let key = Key::new("acct_1", "charge", "k-1")?;
/// if let Claim::Started(operation) = store.claim(&key, Fingerprint::none())? {
///     operation.complete(b"paid")?;
/// }
/// // In this process or another one, while the store is open:
/// let reader = Reader::open(dir.path())?;
/// let mut completed = 0;
/// reader.keys(|_| true, |record| {
///     completed += usize::from(record.state == Recorded::Completed);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(completed, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    survey: Survey,
    path: PathBuf,
    now_ms: u64,
}

/// How fresh a look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Position in the log behind the last record that was seen; 0 where there is none.
    pub sequence: u64,
    /// Everything below was durable for sure.
    pub durable: u64,
    /// The latest time that a record mentions, in store time.
    pub latest: Option<SystemTime>,
    /// How long before the look that was.
    pub age: Option<Duration>,
    /// Whether the store had been closed properly, and nobody has opened it since.
    pub is_closed: bool,
}

/// What was found wrong, and how much was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Durable records that cannot be read: the store refuses to open over them.
    pub corruptions: Vec<Corruption>,
    /// The copy of META that does not count is damaged. The next open repairs it.
    pub meta_copy: Option<Damage>,
    /// What stands behind the end of the log: being written at this moment, or cut off by a crash.
    /// Nothing durable is in it; an open discards it.
    pub tail: Option<TornTail>,
    /// Ranges that a writer reserved and had not finished.
    pub holes: u64,
    /// Side-cars that vouch for their segments.
    pub side_cars: u64,
    /// Side-cars that are no good. The next open makes them anew.
    pub side_cars_bad: Vec<BadSideCar>,
    /// Files of records.
    pub segments: u64,
    /// Of those, the compacted ones.
    pub segments_compacted: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that can be read.
    pub records: u64,
}

/// What the newest record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recorded {
    /// Claimed since the store was opened last, and not finished: the owner may be at work.
    Pending,
    /// Claimed by an earlier process, which is gone: the outcome is unknown.
    Interrupted,
    /// Done, and its result answers.
    Completed,
    /// Done, and its retention is over: the key is free.
    Expired,
    /// Released by its owner: the key is free.
    Released,
    /// Removed by an operator: the key is free.
    Forgotten,
}

/// One record of a key: all that was known of it from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyRecord {
    /// The key.
    pub key: Key,
    /// What this record makes of the key as long as no newer one follows it.
    pub state: Recorded,
    /// Whether it is a note of an owner at work.
    pub is_checkpoint: bool,
    /// The request it was claimed for.
    pub fingerprint: Fingerprint,
    /// The attempt.
    pub attempt: u32,
    /// Its token.
    pub token: Token,
    /// Position of the record in the log.
    pub sequence: u64,
    /// When the operation was first claimed.
    pub created_at: SystemTime,
    /// When this attempt began.
    pub started_at: SystemTime,
    /// When it ended: completed, released or removed.
    pub ended_at: Option<SystemTime>,
    /// Until when the result answers.
    pub expires_at: Option<SystemTime>,
    /// For whom the result was made.
    pub principal: Option<Vec<u8>>,
    /// The owner's note; empty without one.
    pub checkpoint: Vec<u8>,
    /// The stored response; `None` where there is none, or it was not kept.
    pub response: Option<Vec<u8>>,
}

/// Why a store cannot be looked at.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no store in the directory.
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// What would keep the store from opening too.
    Open(OpenError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStore { path } => write!(
                f,
                "{} holds no store: there is no META in it",
                path.display()
            ),
            Self::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoStore { .. } => None,
            Self::Open(error) => Some(error),
        }
    }
}

impl Reader {
    /// Looks at the store in `directory`.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. Durable records that cannot be read are no error: see
    /// [`health`](Self::health).
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::open_with(directory, false, |_, _| Ok(()))
    }

    /// The same, with progress: called with how many bytes of how many were read, which begin anew
    /// where damage is looked at once more. With `side_cars`, these are read and checked as well.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and what `progress` returns, which ends the look.
    pub fn open_with(
        directory: impl AsRef<Path>,
        side_cars: bool,
        mut progress: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> Result<Self, ReadError> {
        let path = directory.as_ref();
        let io = |source| ReadError::Open(OpenError::io(path, source));
        let storage = OsStorage::open_read_only(path).map_err(io)?;
        let survey = survey(&storage, side_cars, &mut progress)
            .map_err(|error| ReadError::Open(OpenError::from_recovery(path, error)))?;
        let Some(survey) = survey else {
            return Err(ReadError::NoStore {
                path: path.to_path_buf(),
            });
        };
        // As a store that is opened now would see it.
        let wall_ms = SystemClock::new().wall_ms();
        let now_ms = wall_ms.max(survey.latest_ms).max(survey.meta.high_water_ms);
        Ok(Self {
            survey,
            path: path.to_path_buf(),
            now_ms,
        })
    }

    /// How fresh this look is.
    pub fn seen(&self) -> Seen {
        let latest_ms = Some(self.survey.latest_ms).filter(|ms| *ms > 0);
        Seen {
            sequence: self.survey.end,
            durable: self.survey.watermark,
            latest: latest_ms.map(time),
            age: latest_ms.map(|ms| Duration::from_millis(self.now_ms - ms)),
            is_closed: self.survey.meta.clean,
        }
    }

    /// The key that stands in a damaged record, if it looks like one: whose record it probably was.
    /// Nothing proves it, since its checksum does not match.
    pub fn suspect(&self, corruption: &Corruption) -> Option<&Key> {
        let mut suspects = self.survey.suspects.iter();
        let found =
            suspects.find(|each| each.file == corruption.file && each.offset == corruption.offset);
        found.map(|suspect| &suspect.key)
    }

    /// What is wrong with the store's files.
    pub fn health(&self) -> Health {
        let survey = &self.survey;
        Health {
            corruptions: survey.losses.clone(),
            meta_copy: survey.meta_slot,
            tail: survey.tail.clone(),
            holes: survey.holes,
            side_cars: survey.side_cars,
            side_cars_bad: survey.side_cars_bad.clone(),
            segments: survey.file_count() as u64,
            segments_compacted: survey.compacted_files,
            bytes: survey.file_bytes,
            records: survey.records,
        }
    }

    /// Store time at the look: what retention is measured by.
    pub fn now(&self) -> SystemTime {
        time(self.now_ms)
    }

    /// Shows the newest record of each key that `wants` asks for, in no particular order, until
    /// `visit` breaks. Keys that are free are shown as long as the log knows of them.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub fn keys(
        &self,
        wants: impl Fn(&Key) -> bool,
        mut visit: impl FnMut(KeyRecord) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let secret = HashSecret::derive(&self.survey.meta.secret, INDEX);
        let digest =
            |record: &Record<'_>| Key::digest_of(record.key, record.key_lengths, secret.bytes());
        let mut newest: HashMap<u128, (u64, u64)> = HashMap::new();
        self.records(|record, key| {
            if wants(key) {
                let rank = (record.token, record.sequence);
                let known = newest.entry(digest(record)).or_insert(rank);
                *known = rank.max(*known);
            }
            ControlFlow::Continue(())
        })?;
        self.records(|record, key| {
            let rank = (record.token, record.sequence);
            let shown = digest(record);
            if newest.get(&shown) != Some(&rank) {
                return ControlFlow::Continue(());
            }
            // A copy can stand beside its original.
            newest.remove(&shown);
            visit(self.key_record(record, key.clone()))
        })
    }

    /// All that the log still knows of a key, oldest first: the last one counts.
    ///
    /// # Errors
    ///
    /// What the system reports.
    pub fn history(&self, key: &Key) -> Result<Vec<KeyRecord>, ReadError> {
        let mut found = Vec::new();
        self.records(|record, own| {
            if own == key {
                found.push(self.key_record(record, own.clone()));
            }
            ControlFlow::Continue(())
        })?;
        found.sort_by_key(|record| (record.token, record.sequence));
        found.dedup_by_key(|record| record.sequence);
        Ok(found)
    }

    fn records(
        &self,
        mut visit: impl FnMut(&Record<'_>, &Key) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut flow = ControlFlow::Continue(());
        for at in 0..self.survey.file_count() {
            let visited = self.survey.visit(at, &mut |record| {
                if flow.is_continue()
                    && record.domain == Domain::Operations
                    && let Ok(key) = Key::from_parts(record.key, record.key_lengths)
                {
                    flow = visit(record, &key);
                }
            });
            visited
                .map_err(|error| ReadError::Open(OpenError::from_recovery(&self.path, error)))?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn key_record(&self, record: &Record<'_>, key: Key) -> KeyRecord {
        let is_earlier = position::epoch_of(record.token) < self.survey.meta.epoch;
        let state = match record.kind {
            Kind::Claim | Kind::Checkpoint if is_earlier || self.survey.meta.clean => {
                Recorded::Interrupted
            }
            Kind::Claim | Kind::Checkpoint => Recorded::Pending,
            Kind::Complete if record.is_live(self.now_ms) => Recorded::Completed,
            Kind::Complete => Recorded::Expired,
            Kind::Release => Recorded::Released,
            Kind::Forget => Recorded::Forgotten,
        };
        let when = |ms: u64| (ms > 0).then(|| time(ms));
        let is_completed = record.kind == Kind::Complete;
        KeyRecord {
            key,
            state,
            is_checkpoint: record.kind == Kind::Checkpoint,
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            token: Token::from_u64(record.token),
            sequence: record.sequence,
            created_at: time(record.created_ms),
            started_at: time(record.started_ms),
            ended_at: when(record.ended_ms),
            expires_at: when(record.deadline_ms).filter(|_| is_completed),
            principal: record.principal.map(<[u8]>::to_vec),
            checkpoint: record.checkpoint.to_vec(),
            response: record.response.map(<[u8]>::to_vec),
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("seen", &self.seen())
            .finish_non_exhaustive()
    }
}
