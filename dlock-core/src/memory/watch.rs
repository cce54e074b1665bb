use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::Stream;

use super::shared::{Shared, State};
use super::table::Effects;
use crate::error::{Error, ErrorKind, Result};
use crate::inspection::Change;
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::timestamp::Timestamp;

/// How many changes wait for a slow consumer before a fresh snapshot takes their place.
const BUFFER: usize = 1024;
/// A timer is never armed for less: a client's clock that runs a little fast would spin before the store's
/// expiry.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

/// One watch stream, as the store knows it.
pub(super) struct Watcher {
    id: u64,
    pub(super) link: u64,
    buffer: VecDeque<Change>,
    /// The buffer was full; what comes is in the snapshot that the stream takes when it is next asked.
    overflown: bool,
    pub(super) waker: Option<Waker>,
}

impl Watcher {
    pub(super) fn note(&mut self, change: Change) {
        if self.overflown {
            return;
        }
        if self.buffer.len() >= BUFFER {
            self.buffer = VecDeque::new();
            self.overflown = true;
            return;
        }
        self.buffer.push_back(change);
    }
}

/// The stream of changes of one name.
///
/// Expiry has no timer in the store, so the stream keeps one of its own while it is asked: for the earliest
/// expiry of that name, after which it takes back what has run out, as any call would.
pub(super) struct Changes {
    shared: Arc<Shared>,
    runtime: Arc<dyn Runtime>,
    closed: Arc<AtomicBool>,
    name: LockName,
    id: u64,
    epoch: u64,
    ended: bool,
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

/// What one look at the store gave.
enum Look {
    Item(Change),
    Broken,
    /// Nothing yet; the name's next expiry, and how far it is on the store's clock.
    Nothing(Option<(Timestamp, Duration)>),
}

impl Changes {
    pub(super) fn new(
        shared: Arc<Shared>,
        runtime: Arc<dyn Runtime>,
        closed: Arc<AtomicBool>,
        link: u64,
        name: LockName,
    ) -> Self {
        // The snapshot is taken and the watcher entered under one lock: no change is between the two or in
        // both.
        let (id, epoch) = shared.run(None, |state, effects| {
            let snapshot = Change::Snapshot {
                now: state.table.inspect(&name, effects),
                skipped: false,
            };
            // What this call itself took back happened before the snapshot; others watching are still told.
            let id = state.next_watcher;
            state.next_watcher += 1;
            note_now(state, effects);
            state.watchers.entry(name.clone()).or_default().push(Watcher {
                id,
                link,
                buffer: VecDeque::from([snapshot]),
                overflown: false,
                waker: None,
            });
            (id, state.epoch)
        });
        Self {
            shared,
            runtime,
            closed,
            name,
            id,
            epoch,
            ended: false,
            timer: None,
        }
    }

    fn look(&self, waker: &Waker) -> Look {
        self.shared.run(None, |state, effects| {
            let expiry = state.table.expire(&self.name, effects);
            // The changes of this very call come to the buffer only after it: they are put there now, for
            // this stream.
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
                    // This call's own nudge must not wake the one that is looking.
                    effects.news().nudged.retain(|n| n != &self.name);
                    Look::Nothing(expiry.map(|e| (e, effects.now.until(e))))
                }
            }
        })
    }
}

/// Puts the changes of a call that is not over into the buffers; whoever watches is still told after it.
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
            if this.closed.load(Ordering::Acquire) {
                this.ended = true;
                return Poll::Ready(Some(Err(Error::new(
                    ErrorKind::Closed,
                    "the link to the store is closed",
                ))));
            }
            let next = match this.look(cx.waker()) {
                Look::Item(change) => return Poll::Ready(Some(Ok(change))),
                Look::Broken => {
                    this.ended = true;
                    let error = Error::new(ErrorKind::Unavailable, "the connection to the store broke");
                    return Poll::Ready(Some(Err(error.with_name(&this.name))));
                }
                Look::Nothing(next) => next,
            };
            let Some((expiry, rest)) = next else {
                this.timer = None;
                return Poll::Pending;
            };
            if this.timer.as_ref().is_none_or(|(armed, _)| *armed != expiry) {
                this.timer = Some((expiry, this.runtime.sleep(rest.max(SHORTEST_SLEEP))));
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
        let mut state = self.shared.lock();
        if let Some(watchers) = state.watchers.get_mut(&self.name) {
            watchers.retain(|w| w.id != self.id);
            if watchers.is_empty() {
                state.watchers.remove(&self.name);
            }
        }
    }
}
