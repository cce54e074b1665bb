//! A subject whose tries are woken again and again, and never end.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock_conformance::{Ask, Held, Reply, Subject};
use dlock_core::spi;
use dlock_core::{Capabilities, LockName};
use futures::FutureExt;
use futures::future::poll_fn;

pub(super) struct Endless {
    pub(super) inner: Arc<dyn Subject>,
}

impl Subject for Endless {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn try_acquire<'a>(&'a self, _: &'a LockName, _: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .boxed()
    }

    fn wait<'a>(
        &'a self,
        name: &'a LockName,
        ask: &'a Ask,
        limit: Option<Duration>,
    ) -> Reply<'a, Box<dyn Held>> {
        self.inner.wait(name, ask, limit)
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        self.inner.backend()
    }
}
