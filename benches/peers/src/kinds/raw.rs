//! The bare driver: the minimum cost of a lock.

use dlock_benches::redis::{self, Contender, Server};

use crate::peer::Kind;

pub(crate) struct Raw(redis::Raw);

impl Kind for Raw {
    const NAME: &'static str = "raw EVALSHA";
    const WHAT: &'static str = "the driver (redis 1.8) and two scripts, `SET NX PX` and compare-and-delete: \
        no lock, it cannot wait. Its gap is \
         that of a script which publishes, until another connection is told";
    const WAITS: bool = false;
    type Lock = RawLock;

    async fn connect(server: &Server) -> Self {
        // What is pushed to it nobody wants.
        Self(redis::Raw::new(server).await.0)
    }

    fn lock(&self, name: &str) -> RawLock {
        RawLock {
            raw: self.0.clone(),
            key: name.to_owned(),
        }
    }
}

pub(crate) struct RawLock {
    raw: redis::Raw,
    key: String,
}

impl Contender for RawLock {
    type Held = ();

    async fn acquire(&mut self) {
        self.raw.lock(&self.key).await;
    }

    async fn release(&mut self, (): ()) {
        self.raw.unlock(&self.key).await;
    }
}
