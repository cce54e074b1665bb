//! "Is there any news?", asked for all who wait for a name in one client.
//!
//! A look compares the holders with those of the look before. It is one job without a write lock, and asks
//! SQLite for no more than `PRAGMA data_version` as long as nobody else has stored anything; when somebody
//! has, the holders are counted by one statement, however many wait. With ten clients of fifty waiters each,
//! to ask in full after each commit was ten transactions that load five hundred rows.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: the first compares with what the attempt has seen.
//! * *A waiter that is admitted before it is seated here*: as long as an admitted one of ours has not been
//!   told, every look says so.
//! * *A lease that runs out, for which nobody stores anything*: each look sees the first of the ends.
//! * *A look that is dropped or fails*: the next one compares with the last that has ended.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe};
use dlock_core::{Result, Timestamp};
use futures::FutureExt as _;

use super::connection::{Connection, Needs};
use crate::admit::Holders;

pub(super) struct FileProbe {
    connection: Connection,
    key: LeaseKey,
    seen: Mutex<Holders>,
}

impl FileProbe {
    /// For a request that has seen those holders.
    pub(super) fn new(connection: Connection, key: LeaseKey, seen: Holders) -> Self {
        Self {
            connection,
            key,
            seen: Mutex::new(seen),
        }
    }
}

#[async_trait]
impl Probe for FileProbe {
    async fn look(&self) -> Result<News> {
        let name = self.key.name.clone();
        let look = self.connection.ask(Needs::default(), move |view, store| {
            async move { view.glance(store, &name).await }.boxed()
        });
        let glance = look.await?;
        let mut admitted = glance.untold;
        admitted.retain(|id| id.client() == self.key.id.client());
        admitted.sort_unstable();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, glance.holders);
        Ok(match glance.earliest {
            Some(end) if end <= Timestamp::now() => News::Changed,
            _ if *seen == before && admitted.is_empty() => News::Nothing,
            _ => News::Admitted(admitted),
        })
    }
}
