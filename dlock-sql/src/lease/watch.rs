//! Looking at a lock: the stream of changes, `inspect`, `force_release`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Page, Watch};
use dlock_core::{Change, Inspection, LockName, Result, Timestamp};
use futures::future::select;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::connection::Database;
use super::dialect::{Dialect, Watcher};
use super::lock::{Lease, named};
use crate::listing::Span;

/// How long a watch sleeps after a look that failed, so that one that may work later is not pressed.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

struct Watching<D: Dialect> {
    db: Arc<Database<D>>,
    name: LockName,
    watcher: D::Watcher,
    /// Found, and not reported yet.
    changes: VecDeque<Change>,
    look_at: Timestamp,
}

impl<D: Dialect> Watching<D> {
    /// The next change.
    async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Ok(change);
            }
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
        }
    }
}

#[async_trait]
impl<D: Dialect> Watch for Lease<D> {
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
        // It ends behind the first error.
        let next = |mut watching: Watching<D>| async move {
            let next = watching.next().await;
            Ok(Some((named(&watching.name, next)?, watching)))
        };
        Ok(stream::try_unfold(watching, next).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.capabilities.check_name(name)?;
        named(name, D::inspect(&self.db, name).await)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.capabilities.check_name(name)?;
        named(name, D::force_release(&self.db, name).await)
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        self.db.open()?;
        Ok(Span::page(D::list(&self.db, Span::new(prefix, from)).await?))
    }
}
