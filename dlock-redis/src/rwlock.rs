//! Downgrade and upgrade.

use async_trait::async_trait;
use dlock_core::spi::{Converted, LeaseKey, RwLock};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Result};

use crate::failure::stopped_halfway;
use crate::lock::{RedisLock, mismatch, with_life, words};

/// Who was refused may have been converted before that: the engine takes `Unknown` for the weaker of the two
/// modes, and a refusal for the mode of before.
fn halfway(e: Error) -> Error {
    if !stopped_halfway(&e) {
        return e;
    }
    let message = "the server stopped the conversion halfway, so the mode of the lock is not known: mend the \
        cause and try again";
    Error::new(ErrorKind::Unknown, message).with_source(e)
}

#[async_trait]
impl RwLock for RedisLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let c = &self.backend;
        let (mode, limit) = words(to)?;
        let mut call = c
            .about(&c.scripts.convert, lease)
            .arg(mode)
            .number(u64::from(limit));
        let (sent, mut reply) = call.ask().await.map_err(halfway)?;
        c.pushed(&lease.name, reply.pushed());
        let grant = match reply.bytes()?.as_slice() {
            b"G" => c.granted(lease, sent, &mut reply)?,
            b"B" => return Ok(Converted::Busy),
            b"D" => return Ok(Converted::WouldDeadlock),
            b"M" => return Err(mismatch(&mut reply, to)),
            _ => return Err(Error::lost(LossReason::Refused)),
        };
        // What the replicas have not acknowledged cannot be undone: others may have been let in. The guard is
        // believed to have the weaker of the two modes.
        let unheard = "the lock was converted, and its replicas did not acknowledge it: ask again";
        let life = self.acknowledged(lease, grant.token, unheard).await?;
        Ok(Converted::Done(match life {
            Some(life) => with_life(grant, life),
            None => grant,
        }))
    }
}
