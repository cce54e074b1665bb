//! Looking at a lock: the stream of changes, `inspect`, `force_release`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::Watch;
use dlock_core::{Change, Inspection, LockName, Result, Timestamp};
use futures::future::select;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::connection::Database;
use super::dialect::{Dialect, Server, Watcher};
use super::lock::{Lease, named};

/// How long a watch sleeps after a look that failed, so that one that may work later is not pressed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

struct Watching<D: Dialect> {
    db: Arc<Database<D>>,
    name: LockName,
    watcher: D::Watcher,
    /// Found, and not told yet.
    changes: VecDeque<Change>,
    look_at: Timestamp,
}

impl<D: Dialect> Watching<D> {
    /// What comes next, and what watches on if nothing is wrong.
    async fn next(mut self) -> (Result<Change>, Option<Self>) {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return (Ok(change), Some(self));
            }
            if let Err(e) = self.look().await {
                return (Err(e.with_name(&self.name)), None);
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        self.db.open()?;
        let asleep = self.db.runtime.sleep(Timestamp::now().until(self.look_at));
        {
            let woken = pin!(self.watcher.woken());
            select(select(asleep, woken), self.db.closing.clone()).await;
        }
        self.db.open()?;
        let pause = match self.watcher.look().await {
            Ok((changes, pause)) => {
                self.changes.extend(changes);
                pause
            }
            Err(e) if e.is_retryable() => AFTER_FAILURE,
            Err(e) => return Err(e),
        };
        self.look_at = Timestamp::now() + pause;
        Ok(())
    }
}

#[async_trait]
impl<D: Server> Watch for Lease<D> {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.capabilities.check_name(name)?;
        named(name, self.db.open())?;
        let (watcher, first) = named(name, D::Watcher::begin(&self.db, name).await)?;
        let watching = Watching {
            db: self.db.clone(),
            name: name.clone(),
            watcher,
            changes: [first].into(),
            look_at: Timestamp::now(),
        };
        let next = |watching: Option<Watching<D>>| async move { Some(watching?.next().await) };
        Ok(stream::unfold(Some(watching), next).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.capabilities.check_name(name)?;
        named(name, D::inspect(&self.db, name).await)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.capabilities.check_name(name)?;
        named(name, D::force_release(&self.db, name).await)
    }
}
