//! What a planted bug of the store needs beyond an `if`: requests in two steps, with room between them.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};

use super::link::MemoryLink;
use super::watch::Changes;
#[cfg(dlock_saboteur)]
use super::watch::Watcher;
use crate::error::Result;
use crate::gate::{Access, Admission, FencedValue};
use crate::inspection::Change;
use crate::name::LockName;
use crate::request_id::RequestId;
#[cfg(dlock_saboteur)]
use crate::saboteur::{Bug, Planted};
use crate::spi::{Acquire, Attempt, LeaseKey, Queueing, Wake, Watch as _};
use crate::token::Token;

use super::gate::MemoryGate;

impl MemoryLink {
    /// Rule 8.01: the waiter is registered some time after it was queued.
    pub(super) fn register_late<'a>(&'a self, request: &'a Acquire) -> BoxFuture<'a, Result<Attempt>> {
        Box::pin(async move {
            let mut attempt = self.ask(request)?;
            if let Attempt::Queued(wait) = &mut attempt {
                self.shared.lock().waiters.remove(&request.key);
                self.runtime.sleep(Duration::from_millis(1)).await;
                let (sent, _) = self.sent();
                let stream = self.listen(&mut self.shared.lock(), &request.key, sent, sent);
                wait.wake = Wake::Push(stream);
            }
            Ok(attempt)
        })
    }

    /// Rule 7.09: the token is drawn, and then the lock is asked for.
    pub(super) fn token_first<'a>(&'a self, request: &'a Acquire) -> BoxFuture<'a, Result<Attempt>> {
        Box::pin(async move {
            let token = self.shared.lock().table.draw_token();
            self.runtime
                .sleep(Duration::from_millis(2 * (token.get() % 4)))
                .await;
            let mut attempt = self.ask(request)?;
            if let Attempt::Granted(grant) = &mut attempt {
                grant.token = Some(token);
            }
            Ok(attempt)
        })
    }
}

/// From how many watchers of a name on rule 12.08's bug shows.
const CROWD: usize = 16;

impl MemoryLink {
    /// Rule 12.01: the snapshot is taken some time before the watcher is entered.
    pub(super) fn watch_late<'a>(
        &'a self,
        name: &'a LockName,
    ) -> BoxFuture<'a, Result<BoxStream<'static, Result<Change>>>> {
        Box::pin(async move {
            let snapshot = Change::Snapshot {
                now: self.inspect(name).await?,
                skipped: false,
            };
            self.runtime.sleep(Duration::from_millis(4)).await;
            let (shared, runtime, closed) = (self.shared.clone(), self.runtime.clone(), self.closed.clone());
            let changes = Changes::new(shared, runtime, closed, self.id, name.clone());
            Ok(stream::iter([Ok(snapshot)]).chain(changes.skip(1)).boxed())
        })
    }

    /// Rule 12.08: a watcher stands in line with those who want the lock, if there are many.
    pub(super) fn wait_to_watch(&self, name: &LockName) -> Result<()> {
        let watchers = self.shared.lock().watchers.get(name).map_or(0, Vec::len);
        if watchers >= CROWD {
            let id = RequestId::new(self.shared.next_link().into(), 1);
            let mut request = Acquire::new(LeaseKey::new(name.clone(), id), Duration::from_secs(60));
            request.queue = Queueing::Join;
            self.ask(&request)?;
        }
        Ok(())
    }
}

#[cfg(dlock_saboteur)]
impl Watcher {
    /// Rules 12.02 and 12.03: each eighth grant is told after the next one, or a release only when there is
    /// something else to tell.
    pub(super) fn tell_late(&mut self, change: Change, bug: Planted) -> Vec<Change> {
        let (late, told) = &mut self.late;
        let before = late.take();
        if bug.is(Bug::WatchMissesLast) {
            return match change {
                Change::Released { .. } => {
                    *late = Some(change);
                    before.into_iter().collect()
                }
                other => before.into_iter().chain([other]).collect(),
            };
        }
        if !matches!(change, Change::Granted(_)) {
            *late = before;
            return vec![change];
        }
        *told += 1;
        if before.is_none() && told.is_multiple_of(8) {
            *late = Some(change);
            return Vec::new();
        }
        [change].into_iter().chain(before).collect()
    }
}

/// Rule 12.09: what is held before a call and after it has not changed.
pub(super) fn without_hand_overs(changes: Vec<(LockName, Change)>) -> Vec<(LockName, Change)> {
    let handed_over = changes.iter().any(|(_, c)| matches!(c, Change::Released { .. }))
        && changes.iter().any(|(_, c)| matches!(c, Change::Granted(_)));
    if handed_over { Vec::new() } else { changes }
}

impl MemoryGate {
    /// Rule 7.13: the token is checked, and then the value is written.
    pub(super) fn check_then_write<'a>(
        &'a self,
        resource: &'a LockName,
        token: Token,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Admission>> {
        Box::pin(async move {
            let fresh = || FencedValue::new(Vec::new(), None, None);
            let checked = self.on(resource, |gates| {
                let mut seen = gates.get(resource).cloned().unwrap_or_else(fresh);
                seen.admit(token, Access::Exclusive)
            })?;
            if checked.is_admitted() {
                self.shared.pause(Duration::from_micros(500)).await;
                self.on(resource, |gates| {
                    let stored = gates.entry(resource.clone()).or_insert_with(fresh);
                    let _ = stored.admit(token, Access::Exclusive);
                    stored.value = value.to_vec();
                })?;
            }
            Ok(checked)
        })
    }
}
