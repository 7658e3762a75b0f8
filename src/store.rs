//! The store: the public face of the engine.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::batch;
use crate::block::block_on;
use crate::claim::Saved;
use crate::claim::{Claim, claim_blocking, claim_future};
use crate::clock::time;
use crate::engine::{self, Forgotten, Level, Opened, Request, TicketParts};
use crate::error::{AdminError, ClaimError, Unavailable};
use crate::fingerprint::Fingerprint;
use crate::fs::Storage;
use crate::fs::kind::FileSystemKind;
use crate::fs::lock::DirectoryLock;
use crate::fs::os::OsStorage;
use crate::index::Phase;
use crate::key::Key;
use crate::listing::{KeyState, PendingKey};
use crate::log::commit::Lead;
use crate::log::recover;
use crate::maintenance::{MaintenanceError, MaintenanceReport};
use crate::open_error::OpenError;
use crate::operation::Operation;
use crate::options::{ClaimOptions, Options, ResolvedClaim};
use crate::reconcile::{self, Interrupted, ReconcileError, ReconcileReport, Verdict};
use crate::report::RecoveryReport;
use crate::run::{RunError, RunOptions};
use crate::snapshot::{self, Snapshot, SnapshotError};
use crate::stats::Stats;
use crate::ticket::{ResumeError, Ticket};
use crate::token::Token;
use crate::version::EntityVersion;

/// An open idempotency-key store.
///
/// A handle: cloning it is cheap, and every clone is the same store. It may be used from any number
/// of threads and tasks. The directory belongs to one store of one process at a time; when the last
/// handle, guard and waiting future are gone the store is closed, as by [`close`](Self::close) but
/// with errors only logged.
///
/// Calls that may wait have a blocking form and an `async` one that needs no particular runtime; both
/// are the same state machine. A future never runs a sync on its executor's thread. Opening and
/// closing only block, and so does dropping the last handle, which closes: in an async program call
/// [`close`](Self::close) where blocking is allowed.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use oncekey::{Claim, Fingerprint, Key, Store};
///
/// let store = Store::open(dir.path())?;
/// let key = Key::new("acct_1", "POST /v1/payments", "a-clients-key")?;
/// let request = Fingerprint::of(br#"{"amount":1200}"#);
///
/// match store.claim(&key, request)? {
///     Claim::Started(operation) => {
///         // Charge the card, then:
///         operation.complete(b"paid")?;
///     }
///     Claim::Interrupted(operation) => {
///         // An earlier attempt may have charged it: ask before doing it again.
///         operation.complete(b"paid after all")?;
///     }
///     Claim::InProgress(_) => { /* 409, retry later */ }
///     Claim::Completed(saved) => { saved.by_scope()?; /* replay it */ }
///     Claim::Mismatch(_) => { /* 422, key reused */ }
///     Claim::TooLate(_) => { /* first sent longer ago than results are kept */ }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store {
    engine: Arc<Opened>,
}

/// Whether [`Store::forget`] may remove a key that waits for an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Only completed keys; a pending or interrupted one is an error.
    IfCompleted,
    /// Any key. The owner of a pending one is fenced: its later calls give `LeaseLost`.
    Force,
}

impl Options {
    /// Opens the store in `directory`, creating the directory where it does not exist.
    ///
    /// Opening recovers what an earlier process left; [`Store::recovery_report`] tells what was
    /// found. Every key that was pending is interrupted: its owner is gone.
    ///
    /// # Errors
    ///
    /// [`OpenError`] names what is in the way and what to do; nothing is changed then, but for
    /// repairs that are safe to repeat.
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<Store, OpenError> {
        let path = directory.as_ref();
        let settings = self.validate().map_err(OpenError::Options)?;
        let storage = OsStorage::open(path, true).map_err(|source| OpenError::io(path, source))?;
        let kind = storage
            .kind()
            .map_err(|source| OpenError::io(path, source))?;
        match kind {
            FileSystemKind::Network(name) if !settings.allow_network_file_system => {
                return Err(OpenError::NetworkFileSystem {
                    path: path.to_path_buf(),
                    file_system: name,
                });
            }
            FileSystemKind::Memory => {
                tracing::warn!(path = %path.display(), "in-memory file system: nothing here \
                    survives power loss");
            }
            FileSystemKind::CopyOnWrite => {
                tracing::warn!(path = %path.display(), "copy-on-write file system: space \
                    prepared ahead is not a promise there");
            }
            _ => {}
        }
        // Before anything is written: a directory that is not ours stays as it is.
        recover::check_listing(&storage).map_err(|error| OpenError::from_recovery(path, error))?;
        let lock = DirectoryLock::acquire(path, settings.lock_wait)
            .map_err(|error| OpenError::from_lock(path, error))?;
        storage
            .probe_sync()
            .map_err(|source| OpenError::io(path, source))?;
        Store::start(Arc::new(storage), settings, path, Some(lock))
    }

    /// Opens a store on a simulated disk, which is locked by nobody.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[cfg(any(test, feature = "testing"))]
    pub fn open_simulated(
        &self,
        disk: &crate::fs::simulated::SimulatedDisk,
    ) -> Result<Store, OpenError> {
        let settings = self.validate().map_err(OpenError::Options)?;
        Store::start(
            Arc::new(disk.clone()),
            settings,
            Path::new("simulated"),
            None,
        )
    }
}

impl Store {
    fn start(
        storage: Arc<dyn Storage>,
        settings: crate::options::Settings,
        path: &Path,
        lock: Option<DirectoryLock>,
    ) -> Result<Self, OpenError> {
        let engine = engine::start(storage, settings, path, lock)?;
        Ok(Self {
            engine: Arc::new(engine),
        })
    }

    /// Opens the store in `directory` with the default options, creating it where it does not exist.
    ///
    /// # Errors
    ///
    /// As for [`Options::open`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, OpenError> {
        Options::new().open(directory)
    }

    pub(crate) fn of(engine: Arc<Opened>) -> Self {
        Self { engine }
    }

    /// See [`Operation::downstream_key`].
    pub(crate) fn derive(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
        self.engine.downstream_key(key, fingerprint, label)
    }

    pub(crate) fn settings(&self) -> &crate::options::Settings {
        self.engine.settings()
    }

    /// What the open found and repaired.
    pub fn recovery_report(&self) -> &RecoveryReport {
        self.engine.report()
    }

    /// Starts the operation of `key`, or tells what became of it: see [`Claim`].
    ///
    /// In [`Durability::Sync`](crate::Durability::Sync) a started operation is durable on return, and
    /// no answer is given that a power loss could take back.
    ///
    /// # Errors
    ///
    /// [`ClaimError`]: no room, a limit, or the store refuses. Nothing was claimed.
    pub fn claim(&self, key: &Key, fingerprint: Fingerprint) -> Result<Claim, ClaimError> {
        self.claim_with(key, fingerprint, ClaimOptions::new())
    }

    /// [`claim`](Self::claim) with options of its own.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim), and [`ClaimError::Options`].
    pub fn claim_with(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Claim, ClaimError> {
        let request = self.request(key, fingerprint, &options, Lead::Allowed)?;
        claim_blocking(&self.engine, request)
    }

    /// [`claim`](Self::claim) without blocking. Dropping the future before it is done releases what
    /// it may have claimed.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    pub fn claim_async(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> impl Future<Output = Result<Claim, ClaimError>> + Send + use<> {
        self.claim_with_async(key, fingerprint, ClaimOptions::new())
    }

    /// [`claim_with`](Self::claim_with) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`claim_with`](Self::claim_with).
    pub fn claim_with_async(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> impl Future<Output = Result<Claim, ClaimError>> + Send + use<> {
        let request = self
            .request(key, fingerprint, &options, Lead::Never)
            .map(Request::into_owned);
        let engine = Arc::clone(&self.engine);
        async move { claim_future(engine, request?).await }
    }

    /// Claims many keys with one sync: one result a key, in order.
    ///
    /// A key that stands twice in the batch is in progress the second time, marked
    /// [`is_same_batch`](crate::InProgress::is_same_batch), and waiting for it there is an error.
    /// Out of space fails only the keys not yet written; after a failed sync all that were written
    /// are [`ClaimError::OutcomeUnknown`]. Guards not taken out of the result are dropped with it
    /// and leave their keys interrupted.
    pub fn claim_many<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a Key, Fingerprint)>,
        options: ClaimOptions,
    ) -> Vec<Result<Claim, ClaimError>> {
        match self.requests(keys, &options, Lead::Allowed) {
            Ok(requests) => block_on(batch::claim_many(&self.engine, requests)),
            Err(errors) => errors,
        }
    }

    /// [`claim_many`](Self::claim_many) without blocking.
    pub async fn claim_many_async<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a Key, Fingerprint)>,
        options: ClaimOptions,
    ) -> Vec<Result<Claim, ClaimError>> {
        match self.requests(keys, &options, Lead::Never) {
            Ok(requests) => batch::claim_many(&self.engine, requests).await,
            Err(errors) => errors,
        }
    }

    /// [`claim_many`](Self::claim_many) with options for each key.
    pub(crate) async fn claim_each(
        &self,
        keys: &[(Key, Fingerprint, ClaimOptions)],
        lead: Lead,
    ) -> Vec<Result<Claim, ClaimError>> {
        let requests: Result<Vec<_>, _> = keys
            .iter()
            .map(|(key, fingerprint, options)| self.request(key, *fingerprint, options, lead))
            .collect();
        match requests {
            Ok(requests) => batch::claim_many(&self.engine, requests).await,
            Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Looks at a key without claiming it.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    pub fn get(&self, key: &Key) -> Result<KeyState, ClaimError> {
        let level = self.level(Lead::Allowed);
        block_on(self.engine.look(key, level)).map(KeyState::new)
    }

    /// [`get`](Self::get) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    pub async fn get_async(&self, key: &Key) -> Result<KeyState, ClaimError> {
        let level = self.level(Lead::Never);
        self.engine.look(key, level).await.map(KeyState::new)
    }

    /// Whether there is nothing of a key, on the disk or on its way there.
    #[cfg(feature = "http")]
    pub(crate) async fn is_absent(&self, key: &Key) -> Result<bool, ClaimError> {
        self.engine.is_absent(key).await
    }

    /// Removes a key: the next claim on it starts afresh. Returns whether there was one; a result
    /// that has expired counts as none, and what is left of it is removed.
    ///
    /// In [`Durability::Sync`](crate::Durability::Sync) the removal is durable on return.
    ///
    /// # Errors
    ///
    /// [`AdminError::Pending`] for a key that waits for an outcome, unless forced.
    pub fn forget(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        let level = self.level(Lead::Allowed);
        let forgotten = block_on(self.engine.forget(key, forget == Forget::Force, level))?;
        Ok(forgotten == Forgotten::Removed)
    }

    /// [`forget`](Self::forget) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`forget`](Self::forget).
    pub async fn forget_async(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        let level = self.level(Lead::Never);
        let forgotten = self
            .engine
            .forget(key, forget == Forget::Force, level)
            .await?;
        Ok(forgotten == Forgotten::Removed)
    }

    /// [`forget_async`](Self::forget_async) by force, durable with the next sync.
    #[cfg(feature = "client")]
    pub(crate) async fn forget_unsynced(&self, key: &Key) -> Result<bool, AdminError> {
        let level = Level {
            durability: crate::options::Durability::Buffered,
            lead: Lead::Never,
        };
        let forgotten = self.engine.forget(key, true, level).await?;
        Ok(forgotten == Forgotten::Removed)
    }

    /// The version of an entity, as [`Completion::version`](crate::Completion::version) set it; `None`
    /// where it has none. In [`Durability::Sync`](crate::Durability::Sync) no power loss can take the
    /// answer back.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] on a store that is closed or damaged, and for a name that is too long.
    pub fn version(&self, entity: impl AsRef<[u8]>) -> Result<Option<EntityVersion>, ClaimError> {
        let look = block_on(
            self.engine
                .version(entity.as_ref(), self.level(Lead::Allowed)),
        )?;
        Ok(EntityVersion::new(look))
    }

    /// [`version`](Self::version) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`version`](Self::version).
    pub async fn version_async(
        &self,
        entity: impl AsRef<[u8]>,
    ) -> Result<Option<EntityVersion>, ClaimError> {
        let look = self
            .engine
            .version(entity.as_ref(), self.level(Lead::Never));
        look.await.map(EntityVersion::new)
    }

    /// Removes the version of an entity, which counts as never seen from then on; whether it had one.
    /// Durable on return in [`Durability::Sync`](crate::Durability::Sync).
    ///
    /// # Errors
    ///
    /// [`AdminError::Claim`] as for [`version`](Self::version), or where there is no room for it.
    pub fn forget_version(&self, entity: impl AsRef<[u8]>) -> Result<bool, AdminError> {
        let level = self.level(Lead::Allowed);
        block_on(self.engine.forget_version(entity.as_ref(), level))
    }

    /// [`forget_version`](Self::forget_version) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`forget_version`](Self::forget_version).
    pub async fn forget_version_async(&self, entity: impl AsRef<[u8]>) -> Result<bool, AdminError> {
        let level = self.level(Lead::Never);
        self.engine.forget_version(entity.as_ref(), level).await
    }

    /// Takes a key from an owner that hangs: the key is interrupted, the owner's later calls give
    /// `LeaseLost`, and the next claimer takes over. The token, from [`pending`](Self::pending),
    /// makes sure that it is still the same owner.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotHeld`] where nobody holds the key under this token.
    pub fn interrupt(&self, key: &Key, token: Token) -> Result<(), AdminError> {
        block_on(self.engine.interrupt(key, token.as_u64()))
    }

    /// Turns a ticket into a guard.
    ///
    /// The first to come gets [`Claim::Started`] with the same attempt and a new token; the ticket's
    /// own is void from then on. A ticket delivered again gives [`Claim::InProgress`] while that
    /// guard lives, [`Claim::Completed`] once it has completed, and [`Claim::Interrupted`] with a new
    /// attempt where the guard is gone, the lease is over or the store was restarted.
    ///
    /// # Errors
    ///
    /// [`ResumeError::LeaseLost`] where the operation went on without the ticket.
    pub fn resume(&self, ticket: &Ticket) -> Result<Claim, ResumeError> {
        let request = self.resume_request(ticket.parts(), Lead::Allowed);
        let outcome = block_on(self.engine.resume(ticket.parts(), &request))?;
        Ok(Claim::new(&self.engine, request, outcome))
    }

    /// [`resume`](Self::resume) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`resume`](Self::resume).
    pub async fn resume_async(&self, ticket: &Ticket) -> Result<Claim, ResumeError> {
        let request = self.resume_request(ticket.parts(), Lead::Never);
        let outcome = self.engine.resume(ticket.parts(), &request).await?;
        Ok(Claim::new(&self.engine, request, outcome))
    }

    /// Claim, work, complete in one call. The work runs only in the caller that got the operation;
    /// duplicates wait and get its result. See [`RunOptions`] for interrupted keys.
    ///
    /// Where the work fails or panics the key is interrupted.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use oncekey::{Fingerprint, Key, RunOptions, Store};
    /// # let store = Store::open(dir.path())?;
    /// let key = Key::new("acct_1", "charge", "k-1")?;
    /// let saved = store.run(&key, Fingerprint::of(b"1200 eur"), RunOptions::new(), |operation| {
    ///     let _charge_once = operation.downstream_key("charge");
    ///     Ok::<_, std::io::Error>("paid")
    /// })?;
    /// assert_eq!(&saved.by_scope()?.response().unwrap()[..], b"paid");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn run<R: AsRef<[u8]>, E>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: RunOptions,
        work: impl FnOnce(&mut Operation) -> Result<R, E>,
    ) -> Result<Saved, RunError<E>> {
        crate::run::run(self, key, fingerprint, options, work)
    }

    /// [`run`](Self::run) without blocking. Dropping the future while the work runs interrupts the
    /// key.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub async fn run_async<R: AsRef<[u8]>, E>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: RunOptions,
        work: impl AsyncFnOnce(&mut Operation) -> Result<R, E>,
    ) -> Result<Saved, RunError<E>> {
        crate::run::run_async(self, key, fingerprint, options, work).await
    }

    /// The keys that an owner holds, in no particular order: with their age, to find hung ones.
    ///
    /// The list is made stripe by stripe and is not one instant of the whole store.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] on a closed store.
    pub fn pending(&self) -> Result<Vec<PendingKey>, Unavailable> {
        self.list(true)
    }

    /// The keys whose owner is gone and whose outcome is unknown: to be reconciled. Among them are the
    /// [abandoned](crate::PendingKey::is_abandoned) ones.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] on a closed store.
    pub fn interrupted(&self) -> Result<Vec<PendingKey>, Unavailable> {
        self.list(false)
    }

    /// Asks what became of every key whose outcome is unknown, and writes it down.
    ///
    /// Walks the [interrupted](Self::interrupted) keys, [abandoned](Options::abandon_after) ones
    /// included, in no particular order and each at most once. `ask` is shown what the last attempt
    /// left, its checkpoint, its age and the keys of its calls to other systems, and says what became
    /// of it: see [`Verdict`]. A key that it keeps is not touched.
    ///
    /// Nobody is shut out while it is asked. A key that is claimed, resumed or removed meanwhile
    /// belongs to whoever did that: the verdict is dropped and the key counted as
    /// [overtaken](ReconcileReport::overtaken). **So do not act in `ask`, only look.** An interrupted
    /// attempt may not have stopped: a request that it sent can still be on its way. Keep what is
    /// younger than the longest that such a request takes.
    ///
    /// What was completed is kept for the store's retention from now on. In
    /// [`Durability::Sync`](crate::Durability::Sync) each verdict is durable before the next key is
    /// asked about. What is in memory at once is the keys of one stripe of the index; a panic of
    /// `ask` leaves its key as it was. An error about one key is in the report, and the walk goes on.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] on a store that is closed, or that refuses writes after a failed sync: the
    /// walk ends there, and verdicts given before stand.
    ///
    /// # Examples
    ///
    /// A provider that takes idempotency keys is asked whether there is a charge under this one:
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::time::Duration;
    /// use oncekey::reconcile::Verdict;
    /// # use oncekey::{Claim, Fingerprint, Key, KeyState, Store};
    /// # struct Provider(std::collections::HashMap<String, String>);
    /// # impl Provider {
    /// #     fn find_by_key(&self, key: &str) -> Result<Option<String>, std::io::Error> {
    /// #         Ok(self.0.get(key).cloned())
    /// #     }
    /// # }
    /// # const LONGEST_CALL: Duration = Duration::ZERO;
    /// # let store = Store::open(dir.path())?;
    /// # let key = Key::new("acct_1", "POST /v1/payments", "k-1")?;
    /// # let Claim::Started(operation) = store.claim(&key, Fingerprint::none())? else { panic!() };
    /// # let charged = (operation.downstream_key("charge"), "ch_1".to_owned());
    /// # drop(operation);
    /// # let provider = Provider([charged].into());
    ///
    /// let report = store.reconcile(|interrupted| {
    ///     if interrupted.age() < LONGEST_CALL {
    ///         return Verdict::Keep;
    ///     }
    ///     match provider.find_by_key(&interrupted.downstream_key("charge")) {
    ///         Ok(Some(charge)) => Verdict::completed(charge),
    ///         Ok(None) => Verdict::Release,
    ///         Err(_) => Verdict::Keep,
    ///     }
    /// })?;
    /// assert_eq!((report.completed, report.failed), (1, 0));
    /// # assert!(matches!(store.get(&key)?, KeyState::Completed(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reconcile(
        &self,
        ask: impl FnMut(&Interrupted) -> Verdict,
    ) -> Result<ReconcileReport, Unavailable> {
        reconcile::reconcile_blocking(&self.engine, ask)
    }

    /// [`reconcile`](Self::reconcile) without blocking. A future that is dropped stops between two
    /// keys, or leaves the one at hand interrupted.
    ///
    /// # Errors
    ///
    /// As for [`reconcile`](Self::reconcile).
    pub async fn reconcile_async(
        &self,
        ask: impl AsyncFnMut(&Interrupted) -> Verdict,
    ) -> Result<ReconcileReport, Unavailable> {
        reconcile::reconcile(&self.engine, Lead::Never, ask).await
    }

    /// Settles one key whose outcome is unknown: see [`reconcile::settle_key`].
    pub(crate) fn settle_key(
        &self,
        key: &Key,
        decide: impl FnOnce(Option<&bytes::Bytes>) -> Verdict,
    ) -> Result<bool, ReconcileError> {
        reconcile::settle_key(&self.engine, key, decide)
    }

    /// The state of the store at this moment.
    pub fn stats(&self) -> Stats {
        let engine = &*self.engine;
        let mut stats = Stats::default();
        if engine.is_forked() {
            return stats;
        }
        let (now_ms, monotonic_ms) = (engine.time().now_ms(), engine.time().monotonic_ms());
        let abandon_after_ms = engine.settings().abandon_after_ms;
        for stripe in engine.index().stripes() {
            let stripe = stripe.lock();
            stats.completed_keys += stripe.completed_count() as u64;
            stats.index_bytes += stripe.table_bytes() as u64;
            for live in stripe
                .live_entries()
                .filter(|live| !live.is_held(monotonic_ms))
            {
                stats.interrupted_keys += 1;
                stats.abandoned_keys += u64::from(live.is_too_old(now_ms, abandon_after_ms));
            }
        }
        let (counters, log) = (&engine.counters, engine.log());
        stats.versions = engine.version_count() as u64;
        stats.completed_keys = stats.completed_keys.saturating_sub(stats.versions);
        let outbox = engine.outbox_state();
        stats.outbox_messages = outbox.outstanding as u64;
        stats.outbox_dead_letters = outbox.dead as u64;
        stats.outbox_lag_ms = outbox.lag_ms;
        let messages = stats.outbox_messages + stats.outbox_dead_letters;
        stats.completed_keys = stats.completed_keys.saturating_sub(messages);
        stats.pending_keys = engine.pending_count() as u64;
        stats.waiters = engine.waiting_count() as u64;
        stats.claims_started = counters.started.total();
        stats.claims_taken_over = counters.taken_over.total();
        stats.claims_in_progress = counters.in_progress.total();
        stats.claims_replayed = counters.replayed.total();
        stats.claims_mismatched = counters.mismatched.total();
        stats.claims_too_late = counters.too_late.total();
        stats.completed = counters.completed.total();
        stats.released = counters.released.total();
        stats.claims_abandoned = counters.claims_abandoned.total();
        stats.interruptions = counters.interruptions.total();
        stats.expired = counters.expired.total();
        stats.segments = log.segments().count() as u64;
        stats.segment_bytes = log.file_bytes();
        stats.out_of_space = counters.out_of_space.total();
        stats.limits_reached = counters.limits_reached();
        stats.segments_unsynced = log.unsynced_segments() as u64;
        stats.segments_prepared = log.ready() as u64;
        stats.available_bytes = log.available_words() * 8;
        stats.unsynced_bytes = log.unsynced_words() * 8;
        let syncs = log.sync_counts();
        stats.syncs = syncs.syncs;
        stats.synced_records = syncs.records;
        stats.largest_sync_records = syncs.largest;
        stats.poisoned = log.is_poisoned();
        stats.maintenance = engine.maintenance_stats();
        for segment in log.segments().all() {
            stats.segments_compacted += u64::from(segment.is_compacted());
            let used = segment.used_words();
            let live = match segment.worth().is_counted() {
                true => segment.worth().live_words(now_ms).min(used),
                false => used,
            };
            stats.live_bytes += live * 8;
            stats.dead_bytes += (used - live) * 8;
        }
        stats
    }

    /// Gives disk space and memory back now, as far as that is worth it, and as fast as it goes.
    ///
    /// A thread of the store does the same at its leisure, unless
    /// [`Options::maintenance`] says otherwise; where both come at once one waits for the other. It
    /// blocks this thread, not the store: claims go on. What is removed are whole segments: the
    /// oldest ones of the log in which nothing, or little, is live (what is, is copied before), but
    /// never the one being written, nor one with anything in it that is not durable
    /// ([`flush`](Self::flush) before makes it so).
    ///
    /// # Errors
    ///
    /// [`MaintenanceError`] tells why not all was done that is worth it. Nothing is lost, and the
    /// next call tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = oncekey::Options::new().maintenance(false).open(dir.path())?;
    /// let report = store.maintain()?;
    /// assert_eq!(report.segments_removed, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn maintain(&self) -> Result<MaintenanceReport, MaintenanceError> {
        self.engine.maintain()
    }

    /// Hands what [`stats`](Self::stats) shows to the recorder of the `metrics` crate that this
    /// service installed (or to the thread's own), with the label `store` set to `name`. To be called
    /// when the service is scraped: nothing is exported in between, and counts begin at the open.
    ///
    /// It takes each stripe's lock for a moment, and time in proportion to the keys that are pending
    /// or interrupted. The series are listed in
    /// [the guide to metrics](crate::documentation::metrics).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = oncekey::Store::open(dir.path())?;
    /// oncekey::describe_metrics();
    /// store.export_metrics("payments");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn export_metrics(&self, name: &str) {
        crate::metrics::export_store(&self.stats(), name);
    }

    /// Makes everything that was acknowledged so far survive power loss.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Poisoned`] where a sync failed.
    pub fn flush(&self) -> Result<(), Unavailable> {
        block_on(self.engine.flush(Lead::Allowed)).map(drop)
    }

    /// [`flush`](Self::flush) without blocking.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub async fn flush_async(&self) -> Result<(), Unavailable> {
        self.engine.flush(Lead::Never).await.map(drop)
    }

    /// Makes a copy of the store in `directory` that can be opened, while the store goes on: a
    /// backup.
    ///
    /// The copy is the store as it was at one moment within the call. Everything that was
    /// acknowledged before the call is in it, under either
    /// [`Durability`](crate::Durability), and whatever is in it is
    /// durable when the call returns. Claims are not held up, but for the sync at the beginning.
    ///
    /// The directory is made if it does not exist, and must be empty. On the store's own file system
    /// all but the newest segment are hard links, which take no time and no space; the rest, and
    /// everything on another file system, is copied. Links share their bytes with the store, so a
    /// disk that fails takes both: copy a snapshot to another machine for that. Side-car index files are
    /// not part of it: its first open reads all records and makes them.
    ///
    /// A snapshot that is opened counts as [restored](crate::Options::restored), whether the option
    /// is set or not: its tokens begin far above those of the original, which may have gone on. Keys
    /// that were pending are interrupted in it, as after a crash.
    ///
    /// Blocks: in an async program call it where that is allowed.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]. What was begun is removed again. If that fails as well, or the process
    /// dies, what is left is a whole snapshot or does not open.
    ///
    /// # Examples
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use oncekey::{Claim, Fingerprint, Key, KeyState, Store};
    ///
    /// let store = Store::open(dir.path().join("store"))?;
    /// let key = Key::new("acct_1", "POST /v1/payments", "a-clients-key")?;
    /// if let Claim::Started(operation) = store.claim(&key, Fingerprint::of(b"request"))? {
    ///     operation.complete(b"paid")?;
    /// }
    ///
    /// store.snapshot(dir.path().join("backup"))?;
    /// let copy = Store::open(dir.path().join("backup"))?;
    /// assert!(matches!(copy.get(&key)?, KeyState::Completed(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self, directory: impl AsRef<Path>) -> Result<Snapshot, SnapshotError> {
        snapshot::take(&self.engine, directory.as_ref())
    }

    /// [`snapshot`](Self::snapshot) onto a simulated disk, which must be empty.
    ///
    /// # Errors
    ///
    /// As for [`snapshot`](Self::snapshot).
    #[cfg(any(test, feature = "testing"))]
    pub fn snapshot_simulated(
        &self,
        disk: &crate::fs::simulated::SimulatedDisk,
    ) -> Result<Snapshot, SnapshotError> {
        snapshot::take_into(&self.engine, disk, Path::new("simulated"))
    }

    /// Closes the store: interrupts every guard, finishes writes under way, syncs everything and
    /// unlocks the directory. Later calls on any handle or guard give [`Unavailable::Closed`];
    /// responses already handed out stay readable. Closing twice is fine.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Unavailable`] where the last sync failed: the next open recovers.
    pub fn close(&self) -> Result<(), ClaimError> {
        self.engine.close()
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        self.engine.path()
    }

    /// Store time: what `completed_at` and `expires_at` are told in.
    pub fn now(&self) -> SystemTime {
        time(self.engine.time().now_ms())
    }

    fn list(&self, held: bool) -> Result<Vec<PendingKey>, Unavailable> {
        let engine = &*self.engine;
        if engine.is_forked() {
            return Err(Unavailable::Forked);
        }
        let (now_ms, monotonic_ms) = (engine.time().now_ms(), engine.time().monotonic_ms());
        let abandon_after_ms = engine.settings().abandon_after_ms;
        let mut keys = Vec::new();
        for stripe in engine.index().stripes() {
            let stripe = stripe.lock();
            if stripe.closed {
                return Err(Unavailable::Closed);
            }
            let listed = stripe
                .live_entries()
                .filter(|live| live.phase != Phase::Changing || live.token != 0)
                .filter(|live| live.is_held(monotonic_ms) == held)
                .map(|live| PendingKey::new(live, now_ms, monotonic_ms, abandon_after_ms));
            keys.extend(listed);
        }
        Ok(keys)
    }

    pub(crate) fn engine(&self) -> &Arc<Opened> {
        &self.engine
    }

    fn level(&self, lead: Lead) -> Level {
        Level {
            durability: self.engine.settings().durability,
            lead,
        }
    }

    fn request<'a>(
        &self,
        key: &'a Key,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
        lead: Lead,
    ) -> Result<Request<'a>, ClaimError> {
        let options = options.resolve(self.engine.settings())?;
        let level = Level {
            durability: options.durability,
            lead,
        };
        Ok(Request {
            key: Cow::Borrowed(key),
            fingerprint,
            options,
            level,
        })
    }

    fn requests<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a Key, Fingerprint)>,
        options: &ClaimOptions,
        lead: Lead,
    ) -> Result<Vec<Request<'a>>, Vec<Result<Claim, ClaimError>>> {
        let keys: Vec<_> = keys.into_iter().collect();
        keys.iter()
            .map(|(key, fingerprint)| self.request(key, *fingerprint, options, lead))
            .collect::<Result<Vec<_>, _>>()
            // The options are shared, so what is wrong with them is every entry's error.
            .map_err(|error| keys.iter().map(|_| Err(error.clone())).collect())
    }

    fn resume_request<'a>(&self, ticket: &'a TicketParts, lead: Lead) -> Request<'a> {
        let durability = self.engine.settings().durability;
        Request {
            key: Cow::Borrowed(&ticket.key),
            fingerprint: ticket.fingerprint,
            options: ResolvedClaim {
                durability,
                lease_ms: ticket.lease_ms,
                retention_ms: ticket.retention_ms,
                first_sent_ms: None,
            },
            level: Level { durability, lead },
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
