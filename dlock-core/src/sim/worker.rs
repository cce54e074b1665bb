//! A program that uses locks in every way that the API has, at random.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, select};

use super::judge::{Judge, Seniority};
use super::node::SimRuntime;
use super::rng::SimRng;
use crate::client::Client;
use crate::error::{ErrorKind, Result};
use crate::guard::{Guard, Upgrade};
use crate::lock::Lock;
use crate::name::LockName;
use crate::options::{AutoRenew, LockOptions};
use crate::runtime::Runtime;

const MS: Duration = Duration::from_millis(1);

/// The longest ttl that a worker asks for.
pub(super) const MAX_TTL: Duration = Duration::from_secs(3);
/// The longest that a worker waits.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// What a name is used for, by everybody.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Exclusive,
    ReadWrite,
    Permits(u32),
}

pub(super) struct Worker {
    pub(super) who: String,
    pub(super) client: Client,
    pub(super) runtime: SimRuntime,
    pub(super) judge: Arc<Judge>,
    pub(super) names: Arc<[(LockName, Kind)]>,
    pub(super) stop: Arc<AtomicBool>,
    /// Added to every ttl. Minutes, and nothing lapses within the run: then whatever is left behind stays in
    /// the way.
    pub(super) extra_ttl: Duration,
    pub(super) has_priorities: bool,
    pub(super) has_upgrade: bool,
    pub(super) rng: SimRng,
}

impl Worker {
    pub(super) async fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.once().await
                && !expected(error.kind())
            {
                self.judge.condemn(format!(
                    "{} met an error that nothing explains: {error:?}",
                    self.who
                ));
            }
            self.pause_for(0..40).await;
        }
    }

    async fn once(&mut self) -> Result<()> {
        let pick = self.rng.below(self.names.len() as u64) as usize;
        let (name, kind) = self.names[pick].clone();
        let handle = self.handle(&name, kind)?;
        let since = self.judge.seniority(&name);
        let Some(guard) = self.acquire(&handle).await? else {
            return Ok(());
        };
        let guard = Arc::new(guard);
        self.judge.acquired(&self.who, &self.runtime, &guard, since);
        if handle.is_reentrant() {
            return self.hold_twice(&handle, guard).await;
        }
        self.hold(guard).await
    }

    /// Enters once more, and leaves in any order.
    async fn hold_twice(&mut self, handle: &Lock, guard: Arc<Guard>) -> Result<()> {
        let inner = handle.try_acquire().await?;
        if inner.as_ref().is_some_and(|inner| inner.id() != guard.id()) {
            self.judge
                .condemn(format!("{} entered a hold and got another one", self.who));
        }
        if self.rng.chance(0.5) {
            released(guard).await?;
            self.pause_for(0..200).await;
            return match inner {
                Some(inner) => inner.release().await,
                None => Ok(()),
            };
        }
        drop(inner);
        self.hold(guard).await
    }

    fn handle(&mut self, name: &LockName, kind: Kind) -> Result<Lock> {
        let lock = match kind {
            Kind::Exclusive => self.client.lock(name)?,
            Kind::ReadWrite if self.rng.chance(0.6) => self.client.rwlock(name)?.read().clone(),
            Kind::ReadWrite => self.client.rwlock(name)?.write().clone(),
            Kind::Permits(n) => self.client.semaphore(name, n)?.into_lock(),
        };
        let renew = match self.rng.below(4) {
            0 => AutoRenew::Off,
            1 => AutoRenew::Every(self.millis(20..120)),
            _ => AutoRenew::On,
        };
        let mut options = LockOptions::new()
            .ttl(self.millis(250..MAX_TTL.as_millis() as u64) + self.extra_ttl)
            .auto_renew(renew)
            .priority(if self.has_priorities && self.rng.chance(0.2) {
                1 + self.rng.below(10) as u8
            } else {
                5
            });
        match self.rng.below(10) {
            0 => options = options.max_hold(self.millis(20..1_500)),
            // No longer than the least ttl.
            1 => options = options.min_hold(self.millis(20..250)),
            _ => {}
        }
        let lock = lock.options(options)?;
        if lock.mode().is_exclusive() && self.rng.chance(0.1) {
            return lock.reentrant(&self.client.owner());
        }
        Ok(lock)
    }

    async fn acquire(&mut self, lock: &Lock) -> Result<Option<Guard>> {
        let limit = self.millis(0..MAX_WAIT.as_millis() as u64);
        match self.rng.below(6) {
            0 | 1 => lock.try_acquire().await,
            2 => {
                let polls = 1 + self.rng.below(12) as u32;
                dropped_after(polls, lock.acquire_timeout(limit))
                    .await
                    .transpose()
            }
            3 => {
                // Given up at any time.
                let wait = pin!(lock.acquire_timeout(2 * MAX_WAIT));
                match select(wait, self.runtime.sleep(limit)).await {
                    Either::Left((outcome, _)) => outcome.map(Some),
                    Either::Right(_) => Ok(None),
                }
            }
            _ => {
                let began = self.runtime.now();
                let outcome = lock.acquire_timeout(limit).await;
                let took = self.runtime.now().since(began);
                if let Err(e) = &outcome
                    && e.kind() == ErrorKind::Timeout
                    && took < limit
                {
                    self.judge
                        .condemn(format!("{} was timed out after {took:?} of {limit:?}", self.who));
                }
                outcome.map(Some)
            }
        }
    }

    async fn hold(&mut self, guard: Arc<Guard>) -> Result<()> {
        for _ in 0..self.rng.below(4) {
            self.judge.write(&self.who, &guard);
            self.pause_for(0..400).await;
            self.judge.check();
            match self.rng.below(8) {
                0 | 1 => match guard.renew().await {
                    Err(e) if e.kind() == ErrorKind::Lost && guard.is_valid() => {
                        self.judge.condemn(format!("{}'s lost guard is valid", self.who));
                    }
                    _ => {}
                },
                // A conversion that did not go well leaves a guard, and it is used further.
                2 => match self.convert(&guard).await {
                    Err(e) if !expected(e.kind()) => return Err(e),
                    _ => {}
                },
                _ => {}
            }
            self.judge.check();
        }
        // A zombie writes too, as it does in life: the fence is there for that.
        self.judge.write(&self.who, &guard);
        match self.rng.below(4) {
            0 => Ok(()), // dropped
            1 => {
                let polls = 1 + self.rng.below(4) as u32;
                dropped_after(polls, released(guard)).await.unwrap_or(Ok(()))
            }
            _ => released(guard).await,
        }
    }

    async fn convert(&mut self, guard: &Arc<Guard>) -> Result<()> {
        let is_rw = self
            .names
            .iter()
            .any(|(name, kind)| name == guard.name() && matches!(kind, Kind::ReadWrite));
        if !is_rw {
            return Ok(());
        }
        if guard.mode().is_exclusive() {
            if self.rng.chance(0.3) {
                let polls = 1 + self.rng.below(4) as u32;
                return dropped_after(polls, guard.downgrade()).await.unwrap_or(Ok(()));
            }
            guard.downgrade().await
        } else if self.has_upgrade {
            let since: Seniority = self.judge.seniority(guard.name());
            if guard.try_upgrade().await? == Upgrade::Done {
                self.judge.acquired(&self.who, &self.runtime, guard, since);
            }
            Ok(())
        } else {
            Ok(())
        }
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        self.rng.duration(MS * range.start as u32..MS * range.end as u32)
    }

    async fn pause_for(&mut self, millis: std::ops::Range<u64>) {
        let time = self.millis(millis);
        self.runtime.sleep(time).await;
    }
}

/// Releases a guard that the judge looks at too, for a moment at a time.
pub(super) async fn released(guard: Arc<Guard>) -> Result<()> {
    let guard = Arc::into_inner(guard).expect("the judge keeps no guard alive");
    guard.release().await
}

/// What a faulty network explains.
fn expected(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Timeout | ErrorKind::Lost | ErrorKind::Unknown | ErrorKind::Unavailable
    )
}

/// Polls at most that often, then drops the future; `None` if it was not done.
async fn dropped_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
