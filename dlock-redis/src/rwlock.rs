//! Downgrade and upgrade.

use async_trait::async_trait;
use dlock_core::spi::{Converted, Grant, LeaseKey, RwLock};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Result, Timestamp};

use crate::failure::stopped_halfway;
use crate::lock::{RedisLock, mismatch, with_life, words};
use crate::reply::Reply;

#[async_trait]
impl RwLock for RedisLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let named = |e: Error| e.with_name(&lease.name);
        let c = &self.backend;
        let (mode, limit) = words(to)?;
        let call = c
            .about(&c.scripts.convert, lease)
            .arg(mode)
            .number(u64::from(limit));
        let (sent, mut reply) = call.ask().await.map_err(halfway).map_err(named)?;
        let converted = self.read_converted(lease, to, sent, &mut reply);
        c.pushed(&lease.name, reply.pushed());
        match converted.map_err(named)? {
            Converted::Done(grant) => self.converted(grant).await.map_err(named).map(Converted::Done),
            other => Ok(other),
        }
    }
}

/// Who was refused may have been converted before that: the engine takes `Unknown` for the weaker of the two
/// modes, and a refusal for the mode of before.
fn halfway(e: Error) -> Error {
    if !stopped_halfway(&e) {
        return e;
    }
    let message = "the conversion was refused something halfway, so which mode it has is not known: ask \
        again when that is mended";
    Error::new(ErrorKind::Unknown, message).with_source(e)
}

impl RedisLock {
    /// What the replicas have not acknowledged is done all the same, and cannot be undone: others may have
    /// been let in. So it is unknown, the guard is believed to have the weaker of the two modes, and asking
    /// again settles it.
    async fn converted(&self, grant: Grant) -> Result<Grant> {
        let Some(replicas) = &self.backend.replicas else {
            return Ok(grant);
        };
        match replicas.confirm(&grant.key, grant.token).await {
            Ok(life) => Ok(with_life(grant, life)),
            Err(e) => {
                let message = "the lock was converted, and its replicas did not acknowledge it: ask again";
                Err(Error::new(ErrorKind::Unknown, message).with_source(e))
            }
        }
    }

    fn read_converted(
        &self,
        lease: &LeaseKey,
        to: Mode,
        sent: Timestamp,
        reply: &mut Reply,
    ) -> Result<Converted> {
        match reply.bytes()?.as_slice() {
            b"G" => Ok(Converted::Done(self.backend.granted(lease, sent, reply)?)),
            b"B" => Ok(Converted::Busy),
            b"D" => Ok(Converted::WouldDeadlock),
            b"M" => Err(mismatch(reply, to)),
            _ => Err(Error::lost(LossReason::Refused)),
        }
    }
}
