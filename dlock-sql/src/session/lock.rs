//! The SPI over the table and the connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Release, Released, Renew, Signal, Wait, Wake,
};
use dlock_core::{
    Capabilities, Error, ErrorKind, LockName, LossReason, Mode, Nature, Result, Strength, Token,
};
use futures::StreamExt as _;
use futures::channel::oneshot;
use futures::future::join_all;
use futures::stream::{self, BoxStream};

use super::board::{Asked, Found};
use super::config::{Limits, Tokens};
use super::connection::{Handle, Job};
use super::connections::Connections;
use super::keys::Key;

/// Locks that hang on a session of the database: see the [module](super).
pub struct SessionLock {
    pub(super) connections: Arc<Connections>,
    capabilities: Capabilities,
    strength: Strength,
    /// Where the tokens come from: part of each key.
    space: Arc<str>,
    /// How much of a key the server takes.
    key_bytes: usize,
}

impl SessionLock {
    pub(super) fn new(
        connections: Arc<Connections>,
        limits: &Limits,
        ttl: Duration,
        tokens: &Tokens,
    ) -> Self {
        let mut capabilities = Capabilities::new(limits.name)
            .with_nature(Nature::Session)
            .with_ttl(ttl..=Duration::from_secs(24 * 3600), Duration::from_millis(1));
        capabilities.name_hash_bits = u32::try_from(limits.key_bytes * 8).ok();
        Self {
            connections,
            capabilities,
            strength: tokens.strength,
            space: tokens.space.as_str().into(),
            key_bytes: limits.key_bytes,
        }
    }

    pub(super) fn key(&self, name: &LockName) -> Key {
        Key::new(&self.space, name).cut(self.key_bytes)
    }

    fn check(&self, request: &Acquire) -> Result<()> {
        let (len, max) = (request.key.name.as_bytes().len(), self.capabilities.max_name_len);
        if len > max {
            return Err(invalid(format!(
                "the name has {len} bytes, dlock takes at most {max}"
            )));
        }
        let (min, max) = (self.capabilities.min_ttl, self.capabilities.max_ttl);
        if request.ttl < min || request.ttl > max {
            let ttl = request.ttl;
            return Err(invalid(format!(
                "a ttl of {ttl:?} is not between {min:?}, after which a session ends, and {max:?}"
            )));
        }
        if request.mode != Mode::Exclusive {
            return Err(unsupported(
                "session locks are exclusive; the lease strategy has the other modes",
            ));
        }
        if request.priority != Acquire::DEFAULT_PRIORITY {
            return Err(unsupported(
                "session locks have no priorities; the lease strategy has",
            ));
        }
        if request.owner.is_some() {
            return Err(unsupported("session locks keep no label of their owner"));
        }
        Ok(())
    }

    /// A lease on that connection, which lasts for a while.
    async fn grant(&self, lease: &LeaseKey, token: Token, connection: &Handle) -> Result<Grant> {
        let now = self.connections.now();
        if !connection.life.is_ample(now) {
            // It is held, whatever comes of this question.
            connection.be_heard(now).await.map_err(held)?;
        }
        let (from, span) = (connection.life.confirmed(), connection.life.span());
        let key = self.key(&lease.name);
        if !self.connections.board.extend(&key, lease.id, from + span) {
            return Err(Error::lost(LossReason::SessionLost));
        }
        Ok(Grant::new(lease.clone(), Some(token), from, span))
    }

    fn wait(&self, key: Key, lease: &LeaseKey, expects: bool) -> Attempt {
        let turn = self.connections.turn(key, lease.clone(), expects);
        Attempt::Held(Wait::new(Wake::Push(turn)))
    }

    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.check(request)?;
        let (lease, key) = (&request.key, self.key(&request.key.name));
        // First the connection: between taking the place of who tries and sending the try nothing is waited
        // for.
        let shared = self.connections.shared().await?;
        let board = &self.connections.board;
        match board.ask(&key, lease, request.waits, self.connections.now())? {
            Asked::Granted(holder) => {
                let grant = self.grant(lease, holder.token, &holder.connection).await?;
                return Ok(Attempt::Granted(grant));
            }
            Asked::Wait => return Ok(self.wait(key, lease, false)),
            Asked::Expect => return Ok(self.wait(key, lease, true)),
            Asked::Try => {}
        }
        let (reply, answer) = oneshot::channel();
        let job = Job::Try {
            key,
            lease: lease.clone(),
            reply,
        };
        if shared.send(job).is_err() {
            board.tried(&key, lease, None);
            return Err(away(self.connections.at()));
        }
        match answer.await {
            Ok(Ok(Some(token))) => Ok(Attempt::Granted(self.grant(lease, token, &shared).await?)),
            Ok(Ok(None)) => {
                board.met_others(&key, self.connections.now());
                Ok(self.wait(key, lease, false))
            }
            Ok(Err(e)) => Err(e),
            Err(oneshot::Canceled) => Err(held(away(self.connections.at()))),
        }
    }

    async fn try_release(&self, lease: &LeaseKey) -> Result<Released> {
        let key = self.key(&lease.name);
        let board = &self.connections.board;
        let was_held = match board.leave(&key, lease.id, self.connections.now())? {
            // Once it is on its way it needs nobody who waits for its answer.
            Some(holder) => holder.connection.unlock(key, lease.id).await?,
            // Or it was given back before, and the answer was lost.
            None => board.was_released(lease.id),
        };
        match was_held {
            true => Ok(Released::Released),
            false => Ok(Released::NotHeld),
        }
    }

    async fn abandon_one(&self, lease: &LeaseKey) -> Result<Abandoned> {
        let (board, key) = (&self.connections.board, self.key(&lease.name));
        let mut withdrawn = false;
        loop {
            match board.abandon(&key, lease.id, self.connections.now())? {
                Found::Nothing if withdrawn => return Ok(Abandoned::Withdrawn),
                Found::Nothing => return Ok(Abandoned::Nothing),
                Found::InLine => return Ok(Abandoned::Withdrawn),
                Found::Trying => {
                    let Some(shared) = board.shared() else {
                        // It is about to be told that its connection has ended.
                        return Err(held(away(self.connections.at())));
                    };
                    // The connection has given back what it was granted before it comes to this.
                    shared.barrier().await.map_err(held)?;
                    withdrawn = true;
                }
                Found::Contending(stopped) => {
                    stopped.await;
                    // Where it was let in just before, the next look finds it.
                    withdrawn = true;
                }
                Found::Holding(holder) => {
                    return self.end(key, lease, &holder.connection, holder.token).await;
                }
            }
        }
    }

    async fn end(&self, key: Key, lease: &LeaseKey, connection: &Handle, token: Token) -> Result<Abandoned> {
        match connection.unlock(key, lease.id).await? {
            true => Ok(Abandoned::WasGranted(Some(token))),
            false => Ok(Abandoned::Nothing),
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.connections.board.check_open()
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
        // It never ends, not even when there is nobody left to tell anything.
        self.connections.board.signals().chain(stream::pending()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let attempt = self.try_attempt(request).await;
        attempt.map_err(|e| e.with_name(&request.key.name))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if how != Release::Now {
            return Err(unsupported("a minimum hold is not for session locks").with_name(&lease.name));
        }
        self.try_release(lease)
            .await
            .map_err(|e| e.with_name(&lease.name))
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|lease| async move {
            let abandoned = self.abandon_one(lease).await;
            abandoned.map_err(|e| e.with_name(&lease.name))
        }))
        .await
    }

    async fn close(&self) -> Result<()> {
        self.connections.board.close();
        Ok(())
    }
}

#[async_trait]
impl Fencing for SessionLock {
    fn strength(&self) -> Strength {
        self.strength
    }
}

/// Blocks for nothing; the connections end with the last of those who use them.
impl fmt::Debug for SessionLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLock")
            .field("at", &self.connections.at())
            .finish_non_exhaustive()
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message.into())
}

fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

fn away(at: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the connection to {at} has just ended"),
    )
}

/// However the question failed, the request may be granted.
fn held(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Unknown,
            "the request may have the lock, and whether its session lives is not known",
        )
        .with_source(e),
        _ => e,
    }
}
