//! The embedded store as a backend.

use std::time::SystemTime;

use bytes::Bytes;

use crate::backend::{Answer, Backend, BackendLimits, Guard, Outcome, Progress};
use crate::claim::{Claim, InProgress, Saved};
use crate::completion::Completion;
use crate::error::{AdminError, ClaimError, FinishError, WriteError};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::listing::{KeyState, PendingKey};
use crate::operation::{Operation, Previous};
use crate::options::{ClaimOptions, ClaimOptionsError};
use crate::store::{Forget, Store};
use crate::token::Token;

impl Backend for Store {
    type Guard = Operation;

    async fn claim(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<Operation>, ClaimError> {
        let claim = self.claim_with_async(key, fingerprint, options).await?;
        Ok(claim.into())
    }

    async fn wait(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        options: ClaimOptions,
    ) -> Result<Outcome<Operation>, ClaimError> {
        match self.claim_with_async(key, fingerprint, options).await? {
            Claim::InProgress(progress) => Ok(progress.wait_async().await?.into()),
            claim => Ok(claim.into()),
        }
    }

    async fn look(&self, key: &Key) -> Result<KeyState, ClaimError> {
        self.get_async(key).await
    }

    async fn forget(&self, key: &Key, forget: Forget) -> Result<bool, AdminError> {
        self.forget_async(key, forget).await
    }

    async fn interrupt(&self, key: &Key, token: Token) -> Result<(), AdminError> {
        Store::interrupt(self, key, token)
    }

    async fn interrupted(&self, max: usize) -> Result<Vec<PendingKey>, ClaimError> {
        let mut keys = Store::interrupted(self)?;
        keys.sort_by_key(|pending| pending.created_at);
        keys.truncate(max);
        Ok(keys)
    }

    fn downstream_key(&self, key: &Key, fingerprint: Fingerprint, label: &str) -> String {
        self.derive(key, fingerprint, label)
    }

    fn limits(&self) -> BackendLimits {
        let settings = self.settings();
        BackendLimits {
            key_part_bytes: settings.key_part_bytes_max,
            response_bytes: settings.response_bytes_max,
        }
    }

    fn check(&self, options: &ClaimOptions) -> Result<(), ClaimOptionsError> {
        options.resolve(self.settings()).map(drop)
    }

    fn now(&self) -> SystemTime {
        Store::now(self)
    }
}

impl Operation {
    /// The completion with an answer.
    pub(crate) fn completion(self, answer: Answer<'_>) -> Completion<&[u8]> {
        let mut completion = self.complete_with(answer.response.unwrap_or_default());
        if answer.response.is_none() {
            completion = completion.without_response();
        }
        if let Some(principal) = answer.principal {
            completion = completion.principal(principal);
        }
        if let Some(retention) = answer.retention {
            completion = completion.retention(retention);
        }
        completion
    }
}

impl Guard for Operation {
    fn key(&self) -> &Key {
        Operation::key(self)
    }

    fn fingerprint(&self) -> Fingerprint {
        Operation::fingerprint(self)
    }

    fn attempt(&self) -> u32 {
        Operation::attempt(self)
    }

    fn token(&self) -> Token {
        Operation::token(self)
    }

    fn started_at(&self) -> SystemTime {
        Operation::started_at(self)
    }

    fn created_at(&self) -> SystemTime {
        Operation::created_at(self)
    }

    fn previous(&self) -> Option<Previous> {
        Operation::previous(self)
    }

    fn last_checkpoint(&self) -> Option<Bytes> {
        Operation::last_checkpoint(self).cloned()
    }

    fn downstream_key(&self, label: &str) -> String {
        Operation::downstream_key(self, label)
    }

    async fn checkpoint(&mut self, note: &[u8]) -> Result<(), WriteError> {
        self.checkpoint_async(note).await
    }

    async fn renew(&mut self) -> Result<(), WriteError> {
        Operation::renew(self)
    }

    async fn complete(self, answer: Answer<'_>) -> Result<Saved, FinishError> {
        self.completion(answer).commit_async().await
    }

    async fn release(self) -> Result<(), FinishError> {
        self.release_async().await
    }

    fn give_back(self) {
        Operation::give_back(self);
    }
}

impl From<Claim> for Outcome<Operation> {
    fn from(claim: Claim) -> Self {
        match claim {
            Claim::Started(operation) => Self::Started(operation),
            Claim::Interrupted(operation) => Self::Interrupted(operation),
            Claim::InProgress(progress) => Self::InProgress((&progress).into()),
            Claim::Completed(saved) => Self::Completed(saved),
            Claim::Mismatch(mismatch) => Self::Mismatch(mismatch),
            Claim::TooLate(too_late) => Self::TooLate(too_late),
        }
    }
}

impl From<&InProgress> for Progress {
    fn from(progress: &InProgress) -> Self {
        Self {
            attempt: progress.attempt(),
            since: progress.since(),
            lease_left: progress.lease_left(),
        }
    }
}
