//! What the programs about ZooKeeper share: a server, the bare driver, the driver's own recipe, Apache
//! Curator, and what is counted.
//!
//! Server, program and Curator are on one core, so that what is measured is work and not which core slept.
//! Requests are counted by the server.

mod curator;
mod raw;
mod recipe;
mod server;

use std::sync::Arc;

use dlock_core::{Client, runtime};
use dlock_zk::ZkLock;

pub use curator::{Crowd, Curator, Pair};
pub use raw::Raw;
pub use recipe::Recipe;
pub use server::Server;

/// Our backend, in a session of its own.
pub async fn backend(server: &Server) -> ZkLock {
    let here = runtime::detect().expect("tokio is current");
    let config = dlock_zk::Config::new(&server.address()).session_timeout(server::SESSION);
    let opened = config.connect(here).await;
    opened.expect("the server is there")
}

/// A client of our backend.
pub async fn client(server: &Server) -> Client {
    let here = runtime::detect().expect("tokio is current");
    let backend = Arc::new(backend(server).await);
    Client::builder(backend, here)
        .defaults(dlock_core::LockOptions::new().ttl(server::SESSION))
        .build()
        .expect("it keeps its claims")
}
