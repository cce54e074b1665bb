//! Tasks of a rule.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use dlock_core::Runtime;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{AbortHandle, Abortable, Aborted};

/// A task started with [`Cx::spawn`](crate::Cx::spawn). Awaiting it gives its result; dropping it lets it run
/// on.
#[derive(Debug)]
#[must_use = "await it, or cancel it, or call detach()"]
pub struct Task<T> {
    abort: AbortHandle,
    result: oneshot::Receiver<Ended<T>>,
    done: Arc<AtomicBool>,
}

/// What it gave, or that it was cancelled; or its panic.
type Ended<T> = Result<Result<T, Aborted>, Box<dyn Any + Send>>;

impl<T: Send + 'static> Task<T> {
    pub(crate) fn start<F>(runtime: &dyn Runtime, future: F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (abort, registration) = AbortHandle::new_pair();
        let (tell, result) = oneshot::channel();
        let done = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&done);
        runtime.spawn(
            async move {
                // The future is dropped before the result is sent. So when a cancelled task has ended, its
                // destructors have run.
                let ended = AssertUnwindSafe(Abortable::new(future, registration))
                    .catch_unwind()
                    .await;
                ends.store(true, Ordering::Release);
                let _ = tell.send(ended);
            }
            .boxed(),
        );
        Self { abort, result, done }
    }

    /// Drops the task's future at its next poll, and waits for that. Returns the result, if the task ended
    /// first.
    ///
    /// # Cancel safety
    /// If dropped, the task is still cancelled, without waiting for it.
    pub async fn cancel(self) -> Option<T> {
        self.abort.abort();
        match self.result.await {
            Ok(Ok(Ok(value))) => Some(value),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Ok(Ok(Err(Aborted))) | Err(oneshot::Canceled) => None,
        }
    }

    /// Whether it has ended, in any way.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Detaches it: it keeps running.
    pub fn detach(self) {}
}

/// # Panics
/// If the task panicked, with its panic; if the runtime dropped it.
impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.result.poll_unpin(cx).map(|ended| match ended {
            Ok(Ok(Ok(value))) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Ok(Ok(Err(Aborted))) | Err(oneshot::Canceled) => {
                panic!("the runtime dropped a task that a rule waits for")
            }
        })
    }
}
