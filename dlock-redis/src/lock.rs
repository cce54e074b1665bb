//! The core of the backend: attempt, release, abandon.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, Grant, LeaseKey, Lock, Queueing, Release, Released, Renew, Renewal,
    RwLock, Sent, Signal, Wait, Wake, Watch,
};
use dlock_core::{Capabilities, Error, ErrorKind, Finding, LossReason, Mode, Result};
use futures::future::join_all;
use futures::stream::BoxStream;
use redis::Value;

use crate::backend::{Backend, Exists, millis};
use crate::failure::nothing_done;
use crate::keys::{id_bytes, push_number};
use crate::reply::{Reply, strange, token};

/// Locks in a Redis server. See [the crate](crate) for the guarantees, and [`Config`](crate::Config) for how
/// to connect.
///
/// Clones share one connection.
#[derive(Clone)]
pub struct RedisLock {
    pub(crate) backend: Arc<Backend>,
}

pub(crate) fn capabilities(longest_ttl: Option<Duration>) -> Capabilities {
    let mut capabilities = Capabilities::new("redis").with_everything();
    capabilities.clock_sensitive = true;
    if let Some(longest) = longest_ttl {
        capabilities.max_ttl = capabilities.max_ttl.min(longest);
    }
    capabilities
}

impl RedisLock {
    /// Checks that the server can grant locks now, and connects if there is no connection yet. For locks that
    /// were opened [`lazily`](crate::Config::lazily), and for health checks.
    ///
    /// # Cancel safety
    /// Nothing is changed, neither in the server nor in the client.
    ///
    /// # Errors
    /// As [`Config::connect`](crate::Config::connect), and `Closed`.
    pub async fn ready(&self) -> Result<()> {
        let c = &self.backend;
        c.open()?;
        c.connection.ready().await.map_err(|e| nothing_done(e, &c.at))
    }

    /// The run id of the connected server: addresses with the same id lead to one server. `None` for a
    /// cluster, without a connection, and where the user may not run `INFO`.
    pub fn server_run_id(&self) -> Option<Arc<str>> {
        self.backend.connection.run()
    }

    /// A grant that counts. Where replicas must acknowledge and too few do, it is released.
    pub(crate) async fn counted(&self, grant: Grant) -> Result<Grant> {
        let Some(replicas) = &self.backend.replicas else {
            return Ok(grant);
        };
        match replicas.confirm(&grant.key, grant.token).await {
            Ok(life) => Ok(with_life(grant, life)),
            // Nothing is there to be given back.
            Err(e) if e.kind() == ErrorKind::Lost => Err(e),
            Err(e) => match self.release(&grant.key, Release::Now).await {
                Ok(_) => Err(e),
                Err(_) => {
                    let message =
                        "the lock was granted without enough replicas, and could not be released yet";
                    Err(Error::new(ErrorKind::Unknown, message).with_source(e))
                }
            },
        }
    }
}

/// How soon one who does not queue asks again, and how late.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// The same grant with another end.
pub(crate) fn with_life(mut grant: Grant, life: Renewal) -> Grant {
    (grant.counted_from, grant.expires_in) = (life.counted_from, life.expires_in);
    grant
}

/// A mode as the scripts take it.
pub(crate) fn words(mode: Mode) -> Result<(&'static str, u32)> {
    match mode {
        Mode::Exclusive => Ok(("x", 0)),
        Mode::Shared { limit } => Ok(("s", limit.map_or(0, |n| n.get()))),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            "the Redis backend does not know this mode",
        )),
    }
}

pub(crate) fn mismatch(reply: &mut Reply, asked: Mode) -> Error {
    let class = reply.text().ok().and_then(|n| n.parse().ok());
    let limit = class.and_then(NonZeroU32::new);
    Mode::Shared { limit }.mismatch(asked)
}

#[async_trait]
impl Lock for RedisLock {
    fn capabilities(&self) -> &Capabilities {
        &self.backend.capabilities
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
        self.backend.signals()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let c = &self.backend;
        c.capabilities.check(request)?;
        c.open()?;
        let joins = request.queue == Queueing::Join;
        // Before the request is sent: a push may overtake the answer.
        let (waiting, channel) = match joins {
            true => {
                let channel = c.listen(&request.key.name).await?;
                (Some(c.pushes.wait_for(&request.key)), Some(channel))
            }
            false => (None, None),
        };
        let (mode, limit) = words(request.mode)?;
        let queue_ttl = if joins { request.queue_ttl } else { Duration::ZERO };
        // Read only where it is needed, and so in one piece.
        let mut rest = Vec::with_capacity(128);
        rest.extend_from_slice(mode.as_bytes());
        let (queue_ttl, window) = (millis(queue_ttl), millis(c.window));
        for number in [limit.into(), queue_ttl, request.priority.into(), window] {
            rest.push(b':');
            push_number(&mut rest, number);
        }
        rest.push(b':');
        rest.extend_from_slice(channel.as_ref().map_or(&[], |channel| &channel.name));
        let mut call = c
            .keys_of(&c.scripts.acquire, &request.key.name)
            .arg(id_bytes(request.key.id))
            .number(millis(request.ttl))
            .arg(request.owner.as_deref().unwrap_or_default())
            .arg(rest);
        let asks = c.unanswered.asks(&request.key, Sent::Acquire);
        let (sent, value) = asks.answered(call.run().await)?;
        // Only the token, if the name was unused.
        if let Value::BulkString(digits) = &value {
            let grant = Grant::new(request.key.clone(), Some(token(digits)?), sent, request.ttl);
            return self.counted(grant).await.map(Attempt::Granted);
        }
        let mut reply = Reply::new(value)?;
        c.pushed(&request.key.name, reply.pushed());
        match reply.bytes()?.as_slice() {
            b"G" => {
                let grant = c.granted(&request.key, sent, &mut reply)?;
                self.counted(grant).await.map(Attempt::Granted)
            }
            b"Q" => {
                let waiting = waiting.ok_or_else(|| strange("that it queued what does not queue"))?;
                let mut wait = Wait::new(Wake::Push(waiting));
                (wait.recheck_in, wait.ahead) = c.queued(sent, &mut reply)?;
                Ok(Attempt::Queued(wait))
            }
            b"H" => {
                let mut wait = Wait::new(Wake::Poll {
                    probe: Exists::new(c.store.clone(), c.holder(&request.key.name)),
                    min: LOOK_MIN,
                    max: LOOK_MAX,
                });
                wait.recheck_in = reply.recheck()?;
                c.pushes.anchor(sent, reply.number()?);
                Ok(Attempt::Held(wait))
            }
            b"M" => Err(mismatch(&mut reply, request.mode)),
            b"A" => Err(Error::lost(LossReason::Refused)),
            b"R" => Err(Error::lost(LossReason::Released)),
            _ => Err(strange("an unknown word")),
        }
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let keep = match how {
            Release::KeepFor(d) => d,
            _ => Duration::ZERO,
        };
        let c = &self.backend;
        let open = c.unanswered.of(lease);
        let mut call = c.about(&c.scripts.release, lease);
        if open.acquire || !keep.is_zero() {
            let may_come = if open.acquire { "1" } else { "0" };
            call = call.number(millis(keep)).arg(may_come);
        }
        let asks = c.unanswered.asks(lease, Sent::Release);
        let (_, value) = asks.answered(call.run().await)?;
        c.unanswered.forget(lease);
        // Only a word, if there is no waiter.
        let word = match value {
            Value::Array(_) => {
                let mut reply = Reply::new(value)?;
                c.pushed(&lease.name, reply.pushed());
                reply.bytes()?
            }
            Value::BulkString(word) => word,
            _ => return Err(strange("no word")),
        };
        Ok(match word == b"R" || open.release {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let c = &self.backend;
        join_all(requests.iter().map(|key| async move {
            let (_, mut reply) = c.about(&c.scripts.abandon, key).ask().await?;
            c.unanswered.forget(key);
            c.pushed(&key.name, reply.pushed());
            Ok(match reply.bytes()?.as_slice() {
                b"W" => Abandoned::Withdrawn,
                b"G" => Abandoned::WasGranted(Some(reply.token()?)),
                _ => Abandoned::Nothing,
            })
        }))
        .await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.backend
            .diagnose(self.backend.replicas.as_ref().map_or(0, |r| r.needed))
            .await
    }

    async fn close(&self) -> Result<()> {
        self.backend.close();
        if let Some(replicas) = &self.backend.replicas {
            replicas.close();
        }
        Ok(())
    }
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("at", &self.backend.at)
            .field("prefix", &self.backend.prefix)
            .finish_non_exhaustive()
    }
}
