//! Coming by when a claim window is over.
//!
//! A grant that is pushed to a waiter is good for a claim window, in which the waiter has to say that it is
//! there. Redis has no timer that would notice one that does not. So whoever caused the push comes by when
//! the window is over, and lets the next one have its turn. For each name that is once in a window and
//! client, however many grants there were in it; with nobody waiting it is never.
//!
//! *If this client dies too*, or is cut off: the next one in line finds out when it extends its place in the
//! queue, at a third of its own lease's length.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};
use futures::FutureExt as _;
use redis::Value;

use crate::backend::Backend;
use crate::connection::pause;
use crate::reply::strange;

/// Not before the server thinks so.
const AFTER: Duration = Duration::from_millis(2);

/// When each name is visited next.
#[derive(Default)]
pub(crate) struct HandOffs(Mutex<HashMap<LockName, Timestamp>>);

impl HandOffs {
    fn due(&self) -> MutexGuard<'_, HashMap<LockName, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that is sooner than what is due for that name, and due from now on: a visit that comes sooner
    /// asks about what comes later as well.
    fn is_sooner(&self, name: &LockName, at: Timestamp) -> bool {
        let mut all = self.due();
        let is_sooner = all.get(name).is_none_or(|due| at < *due);
        if is_sooner {
            all.insert(name.clone(), at);
        }
        is_sooner
    }

    /// Whether the visit of that time is due yet, and not overtaken by a sooner one. It is not from now on.
    fn takes(&self, name: &LockName, at: Timestamp) -> bool {
        let mut all = self.due();
        let is_due = all.get(name) == Some(&at);
        if is_due {
            all.remove(name);
        }
        is_due
    }
}

impl Backend {
    /// Takes in what answers end with: the milliseconds of the longest window that was opened, 0 for none,
    /// less where there is more to do.
    pub(crate) fn pushed(self: &Arc<Self>, name: &LockName, window: i64) {
        match u64::try_from(window) {
            Ok(0) => {}
            Ok(window) => self.visit_in(name, Duration::from_millis(window) + AFTER),
            Err(_) => self.visit_in(name, Duration::ZERO),
        }
    }

    fn visit_in(self: &Arc<Self>, name: &LockName, time: Duration) {
        let at = Timestamp::now() + time;
        if !self.handoffs.is_sooner(name, at) {
            return;
        }
        // Without the backend: it may be given up meanwhile.
        let (weak, sleep, name) = (Arc::downgrade(self), self.runtime.sleep(time), name.clone());
        let visiting = async move {
            pause(sleep).await;
            // While it is under way another push may open a window that ends sooner than those that it sees:
            // that one is due by itself.
            if let Some(me) = weak.upgrade()
                && me.handoffs.takes(&name, at)
                && let Some(again) = me.visit(&name).await
            {
                me.visit_in(&name, again);
            }
        };
        self.runtime.spawn(visiting.boxed());
    }

    /// When to come again.
    async fn visit(&self, name: &LockName) -> Option<Duration> {
        let answer = self.on(&self.scripts.tend, name).run_within().await;
        let life = answer.and_then(|(_, value)| match value {
            Value::Int(life) => Ok(u64::try_from(life).ok()),
            _ => Err(strange("no number")),
        });
        match life {
            Ok(Some(0)) => Some(Duration::ZERO),
            Ok(life) => life.map(|life| Duration::from_millis(life) + AFTER),
            // Cut off for now. What happens meanwhile cannot be known, so it comes by when it can.
            Err(e) if e.is_retryable() => Some(self.window + AFTER),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_sooner_is_done_and_what_it_overtook_is_not() {
        let (all, name) = (HandOffs::default(), LockName::new("a").unwrap());
        let at = |ms| Timestamp::ZERO + Duration::from_millis(ms);
        assert!(all.is_sooner(&name, at(200)));
        assert!(!all.is_sooner(&name, at(3_000)) && all.is_sooner(&name, at(100)));
        assert!(all.takes(&name, at(100)) && !all.takes(&name, at(200)));
        assert!(all.is_sooner(&name, at(3_000)));
    }
}
