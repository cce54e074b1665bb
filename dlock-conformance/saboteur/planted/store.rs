//! Stores that keep the locks of dead processes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Queueing, Release, Released, Renew, RwLock, Signal,
    Watch,
};
use dlock_core::{Capabilities, Result};
use futures::stream::BoxStream;

/// Practically for ever.
const LONG: Duration = Duration::from_secs(3600);

pub(super) struct Spoiled {
    inner: Arc<dyn Lock>,
}

impl Spoiled {
    pub(super) fn new(inner: Arc<dyn Lock>) -> Self {
        Self { inner }
    }

    fn long(&self) -> Duration {
        LONG.min(self.inner.capabilities().max_ttl)
    }
}

#[async_trait]
impl Lock for Spoiled {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.inner.renew()
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.inner.rwlock()
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.inner.fencing()
    }

    fn watch(&self) -> Option<&dyn Watch> {
        self.inner.watch()
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.inner.signals()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let mut kept = request.clone();
        // The client is trusted to release; the lease is for show.
        if crate::switch::on("kill_leaks") {
            kept.ttl = self.long();
            let mut attempt = self.inner.attempt(&kept).await?;
            if let Attempt::Granted(grant) = &mut attempt {
                grant.expires_in = grant.expires_in.min(request.ttl);
            }
            return Ok(attempt);
        }
        kept.queue = Queueing::No;
        match self.inner.attempt(&kept).await? {
            Attempt::Held(_) if request.queue == Queueing::Join => {
                kept = request.clone();
                (kept.ttl, kept.queue_ttl) = (self.long(), self.long());
                self.inner.attempt(&kept).await
            }
            other => Ok(other),
        }
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.inner.release(lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.inner.abandon(requests).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
