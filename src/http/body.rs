//! Bodies: the request's, which the handler gets in one piece, and the answer's.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::problem::{Problem, ProblemKind};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The request's body as the handler gets it: read by the layer, or as it came where the layer does
/// nothing with a request.
pub type RequestBody<B> = Either<Full<Bytes>, B>;

/// The answer's body: the handler's own where the layer does nothing with a request, [`KeptBody`]
/// otherwise.
pub type ResponseBody<B> = Either<B, KeptBody>;

/// Reads a request's whole body, up to a limit. Its trailers are dropped.
pub(super) async fn read<B>(body: B, bytes_max: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        let detail = format!("The body is over {bytes_max} bytes.");
        Problem::new(ProblemKind::BodyTooLarge, detail)
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    match Limited::new(body, bytes_max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(Problem::new(
            ProblemKind::BodyUnreadable,
            "The connection broke, or the body is malformed.",
        )),
    }
}

/// The body of an answer that went through the layer.
///
/// It is known as a whole (replays, problems, answers of known length), or it is passed on as the
/// handler makes it. A body that is passed on ends only when what became of the key is stored: a
/// client that has seen the end can rely on it.
pub struct KeptBody(Kind);

enum Kind {
    Whole {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
    },
    Passing {
        frames: mpsc::Receiver<Result<Frame<Bytes>, BoxError>>,
        /// The handler's task, which ends after the frames.
        task: Option<JoinHandle<()>>,
        left: SizeHint,
    },
    Broken(Option<BoxError>),
}

impl KeptBody {
    pub(super) fn whole(data: Bytes, trailers: HeaderMap) -> Self {
        Self(Kind::Whole {
            data: (!data.is_empty()).then_some(data),
            trailers: (!trailers.is_empty()).then_some(trailers),
        })
    }

    pub(super) fn passing(
        frames: mpsc::Receiver<Result<Frame<Bytes>, BoxError>>,
        size: SizeHint,
    ) -> Self {
        Self(Kind::Passing {
            frames,
            task: None,
            left: size,
        })
    }

    pub(super) fn broken(error: BoxError) -> Self {
        Self(Kind::Broken(Some(error)))
    }

    /// Ties a body that is passed on to the task that makes it, whose panic goes on here.
    pub(super) fn made_by(mut self, maker: JoinHandle<()>) -> Self {
        if let Kind::Passing { task, .. } = &mut self.0 {
            *task = Some(maker);
        }
        self
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole { data, trailers } => Poll::Ready(
                data.take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers))
                    .map(Ok),
            ),
            Kind::Passing { frames, task, left } => {
                if let Some(frame) = ready!(frames.poll_recv(context)) {
                    if let Ok(frame) = &frame {
                        *left = rest(left, frame);
                    }
                    return Poll::Ready(Some(frame));
                }
                let Some(maker) = task else {
                    return Poll::Ready(None);
                };
                let ended = ready!(Pin::new(maker).poll(context));
                *task = None;
                match ended {
                    Ok(()) => Poll::Ready(None),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(error) => Poll::Ready(Some(Err(error.into()))),
                }
            }
            Kind::Broken(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(
            self.0,
            Kind::Whole {
                data: None,
                trailers: None
            }
        )
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            Kind::Passing { left, .. } => *left,
            Kind::Broken(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for KeptBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptBody").field(&self.size_hint()).finish()
    }
}

/// What is left of an exact size after a frame.
fn rest(left: &SizeHint, frame: &Frame<Bytes>) -> SizeHint {
    match (left.exact(), frame.data_ref()) {
        (Some(exact), Some(data)) => SizeHint::with_exact(exact.saturating_sub(data.len() as u64)),
        _ => *left,
    }
}
