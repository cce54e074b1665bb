//! One request to the store: its time limit, and when to ask again.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Either, select};

use super::core::{Core, closed};
use super::limit::{Limit, Over};
use super::timers::Entry;
use super::waiter::Waiter;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::runtime::yield_now;
use crate::timestamp::Timestamp;

impl Core {
    /// Applies the time limit to a user's request, and ends it when the client closes. The limit is
    /// registered with the keeper only if the first poll did not complete the request: a store in this
    /// process answers at once, and pays nothing.
    pub(crate) async fn ask<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut request = pin!(request);
        let mut limited = None;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            let limited = match &mut limited {
                Some(limited) => limited,
                none => match Limited::begin(self, self.clamped(limit)) {
                    Ok(begun) => none.insert(begun),
                    Err(e) => return Poll::Ready(Err(e)),
                },
            };
            limited.limit.poll(cx).map(|over| match over {
                Over::Time => Err(no_answer(limit)),
                Over::Closing => Err(closed()),
            })
        })
        .await
    }

    /// Within what timers can take.
    fn clamped(&self, limit: Duration) -> Duration {
        limit.min(FOREVER)
    }

    /// The time left for a request whose caller needs an answer by `until`.
    pub(super) fn time_left(&self, until: Option<Timestamp>) -> Duration {
        until.map_or(self.op_timeout, |t| self.now().until(t).min(self.op_timeout))
    }

    /// One request of a user about a lock or resource, but not about a lease.
    pub(crate) async fn request<T>(
        &self,
        name: &LockName,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let answer = self.ask(self.op_timeout, request).await;
        answer.map_err(|e| e.with_name(name))
    }

    /// Sleeps, unless the client closes.
    pub(crate) async fn pause(&self, d: Duration) -> Result<()> {
        self.ask(Duration::MAX, self.runtime.sleep(d).map(Ok)).await?;
        yield_now().await;
        Ok(())
    }

    /// Applies the time limit to a request of the keeper.
    pub(super) async fn timed<T>(&self, limit: Duration, request: impl Future<Output = T>) -> Result<T> {
        let mut request = pin!(request);
        if let Poll::Ready(answer) = futures::poll!(request.as_mut()) {
            return Ok(answer);
        }
        match select(request, self.runtime.sleep(self.clamped(limit))).await {
            Either::Left((answer, _)) => Ok(answer),
            Either::Right(_) => Err(no_answer(limit)),
        }
    }

    /// When to ask again for a waiter: at a third of its queue entry's life, or when something is known to
    /// expire.
    pub(super) fn next_ask(
        &self,
        waiter: &Waiter,
        now: Timestamp,
        recheck_in: Option<Duration>,
    ) -> Timestamp {
        // Just after a known expiry. The first two waiters ask at once, the others later and spread out,
        // since for them it pays only if those ahead of them are dead.
        let recheck = recheck_in.map(|d| {
            let d = d.min(FOREVER) + Duration::from_millis(1);
            if waiter.ahead() < 2 {
                d
            } else {
                d + self.jitter(d + Duration::from_millis(50))
            }
        });
        let regular = waiter.queue_ttl.unwrap_or(LONGEST_UNASKED) / 3;
        let regular = regular - self.jitter(regular / 10);
        now + recheck.map_or(regular, |r| r.min(regular))
    }
}

/// Longer than any wait, and short enough for every timer.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A request that the store does not queue is attempted again at a third of this, if nothing else says
/// sooner.
const LONGEST_UNASKED: Duration = Duration::from_secs(3);

pub(super) fn no_answer(after: Duration) -> Error {
    Error::new(
        ErrorKind::Unknown,
        format!("the store did not answer within {after:?}"),
    )
}

/// A limit in the keeper's timers, taken out when dropped.
struct Limited<'a> {
    core: &'a Core,
    limit: Arc<Limit>,
}

impl<'a> Limited<'a> {
    /// Starts a limit that counts from now. Fails if the client is closing.
    fn begin(core: &'a Core, limit: Duration) -> Result<Self> {
        let limit = Arc::new(Limit::at(core.now() + limit));
        let earlier = {
            let mut state = core.state();
            if !core.is_open() {
                return Err(closed());
            }
            state.timers.set(limit.at, Entry::Limit(limit.clone()));
            limit.at < state.armed
        };
        if earlier {
            core.wake_keeper();
        }
        Ok(Self { core, limit })
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state();
        self.limit.leave();
        state.timers.remove(&self.limit.place);
    }
}
