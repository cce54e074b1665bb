//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! Whoever releases does so now and then, in a task, and the database sees to it that one client a minute does. Where nobody releases anything there is
//! nothing new to be deleted; what the last one leaves stays until somebody comes again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::Timestamp;
use futures::FutureExt as _;
use futures::future::{Either, select};

use super::call::Value;
use super::connections::Link;

/// For how long nobody has used a dead name. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How many names go in one statement, which keeps none that is in use waiting.
const MOST: i32 = 10_000;

impl Link {
    /// Looks for dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now().as_nanos();
        let due = self.sweep_at.load(Ordering::Relaxed);
        let next = now.saturating_add(u64::try_from(self.sweep_every.as_nanos()).unwrap_or(u64::MAX));
        if now < due
            || self
                .sweep_at
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // The first release of a client only starts the clock: a program that takes one lock and ends has nothing to do with this.
        if due == 0 {
            return;
        }
        let link = Arc::clone(self);
        let sweeping = async move {
            let age = i64::try_from(AGE.as_micros()).unwrap_or(i64::MAX);
            let values = [Value::Long(age), Value::Number(MOST)];
            let swept = std::pin::pin!(link.ask(&link.sql.sweep, &values));
            // Where it fails somebody else does it, or this one does next time.
            if let Either::Left((Err(_), _)) = select(swept, link.closing.clone()).await {
                link.sweep_at.store(next, Ordering::Relaxed);
            }
        };
        self.runtime.spawn(sweeping.boxed());
    }
}
