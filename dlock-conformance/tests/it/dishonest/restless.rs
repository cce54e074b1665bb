//! A subject whose waits are woken every millisecond, to look for themselves.

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{Ask, Held, Observe, Reply, Subject};
use dlock_core::spi;
use dlock_core::{Capabilities, FenceGate, LockName, Runtime};
use futures::FutureExt;
use futures::future::{Either, select};

pub(super) struct Restless {
    pub(super) inner: Arc<dyn Subject>,
    pub(super) runtime: Arc<dyn Runtime>,
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
