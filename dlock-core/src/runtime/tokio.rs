//! The adaptor for tokio.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Runtime, random};
use crate::error::{Error, ErrorKind, Result};

/// Runs on a tokio runtime, through a [`Handle`] to it.
///
/// Because it keeps the handle, the runtime need not be entered: guards may be dropped, and futures polled,
/// on any thread and by any executor. It does not keep the runtime alive. When the runtime shuts down, tasks
/// end and sleeps complete at once.
///
/// Sleeps are tokio's, on a monotonic clock that may stand still while the machine is suspended: after a
/// resume they fire late. A lease does not rely on them: its validity is computed from
/// [`Timestamp`](crate::Timestamp), which counts suspension.
#[derive(Debug)]
pub struct Tokio {
    handle: Handle,
    life: Arc<Life>,
}

impl Tokio {
    /// Returns the current tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` outside of a tokio runtime, or in one without timers.
    pub fn current() -> Result<Arc<dyn Runtime>> {
        let handle = Handle::try_current().map_err(|e| {
            Error::new(
                ErrorKind::InvalidInput,
                "there is no current tokio runtime: call this within one, pass one with \
                    `Tokio::from_handle`, or use `runtime::own_thread()`",
            )
            .with_source(e)
        })?;
        Self::from_handle(handle)
    }

    /// Returns the tokio runtime of `handle`.
    ///
    /// # Errors
    /// `InvalidInput` if that runtime was built without timers (`enable_time`).
    pub fn from_handle(handle: Handle) -> Result<Arc<dyn Runtime>> {
        random::check()?;
        // Tokio has no way to ask whether it has timers; it panics on the first one. Tried here once, the
        // panic becomes an error.
        let probe = catch_unwind(AssertUnwindSafe(|| {
            let _entered = handle.enter();
            drop(tokio::time::sleep(Duration::ZERO));
        }));
        if probe.is_err() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the tokio runtime has no timers: build it with `enable_time` or `enable_all`",
            ));
        }
        let life = Arc::new(Life::watch(&handle));
        Ok(Arc::new(Self { handle, life }))
    }
}

impl Runtime for Tokio {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // On a runtime that has shut down, tokio drops the task; it does not panic.
        drop(self.handle.spawn(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep::new(&self.handle, self.life.clone(), duration))
    }

    fn name(&self) -> &'static str {
        "tokio"
    }
}

/// Knows whether the runtime still runs: tokio panics when a timer is polled after its shutdown. It drops all
/// tasks before it stops its timers, so a task that only waits to be dropped signals the shutdown in time.
#[derive(Debug)]
struct Life {
    running: Arc<AtomicBool>,
    watcher: AbortHandle,
}

impl Life {
    fn watch(handle: &Handle) -> Self {
        struct Ends(Arc<AtomicBool>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let running = Arc::new(AtomicBool::new(true));
        let ends = Ends(running.clone());
        let watcher = handle
            .spawn(async move {
                let _ends = ends;
                pending::<()>().await;
            })
            .abort_handle();
        Self { running, watcher }
    }

    fn is_over(&self) -> bool {
        !self.running.load(Ordering::Acquire)
    }
}

/// Sleeps share the `Life`, so the watcher ends only when no sleep is left.
impl Drop for Life {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

struct Sleep {
    /// `None` if the runtime was already gone.
    inner: Option<Pin<Box<tokio::time::Sleep>>>,
    life: Arc<Life>,
}

impl Sleep {
    fn new(handle: &Handle, life: Arc<Life>, duration: Duration) -> Self {
        let inner = if life.is_over() {
            None
        } else {
            catch_unwind(AssertUnwindSafe(|| {
                let _entered = handle.enter();
                Box::pin(tokio::time::sleep(duration))
            }))
            .ok()
        };
        Self { inner, life }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.life.is_over() {
            return Poll::Ready(());
        }
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(());
        };
        // The runtime may shut down on another thread between the check above and this poll; then the timer
        // panics. A shutdown wakes every timer, so a sleep that was pending is polled again and finds it
        // over.
        catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll(cx))).unwrap_or(Poll::Ready(()))
    }
}
