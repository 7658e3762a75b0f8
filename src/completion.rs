//! A completion with options of its own, and with what is stored together with it.

use std::time::Duration;

use crate::claim::Saved;
use crate::engine::{Attachments, Finish, Level, Outgoing, VersionChange};
use crate::error::FinishError;
use crate::log::commit::Lead;
use crate::operation::{Operation, completed};
use crate::options::{ClaimOptions, Durability};
use crate::version::Expected;

/// A completion with options of its own, from [`Operation::complete_with`]. Dropped without
/// [`commit`](Self::commit) it leaves the key interrupted.
#[must_use = "nothing is stored before commit"]
#[derive(Debug)]
pub struct Completion<R> {
    operation: Operation,
    response: Option<R>,
    principal: Option<Vec<u8>>,
    options: ClaimOptions,
    durability: Durability,
    attachments: Attachments,
}

impl<R> Completion<R> {
    pub(crate) fn new(operation: Operation, response: R) -> Self {
        let durability = operation.grant().level.durability;
        Self {
            operation,
            response: Some(response),
            principal: None,
            options: ClaimOptions::new(),
            durability,
            attachments: Attachments::default(),
        }
    }
}

impl<R: AsRef<[u8]>> Completion<R> {
    /// How long the result answers, from now on: 1 second to 10 years. The claim's by default.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.options = self.options.retention(retention);
        self
    }

    /// For whom the result is: only [`Saved::for_principal`] with the same bytes gives it out. At
    /// most 255 bytes.
    pub fn principal(mut self, principal: impl Into<Vec<u8>>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// Marks the operation as done and keeps no response: a duplicate learns that and is not run.
    pub fn without_response(mut self) -> Self {
        self.response = None;
        self
    }

    /// How durable it must be before `commit` returns. The claim's by default.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the version of an entity in the same record: the result and all versions are stored, or
    /// nothing is.
    ///
    /// `entity` is any name of 1 to 255 bytes ([`Options::max_key_part`](crate::Options::max_key_part)),
    /// the same for all operations of the store. `expected` is the version that it must have now, 0 for
    /// one that was never seen, or [`Expected::Older`](crate::Expected::Older) for any below `new`. An
    /// event that comes late or again is refused with
    /// [`WriteError::StaleVersion`](crate::WriteError::StaleVersion), one that comes too early with
    /// [`WriteError::VersionGap`](crate::WriteError::VersionGap): nothing is changed, and the error has
    /// the guard. Of any number who set a version at once exactly one is not refused.
    ///
    /// A version is kept for
    /// [`Options::version_retention`](crate::Options::version_retention) from when it was last set,
    /// however long the result is. One completion takes
    /// [`limits::ATTACHED_MAX`](crate::limits::ATTACHED_MAX) of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # use oncekey::{Claim, Fingerprint, Key, Operation, Store, WriteError};
    /// # let store = Store::open(dir.path())?;
    /// # let claim = |id: &str| -> Result<Operation, Box<dyn std::error::Error>> {
    /// #     match store.claim(&Key::new("", "orders", id)?, Fingerprint::none())? {
    /// #         Claim::Started(operation) => Ok(operation),
    /// #         other => panic!("{other:?}"),
    /// #     }
    /// # };
    /// let (approved, cancelled) = (claim("event-1")?, claim("event-2")?);
    /// cancelled.complete_with(b"").version("order/42", 0, 2).commit()?;
    /// // The event before it comes late.
    /// let refused = approved.complete_with(b"").version("order/42", 0, 1).commit().unwrap_err();
    /// let WriteError::StaleVersion(stale) = refused.error() else { panic!("{refused}") };
    /// assert_eq!(stale.current, 2);
    /// // The guard still holds its key: the event is settled without a change.
    /// refused.into_operation().expect("held").complete(b"came late")?;
    /// assert_eq!(store.version("order/42")?.map(|version| version.number), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn version(
        mut self,
        entity: impl Into<Vec<u8>>,
        expected: impl Into<Expected>,
        new: u64,
    ) -> Self {
        self.attachments.versions.push(VersionChange {
            entity: entity.into(),
            expected: expected.into(),
            new,
        });
        self
    }

    /// Sends a message: it is stored in the same record, and delivered by the [outbox](crate::outbox)
    /// until it is acknowledged. The result and all messages are stored, or nothing is.
    ///
    /// Messages of one topic and key are delivered in the order in which they were stored. Each is 0 to
    /// 255 bytes ([`Options::max_key_part`](crate::Options::max_key_part)); the payload is at most as
    /// long as a response ([`Options::max_response`](crate::Options::max_response)). One completion takes
    /// [`limits::ATTACHED_MAX`](crate::limits::ATTACHED_MAX) messages and versions. Too many in all are
    /// [`WriteError::OutboxFull`](crate::WriteError::OutboxFull), whose error has the guard.
    pub fn send(
        mut self,
        topic: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        self.attachments.messages.push(Outgoing {
            topic: topic.into(),
            key: key.into(),
            payload: payload.into(),
        });
        self
    }

    /// Stores the result.
    ///
    /// # Errors
    ///
    /// As for [`Operation::complete`].
    pub fn commit(self) -> Result<Saved, FinishError> {
        let (this, retention_ms) = self.with_retention()?;
        let level = this.level(Lead::Allowed);
        let finish = finish(
            &this.response,
            &this.principal,
            &this.attachments,
            retention_ms,
        );
        this.operation.finish_blocking(finish, level).map(completed)
    }

    /// [`commit`](Self::commit) without blocking, with the promise of
    /// [`Operation::complete_async`].
    ///
    /// # Errors
    ///
    /// As for [`Operation::complete`].
    pub async fn commit_async(self) -> Result<Saved, FinishError> {
        let (this, retention_ms) = self.with_retention()?;
        let level = this.level(Lead::Never);
        let finish = finish(
            &this.response,
            &this.principal,
            &this.attachments,
            retention_ms,
        );
        this.operation.finish(finish, level).await.map(completed)
    }

    /// With how long the result is kept, in ms; an option out of range gives the guard back.
    fn with_retention(self) -> Result<(Self, u64), FinishError> {
        if !self.options.has_retention() {
            let retention_ms = self.operation.grant().retention_ms;
            return Ok((self, retention_ms));
        }
        match self.options.resolve(self.operation.settings()) {
            Ok(resolved) => Ok((self, resolved.retention_ms)),
            Err(error) => Err(FinishError::held(error.into(), self.operation)),
        }
    }

    fn level(&self, lead: Lead) -> Level {
        Level {
            durability: self.durability,
            lead,
        }
    }
}

fn finish<'a, R: AsRef<[u8]>>(
    response: &'a Option<R>,
    principal: &'a Option<Vec<u8>>,
    attachments: &'a Attachments,
    retention_ms: u64,
) -> Finish<'a> {
    Finish::Complete {
        response: response.as_ref().map(AsRef::as_ref),
        principal: principal.as_deref(),
        retention_ms,
        attachments: (!attachments.is_empty()).then_some(attachments),
    }
}
