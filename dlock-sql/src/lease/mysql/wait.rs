//! "Is there any news?": one read of the name's row, for all that wait for it in one client.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: the attempt knows how it left the name; where it does
//!   not, the first look counts as one that has found others there. The first look of one waiter may be that
//!   of another one (`sight`), if it was sent when the attempt had been answered.
//! * *A waiter that is admitted before it is seated here*: as long as one of ours has not come for what it
//!   was offered, every look says so.
//! * *A lease that runs out, for which nobody stores anything*: the look says that something is due, by the
//!   server's clock.
//! * *A look that is dropped or fails*: the next one counts as the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe};
use dlock_core::{LockName, RequestId, Result, Timestamp};
use sqlx::Row as _;

use super::connection::Db;
use super::failure::foreign;
use super::lock::{bind, values};
use super::sight::{Look, Sight};
use super::state::Mark;
use super::text::read_id;

pub(super) struct RowProbe {
    db: Arc<Db>,
    key: LeaseKey,
    sight: Arc<Sight>,
    seen: Mutex<Option<Mark>>,
    /// When the attempt was answered, until the first look.
    answered: Timestamp,
    is_first: AtomicBool,
}

impl RowProbe {
    /// `mark` is that of the name as the attempt left it.
    pub(super) fn new(db: Arc<Db>, key: LeaseKey, mark: Option<Mark>) -> Self {
        Self {
            sight: db.sights.of(&key.name),
            db,
            key,
            seen: Mutex::new(mark),
            answered: Timestamp::now(),
            is_first: AtomicBool::new(true),
        }
    }

    fn see(&self, mark: Option<Mark>) -> Option<Mark> {
        std::mem::replace(
            &mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner),
            mark,
        )
    }
}

impl Db {
    async fn look(self: &Arc<Self>, name: &LockName) -> Result<Look> {
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let mut args = values();
        bind(&mut args, name.as_bytes())?;
        let rows = self.read(&self.sql.look, args).await?;
        let Some(row) = rows.first() else {
            return Ok(Look::default());
        };
        let mut look = Look {
            mark: (
                row.try_get(0).map_err(bad)?,
                row.try_get(1).map_err(bad)?,
                row.try_get(2).map_err(bad)?,
            ),
            due: row.try_get::<Option<i64>, _>(3).map_err(bad)? == Some(1),
            offered: Vec::new(),
        };
        for column in [4, 5] {
            let offered: Option<String> = row.try_get(column).map_err(bad)?;
            let ids = offered.iter().flat_map(|all| all.split(','));
            look.offered.extend(ids.filter_map(read_digits));
        }
        Ok(look)
    }
}

fn read_digits(digits: &str) -> Option<RequestId> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    read_id(&bytes?)
}

#[async_trait]
impl Probe for RowProbe {
    async fn look(&self) -> Result<News> {
        let before = self.see(None);
        let shown = match self.is_first.swap(false, Ordering::Relaxed) && before.is_some() {
            true => self.sight.after(self.answered),
            false => None,
        };
        let look = match shown {
            Some(look) => look,
            None => {
                let sent = Timestamp::now();
                let look = self.db.look(&self.key.name).await?;
                self.sight.show(sent, &look);
                look
            }
        };
        self.see(Some(look.mark));
        if look.due {
            return Ok(News::Changed);
        }
        let own = |id: &RequestId| id.client() == self.key.id.client();
        let admitted: Vec<_> = look.offered.into_iter().filter(own).collect();
        for id in &admitted {
            let key = LeaseKey::new(self.key.name.clone(), *id);
            self.db.sights.offer(key);
        }
        Ok(match admitted.is_empty() && before == Some(look.mark) {
            true => News::Nothing,
            false => News::Admitted(admitted),
        })
    }
}
