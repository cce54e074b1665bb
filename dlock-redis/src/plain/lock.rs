//! Ask, release, abandon, look.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Grant, LeaseKey, Lock, News, Probe, Queueing, Release, Released, Renew,
    Sent, Signal, Wait, Wake,
};
use dlock_core::{Capabilities, Error, ErrorKind, LossReason, Result};
use futures::future::join_all;
use futures::stream::{BoxStream, StreamExt as _};
use redis::Value;

use super::{Plain, PlainLock, call};
use crate::backend::millis;
use crate::failure::nothing_done;
use crate::lock::{check_name, check_ttl};
use crate::reply::{Reply, strange};

/// How soon who waits looks again, and how late.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(100);

impl Plain {
    fn check(&self, request: &Acquire) -> Result<()> {
        check_name(&self.capabilities, &request.key.name)?;
        check_ttl(&self.capabilities, request.ttl)?;
        let asked = !request.mode.is_exclusive()
            || request.queue == Queueing::Join
            || request.priority != Acquire::DEFAULT_PRIORITY
            || request.owner.is_some();
        match asked {
            true => Err(unsupported(
                "a plain lock has no shared mode, queue, priority or owner label",
            )),
            false => Ok(()),
        }
    }

    /// Deletes the lock if it is of that request: whether it was. With a tombstone against what may be on its
    /// way.
    async fn delete(&self, lease: &LeaseKey, tombstone: bool) -> Result<bool> {
        let key = self.key(&lease.name);
        let mut command = call(&self.scripts.release, 2);
        command.arg(&key).arg(self.tombstone(&key, lease.id)?);
        command.arg(lease.id.to_string()).arg(u8::from(tombstone));
        match self.run(&self.scripts.release, command, None).await?.1 {
            Value::Int(n) => Ok(n == 1),
            _ => Err(strange("no number")),
        }
    }
}

impl PlainLock {
    async fn try_attempt(&self, request: &Acquire) -> Result<Attempt> {
        let plain = &self.0;
        plain.check(request)?;
        let key = plain.key(&request.key.name);
        let mut command = call(&plain.scripts.acquire, 2);
        command.arg(&key).arg(plain.tombstone(&key, request.key.id)?);
        command.arg(request.key.id.to_string()).arg(millis(request.ttl));
        let asks = plain.unanswered.asks(&request.key, Sent::Acquire);
        let (sent, value) = asks.answered(plain.run(&plain.scripts.acquire, command, None).await)?;
        let mut reply = Reply::new(value)?;
        match reply.bytes()?.as_slice() {
            b"G" => Ok(Attempt::Granted(Grant::new(
                request.key.clone(),
                None,
                sent,
                reply.life()?,
            ))),
            b"H" => {
                let probe = Arc::new(IsFree {
                    plain: Arc::clone(plain),
                    key,
                });
                let (min, max) = (LOOK_MIN, LOOK_MAX);
                let mut wait = Wait::new(Wake::Poll { probe, min, max });
                wait.recheck_in = reply.recheck()?;
                Ok(Attempt::Held(wait))
            }
            b"A" => Err(Error::lost(LossReason::Refused)),
            _ => Err(strange("an unknown word")),
        }
    }
}

pub(super) fn unsupported(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

/// Asks whether anybody holds it: one command that changes nothing, for all who wait in this client.
struct IsFree {
    plain: Arc<Plain>,
    key: Vec<u8>,
}

#[async_trait]
impl Probe for IsFree {
    async fn look(&self) -> Result<News> {
        self.plain.check_open()?;
        let mut command = redis::cmd("EXISTS");
        command.arg(&self.key);
        let answer = self.plain.connection.query(&command).await;
        match answer.map_err(|e| nothing_done(e, &self.plain.at))? {
            // Whoever it is by now: there is nothing to be had.
            Value::Int(1) => Ok(News::Nothing),
            _ => Ok(News::Changed),
        }
    }
}

#[async_trait]
impl Lock for PlainLock {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let signals = self.0.pushes.signals();
        signals.chain(futures::stream::pending()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let attempt = self.try_attempt(request).await;
        attempt.map_err(|e| e.with_name(&request.key.name))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let named = |e: Error| e.with_name(&lease.name);
        if how != Release::Now {
            return Err(named(unsupported("a plain lock has no minimum hold")));
        }
        let open = self.0.unanswered.of(lease);
        let asks = self.0.unanswered.asks(lease, Sent::Release);
        let deleted = asks.answered(self.0.delete(lease, open.acquire).await);
        let deleted = deleted.map_err(named)?;
        self.0.unanswered.forget(lease);
        Ok(match deleted || open.release {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|key| async move {
            let deleted = self.0.delete(key, true).await;
            let deleted = deleted.map_err(|e| e.with_name(&key.name))?;
            self.0.unanswered.forget(key);
            Ok(match deleted {
                true => Abandoned::WasGranted(None),
                false => Abandoned::Nothing,
            })
        }))
        .await
    }

    async fn close(&self) -> Result<()> {
        self.0.closed.store(true, Ordering::Release);
        self.0.pushes.close();
        self.0.connection.close();
        Ok(())
    }
}
