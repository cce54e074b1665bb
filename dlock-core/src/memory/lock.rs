//! The required methods: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use futures::channel::mpsc;
use futures::stream::{BoxStream, StreamExt};

use super::connection::Connection;
use super::failure::invalid;
use super::wait::looking;
use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::spi::admission::Asked;
use crate::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Queueing, Release, Released, Renew, RwLock, Signal,
    Wake, Watch,
};

/// One client's connection to a [`Memory`](super::Memory) store.
///
/// Each call reads the client's clock first, then takes the store's mutex once. No call waits for anything
/// else, so dropping its future has no effect: the call has not begun, or is done.
pub struct MemoryLock {
    pub(super) connection: Arc<Connection>,
}

impl MemoryLock {
    /// One attempt, in one step of the store.
    pub(super) fn ask(&self, request: &Acquire) -> Result<Attempt> {
        let (connection, key) = (&*self.connection, &request.key);
        connection.check_open()?;
        connection.shared.caps.check(request)?;
        if request.queue == Queueing::Join && request.queue_ttl.is_zero() {
            return Err(invalid("a queue entry needs a ttl"));
        }
        connection.call(|state, sent, effects| {
            Ok(match state.table.attempt(request, effects)? {
                Asked::Granted(lease) => Attempt::Granted(connection.shown(lease.grant(key.clone(), sent))),
                Asked::Queued(place) => {
                    let anchor = connection.anchor(sent, effects.now);
                    let pushes = state.listen(key, connection.id, anchor);
                    Attempt::Queued(place.wait(Wake::Push(pushes)))
                }
                Asked::Held(place) => {
                    let seen = state.table.fingerprint(&key.name, effects);
                    let wake = looking(&connection.shared, &key.name, seen.unwrap_or(0));
                    Attempt::Held(place.wait(wake))
                }
            })
        })
    }
}

#[async_trait]
impl Lock for MemoryLock {
    fn capabilities(&self) -> &Capabilities {
        &self.connection.shared.caps
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        Some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.connection.shared.has_tokens().then_some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let (sender, receiver) = mpsc::unbounded();
        let mut state = self.connection.shared.lock();
        state.signals.retain(|s| !s.is_closed());
        state.signals.push(sender);
        receiver.boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.ask(request)
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.connection.check_open()?;
        let release = self
            .connection
            .call(|state, _, effects| state.table.release(lease, how, effects));
        Ok(release)
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let connection = &*self.connection;
        let abandon = |key: &LeaseKey| {
            connection.check_open()?;
            let mut abandoned = connection.call(|state, _, effects| state.table.abandon(key, effects));
            if let Abandoned::WasGranted(token) = &mut abandoned {
                *token = token.filter(|_| connection.shared.has_tokens());
            }
            Ok(abandoned)
        };
        requests.iter().map(abandon).collect()
    }

    async fn close(&self) -> Result<()> {
        let id = self.connection.id;
        if self.connection.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (ended, wakers) = {
            let mut state = self.connection.shared.lock();
            let mut ended = Vec::new();
            state.waiters.retain(|_, listeners| {
                ended.extend(listeners.extract_if(.., |l| l.connection == id));
                !listeners.is_empty()
            });
            let watchers = state.watchers.values_mut().flatten();
            let mine = watchers.filter(|w| w.connection == id);
            let wakers: Vec<_> = mine.filter_map(|w| w.waker.take()).collect();
            (ended, wakers)
        };
        // Outside the mutex: a waker may run code that calls the store.
        drop(ended);
        wakers.into_iter().for_each(std::task::Waker::wake);
        Ok(())
    }
}

impl fmt::Debug for MemoryLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLock")
            .field("id", &self.connection.id)
            .finish_non_exhaustive()
    }
}
