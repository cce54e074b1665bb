//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! The floor of tokens is locked first and rises with them in one transaction, so a name that is made anew begins where it ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::Timestamp;
use futures::FutureExt as _;
use futures::future::select;

use super::connections::Link;
use super::schema::NOW;

/// For how long nobody has used a dead name. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How often one client does it.
const EVERY: Duration = Duration::from_secs(60);

/// How many names at once.
const MOST: u32 = 1_000;

impl Link {
    /// Deletes dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now().as_nanos();
        let due = self.sweep_at.load(Ordering::Relaxed);
        let next = now.saturating_add(u64::try_from(EVERY.as_nanos()).unwrap_or(u64::MAX));
        let turn = now >= due
            && self
                .sweep_at
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        // The first release of a client only starts the clock: a program that takes one lock and ends has nothing to do with this.
        if !turn || due == 0 {
            return;
        }
        let link = Arc::clone(self);
        let sweeping = async move {
            let (p, age) = (&link.sql.prefix, AGE.as_micros());
            // The floor rises to the largest token there is: what is deleted after that was last granted long before.
            let text = format!(
                "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; \
                 SELECT token_floor FROM {p}meta FOR UPDATE; \
                 UPDATE {p}meta SET token_floor = GREATEST(token_floor, (SELECT COALESCE(MAX(k.token), 0) FROM {p}name AS k)); \
                 DELETE FROM {p}name WHERE others = 0 AND ends < {NOW} - {age} ORDER BY name LIMIT {MOST}; COMMIT"
            );
            let swept = std::pin::pin!(link.tell(text));
            // Where it fails somebody else does it, or this one does next time.
            let _ = select(swept, link.closing.clone()).await;
        };
        self.runtime.spawn(sweeping.boxed());
    }
}
