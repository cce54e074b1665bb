//! How a watch polls.
//!
//! Nothing is pushed, so a watch reads the name's row every 5 to 30 ms. When that shows a change, a snapshot
//! of the name's rows is compared with the last report, without waiting for locks; see [`Told`] for what a
//! comparison cannot show: then a snapshot is reported. When something has expired, or the watch must be
//! renewed, a transaction on the name does it: there may be no other client to remove what has expired.
//!
//! What could be missed, and is not:
//!
//! * *A change between the look and the comparison*: the comparison sees it, and the next look finds a new
//!   mark, which costs one more comparison.
//! * *The commit of the transaction fails or is not answered*: nothing of it is reported, and the next
//!   comparison begins from the last report.
//! * *The watcher does not look for a second and a half*: changes are not counted any more, and a snapshot
//!   says so.
//! * *A watched name is taken by the fast path, which counts nothing*: it is not, since the row of the watch
//!   prevents that.
//!
//! A dropped watch leaves that row to expire, which is soon. Other watches of the name share it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Change, LockName, Result, Timestamp};

use super::lock::look;
use super::transaction::Absent;
use super::{Db, Mysql};
use crate::admit::Told;
use crate::lease::dialect::Mark;
use crate::lease::dialect::Watcher;
use crate::lease::failure::foreign;

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(30);

/// How long changes are counted for a watch that does not look. Short, since a stream that is dropped says
/// nothing; each name that is watched costs a transaction in a third of that time.
const COUNTED_FOR: Duration = Duration::from_millis(1_500);

pub(in crate::lease) struct Watching {
    db: Arc<Db>,
    name: LockName,
    told: Told,
    /// By the look before the last comparison: what changes when the holders do, or one of them is renewed.
    mark: Option<(Mark, [i64; 2])>,
    pause: Duration,
    /// When the watch has to be kept.
    keep_at: Timestamp,
}

/// Has the changes counted, takes back what has run out, and compares with what was told; at first, with
/// nothing.
async fn see(db: &Arc<Db>, name: &LockName, told: Option<Told>) -> Result<(Told, Vec<Change>)> {
    let seen = db.change(name, Absent::Made, move |name| {
        let now = name.now;
        name.settled().ledger.keep_watch(now, COUNTED_FOR);
        let state = &name.state;
        let skipped = told.is_some();
        if let Some(mut told) = told
            && let Some(changes) = told.compare(state, now)
        {
            return Ok((told, changes));
        }
        let now = state.rows.inspect(now);
        Ok((Told::of(state), vec![Change::Snapshot { now, skipped }]))
    });
    seen.await?.0.ok_or_else(|| foreign("a row that vanished"))
}

impl Watcher<Mysql> for Watching {
    async fn begin(db: &Arc<Db>, name: &LockName) -> Result<(Self, Change)> {
        let (told, changes) = see(db, name, None).await?;
        let watching = Self {
            db: db.clone(),
            name: name.clone(),
            told,
            mark: None,
            pause: LOOK_MIN,
            keep_at: Timestamp::now() + COUNTED_FOR / 3,
        };
        let first = changes.into_iter().next();
        Ok((watching, first.ok_or_else(|| foreign("no snapshot"))?))
    }

    async fn look(&mut self) -> Result<(Vec<Change>, Duration)> {
        let (db, name) = (&self.db, &self.name);
        let is_kept = Timestamp::now() < self.keep_at;
        let seen = look(db, name).await?.filter(|(look, _)| !look.due);
        let mark = seen.map(|(look, ends)| (look.mark, ends));
        let mut compared = None;
        if mark.is_some() && is_kept {
            if mark == self.mark {
                self.pause = (self.pause * 2).min(LOOK_MAX);
                return Ok((Vec::new(), self.pause));
            }
            // This delays no other.
            if let Some(now) = db.look_at(name).await?
                && !now.state.is_due(now.now)
            {
                let mut told = self.told.clone();
                compared = told.compare(&now.state, now.now).map(|changes| (told, changes));
            }
        }
        let (told, changes) = match compared {
            Some(compared) => compared,
            // Something is to be taken back, there is no row, or the changes were not counted.
            None => {
                let seen = see(db, name, Some(self.told.clone())).await?;
                self.keep_at = Timestamp::now() + COUNTED_FOR / 3;
                seen
            }
        };
        (self.told, self.mark, self.pause) = (told, mark, LOOK_MIN);
        Ok((changes, LOOK_MIN))
    }
}
