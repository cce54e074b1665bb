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

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe};
use dlock_core::{Error, RequestId, Result, Timestamp};
use futures::FutureExt as _;

use super::connection::{Connection, Needs};
use crate::admit::{Glance, NameState};

pub(super) struct FileProbe {
    connection: Connection,
    key: LeaseKey,
    /// Nothing while a look is under way, or after one that has not ended.
    known: Mutex<Option<Known>>,
}

/// What the last look has seen, against which the next one compares.
struct Known {
    turn: u64,
    version: Option<i64>,
    /// What the attempt has seen is not kept here.
    holders: Option<Glance>,
}

impl FileProbe {
    /// For a request that has seen the state after that job and that version.
    pub(super) fn new(connection: Connection, key: LeaseKey, turn: u64, version: Option<i64>) -> Self {
        let known = Known {
            turn,
            version,
            holders: None,
        };
        Self {
            connection,
            key,
            known: Mutex::new(Some(known)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of this client who hold and have not been told.
    fn admitted(&self, glance: &Glance) -> impl Iterator<Item = RequestId> {
        let client = self.key.id.client();
        let untold = glance.untold.iter().copied();
        untold.filter(move |id| id.client() == client)
    }

    /// Whether a look at the holders is due whatever was stored.
    fn is_due(&self, glance: &Glance) -> bool {
        has_run_out(glance) || self.admitted(glance).next().is_some()
    }
}

#[async_trait]
impl Probe for FileProbe {
    async fn look(&self) -> Result<News> {
        let before = self.known().take();
        // Read first: what comes later is news to the next look.
        let turn = self.connection.stamps.last_change(&self.key.name);
        let still = before.as_ref().filter(|known| {
            turn <= known.turn && !known.holders.as_ref().is_some_and(|glance| self.is_due(glance))
        });
        // Nothing is new if that is still the version.
        let still = still.map(|known| known.version);
        let mut seen = None;
        if still.is_none() || !self.connection.private {
            let name = self.key.name.clone();
            let look = self.connection.ask(Needs::default(), move |view, store| {
                async move {
                    if still == Some(view.version) {
                        return Ok(Ok(None));
                    }
                    let glance = match view.names.get(&name) {
                        Some(state) => state.as_ref().map(NameState::glance).map_err(Error::clone),
                        None => store.glance(&name).await?,
                    };
                    Ok(glance.map(|glance| Some((glance, view.version))))
                }
                .boxed()
            });
            seen = look.await?;
        }
        let Some((now, version)) = seen else {
            *self.known() = before;
            return Ok(News::Nothing);
        };
        let mut admitted: Vec<_> = self.admitted(&now).collect();
        admitted.sort_unstable();
        let holders = before.as_ref().and_then(|known| known.holders.as_ref());
        let same = holders.is_some_and(|before| before.holders == now.holders);
        let news = if has_run_out(&now) {
            News::Changed
        } else if same && admitted.is_empty() {
            News::Nothing
        } else {
            News::Admitted(admitted)
        };
        *self.known() = Some(Known {
            turn: before.map_or(turn, |known| known.turn.max(turn)),
            version,
            holders: Some(now),
        });
        Ok(news)
    }
}

fn has_run_out(glance: &Glance) -> bool {
    glance.earliest.is_some_and(|end| end <= Timestamp::now())
}
