//! Watching a lock: the stream of changes, `inspect`, `force_release`.
//!
//! Changes through this `SqliteLock` and its clones are reported exactly, commit by commit. Changes by
//! others, even another client of this process, are found by comparing the holders at two polls, 5 to 50 ms
//! apart: one by one if they are few, as a snapshot if they are more, or if a comparison would misreport
//! them, as with a forced release. See [`Told`](crate::admit::Told).

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Page, Watch};
use dlock_core::{Change, Inspection, LockName, Result, Timestamp};
use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use super::connection::{Connection, Needs};
use super::lock::SqliteLock;
use super::store::Sync;
use crate::admit::Settled;
use crate::listing::Span;

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(50);

/// How long a watch sleeps after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How long changes are counted for a watch that does not look: longer than any look takes.
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// The consumer's end: polls the file while nothing is pushed.
struct Looking {
    receive: mpsc::Receiver<Result<Change>>,
    connection: Connection,
    name: LockName,
    pause: Duration,
    /// When to look although changes keep coming: they may all be of this connection.
    look_by: Timestamp,
}

impl Looking {
    /// An error is the last of all.
    async fn next(&mut self) -> Result<Change> {
        loop {
            if Timestamp::now() < self.look_by {
                let sleep = self.connection.runtime.sleep(self.pause);
                match select(self.receive.next(), sleep).await {
                    Either::Left((Some(change), _)) => {
                        self.pause = LOOK_MIN;
                        return change;
                    }
                    Either::Left((None, _)) => return Err(self.connection.closed().with_name(&self.name)),
                    Either::Right(_) => self.pause = (self.pause * 2).min(LOOK_MAX),
                }
            }
            let looked = self.look().await;
            self.look_by = Timestamp::now() + COUNTED_FOR / 4;
            match looked {
                // A file that is busy or a disk that is full for a while costs a delay and no change: the
                // next look compares with what was told last.
                Err(e) if e.is_retryable() => self.pause = AFTER_FAILURE,
                looked => looked?,
            }
        }
    }

    /// Finds what others have stored, and takes back what has run out, which nobody else may be there to do.
    async fn look(&self) -> Result<()> {
        let name = self.name.clone();
        let due = self
            .connection
            .call(Needs::read(&self.name), move |view| {
                let now = view.now;
                let (state, watchers) = view.look(&name)?;
                // Who was told that changes were skipped may have room by now.
                watchers.tell(&name, Some(&[]), state, now);
                Ok(state.is_due(now) || !state.is_watched(now + COUNTED_FOR / 2))
            })
            .await?;
        if due {
            keep_watch(&self.connection, &self.name).await?;
        }
        Ok(())
    }
}

/// Has the changes of that name counted, and takes back what has run out.
async fn keep_watch(connection: &Connection, name: &LockName) -> Result<()> {
    let keep = |name: &mut Settled<'_>| {
        name.ledger.keep_watch(name.now, COUNTED_FOR);
        Ok(())
    };
    connection.change(Sync::Ordinary, name, keep).await
}

#[async_trait]
impl Watch for SqliteLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.capabilities.check_name(name)?;
        // First the count, then the snapshot: it holds all that was not counted.
        keep_watch(&self.connection, name).await?;
        let key = name.clone();
        let receive = self.connection.call(Needs::read(name), move |view| {
            let now = view.now;
            let (state, watchers) = view.look(&key)?;
            Ok(watchers.add(&key, state, now))
        });
        let looking = Looking {
            receive: receive.await?,
            connection: self.connection.clone(),
            name: name.clone(),
            pause: LOOK_MIN,
            look_by: Timestamp::now() + COUNTED_FOR / 4,
        };
        let next = |mut looking: Looking| async move { Ok(Some((looking.next().await?, looking))) };
        Ok(stream::try_unfold(looking, next).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.capabilities.check_name(name)?;
        let key = name.clone();
        let inspected = self.connection.call(Needs::read(name), move |view| {
            let now = view.now;
            Ok(view.look(&key)?.0.rows.inspect(now))
        });
        inspected.await
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.capabilities.check_name(name)?;
        let force = |name: &mut Settled<'_>| Ok(name.force_release());
        self.connection.change(Sync::Ordinary, name, force).await
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let span = Span::new(prefix, from);
        let listed = self.connection.ask(Needs::read_nothing(), |view, store| {
            let now = view.now;
            async move { store.list(now, span).await.map(Ok) }.boxed()
        });
        listed.await.map(Span::page)
    }
}
