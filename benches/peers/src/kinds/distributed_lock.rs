//! distributed-lock, a port of the .NET library of that name.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use dlock_benches::redis::{Contender, Server};

use crate::peer::Kind;

/// How often we ask for it where somebody has it.
const EVERY: Duration = Duration::from_millis(10);

pub(crate) struct DistributedLock(RedisLockProvider);

impl Kind for DistributedLock {
    const NAME: &'static str = "distributed-lock";
    const WHAT: &'static str = "distributed-lock-redis 0.2.0 as it comes. Its `acquire` asks once and gives \
        up, so we ask by `try_acquire` every \
         10 ms. It renews, and has no fencing token";
    type Lock = Asked;

    async fn connect(server: &Server) -> Self {
        Self(RedisLockProvider::new(server.url()).await.expect("it answers"))
    }

    /// One for each task: the lock, and not the handle, has the id that owns the key.
    fn lock(&self, name: &str) -> Asked {
        Asked(self.0.create_lock(name))
    }
}

pub(crate) struct Asked(RedisDistributedLock);

impl Contender for Asked {
    type Held = RedisLockHandle;

    async fn acquire(&mut self) -> RedisLockHandle {
        loop {
            if let Some(handle) = self.0.try_acquire().await.expect("it answers") {
                return handle;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn release(&mut self, handle: RedisLockHandle) {
        handle.release().await.expect("it was held");
    }
}
