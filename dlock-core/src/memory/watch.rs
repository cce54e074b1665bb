//! Observing a lock, and the stream of its changes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream, StreamExt};

use super::connection::Connection;
use super::failure::{broken, foreign};
use super::lock::MemoryLock;
use super::shared::State;
use super::table::Effects;
use super::watchers::Watcher;
use crate::error::Result;
use crate::inspection::{Change, Inspection};
use crate::name::LockName;
use crate::spi::{Page, Watch};
use crate::timestamp::Timestamp;

/// The shortest timer: with a client's clock that runs slightly fast, shorter ones would spin until the
/// store's expiry.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

#[async_trait]
impl Watch for MemoryLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.check_watched(name)?;
        Ok(Changes::new(self.connection.clone(), name.clone()).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.check_watched(name)?;
        self.connection.call(|state, _, effects| {
            if state.table.spoiled(name).is_some() {
                return Err(foreign(name));
            }
            Ok(state.table.inspect(name, effects))
        })
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.check_watched(name)?;
        let release = |state: &mut State, _, effects: &mut _| state.table.force_release(name, effects);
        Ok(self.connection.call(release))
    }

    /// On one page.
    async fn list(&self, prefix: &[u8], _from: Option<&[u8]>) -> Result<Page> {
        self.connection.check_open()?;
        let list = |state: &mut State, _, effects: &mut Effects| state.table.list(prefix, effects.now);
        Ok(Page::new(self.connection.call(list), None))
    }
}

impl MemoryLock {
    fn check_watched(&self, name: &LockName) -> Result<()> {
        self.connection.check_open()?;
        self.connection.shared.caps.check_name(name)
    }
}

/// The stream of changes of one name.
///
/// The store has no timer for expiries, so the stream has one while it is polled, for the earliest expiry of
/// the name. When it fires, the stream removes expired entries, as any call would.
struct Changes {
    connection: Arc<Connection>,
    name: LockName,
    id: u64,
    epoch: u64,
    ended: bool,
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

/// The result of a look at the store.
enum Look {
    Item(Change),
    Broken,
    /// Nothing yet; the time until the name's next expiry, on the store's clock.
    Nothing(Option<(Timestamp, Duration)>),
}

impl Changes {
    fn new(connection: Arc<Connection>, name: LockName) -> Self {
        // The snapshot is taken and the watcher registered under one mutex: no change is between the two or
        // in both.
        let (id, epoch) = connection.shared.run(None, |state, effects| {
            let snapshot = Change::Snapshot {
                now: state.table.inspect(&name, effects),
                skipped: false,
            };
            // Entries that this call removed ended before the snapshot; other watchers are still notified.
            let id = state.next_watcher;
            state.next_watcher += 1;
            note_now(state, effects);
            let watcher = Watcher::new(id, connection.id, snapshot);
            state.watchers.entry(name.clone()).or_default().push(watcher);
            (id, state.epoch)
        });
        Self {
            connection,
            name,
            id,
            epoch,
            ended: false,
            timer: None,
        }
    }

    fn look(&self, waker: &Waker) -> Look {
        self.connection.shared.run(None, |state, effects| {
            let expiry = state.table.expire(&self.name, effects);
            // The changes of this call would reach the buffer only after it: they are put there now, for this
            // stream.
            note_now(state, effects);
            if state.epoch != self.epoch {
                return Look::Broken;
            }
            let watchers = state.watchers.get_mut(&self.name).into_iter().flatten();
            let Some(watcher) = watchers.into_iter().find(|w| w.id == self.id) else {
                return Look::Broken;
            };
            if watcher.overflown {
                watcher.overflown = false;
                let now = state.table.inspect(&self.name, effects);
                return Look::Item(Change::Snapshot { now, skipped: true });
            }
            match watcher.buffer.pop_front() {
                Some(change) => Look::Item(change),
                None => {
                    watcher.waker = Some(waker.clone());
                    // This call's own nudge must not wake the stream that is looking.
                    effects.news().nudged.retain(|n| n != &self.name);
                    Look::Nothing(expiry.map(|e| (e, effects.now.until(e))))
                }
            }
        })
    }
}

/// Puts the changes of an unfinished call into the buffers. Watchers are still notified after it.
fn note_now(state: &mut State, effects: &mut Effects) {
    if !effects.observed {
        return;
    }
    let news = effects.news();
    for (name, change) in std::mem::take(&mut news.changes) {
        for watcher in state.watchers.get_mut(&name).into_iter().flatten() {
            watcher.note(change.clone());
        }
        news.nudged.push(name);
    }
}

impl Stream for Changes {
    type Item = Result<Change>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Err(closed) = this.connection.check_open() {
                this.ended = true;
                return Poll::Ready(Some(Err(closed)));
            }
            let next = match this.look(cx.waker()) {
                Look::Item(change) => return Poll::Ready(Some(Ok(change))),
                Look::Broken => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(broken().with_name(&this.name))));
                }
                Look::Nothing(next) => next,
            };
            let Some((expiry, rest)) = next else {
                this.timer = None;
                return Poll::Pending;
            };
            if this.timer.as_ref().is_none_or(|(armed, _)| *armed != expiry) {
                this.timer = Some((expiry, this.connection.runtime.sleep(rest.max(SHORTEST_SLEEP))));
            }
            if let Some((_, sleep)) = &mut this.timer {
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                this.timer = None;
            }
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut state = self.connection.shared.lock();
        if let Some(watchers) = state.watchers.get_mut(&self.name) {
            watchers.retain(|w| w.id != self.id);
            if watchers.is_empty() {
                state.watchers.remove(&self.name);
            }
        }
    }
}
