//! Releases whose answers come too late, or never.

use std::collections::HashSet;
use std::sync::Mutex;

use async_trait::async_trait;
use dlock_core::spi::Signal;
use dlock_core::{Capabilities, Result};
use futures::stream::BoxStream;

use super::*;

/// A member as most are: it does not remember what was released, and says of a release that comes a second
/// time that nothing was held. The memory backend remembers.
struct Forgets {
    inner: Arc<dyn Lock>,
    released: Mutex<HashSet<LeaseKey>>,
}

impl Forgets {
    fn made(inner: Arc<dyn Lock>) -> Arc<dyn Lock> {
        let released = Mutex::default();
        Arc::new(Self { inner, released })
    }
}

#[async_trait]
impl Lock for Forgets {
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
        self.inner.attempt(request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let released = self.inner.release(lease, how).await?;
        let is_first = released == Released::Released && self.released.lock().unwrap().insert(lease.clone());
        Ok(match is_first {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.inner.abandon(requests).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

fn forgetful(w: &World<'_>) -> Seen {
    w.client_of("a", FaultPlan::healthy(), Forgets::made)
}

/// Alive, and further away than the patience with it: a request and its answer take 0.6 to 0.9 s.
fn sluggish() -> FaultPlan {
    let mut plan = FaultPlan::healthy();
    plan.delay = ms(300)..ms(450);
    plan
}

/// All have released it, and say so when nobody waits for that any more.
#[test]
fn a_release_that_all_answer_too_late_is_no_loss() {
    // Until it is asked again: at once, with both on their way; while the first answers come; when all have
    // come; and when they were given up.
    for pause in [0, 150, 450, 2_000] {
        simulate(3, async |w| {
            let (a, b) = (forgetful(&w), w.client("b"));
            a.granted(&key("n", 1)).await;
            w.sleep(ms(50)).await;
            a.links.iter().for_each(|link| link.set_plan(sluggish()));
            let error = a.quorum.release(&key("n", 1), Release::Now).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
            w.sleep(ms(pause)).await;
            let released = loop {
                match a.quorum.release(&key("n", 1), Release::Now).await {
                    Ok(released) => break released,
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Unknown, "{e}"),
                }
            };
            assert_eq!(released, Released::Released, "again after {pause} ms");
            w.sleep(ms(2_000)).await;
            assert!(w.held_at("n").await.is_empty());
            b.granted(&key("n", 2)).await;
        });
    }
}

/// The same as a user sees it, who is told nothing but that it took a while.
#[test]
fn a_guard_is_released_by_members_slower_than_the_patience() {
    simulate(3, async |w| {
        let a = forgetful(&w);
        let client = a.client();
        let held = client.lock("n").unwrap().acquire().await.unwrap();
        w.sleep(ms(50)).await;
        a.links.iter().for_each(|link| link.set_plan(sluggish()));
        let known = held.held();
        if let Err(e) = held.release().await {
            assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
        }
        w.sleep(ms(2_000)).await;
        assert!(known.loss().is_none());
        assert!(w.held_at("n").await.is_empty());
    });
}

/// Slowness is no excuse either: what was not there is not called released.
#[test]
fn a_loss_that_is_answered_too_late_is_a_loss() {
    simulate(3, async |w| {
        let a = forgetful(&w);
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        for n in [0, 2] {
            let link = w.stores[n].0.connect();
            let part = link.watch().unwrap();
            part.force_release(&name("n")).await.unwrap();
        }
        a.links.iter().for_each(|link| link.set_plan(sluggish()));
        a.quorum.release(&key("n", 1), Release::Now).await.unwrap_err();
        w.sleep(ms(450)).await;
        assert_eq!(a.release(&key("n", 1)).await, Released::NotHeld);
    });
}

/// Released at all of them, and no answer ever comes.
#[test]
fn a_release_whose_answers_were_lost_is_no_loss() {
    simulate(3, async |w| {
        let a = forgetful(&w);
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        a.links.iter().for_each(|link| link.partition(Partition::Replies));
        a.quorum.release(&key("n", 1), Release::Now).await.unwrap_err();
        assert!(w.held_at("n").await.is_empty());
        w.sleep(ms(2_000)).await;
        a.links.iter().for_each(|link| link.heal());
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
    });
}
