//! Waits for a store that does not push: what its probes have said is acted on, and once is enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::sim::Sim;
use dlock_core::spi::{
    self, Abandoned, Acquire, Attempt, LeaseKey, News, Probe, Release, Released, Signal, Wake,
};
use dlock_core::{Capabilities, Client, Error, ErrorKind, Memory, RequestId, Result};
use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedReceiver};
use futures::future::join_all;
use futures::stream::{self, BoxStream};

use crate::world::*;

/// What a look at the store says after a release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// That something has changed.
    Changed,
    /// Who was admitted; and the look of a later waiter fails.
    AdmittedAndFails,
    /// The same; and a later waiter says that something has changed.
    AdmittedAndChanged,
}

/// The memory store as one that does not push. Its probes say each thing once, and no more.
struct Quiet {
    inner: Arc<dyn spi::Lock>,
    says: Says,
    releases: Arc<AtomicU64>,
    probes: AtomicU64,
    pauses: (Duration, Duration),
    news: Mutex<Option<UnboundedReceiver<Signal>>>,
}

struct Once {
    inner: Arc<dyn spi::Lock>,
    key: LeaseKey,
    says: Says,
    is_first: bool,
    releases: Arc<AtomicU64>,
    seen: AtomicU64,
}

#[async_trait]
impl Probe for Once {
    async fn look(&self) -> Result<News> {
        let now = self.releases.load(Ordering::SeqCst);
        if self.seen.swap(now, Ordering::SeqCst) == now {
            return Ok(News::Nothing);
        }
        match self.says {
            Says::AdmittedAndFails if !self.is_first => Err(Error::new(ErrorKind::Unavailable, "away")),
            Says::Changed | Says::AdmittedAndChanged if self.says == Says::Changed || !self.is_first => {
                Ok(News::Changed)
            }
            _ => {
                let holders = self.inner.watch().unwrap().inspect(&self.key.name).await?.holders;
                let ids: Vec<RequestId> = holders.iter().map(|h| h.id).collect();
                Ok(News::Admitted(ids))
            }
        }
    }
}

#[async_trait]
impl spi::Lock for Quiet {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn renew(&self) -> Option<&dyn spi::Renew> {
        self.inner.renew()
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
        match self.news.lock().unwrap().take() {
            Some(news) => news.boxed(),
            None => stream::pending().boxed(),
        }
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let seen = AtomicU64::new(self.releases.load(Ordering::SeqCst));
        let mut answer = self.inner.attempt(request).await?;
        if let Attempt::Queued(wait) = &mut answer {
            wait.recheck_in = None;
            wait.wake = Wake::Poll {
                probe: Arc::new(Once {
                    inner: self.inner.clone(),
                    key: request.key.clone(),
                    says: self.says,
                    is_first: self.probes.fetch_add(1, Ordering::SeqCst) == 0,
                    releases: self.releases.clone(),
                    seen,
                }),
                min: self.pauses.0,
                max: self.pauses.1,
            };
        }
        Ok(answer)
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let released = self.inner.release(lease, how).await;
        self.releases.fetch_add(1, Ordering::SeqCst);
        released
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.inner.abandon(requests).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

/// Thirty readers of one client wait for a writer; how late the last of them is. Some come just before the
/// release.
fn the_last_of_thirty_readers(says: Says, seed: u64) -> Duration {
    let sim = Sim::new(seed);
    let store = Memory::new(sim.runtime());
    let releases = Arc::<AtomicU64>::default();
    let quiet = Arc::new(Quiet {
        inner: store.connect(),
        says,
        releases: releases.clone(),
        probes: AtomicU64::new(0),
        pauses: (ms(5), ms(20)),
        news: Mutex::new(None),
    });
    let client = Client::builder(quiet, sim.runtime()).build().unwrap();
    let writer = Client::builder(store.connect(), sim.runtime()).build().unwrap();
    sim.block_on(async {
        let runtime = sim.runtime();
        let guard = writer.rwlock("a").unwrap().write().acquire().await.unwrap();
        let read = |after| {
            let (lock, runtime) = (client.rwlock("a").unwrap(), runtime.clone());
            async move {
                runtime.sleep(after).await;
                let guard = lock.read().acquire().await.unwrap();
                (guard, runtime.now())
            }
        };
        let readers = join_all((0..30).map(|n| read(ms(if n < 25 { 0 } else { 1000 }))));
        let release = async {
            runtime.sleep(ms(1000) + Duration::from_micros(50)).await;
            guard.release().await.unwrap();
            releases.fetch_add(1, Ordering::SeqCst);
            runtime.now()
        };
        let (granted, released) = futures::join!(readers, release);
        granted.iter().map(|(_, at)| at.since(released)).max().unwrap()
    })
}

#[test]
fn change_reported_once_reaches_all_affected_waiters() {
    for seed in 0..20 {
        let took = the_last_of_thirty_readers(Says::Changed, seed);
        assert!(took < ms(100), "seed {seed}: {took:?}");
    }
}

#[test]
fn admitted_waiter_is_asked_for_even_if_a_look_fails() {
    for seed in 0..20 {
        let took = the_last_of_thirty_readers(Says::AdmittedAndFails, seed);
        assert!(took < ms(100), "seed {seed}: {took:?}");
    }
}

#[test]
fn admitted_waiter_is_asked_for_beside_a_change() {
    for seed in 0..20 {
        let took = the_last_of_thirty_readers(Says::AdmittedAndChanged, seed);
        assert!(took < ms(100), "seed {seed}: {took:?}");
    }
}

/// A store whose looks are a second apart, and which says whenever somebody has stored something.
#[test]
fn news_of_the_store_hastens_the_next_look() {
    let sim = Sim::new(1);
    let runtime = sim.runtime();
    let store = Memory::new(runtime.clone());
    let (say, news) = mpsc::unbounded();
    let quiet = Arc::new(Quiet {
        inner: store.connect(),
        says: Says::Changed,
        releases: Arc::default(),
        probes: AtomicU64::new(0),
        pauses: (ms(1000), ms(1000)),
        news: Mutex::new(Some(news)),
    });
    let client = Client::builder(quiet.clone(), runtime.clone()).build().unwrap();
    let other = Client::builder(store.connect(), runtime.clone()).build().unwrap();
    sim.block_on(async {
        let guard = other.lock("a").unwrap().acquire().await.unwrap();
        let lock = client.lock("a").unwrap();
        let waiting = async {
            let _guard = lock.acquire().await.unwrap();
            runtime.now()
        };
        let release = async {
            runtime.sleep(ms(100)).await;
            guard.release().await.unwrap();
            quiet.releases.fetch_add(1, Ordering::SeqCst);
            say.unbounded_send(Signal::Changed).unwrap();
            runtime.now()
        };
        let (granted, released) = futures::join!(waiting, release);
        assert!(granted.since(released) < ms(1), "{:?}", granted.since(released));
    });
}
