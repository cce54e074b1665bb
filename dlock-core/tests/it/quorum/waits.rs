//! What a backend is told of how long a caller waits.

use std::sync::Mutex;

use async_trait::async_trait;
use dlock_core::spi::Signal;
use dlock_core::{Capabilities, Result};
use futures::stream::BoxStream;

use super::*;

/// Notes of each attempt whether it waits.
struct Notes {
    inner: Arc<dyn Lock>,
    waits: Arc<Mutex<Vec<bool>>>,
}

#[async_trait]
impl Lock for Notes {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn renew(&self) -> Option<&dyn dlock_core::spi::Renew> {
        self.inner.renew()
    }

    fn rwlock(&self) -> Option<&dyn dlock_core::spi::RwLock> {
        self.inner.rwlock()
    }

    fn fencing(&self) -> Option<&dyn dlock_core::spi::Fencing> {
        self.inner.fencing()
    }

    fn watch(&self) -> Option<&dyn dlock_core::spi::Watch> {
        self.inner.watch()
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.inner.signals()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.waits.lock().unwrap().push(request.waits);
        self.inner.attempt(request).await
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

#[test]
fn try_acquire_does_not_wait() {
    simulate(1, async |w| {
        let waits = Arc::<Mutex<Vec<bool>>>::default();
        let inner = w.stores[0].0.connect();
        let backend = Arc::new(Notes {
            inner,
            waits: waits.clone(),
        });
        let here = Arc::new(w.stores[0].1.clone());
        let client = Client::builder(backend, here).build().unwrap();
        let lock = client.lock("n").unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(client.lock("n").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        lock.acquire_timeout(TTL).await.unwrap().release().await.unwrap();
        assert_eq!(*waits.lock().unwrap(), [true, false, false, true]);
        client.close().await.unwrap();
    });
}

/// A member that would let the caller wait has not said no.
#[test]
fn members_are_asked_without_queueing() {
    simulate(3, async |w| {
        let waits = Arc::<Mutex<Vec<bool>>>::default();
        let noted = |inner| -> Arc<dyn Lock> {
            Arc::new(Notes {
                inner,
                waits: waits.clone(),
            })
        };
        let a = w.client_of("a", FaultPlan::healthy(), noted);
        let client = a.client();
        let guard = client.lock("n").unwrap().acquire().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(*waits.lock().unwrap(), [false; 3]);
        client.close().await.unwrap();
    });
}
