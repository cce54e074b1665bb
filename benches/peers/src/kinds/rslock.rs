//! rslock: Redlock, here with one server.

use dlock_benches::redis::{Contender, Server};
use rslock::{Lock, LockManager};

use super::TTL;
use crate::peer::Kind;

pub(crate) struct Rslock(LockManager);

impl Kind for Rslock {
    const NAME: &'static str = "rslock";
    const WHAT: &'static str = "rslock 0.10.0, `acquire_no_guard` as it comes: tries again after a random \
        time of up to 200 ms. No fencing \
         token, no renewal";
    type Lock = RslockLock;

    async fn connect(server: &Server) -> Self {
        Self(LockManager::new(vec![server.url()]))
    }

    fn lock(&self, name: &str) -> RslockLock {
        RslockLock {
            manager: self.0.clone(),
            name: name.to_owned(),
        }
    }
}

pub(crate) struct RslockLock {
    manager: LockManager,
    name: String,
}

impl Contender for RslockLock {
    type Held = Lock;

    async fn acquire(&mut self) -> Lock {
        let acquired = self.manager.acquire_no_guard(self.name.as_bytes(), TTL).await;
        acquired.expect("it is waited for")
    }

    async fn release(&mut self, lock: Lock) {
        self.manager.unlock(&lock).await;
    }
}
