//! Looking at a lock: the stream of changes, `inspect`, `force_release`.
//!
//! Nothing is pushed, so a watch looks: one read of the name's row every 5 to 30 ms. When that shows that
//! something changed, a snapshot of the name's rows is compared with what was told, which waits for nobody;
//! see [`Told`] for what a comparison cannot show: then a snapshot says so. Changes thus come one by one
//! while few happen between two looks. When something ran out, or the watch has to be kept, a transaction on
//! the name sees to it: nobody else may be there to take back what has run out.
//!
//! What could be missed, and is not:
//!
//! * *A change between the look and the comparison*: the comparison sees it, and the next look finds another
//!   mark than the one before, which costs a comparison of what is the same.
//! * *The commit of the transaction fails or is not answered*: nothing of it is told, and the next comparison
//!   begins from what was told before.
//! * *Whoever watches does not look for a second and a half*: the changes are not counted any more, and a
//!   snapshot says so.
//! * *A watched name is taken by the short statement, which counts nothing*: it is not, the row of the watch
//!   is in its way.
//!
//! A watch that is dropped leaves that row to run out, which is soon. Other watches of the name share it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Lock as _, Watch};
use dlock_core::{Change, Error, ErrorKind, Inspection, LockName, Result, Timestamp};
use futures::FutureExt as _;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::Row as _;

use super::connection::Db;
use super::failure::foreign;
use super::lock::{MysqlLease, bind, values};
use super::transaction::Absent;
use crate::admit::Told;
use crate::lease::request::check_name;

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(30);

/// How long a watch sleeps after a look that failed, so that one that may work later is not pressed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// How long changes are counted for a watch that does not look. Short, since a stream that is dropped says
/// nothing; each name that is watched costs a transaction in a third of that time.
const COUNTED_FOR: Duration = Duration::from_millis(1_500);

/// What changes when the holders do, or one of them is renewed: the number of changes, the token, the phase,
/// the ends.
type Mark = (i64, i64, i64, i64, i64);

impl Db {
    /// One look; `None` if something is to be taken back, or there is no row.
    async fn mark(self: &Arc<Self>, name: &LockName) -> Result<Option<Mark>> {
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let mut args = values();
        bind(&mut args, name.as_bytes())?;
        let rows = self.read(&self.sql.mark, args).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let get = |column: usize| row.try_get::<i64, _>(column).map_err(bad);
        let mark = (get(0)?, get(1)?, get(2)?, get(3)?, get(4)?);
        Ok((get(5)? == 0).then_some(mark))
    }

    /// Compares with what was told, and keeps nobody waiting; `None` if something is to be taken back, or the
    /// changes were not counted.
    async fn compare(
        self: &Arc<Self>,
        name: &LockName,
        mut told: Told,
    ) -> Result<Option<(Told, Vec<Change>)>> {
        let (now, loaded) = self.look_at(name).await?;
        let state = match loaded {
            Some(loaded) if !loaded.state.is_due(now) => loaded.state,
            _ => return Ok(None),
        };
        let changes = told.compare(&state, now);
        Ok(changes.map(|changes| (told, changes)))
    }

    /// Has the changes counted, takes back what has run out, and compares with what was told; at first, with
    /// nothing.
    async fn see(self: &Arc<Self>, name: &LockName, told: Option<Told>) -> Result<(Told, Vec<Change>)> {
        let own = name.clone();
        let (_, seen) = self
            .change(std::slice::from_ref(name), Absent::Made, move |view| {
                let now = view.now;
                let state = &mut view.made(&own)?.state;
                state.keep_watch(now, COUNTED_FOR);
                let skipped = told.is_some();
                if let Some(mut told) = told
                    && let Some(changes) = told.compare(state, now)
                {
                    return Ok((told, changes));
                }
                let now = state.inspect(now);
                Ok((Told::of(state), vec![Change::Snapshot { now, skipped }]))
            })
            .await?;
        Ok(seen)
    }
}

struct Watching {
    db: Arc<Db>,
    name: LockName,
    told: Told,
    /// Found, and not told yet.
    changes: VecDeque<Change>,
    /// By the look before the last comparison.
    mark: Option<Mark>,
    pause: Duration,
    /// When the watch has to be kept.
    keep_at: Timestamp,
    over: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<Change>> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Some(Ok(change));
            }
            if self.over {
                return None;
            }
            if let Err(e) = self.db.open() {
                return self.fail(e);
            }
            let sleep = self.db.runtime.sleep(self.pause);
            if let Either::Right(_) = select(sleep, self.db.closing.clone()).await {
                continue;
            }
            match self.look().await {
                Ok(()) => {}
                Err(e) if e.is_retryable() || e.kind() == ErrorKind::Unknown => self.pause = AFTER_FAILURE,
                Err(e) => return self.fail(e),
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        let mark = self.db.mark(&self.name).await?;
        if mark.is_some() && mark == self.mark && Timestamp::now() < self.keep_at {
            self.pause = (self.pause * 2).clamp(LOOK_MIN, LOOK_MAX);
            return Ok(());
        }
        let compared = match mark.is_some() && Timestamp::now() < self.keep_at {
            true => self.db.compare(&self.name, self.told.clone()).await?,
            false => None,
        };
        let (told, changes) = match compared {
            Some(compared) => compared,
            None => {
                let seen = self.db.see(&self.name, Some(self.told.clone())).await?;
                self.keep_at = Timestamp::now() + COUNTED_FOR / 3;
                seen
            }
        };
        (self.told, self.mark, self.pause) = (told, mark, LOOK_MIN);
        self.changes.extend(changes);
        Ok(())
    }

    fn fail(&mut self, e: Error) -> Option<Result<Change>> {
        self.over = true;
        Some(Err(e.with_name(&self.name)))
    }
}

#[async_trait]
impl Watch for MysqlLease {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let named = |e: Error| e.with_name(name);
        check_name(self.capabilities(), name).map_err(named)?;
        let (told, first) = self.db.see(name, None).await.map_err(named)?;
        let watching = Watching {
            db: self.db.clone(),
            name: name.clone(),
            told,
            changes: first.into(),
            mark: None,
            pause: LOOK_MIN,
            keep_at: Timestamp::now() + COUNTED_FOR / 3,
            over: false,
        };
        Ok(stream::unfold(watching, |mut w| {
            async move { w.next().await.map(|c| (c, w)) }.boxed()
        })
        .boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let inspected = async {
            check_name(self.capabilities(), name)?;
            let (now, loaded) = self.db.look_at(name).await?;
            Ok::<_, Error>(loaded.map_or_else(Inspection::default, |loaded| loaded.state.inspect(now)))
        };
        inspected.await.map_err(|e| e.with_name(name))
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        let forced = async {
            check_name(self.capabilities(), name)?;
            let own = name.clone();
            self.db
                .change(std::slice::from_ref(name), Absent::Left, move |view| {
                    let now = view.now;
                    Ok(view
                        .name(&own)?
                        .map_or(0, |name| name.state.force_release(now, &mut name.tokens)))
                })
                .await
        };
        let forced = forced.await.map_err(|e| e.with_name(name))?;
        Ok(forced.1)
    }
}
