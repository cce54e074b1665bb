//! The SPI over the board and the connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Release, Released, Renew, Signal, Wait, Wake,
};
use dlock_core::{Capabilities, Error, Finding, LockName, LossReason, Nature, Result, Strength};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::{self, BoxStream};

use super::board::{Asked, Found, Holder};
use super::connection::Connections;
use super::failure::{perhaps_done, unsupported};
use super::handle::What;
use super::keys::Key;
use crate::diagnosis::diagnose;

/// Locks that hang on a session of the database: see the [module](super).
pub struct SessionLock {
    pub(super) client: Arc<Connections>,
    capabilities: Capabilities,
}

impl SessionLock {
    /// Makes the shared connection, to see whether that can be done.
    pub(super) async fn open(client: Connections) -> Result<Self> {
        let config = &client.config;
        let bits = config.limits.key_bytes * 8;
        let ttls = config.ttl..=Duration::from_secs(24 * 3600);
        let mut capabilities = Capabilities::new(config.limits.name)
            .with_nature(Nature::Session)
            .with_ttl(ttls, Duration::from_millis(1));
        capabilities.name_hash_bits = u32::try_from(bits).ok();
        let client = Arc::new(client);
        let lock = Self { client, capabilities };
        lock.client.shared().await?;
        Ok(lock)
    }

    pub(super) fn key(&self, name: &LockName) -> Key {
        let client = &self.client;
        Key::new(&client.site.space, name, client.config.limits.key_bytes)
    }

    /// A lease on that connection.
    async fn grant(&self, key: &Key, lease: &LeaseKey, holder: Holder) -> Result<Attempt> {
        let (now, connection) = (self.client.now(), holder.connection);
        if !connection.life.is_ample(now) {
            // It is held, whatever comes of this.
            connection.call(What::Ping(now)).await.map_err(perhaps_done)?;
        }
        let extended = self.client.board.extend(key, lease.id);
        let (_, from) = extended.ok_or_else(|| Error::lost(LossReason::SessionLost))?;
        let grant = Grant::new(lease.clone(), Some(holder.token), from, connection.life.ttl);
        Ok(Attempt::Granted(grant))
    }

    /// Whether it was held.
    async fn unlock(&self, key: Key, lease: &LeaseKey, holder: &Holder) -> Result<bool> {
        let unlocked = holder.connection.call(What::Unlock(key, lease.id));
        unlocked.await.map_err(perhaps_done)
    }

    async fn abandon_one(&self, lease: &LeaseKey) -> Result<Abandoned> {
        let (board, key) = (&self.client.board, self.key(&lease.name));
        loop {
            match board.withdraw(&key, lease.id, self.client.now())? {
                Found::Nothing => return Ok(Abandoned::Nothing),
                // What it was granted is given back before that, or the next look finds it.
                Found::Bidding(over) => over.await,
                Found::Holding(holder) => {
                    return match self.unlock(key, lease, &holder).await? {
                        true => Ok(Abandoned::WasGranted(Some(holder.token))),
                        false => Ok(Abandoned::Nothing),
                    };
                }
            }
        }
    }
}

#[async_trait]
impl Lock for SessionLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        // It never ends, not even without anything left to report.
        self.client.board.signals().chain(stream::pending()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.capabilities.check(request)?;
        let (lease, key) = (&request.key, self.key(&request.key.name));
        // First the connection: nothing is awaited between bidding and sending.
        let shared = self.client.shared().await?;
        let board = &self.client.board;
        loop {
            match board.ask(&key, lease, request.waits, self.client.now())? {
                Asked::Granted(holder) => return self.grant(&key, lease, holder).await,
                Asked::Wait => break,
                Asked::Try(bid) => {
                    if !shared.call(What::Try(bid)).await? {
                        board.met_others(&key, self.client.now());
                        break;
                    }
                }
            }
        }
        let wait = self.client.wait(key, lease.clone());
        Ok(Attempt::Held(Wait::new(Wake::Push(wait))))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if how != Release::Now {
            return Err(unsupported("session locks have no minimum hold"));
        }
        let (board, key) = (&self.client.board, self.key(&lease.name));
        let was_held = match board.withdraw(&key, lease.id, self.client.now())? {
            // Once sent, it needs no one to wait for its answer.
            Found::Holding(holder) => self.unlock(key, lease, &holder).await?,
            // Or it was given back before, and the answer was lost.
            _ => board.was_released(lease.id),
        };
        match was_held {
            true => Ok(Released::Released),
            false => Ok(Released::NotHeld),
        }
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|lease| self.abandon_one(lease))).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let client = &self.client;
        let server = client.config.database.clone();
        diagnose(server, true, &client.site.at, &client.runtime).await
    }

    async fn close(&self) -> Result<()> {
        self.client.board.close();
        Ok(())
    }
}

#[async_trait]
impl Fencing for SessionLock {
    fn strength(&self) -> Strength {
        self.client.site.strength
    }
}

/// The connections end, each when it has done what it was asked. Blocks for nothing.
impl Drop for SessionLock {
    fn drop(&mut self) {
        self.client.board.close();
    }
}

impl fmt::Debug for SessionLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionLock").field(&self.client.site.at).finish()
    }
}
