//! A runtime on a thread of its own.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use super::{Runtime, random};
use crate::error::{Error, ErrorKind, Result};
use crate::timestamp::Timestamp;

/// A runtime on a dedicated thread, named `dlock-runtime`, that does nothing but dlock's upkeep.
///
/// For programs without an async runtime, and for those whose executor is sometimes blocked by computing: the
/// renewals of a lock should not wait behind that. With the feature `tokio` the thread runs a tokio runtime
/// of its own, else smol's executor.
///
/// The thread ends by itself when this runtime, its tasks and its sleeps are all dropped. Nobody waits for it
/// to end, so dropping the last of them never blocks.
///
/// # Errors
/// `Unavailable` if the thread or its executor cannot be started.
pub fn own_thread() -> Result<Arc<dyn Runtime>> {
    random::check()?;
    let (ended, all_gone) = oneshot::channel::<Never>();
    let life = Arc::new(Life { _ended: ended });
    let executor = Executor::start(all_gone)?;
    Ok(Arc::new(OwnThread { executor, life }))
}

struct OwnThread {
    executor: Executor,
    life: Arc<Life>,
}

/// Dropped when the runtime and everything that was started on it is gone; the thread waits for that.
struct Life {
    _ended: oneshot::Sender<Never>,
}

enum Never {}

impl OwnThread {
    fn keeping_alive<F: Future<Output = ()> + Send + 'static>(&self, future: F) -> BoxFuture<'static, ()> {
        let life = self.life.clone();
        async move {
            future.await;
            drop(life);
        }
        .boxed()
    }
}

impl Runtime for OwnThread {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.executor.spawn(self.keeping_alive(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.keeping_alive(self.executor.sleep(duration))
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        random::fill(buffer);
    }

    fn name(&self) -> &'static str {
        self.executor.name()
    }
}

impl fmt::Debug for OwnThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnThread")
            .field("executor", &self.executor.name())
            .finish_non_exhaustive()
    }
}

fn start_thread(body: impl FnOnce() + Send + 'static) -> Result<()> {
    // The join handle is dropped: joining would block whoever drops the last guard.
    std::thread::Builder::new()
        .name("dlock-runtime".into())
        .spawn(body)
        .map(drop)
        .map_err(|e| {
            Error::new(
                ErrorKind::Unavailable,
                "the thread of the runtime cannot be started",
            )
            .with_source(e)
        })
}

#[cfg(feature = "tokio")]
struct Executor(Arc<dyn Runtime>);

#[cfg(feature = "tokio")]
impl Executor {
    fn start(all_gone: oneshot::Receiver<Never>) -> Result<Self> {
        // `enable_all` means timers, and sockets if any other crate of the build turned them on (drivers need
        // them).
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, "a tokio runtime cannot be started").with_source(e)
            })?;
        let tokio = super::Tokio::from_handle(runtime.handle().clone())?;
        start_thread(move || {
            // An error is how the receiver says that every sender is gone.
            let _ = runtime.block_on(all_gone);
        })?;
        Ok(Self(tokio))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    fn name(&self) -> &'static str {
        "own thread (tokio)"
    }
}

#[cfg(not(feature = "tokio"))]
struct Executor(Arc<smol::Executor<'static>>);

#[cfg(not(feature = "tokio"))]
impl Executor {
    fn start(all_gone: oneshot::Receiver<Never>) -> Result<Self> {
        let executor = Arc::new(smol::Executor::new());
        let runs = executor.clone();
        start_thread(move || {
            let _ = smol::block_on(runs.run(all_gone));
        })?;
        Ok(Self(executor))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // A panic in one task would unwind through the executor and end the thread under all others.
        self.0
            .spawn(std::panic::AssertUnwindSafe(task).catch_unwind().map(drop))
            .detach();
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        smol::Timer::after(duration).map(drop).boxed()
    }

    fn name(&self) -> &'static str {
        "own thread (smol)"
    }
}
