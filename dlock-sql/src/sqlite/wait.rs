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
    known: Mutex<Known>,
}

/// What the last look has seen, against which the next one compares.
struct Known {
    turn: u64,
    version: Option<i64>,
    holders: Holders,
}

enum Holders {
    /// The attempt has looked, and what it has seen is not kept here.
    ByAttempt,
    Glance(Glance),
    /// A look has begun and not ended.
    Perhaps,
}

impl FileProbe {
    /// For a request that has seen the state after that job and that version.
    pub(super) fn new(connection: Connection, key: LeaseKey, turn: u64, version: Option<i64>) -> Self {
        let holders = Holders::ByAttempt;
        Self {
            connection,
            key,
            known: Mutex::new(Known {
                turn,
                version,
                holders,
            }),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of this client who hold and have not been told.
    fn admitted(&self, glance: &Glance) -> impl Iterator<Item = RequestId> {
        let client = self.key.id.client();
        let untold = glance.untold.iter().copied();
        untold.filter(move |id| id.client() == client)
    }

    /// Whether a look at the holders is due whatever was stored.
    fn is_due(&self, holders: &Holders) -> bool {
        match holders {
            Holders::ByAttempt => false,
            Holders::Perhaps => true,
            Holders::Glance(glance) => has_run_out(glance) || self.admitted(glance).next().is_some(),
        }
    }

    /// Whether something was stored since the last look.
    async fn is_moved(&self) -> Result<bool> {
        let last = self.connection.stamps.last_change(&self.key.name);
        let here = {
            let turn = &mut self.known().turn;
            last > std::mem::replace(turn, last.max(*turn))
        };
        if self.connection.private {
            return Ok(here);
        }
        let version = self
            .connection
            .call(Needs::default(), |view| Ok(view.version))
            .await?;
        Ok(std::mem::replace(&mut self.known().version, version) != version || here)
    }
}

#[async_trait]
impl Probe for FileProbe {
    async fn look(&self) -> Result<News> {
        let before = std::mem::replace(&mut self.known().holders, Holders::Perhaps);
        let due = self.is_due(&before);
        if !self.is_moved().await? && !due {
            self.known().holders = before;
            return Ok(News::Nothing);
        }
        let name = self.key.name.clone();
        let glance = self.connection.ask(Needs::default(), |view, store| {
            async move {
                match view.names.get(&name) {
                    Some(state) => Ok(state.as_ref().map(NameState::glance).map_err(Error::clone)),
                    None => store.glance(&name).await,
                }
            }
            .boxed()
        });
        let now = glance.await?;
        let mut admitted: Vec<_> = self.admitted(&now).collect();
        admitted.sort_unstable();
        let same = matches!(&before, Holders::Glance(before) if before.holders == now.holders);
        let news = if has_run_out(&now) {
            News::Changed
        } else if same && admitted.is_empty() {
            News::Nothing
        } else {
            News::Admitted(admitted)
        };
        self.known().holders = Holders::Glance(now);
        Ok(news)
    }
}

fn has_run_out(glance: &Glance) -> bool {
    glance.earliest.is_some_and(|end| end <= Timestamp::now())
}
