//! A store that can be full: nothing new fits into it then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Release, Released, Renew, RwLock, Signal, Watch,
};
use dlock_core::{Capabilities, Error, ErrorKind, Result};
use futures::stream::BoxStream;

use crate::forward::forward;

/// A store behind a check whether it is full.
pub(crate) struct Fillable {
    inner: Arc<dyn Lock>,
    full: Arc<AtomicBool>,
}

impl Fillable {
    pub(crate) fn new(inner: Arc<dyn Lock>, full: &Arc<AtomicBool>) -> Self {
        let full = Arc::clone(full);
        Self { inner, full }
    }

    fn check(&self) -> Result<()> {
        match self.full.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Unavailable, "the store is full")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Lock for Fillable {
    forward! {
        self => self.inner;
        fn capabilities(&self) -> &Capabilities;
        fn renew(&self) -> Option<&dyn Renew>;
        fn rwlock(&self) -> Option<&dyn RwLock>;
        fn fencing(&self) -> Option<&dyn Fencing>;
        fn watch(&self) -> Option<&dyn Watch>;
        fn signals(&self) -> BoxStream<'static, Signal>;
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.check()?;
        self.inner.attempt(request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        // There is no space to record the release.
        if crate::switch::on("full_store_keeps_holders") {
            self.check()?;
        }
        self.inner.release(lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.inner.abandon(requests).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
