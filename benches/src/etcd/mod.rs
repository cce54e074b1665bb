//! What the program about etcd shares: a server, the bare driver, etcd's own lock API, and what is counted.

mod api;
mod raw;
mod server;

use std::sync::Arc;

use dlock_core::{Client, runtime};
use dlock_etcd::EtcdLock;

pub use api::Api;
pub use raw::Raw;
pub use server::Server;

/// Our backend, with a lease of its own.
pub async fn backend(server: &Server) -> EtcdLock {
    let here = runtime::detect().expect("tokio is current");
    let config = dlock_etcd::Config::new(&server.address()).session_timeout(server::SESSION);
    config.connect(here).await.expect("the server is there")
}

/// A client of our backend.
pub async fn client(server: &Server) -> Client {
    let here = runtime::detect().expect("tokio is current");
    Client::builder(Arc::new(backend(server).await), here)
        .defaults(dlock_core::LockOptions::new().ttl(server::SESSION))
        .build()
        .expect("it keeps its claims")
}
