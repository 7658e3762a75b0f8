//! Handing a stored answer out: who may see it, and what it looks like then.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use std::time::SystemTime;
use tracing::{debug, error};

use crate::claim::Saved;
use crate::response::Replay;

use super::body::KeptBody;
use super::layer::Shared;
use super::problem::{Problem, ProblemKind};
use crate::stored_response::StoredResponse;

/// A replay about to be made, for
/// [`authorize_replay`](super::LayerBuilder::authorize_replay).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replaying {
    /// The head of the request that asks now, with what the layers before have put into its
    /// extensions.
    pub request: Parts,
    /// When the operation was completed.
    pub completed_at: SystemTime,
    /// The attempt that completed it.
    pub attempt: u32,
}

/// The stored answer, for those who may see it.
pub(super) async fn answer(
    shared: &Shared,
    request: &Parts,
    principal: Option<&[u8]>,
    saved: &Saved,
) -> Result<Response<KeptBody>, Problem> {
    let stored = match principal {
        Some(principal) => saved.for_principal(principal),
        None => saved.by_scope(),
    };
    let Ok(stored) = stored else {
        return Err(refused(shared, "The answer was made for another caller."));
    };
    if let Some(authorize) = &shared.settings.authorize_replay {
        let replaying = Replaying {
            request: request.clone(),
            completed_at: saved.completed_at(),
            attempt: saved.attempt(),
        };
        if !authorize(replaying).await {
            let detail = "The right to see this answer was withdrawn.";
            return Err(refused(shared, detail));
        }
    }
    let Replay::Response(bytes) = stored else {
        return Err(not_replayable(
            shared,
            "The answer was too large to be kept.",
        ));
    };
    match StoredResponse::decode(Bytes::from(bytes)) {
        Ok(stored) => {
            shared.counters.replayed.add();
            debug!(status = stored.status.as_u16(), "replayed");
            Ok(built(shared, stored, saved.expires_at()))
        }
        Err(error) => {
            error!(%error, "a stored answer cannot be read");
            let detail = "The answer was stored in a form that this version does not read.";
            Err(not_replayable(shared, detail))
        }
    }
}

fn refused(shared: &Shared, detail: &'static str) -> Problem {
    shared.counters.replays_refused.add();
    debug!("a replay was refused");
    Problem::new(ProblemKind::ReplayRefused, detail)
}

fn not_replayable(shared: &Shared, detail: &'static str) -> Problem {
    shared.counters.not_replayable.add();
    Problem::new(ProblemKind::NotReplayable, detail)
}

fn built(shared: &Shared, stored: StoredResponse, expires_at: SystemTime) -> Response<KeptBody> {
    let StoredResponse {
        status,
        headers,
        trailers,
        body,
    } = stored;
    let has_length = trailers.is_empty() && may_have_body(status);
    let len = body.len();
    let mut response = Response::new(KeptBody::whole(body, trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let headers = response.headers_mut();
    if has_length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
    }
    let settings = &shared.settings;
    if let Some(marker) = &settings.replay_marker {
        headers.insert(marker, HeaderValue::from_static("true"));
    }
    if let Some(should_retry) = &settings.should_retry
        && status.is_server_error()
    {
        headers.insert(should_retry, HeaderValue::from_static("false"));
    }
    shared.add_expiry(headers, expires_at);
    response
}

fn may_have_body(status: StatusCode) -> bool {
    !status.is_informational()
        && status != StatusCode::NO_CONTENT
        && status != StatusCode::NOT_MODIFIED
}
