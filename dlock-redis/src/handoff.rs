//! Looks after a name when a claim window is over.
//!
//! A pushed grant is valid for a claim window, in which the waiter must claim it. Redis has no timer that
//! would notice one that does not. So the client that caused the push runs a script when the window is over,
//! which gives the next waiter its turn. That is one script for each name, window and client, whatever the
//! number of grants, and none without waiters.
//!
//! If a name is due at several times, the soonest counts: each visit reports what comes later. The same after
//! a visit: while it was under way, or failed, a push may have opened a window that ends before the one that
//! it reported.
//!
//! *If this client dies too*, or is cut off: the next waiter finds out when it renews its queue lease, at a
//! third of its length.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};
use futures::FutureExt as _;

use crate::backend::Backend;
use crate::connection::pause::pause;
use crate::reply::strange;

/// Not before the server thinks so.
const AFTER: Duration = Duration::from_millis(2);

/// When each name is visited next: by a task of its own, which does nothing if it is another time by then.
#[derive(Default)]
pub(crate) struct HandOffs(Mutex<HashMap<LockName, Timestamp>>);

impl HandOffs {
    fn due(&self) -> MutexGuard<'_, HashMap<LockName, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that name is due since then. It is no more.
    fn take(&self, name: &LockName, at: Timestamp) -> bool {
        let mut due = self.due();
        let is_due = due.get(name) == Some(&at);
        if is_due {
            due.remove(name);
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
            Ok(window) => self.visit_in(Duration::from_millis(window) + AFTER, name),
            Err(_) => self.visit_in(Duration::ZERO, name),
        }
    }

    fn visit_in(self: &Arc<Self>, pauses: Duration, name: &LockName) {
        let at = Timestamp::now() + pauses;
        {
            let mut due = self.handoffs.due();
            if due.get(name).is_some_and(|sooner| *sooner <= at) {
                return;
            }
            due.insert(name.clone(), at);
        }
        // Without the backend: it may be given up meanwhile.
        let (me, name, sleep) = (Arc::downgrade(self), name.clone(), self.runtime.sleep(pauses));
        let visiting = async move {
            pause(sleep).await;
            let Some(me) = me.upgrade() else { return };
            if me.handoffs.take(&name, at) {
                me.visit(&name).await;
            }
        };
        self.runtime.spawn(visiting.boxed());
    }

    async fn visit(self: &Arc<Self>, name: &LockName) {
        let answer = self.on(&self.scripts.tend, name).run_within().await;
        let again = match answer.and_then(|(_, value)| match value {
            redis::Value::Int(life) => Ok(u64::try_from(life).ok()),
            _ => Err(strange("no number")),
        }) {
            Ok(Some(0)) => Duration::ZERO,
            Ok(Some(life)) => Duration::from_millis(life) + AFTER,
            // Cut off for now. What happens meanwhile cannot be known, so it comes by when it can.
            Err(e) if e.is_retryable() => self.window + AFTER,
            Ok(None) | Err(_) => return,
        };
        self.visit_in(again, name);
    }
}
