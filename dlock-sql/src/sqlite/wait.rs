//! "Is there any news?", asked for all who wait for a name in one client.
//!
//! That something was stored is seen by two numbers: within this process that of the last job with news for
//! those who wait for the name, and for what others have stored `PRAGMA data_version`, asked on the very
//! connection that writes, where nothing of ours counts. It tells of the whole file, so the holders of the
//! name are looked at before anybody is asked for. That takes one read however many wait, and no write lock:
//! with ten clients of fifty waiters each, to ask in full after each commit was ten transactions that load
//! five hundred rows.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: both numbers are those that the attempt has seen.
//! * *A waiter that is admitted before it is seated here*: as long as an admitted one of ours has not been
//!   told, every look says so.
//! * *A lease that runs out, for which nobody stores anything*: its end was part of the last look. What makes
//!   an end come sooner (a release with a minimum hold) or brings another to the head of the queue is a
//!   change.
//! * *A look that is dropped or fails*: the next one looks at the holders, whatever the numbers say.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe};
use dlock_core::{RequestId, Result, Timestamp};

use super::connection::{Connection, Needs};
use crate::admit::Glance;

pub(super) struct FileProbe {
    connection: Connection,
    key: LeaseKey,
    turn: AtomicU64,
    version: AtomicI64,
    /// What is known of the holders, against which the next look compares.
    seen: Mutex<Seen>,
}

/// No version: SQLite counts from one.
const NONE: i64 = 0;

enum Seen {
    /// The attempt has looked, and what it has seen is not kept here.
    ByAttempt,
    Glance(Glance),
    /// A look has begun and not ended.
    Perhaps,
}

impl FileProbe {
    /// For a request that has seen the state after that job and that version.
    pub(super) fn new(connection: Connection, key: LeaseKey, turn: u64, version: Option<i64>) -> Self {
        Self {
            connection,
            key,
            turn: AtomicU64::new(turn),
            version: AtomicI64::new(version.unwrap_or(NONE)),
            seen: Mutex::new(Seen::ByAttempt),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, seen: Seen) -> Seen {
        std::mem::replace(&mut *self.seen(), seen)
    }

    /// Whether a look at the holders is due whatever was stored.
    fn is_due(&self) -> bool {
        match &*self.seen() {
            Seen::ByAttempt => false,
            Seen::Perhaps => true,
            Seen::Glance(glance) => has_run_out(glance) || self.admitted(glance).next().is_some(),
        }
    }

    /// Those of this client who hold and have not been told.
    fn admitted(&self, glance: &Glance) -> impl Iterator<Item = RequestId> {
        let client = self.key.id.client();
        let untold = glance.untold.iter().copied();
        untold.filter(move |id| id.client() == client)
    }

    async fn is_moved(&self) -> Result<bool> {
        let last = self.connection.stamps.last_change(&self.key.name);
        let here = last > self.turn.fetch_max(last, Ordering::AcqRel);
        if self.connection.private {
            return Ok(here);
        }
        let version = self
            .connection
            .call(Needs::default(), |view| Ok(view.version.unwrap_or(NONE)))
            .await?;
        Ok(self.version.swap(version, Ordering::AcqRel) != version || here)
    }
}

#[async_trait]
impl Probe for FileProbe {
    async fn look(&self) -> Result<News> {
        let due = self.is_due();
        let before = self.see(Seen::Perhaps);
        if !self.is_moved().await? && !due {
            self.see(before);
            return Ok(News::Nothing);
        }
        let name = self.key.name.clone();
        let needs = Needs {
            glance: Some(name.clone()),
            ..Needs::default()
        };
        let now = self
            .connection
            .call(needs, move |view| view.glance(&name))
            .await?;
        let mut admitted: Vec<_> = self.admitted(&now).collect();
        admitted.sort_unstable();
        let same = matches!(&before, Seen::Glance(before) if before.holders == now.holders);
        let news = if has_run_out(&now) {
            News::Changed
        } else if same && admitted.is_empty() {
            News::Nothing
        } else {
            News::Admitted(admitted)
        };
        self.see(Seen::Glance(now));
        Ok(news)
    }
}

fn has_run_out(glance: &Glance) -> bool {
    glance.earliest.is_some_and(|end| end <= Timestamp::now())
}
