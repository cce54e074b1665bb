//! "Is there any news?", for those who are not told: one read of the name's row, for all that wait for it in
//! one client.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: the attempt says how it left the name. If it does not,
//!   the first look counts as one that has found others there.
//! * *A waiter that is admitted before it is seated here*: as long as one of ours has not come for what it
//!   was offered, every look says so.
//! * *A lease that runs out, for which nobody stores anything*: the look says that something is due, by the
//!   server's clock.
//! * *A look that is dropped or fails*: the next one counts as the first.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe, Wake};
use dlock_core::{RequestId, Result};

use super::connection::Database;
use super::dialect::Dialect;

/// What changes when anything does: the number of changes, that of other hints, the token, the phase. Of a
/// name that has no row it is all nought.
pub(in crate::lease) type Mark = (i64, i64, i64, i64);

/// What one look has shown.
#[derive(Default)]
pub(in crate::lease) struct Look {
    pub(in crate::lease) mark: Mark,
    /// Something is to be taken back.
    pub(in crate::lease) due: bool,
    /// Whoever was offered a lease and has not come for it, of any client.
    pub(in crate::lease) offered: Vec<RequestId>,
}

struct RowProbe<D: Dialect> {
    db: Arc<Database<D>>,
    key: LeaseKey,
    seen: Mutex<Option<Mark>>,
}

/// `mark` is that of the name as the attempt left it.
pub(in crate::lease) fn looking<D: Dialect>(
    db: &Arc<Database<D>>,
    key: &LeaseKey,
    mark: Option<Mark>,
) -> Wake {
    let (min, max) = D::LOOK;
    let probe = Arc::new(RowProbe {
        db: db.clone(),
        key: key.clone(),
        seen: Mutex::new(mark),
    });
    Wake::Poll { probe, min, max }
}

impl<D: Dialect> RowProbe<D> {
    fn see(&self, mark: Option<Mark>) -> Option<Mark> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut seen, mark)
    }
}

#[async_trait]
impl<D: Dialect> Probe for RowProbe<D> {
    async fn look(&self) -> Result<News> {
        let before = self.see(None);
        let look = D::look(&self.db, &self.key.name).await?;
        self.see(Some(look.mark));
        let ours = |id: &RequestId| id.client() == self.key.id.client();
        let admitted: Vec<_> = look.offered.into_iter().filter(ours).collect();
        Ok(match look.due {
            true => News::Changed,
            false if admitted.is_empty() && before == Some(look.mark) => News::Nothing,
            false => News::Admitted(admitted),
        })
    }

    fn seen(&self) -> Option<u64> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map(|mark| BuildHasherDefault::<DefaultHasher>::default().hash_one(mark))
    }
}
