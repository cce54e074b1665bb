//! A subject whose waits are woken without a reason.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use dlock_conformance::{Ask, Held, Observe, Reply, Subject};
use dlock_core::spi;
use dlock_core::{Capabilities, FenceGate, LockName, Runtime};
use futures::FutureExt;
use futures::future::{Either, poll_fn, select};

pub(super) struct Restless {
    pub(super) inner: Arc<dyn Subject>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) woken: Woken,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Woken {
    /// To look for themselves.
    EachMillisecond,
    /// When another waker replaces theirs, as async-io does.
    WhenReplaced,
}

impl Subject for Restless {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        self.inner.try_acquire(name, ask)
    }

    fn wait<'a>(
        &'a self,
        name: &'a LockName,
        ask: &'a Ask,
        limit: Option<Duration>,
    ) -> Reply<'a, Box<dyn Held>> {
        let mut acquiring = self.inner.wait(name, ask, limit);
        if limit.is_some() {
            return acquiring;
        }
        if let Woken::WhenReplaced = self.woken {
            let mut waker: Option<Waker> = None;
            return poll_fn(move |task| {
                let polled = acquiring.poll_unpin(task);
                if let Some(replaced) = waker.replace(task.waker().clone())
                    && !replaced.will_wake(task.waker())
                {
                    replaced.wake();
                }
                polled
            })
            .boxed();
        }
        async move {
            loop {
                let look = self.runtime.sleep(Duration::from_millis(1));
                match select(&mut acquiring, look).await {
                    Either::Left((held, _)) => return held,
                    Either::Right(_) => {}
                }
            }
        }
        .boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.inner.gate()
    }

    fn observe(&self) -> Option<&dyn Observe> {
        self.inner.observe()
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        self.inner.backend()
    }
}
