//! The core of the backend: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Release, Released, Renew, RwLock, Signal, Watch,
};
use dlock_core::{Capabilities, Error, Finding, LossReason, Result, Timestamp};
use futures::FutureExt as _;
use futures::stream::BoxStream;

use super::connection::{Connection, Needs};
use super::store::Sync;
use crate::admit::{Asked, Holders};
use crate::probe::looking;
use crate::requests;

/// How soon after a look at the file the next one pays, and how late it may be.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Locks in a SQLite database.
///
/// Clones share one connection, which is closed with the last of them, so give each client of a process a
/// clone of its own.
pub struct SqliteLock {
    pub(super) connection: Connection,
    pub(super) at: Arc<str>,
    pub(super) capabilities: Arc<Capabilities>,
}

impl Clone for SqliteLock {
    fn clone(&self) -> Self {
        Self {
            connection: self.connection.another(),
            at: self.at.clone(),
            capabilities: self.capabilities.clone(),
        }
    }
}

/// Never blocks: the connection task ends when its last user has gone.
impl Drop for SqliteLock {
    fn drop(&mut self) {
        self.connection.let_go();
    }
}

impl fmt::Debug for SqliteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteLock").field(&self.at).finish()
    }
}

impl SqliteLock {
    pub(super) fn new(connection: Connection, at: &str) -> Self {
        Self {
            connection,
            at: at.into(),
            capabilities: Arc::new(Capabilities::new("sqlite").with_everything()),
        }
    }
}

#[async_trait]
impl Lock for SqliteLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        Some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        Some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.connection.bell.rings()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let request =
            requests::check(&self.capabilities, request).map_err(|e| e.with_name(&request.key.name))?;
        let key = request.key.clone();
        let sent = Timestamp::now();
        let needs = Needs::write(Sync::Ordinary, vec![key.name.clone()]);
        let asked = self.connection.call(needs, move |view| {
            if view.abandoned.has(&request.key) {
                return Err(Error::lost(LossReason::Refused));
            }
            if view.was_released(&request.key) {
                return Err(Error::lost(LossReason::Released));
            }
            let asked = view.change(&request.key.name)?.attempt(&request)?;
            let seen = match asked {
                Asked::Granted(_) => Holders::new(),
                _ => view.look(&request.key.name)?.0.seen(),
            };
            Ok((asked, seen))
        });
        let (asked, seen) = asked.await?;
        let wake = |key| looking(self.connection.clone(), key, Some(seen), LOOK);
        Ok(match asked {
            Asked::Granted(lease) => Attempt::Granted(lease.grant(key, sent)),
            Asked::Queued(place) => Attempt::Queued(place.wait(wake(key))),
            Asked::Held(place) => Attempt::Held(place.wait(wake(key))),
        })
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let key = lease.clone();
        let needs = Needs::write(Sync::Ordinary, vec![key.name.clone()]);
        let released = self.connection.call(needs, move |view| {
            let released = view.change(&key.name)?.release(key.id, how);
            if released == Released::Released {
                view.releasing.push(key);
            } else if view.was_released(&key) {
                return Ok(Released::Released);
            }
            Ok(released)
        });
        released.await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let keys = requests.to_vec();
        let names = keys.iter().map(|k| k.name.clone()).collect();
        let answers = self
            .connection
            .call(Needs::write(Sync::Ordinary, names), move |view| {
                let now = view.now;
                let one = |key: LeaseKey| {
                    let changed = view.change(&key.name);
                    let answer = changed.map(|mut name| name.abandon(key.id));
                    let answer = answer.map_err(|e| e.with_name(&key.name));
                    view.abandoned.bury(key, now);
                    answer
                };
                Ok(keys.into_iter().map(one).collect())
            });
        match answers.await {
            Ok(answers) => answers,
            Err(e) => requests.iter().map(|_| Err(e.clone())).collect(),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let asked = self.connection.ask(Needs::read_nothing(), |_, store| {
            async move { store.settings().await.map(Ok) }.boxed()
        });
        let (version, journal) = asked.await?;
        let server = format!("SQLite {version}, {} (journal mode {journal})", self.at);
        let local = "leases go by the time since this machine's boot: no clock step ends or extends one";
        let power = "a power loss ends all leases and reuses no token";
        Ok(vec![
            Finding::good("server", server),
            Finding::good("persistence", power),
            Finding::good("clock", local),
        ])
    }

    async fn close(&self) -> Result<()> {
        self.connection.close().await
    }
}
