//! Attempt, release, abandon, probe.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Grant, LeaseKey, Lock, Queueing, Release, Released, Renew, Sent, Signal,
    Wait, Wake,
};
use dlock_core::{Capabilities, Error, ErrorKind, Finding, LossReason, Result};
use futures::future::join_all;
use futures::stream::BoxStream;
use redis::Value;

use super::PlainLock;
use crate::backend::{Exists, millis};
use crate::reply::strange;

/// The shortest and the longest pause between a waiter's polls.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(100);

impl PlainLock {
    /// Where the lock of that lease is, for all clients, and where an abandoned request is remembered.
    fn keys(&self, lease: &LeaseKey) -> Result<(Vec<u8>, Vec<u8>)> {
        let key = self.key(&lease.name);
        let tombstone = self.tombstone(&key, lease.id)?;
        Ok((key, tombstone))
    }

    fn check(&self, request: &Acquire) -> Result<()> {
        let asked = !request.mode.is_exclusive()
            || request.queue == Queueing::Join
            || request.priority != Acquire::DEFAULT_PRIORITY
            || request.owner.is_some();
        match asked {
            true => Err(unsupported(
                "a plain lock has no shared mode, queue, priority or owner label",
            )),
            false => self.store.capabilities.check(request),
        }
    }

    /// Deletes the lock if it is of that request: whether it was. With a tombstone against what may be on its
    /// way.
    async fn delete(&self, lease: &LeaseKey, tombstone: bool) -> Result<bool> {
        let (key, buried) = self.keys(lease)?;
        let call = self.store.call(&self.scripts.release, 2).arg(key).arg(buried);
        let mut call = call.arg(lease.id.to_string()).number(u64::from(tombstone));
        match call.run().await?.1 {
            Value::Int(n) => Ok(n == 1),
            _ => Err(strange("no number")),
        }
    }
}

pub(super) fn unsupported(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

#[async_trait]
impl Lock for PlainLock {
    fn capabilities(&self) -> &Capabilities {
        &self.store.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.store.signals()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.check(request)?;
        let (key, tombstone) = self.keys(&request.key)?;
        let call = self.store.call(&self.scripts.acquire, 2).arg(&key).arg(tombstone);
        let mut call = call.arg(request.key.id.to_string()).number(millis(request.ttl));
        let asks = self.store.unanswered.asks(&request.key, Sent::Acquire);
        let (sent, mut reply) = asks.answered(call.ask().await)?;
        match reply.bytes()?.as_slice() {
            b"G" => Ok(Attempt::Granted(Grant::new(
                request.key.clone(),
                None,
                sent,
                reply.life()?,
            ))),
            b"H" => {
                let probe = Exists::new(self.store.clone(), key);
                let (min, max) = (LOOK_MIN, LOOK_MAX);
                let mut wait = Wait::new(Wake::Poll { probe, min, max });
                wait.recheck_in = reply.recheck()?;
                Ok(Attempt::Held(wait))
            }
            b"A" => Err(Error::lost(LossReason::Refused)),
            _ => Err(strange("an unknown word")),
        }
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if how != Release::Now {
            return Err(unsupported("a plain lock has no minimum hold"));
        }
        let open = self.store.unanswered.of(lease);
        let asks = self.store.unanswered.asks(lease, Sent::Release);
        let deleted = asks.answered(self.delete(lease, open.acquire).await)?;
        self.store.unanswered.forget(lease);
        Ok(match deleted || open.release {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|key| async move {
            let deleted = self.delete(key, true).await?;
            self.store.unanswered.forget(key);
            Ok(match deleted {
                true => Abandoned::WasGranted(None),
                false => Abandoned::Nothing,
            })
        }))
        .await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.store.diagnose(0).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close();
        Ok(())
    }
}
