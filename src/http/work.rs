//! The owner's part: the handler runs, whatever becomes of its client, and what comes of it decides
//! about the key.
//!
//! Whatever way the work ends, the guard ends with it: completed, released, or dropped, which leaves
//! the key interrupted. An answer of known length is stored before the client gets any of it; one
//! that is passed on while it is made is stored before the client sees its end.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use tokio::sync::{mpsc, oneshot};
use tower_service::Service;
use tracing::{debug, warn};

use crate::error::{FinishError, WriteError};
use crate::operation::Operation;

use super::body::{BoxError, KeptBody, RequestBody};
use super::headers;
use super::interrupted::Reconciled;
use super::layer::Shared;
use super::operation::Owner;
use super::policy::StatusAction;
use super::problem::{Problem, ProblemKind};
use crate::stored_response::StoredResponse;

/// Frames of a body that is passed on, made but not yet taken by the client.
const FRAMES_AHEAD: usize = 4;

/// Where the answer goes. A client that is gone takes nothing, and that stops nobody.
pub(super) type AnswerTo<E> = oneshot::Sender<Result<Response<KeptBody>, E>>;

/// One owned operation and how to end it.
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) owner: Owner,
    pub(super) is_interrupted: bool,
    pub(super) principal: Option<Vec<u8>>,
    pub(super) response_bytes_max: usize,
}

/// What is left of an answer's body when it has ended.
enum Kept {
    Whole(Bytes, HeaderMap),
    TooLarge,
}

impl Work {
    /// Runs the handler, or what is to be done in its place.
    pub(super) async fn run<S, B, A>(
        self,
        mut handler: S,
        mut request: Request<Bytes>,
        answer_to: AnswerTo<S::Error>,
    ) where
        S: Service<Request<RequestBody<B>>, Response = Response<A>>,
        A: Body<Data = Bytes>,
        A::Error: Into<BoxError>,
    {
        let counters = &self.shared.counters;
        let operation = self.owner.handle();
        if self.is_interrupted {
            let on_interrupted = &self.shared.on_interrupted;
            match on_interrupted.decide(operation.clone(), &request).await {
                Reconciled::Run => counters.reconciled.add(),
                Reconciled::Answer(answer) => {
                    counters.reconciled.add();
                    return self.answer(answer.map(Full::new), answer_to).await;
                }
                Reconciled::Unknown => {
                    counters.outcome_unknown.add();
                    let problem = self.shared.problem(&outcome_unknown());
                    self.owner.give_up();
                    return deliver(answer_to, Ok(problem));
                }
            }
        } else {
            counters.started.add();
        }
        request.extensions_mut().insert(operation);
        let request = request.map(|body| Either::Left(Full::new(body)));
        match handler.call(request).await {
            Ok(answer) => self.answer(answer, answer_to).await,
            Err(error) => {
                self.interrupt("the handler gave an error");
                deliver(answer_to, Err(error));
            }
        }
    }

    async fn answer<A, E>(self, answer: Response<A>, answer_to: AnswerTo<E>)
    where
        A: Body<Data = Bytes>,
        A::Error: Into<BoxError>,
    {
        let (mut head, body) = answer.into_parts();
        // The layer's own headers mean something else when a handler sets them.
        for name in self.shared.own_headers() {
            head.headers.remove(name);
        }
        let size = body.size_hint();
        let is_known = size
            .exact()
            .is_some_and(|size| size <= self.response_bytes_max as u64);
        let body = body.map_err(Into::into);
        if is_known {
            self.answer_whole(head, body, answer_to).await;
        } else {
            let (frames_to, frames) = mpsc::channel(FRAMES_AHEAD);
            let left = size.exact().or_else(|| content_length(&head.headers));
            let passing = Response::from_parts(head.clone(), KeptBody::passing(frames, size));
            deliver(answer_to, Ok(passing));
            // The request takes the head, and a task the rest: what happens to the body happens to
            // its reader.
            tokio::task::yield_now().await;
            self.pass_on(head, body, left, frames_to).await;
        }
    }

    /// Reads the body, stores the answer, then gives it out.
    async fn answer_whole<A, E>(self, mut head: Parts, body: A, answer_to: AnswerTo<E>)
    where
        A: Body<Data = Bytes, Error = BoxError>,
    {
        let collected = match body.collect().await {
            Ok(collected) => collected,
            Err(error) => {
                self.interrupt("the answer's body failed");
                let broken = Response::from_parts(head, KeptBody::broken(error));
                return deliver(answer_to, Ok(broken));
            }
        };
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let data = collected.to_bytes();
        let shared = Arc::clone(&self.shared);
        let kept = Kept::Whole(data.clone(), trailers.clone());
        let answer = match self.finish(&head, kept).await {
            Ok(expires_at) => {
                if let Some(expires_at) = expires_at {
                    shared.add_expiry(&mut head.headers, expires_at);
                }
                Response::from_parts(head, KeptBody::whole(data, trailers))
            }
            Err(problem) => shared.problem(&problem),
        };
        deliver(answer_to, Ok(answer));
    }

    /// Passes the body on while keeping it, as far as it may be kept. The end comes with the end of
    /// the task.
    ///
    /// Where the client knows how much is `left`, the last of it is the end, and is held back.
    async fn pass_on<A>(
        self,
        head: Parts,
        body: A,
        mut left: Option<u64>,
        frames_to: mpsc::Sender<Result<Frame<Bytes>, BoxError>>,
    ) where
        A: Body<Data = Bytes, Error = BoxError>,
    {
        let mut body = std::pin::pin!(body);
        let (mut data, mut trailers) = (BytesMut::new(), HeaderMap::new());
        let (mut is_too_large, mut is_client_there) = (false, true);
        let mut last = None;
        while let Some(frame) = body.as_mut().frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    self.interrupt("the answer's body failed");
                    return drop(frames_to.send(Err(error)).await);
                }
            };
            if let Some(bytes) = frame.data_ref() {
                is_too_large |= data.len() + bytes.len() > self.response_bytes_max;
                if is_too_large {
                    data = BytesMut::new();
                } else {
                    data.extend_from_slice(bytes);
                }
                left = left.map(|left| left.saturating_sub(bytes.len() as u64));
            } else if let Some(fields) = frame.trailers_ref() {
                trailers = fields.clone();
            }
            let next = match left {
                Some(0) => last.replace(frame),
                _ => Some(frame),
            };
            if let Some(frame) = next {
                is_client_there = is_client_there && frames_to.send(Ok(frame)).await.is_ok();
            }
            if is_too_large && !is_client_there {
                // Nobody reads it, and it can't be kept: it need not be made, and may be endless.
                break;
            }
        }
        let kept = match is_too_large {
            true => Kept::TooLarge,
            false => Kept::Whole(data.freeze(), trailers),
        };
        let end = match self.finish(&head, kept).await {
            Ok(_) => last.map(Ok),
            Err(_) => {
                let error = "the answer could not be stored: ask again with the same key";
                Some(Err(error.into()))
            }
        };
        if let Some(end) = end {
            drop(frames_to.send(end).await);
        }
    }

    /// Ends the operation as its answer's status says. When the stored answer expires, if it was
    /// stored; what to answer instead, if it should have been and was not.
    async fn finish(self, head: &Parts, kept: Kept) -> Result<Option<SystemTime>, Problem> {
        let shared = Arc::clone(&self.shared);
        let is_released = self.owner.is_released();
        let is_first = self.owner.attempt() == 1;
        let action = match shared.settings.policy.action(head.status) {
            _ if is_released => StatusAction::Release,
            StatusAction::Release if !is_first => StatusAction::Interrupt,
            action => action,
        };
        debug!(
            status = head.status.as_u16(),
            ?action,
            "the handler answered"
        );
        if action == StatusAction::Interrupt {
            self.interrupt("the answer leaves the outcome open");
            return Ok(None);
        }
        let principal = self.principal;
        let Some(operation) = self.owner.take().await else {
            return Err(shared.failed(&WriteError::LeaseLost { new_attempt: None }));
        };
        if action == StatusAction::Release {
            match operation.release_async().await {
                Ok(()) => shared.counters.released.add(),
                // Interrupted then, which a retry is told. The answer is true all the same.
                Err(error) => drop(shared.failed(error.error())),
            }
            return Ok(None);
        }
        let encoded = match kept {
            Kept::Whole(body, trailers) => StoredResponse {
                status: head.status,
                headers: headers::stored(&head.headers, &shared.settings.never_replayed),
                trailers: headers::stored(&trailers, &shared.settings.never_replayed),
                body,
            }
            .encode(),
            Kept::TooLarge => None,
        };
        complete(&shared, operation, encoded, principal)
            .await
            .map(Some)
    }

    /// Gives the guard up without a word.
    fn interrupt(self, why: &'static str) {
        debug!(attempt = self.owner.attempt(), why, "interrupted");
    }
}

/// Stores the answer, or, where it is too large for the store or its disk, that there was one.
async fn complete(
    shared: &Shared,
    operation: Operation,
    encoded: Option<Bytes>,
    principal: Option<Vec<u8>>,
) -> Result<SystemTime, Problem> {
    let for_principal = |mut completion: crate::completion::Completion<Bytes>| {
        if let Some(principal) = &principal {
            completion = completion.principal(principal.clone());
        }
        completion
    };
    let operation = match encoded {
        None => operation,
        Some(bytes) => {
            let completion = for_principal(operation.complete_with(bytes));
            match completion.commit_async().await {
                Ok(saved) => {
                    shared.counters.stored.add();
                    return Ok(saved.expires_at());
                }
                Err(error) => too_large(shared, error)?,
            }
        }
    };
    let completion = for_principal(operation.complete_with(Bytes::new()).without_response());
    match completion.commit_async().await {
        Ok(saved) => {
            shared.counters.stored_without_body.add();
            warn!("an answer was too large to be kept: its key is done, and not replayable");
            Ok(saved.expires_at())
        }
        Err(error) => Err(shared.failed(error.error())),
    }
}

/// The guard, where only the size was in the way.
fn too_large(shared: &Shared, error: FinishError) -> Result<Operation, Problem> {
    let is_size = matches!(
        error.error(),
        WriteError::ResponseTooLarge { .. }
            | WriteError::OutOfSpace(_)
            | WriteError::LimitReached(_)
    );
    if !is_size {
        return Err(shared.failed(error.error()));
    }
    let cause = error.error().clone();
    error.into_operation().ok_or_else(|| shared.failed(&cause))
}

pub(super) fn outcome_unknown() -> Problem {
    Problem::new(
        ProblemKind::OutcomeUnknown,
        "An earlier attempt was interrupted and may have been carried out. \
         Look before you try again under another key.",
    )
}

/// The length that a handler promises for a body that does not know it.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A client that is gone does not get it.
fn deliver<E>(answer_to: AnswerTo<E>, answer: Result<Response<KeptBody>, E>) {
    drop(answer_to.send(answer));
}
