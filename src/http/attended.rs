//! The owner's work, driven by its request for as long as there is one.
//!
//! A task for each handler would cost more than most of what the layer does. So the work is polled by
//! the request that began it, and goes on in a task of its own from the moment at which the request
//! is dropped (the client hung up, or a time-out) or has its answer before the work ends.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub(super) struct Attended {
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    runtime: Handle,
}

impl Attended {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
            runtime: Handle::current(),
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Work that panics is gone with its guard, and is not polled again by a task.
        let Some(mut work) = self.work.take() else {
            return Poll::Ready(());
        };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }

    /// Leaves what is left of the work to a task; `None` if nothing is.
    pub(super) fn detach(&mut self) -> Option<JoinHandle<()>> {
        let work = self.work.take()?;
        Some(self.runtime.spawn(work))
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        drop(self.detach());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_when_its_request_is_dropped_wherever_that_is() {
        for is_elsewhere in [false, true] {
            let (go, gone) = oneshot::channel();
            let (told, done) = oneshot::channel();
            let mut attended = Attended::new(async move {
                gone.await.unwrap();
                told.send(()).unwrap();
            });
            let once = poll_fn(|context| Poll::Ready(attended.poll(context).is_pending()));
            assert!(once.await);
            match is_elsewhere {
                // No runtime there.
                true => std::thread::spawn(move || drop(attended)).join().unwrap(),
                false => drop(attended),
            }
            go.send(()).unwrap();
            done.await.unwrap();
        }
    }

    #[tokio::test]
    async fn work_that_is_done_or_panicked_is_left_to_nobody() {
        let mut context = Context::from_waker(Waker::noop());
        let mut done = Attended::new(async {});
        assert!(done.poll(&mut context).is_ready());
        assert!(done.detach().is_none());
        let mut panics = Attended::new(async { panic!("by the handler") });
        catch_unwind(AssertUnwindSafe(|| panics.poll(&mut context))).unwrap_err();
        assert!(panics.detach().is_none());
    }
}
