//! A backend with which things go wrong when a test says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    self, Abandoned, Acquire, Attempt, LeaseKey, LostLeases, Release, Released, Renew, RenewItem,
    RenewOutcome, Signal,
};
use dlock_core::{Capabilities, Error, ErrorKind, LossReason, Memory, Result, Runtime};
use futures::channel::mpsc;
use futures::stream::{BoxStream, StreamExt as _};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The memory store, with what a test wants to go wrong.
pub(crate) struct Twisted {
    inner: Arc<dyn spi::Lock>,
    capabilities: Capabilities,
    signals: Mutex<Option<mpsc::UnboundedReceiver<Signal>>>,
    tell: mpsc::UnboundedSender<Signal>,
    runtime: Arc<dyn Runtime>,
    /// The next grant is lost before its reply is read.
    pub(crate) lose_next_grant: AtomicBool,
    /// The next grant is lost before its reply is read, and nobody is told more than that something happened.
    pub(crate) forget_next_grant: AtomicBool,
    /// Renewals are refused for want of a permission.
    pub(crate) deny_renewals: AtomicBool,
    /// The next request is granted, and then refused: something after the grant was not allowed.
    pub(crate) refuse_next_grant: AtomicBool,
    /// No request for a lock reaches it.
    pub(crate) unreachable: AtomicBool,
    /// Nothing can be given back.
    pub(crate) no_release: AtomicBool,
    /// The release of a name that begins so is never answered.
    pub(crate) silent: Mutex<Option<&'static str>>,
    /// What holds that name cannot be reached, which is known after that long; the rest of the answer waits
    /// for it.
    pub(crate) away: Mutex<Option<(&'static str, Duration)>>,
}

impl Twisted {
    pub(crate) fn new(store: &Memory, runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Self::of(store.connect(), runtime, |claims| claims)
    }

    /// One that claims something else.
    pub(crate) fn of(
        inner: Arc<dyn spi::Lock>,
        runtime: Arc<dyn Runtime>,
        claims: impl FnOnce(Capabilities) -> Capabilities,
    ) -> Arc<Self> {
        let (tell, signals) = mpsc::unbounded();
        Arc::new(Self {
            capabilities: claims(inner.capabilities().clone()),
            inner,
            signals: Mutex::new(Some(signals)),
            tell,
            runtime,
            lose_next_grant: AtomicBool::new(false),
            forget_next_grant: AtomicBool::new(false),
            deny_renewals: AtomicBool::new(false),
            refuse_next_grant: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            no_release: AtomicBool::new(false),
            silent: Mutex::new(None),
            away: Mutex::new(None),
        })
    }

    pub(crate) fn says(&self, signal: Signal) {
        self.tell.unbounded_send(signal).unwrap();
    }
}

#[async_trait]
impl spi::Lock for Twisted {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn spi::Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn spi::RwLock> {
        self.inner.rwlock()
    }

    fn fencing(&self) -> Option<&dyn spi::Fencing> {
        self.inner.fencing()
    }

    fn watch(&self) -> Option<&dyn spi::Watch> {
        self.inner.watch()
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.signals.lock().unwrap().take().unwrap().boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        if self.unreachable.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "nobody is there"));
        }
        let answer = self.inner.attempt(request).await;
        if matches!(answer, Ok(Attempt::Granted(_))) && self.lose_next_grant.swap(false, Ordering::SeqCst) {
            // The connection dies with the reply in the buffer: its leases end at once, and the client is
            // told.
            self.inner.release(&request.key, Release::Now).await?;
            self.says(Signal::Lost(LostLeases::All, LossReason::SessionLost));
            self.runtime.sleep(ms(5)).await;
        }
        if matches!(answer, Ok(Attempt::Granted(_))) && self.forget_next_grant.swap(false, Ordering::SeqCst) {
            self.inner.release(&request.key, Release::Now).await?;
            self.says(Signal::Doubt);
            self.runtime.sleep(ms(5)).await;
        }
        if matches!(answer, Ok(Attempt::Granted(_))) && self.refuse_next_grant.swap(false, Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::PermissionDenied, "not that as well"));
        }
        answer
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if self.no_release.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "nobody is there"));
        }
        let silent = *self.silent.lock().unwrap();
        if silent.is_some_and(|prefix| lease.name.as_bytes().starts_with(prefix.as_bytes())) {
            futures::future::pending::<()>().await;
        }
        self.inner.release(lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        if self.no_release.load(Ordering::SeqCst) {
            let nobody = Error::new(ErrorKind::Unavailable, "nobody is there");
            return vec![Err(nobody); requests.len()];
        }
        self.inner.abandon(requests).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[async_trait]
impl Renew for Twisted {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        if self.deny_renewals.load(Ordering::SeqCst) {
            let denied = Error::new(ErrorKind::PermissionDenied, "not any more");
            return vec![RenewOutcome::Failed(denied); items.len()];
        }
        let mut outcomes = self.inner.renew().unwrap().renew(items).await;
        let away = *self.away.lock().unwrap();
        if let Some((name, known_after)) = away {
            for (item, outcome) in items.iter().zip(&mut outcomes) {
                if item.key.name.as_bytes() == name.as_bytes() {
                    self.runtime.sleep(known_after).await;
                    *outcome = RenewOutcome::Failed(Error::new(ErrorKind::Unavailable, "away"));
                }
            }
        }
        outcomes
    }
}
