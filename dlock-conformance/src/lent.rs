//! The guard of a library that has none: it lends its lock to a closure.

use dlock_core::{Result, Runtime};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, RemoteHandle, select};

/// The guard of a library that lends its lock to a closure, as `using(name, ttl, closure)` does: a
/// [`Library::Guard`](crate::Library::Guard) for an adapter.
///
/// The call runs in a task, and its closure ends when the guard is given back or dropped.
#[derive(Debug)]
pub struct Lent {
    /// Dropped, it ends the closure.
    _back: oneshot::Sender<()>,
    answer: Option<RemoteHandle<Result<bool>>>,
}

/// What the closure awaits.
#[derive(Debug)]
pub struct Loan {
    begin: oneshot::Sender<()>,
    back: oneshot::Receiver<()>,
}

impl Loan {
    /// To be awaited in the closure, which has the lock: until the guard is given back or dropped.
    ///
    /// # Cancel safety
    /// Dropped, the closure ends before its guard is given back, as it does when the library ends it.
    pub async fn held(self) {
        let _ = self.begin.send(());
        let _ = self.back.await;
    }
}

impl Lent {
    /// Makes that call in a task of that runtime, and waits until its closure has the lock. `None` if the
    /// call answers before: it was refused.
    ///
    /// The call answers whether the lock was held to the end of the closure, or `true` if the library does
    /// not say.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use dlock_conformance::{Lent, Reply};
    /// # use dlock_core::{LockName, Runtime};
    /// # use futures::{FutureExt, future::BoxFuture};
    /// # struct Theirs;
    /// # impl Theirs {
    /// #     async fn using(&self, _: &str, _: Duration, _: BoxFuture<'_, ()>) -> dlock_core::Result<()> {
    /// #         Ok(())
    /// #     }
    /// # }
    /// # struct Adapter { runtime: Arc<dyn Runtime>, theirs: Arc<Theirs> }
    /// # impl Adapter {
    /// fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Lent>> {
    ///     let (theirs, name) = (Arc::clone(&self.theirs), name.to_string());
    ///     Lent::take(&*self.runtime, move |loan| {
    ///         async move { theirs.using(&name, ttl, loan.held().boxed()).await.map(|()| true) }.boxed()
    ///     })
    ///     .boxed()
    /// }
    ///
    /// fn unlock(&self, guard: Lent) -> Reply<'_, bool> {
    ///     guard.give_back().boxed()
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the call, as a user would.
    ///
    /// # Errors
    /// Those of the call, if it ends before its closure has the lock.
    pub async fn take(
        runtime: &dyn Runtime,
        call: impl FnOnce(Loan) -> BoxFuture<'static, Result<bool>>,
    ) -> Result<Option<Self>> {
        let (begin, began) = oneshot::channel();
        let (back, given) = oneshot::channel();
        let (call, answer) = call(Loan { begin, back: given }).remote_handle();
        runtime.spawn(call.boxed());
        match select(began, answer).await {
            Either::Left((Ok(()), answer)) => {
                let answer = Some(answer);
                Ok(Some(Self { _back: back, answer }))
            }
            Either::Left((Err(oneshot::Canceled), answer)) => answer.await.map(|_| None),
            Either::Right((answer, _)) => answer.map(|_| None),
        }
    }

    /// Ends the closure, and answers what the call does.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the call, whose closure has ended.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn give_back(mut self) -> Result<bool> {
        let answer = self.answer.take().expect("only this takes it");
        drop(self);
        answer.await
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer.forget();
        }
    }
}
