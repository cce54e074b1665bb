//! What the programs about Redis share: a server, the bare driver, and what is timed and counted.
//!
//! Program and server are on one core, so that what is measured is work and not which core slept. Commands
//! are counted by the server.

mod crowd;
mod cycles;
mod direct;
mod effort;
mod goals;
mod raw;
mod server;
mod stats;
mod table;

use std::sync::Arc;

use dlock_core::{Client, Runtime, runtime};
use dlock_redis::{Config, RedisLock};

pub use crowd::{Contender, Seen, Spell, crowd};
pub use cycles::{in_turn, rate, timed};
pub use direct::Direct;
pub use effort::Effort;
pub use goals::Goals;
pub use raw::{Raw, floor};
pub use server::{Server, Wire, cores};
pub use stats::{Counted, Meter, micros, middle, quantile};
pub use table::Table;

/// The runtime that is current.
pub fn here() -> Arc<dyn Runtime> {
    runtime::detect().expect("tokio is current")
}

/// Our backend, on a connection of its own.
pub async fn backend(server: &Server) -> RedisLock {
    Config::from_url(&server.url())
        .expect("a URL")
        .connect(here())
        .await
        .expect("the server is there")
}

/// A client of our backend.
pub async fn client(server: &Server) -> Client {
    let backend = Arc::new(backend(server).await);
    Client::builder(backend, here())
        .build()
        .expect("it keeps its claims")
}
