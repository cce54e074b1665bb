//! A runtime on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use super::{Runtime, random};
use crate::error::{Error, ErrorKind, Result};

/// Starts a runtime on a thread of its own, named `dlock-runtime`, that does nothing but dlock's upkeep.
///
/// For programs without an async runtime, and for those whose executor is sometimes blocked by computation:
/// the renewals of a lock should not wait for that. With the feature `tokio` the thread runs a tokio runtime,
/// otherwise smol's executor.
///
/// The thread ends when this runtime, its tasks and its sleeps are all dropped. Nothing waits for that, so
/// dropping the last of them never blocks.
///
/// # Errors
/// `Unavailable` if the thread or its executor cannot be started.
pub fn own_thread() -> Result<Arc<dyn Runtime>> {
    random::check()?;
    let (life, all_gone) = oneshot::channel();
    let (life, inner) = (Arc::new(life), start(all_gone)?);
    Ok(Arc::new(OwnThread { inner, life }))
}

#[derive(Debug)]
struct OwnThread {
    inner: Arc<dyn Runtime>,
    /// Dropped when the runtime and everything that was started on it is gone; the thread waits for that.
    life: Life,
}

type Life = Arc<oneshot::Sender<Never>>;

#[derive(Debug)]
enum Never {}

async fn keeping_alive(life: Life, future: BoxFuture<'static, ()>) {
    future.await;
    drop(life);
}

impl Runtime for OwnThread {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(keeping_alive(self.life.clone(), task).boxed());
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        keeping_alive(self.life.clone(), self.inner.sleep(duration)).boxed()
    }

    fn name(&self) -> &'static str {
        match cfg!(feature = "tokio") {
            true => "own thread (tokio)",
            false => "own thread (smol)",
        }
    }
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |e| Error::new(ErrorKind::Unavailable, what).with_source(e)
}

fn start_thread(body: impl FnOnce() + Send + 'static) -> Result<()> {
    // The join handle is dropped: joining would block the thread that drops the last guard.
    let thread = std::thread::Builder::new()
        .name("dlock-runtime".into())
        .spawn(body);
    thread
        .map(drop)
        .map_err(failed("the thread of the runtime cannot be started"))
}

#[cfg(feature = "tokio")]
fn start(all_gone: oneshot::Receiver<Never>) -> Result<Arc<dyn Runtime>> {
    // `enable_all` means timers, and sockets if any other crate of the build turned them on (drivers need
    // them).
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("a tokio runtime cannot be started"))?;
    let tokio = super::Tokio::from_handle(runtime.handle().clone())?;
    start_thread(move || {
        // An error is how the receiver says that every sender is gone.
        let _ = runtime.block_on(all_gone);
    })?;
    Ok(tokio)
}

#[cfg(not(feature = "tokio"))]
fn start(all_gone: oneshot::Receiver<Never>) -> Result<Arc<dyn Runtime>> {
    let executor = Arc::new(smol::Executor::new());
    let runs = executor.clone();
    start_thread(move || {
        let _ = smol::block_on(runs.run(all_gone));
    })?;
    Ok(Arc::new(Smol(executor)))
}

#[cfg(not(feature = "tokio"))]
#[derive(Debug)]
struct Smol(Arc<smol::Executor<'static>>);

#[cfg(not(feature = "tokio"))]
impl Runtime for Smol {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // A panic in one task would unwind through the executor and end the thread for all tasks.
        self.0
            .spawn(std::panic::AssertUnwindSafe(task).catch_unwind().map(drop))
            .detach();
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        smol::Timer::after(duration).map(drop).boxed()
    }

    fn name(&self) -> &'static str {
        "smol"
    }
}
