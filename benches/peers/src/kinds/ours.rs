//! dlock, as its users call it.

use dlock_benches::redis::{Server, client};
use dlock_core::{Client, Lock};

use crate::peer::Kind;

pub(crate) struct Dlock(Client);

impl Kind for Dlock {
    const NAME: &'static str = "dlock";
    const WHAT: &'static str = "this repository, the user API: fencing token, renewal and queue included";
    type Lock = Lock;

    async fn connect(server: &Server) -> Self {
        Self(client(server).await)
    }

    fn lock(&self, name: &str) -> Lock {
        self.0.lock(name).expect("a good name")
    }
}
