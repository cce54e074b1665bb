//! "Is there any news?", for those who are not told: one read of the name's row, for all that wait for it in
//! one client.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: the first look counts as one that has found others
//!   there.
//! * *A waiter that is admitted before it is seated here*: as long as one of ours has not come for what it
//!   was offered, every look says so.
//! * *A lease that runs out, for which nobody stores anything*: the row says that something is due, by the
//!   server's clock.
//! * *A look that is dropped or fails*: the next one counts as the first.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock_core::Result;
use dlock_core::spi::{LeaseKey, News, Probe};
use sqlx::Row as _;

use super::call::Value;
use super::connection::Db;
use super::failure::foreign;
use super::reply::read_id_digits;

/// What changes when anything does: both numbers, the token, the phase. Of a name that has no row it is all
/// nought.
type Mark = (i64, i64, i64, i32);

pub(super) struct RowProbe {
    db: Arc<Db>,
    key: LeaseKey,
    seen: Mutex<Option<Mark>>,
}

impl RowProbe {
    pub(super) fn new(db: Arc<Db>, key: LeaseKey) -> Self {
        Self {
            db,
            key,
            seen: Mutex::new(None),
        }
    }

    fn see(&self, mark: Option<Mark>) -> Option<Mark> {
        std::mem::replace(
            &mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner),
            mark,
        )
    }
}

#[async_trait]
impl Probe for RowProbe {
    async fn look(&self) -> Result<News> {
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let before = self.see(None);
        let name = Value::Bytes(self.key.name.as_bytes());
        let rows = self.db.read(&self.db.sql.look, &[name]).await?;
        let (mut mark, mut due, mut admitted) = (Mark::default(), false, Vec::new());
        if let Some(row) = rows.first() {
            mark = (
                row.try_get(0).map_err(bad)?,
                row.try_get(1).map_err(bad)?,
                row.try_get(2).map_err(bad)?,
                row.try_get(3).map_err(bad)?,
            );
            due = row.try_get(4).map_err(bad)?;
            let offered: String = row.try_get(5).map_err(bad)?;
            let client = self.key.id.client();
            let ids = offered.split(',').filter_map(read_id_digits);
            admitted.extend(ids.filter(|id| id.client() == client));
        }
        self.see(Some(mark));
        Ok(match due {
            true => News::Changed,
            false if admitted.is_empty() && before == Some(mark) => News::Nothing,
            false => News::Admitted(admitted),
        })
    }
}
